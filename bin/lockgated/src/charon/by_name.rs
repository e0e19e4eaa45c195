//! The plugin's ledger, played by tests: handles of SAs by the names that charon has for them.

use std::collections::HashMap;
use std::net::IpAddr;

use charon_link::{
    AddSa, Answer, CharonId, HandleIssuer, OuterAddress, ProcessNumber, Request, SaHandle, SaName,
    Selector, Status, UpdateSa,
};

/// A request whose SA has a name instead of a handle, or any other request.
#[derive(Clone, Debug)]
pub(super) enum NamedRequest {
    QuerySa(SaName),
    DeleteSa(SaName),
    MoveSa(MoveSa),
    Other(Box<Request>),
}

/// Other ends of an SA.
#[derive(Clone, Debug)]
pub(super) struct MoveSa {
    pub(super) name: SaName,
    pub(super) source: OuterAddress,
    pub(super) destination: OuterAddress,
    pub(super) in_udp: bool,
    pub(super) reqid: Option<u32>,
    pub(super) selectors: Option<[Vec<Selector>; 2]>,
}

/// Handles by SPI and destination.
#[derive(Clone, Default, Debug)]
pub(super) struct Ledger(HashMap<(u32, IpAddr), SaHandle>);

impl From<Request> for NamedRequest {
    fn from(request: Request) -> NamedRequest {
        NamedRequest::Other(Box::new(request))
    }
}

impl From<&Request> for NamedRequest {
    fn from(request: &Request) -> NamedRequest {
        request.clone().into()
    }
}

impl From<&NamedRequest> for NamedRequest {
    fn from(request: &NamedRequest) -> NamedRequest {
        request.clone()
    }
}

impl Ledger {
    /// The handle of a name; of an unknown name one that is never issued.
    pub(super) fn handle(&self, name: SaName) -> SaHandle {
        let known = self.0.get(&key(name)).copied();
        known.unwrap_or_else(|| SaHandle::new(u64::MAX).unwrap())
    }

    /// All handles.
    pub(super) fn handles(&self) -> Vec<SaHandle> {
        self.0.values().copied().collect()
    }

    /// The request as it crosses the socket.
    pub(super) fn by_handle(&self, request: &NamedRequest) -> Request {
        match request.clone() {
            NamedRequest::QuerySa(name) => Request::QuerySa(self.handle(name)),
            NamedRequest::DeleteSa(name) => Request::DeleteSa(self.handle(name)),
            NamedRequest::MoveSa(asked) => {
                let MoveSa { name, source, destination, in_udp, reqid, selectors } = asked;
                let handle = self.handle(name);
                let asked = UpdateSa { handle, source, destination, in_udp, reqid, selectors };
                Request::UpdateSa(asked)
            }
            NamedRequest::Other(request) => *request,
        }
    }

    /// Notes what a request came to.
    pub(super) fn note(&mut self, request: &NamedRequest, answer: &Answer) {
        match request {
            NamedRequest::MoveSa(asked) if answer.status == Status::Done => {
                let handle = self.0.remove(&key(asked.name));
                let moved = (asked.name.spi, asked.destination.ip());
                self.0.extend(handle.map(|handle| (moved, handle)));
            }
            NamedRequest::Other(request) => match (&**request, answer.handle, answer.spi) {
                (Request::AddSa(sa), Some(handle), _) => self.add(sa, handle),
                (Request::GetSpi { destination, .. }, Some(handle), Some(spi)) => {
                    self.0.insert((spi, destination.ip()), handle);
                }
                _ => {}
            },
            _ => {}
        }
    }

    fn add(&mut self, sa: &AddSa, handle: SaHandle) {
        self.0.insert(key(sa.name), handle);
    }
}

fn key(name: SaName) -> (u32, IpAddr) {
    (name.spi, name.destination.ip())
}

/// A charon of a number.
pub(super) fn charon(number: u8) -> CharonId {
    CharonId([number; 16])
}

/// An issuer of handles that were not issued before.
pub(super) fn issuer() -> HandleIssuer {
    HandleIssuer::new(ProcessNumber::new(7).unwrap())
}
