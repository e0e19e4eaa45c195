//! Two gateways with a tunnel between them, one end of which is an emulated card:
//!
//! ```text
//! client 10.1.0.2 ── lan0 ── near ── wan0 ── emulated card ── w0
//!                                                             ~ ESP
//! server 10.2.0.2 ── srv0 ── far ──────────────────────────── x0
//! ```
//!
//! The far gateway seals and opens in software. SAs are put over the API, each with a key of its
//! own.

use std::fs::OpenOptions;
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use wire::build::PacketBuilder;

use crate::capture::{Capture, Scope, carries_clear};
use crate::inject;
use crate::laboratory::connect;
use crate::ping::Ping;
use crate::process::Finished;
use crate::stream::Stream;
use crate::{CardPlan, Daemon, EmulatedCard, LabError, Laboratory, Namespace, Programs};

/// Address of the client.
pub const CLIENT: &str = "10.1.0.2";
/// Payload of packets that [`SealedLab::spoof`] sends.
pub const SPOOFED: &[u8] = b"in clear";
/// Address of the server.
pub const SERVER: &str = "10.2.0.2";
/// The near gateway's netdev that is the card's.
pub const WAN: &str = "wan0";
/// The card's wire.
pub const WIRE: &str = "w0";
/// The bridge that is the wire where no card is plugged in.
const BRIDGE: &str = "br0";
/// Address of the near gateway outside.
pub const NEAR: &str = "192.0.2.1";
/// Address of the far gateway outside.
pub const FAR: &str = "192.0.2.2";
/// SPI of the first SA from the near gateway to the far one; each further one is higher by 1.
pub const THERE: u32 = 0x1000;
/// SPI of the first SA back.
pub const BACK: u32 = 0x2000;
/// Bytes of a packet of a stream.
const STREAM_BYTES: usize = 64;
/// Time between two packets of a stream. The ring of a queue holds at least 256 frames: a program
/// without a core for a second loses no packet.
const STREAM_STEP: Duration = Duration::from_millis(4);

/// Has only the card see frames of its wire: no card shows them to the host's Linux.
const WIRE_IS_THE_CARDS: &str = "add table netdev card; add chain netdev card wire { type filter \
                                 hook ingress device \"w0\" priority 0; policy drop; }";
/// Time for a command.
const LIMIT: Duration = Duration::from_secs(60);

/// The laboratory.
#[derive(Debug)]
pub struct SealedLab {
    /// The near gateway's daemon, if it runs.
    pub near: Option<Daemon>,
    /// The far gateway's daemon, if it runs.
    pub far: Option<Daemon>,
    /// The card, if one is plugged in.
    pub card: Option<EmulatedCard>,
    /// The client's namespace.
    pub client: Namespace,
    /// The near gateway's namespace.
    pub near_gateway: Namespace,
    /// The far gateway's namespace.
    pub far_gateway: Namespace,
    /// The server's namespace.
    pub server: Namespace,
    programs: Programs,
    keys: u32,
    lab: Laboratory,
    /// The section of the near gateway's card.
    section: String,
    /// The wire, if it is a bridge of its own.
    wire: Option<Namespace>,
}

/// An end of the tunnel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The gateway with the card.
    Near,
    /// The other.
    Far,
}

/// An SA to put at both ends.
#[derive(Clone, Debug)]
pub struct NewSa {
    /// Its sender.
    pub from: End,
    /// Number among the SAs of its sender.
    pub number: u32,
    /// Further options at the near end: `offload=none hard_packets=9`.
    pub near: String,
    /// Further options at the far end.
    pub far: String,
}

impl NewSa {
    /// An SA without options.
    pub fn new(from: End, number: u32) -> NewSa {
        NewSa { from, number, near: String::new(), far: String::new() }
    }

    /// Its SPI.
    pub fn spi(&self) -> u32 {
        match self.from {
            End::Near => THERE + self.number,
            End::Far => BACK + self.number,
        }
    }
}

