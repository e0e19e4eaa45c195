//! The endpoints in the tier, with the networks, entrances and ways without which none is found.

use std::collections::HashMap;
use std::net::Ipv4Addr;

use bpf::tier::{FlowClaim, FlowKey, FlowRecord, Key, Record, Verdict, Way};
use dataplane::{
    ClaimBelow, FlowBelow, FlowVerdictBelow, NetworkBelow, PortId, Snapshot, TenantSample,
    VirtualNetwork,
};
use endpoints::{EndpointKey, Found};
use wire::{Address, Vni};

use crate::admission::{Admission, AdmitError};
use crate::flows::{Flows, Judged};
use crate::gates::{Gates, OpenNetwork, v4};
use crate::moment::Moment;
use crate::place::PortPlace;
use crate::slots::Slots;
use crate::tables::Tables;
use crate::ways::{WayKey, Ways};

/// Numbers for gauges.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Endpoints in the tier.
    pub resident: usize,
    /// Endpoints that it has room for.
    pub max: usize,
    /// Verdicts on flows in the tier.
    pub flows: usize,
    /// Of these, verdicts that hold while a connection lasts.
    pub connection_flows: usize,
    /// Verdicts that it has room for.
    pub max_flows: usize,
    /// Networks that are open or ask.
    pub networks: usize,
    /// Ways that are open.
    pub ways: usize,
}

/// An endpoint in the tier.
struct Resident {
    slot: u32,
    network: u32,
    ways: [WayKey; 2],
    /// Hits of the slot when it was last looked at.
    seen: u64,
    /// The moment at which its record was written, by the kernel's clock.
    since_ns: u64,
}

/// The tier's contents, and the only writer of its tables.
pub struct Residents<T> {
    pub(crate) tables: T,
    residents: HashMap<EndpointKey, Resident>,
    slots: Slots,
    pub(crate) flows: Flows,
    ways: Ways,
    pub(crate) gates: Gates,
}

/// The way of a key, as the walk says.
fn way_of(
    snapshot: &Snapshot,
    place_of: &impl Fn(PortId) -> Option<PortPlace>,
    key: &WayKey,
) -> Option<Way> {
    let overlay = snapshot.overlays()?.overlays().get(usize::from(key.overlay.0))?;
    let host = Address::v4(key.host.into());
    let way = snapshot.way_below(overlay, host, key.host_mac)?;
    let PortPlace { ifindex, vlan, mac, mtu } = place_of(way.port)?;
    Some(Way { host: key.host, ifindex, vlan, mtu, destination: way.mac.bytes(), source: mac })
}

impl<T: Tables> Residents<T> {
    /// For empty tables.
    pub fn new(tables: T) -> Residents<T> {
        let endpoints = tables.endpoints();
        let gates = Gates::new(tables.networks());
        let flows = Flows::new(tables.flows());
        Residents {
            tables,
            residents: HashMap::new(),
            slots: Slots::new(0, endpoints),
            flows,
            ways: Ways::new(2 * endpoints),
            gates,
        }
    }

    /// The tables.
    pub fn tables(&self) -> &T {
        &self.tables
    }

    /// Closes what a snapshot does not leave to the tier, or not in the way it is: before workers
    /// change over to the snapshot.
    ///
    /// # Errors
    /// A table refuses it: the caller ends the lease.
    pub fn narrow(
        &mut self,
        snapshot: &Snapshot,
        place_of: impl Fn(PortId) -> Option<PortPlace>,
        now_ns: u64,
    ) -> Result<(), T::Error> {
        self.flows.rule_use.forget_slots();
        self.gates.narrow(&self.tables, now_ns, (snapshot, &place_of))?;
        self.ways.narrow(&self.tables, now_ns, |key| way_of(snapshot, &place_of, key))
    }

    /// Opens what a snapshot leaves to the tier: when all workers walk by it; and now and then, for
    /// ways that could not be opened yet.
    ///
    /// # Errors
    /// A table refuses it: some stays closed.
    pub fn widen(
        &mut self,
        snapshot: &Snapshot,
        place_of: impl Fn(PortId) -> Option<PortPlace>,
        now_ns: u64,
    ) -> Result<(), T::Error> {
        self.flows.rule_use.forget_slots();
        self.gates.widen(&self.tables, now_ns, (snapshot, &place_of))?;
        self.ways.widen(&self.tables, now_ns, |key| way_of(snapshot, &place_of, key))
    }

    /// Takes an endpoint out that has changed, or is no more, before its change is answered.
    ///
    /// # Errors
    /// A table refuses it: the caller ends the lease.
    pub fn withdraw(&mut self, key: EndpointKey, now_ns: u64) -> Result<(), T::Error> {
        let (Some(resident), Some(tier_key)) = (self.residents.get(&key), tier_key(key)) else {
            return Ok(());
        };
        let (slot, ways) = (resident.slot, resident.ways);
        self.tables.withdraw(tier_key, slot)?;
        self.residents.remove(&key);
        self.slots.give(slot, now_ns);
        ways.into_iter().try_for_each(|way| self.ways.release(&self.tables, way, now_ns))
    }

