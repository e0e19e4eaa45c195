//! `lockgate init`: five questions, then the files of both gateways of a first tunnel.

pub(crate) mod answer;
mod dialogue;
mod machine;
mod written;

use std::io::{IsTerminal, Write};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use config::{generate_pair, write_key_file};
use console::output::{complain, print, print_json};
use ipsec::Suite;
use policy::AddressRange;
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use wire::Address;

use crate::failure::{Failure, Usage};
use answer::{AnswerMistake, Answers};
use dialogue::Dialogue;
use machine::{Interface, Machine};
use written::{Gateway, Knowledge, Port, first_host, next_steps};

/// Write the files of a first tunnel: both gateways, and their keys
///
/// Asks five questions and writes four files into a new directory: a configuration and a key file
/// for this gateway, and for its peer. Says then what to do with them. Replaces no file, and
/// changes nothing else on this machine.
///
/// Every answer can be given by an option instead. Without a terminal, those of --lan, --network,
/// --wan, --peer-address and --peer-network are required.
#[derive(clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Args {
    /// Name of this gateway [default: the name of this machine]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Interface towards this gateway's own hosts: the protected port
    #[arg(long, value_name = "INTERFACE")]
    lan: Option<String>,
    /// A network behind it; repeat the option, or separate several by commas
    #[arg(long, value_name = "NETWORK")]
    network: Vec<String>,
    /// Interface towards the peer: the unprotected port
    #[arg(long, value_name = "INTERFACE")]
    wan: Option<String>,
    /// Outer address of this gateway [default: that of the interface towards the peer]
    #[arg(long, value_name = "ADDRESS")]
    address: Option<String>,
    /// Name of the other gateway [default: peer]
    #[arg(long, value_name = "NAME")]
    peer: Option<String>,
    /// Outer address of the other gateway
    #[arg(long, value_name = "ADDRESS")]
    peer_address: Option<String>,
    /// A network behind the other gateway; as --network
    #[arg(long, value_name = "NETWORK")]
    peer_network: Vec<String>,
    /// Protected interface of the other gateway [default: a guess, this gateway's]
    #[arg(long, value_name = "INTERFACE")]
    peer_lan: Option<String>,
    /// Unprotected interface of the other gateway [default: a guess, this gateway's]
    #[arg(long, value_name = "INTERFACE")]
    peer_wan: Option<String>,
    /// Cipher suite of the tunnel
    #[arg(long, value_name = "SUITE", default_value = "aes-128-gcm",
          value_parser = crate::keygen::suite)]
    suite: Suite,
    /// Directory of the files; made if it is not there [default: NAME-PEER, a new one]
    #[arg(long, value_name = "DIR")]
    out_dir: Option<PathBuf>,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLE: &str = "\
Example, without questions:
  lockgate init --name gw-a --lan eth1 --network 10.1.0.0/16 --wan eth0 --address 192.0.2.1 \\
    --peer berlin --peer-address 198.51.100.7 --peer-network 10.2.0.0/16
writes gw-a.toml, gw-a-berlin.keys, berlin.toml and berlin-gw-a.keys into gw-a-berlin/.";

/// The answers that options gave.
#[derive(Default)]
struct GivenAnswers {
    lan: Option<String>,
    networks: Option<Vec<AddressRange>>,
    wan: Option<String>,
    address: Option<IpAddr>,
    peer: Option<String>,
    peer_address: Option<IpAddr>,
    peer_networks: Option<Vec<AddressRange>>,
}

/// Asks the questions, writes the four files or none, and prints the next steps.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let machine = Machine::look();
    let given = given(args)?;
    let named = args.name.as_deref().map(|text| by_option("--name", answer::name(text)));
    let node = named.transpose()?.or_else(|| machine.name.clone()).unwrap_or("gw-a".to_owned());
    let answers = if is_complete(&given, &machine) || !std::io::stdin().is_terminal() {
        let answers = complete(node, given, &machine)?;
        for name in [&answers.lan, &answers.wan] {
            if let Some(note) = absent(&machine, name) {
                complain(&format!("lockgate: {note}\n"));
            }
        }
        answers
    } else {
        let (mut input, mut output) = (std::io::stdin().lock(), std::io::stderr().lock());
        Dialogue::new(&mut input, &mut output, &machine).answers(node, given)?
    };
    agree(&answers)?;
    let [own, peer] = gateways(&answers, args, &machine)?;
    let directory = match &args.out_dir {
        Some(directory) => directory.clone(),
        None => PathBuf::from(format!("{}-{}", own.name, peer.name)),
    };
    write_all(&directory, args, &own, &peer)?;
    if args.json {
        let end = |gateway: &Gateway, other: &Gateway| {
            let names = [gateway.configuration(), gateway.keys(other)];
            let [file, keys] = names.map(|name| directory.join(name));
            json!({"name": gateway.name, "file": file, "keys": keys})
        };
        let ends = json!({"gateway": end(&own, &peer), "peer": end(&peer, &own)});
        return Ok(print_json(&ends)?);
    }
    print(&next_steps(&directory, &own, &peer))?;
    Ok(())
}

