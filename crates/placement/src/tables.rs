//! The operations that placement asks of the tables.

use std::sync::Arc;

use bpf::BpfError;
use bpf::tier::{
    FlowKey, FlowRecord, FlowUse, Key, NetworkState, Overlay, Record, State, Tier, Way,
};

/// The tables of a tier, or in tests a picture of them. Each operation is one write, which programs
/// see whole or not at all.
pub trait Tables {
    /// Reason why a table refuses a write.
    type Error: std::error::Error;

    /// Endpoints that there is room for.
    fn endpoints(&self) -> u32;
    /// Networks that there is room for.
    fn networks(&self) -> u32;
    /// Verdicts on flows that there is room for.
    fn flows(&self) -> u32;
    /// As [`Tier::set_overlay`].
    ///
    /// # Errors
    /// The write is refused.
    fn set_overlay(&self, number: u32, overlay: &Overlay, state: State) -> Result<(), Self::Error>;
    /// As [`Tier::set_network`].
    ///
    /// # Errors
    /// The write is refused.
    fn set_network(
        &self,
        number: u32,
        vni: u32,
        overlay: u32,
        state: NetworkState,
    ) -> Result<(), Self::Error>;
    /// As [`Tier::write_record`].
    ///
    /// # Errors
    /// The write is refused.
    fn write_record(&self, slot: u32, record: &Record) -> Result<(), Self::Error>;
    /// As [`Tier::publish`].
    ///
    /// # Errors
    /// The write is refused.
    fn publish(&self, key: Key, slot: u32) -> Result<(), Self::Error>;
    /// As [`Tier::withdraw`].
    ///
    /// # Errors
    /// The write is refused.
    fn withdraw(&self, key: Key, slot: u32) -> Result<(), Self::Error>;
    /// As [`Tier::set_way`].
    ///
    /// # Errors
    /// The write is refused.
    fn set_way(&self, number: u32, way: &Way, state: State) -> Result<(), Self::Error>;
    /// As [`Tier::add_exit`].
    ///
    /// # Errors
    /// The write is refused.
    fn add_exit(&self, ifindex: u32) -> Result<(), Self::Error>;
    /// As [`Tier::hits`].
    ///
    /// # Errors
    /// They cannot be read.
    fn hits(&self, slot: u32) -> Result<u64, Self::Error>;
    /// As [`Tier::write_flow`].
    ///
    /// # Errors
    /// The write is refused.
    fn write_flow(&self, slot: u32, record: &FlowRecord) -> Result<(), Self::Error>;
    /// As [`Tier::publish_flow`].
    ///
    /// # Errors
    /// The write is refused.
    fn publish_flow(&self, key: FlowKey, slot: u32) -> Result<(), Self::Error>;
    /// As [`Tier::withdraw_flow`].
    ///
    /// # Errors
    /// The write is refused.
    fn withdraw_flow(&self, key: FlowKey, slot: u32) -> Result<(), Self::Error>;
    /// As [`Tier::flow_use`].
    ///
    /// # Errors
    /// It cannot be read.
    fn flow_use(&self, slot: u32) -> Result<FlowUse, Self::Error>;
}

impl Tables for Arc<Tier> {
    type Error = BpfError;

    fn endpoints(&self) -> u32 {
        self.size().endpoints
    }

    fn networks(&self) -> u32 {
        self.size().networks
    }

    fn flows(&self) -> u32 {
        self.size().flows
    }

    fn set_overlay(&self, number: u32, overlay: &Overlay, state: State) -> Result<(), BpfError> {
        Tier::set_overlay(self, number, overlay, state)
    }

    fn set_network(
        &self,
        number: u32,
        vni: u32,
        overlay: u32,
        state: NetworkState,
    ) -> Result<(), BpfError> {
        Tier::set_network(self, number, vni, overlay, state)
    }

    fn write_record(&self, slot: u32, record: &Record) -> Result<(), BpfError> {
        Tier::write_record(self, slot, record)
    }

    fn publish(&self, key: Key, slot: u32) -> Result<(), BpfError> {
        Tier::publish(self, key, slot)
    }

    fn withdraw(&self, key: Key, slot: u32) -> Result<(), BpfError> {
        Tier::withdraw(self, key, slot)
    }

    fn set_way(&self, number: u32, way: &Way, state: State) -> Result<(), BpfError> {
        Tier::set_way(self, number, way, state)
    }

    fn add_exit(&self, ifindex: u32) -> Result<(), BpfError> {
        Tier::add_exit(self, ifindex)
    }

    fn hits(&self, slot: u32) -> Result<u64, BpfError> {
        Tier::hits(self, slot)
    }

    fn write_flow(&self, slot: u32, record: &FlowRecord) -> Result<(), BpfError> {
        Tier::write_flow(self, slot, record)
    }

    fn publish_flow(&self, key: FlowKey, slot: u32) -> Result<(), BpfError> {
        Tier::publish_flow(self, key, slot)
    }

    fn withdraw_flow(&self, key: FlowKey, slot: u32) -> Result<(), BpfError> {
        Tier::withdraw_flow(self, key, slot)
    }

    fn flow_use(&self, slot: u32) -> Result<FlowUse, BpfError> {
        Tier::flow_use(self, slot)
    }
}