impl SealedLab {
    /// Makes namespaces and plugs a card of this kind in; no daemon runs yet.
    ///
    /// # Errors
    /// [`LabError`]: something that it needs is missing, or the kernel refuses.
    pub fn build(plan: CardPlan<'_>) -> Result<SealedLab, LabError> {
        let mut built = SealedLab::new()?;
        connect((&built.near_gateway, WIRE), (&built.far_gateway, "x0"), 1)?;
        built.dress()?;
        built.near_gateway.ip(&format!("link set {WIRE} up"))?;
        built.near_gateway.run(&["nft", WIRE_IS_THE_CARDS], LIMIT)?.success()?;
        built.section = format!(
            "[card.nic0]\nkind = \"emulated\"\nsocket = \"{}/card\"\nports = [\"wan\"]\n",
            built.directory().display()
        );
        built.insert(plan)?;
        Ok(built)
    }

    /// Gives netdevs their addresses and routes.
    fn dress(&self) -> Result<(), LabError> {
        for (host, device, address) in [
            (&self.client, "c0", CLIENT),
            (&self.near_gateway, "lan0", "10.1.0.1"),
            (&self.far_gateway, "x0", FAR),
            (&self.far_gateway, "srv0", "10.2.0.1"),
            (&self.server, "s0", SERVER),
        ] {
            host.ip(&format!("address add {address}/24 dev {device}"))?;
            host.ip(&format!("link set {device} up"))?;
            host.offload_off(device)?;
        }
        self.client.ip("route add default via 10.1.0.1")?;
        self.server.ip("route add default via 10.2.0.1")?;
        self.far_gateway.ip(&format!("route add 10.1.0.0/24 via {NEAR}"))
    }

    /// Makes namespaces with a card of kind `xfrm` on a netdev without any; no daemon runs yet.
    /// `card` are further lines of its section. Linux forwards in the near gateway.
    ///
    /// # Errors
    /// As [`SealedLab::build`].
    pub fn under_linux(card: &str) -> Result<SealedLab, LabError> {
        let mut built = SealedLab::new()?;
        let wire = built.lab.namespace("wire")?;
        wire.set("net/ipv6/conf/default/disable_ipv6", "1")?;
        connect((&built.near_gateway, WAN), (&wire, "w1"), 1)?;
        connect((&built.far_gateway, "x0"), (&wire, "w2"), 1)?;
        wire.ip(&format!("link add {BRIDGE} type bridge mcast_snooping 0"))?;
        for device in ["w1", "w2"] {
            wire.ip(&format!("link set {device} master {BRIDGE}"))?;
            wire.ip(&format!("link set {device} up"))?;
            wire.offload_off(device)?;
        }
        wire.ip(&format!("link set {BRIDGE} up"))?;
        built.wire = Some(wire);
        built.dress()?;
        built.section = format!("[card.nic0]\nkind = \"xfrm\"\n{card}\nports = [\"wan\"]\n");
        built.near_gateway.set("net/ipv4/ip_forward", "1")?;
        built.near_gateway.offload_off(WAN)?;
        built.face_far()?;
        Ok(built)
    }

    /// Makes namespaces, of which only hosts and their gateways are joined.
    fn new() -> Result<SealedLab, LabError> {
        let programs = Programs::find()?;
        let lab = Laboratory::new()?;
        let [client, near_gateway, far_gateway, server] =
            ["client", "near", "far", "server"].map(|role| lab.namespace(role));
        let (client, server) = (client?, server?);
        let (near_gateway, far_gateway) = (near_gateway?, far_gateway?);
        for namespace in [&client, &near_gateway, &far_gateway, &server] {
            namespace.set("net/ipv6/conf/default/disable_ipv6", "1")?;
        }
        connect((&near_gateway, "lan0"), (&client, "c0"), 1)?;
        connect((&far_gateway, "srv0"), (&server, "s0"), 1)?;
        let (near, far, card, keys, section) = (None, None, None, 0, String::new());
        Ok(SealedLab {
            near,
            far,
            card,
            client,
            near_gateway,
            far_gateway,
            server,
            programs,
            keys,
            lab,
            section,
            wire: None,
        })
    }