/// Reads what options gave.
fn given(args: &Args) -> Result<GivenAnswers, Failure> {
    fn one<T>(
        option: &'static str,
        text: &Option<String>,
        read: impl Fn(&str) -> Result<T, AnswerMistake>,
    ) -> Result<Option<T>, Failure> {
        text.as_deref().map(|text| by_option(option, read(text))).transpose()
    }
    let networks = |option, words: &[String]| {
        let given =
            (!words.is_empty()).then(|| by_option(option, answer::networks(&words.join(","))));
        given.transpose()
    };
    Ok(GivenAnswers {
        lan: one("--lan", &args.lan, answer::netdev)?,
        networks: networks("--network", &args.network)?,
        wan: one("--wan", &args.wan, answer::netdev)?,
        address: one("--address", &args.address, answer::address)?,
        peer: one("--peer", &args.peer, answer::name)?,
        peer_address: one("--peer-address", &args.peer_address, answer::address)?,
        peer_networks: networks("--peer-network", &args.peer_network)?,
    })
}

fn by_option<T>(option: &'static str, read: Result<T, AnswerMistake>) -> Result<T, Failure> {
    read.map_err(|mistake| Usage::Answer { option, mistake }.into())
}

/// Returns whether no question is left.
fn is_complete(given: &GivenAnswers, machine: &Machine) -> bool {
    let GivenAnswers { lan, networks, wan, peer_address, peer_networks, .. } = given;
    lan.is_some()
        && networks.is_some()
        && wan.is_some()
        && peer_address.is_some()
        && peer_networks.is_some()
        && own_address(given, machine).is_some()
}

/// Our end of the tunnel, as far as nobody has to be asked: of the family of the other end.
fn own_address(given: &GivenAnswers, machine: &Machine) -> Option<IpAddr> {
    let interface = || machine.named(given.wan.as_deref()?);
    given.address.or_else(|| interface()?.address_like(given.peer_address?))
}

/// The answers when nobody can be asked.
fn complete(node: String, given: GivenAnswers, machine: &Machine) -> Result<Answers, Failure> {
    let address = own_address(&given, machine);
    let GivenAnswers { lan, networks, wan, peer, peer_address, peer_networks, .. } = given;
    let peer = peer_name(peer.as_deref());
    let there = [
        ("--lan", lan.is_some()),
        ("--network", networks.is_some()),
        ("--wan", wan.is_some()),
        ("--peer-address", peer_address.is_some()),
        ("--peer-network", peer_networks.is_some()),
    ];
    let missing =
        there.iter().filter(|(_, is_there)| !is_there).map(|(option, _)| *option).collect();
    let (Some(lan), Some(networks), Some(wan)) = (lan, networks, wan) else {
        return Err(Usage::Unanswered { options: missing }.into());
    };
    let (Some(peer_address), Some(peer_networks)) = (peer_address, peer_networks) else {
        return Err(Usage::Unanswered { options: missing }.into());
    };
    let Some(address) = address else {
        return Err(Usage::Unanswered { options: vec!["--address"] }.into());
    };
    Ok(Answers { node, lan, networks, wan, address, peer, peer_address, peer_networks })
}

/// The name of a peer that nobody named.
fn peer_name(named: Option<&str>) -> String {
    named.unwrap_or("peer").to_owned()
}

/// Checks the answers against each other, those of options and of the dialogue alike.
fn agree(answers: &Answers) -> Result<(), Failure> {
    let Answers { node, lan, networks, wan, address, peer, peer_address, peer_networks } = answers;
    by_option("--wan", answer::two_ports(lan, wan))?;
    by_option("--peer", answer::two_names(node, peer))?;
    by_option("--peer-address", answer::two_addresses(*address, *peer_address))?;
    let ends = [*address, *peer_address];
    by_option("--peer-network", answer::two_sides(networks, peer_networks, ends))
}

/// A note about an interface that this machine does not have, where it has any.
fn absent(machine: &Machine, name: &str) -> Option<String> {
    let is_odd = !machine.interfaces.is_empty() && machine.named(name).is_none();
    is_odd.then(|| format!("note: this machine has no interface {name} now"))
}

