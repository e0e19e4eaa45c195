//! Open connections of the metrics' port. At the bound the oldest connection of the longest share
//! gives way, so that a client with many connections keeps no other client out. Users of this
//! machine have places of their own.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use linux::tcp_user;
use tokio::sync::oneshot;

/// Connections at a time from other machines.
pub(super) const MAX_REMOTE_CONNECTIONS: usize = 64;
/// Connections at a time from this machine.
pub(super) const MAX_LOCAL_CONNECTIONS: usize = 16;

/// The connections that are open.
#[derive(Clone, Default)]
pub(super) struct OpenConnections(Arc<Mutex<ConnectionTable>>);

/// Connections in the order of their arrival.
#[derive(Default)]
struct ConnectionTable {
    connections: Vec<OpenConnection>,
    accepted: u64,
}

/// A connection in the table.
struct OpenConnection {
    number: u64,
    client: ScrapeClient,
    /// Ends the connection when it is dropped.
    _end: oneshot::Sender<()>,
}

/// Client whose connections are one share.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum ScrapeClient {
    /// User of this machine.
    LocalUser(u32),
    /// Users of this machine whom the kernel does not tell, and clients that have gone: one share.
    LocalUnknown,
    /// IPv4 address.
    V4(Ipv4Addr),
    /// IPv6 network of 64 bits.
    V6([u8; 8]),
}

/// Place of a connection; dropping it frees the place.
pub(super) struct ConnectionPlace {
    open: OpenConnections,
    number: u64,
}

impl ScrapeClient {
    /// Returns the client of a connection between two addresses. Asks the kernel for the user of a
    /// client on this machine.
    pub(super) fn of(client: SocketAddr, server: SocketAddr) -> ScrapeClient {
        let address = client.ip().to_canonical();
        if address.is_loopback() || address == server.ip().to_canonical() {
            let user = tcp_user(client, server).map(ScrapeClient::LocalUser);
            return user.unwrap_or(ScrapeClient::LocalUnknown);
        }
        match address {
            IpAddr::V4(address) => ScrapeClient::V4(address),
            IpAddr::V6(address) => {
                let [a, b, c, d, e, f, g, h, ..] = address.octets();
                ScrapeClient::V6([a, b, c, d, e, f, g, h])
            }
        }
    }

    fn is_local(self) -> bool {
        matches!(self, ScrapeClient::LocalUser(_) | ScrapeClient::LocalUnknown)
    }
}

impl OpenConnections {
    fn table(&self) -> MutexGuard<'_, ConnectionTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a connection, with the signal of its end.
    pub(super) fn admit(&self, client: ScrapeClient) -> (ConnectionPlace, oneshot::Receiver<()>) {
        let mut table = self.table();
        table.make_room(client);
        let (end, ended) = oneshot::channel();
        table.accepted += 1;
        let number = table.accepted;
        table.connections.push(OpenConnection { number, client, _end: end });
        (ConnectionPlace { open: self.clone(), number }, ended)
    }
}

