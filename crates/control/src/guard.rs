//! The guard: an nftables table that keeps Linux from forwarding or sending in clear what the
//! policies want protected, with or without the daemon (DESIGN "Fail closed").
//!
//! XDP sees only what comes in; the guard stands where XDP cannot: on what the kernel would
//! forward by our ports, and on what this machine itself would send.
//!
//! * Hook `forward`: nothing that came from or would leave by one of our netdevs, or by one
//!   stacked on them.
//! * Hook `output`, by unprotected ports: ESP, IKE and neighbour discovery pass. Then the
//!   outbound policies are asked in their order: BYPASS passes, PROTECT and DISCARD drop. What
//!   matches none is this machine's own affair.
//! * Hook `input`, by unprotected ports: what `allow_host` lists and no policy may want, IKE that
//!   it lists, and neighbour discovery pass, all else is dropped. The steering program lets nothing
//!   else through; this stands where it was taken off, is not on yet, or takes a frame for another
//!   station's whose address has changed.
//!
//! Many policies (more than 1000 rules) are written by remote address instead: whatever goes to
//! an address of a PROTECT or DISCARD policy is dropped, whatever the rest of its selector says,
//! and BYPASS policies pass only as far as that lets nothing else through ([`Detail`]). That is
//! never looser than the policies, often stricter for what this machine itself sends.
//!
//! **Within `[ike]`** the hook drops what charon may come to protect or to drop by itself, behind
//! all policies and whether it does or not. Its shunts that pass packets open nothing here.
//!
//! `allow_host` opens nothing outbound: an answer in clear that a PROTECT policy covers is dropped
//! too. Whoever wants it writes a BYPASS policy.
//!
//! **Peers whose packets Linux carries**, for a card that does ESP under Linux: the hooks open
//! exactly what Linux opened by an SA of the peer (`ipsec in reqid N`) or is about to seal by one
//! (`ipsec out reqid N`). Whatever else goes to the peer's networks by that port is dropped, what
//! this machine itself sends too. When the SA or the policy is gone from Linux, nothing matches.
//!
//! The table is put in place by one transaction of the program `nft`, so there is no moment
//! without it.

mod coarse;
mod cover;
mod rules;
mod text;
mod union;
mod watch;

use std::net::IpAddr;
use std::sync::Arc;

use config::validated::{Action, Policy};
use config::{IkeBounds, ShuntAction, Validated};
use dataplane::carve_out::Reserved;
use linux::View;
use linux::nft::{NftError, Table};
pub use text::UnwritableName;
pub use watch::GuardWatch;

use policy::{Direction, Selector};

use crate::ike_peers::IKE_NAMES;
use cover::Lack;
use text::{Netdevs, Outbound};

/// The table's name, in family `inet`.
pub const GUARD_TABLE: &str = "lockgate";
/// The table itself.
const TABLE: Table = Table::inet(GUARD_TABLE);

/// The reason why the guard is not in place.
#[derive(Debug, thiserror::Error)]
pub enum GuardError {
    /// A netdev's name cannot be written in nftables.
    #[error(transparent)]
    Name(#[from] UnwritableName),
    /// The program `nft` is not there, or refused.
    #[error(transparent)]
    Nft(#[from] NftError),
}

/// State of the table, compared with the table that was installed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Integrity {
    /// The table is unchanged.
    Intact,
    /// Another program changed or removed the table.
    Broken,
}

/// Precision with which the output hook follows the policies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Detail {
    /// Every policy is asked.
    ByPolicy,
    /// The policies are too many: packets to a remote address of a PROTECT or DISCARD policy are
    /// dropped.
    ByAddress {
        /// Outbound policies.
        policies: usize,
        /// BYPASS policies of these that let nothing through: one before them closes some of the
        /// same addresses, or there are too many of them.
        bypasses_left_out: usize,
    },
}

/// The parts that a guard lacks to be as strict as other policies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GuardGap {
    /// The table needs no change.
    Nothing,
    /// Rules for these, which [`Guard::extend`] puts behind all others.
    Rules(Vec<Policy>),
    /// The whole table is to be made of the policies anew.
    Everything,
}

/// A peer whose packets Linux carries by a port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CarriedPeer {
    /// Name of the port that leads to the peer.
    pub port: String,
    /// Number of its SAs and policies in Linux.
    pub reqid: u32,
    /// Its networks, sorted.
    pub remotes: Vec<(IpAddr, u8)>,
}

/// Policies at most whose rules are put behind all others.
const MAX_BEHIND: usize = 256;