    /// Plugs a card in.
    ///
    /// # Errors
    /// As [`EmulatedCard::start`] and [`Namespace::ip`].
    pub fn insert(&mut self, plan: CardPlan<'_>) -> Result<(), LabError> {
        let plan = CardPlan { tap: WAN, wire: WIRE, ..plan };
        let at = (self.lab.directory(), "card");
        self.card = Some(EmulatedCard::start(&self.near_gateway, &plan, at)?);
        self.face_far()
    }

    /// Gives the near gateway its address outside, and the way to the far one.
    fn face_far(&self) -> Result<(), LabError> {
        self.near_gateway.ip(&format!("address add {NEAR}/24 dev {WAN}"))?;
        self.near_gateway.ip(&format!("link set {WAN} up"))?;
        self.near_gateway.ip(&format!("route replace 10.2.0.0/24 via {FAR}"))
    }

    /// The wire, where it is a bridge of its own.
    ///
    /// # Errors
    /// [`LabError::NotRunning`]: it is not.
    pub fn wire(&self) -> Result<&Namespace, LabError> {
        self.wire.as_ref().ok_or(LabError::NotRunning("the wire"))
    }

    /// The laboratory's directory.
    pub fn directory(&self) -> &Path {
        self.lab.directory()
    }

    /// Writes a gateway's configuration; `peer` are further lines of its peer's section.
    ///
    /// # Errors
    /// [`LabError::File`].
    pub fn write(&self, end: End, peer: &str) -> Result<PathBuf, LabError> {
        let at = self.at(end);
        for name in ["run", "state"] {
            let path = at.join(name);
            std::fs::create_dir_all(&path).map_err(LabError::file(&path))?;
        }
        let (inside, outside, local, remote, [here, there]) = match end {
            End::Near => ("lan0", WAN, NEAR, FAR, ["10.1.0.0/24", "10.2.0.0/24"]),
            End::Far => ("srv0", "x0", FAR, NEAR, ["10.2.0.0/24", "10.1.0.0/24"]),
        };
        let card = match end {
            End::Near => self.section.clone(),
            End::Far => String::new(),
        };
        let at_text = at.display();
        let text = format!(
            "[node]\nname = \"{}\"\nrun_dir = \"{at_text}/run\"\nstate_dir = \"{at_text}/state\"\n\
             [metrics]\nlisten = \"off\"\n\
             [port.lan]\nnetdev = \"{inside}\"\nside = \"protected\"\n\
             [port.wan]\nnetdev = \"{outside}\"\nside = \"unprotected\"\n\
             allow_host = [\"udp/500\"]\n{card}\
             [peer.other]\nlocal = \"{local}\"\nremote = \"{remote}\"\nkeys = \"api\"\n\
             suite = \"aes-128-gcm\"\nesn = true\n{peer}\n\
             [[policy]]\nname = \"sites\"\npeer = \"other\"\nlocal = [\"{here}\"]\n\
             remote = [\"{there}\"]\n",
            end.name(),
        );
        let file = at.join("gateway.toml");
        std::fs::write(&file, text).map_err(LabError::file(&file))?;
        Ok(file)
    }

    fn at(&self, end: End) -> PathBuf {
        self.lab.directory().join(end.name())
    }

    /// Starts both daemons; `peer` are further lines of the peer's section at the near end.
    ///
    /// # Errors
    /// As [`Daemon::launch_with`] and [`Daemon::wait_ready`].
    pub fn start(&mut self, peer: &str) -> Result<(), LabError> {
        self.start_one(End::Far, "")?;
        self.start_one(End::Near, peer)
    }

