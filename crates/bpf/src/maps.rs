//! Maps that the process makes, for the programs of all netdevs.

use libbpf_rs::libbpf_sys::bpf_map_create_opts;
use libbpf_rs::{MapHandle, MapType};

use crate::BpfError;

/// Makes a map of `entries` entries. `key` and `value` are sizes in bytes.
///
/// # Errors
/// [`BpfError::Table`].
pub(crate) fn make(
    name: &'static str,
    kind: MapType,
    (key, value): (usize, usize),
    entries: u32,
) -> Result<MapHandle, BpfError> {
    let options =
        bpf_map_create_opts { sz: size_of::<bpf_map_create_opts>() as _, ..Default::default() };
    MapHandle::create(kind, Some(name), key as u32, value as u32, entries, &options)
        .map_err(|source| BpfError::Table { table: name, source })
}
