//! SAs that programs put and delete, in the words of the API.

use api::{MAX_SAS_A_DELETION, MAX_SAS_A_PUT, v1};
use config::SaOffload;
use control::{KeyManager, PutSa, SaName};
use ipsec::{Lifetime, Limits, SequenceNumbers, Spi, Suite};
use keystate::KeyOrigin;
use policy::Direction;
use tonic::Status;
use zeroize::Zeroizing;

use crate::backend::EntryIter;
use crate::sa_changes::{ReserveError, Reserved, SaChange, SaDeletion, SaPut, SaRefusal};

/// Reads SAs to put. Their keys are wiped when they are no longer needed.
pub(super) fn put(request: v1::PutSecurityAssociationsRequest) -> Result<SaPut, Status> {
    let v1::PutSecurityAssociationsRequest { incarnation, sas } = request;
    at_most(sas.len(), MAX_SAS_A_PUT, "are put")?;
    // All of them: a mistake in one leaves no key of another behind.
    let sas: Vec<Result<PutSa, Status>> =
        sas.into_iter().enumerate().map(|(place, sa)| put_sa(place, sa)).collect();
    let origin = match incarnation.is_empty() {
        true => KeyOrigin::AnyTime,
        false => KeyOrigin::NamedRun,
    };
    Ok(SaPut { incarnation, origin, sas: sas.into_iter().collect::<Result<_, _>>()? })
}

fn put_sa(place: usize, sa: v1::NewSecurityAssociation) -> Result<PutSa, Status> {
    let v1::NewSecurityAssociation { direction, spi, peer, key, suite, .. } = sa;
    let v1::NewSecurityAssociation { extended_sequence_numbers, window_packets, .. } = sa;
    let v1::NewSecurityAssociation { replaces, soft, hard, offload, .. } = sa;
    let key = Zeroizing::new(key);
    let known = |name: String| {
        let unknown = || wrong(place, "its suite is none that Lockgate has");
        Suite::from_name(&name).ok_or_else(unknown)
    };
    let numbers = extended_sequence_numbers.map(|extended| match extended {
        true => SequenceNumbers::Extended,
        false => SequenceNumbers::Short,
    });
    let has_limits = soft.is_some() || hard.is_some();
    let lifetime = Lifetime { soft: limits(soft), hard: limits(hard) };
    Ok(PutSa {
        manager: KeyManager::Api,
        peer,
        direction: parsed_direction(place, &direction)?,
        spi: parsed_spi(place, &spi)?,
        key,
        suite: suite.map(known).transpose()?,
        numbers,
        window: window_packets,
        lifetime: has_limits.then_some(lifetime),
        replaces: replaces.iter().map(|old| parsed_spi(place, old)).collect::<Result<_, _>>()?,
        worker: None,
        offload: offload.map(|word| carrier(place, &word)).transpose()?,
        ends: None,
    })
}

/// The carrier of an SA.
fn carrier(place: usize, word: &str) -> Result<SaOffload, Status> {
    let found = SaOffload::OF_SA.into_iter().find(|carrier| carrier.name() == word);
    found.ok_or_else(|| wrong(place, "its offload is neither none, packet nor crypto"))
}

/// Limits as they are written; a time that no clock reaches is one that the gateway refuses.
fn limits(limits: Option<v1::SaLimits>) -> Limits {
    let v1::SaLimits { packets, bytes, seconds, idle_seconds } = limits.unwrap_or_default();
    let time = |time: u64| u32::try_from(time).unwrap_or(u32::MAX);
    Limits { packets, bytes, seconds: seconds.map(time), idle_seconds: idle_seconds.map(time) }
}

/// Reads the names of SAs to delete.
pub(super) fn deletion(
    request: v1::DeleteSecurityAssociationsRequest,
) -> Result<SaDeletion, Status> {
    let v1::DeleteSecurityAssociationsRequest { incarnation, sas } = request;
    at_most(sas.len(), MAX_SAS_A_DELETION, "are deleted")?;
    let name = |(place, name): (usize, v1::SaName)| {
        Ok(SaName {
            direction: parsed_direction(place, &name.direction)?,
            spi: parsed_spi(place, &name.spi)?,
            peer: Some(name.peer).filter(|peer| !peer.is_empty()),
        })
    };
    let names = sas.into_iter().enumerate().map(name).collect::<Result<_, Status>>()?;
    Ok(SaDeletion { incarnation, names, manager: KeyManager::Api })
}

