//! A laboratory of its own, for scenes in which a gateway is another or moves.

use netlab::charon::{Charon, CharonPlan, Esp, KeysInLog};
use netlab::{Gateways, LabError};

use super::plan::{End, Proof};
use super::stage::{A, B, build_sites, events, secret, wait};

/// The gateway at the other end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Other {
    /// Lockgate too.
    Lockgate,
    /// strongSwan alone, with its own ESP in user space.
    Libipsec,
}

/// Two sites with charons, apart from those of the stage.
pub(super) struct Elsewhere {
    // Ended before their namespaces.
    charons: Vec<Charon>,
    pub(super) gateways: Gateways,
    ends: [End; 2],
}

impl Elsewhere {
    /// Builds the sites; nothing runs yet. `more` are further lines of the peer of each gateway in
    /// Lockgate, `change` changes what their charons are told.
    pub(super) fn build(
        more: impl Fn(u8) -> String,
        change: impl Fn(&mut End),
    ) -> Result<Elsewhere, LabError> {
        let (gateways, mut ends) = build_sites(more)?;
        ends.iter_mut().for_each(change);
        Ok(Elsewhere { charons: Vec::new(), gateways, ends })
    }

    /// Starts daemons and charons, and waits until these are connected to those.
    pub(super) fn start(&mut self, other: Other) -> Result<(), LabError> {
        let proof = Proof::Secret(secret()?);
        for number in [B, A] {
            let run_dir = self.gateways.file(number).run_dir();
            let esp = match (number, other) {
                (B, Other::Libipsec) => Esp::Libipsec,
                _ => Esp::Lockgate(&run_dir),
            };
            if esp != Esp::Libipsec {
                self.gateways.start(number)?;
            }
            let folder = self.gateways.directory().join(format!("charon-{number}"));
            std::fs::create_dir_all(&folder).map_err(LabError::file(&folder))?;
            let connections = self.ends[usize::from(number - A)].swanctl(&proof, &[]);
            let plan = CharonPlan { esp, connections, keys_in_log: KeysInLog::No };
            let gateway = &self.gateways.site(number).gateway;
            self.charons.push(Charon::launch(gateway, &folder, &plan)?);
            if esp != Esp::Libipsec {
                self.wait("charon's plugin is connected", |gateways| {
                    Ok(!events(gateways, number, "charon_connected")?.is_empty())
                })?;
            }
        }
        Ok(())
    }

    /// Waits until something is so; in vain, the logs of its charons say why.
    pub(super) fn wait(
        &self,
        what: &str,
        is_so: impl Fn(&Gateways) -> Result<bool, LabError>,
    ) -> Result<(), LabError> {
        wait(what, self.charons.iter(), || is_so(&self.gateways))
    }
}