/// The guard of one configuration. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Guard {
    netdevs: Arc<Netdevs>,
    outbound: Arc<Outbound>,
    /// The table as `nft` listed it once it was in place, with its handles; `None`: it never was.
    listing: Option<Arc<str>>,
}

impl Guard {
    /// Makes the guard of a configuration: of its ports and the netdevs stacked on them, its
    /// policies, and the services of `allow_host` that they reserve. Pure; takes 30 ms for 100 000
    /// policies.
    ///
    /// # Errors
    /// [`UnwritableName`]: a netdev's name cannot be written in nftables.
    pub fn new(
        config: &Validated,
        view: &View,
        reserved: &Reserved,
    ) -> Result<Guard, UnwritableName> {
        let netdevs = Netdevs::of(config, view, reserved, &[])?.into();
        let outbound = outbound(config).into();
        Ok(Guard { netdevs, outbound, listing: None })
    }

    /// Makes the guard of the same configuration with other netdevs, other reserved services or
    /// other peers whose packets Linux carries, to be installed; `None`: they make no difference.
    /// Pure and cheap: looks at no policy.
    ///
    /// # Errors
    /// [`UnwritableName`]: a netdev's name cannot be written in nftables.
    pub fn with_netdevs(
        &self,
        config: &Validated,
        view: &View,
        reserved: &Reserved,
        carried: &[CarriedPeer],
    ) -> Result<Option<Guard>, UnwritableName> {
        let netdevs = Netdevs::of(config, view, reserved, carried)?;
        let outbound = self.outbound.clone();
        let differs = netdevs != *self.netdevs;
        Ok(differs.then(|| Guard { netdevs: netdevs.into(), outbound, listing: None }))
    }

    /// The guard at boot, when the netdevs may not be there yet: VLANs go by their usual names.
    /// Without hook `input`, lest a daemon that does not start lock everybody out. Pure.
    ///
    /// # Errors
    /// [`UnwritableName`]: a netdev's name cannot be written in nftables.
    pub fn early(config: &Validated) -> Result<Guard, UnwritableName> {
        let netdevs = Netdevs::early(config, &View::default())?.into();
        let outbound = outbound(config).into();
        Ok(Guard { netdevs, outbound, listing: None })
    }

    /// The guard when there is no configuration that can be read: the kernel forwards nothing.
    pub fn closed() -> Guard {
        let (netdevs, outbound) = (Netdevs::all().into(), Outbound::none().into());
        Guard { netdevs, outbound, listing: None }
    }

    /// Returns this guard as the standing one, if the standing one is written alike.
    ///
    /// # Errors
    /// This guard, if they differ: it is to be put in place.
    pub fn standing_as(self, standing: &Guard) -> Result<Guard, Guard> {
        let is_alike = self.netdevs == standing.netdevs
            && self.outbound.is_written_as(&standing.outbound)
            && standing.listing.is_some();
        match is_alike {
            true => Ok(Guard { listing: standing.listing.clone(), ..self }),
            false => Err(self),
        }
    }