/// Presents what became of SAs.
pub(super) fn changed(
    done: Result<SaChange, SaRefusal>,
    took_us: u64,
) -> v1::SecurityAssociationsChanged {
    let answer = match done {
        Ok(SaChange { put, unchanged, deleted, .. }) => v1::SecurityAssociationsChanged {
            ok: true,
            put,
            unchanged,
            deleted,
            ..v1::SecurityAssociationsChanged::default()
        },
        Err(refusal) => v1::SecurityAssociationsChanged {
            refused: refusal.word().into(),
            message: refusal.to_string(),
            place: refusal.place().map(|place| place as u32),
            ..v1::SecurityAssociationsChanged::default()
        },
    };
    v1::SecurityAssociationsChanged { took_us, ..answer }
}

/// Presents an SPI that was reserved.
pub(super) fn reserved(done: Result<Reserved, ReserveError>) -> Result<v1::ReservedSpi, Status> {
    use control::ReserveRefusal::{NoRandom, NoneVacant, Peer};
    let refused = |error: ReserveError| {
        let text = error.to_string();
        match error {
            ReserveError::Refused(Peer(control::PutRefusal::UnknownPeer { .. })) => {
                Status::not_found(text)
            }
            ReserveError::Refused(Peer(_)) | ReserveError::Stopping => {
                Status::failed_precondition(text)
            }
            ReserveError::Refused(NoneVacant) => Status::resource_exhausted(text),
            ReserveError::Refused(NoRandom(_)) => Status::internal(text),
        }
    };
    let Reserved { spi, worker, incarnation } = done.map_err(refused)?;
    Ok(v1::ReservedSpi {
        spi: spi.to_string(),
        incarnation: incarnation.to_string(),
        worker,
        seconds: (control::RESERVED_NS / 1_000_000_000) as u32,
    })
}

fn at_most(count: usize, most: usize, what: &str) -> Result<(), Status> {
    match count <= most {
        true => Ok(()),
        false => {
            let text = format!("at most {most} SAs {what} by one request, not {count}");
            Err(Status::invalid_argument(text))
        }
    }
}

/// A mistake in the SA at a place of the request.
fn wrong(place: usize, mistake: &str) -> Status {
    Status::invalid_argument(format!("SA {place} of the request: {mistake}"))
}

fn parsed_direction(place: usize, word: &str) -> Result<Direction, Status> {
    let directions = [Direction::Outbound, Direction::Inbound];
    let found = directions.into_iter().find(|direction| direction.name() == word);
    found.ok_or_else(|| wrong(place, "its direction is neither outbound nor inbound"))
}

/// A number of 32 bits, decimal or `0x…`.
fn number(text: &str) -> Option<u32> {
    let (digits, radix) = text.strip_prefix("0x").map_or((text, 10), |digits| (digits, 16));
    // `from_str_radix` would take a sign too.
    let plain = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    plain.then(|| u32::from_str_radix(digits, radix).ok()).flatten()
}

/// Returns the SAs of a peer or an SPI.
///
/// # Errors
/// `NotFound`.
pub(super) fn named(
    sas: EntryIter<v1::SecurityAssociation>,
    name: &str,
) -> Result<Vec<v1::SecurityAssociation>, Status> {
    let spi = number(name).map(|spi| format!("{spi:#010x}"));
    let found: Vec<_> = sas.filter(|sa| sa.peer == name || Some(&sa.spi) == spi.as_ref()).collect();
    match found.is_empty() {
        true => Err(Status::not_found(format!(
            "there is no SA of a peer \"{name}\", nor one with such an SPI"
        ))),
        false => Ok(found),
    }
}