    /// Takes an endpoint in, as the workers' table has it now.
    ///
    /// # Errors
    /// [`AdmitError`]: a table refuses it. The endpoint is not in the tier.
    pub fn admit(
        &mut self,
        key: EndpointKey,
        snapshot: &Snapshot,
        place_of: impl Fn(PortId) -> Option<PortPlace>,
        now_ns: u64,
    ) -> Result<Admission, AdmitError<T::Error>> {
        if self.residents.contains_key(&key) {
            return Ok(Admission::Resident);
        }
        let way = |key: &WayKey| way_of(snapshot, &place_of, key);
        let Some((tier_key, found, network, ways)) = self.eligible(key, snapshot, way) else {
            return Ok(Admission::Ineligible);
        };
        let Some(host) = v4(found.host) else { return Ok(Admission::Ineligible) };
        let Some(slot) = self.slots.take(now_ns) else { return Ok(Admission::Full) };
        let numbers = ways.map(|way| self.ways.use_way(way, now_ns));
        let [Some(to), Some(answers)] = numbers else {
            self.give_back(slot, ways, numbers, now_ns).map_err(AdmitError::Left)?;
            return Ok(Admission::Full);
        };
        let mac = found.mac.bytes();
        let record = Record { key: tier_key, host, mac, way: to, answers, network };
        let open = |key| self.ways.open_one(&self.tables, key, now_ns, way);
        let written = ways
            .into_iter()
            .try_for_each(open)
            .and_then(|()| self.tables.write_record(slot, &record))
            .and_then(|()| self.tables.publish(tier_key, slot));
        if let Err(error) = written {
            // Whatever was written of it leads nowhere.
            self.tables.withdraw(tier_key, slot).map_err(AdmitError::Left)?;
            self.give_back(slot, ways, numbers, now_ns).map_err(AdmitError::Left)?;
            return Err(AdmitError::RolledBack(error));
        }
        let seen = self.tables.hits(slot).unwrap_or(0);
        self.residents.insert(key, Resident { slot, network, ways, seen, since_ns: now_ns });
        Ok(Admission::Admitted)
    }

    /// The key in the tier, the content, the number of the network and the ways of an endpoint that
    /// the tier may have.
    fn eligible(
        &self,
        key: EndpointKey,
        snapshot: &Snapshot,
        way: impl Fn(&WayKey) -> Option<Way>,
    ) -> Option<(Key, Found, u32, [WayKey; 2])> {
        let OpenNetwork { overlay, number, .. } = self.gates.network(key.vni)?;
        let tier_key = tier_key(key)?;
        let found = snapshot.overlays()?.endpoints().find(key)?;
        let host = v4(found.host)?;
        let of = |host_mac| WayKey { overlay, host, host_mac };
        way(&of(found.host_mac))?;
        Some((tier_key, found, number, [of(found.host_mac), of(None)]))
    }

    fn give_back(
        &mut self,
        slot: u32,
        ways: [WayKey; 2],
        numbers: [Option<u32>; 2],
        now_ns: u64,
    ) -> Result<(), T::Error> {
        self.slots.give(slot, now_ns);
        for (way, _) in ways.into_iter().zip(numbers).filter(|(_, number)| number.is_some()) {
            self.ways.release(&self.tables, way, now_ns)?;
        }
        Ok(())
    }

    /// Takes in the verdict on a flow of a network that asks, if both its ends are in the tier.
    ///
    /// # Errors
    /// [`AdmitError`]: a table refuses it. The flow is not in the tier.
    pub fn admit_flow(
        &mut self,
        key: FlowKey,
        snapshot: &Snapshot,
        now: Moment,
    ) -> Result<Admission, AdmitError<T::Error>> {
        match self.judge(key, snapshot, now) {
            Some(judged) => self.flows.admit(&self.tables, judged, now.kernel_ns),
            None => Ok(Admission::Ineligible),
        }
    }

    /// The verdict on a flow that the tier may have.
    fn judge(&mut self, key: FlowKey, snapshot: &Snapshot, now: Moment) -> Option<Judged> {
        let (open, network) = self.network_in(key, snapshot)?;
        let NetworkBelow::Asks(by) = snapshot.network_below(network) else { return None };
        // The rules of the snapshot are those of the network's generation.
        let generation = open.generation_of(by)?;
        let said = snapshot.flow_below(network, &key.flow(), now.walk_s()).ok()?;
        let FlowBelow { verdict, grounds, deciders, claim } = said;
        let verdict = match verdict {
            FlowVerdictBelow::Permit => Verdict::Permit,
            FlowVerdictBelow::Drop => Verdict::Drop,
        };
        let claim = claim.map(|ClaimBelow { domain, generation, claim }| FlowClaim {
            domain,
            generation,
            claim,
        });
        let record = FlowRecord { key, generation, network: open.number, verdict, claim };
        let rules = self.flows.rule_use.rules(snapshot, deciders);
        Some(Judged { record, grounds, rules })
    }