impl ConnectionTable {
    /// At the bound, ends the oldest connection of the client with most connections, the new one
    /// included; of equal clients, the oldest connection of all.
    fn make_room(&mut self, client: ScrapeClient) {
        let most = if client.is_local() { MAX_LOCAL_CONNECTIONS } else { MAX_REMOTE_CONNECTIONS };
        let mut shares = HashMap::from([(client, 1)]);
        let is_beside = |open: &&OpenConnection| open.client.is_local() == client.is_local();
        for open in self.connections.iter().filter(is_beside) {
            *shares.entry(open.client).or_insert(0) += 1;
        }
        if shares.values().sum::<usize>() <= most {
            return;
        }
        let longest = shares.values().max().copied();
        let gives_way = |open: &OpenConnection| shares.get(&open.client).copied() == longest;
        if let Some(place) = self.connections.iter().position(gives_way) {
            self.connections.remove(place);
        }
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        let number = self.number;
        self.open.table().connections.retain(|open| open.number != number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(last: u8) -> ScrapeClient {
        ScrapeClient::V4(Ipv4Addr::new(192, 0, 2, last))
    }

    /// Each entry is a connection: its place, and the signal of its end.
    type AdmittedConnections = Vec<(ConnectionPlace, oneshot::Receiver<()>)>;

    fn has_ended((_, ended): &mut (ConnectionPlace, oneshot::Receiver<()>)) -> bool {
        ended.try_recv() == Err(oneshot::error::TryRecvError::Closed)
    }

    #[test]
    fn oldest_connection_of_the_longest_share_gives_way() {
        let open = OpenConnections::default();
        let mut held: AdmittedConnections = vec![open.admit(client(1)), open.admit(client(2))];
        held.extend((2..MAX_REMOTE_CONNECTIONS).map(|_| open.admit(client(2))));
        held.push(open.admit(client(3)));
        assert!(!has_ended(&mut held[0]) && has_ended(&mut held[1]) && !has_ended(&mut held[2]));
        held.push(open.admit(client(2)));
        assert!(has_ended(&mut held[2]) && !has_ended(&mut held[MAX_REMOTE_CONNECTIONS]));
        assert_eq!(open.table().connections.len(), MAX_REMOTE_CONNECTIONS);
        held.clear();
        assert!(open.table().connections.is_empty());
    }

    #[test]
    fn of_equal_shares_the_oldest_connection_gives_way() {
        let open = OpenConnections::default();
        let count = MAX_REMOTE_CONNECTIONS as u8;
        let mut held: AdmittedConnections =
            (0..count).map(|last| open.admit(client(last))).collect();
        held.push(open.admit(client(count)));
        assert!(has_ended(&mut held[0]) && !has_ended(&mut held[1]));
        // A client with two connections gives way itself.
        held.push(open.admit(client(9)));
        assert!(has_ended(&mut held[9]) && !has_ended(&mut held[1]));
    }

    #[test]
    fn users_of_this_machine_and_other_machines_take_no_place_of_each_other() {
        let open = OpenConnections::default();
        let [scraper, nobody] = [100, 65_534].map(ScrapeClient::LocalUser);
        let mut own = open.admit(scraper);
        let mut held: AdmittedConnections = (0..MAX_REMOTE_CONNECTIONS + 9)
            .flat_map(|last| [client(last as u8), nobody])
            .map(|client| open.admit(client))
            .collect();
        assert!(!has_ended(&mut own));
        let is_open = |held: &mut AdmittedConnections| {
            held.iter_mut().filter_map(|open| (!has_ended(open)).then_some(())).count()
        };
        assert_eq!(is_open(&mut held), MAX_REMOTE_CONNECTIONS + MAX_LOCAL_CONNECTIONS - 1);
    }

    /// Clients that have gone must not multiply their shares by loopback addresses.
    #[test]
    fn local_clients_without_a_user_are_one_share() {
        let of = |client: &str| {
            ScrapeClient::of(client.parse().unwrap(), "127.0.0.1:9".parse().unwrap())
        };
        let shares = ["127.0.0.1:1", "127.0.0.2:2", "127.9.9.9:1"].map(of);
        assert_eq!(shares, [ScrapeClient::LocalUnknown; 3]);
        assert!(shares[0].is_local());
    }

    #[test]
    fn hosts_of_an_ipv6_network_are_one_client() {
        let of =
            |address: &str| ScrapeClient::of(address.parse().unwrap(), "[::]:9".parse().unwrap());
        assert_eq!(of("[2001:db8::1]:1"), of("[2001:db8::ffff:0:2]:2"));
        assert_ne!(of("[2001:db8::1]:1"), of("[2001:db8:0:1::1]:1"));
        assert_eq!(of("[::ffff:192.0.2.7]:1"), client(7));
        assert_ne!(of("192.0.2.7:1"), of("192.0.2.8:1"));
    }
}
