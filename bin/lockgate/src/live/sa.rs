//! `lockgate sa put|del|reserve|watch`: SAs of peers whose section says `keys = "api"`.

use std::path::{Path, PathBuf};

use api::v1;
use clap::{Subcommand, ValueEnum};
use config::{SaLine, read_sa_lines, sa_lines_of};
use console::output::{Reader, complain, counted, json_line, print, print_json, print_line};
use console::terminal::printable;
use ipsec::{Lifetime, Limits};
use policy::Direction;

use super::change::milliseconds;
use super::{Ask, LiveError, Socket};
use crate::failure::{Failure, Usage};

/// Put and delete SAs of peers with keys = "api"
///
/// Such SAs run until they are deleted or the daemon ends, and are written nowhere. A program that
/// agrees on keys with the peer uses the same calls of the API.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    Put(PutArgs),
    Del(DelArgs),
    Reserve(ReserveArgs),
    Watch(WatchArgs),
}

const LINES: &str = "\
A line of FILE is one SA, as in a key file, with options behind the key:
  in  0x5d3c7e01 KEY peer=berlin replaces=0x11aa2b01
  out 0x00001001 KEY peer=berlin suite=aes-256-gcm esn=true soft_packets=3G
Options: peer, suite, esn, replay_window, replaces (the SPI of the SA whose place it takes), offload
(none: software; packet, crypto: the network card), and the keys of [peer.NAME.lifetime]. What is
not written is as the peer's section says.";

