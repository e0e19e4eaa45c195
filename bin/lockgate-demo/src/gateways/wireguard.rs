//! wireguard-go between the same gateways, in the same namespaces, for comparison.
//!
//! Configured through its own socket: no other tool is needed but openssl, which makes the keys.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use netlab::capture::{Scope, Tally};
use netlab::process::{self, Running};
use netlab::{LabError, Site, programs};

use super::report::PeerFigures;
use super::scenes::{Seconds, forget_mtus, tcp_both_families, timed_pings};
use super::stage::{A, B, Stage};

/// Directory of wireguard-go's sockets; shared by all network namespaces, so names differ.
const SOCKETS: &str = "/var/run/wireguard";
/// Time for it to come up, to answer and to end.
const LIMIT: Duration = Duration::from_secs(60);
/// UDP port of both ends.
const PORT: u16 = 51820;
/// Largest inner packet of its tunnel over a link of 1500 bytes.
const TUNNEL_MTU: u32 = 1420;
/// Bytes of an X25519 key, at the end of what openssl writes in DER.
const KEY_BYTES: usize = 32;

/// One end.
struct Tunnel {
    running: Running,
    interface: String,
    socket: PathBuf,
}

/// Measures wireguard-go's round trips and TCP rate, and takes it away again.
pub(super) fn measure(stage: &mut Stage, program: &Path, seconds: Seconds) -> Result<(), LabError> {
    let keys = [Keys::make()?, Keys::make()?];
    let tunnels = [A, B].map(|end| Tunnel::start(program, stage.gateways.site(end)));
    let [Ok(a), Ok(b)] = tunnels else {
        let [a, b] = tunnels;
        return a.and(b).map(drop);
    };
    let sites = [stage.gateways.site(A), stage.gateways.site(B)];
    a.join(sites, &keys[0], &keys[1].public)?;
    b.join([sites[1], sites[0]], &keys[1], &keys[0].public)?;
    // That it is its tunnel that is measured.
    let capture = stage.gateways.capture(Scope::Heads)?;
    let (ping_us, answers) = timed_pings(stage)?;
    let clear = Tally::of(&capture.stop()?)?.clear;
    if clear > 0 {
        let answer = format!("{clear} packets beside its tunnel");
        return Err(LabError::Answer { command: program.display().to_string(), answer });
    }
    let [tcp, _v6] = tcp_both_families(stage, seconds)?;
    stage.report.peer = Some(PeerFigures { name: "wireguard-go", ping_us, tcp_gbps: Some(tcp) });
    stage.say(
        "",
        &format!(
            "wireguard-go beside us: {}, p50 {:.0} µs, TCP {tcp:.2} Gbit/s",
            answers.summary(),
            ping_us.p50.unwrap_or(0.0)
        ),
    );
    for tunnel in [a, b] {
        tunnel.running.terminate(LIMIT)?;
        // It does not always take its socket along.
        let _ = std::fs::remove_file(&tunnel.socket);
    }
    // Their interfaces took the routes along.
    for end in [A, B] {
        stage.gateways.sites.raise_wan(stage.gateways.site(end))?;
    }
    forget_mtus(stage)
}

impl Tunnel {
    fn start(program: &Path, site: &Site) -> Result<Tunnel, LabError> {
        let interface = format!("lgwg{}x{}", std::process::id() % 100_000, site.number());
        let socket = Path::new(SOCKETS).join(format!("{interface}.sock"));
        let mut command = site.gateway.command(program);
        command.args(["--foreground", &interface]);
        let mut running = Running::start(command)?;
        running.wait_until("its socket", LIMIT, |_| UnixStream::connect(&socket).is_ok())?;
        Ok(Tunnel { running, interface, socket })
    }

    /// Sets keys and peer, address and routes.
    fn join(&self, [own, other]: [&Site; 2], keys: &Keys, peer: &str) -> Result<(), LabError> {
        let [v4, v6] = other.networks();
        let request = format!(
            "set=1\nprivate_key={}\nlisten_port={PORT}\nreplace_peers=true\npublic_key={peer}\n\
             endpoint={}:{PORT}\nallowed_ip={v4}\nallowed_ip={v6}\n\n",
            keys.private,
            other.wan_v4(),
        );
        let answer = self.ask(&request).map_err(LabError::file(&self.socket))?;
        if !answer.contains("errno=0") {
            let command = format!("wireguard-go {}", self.interface);
            return Err(LabError::Answer { command, answer });
        }
        let interface = &self.interface;
        own.gateway.ip(&format!(
            "link set {interface} mtu {TUNNEL_MTU} up
             route replace {v4} dev {interface}
             route replace {v6} dev {interface}"
        ))
    }

    fn ask(&self, request: &str) -> std::io::Result<String> {
        let mut socket = UnixStream::connect(&self.socket)?;
        socket.set_read_timeout(Some(LIMIT))?;
        socket.write_all(request.as_bytes())?;
        let mut answer = Vec::new();
        let mut buffer = [0; 512];
        while !answer.ends_with(b"\n\n") {
            match socket.read(&mut buffer)? {
                0 => break,
                count => answer.extend_from_slice(&buffer[..count]),
            }
        }
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }
}

/// A pair of keys for one run, in hexadecimal.
struct Keys {
    private: String,
    public: String,
}

impl Keys {
    fn make() -> Result<Keys, LabError> {
        let openssl = programs::find("openssl").ok_or_else(|| {
            let need = programs::Need { program: "openssl", package: "openssl" };
            LabError::Missing(vec![need])
        })?;
        let directory = tempfile::tempdir().map_err(LabError::file(std::env::temp_dir()))?;
        let [private, public] =
            ["private.der", "public.der"].map(|name| directory.path().join(name));
        let mut command = Command::new(&openssl);
        command.args(["genpkey", "-algorithm", "X25519", "-outform", "DER", "-out"]).arg(&private);
        process::succeed(command, LIMIT)?;
        let mut command = Command::new(&openssl);
        command.args(["pkey", "-inform", "DER", "-pubout", "-outform", "DER", "-in"]);
        command.arg(&private).arg("-out").arg(&public);
        process::succeed(command, LIMIT)?;
        Ok(Keys { private: key_of(&private)?, public: key_of(&public)? })
    }
}

/// The key itself: the last bytes of the file.
fn key_of(file: &Path) -> Result<String, LabError> {
    let bytes = std::fs::read(file).map_err(LabError::file(file))?;
    let key = bytes.last_chunk::<KEY_BYTES>().ok_or_else(|| LabError::Answer {
        command: "openssl".to_owned(),
        answer: format!("a key of {} bytes", bytes.len()),
    })?;
    Ok(key.iter().map(|byte| format!("{byte:02x}")).collect())
}