    /// Returns the parts that this guard lacks to be as strict as the policies when the `removed`
    /// ones are taken away and then the `added` ones come, which win over all of their priority.
    /// `runs` says whether a policy runs after that. The guard may be stricter. The cost does not
    /// grow with the number of policies.
    pub fn lacks<'p>(
        &self,
        removed: impl IntoIterator<Item = &'p Policy>,
        added: impl IntoIterator<Item = &'p Policy>,
        runs: impl Fn(&Policy) -> bool,
    ) -> GuardGap {
        let cover = &self.outbound.cover;
        if !removed.into_iter().all(|policy| cover.is_kept_without(policy)) {
            return GuardGap::Everything;
        }
        let mut behind = Vec::new();
        for policy in added {
            match cover.lacks_for(policy, &runs) {
                Lack::Nothing => {}
                Lack::Rule => behind.push(policy.clone()),
                Lack::Everything => return GuardGap::Everything,
            }
        }
        match behind.len() {
            0 => GuardGap::Nothing,
            more if more + cover.behind.len() <= MAX_BEHIND => GuardGap::Rules(behind),
            _ => GuardGap::Everything,
        }
    }

    /// Appends the rules that the guard lacks. Blocks: some milliseconds.
    ///
    /// # Errors
    /// [`GuardError`]: the table is as it was.
    pub fn extend(mut self, behind: Vec<Policy>) -> Result<Guard, GuardError> {
        let mut outbound = Outbound::clone(&self.outbound);
        let text = outbound.add_behind(behind);
        TABLE.change("add to the guard", &text)?;
        self.outbound = outbound.into();
        self.listing = TABLE.listing()?;
        Ok(self)
    }

    /// Returns the text that `nft -f` reads.
    pub fn text(&self) -> String {
        text::table(&self.netdevs, &self.outbound)
    }

    /// Returns how closely the guard follows the policies.
    pub fn detail(&self) -> Detail {
        self.outbound.detail
    }

    /// Puts the table in place, instead of the one that is there, in one transaction. Blocks:
    /// milliseconds, 0.8 s for 100 000 policies that name as many networks.
    ///
    /// # Errors
    /// [`GuardError`]: what was there before is still there.
    pub fn install(&mut self) -> Result<(), GuardError> {
        TABLE.change("install the guard", &self.text())?;
        self.listing = TABLE.listing()?;
        Ok(())
    }

    /// Puts the table in place as [`Guard::install`] does, on a thread of its own: for a runtime
    /// that has other things to do.
    ///
    /// # Errors
    /// [`GuardError`]: what was there before is still there.
    pub async fn installed(mut self) -> Result<Guard, GuardError> {
        let install = move || self.install().map(|()| self);
        let installed = tokio::task::spawn_blocking(install).await;
        installed.unwrap_or_else(|_| Err(NftError::interrupted().into()))
    }

    /// Asks `nft` whether the table could be put in place. Changes nothing; needs the same
    /// privilege.
    ///
    /// # Errors
    /// [`GuardError`].
    pub fn check(&self) -> Result<(), GuardError> {
        Ok(TABLE.check("accept the guard", &self.text())?)
    }

    /// Compares the table with the one that was put in place. Takes milliseconds; blocks.
    ///
    /// # Errors
    /// [`GuardError`]: `nft` could not be asked.
    pub fn integrity(&self) -> Result<Integrity, GuardError> {
        let now = TABLE.listing()?;
        match now.is_some() && now == self.listing {
            true => Ok(Integrity::Intact),
            false => Ok(Integrity::Broken),
        }
    }

    /// Returns whether a table of the guard's name exists, whatever installed it.
    ///
    /// # Errors
    /// [`GuardError`]: `nft` could not be asked.
    pub fn stands() -> Result<bool, GuardError> {
        Ok(TABLE.listing()?.is_some())
    }

    /// Removes the table, whatever installed it: Linux may forward again.
    ///
    /// # Errors
    /// [`GuardError`]; that there is no table is none.
    pub fn remove() -> Result<(), GuardError> {
        Ok(TABLE.remove("remove the guard")?)
    }
}

/// The part that policies make, and behind them what charon may come to protect or drop by itself
/// (`[ike]`): closed from the start, so that nothing of it is ever sent past Lockgate.
fn outbound(config: &Validated) -> Outbound {
    let mut outbound = Outbound::of(&config.policies);
    outbound.add_behind(config.ike.iter().flat_map(closed_by).collect());
    outbound
}

/// Policies that close what lies within bounds.
fn closed_by(bounds: &IkeBounds) -> Vec<Policy> {
    let discards = bounds.shunts.iter().filter(|of| of.action == ShuntAction::Discard);
    let selectors = discards.map(|shunt| &shunt.selector).chain([&bounds.selector]);
    let closes = |selector: &Selector| Policy {
        name: format!("{IKE_NAMES}bounds"),
        action: Action::Discard,
        priority: 0,
        only: Some(Direction::Outbound),
        ingress: None,
        selector: selector.clone(),
    };
    selectors.map(closes).collect()
}

/// The table that is installed, whatever installed it, to be restored if another replaces it.
pub struct Earlier {
    /// `None`: there was none.
    text: Option<String>,
}

impl Earlier {
    /// Reads the installed table. Blocks: milliseconds, more for sets of many addresses.
    ///
    /// # Errors
    /// [`GuardError`]: `nft` could not be asked.
    pub fn look() -> Result<Earlier, GuardError> {
        Ok(Earlier { text: TABLE.text("list the guard")? })
    }

    /// Restores the table in one transaction; removes the installed one if there was none.
    ///
    /// # Errors
    /// [`GuardError`]: the one that stands still does.
    pub fn restore(&self) -> Result<(), GuardError> {
        let Some(text) = &self.text else { return Guard::remove() };
        Ok(TABLE.replace("put the earlier guard back", text)?)
    }
}