/// Put SAs, all of a file or none
///
/// A replaced outbound SA is gone at once; a replaced inbound SA opens packets until 5 s after the
/// first authentic packet of its replacement, at most 300 s. SAs that run already stay as they are.
/// A key is taken once, also after a boot: an SA that was deleted is not put again.
#[derive(clap::Args)]
#[command(after_help = LINES)]
struct PutArgs {
    /// File with the SAs, readable only by its owner; `-` reads standard input
    file: PathBuf,
    /// Peer of the SAs whose lines name none
    #[arg(long, value_name = "PEER")]
    peer: Option<String>,
    /// The run of the daemon that the keys were agreed for (`lockgate sa reserve` names it);
    /// another run refuses them. The daemon remembers the keys until the machine boots: never put
    /// them without a run later. Without a run the daemon remembers the keys for ever
    #[arg(long, value_name = "RUN")]
    incarnation: Option<String>,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// Delete SAs that were put, all or none
#[derive(clap::Args)]
struct DelArgs {
    /// SPIs of the SAs (`lockgate show sa`)
    #[arg(value_name = "SPI", required = true)]
    spis: Vec<String>,
    /// Direction of the SAs, if both directions have one of these SPIs
    #[arg(long, value_name = "DIRECTION")]
    direction: Option<Way>,
    /// Peer of the SAs, if several have outbound SAs of these SPIs
    #[arg(long, value_name = "PEER")]
    peer: Option<String>,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// Show policies that need an SA, and hold their first packets
///
/// While this command runs, packets of a policy whose peer has keys = "api" and no outbound SA wait
/// up to 30 s for one (`lockgate sa put`), at most 16 for each policy. A policy is shown once,
/// until its peer has an SA or 30 s are over. Runs until it is interrupted.
#[derive(clap::Args)]
struct WatchArgs {
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Way {
    In,
    Out,
}

/// Reserve an SPI for an inbound SA of a peer
///
/// The SPI stays reserved for 300 s. Its lowest 8 bits are the number of the worker that will
/// decrypt its packets.
#[derive(clap::Args)]
struct ReserveArgs {
    /// The peer that will send under it
    peer: String,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand and prints its result.
pub(crate) fn run(args: &Args, socket: &Socket) -> Result<(), Failure> {
    match &args.what {
        What::Put(args) => put(args, socket),
        What::Del(args) => delete(args, socket),
        What::Watch(args) => watch(args, socket),
        What::Reserve(ReserveArgs { peer, json }) => {
            let request = v1::ReserveSpiRequest { peer: peer.clone() };
            let reserved =
                Ask::new(socket)?.call(async |client| client.reserve_spi(request).await)?;
            if *json {
                return Ok(print_json(&reserved)?);
            }
            let v1::ReservedSpi { spi, incarnation, worker, seconds } = reserved;
            print(&format!(
                "{spi} is reserved for peer {peer} for {seconds} s: worker {worker}, run \
                 {incarnation}\n"
            ))?;
            Ok(())
        }
    }
}

/// Prints requests as they come; each line is there when its request is.
fn watch(args: &WatchArgs, socket: &Socket) -> Result<(), Failure> {
    let mut ask = Ask::new(socket)?;
    let request = v1::WatchAcquiresRequest {};
    let mut stream = ask.call(async |client| client.watch_acquires(request).await)?;
    while let Some(acquire) = ask.next(&mut stream)? {
        let v1::Acquire { id, peer, policy, flow, .. } = &acquire;
        let text = match args.json {
            true => json_line(&acquire),
            false => printable(&format!("{id}: peer {peer}, policy {policy}: {flow}")),
        };
        if print_line(text.trim_end())? == Reader::Gone {
            return Ok(());
        }
    }
    Err(LiveError::StreamEnded.into())
}

fn put(args: &PutArgs, socket: &Socket) -> Result<(), Failure> {
    let lines = match args.file == Path::new("-") {
        true => sa_lines_of(std::io::stdin().lock(), "<stdin>")?,
        false => read_sa_lines(&args.file)?,
    };
    let sa = |line| new_sa(line, args.peer.as_deref());
    let sas = lines.into_iter().map(sa).collect::<Result<Vec<_>, Failure>>()?;
    let mut ask = Ask::new(socket)?;
    // A run filled in here would claim that the keys are new.
    let incarnation = args.incarnation.clone().unwrap_or_default();
    let request = v1::PutSecurityAssociationsRequest { incarnation, sas };
    let done = ask.call(async |client| client.put_security_associations(request).await)?;
    answer(&done, if args.json { Form::Json } else { Form::Text })
}

/// An SA as the API takes it.
fn new_sa(mut line: SaLine, peer: Option<&str>) -> Result<v1::NewSecurityAssociation, Failure> {
    let peer = line.peer.take().or(peer.map(str::to_owned)).ok_or(Usage::SaWithoutPeer)?;
    let limits = |limits: Limits| v1::SaLimits {
        packets: limits.packets,
        bytes: limits.bytes,
        seconds: limits.seconds.map(u64::from),
        idle_seconds: limits.idle_seconds.map(u64::from),
    };
    let lifetime: Option<Lifetime> = line.lifetime;
    Ok(v1::NewSecurityAssociation {
        direction: line.direction.name().into(),
        spi: line.spi.to_string(),
        peer,
        // Moved, so that no copy stays behind.
        key: std::mem::take(&mut *line.key),
        suite: line.suite.map(|suite| suite.name().into()),
        extended_sequence_numbers: line.esn,
        window_packets: line.replay_window,
        replaces: line.replaces.map(|old| old.to_string()),
        soft: lifetime.map(|lifetime| limits(lifetime.soft)),
        hard: lifetime.map(|lifetime| limits(lifetime.hard)),
        offload: line.offload.map(|carrier| carrier.name().into()),
    })
}

fn delete(args: &DelArgs, socket: &Socket) -> Result<(), Failure> {
    let mut ask = Ask::new(socket)?;
    let all = v1::ShowRequest::default();
    let shown = ask.call(async |c| api::whole(c.show_security_associations(all).await?).await)?.sas;
    let name = |spi: &String| named(spi, args, &shown);
    let sas = args.spis.iter().map(name).collect::<Result<Vec<_>, Failure>>()?;
    let request = v1::DeleteSecurityAssociationsRequest { sas, ..Default::default() };
    let done = ask.call(async |client| client.delete_security_associations(request).await)?;
    answer(&done, if args.json { Form::Json } else { Form::Text })
}

/// The SA of an SPI among those that run: the daemon refuses what is none.
fn named(
    text: &str,
    args: &DelArgs,
    shown: &[v1::SecurityAssociation],
) -> Result<v1::SaName, Failure> {
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    let spi = number(text).ok_or_else(|| Usage::BadSpi { text: text.to_owned() })?;
    let is_its = |sa: &&v1::SecurityAssociation| number(&sa.spi) == Some(spi);
    let directions = shown.iter().filter(is_its).map(|sa| sa.direction.as_str());
    let direction = match args.direction {
        Some(Way::In) => Direction::Inbound.name(),
        Some(Way::Out) => Direction::Outbound.name(),
        None => {
            let (mut first, mut both) = (None, false);
            for direction in directions {
                both |= first.is_some_and(|first| first != direction);
                first = Some(direction);
            }
            match first {
                _ if both => return Err(Usage::BothDirections { text: text.to_owned() }.into()),
                first => first.unwrap_or(Direction::Inbound.name()),
            }
        }
    };
    Ok(v1::SaName {
        direction: direction.to_owned(),
        spi: spi.to_string(),
        peer: args.peer.clone().unwrap_or_default(),
    })
}

/// The form of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    Text,
    Json,
}

/// Prints what became of SAs; fails with [`Failure::Bad`] if they were refused.
fn answer(done: &v1::SecurityAssociationsChanged, form: Form) -> Result<(), Failure> {
    let v1::SecurityAssociationsChanged { ok, message, place, put, .. } = done;
    let v1::SecurityAssociationsChanged { unchanged, deleted, took_us, .. } = done;
    match (form, ok) {
        (Form::Json, _) => print_json(done)?,
        (Form::Text, true) => {
            let mut parts = Vec::new();
            if *deleted > 0 {
                parts.push(format!("deleted {}", counted((*deleted).into(), "SA")));
            }
            if *put > 0 || *unchanged == 0 && *deleted == 0 {
                parts.push(format!("put {}", counted((*put).into(), "SA")));
            }
            if *unchanged > 0 {
                parts.push(format!("{} ran already", counted((*unchanged).into(), "SA")));
            }
            print(&format!("{}, {}\n", parts.join(", "), milliseconds(*took_us)))?;
        }
        (Form::Text, false) => {
            let place = place.map(|place| format!("SA {}: ", place + 1)).unwrap_or_default();
            complain(&format!("lockgate: {place}{message}; nothing was changed\n"));
        }
    }
    if *ok { Ok(()) } else { Err(Failure::Bad) }
}
