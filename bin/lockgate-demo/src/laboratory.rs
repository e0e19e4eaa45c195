//! The laboratory: three gateways of `etc/demo` with fresh keys in a directory of their own, the
//! hosts behind them, and the link between them.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use config::{generate_pair, write_key_file};
use io::{CaptureError, CaptureReader, CaptureWriter, Defect, LinkType, Resolution};
use ipsec::Suite;
use replay::{Job, Report};
use wire::Address;

use crate::failure::Failure;

/// A gateway with the network behind it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Site {
    /// The hub.
    A,
    /// A spoke, over IPv4.
    B,
    /// A spoke, over IPv6.
    C,
}

/// Time of the first packet: 2023-11-14, an arbitrary date.
pub(crate) const START_NS: u64 = 1_700_000_000_000_000_000;

/// Additional lines of B's configuration: the compromised gateway claims C's addresses.
const FORGER: &str = "
[[policy]]
name = \"forger\"
peer = \"a\"
local = [\"10.3.0.0/16\", \"2001:db8:3::/48\"]
remote = [\"10.1.0.0/16\", \"2001:db8:1::/48\"]
priority = 90
";

impl Site {
    pub(crate) const ALL: [Site; 3] = [Site::A, Site::B, Site::C];

    /// Returns the site's letter, with which names of files and gateways begin.
    pub(crate) fn letter(self) -> char {
        ['a', 'b', 'c'][self as usize]
    }

    fn number(self) -> u128 {
        self as u128 + 1
    }

    /// The host behind the gateway, `10.N.0.10`.
    pub(crate) fn host_v4(self) -> Address {
        Address::v4(0x0a00_000a | (self.number() as u32) << 16)
    }

    /// The host behind the gateway, `2001:db8:N::10`.
    pub(crate) fn host_v6(self) -> Address {
        Address::v6(0x2001_0db8 << 96 | self.number() << 80 | 0x10)
    }

    /// The site that an address is a host's of.
    pub(crate) fn of_host(address: Address) -> Option<Site> {
        Site::ALL.into_iter().find(|site| [site.host_v4(), site.host_v6()].contains(&address))
    }

    fn mac(self, last: u8) -> [u8; 6] {
        [2, 0, 0, 0, 0x0a + self as u8, last]
    }

    /// Link address of the gateway's protected port.
    pub(crate) fn lan_mac(self) -> [u8; 6] {
        self.mac(1)
    }

    /// Link address of the gateway's unprotected port.
    pub(crate) fn wan_mac(self) -> [u8; 6] {
        self.mac(2)
    }

    /// Link address of the host.
    pub(crate) fn host_mac(self) -> [u8; 6] {
        self.mac(0x10)
    }

    fn configuration(self) -> String {
        match self {
            Site::A => include_str!("../../../etc/demo/a.toml").to_owned(),
            Site::B => format!("{}{FORGER}", include_str!("../../../etc/demo/b.toml")),
            Site::C => include_str!("../../../etc/demo/c.toml").to_owned(),
        }
    }
}

/// A packet of a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) time_ns: u64,
    pub(crate) frame: Vec<u8>,
}

/// Makes a directory that was not there before, for us alone.
pub(crate) fn new_directory(path: &Path) -> std::io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)
}

/// Makes a file that was not there before, for us alone.
fn new_file(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// The directory that everything lies in.
pub(crate) struct Laboratory {
    directory: PathBuf,
}

impl Laboratory {
    /// Writes configurations and fresh keys into a new directory.
    pub(crate) fn build(directory: &Path) -> Result<Laboratory, Failure> {
        new_directory(directory).map_err(Failure::file(directory))?;
        let laboratory = Laboratory { directory: directory.to_owned() };
        for site in Site::ALL {
            let file = laboratory.configuration(site);
            let text = site.configuration();
            new_file(&file)
                .and_then(|mut file| file.write_all(text.as_bytes()))
                .map_err(Failure::file(&file))?;
        }
        for (spoke, suite) in [("b", Suite::Aes128Gcm), ("c", Suite::Aes256Gcm)] {
            let [hub_keys, spoke_keys] = generate_pair(suite)?;
            write_key_file(&laboratory.file(&format!("a-{spoke}.keys")), &hub_keys)?;
            write_key_file(&laboratory.file(&format!("{spoke}-a.keys")), &spoke_keys)?;
        }
        Ok(laboratory)
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn configuration(&self, site: Site) -> PathBuf {
        self.file(&format!("{}.toml", site.letter()))
    }

    /// Replays captures (port and name of each) through a gateway. What leaves by a port is then
    /// in `OUTPUT.PORT.pcap`.
    pub(crate) fn replay(
        &self,
        site: Site,
        inputs: &[(&str, &str)],
        keys: &[&str],
        output: &str,
    ) -> Result<Report, Failure> {
        let input = |(port, name): &(&str, &str)| (Some((*port).to_owned()), self.file(name));
        let file = self.configuration(site);
        Ok(replay::perform(Job {
            loaded: config::read(&file)?.load_keys(config::base_of(&file))?,
            name: file.display().to_string(),
            file: Some(file),
            inputs: inputs.iter().map(input).collect(),
            keys: keys.iter().map(|name| self.file(name)).collect(),
            output: self.file(output),
        })?)
    }

    /// Writes a capture.
    pub(crate) fn write(&self, name: &str, frames: &[Seen]) -> Result<(), Failure> {
        let path = self.file(name);
        let file = new_file(&path).map_err(|error| CaptureError {
            file: path.clone(),
            packet: None,
            defect: Defect::Open(error),
        })?;
        let to = BufWriter::new(file);
        let mut writer = CaptureWriter::new(to, &path, LinkType::Ethernet, Resolution::Nanosecond)?;
        for Seen { time_ns, frame } in frames {
            writer.write(*time_ns, frame)?;
        }
        Ok(writer.finish()?)
    }

    /// Reads a capture; a port that sent nothing has none.
    pub(crate) fn read(&self, name: &str) -> Result<Vec<Seen>, Failure> {
        let path = self.file(name);
        if !path.exists() {
            return Ok(Vec::new());
        }
        let mut reader = CaptureReader::open(&path)?;
        let mut frames = Vec::new();
        while let Some(packet) = reader.peek()? {
            frames.push(Seen { time_ns: packet.timestamp_ns, frame: packet.bytes.to_vec() });
            reader.skip();
        }
        Ok(frames)
    }
}