fn parsed_spi(place: usize, text: &str) -> Result<Spi, Status> {
    let number = number(text).ok_or_else(|| wrong(place, "an SPI is a number of 32 bits"))?;
    Spi::new(number).ok_or_else(|| wrong(place, "SPIs 0 to 255 are reserved (RFC 4303 §2.1)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sa() -> v1::NewSecurityAssociation {
        v1::NewSecurityAssociation {
            direction: "inbound".into(),
            spi: "0x00001001".into(),
            peer: "a".into(),
            key: vec![7; 20],
            ..v1::NewSecurityAssociation::default()
        }
    }

    #[test]
    fn sas_are_found_by_their_peer_and_by_their_spi() {
        let sa = |peer: &str, spi: &str| v1::SecurityAssociation {
            peer: peer.into(),
            spi: spi.into(),
            ..v1::SecurityAssociation::default()
        };
        // The last peer has a name that is a number.
        let all = [sa("a", "0x00001001"), sa("b", "0x00001002"), sa("4098", "0x00001003")];
        let found = |name: &str| {
            let found = named(Box::new(all.clone().into_iter()), name).unwrap_or_default();
            let place = |one: &v1::SecurityAssociation| all.iter().position(|sa| sa == one);
            found.iter().filter_map(place).collect::<Vec<_>>()
        };
        for (name, places) in [
            ("a", &[0][..]),
            ("0x1001", &[0]),
            ("0x00001001", &[0]),
            ("4097", &[0]),
            ("0x1002", &[1]),
            ("4098", &[1, 2]),
            ("0x1003", &[2]),
        ] {
            assert_eq!(found(name), places, "{name}");
        }
        for name in ["", "c", "0x", "1001", "0x1004", "+0x1001", "0x100000001001"] {
            assert_eq!(found(name), [0; 0], "{name}");
        }
        let refused = named(Box::new(all.clone().into_iter()), "0x1004").unwrap_err();
        assert_eq!(refused.code(), tonic::Code::NotFound);
    }

    fn read(sa: v1::NewSecurityAssociation) -> Result<PutSa, Status> {
        let request = v1::PutSecurityAssociationsRequest { incarnation: "x".into(), sas: vec![sa] };
        put(request).map(|mut put| put.sas.remove(0))
    }

    #[test]
    fn an_sa_is_what_the_message_says() {
        let plain = read(sa()).unwrap();
        assert_eq!((plain.direction, plain.spi.value()), (Direction::Inbound, 0x1001));
        assert_eq!((plain.key.len(), plain.lifetime, plain.replaces), (20, None, vec![]));
        let most = v1::SaLimits { seconds: Some(u64::MAX), ..v1::SaLimits::default() };
        let full = read(v1::NewSecurityAssociation {
            direction: "outbound".into(),
            spi: "4098".into(),
            suite: Some("aes-256-gcm".into()),
            extended_sequence_numbers: Some(true),
            replaces: Some("256".into()),
            hard: Some(most),
            ..sa()
        })
        .unwrap();
        assert_eq!(
            (full.suite, full.numbers),
            (Some(Suite::Aes256Gcm), Some(SequenceNumbers::Extended))
        );
        assert_eq!(full.lifetime.unwrap().hard.seconds, Some(u32::MAX));
        assert_eq!(full.replaces, [Spi::new(256).unwrap()]);
        // Empty limits are no limits, and not those of the peer's section.
        let none = read(v1::NewSecurityAssociation { soft: Some(Default::default()), ..sa() });
        assert_eq!(none.unwrap().lifetime, Some(Lifetime::NONE));
    }

    #[test]
    fn what_is_no_sa_is_refused_with_its_place() {
        let bad = [
            (v1::NewSecurityAssociation { direction: "in".into(), ..sa() }, "neither outbound nor"),
            (v1::NewSecurityAssociation { spi: "".into(), ..sa() }, "a number of 32 bits"),
            (v1::NewSecurityAssociation { spi: "+300".into(), ..sa() }, "a number of 32 bits"),
            (v1::NewSecurityAssociation { spi: "0x1ffffffff".into(), ..sa() }, "32 bits"),
            (v1::NewSecurityAssociation { spi: "255".into(), ..sa() }, "are reserved"),
            (v1::NewSecurityAssociation { replaces: Some("x".into()), ..sa() }, "32 bits"),
            (v1::NewSecurityAssociation { suite: Some("des".into()), ..sa() }, "its suite"),
        ];
        for (bad, text) in bad {
            let sas = vec![sa(), bad];
            let request = v1::PutSecurityAssociationsRequest { sas, ..Default::default() };
            let refused = put(request).err().unwrap();
            assert_eq!(refused.code(), tonic::Code::InvalidArgument);
            let said = refused.message();
            assert!(said.starts_with("SA 1 of the request: ") && said.contains(text), "{said}");
        }
        let sas = vec![sa(); MAX_SAS_A_PUT + 1];
        let request = v1::PutSecurityAssociationsRequest { sas, ..Default::default() };
        assert!(put(request).err().unwrap().message().contains("at most 128 SAs are put"));
    }

    #[test]
    fn keys_are_neither_printed_nor_written_as_json() {
        let sa = sa();
        let printed = format!("{sa:?}");
        assert!(printed.contains("20 bytes") && !printed.contains("7, 7"), "{printed}");
        let json = serde_json::to_string(&sa).unwrap();
        assert!(json.contains("\"spi\"") && !json.contains("key"), "{json}");
    }
}