    /// Starts one daemon.
    ///
    /// # Errors
    /// As [`SealedLab::start`].
    pub fn start_one(&mut self, end: End, peer: &str) -> Result<(), LabError> {
        let file = self.write(end, peer)?;
        let socket = self.at(end).join("run/api.sock");
        let gateway = match end {
            End::Near => &self.near_gateway,
            End::Far => &self.far_gateway,
        };
        let mut daemon = Daemon::launch_with(&self.programs, gateway, &file, socket)?;
        daemon.wait_ready()?;
        match end {
            End::Near => self.near = Some(daemon),
            End::Far => self.far = Some(daemon),
        }
        Ok(())
    }

    /// A daemon.
    ///
    /// # Errors
    /// [`LabError::NotRunning`]: it was not started.
    pub fn daemon(&self, end: End) -> Result<&Daemon, LabError> {
        let daemon = match end {
            End::Near => &self.near,
            End::Far => &self.far,
        };
        daemon.as_ref().ok_or(LabError::NotRunning("the daemon"))
    }

    /// The card.
    ///
    /// # Errors
    /// [`LabError::NotRunning`]: none is plugged in.
    pub fn card(&self) -> Result<&EmulatedCard, LabError> {
        self.card.as_ref().ok_or(LabError::NotRunning("the emulated card"))
    }

    /// Puts SAs with fresh keys: all that open first, so that nothing is lost, and at the far end
    /// before the near one. Returns what `lockgate sa put` said at the near end, of the first
    /// request that was refused there, or of the last.
    ///
    /// # Errors
    /// As [`Daemon::run`]; [`LabError::File`].
    pub fn put(&mut self, sas: &[NewSa]) -> Result<Finished, LabError> {
        // By end, and of each end those that open and those that seal.
        let (mut near, mut far) = (<[String; 2]>::default(), <[String; 2]>::default());
        for sa in sas {
            let key = self.key();
            let (spi, options, far_options) = (sa.spi(), &sa.near, &sa.far);
            let seals_here = usize::from(sa.from == End::Near);
            let way = ["in", "out"];
            near[seals_here] +=
                &format!("{} {spi:#010x} {key} peer=other {options}\n", way[seals_here]);
            far[1 - seals_here] +=
                &format!("{} {spi:#010x} {key} peer=other {far_options}\n", way[1 - seals_here]);
        }
        let mut said = None;
        for (near, far) in near.iter().zip(&far) {
            if !far.is_empty() {
                self.put_at(End::Far, far)?.success()?;
            }
            if !near.is_empty() {
                let answer = self.put_at(End::Near, near)?;
                let is_refused = !answer.status.success();
                said = Some(answer);
                if is_refused {
                    break;
                }
            }
        }
        said.ok_or(LabError::NotRunning("an SA to put"))
    }

