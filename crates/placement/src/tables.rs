//! The operations that placement asks of the tables.

use std::sync::Arc;

use bpf::BpfError;
use bpf::tier::{Key, Overlay, Record, Tier, Way};

/// The tables of a tier, or in tests a picture of them. Each operation is one write, which programs
/// see whole or not at all.
pub trait Tables {
    /// Reason why a table refuses a write.
    type Error: std::error::Error;

    /// Endpoints that there is room for.
    fn endpoints(&self) -> u32;
    /// Networks that there is room for.
    fn networks(&self) -> u32;
    /// As [`Tier::set_overlay`].
    ///
    /// # Errors
    /// The write is refused.
    fn set_overlay(&self, number: u32, overlay: Option<&Overlay>) -> Result<(), Self::Error>;
    /// As [`Tier::set_network`].
    ///
    /// # Errors
    /// The write is refused.
    fn set_network(&self, number: u32, vni: u32, overlay: Option<u32>) -> Result<(), Self::Error>;
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
    fn withdraw(&self, key: Key) -> Result<(), Self::Error>;
    /// As [`Tier::open_way`].
    ///
    /// # Errors
    /// The write is refused.
    fn open_way(&self, number: u32, way: &Way) -> Result<(), Self::Error>;
    /// As [`Tier::close_way`].
    ///
    /// # Errors
    /// The write is refused.
    fn close_way(&self, number: u32) -> Result<(), Self::Error>;
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
}

macro_rules! of_the_tier {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $result:ty;)+) => {
        impl Tables for Tier {
            type Error = BpfError;

            fn endpoints(&self) -> u32 {
                self.size().endpoints
            }

            fn networks(&self) -> u32 {
                self.size().networks
            }

            $(fn $name(&self, $($argument: $kind),*) -> Result<$result, BpfError> {
                Tier::$name(self, $($argument),*)
            })+
        }
    };
}

of_the_tier! {
    set_overlay(number: u32, overlay: Option<&Overlay>) -> ();
    set_network(number: u32, vni: u32, overlay: Option<u32>) -> ();
    write_record(slot: u32, record: &Record) -> ();
    publish(key: Key, slot: u32) -> ();
    withdraw(key: Key) -> ();
    open_way(number: u32, way: &Way) -> ();
    close_way(number: u32) -> ();
    add_exit(ifindex: u32) -> ();
    hits(slot: u32) -> u64;
}

/// Tables that somebody else reads as well.
macro_rules! of_shared_tables {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $result:ty;)+) => {
        impl<T: Tables> Tables for Arc<T> {
            type Error = T::Error;

            fn endpoints(&self) -> u32 {
                T::endpoints(self)
            }

            fn networks(&self) -> u32 {
                T::networks(self)
            }

            $(fn $name(&self, $($argument: $kind),*) -> Result<$result, T::Error> {
                T::$name(self, $($argument),*)
            })+
        }
    };
}

of_shared_tables! {
    set_overlay(number: u32, overlay: Option<&Overlay>) -> ();
    set_network(number: u32, vni: u32, overlay: Option<u32>) -> ();
    write_record(slot: u32, record: &Record) -> ();
    publish(key: Key, slot: u32) -> ();
    withdraw(key: Key) -> ();
    open_way(number: u32, way: &Way) -> ();
    close_way(number: u32) -> ();
    add_exit(ifindex: u32) -> ();
    hits(slot: u32) -> u64;
}
