//! Errors of this crate, with what the reader can do about them.

use std::io;

/// Reason why a program could not be loaded, attached or changed. The earlier state stays in force.
#[derive(Debug, thiserror::Error)]
pub enum BpfError {
    /// The process lacks capabilities.
    #[error(
        "BPF needs {missing}, which this process lacks: run as root or grant the capabilities \
         (AmbientCapabilities= of the unit)"
    )]
    NotPermitted {
        /// The capabilities that are missing.
        missing: &'static str,
    },
    /// The kernel refuses BPF although the process has every capability.
    #[error(
        "the kernel refuses BPF although every capability is there: {}",
        match .lockdown {
            Some(mode) => format!("lockdown is in mode `{mode}`"),
            None => "a security module or a seccomp filter forbids bpf(2)".to_owned(),
        }
    )]
    Refused {
        /// Mode of the kernel's lockdown, if it is in one.
        lockdown: Option<String>,
    },
    /// The kernel's verifier refuses the program: a mistake in it, or an old kernel.
    #[error(
        "the kernel's verifier refuses the steering program (Linux {release}; 6.1 or newer is \
         needed); its last lines:\n{log}"
    )]
    Verifier {
        /// The kernel's release.
        release: String,
        /// Last lines of the verifier's log.
        log: String,
    },
    /// The program or its maps could not be made, for another reason.
    #[error("loading the steering program: {source}{}", .said.as_deref().map_or(String::new(),
        |said| format!(" ({said})")))]
    Load {
        /// The messages of libbpf.
        said: Option<String>,
        /// The kernel's error.
        source: libbpf_rs::Error,
    },
    /// The program that was built is not the one that this crate knows.
    #[error("the compiled program lacks `{part}` or has it in another shape: rebuild")]
    Shape {
        /// The map, section or program.
        part: &'static str,
    },
    /// A table could not be made or put in place.
    #[error("changing the steering program's {table}: {source}")]
    Table {
        /// The table's name.
        table: &'static str,
        /// The kernel's error.
        source: libbpf_rs::Error,
    },
    /// An index has no place where the program would look for a key.
    #[error("the kernel tier has no place for another one among its {table}")]
    NoPlace {
        /// The name of what it leads to.
        table: &'static str,
    },
    /// A table has no room for so many entries.
    #[error("{count} {what}, at most {limit} are possible")]
    TooMany {
        /// The name of the entries.
        what: &'static str,
        /// Number of entries.
        count: usize,
        /// The most entries possible.
        limit: usize,
    },
    /// Two ports of a netdev have one VLAN id.
    #[error("two ports of a netdev have VLAN id {vlan:?}")]
    SamePort {
        /// The VLAN id; `None`: untagged.
        vlan: Option<u16>,
    },
    /// A number that is no VLAN id.
    #[error("{vlan} is not a VLAN id: 1 to 4094 are")]
    BadVlan {
        /// The number that the caller gave.
        vlan: u16,
    },
    /// A receive queue that cannot be steered.
    #[error("queue {queue}: queues 0 to {} can be steered", crate::MAX_QUEUES - 1)]
    BadQueue {
        /// The number that the caller gave.
        queue: u32,
    },
    /// The netdev runs an XDP program that is not Lockgate's.
    #[error(
        "netdev {ifindex} runs another XDP program, `{name}` (id {id}): Lockgate does not replace \
         it; detach it first (ip link set DEV xdp off) or choose another netdev"
    )]
    Foreign {
        /// The netdev.
        ifindex: u32,
        /// The program's name.
        name: String,
        /// The program's id.
        id: u32,
    },
    /// The netdev does not exist (any more) in this network namespace.
    #[error("there is no netdev with index {ifindex} here")]
    NoDevice {
        /// The netdev.
        ifindex: u32,
    },
    /// Neither native nor generic XDP can be had.
    #[error(
        "netdev {ifindex} takes no XDP program: native: {native}; generic: {generic}. A frame must \
         fit a page (MTU up to 3498), and LRO must be off (ethtool -K DEV lro off)"
    )]
    NoXdp {
        /// The netdev.
        ifindex: u32,
        /// Reason why not native.
        native: crate::NativeRefusal,
        /// Reason why not generic.
        generic: crate::NativeRefusal,
    },
    /// The netdev does not take a program in the only mode that was chosen.
    #[error(
        "netdev {ifindex} takes no XDP program in {mode} mode: {refusal}. `xdp = \"auto\"` takes \
         the best mode that it has{}",
        advice(*mode)
    )]
    ModeRefused {
        /// The netdev.
        ifindex: u32,
        /// The mode that was chosen.
        mode: crate::Mode,
        /// Reason why not.
        refusal: crate::NativeRefusal,
    },
    /// Lockgate's program runs on the netdev in a mode that was not chosen.
    #[error(
        "Lockgate's program runs on netdev {ifindex} in {mode} mode, and `xdp` asks for another: \
         stop lockgated, take the program off (ip link set DEV {} off) and start lockgated; in \
         between, this machine gets all frames of the netdev",
        mode.ip_word()
    )]
    OtherMode {
        /// The netdev.
        ifindex: u32,
        /// The mode in which it runs.
        mode: crate::Mode,
    },
    /// Somebody else changes the netdev's program all the time.
    #[error("the XDP program of netdev {ifindex} kept changing: is a second daemon running?")]
    Contended {
        /// The netdev.
        ifindex: u32,
    },
    /// A netdev's program could not be asked for, replaced or detached.
    #[error("{doing} the XDP program of netdev {ifindex}: {source}")]
    Netdev {
        /// The operation that failed.
        doing: &'static str,
        /// The netdev.
        ifindex: u32,
        /// The kernel's error.
        source: io::Error,
    },
    /// The counters could not be read.
    #[error("reading the steering program's counters: {source}")]
    Counters {
        /// The kernel's error.
        source: libbpf_rs::Error,
    },
    /// A frame that the generator cannot make.
    #[error("a frame of {bytes} bytes with ports at {ports_at} in {flows} flows cannot be made")]
    Template {
        /// Bytes of the frame.
        bytes: usize,
        /// First byte of the ports.
        ports_at: usize,
        /// Flows.
        flows: usize,
    },
    /// The program could not be run over a frame.
    #[error("running an XDP program over a frame: {source}")]
    Run {
        /// The kernel's error.
        source: libbpf_rs::Error,
    },
}

/// Returns what helps a netdev to take a program in a mode.
fn advice(mode: crate::Mode) -> &'static str {
    match mode {
        crate::Mode::Native => {
            "; for native mode a frame must fit a page (MTU up to 3498; on veth that of its peer), \
             LRO must be off (ethtool -K DEV lro off), and the driver must have XDP"
        }
        crate::Mode::Generic | crate::Mode::Hardware => "",
    }
}
