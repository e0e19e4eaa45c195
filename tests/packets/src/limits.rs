//! SAs with limits in the laboratory.

use std::sync::Arc;

use dataplane::SetIndex;
use ipsec::{Account, Allowance, Lifetime, Limits};

use crate::lab::Hub;

impl Hub {
    /// Gives the SAs of a set accounts with these hard limits; returns that of the outbound and
    /// that of the inbound one. An SA that a later [`Hub::agree`] makes has none.
    pub fn limit(&mut self, set: SetIndex, hard: Limits) -> [Arc<Account>; 2] {
        let place = set.0 as usize;
        let (outbound, inbound) = (&self.parts.outbound[place], &self.parts.inbound[place]);
        let allowances = [(); 2].map(|()| {
            let lifetime = Lifetime { hard, ..Lifetime::NONE };
            Allowance { lifetime, account: Arc::default() }
        });
        let [there, back] = allowances.clone().map(Some);
        let outbound = outbound.at(outbound.id, outbound.set).within(there);
        let inbound = inbound.at(inbound.id, inbound.set).within(back);
        self.parts.outbound[place] = Arc::new(outbound);
        self.parts.inbound[place] = Arc::new(inbound);
        allowances.map(|allowance| allowance.account)
    }
}
