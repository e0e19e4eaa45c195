//! A kernel that a test plays: it keeps what it was given, and refuses what the test wants refused.

use super::*;

/// An SA, as the daemon asked the kernel for it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PlayedSa {
    pub(crate) way: SaWay,
    pub(crate) spi: u32,
    pub(crate) reqid: u32,
    pub(crate) limits: XfrmLimits,
    pub(crate) offload: Option<OffloadTo>,
}

/// All that the kernel has.
#[derive(Default)]
pub(crate) struct PlayedKernel {
    pub(crate) sas: Vec<PlayedSa>,
    pub(crate) policies: Vec<XfrmPolicy>,
    /// Policies of this direction are refused.
    pub(crate) refuses: Option<PolicyWay>,
    /// SAs of this direction are refused.
    pub(crate) refuses_sa: Option<SaWay>,
    /// SAs that it was ever asked for.
    pub(crate) asked: usize,
}

impl PlayedKernel {
    /// Numbers of SAs and policies.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.sas.len(), self.policies.len())
    }
}

/// The kernel, as the test and the card see it.
pub(crate) type SharedKernel = Arc<Mutex<PlayedKernel>>;

struct Card(SharedKernel);

impl Kernel for Card {
    fn add_sa(&mut self, sa: &XfrmSa<'_>) -> Result<(), XfrmError> {
        let XfrmSa { way, spi, reqid, limits, offload, .. } = *sa;
        let mut kernel = self.0.lock().unwrap();
        kernel.asked += 1;
        if kernel.refuses_sa == Some(way) {
            let text = "Device doesn't support offload".into();
            return Err(XfrmError::Refused { errno: libc::EOPNOTSUPP, text });
        }
        kernel.sas.push(PlayedSa { way, spi, reqid, limits, offload });
        Ok(())
    }

    fn find_sa(&mut self, _: XfrmEnds, _: u32) -> Result<Option<FoundSa>, XfrmError> {
        Ok(None)
    }

    fn remove_sa(&mut self, _: XfrmEnds, spi: u32) -> Result<bool, XfrmError> {
        let mut kernel = self.0.lock().unwrap();
        let before = kernel.sas.len();
        kernel.sas.retain(|sa| sa.spi != spi);
        Ok(kernel.sas.len() < before)
    }

    fn add_policy(&mut self, policy: &XfrmPolicy) -> Result<(), XfrmError> {
        let mut kernel = self.0.lock().unwrap();
        if kernel.refuses == Some(policy.way) {
            return Err(XfrmError::Refused { errno: libc::EEXIST, text: "File exists".into() });
        }
        kernel.policies.push(*policy);
        Ok(())
    }

    fn remove_policy(&mut self, policy: &XfrmPolicy) -> Result<bool, XfrmError> {
        let mut kernel = self.0.lock().unwrap();
        let before = kernel.policies.len();
        kernel.policies.retain(|there| there != policy);
        Ok(kernel.policies.len() < before)
    }
}

impl LinuxCard {
    /// A card over such a kernel, which has these abilities.
    pub(in crate::cards) fn over(
        (card, esp): (u64, EspBy),
        reports: Sender<LinkReport>,
        kernel: SharedKernel,
        capabilities: &Capabilities,
    ) -> LinuxCard {
        let made = LinuxCard::new(card, esp, reports);
        let mut inner = made.inner();
        inner.xfrm = Some(Box::new(Card(kernel)));
        inner.capabilities = Some(capabilities.clone());
        drop(inner);
        made
    }
}