/// Describes both ends of the tunnel: this one as it is, the other one as far as it can be guessed.
fn gateways(answers: &Answers, args: &Args, machine: &Machine) -> Result<[Gateway; 2], Failure> {
    let known = |name: &String| machine.named(name).map(|one| one.addresses.clone());
    let guessed = |networks: &[AddressRange]| networks.iter().map(first_host).collect::<Vec<_>>();
    let lan = known(&answers.lan).filter(|addresses| !addresses.is_empty());
    let outer = Address::from(answers.address);
    let wan = known(&answers.wan).filter(|list| list.iter().any(|(ip, _)| *ip == outer));
    let alone = |address: IpAddr| {
        let address = Address::from(address);
        vec![(address, address.family.address_bits())]
    };
    let own = Gateway {
        name: answers.node.clone(),
        lan: Port {
            netdev: (answers.lan.clone(), Knowledge::Known),
            addresses: lan.unwrap_or_else(|| guessed(&answers.networks)),
        },
        wan: Port {
            netdev: (answers.wan.clone(), Knowledge::Known),
            addresses: wan.unwrap_or_else(|| alone(answers.address)),
        },
        outer: answers.address,
        networks: answers.networks.clone(),
    };
    let netdev = |option, given: &Option<String>, ours: &String| match given {
        Some(text) => by_option(option, answer::netdev(text)).map(|name| (name, Knowledge::Known)),
        None => Ok((ours.clone(), Knowledge::Guessed)),
    };
    let peer_lan = netdev("--peer-lan", &args.peer_lan, &answers.lan)?;
    let peer_wan = netdev("--peer-wan", &args.peer_wan, &answers.wan)?;
    by_option("--peer-wan", answer::two_ports(&peer_lan.0, &peer_wan.0))?;
    let peer = Gateway {
        name: answers.peer.clone(),
        lan: Port { netdev: peer_lan, addresses: guessed(&answers.peer_networks) },
        wan: Port { netdev: peer_wan, addresses: alone(answers.peer_address) },
        outer: answers.peer_address,
        networks: answers.peer_networks.clone(),
    };
    Ok([own, peer])
}

/// Writes all four files, or none: configurations that `check` would refuse are never written, and
/// an interruption waits until all are there.
fn write_all(directory: &Path, args: &Args, own: &Gateway, peer: &Gateway) -> Result<(), Failure> {
    let texts = [(own, peer), (peer, own)].map(|(gateway, other)| {
        (gateway.configuration(), gateway.text(other, args.suite), gateway.keys(other))
    });
    for (file, text, _) in &texts {
        config::parse(text, file)?;
    }
    defer_interruptions()?;
    let mut builder = std::fs::DirBuilder::new();
    builder.mode(0o700).recursive(args.out_dir.is_some());
    builder.create(directory).map_err(not_replaced(directory))?;
    let keys = generate_pair(args.suite)?;
    let mut made = Vec::new();
    let written = texts.iter().zip(&keys).try_for_each(|((file, text, key_file), key_text)| {
        let (file, key_file) = (directory.join(file), directory.join(key_file));
        write_new(&file, text)?;
        made.push(file);
        write_key_file(&key_file, key_text)?;
        made.push(key_file);
        Ok::<(), Failure>(())
    });
    // The keys too, and the directory they are in.
    let checked = written.and_then(|()| {
        texts.iter().try_for_each(|(file, ..)| {
            config::load(&directory.join(file), linux::machine_memory())?;
            Ok(())
        })
    });
    if checked.is_err() {
        for file in made {
            // Half a tunnel is of no use and would be in the way of the next try.
            let _ = std::fs::remove_file(file);
        }
        if args.out_dir.is_none() {
            let _ = std::fs::remove_dir(directory);
        }
    }
    checked
}

/// Takes their effect from Ctrl-C and its like: what follows takes milliseconds.
fn defer_interruptions() -> Result<(), Failure> {
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        let ignored = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(signal, ignored).map_err(Failure::file("the terminal"))?;
    }
    Ok(())
}

/// Writes a file that was not there before.
fn write_new(path: &Path, text: &str) -> Result<(), Failure> {
    let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o644).open(path);
    let mut file = file.map_err(not_replaced(path))?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    written.map_err(|error| {
        let _ = std::fs::remove_file(path);
        Failure::file(path)(error)
    })
}

/// For `map_err`: this could not be made, perhaps because it is there already.
fn not_replaced(path: &Path) -> impl FnOnce(std::io::Error) -> Failure {
    let file = path.to_owned();
    |error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => Failure::Exists { file },
        _ => Failure::File { file, error },
    }
}

/// Networks side by side.
fn joined(networks: &[AddressRange], between: &str) -> String {
    let texts: Vec<String> = networks.iter().map(ToString::to_string).collect();
    texts.join(between)
}

#[cfg(test)]
mod tests;
