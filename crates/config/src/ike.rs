//! `[ike]` as it is configured: how far charon's own policies may go.

use std::fmt::Write;
use std::net::IpAddr;
use std::sync::Arc;

use ipsec::{Lifetime, Suite};
use policy::{AddressRange, Selector};

use crate::lifetime;
use crate::values::unusable;
use crate::written::{addresses, list, write_selector};

/// CHILD_SAs and shunts at most that charon may have of its own, if nothing is written.
pub(crate) const DEFAULT_CHILDREN: u32 = 10_000;
/// The largest number of them that may be written.
pub(crate) const MAX_CHILDREN: u32 = 65_536;
/// Shunts that may be listed.
pub(crate) const MAX_SHUNTS: usize = 256;

/// `[ike]`: what charon may install by itself, for packets of which no policy of the file speaks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IkeBounds {
    /// Addresses of this gateway at which its tunnels may end.
    pub ends: Arc<[AddressRange]>,
    /// Addresses of others at which they may end.
    pub peers: Arc<[AddressRange]>,
    /// Packets that its policies may protect.
    pub selector: Selector,
    /// Suites that it may negotiate, in the order of the file, all of them with integrity.
    pub suites: Vec<Suite>,
    /// CHILD_SAs and shunts of its own that it may have.
    pub max_children: u32,
    /// Limits of each of its SAs; the lower of these and charon's hold.
    pub lifetime: Lifetime,
    /// Shunts that it may install.
    pub shunts: Vec<Shunt>,
}

/// `[[ike.shunt]]`: packets that charon may have passed in clear, or dropped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shunt {
    /// The action that it may ask for.
    pub action: ShuntAction,
    /// The packets.
    pub selector: Selector,
}

/// The action of a shunt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ShuntAction {
    /// BYPASS.
    Bypass,
    /// DISCARD.
    Discard,
}

impl ShuntAction {
    /// Both.
    pub(crate) const ALL: [ShuntAction; 2] = [ShuntAction::Bypass, ShuntAction::Discard];

    /// Returns its name, as the file has it.
    pub const fn name(self) -> &'static str {
        match self {
            ShuntAction::Bypass => "bypass",
            ShuntAction::Discard => "discard",
        }
    }
}

/// A bound that something of charon's is beyond.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BeyondBounds {
    /// The tunnel would end at another address of ours.
    #[error("`ends` of [ike] does not list {0}, this gateway's end of the tunnel")]
    End(IpAddr),
    /// The tunnel is with somebody else.
    #[error("`peers` of [ike] does not list {0}, the other end of the tunnel")]
    Peer(IpAddr),
    /// Nobody can be there.
    #[error("no tunnel can end at {0}, which is {1}")]
    Unusable(IpAddr, &'static str),
    /// One end is IPv4 and the other IPv6.
    #[error("one end of the tunnel is IPv4, the other IPv6")]
    Families,
    /// Other packets.
    #[error(
        "the selectors have packets that `local`, `remote`, protocol or ports of [ike] have not"
    )]
    Packets,
    /// No shunt lists them.
    #[error("no [[ike.shunt]] with action = \"{}\" has all packets of the selectors", .0.name())]
    Shunt(ShuntAction),
    /// Another suite.
    #[error("`suites` of [ike] does not list {0}")]
    Suite(Suite),
}

impl IkeBounds {
    /// Checks the ends of a tunnel.
    ///
    /// # Errors
    /// [`BeyondBounds`].
    pub fn admit_tunnel(&self, local: IpAddr, remote: IpAddr) -> Result<(), BeyondBounds> {
        let lists = |ranges: &[AddressRange], address: IpAddr| {
            ranges.iter().any(|range| range.contains(address.into()))
        };
        match () {
            () if !lists(&self.ends, local) => Err(BeyondBounds::End(local)),
            () if !lists(&self.peers, remote) => Err(BeyondBounds::Peer(remote)),
            () if local.is_ipv4() != remote.is_ipv4() => Err(BeyondBounds::Families),
            // `peers` and `ends` may be wide.
            () if local == remote => Err(BeyondBounds::Unusable(remote, "this gateway's own end")),
            () => match unusable(remote) {
                Some(why) => Err(BeyondBounds::Unusable(remote, why)),
                None => Ok(()),
            },
        }
    }

    /// Checks the packets that a policy would protect.
    ///
    /// # Errors
    /// [`BeyondBounds`]; also where only several ranges together have all packets of one of the
    /// policy's.
    pub fn admit_packets(&self, selector: &Selector) -> Result<(), BeyondBounds> {
        self.selector.covers(selector).then_some(()).ok_or(BeyondBounds::Packets)
    }

    /// Checks the packets of a shunt: all of them must be in one that is listed.
    ///
    /// # Errors
    /// [`BeyondBounds`].
    pub fn admit_shunt(
        &self,
        action: ShuntAction,
        selector: &Selector,
    ) -> Result<(), BeyondBounds> {
        let has = |shunt: &Shunt| shunt.action == action && shunt.selector.covers(selector);
        self.shunts.iter().any(has).then_some(()).ok_or(BeyondBounds::Shunt(action))
    }

    /// Checks the suite of an SA.
    ///
    /// # Errors
    /// [`BeyondBounds`].
    pub fn admit_suite(&self, suite: Suite) -> Result<(), BeyondBounds> {
        self.suites.contains(&suite).then_some(()).ok_or(BeyondBounds::Suite(suite))
    }

    /// Writes the section, and those within it.
    pub(crate) fn write(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "[ike]\nends = {}", list(addresses(&self.ends)))?;
        writeln!(out, "peers = {}", list(addresses(&self.peers)))?;
        write_selector(out, &self.selector)?;
        let suites = self.suites.iter().map(|suite| suite.name().to_owned());
        writeln!(out, "suites = {}\nmax_children = {}", list(suites), self.max_children)?;
        lifetime::write(out, "[ike.lifetime]", &self.lifetime)?;
        for Shunt { action, selector } in &self.shunts {
            writeln!(out, "[[ike.shunt]]\naction = \"{}\"", action.name())?;
            write_selector(out, selector)?;
        }
        Ok(())
    }
}
