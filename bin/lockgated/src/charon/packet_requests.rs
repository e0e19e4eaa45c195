//! Requests for SAs of waiting packets: charon gets the reqid of its policy.

use api::v1;
use charon_link::{AddPolicy, PolicyAction, PolicyDirection, Report, Selector};
use control::IKE_NAMES;
use ipsec::Tunnel;

use super::desk::Desk;
use super::own::{Ends, OwnPeer};

/// Requests for SAs that wait for a policy of charon's.
const MAX_UNANSWERED: usize = crate::acquires::MAX_OUTSTANDING;

impl Desk {
    /// Asks again for SAs of waiting packets: charon has added a policy. `None`: several policies
    /// may be others.
    pub(super) fn ask_again(&mut self, added: Option<&AddPolicy>) {
        for asked in std::mem::take(&mut self.unanswered) {
            let is_left = self.is_left(&asked.peer);
            let report = match added.filter(|_| is_left) {
                // No search among all policies for each that comes.
                Some(added) if !protects(added, &asked) => {
                    self.unanswered.push(asked);
                    continue;
                }
                _ => self.acquire(&asked),
            };
            self.due.extend(report);
        }
    }

    /// Returns whether an earlier charon left a peer, or an own peer of the name is gone.
    fn is_left(&self, name: &str) -> bool {
        let own = self.own.peer(name);
        own.map_or_else(|| name.starts_with(IKE_NAMES), OwnPeer::is_of_earlier)
    }

    /// The report that packets of a peer wait for an SA.
    pub(super) fn acquire(&mut self, asked: &v1::Acquire) -> Option<Report> {
        self.refresh();
        let packet = packet_of(asked)?;
        let reqid = match self.own.peer(&asked.peer) {
            Some(own) => {
                let mut reqids = std::iter::once(&own.reqid).chain(own.numbers.iter());
                let reqid = reqids.find(|reqid| self.book.covers(**reqid, &packet)).copied();
                // The connected charon may have the packet under other selectors.
                reqid.or_else(|| {
                    own.is_of_earlier().then(|| self.book.any_reqid_for(&packet)).flatten()
                })
            }
            // The peer went while a packet waited.
            None if self.is_left(&asked.peer) => Some(self.book.any_reqid_for(&packet)?),
            None => {
                let section = &self.peers.named(&asked.peer)?.section;
                let may_move_to =
                    |[local, remote]: Ends| section.may_be_between(Tunnel { local, remote });
                let Tunnel { local, remote } = section.tunnel();
                self.book.reqid_for([local, remote], may_move_to, &packet)
            }
        };
        let Some(reqid) = reqid else {
            // Its policies may be on their way.
            if self.unanswered.len() < MAX_UNANSWERED {
                self.unanswered.push(asked.clone());
            }
            return None;
        };
        Some(Report::Acquire { reqid, selectors: packet })
    }
}

/// Returns whether an outbound policy protects the packet that waits.
fn protects(policy: &AddPolicy, asked: &v1::Acquire) -> bool {
    let covers = |packet: [Selector; 2]| {
        let mut pairs = policy.policy.selectors.iter().zip(&packet);
        pairs.all(|(of, packet)| of.covers(packet))
    };
    policy.action == PolicyAction::Protect
        && policy.policy.direction == PolicyDirection::Outbound
        && packet_of(asked).is_some_and(covers)
}

/// The packet that waits, as two selectors.
fn packet_of(asked: &v1::Acquire) -> Option<[Selector; 2]> {
    let protocol = u8::try_from(asked.protocol).ok()?;
    let port = |port: u32| u16::try_from(port).ok();
    let [source, destination] = match (&asked.ports, &asked.icmp) {
        (Some(pair), _) => [port(pair.source)?, port(pair.destination)?],
        (None, Some(icmp)) => [port(icmp.r#type << 8 | icmp.code)?; 2],
        (None, None) => {
            return both(asked, protocol, [Selector::ANY_PORT; 2]);
        }
    };
    both(asked, protocol, [(source, source), (destination, destination)])
}

fn both(asked: &v1::Acquire, protocol: u8, ports: [(u16, u16); 2]) -> Option<[Selector; 2]> {
    let one = |address: &str, ports| {
        let address = address.parse().ok()?;
        Some(Selector { protocol, ports, addresses: (address, address) })
    };
    Some([one(&asked.source, ports[0])?, one(&asked.destination, ports[1])?])
}
