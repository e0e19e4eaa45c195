//! A change as 64 bytes: a line of the image, and of the log's blobs. Little-endian.
//!
//! ```text
//!  0  vni 4 · flags 1 · zero 3
//!  8  tenant address 16     an IPv4 address takes the first 4, the rest is zero
//! 24  host address 16
//! 40  host MAC 6 · endpoint MAC 6 · zero 4
//! 56  revision 8
//! ```
//!
//! A change has one form only, so that damage shows: whatever is not said is zero.

use std::net::{IpAddr, Ipv6Addr};

use crate::{Change, Deleted, MAX_REVISION, Record};

/// Bytes of a record.
pub(crate) const BYTES: usize = 64;

const DELETED: u8 = 1;
const ADDRESS_V6: u8 = 2;
const HOST_V6: u8 = 4;
const HOST_MAC: u8 = 8;

/// Returns the bytes of a change.
pub(crate) fn encode(change: &Change) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    let (vni, address) = change.key();
    let mut flags = put_address(&mut bytes, 8, address, ADDRESS_V6);
    match change {
        Change::Delete(_) => flags |= DELETED,
        Change::Put(record) => {
            flags |= put_address(&mut bytes, 24, record.host, HOST_V6);
            if let Some(mac) = record.host_mac {
                flags |= HOST_MAC;
                bytes[40..46].copy_from_slice(&mac);
            }
            bytes[46..52].copy_from_slice(&record.mac);
        }
    }
    bytes[0..4].copy_from_slice(&vni.to_le_bytes());
    bytes[4] = flags;
    bytes[56..64].copy_from_slice(&change.revision().to_le_bytes());
    bytes
}

/// Returns the change that the bytes say, or `None` if [`encode`] never writes them.
pub(crate) fn decode(bytes: &[u8; BYTES]) -> Option<Change> {
    let flags = bytes[4];
    let known = flags & !(DELETED | ADDRESS_V6 | HOST_V6 | HOST_MAC) == 0;
    let vni = u32::from_le_bytes(array(bytes, 0));
    let address = address(bytes, 8, flags & ADDRESS_V6)?;
    let revision = u64::from_le_bytes(array(bytes, 56));
    let empty = bytes[5..8] == [0; 3] && bytes[52..56] == [0; 4];
    if !known || !empty || revision > MAX_REVISION {
        return None;
    }
    if flags & DELETED != 0 {
        let nothing = flags & (HOST_V6 | HOST_MAC) == 0 && bytes[24..52] == [0; 28];
        return nothing.then_some(Change::Delete(Deleted { vni, address, revision }));
    }
    let host = self::address(bytes, 24, flags & HOST_V6)?;
    let host_mac: [u8; 6] = array(bytes, 40);
    let host_mac = match flags & HOST_MAC {
        0 if host_mac != [0; 6] => return None,
        0 => None,
        _ => Some(host_mac),
    };
    let mac = array(bytes, 46);
    Some(Change::Put(Record { vni, address, host, host_mac, mac, revision }))
}

/// Writes an address, and returns the flag if it is IPv6.
fn put_address(bytes: &mut [u8; BYTES], at: usize, address: IpAddr, v6: u8) -> u8 {
    match address {
        IpAddr::V4(address) => {
            bytes[at..at + 4].copy_from_slice(&address.octets());
            0
        }
        IpAddr::V6(address) => {
            bytes[at..at + 16].copy_from_slice(&address.octets());
            v6
        }
    }
}

fn address(bytes: &[u8; BYTES], at: usize, v6: u8) -> Option<IpAddr> {
    let octets: [u8; 16] = array(bytes, at);
    if v6 != 0 {
        return Some(Ipv6Addr::from(octets).into());
    }
    let short: [u8; 4] = array(bytes, at);
    (octets[4..] == [0; 12]).then_some(short.into())
}

fn array<const N: usize>(bytes: &[u8; BYTES], at: usize) -> [u8; N] {
    std::array::from_fn(|i| bytes[at + i])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::sample;

    #[test]
    fn change_survives_its_bytes() {
        for seed in 0..20_000 {
            let change = sample(seed);
            assert_eq!(decode(&encode(&change)), Some(change), "seed {seed}");
        }
    }

    #[test]
    fn bytes_that_say_a_change_are_its_only_form() {
        for seed in 0..200 {
            let bytes = encode(&sample(seed));
            for bit in 0..BYTES * 8 {
                let mut flipped = bytes;
                flipped[bit / 8] ^= 1 << (bit % 8);
                if let Some(change) = decode(&flipped) {
                    assert_eq!(encode(&change), flipped, "seed {seed}, bit {bit}");
                    assert_ne!(change, sample(seed), "seed {seed}, bit {bit}");
                }
            }
        }
    }
}