    /// Puts SAs at one end, by their lines.
    ///
    /// # Errors
    /// As [`SealedLab::put`].
    pub fn put_at(&self, end: End, lines: &str) -> Result<Finished, LabError> {
        let file = self.at(end).join("sas");
        let mut options = OpenOptions::new();
        let written = options
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&file)
            .and_then(|mut open| open.write_all(lines.as_bytes()));
        written.map_err(LabError::file(&file))?;
        let path = file.display().to_string();
        self.daemon(end)?.run(&["sa", "put", &path])
    }

    /// A key that none had before.
    fn key(&mut self) -> String {
        self.keys += 1;
        format!("{:08x}", self.keys).repeat(5)
    }

    /// An SA of the near end, as `show sa` has it; null: it has none.
    ///
    /// # Errors
    /// As [`Daemon::ask`].
    pub fn sa(&self, spi: u32) -> Result<Value, LabError> {
        let shown = self.daemon(End::Near)?.ask(&["show", "sa"])?;
        let sas = shown["sas"].as_array().map_or(&[][..], Vec::as_slice);
        let spi = format!("{spi:#010x}");
        Ok(sas.iter().find(|sa| sa["spi"] == spi.as_str()).cloned().unwrap_or_default())
    }

    /// Answers to so many pings of the client's, all of which should be answered.
    ///
    /// # Errors
    /// As [`Ping::run_one_by_one`].
    pub fn pings(&self, count: u32) -> Result<u64, LabError> {
        Ok(Ping::new(SERVER, count).run_one_by_one(&self.client)?.received)
    }

    /// Answers to exactly so many pings of the client's, of which some are to be lost.
    ///
    /// # Errors
    /// As [`Ping::run`].
    pub fn pings_with_losses(&self, count: u32) -> Result<u64, LabError> {
        Ok(Ping::new(SERVER, count).run(&self.client)?.received)
    }

    /// A stream from the client to the server.
    ///
    /// # Errors
    /// As [`Stream::start`].
    pub fn stream(&self) -> Result<Stream, LabError> {
        let [from, to] = [[10, 1, 0, 2], [10, 2, 0, 2]].map(IpAddr::from);
        Stream::start((&self.client, from), (&self.server, to), STREAM_BYTES, STREAM_STEP)
    }

    /// Puts packets on the wire, in clear, as from the server to the client: the tunnel's policy
    /// wants them sealed.
    ///
    /// # Errors
    /// As [`inject::inject`] and [`inject::mac`].
    pub fn spoof(&self, count: usize) -> Result<(), LabError> {
        let to = inject::mac(&self.near_gateway, WAN)?;
        let from = inject::mac(&self.far_gateway, "x0")?;
        let packet = PacketBuilder::v4(SERVER, CLIENT).udp(4000, 5000).payload(SPOOFED);
        let frames = vec![packet.frame(to, from, None); count];
        inject::inject(&self.far_gateway, "x0", &frames).map(drop)
    }

    /// Packets that the host has been handed by the card, and given to it, in clear and as ESP.
    ///
    /// # Errors
    /// As [`EmulatedCard::seen`].
    pub fn host_side(&self) -> Result<HostSide, LabError> {
        const PROTOCOL: usize = 14 + 9;
        const ESP: u8 = 50;
        let mut side = HostSide::default();
        for frame in self.card()?.seen()? {
            if frame.bytes.get(12..14) != Some(&[0x08, 0x00]) {
                continue;
            }
            let is_esp = frame.bytes.get(PROTOCOL) == Some(&ESP);
            *if is_esp { &mut side.esp } else { &mut side.clear } += 1;
            side.esp_in_clear += u64::from(is_esp && carries_clear(&frame.bytes));
        }
        Ok(side)
    }

    /// Captures the wire, at the card's end, or where it is a bridge of its own.
    ///
    /// # Errors
    /// As [`Capture::start`].
    pub fn capture(&self, name: &str) -> Result<Capture, LabError> {
        let (at, netdev) = match &self.wire {
            Some(wire) => (wire, BRIDGE),
            None => (&self.near_gateway, WIRE),
        };
        Capture::start(at, netdev, Scope::Whole, (self.directory(), name))
    }

    /// Number of the SAs that are in the card.
    ///
    /// # Errors
    /// As [`EmulatedCard::tell`].
    pub fn seats(&self) -> Result<usize, LabError> {
        /// Handles of SAs; those of rules are lower.
        const FIRST_OF_SAS: u64 = 1 << 31;
        let answer = self.card()?.tell("tags")?;
        let tags = answer["tags"].as_array().map_or(&[][..], Vec::as_slice);
        let is_sa = |tag: &&Value| tag["handle"].as_u64().is_some_and(|of| of >= FIRST_OF_SAS);
        Ok(tags.iter().filter(is_sa).count())
    }
}

/// IPv4 packets between a host and its card, both ways.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HostSide {
    /// ESP.
    pub esp: u64,
    /// ESP that [carries a packet in clear](carries_clear).
    pub esp_in_clear: u64,
    /// Anything else.
    pub clear: u64,
}

impl End {
    const fn name(self) -> &'static str {
        match self {
            End::Near => "near",
            End::Far => "far",
        }
    }
}
