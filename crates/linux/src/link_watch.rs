//! Notifications about netdevs, at once and apart from the mirror. The mirror reads whole lists and
//! waits between two readings; an XDP program that another program removed is restored meanwhile.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use crate::netlink::{Events, Message};

/// Routing, neighbours, netdevs (`NETLINK_ROUTE`).
const ROUTE_PROTOCOL: isize = 0;
/// Multicast group of netdevs (`RTNLGRP_LINK`).
const LINK_GROUP: u32 = 1;
/// Type of the message about a netdev that is new or changed (`RTM_NEWLINK`).
const NEW_LINK: u16 = 16;
/// Room for notifications while nobody reads, bytes; the kernel may grant less.
const EVENT_ROOM_BYTES: u32 = 1 << 20;
/// Datagrams that are read before the caller acts.
const DATAGRAMS_AT_ONCE: usize = 256;
/// Time before a broken socket is opened again.
const RETRY: Duration = Duration::from_secs(1);

/// Netdevs that the kernel reported as changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ChangedLinks {
    /// Netdevs with these indexes.
    Some(BTreeSet<u32>),
    /// Any: notifications were lost.
    Any,
}

impl ChangedLinks {
    /// Returns whether a netdev may have changed.
    pub fn may_hold(&self, index: u32) -> bool {
        match self {
            ChangedLinks::Some(indexes) => indexes.contains(&index),
            ChangedLinks::Any => true,
        }
    }
}

/// Listens for changes of netdevs.
pub struct LinkWatch {
    /// `None`: the socket is to be opened again.
    events: Option<Events>,
}

impl LinkWatch {
    /// Listens in this thread's network namespace.
    pub fn start() -> LinkWatch {
        LinkWatch { events: open().ok() }
    }

    /// Waits for changes of netdevs. Cancel safe: the kernel keeps unread notifications.
    pub async fn changed(&mut self) -> ChangedLinks {
        loop {
            let Some(events) = &mut self.events else {
                tokio::time::sleep(RETRY).await;
                self.events = open().ok();
                match self.events {
                    Some(_) => return ChangedLinks::Any,
                    None => continue,
                }
            };
            match receive(events).await {
                Ok(indexes) if indexes.is_empty() => {}
                Ok(indexes) => return ChangedLinks::Some(indexes),
                // Notifications were lost, or the socket broke.
                Err(_) => {
                    self.events = open().ok();
                    return ChangedLinks::Any;
                }
            }
        }
    }
}

fn open() -> io::Result<Events> {
    Events::open(ROUTE_PROTOCOL, &[LINK_GROUP], EVENT_ROOM_BYTES)
}

/// Waits for notifications and takes all that are there.
async fn receive(events: &mut Events) -> io::Result<BTreeSet<u32>> {
    let mut indexes = BTreeSet::new();
    let mut each = |message: Message<'_>| indexes.extend(changed_index(&message));
    events.receive(&mut each).await?;
    for _ in 1..DATAGRAMS_AT_ONCE {
        if !events.receive_ready(&mut each).await? {
            break;
        }
    }
    Ok(indexes)
}

/// Index of the netdev that a message is about: `struct ifinfomsg` has it behind 4 bytes.
fn changed_index(message: &Message<'_>) -> Option<u32> {
    let index = message.payload.get(4..8).filter(|_| message.kind == NEW_LINK)?;
    index.try_into().ok().map(u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_about_a_changed_netdev_has_its_index() {
        let mut payload = [0; 16];
        payload[4..8].copy_from_slice(&7_u32.to_ne_bytes());
        let message = |kind, payload| changed_index(&Message { kind, flags: 0, payload });
        assert_eq!(message(NEW_LINK, &payload), Some(7));
        assert_eq!(message(NEW_LINK + 1, &payload), None);
        assert_eq!(message(NEW_LINK, &payload[..7]), None);
    }

    #[test]
    fn lost_notifications_may_be_about_any_netdev() {
        assert!(ChangedLinks::Any.may_hold(3));
        let some = ChangedLinks::Some([3].into());
        assert!(some.may_hold(3) && !some.may_hold(4));
    }
}
