//! A host's agent for direct paths: it hears the gateway's messages, and has Linux's VXLAN device
//! send to the destination's host, by the link address of the destination: not by flows, which
//! Linux does not tell apart there.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use wire::direct_path::{MESSAGE_BYTES, Message, Operation};

use crate::namespace::SETTING;
use crate::{LabError, Namespace, process};

/// Time between two looks whether the agent is to stop.
const LOOK: Duration = Duration::from_millis(20);

/// A message, and when it was heard.
#[derive(Clone, Copy, Debug)]
pub struct Heard {
    /// The message.
    pub message: Message,
    /// Its time.
    pub at: Instant,
}

/// The agent of a host; it ends when this is dropped.
pub struct DirectAgent {
    heard: Arc<Mutex<Vec<Heard>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl DirectAgent {
    /// Starts the agent of a host with a VXLAN device, which hears at a UDP port.
    ///
    /// # Errors
    /// As [`Namespace::enter`]; [`LabError::File`] if the port is taken.
    pub fn start(host: &Namespace, device: &str, port: u16) -> Result<DirectAgent, LabError> {
        let bind = || UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port));
        let socket = host.enter(bind)?.map_err(LabError::file("the agent's socket"))?;
        socket.set_read_timeout(Some(LOOK)).map_err(LabError::file("the agent's socket"))?;
        let (heard, stop) = (Arc::new(Mutex::default()), Arc::new(AtomicBool::new(false)));
        let thread = {
            let (host, device) = (host.name().to_owned(), device.to_owned());
            let (heard, stop) = (heard.clone(), stop.clone());
            std::thread::spawn(move || hear(&socket, (&host, &device), &heard, &stop))
        };
        Ok(DirectAgent { heard, stop, thread: Some(thread) })
    }

    /// All messages so far.
    pub fn heard(&self) -> Vec<Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for DirectAgent {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn hear(
    socket: &UdpSocket,
    (host, device): (&str, &str),
    heard: &Mutex<Vec<Heard>>,
    stop: &AtomicBool,
) {
    let mut paths = BTreeMap::<[u8; 6], Ipv4Addr>::new();
    let mut bytes = [0; MESSAGE_BYTES + 1];
    while !stop.load(Ordering::Relaxed) {
        let length = match socket.recv(&mut bytes) {
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
            Err(_) => return,
        };
        let Some(message) = Message::read(&bytes[..length]) else { continue };
        let (mac, to) = (message.path.mac.bytes(), message.path.host);
        let order = match message.operation {
            Operation::Encap => {
                let known = paths.insert(mac, to);
                (known != Some(to)).then_some("replace")
            }
            Operation::Delete => paths.remove(&mac).map(|_| "del"),
        };
        if let Some(order) = order {
            let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
            let mut bridge = Command::new("bridge");
            bridge.args(["-n", host, "fdb", order, &mac, "dev", device, "dst", &to.to_string()]);
            // What Linux refuses shows itself: packets go on by the gateway.
            let _ = process::run(bridge, SETTING);
        }
        let now = Heard { message, at: Instant::now() };
        heard.lock().unwrap_or_else(PoisonError::into_inner).push(now);
    }
}