    /// The network of a flow, if both its ends are in the tier, as the tables and as a snapshot
    /// have it.
    pub(crate) fn network_in<'s>(
        &self,
        key: FlowKey,
        snapshot: &'s Snapshot,
    ) -> Option<(OpenNetwork, &'s VirtualNetwork)> {
        let open = self.network_between(key)?;
        let network = snapshot.overlays()?.network(Vni::new(key.vni)?, open.overlay)?;
        Some((open, network))
    }

    /// The network of a flow, if both its ends are in the tier.
    fn network_between(&self, key: FlowKey) -> Option<OpenNetwork> {
        let vni = Vni::new(key.vni)?;
        let open = self.gates.network(vni)?;
        let is_in = |address| self.is_in(vni, address, open);
        (is_in(key.source) && is_in(key.destination)).then_some(open)
    }

    /// Returns whether an address of a network is an endpoint in the tier.
    pub(crate) fn is_in(&self, vni: Vni, address: Ipv4Addr, open: OpenNetwork) -> bool {
        let key = EndpointKey { vni, address: Address::v4(address.into()) };
        self.residents.get(&key).is_some_and(|resident| resident.network == open.number)
    }

    /// Returns whether packets to an endpoint in the tier have an open way to its host.
    pub(crate) fn has_way_to(&self, key: EndpointKey) -> bool {
        self.residents.get(&key).is_some_and(|Resident { ways: [to, _], .. }| self.ways.is_open(to))
    }

    /// The slot of an endpoint's record, and the moment at which that was written.
    pub(crate) fn record_of(&self, key: EndpointKey) -> Option<(u32, u64)> {
        self.residents.get(&key).map(|resident| (resident.slot, resident.since_ns))
    }

    /// The flow of a packet that workers saw, if the tier could have a verdict on it.
    pub fn flow_of(&self, sample: &TenantSample) -> Option<FlowKey> {
        let key = FlowKey::of(sample.vni.get(), sample.judged.as_ref()?)?;
        self.network_between(key)?.generation()?;
        Some(key)
    }

    /// Takes the verdict on a flow out.
    ///
    /// # Errors
    /// A table refuses it: the caller ends the lease.
    pub fn withdraw_flow(&mut self, key: FlowKey, now_ns: u64) -> Result<(), T::Error> {
        self.flows.withdraw(&self.tables, key, now_ns)
    }

    /// The flows in the tier, in no order.
    pub fn flows(&self) -> impl Iterator<Item = FlowKey> {
        self.flows.keys()
    }

    /// Flows that take places in vain: their verdicts are of earlier generations, or an end of them
    /// is not in the tier.
    pub fn void_flows(&self) -> Vec<FlowKey> {
        self.flows.void(|key| {
            let open = self.network_between(*key)?;
            Some((open.number, open.generation()?))
        })
    }

    /// Looks at the use of residents of a list; returns the packets of each since it was last
    /// looked at.
    ///
    /// # Errors
    /// The numbers cannot be read.
    pub fn look_at(&mut self, keys: &[EndpointKey]) -> Result<Vec<(EndpointKey, u64)>, T::Error> {
        let mut used = Vec::with_capacity(keys.len());
        for key in keys {
            let Some(resident) = self.residents.get_mut(key) else { continue };
            let now = self.tables.hits(resident.slot)?;
            let since = now.saturating_sub(resident.seen);
            resident.seen = now;
            used.push((*key, since));
        }
        Ok(used)
    }

    /// The endpoints in the tier, in no order.
    pub fn keys(&self) -> impl Iterator<Item = EndpointKey> {
        self.residents.keys().copied()
    }

    /// Returns whether a verdict on a flow is in the tier.
    pub fn has_flow(&self, key: FlowKey) -> bool {
        self.flows.has(key)
    }

    /// Returns whether an endpoint is in the tier.
    pub fn has(&self, key: EndpointKey) -> bool {
        self.residents.contains_key(&key)
    }

    /// Endpoints whose networks the tier may not have any more: they take places in vain.
    pub fn stranded(&self) -> Vec<EndpointKey> {
        let number = |key: &EndpointKey| self.gates.network(key.vni).map(|open| open.number);
        let residents = self.residents.iter();
        let stranded = residents.filter(|(key, of)| number(key) != Some(of.network));
        stranded.map(|(key, _)| *key).collect()
    }

    /// Numbers for gauges.
    pub fn counts(&self) -> Counts {
        Counts {
            resident: self.residents.len(),
            max: self.tables.endpoints() as usize,
            flows: self.flows.count(),
            connection_flows: self.flows.count_of_connections(),
            max_flows: self.tables.flows() as usize,
            networks: self.gates.networks(),
            ways: self.ways.open(),
        }
    }
}

fn tier_key(key: EndpointKey) -> Option<Key> {
    Some(Key { vni: key.vni.get(), address: v4(key.address)? })
}
