//! `lockgate capture`: packets of the running gateway, with what became of each.

mod file;
mod line;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Instant;

use api::v1;
use console::output::{Reader, complain, counted, print_on};
use tonic::{Status, Streaming};

use super::{AnswerError, Ask, LiveError, Socket};
use crate::failure::{Failure, Usage};
use file::CaptureFile;

/// The name that stands for all ports.
const ALL_PORTS: &str = "any";
/// The output that stands for standard output.
const STANDARD_OUTPUT: &str = "-";

const EXAMPLES: &str = "\
Examples:
  lockgate capture wan                       one line a packet
  lockgate capture wan --drops               only dropped packets, with reason and policy
  lockgate capture lan tcp port 443 and host 10.2.0.7
  lockgate capture wan --inner=only -w tunnel.pcapng
  lockgate capture any -w - | tshark -r -

Filter: words of pcap-filter(7): host, net, port, portrange (each also with src, dst), proto, ip,
  ip6, tcp, udp, sctp, icmp, icmp6, esp, inbound, outbound, less, greater; and, or, not, ( ).
  Of the gateway: reason NAME (a drop reason of `lockgate show counters`), verdict forward, protect,
  host, hold, consumed or drop. `and` and `or` bind alike, from left to right, as in tcpdump. Names
  of hosts are not resolved. On the wire a sealed packet has the gateways' addresses: a filter for
  addresses inside a tunnel needs --inner.

Not seen: packets that the XDP program passes to Linux or drops in the kernel (`lockgate show port`
  counts them). The time of a packet is that of its batch, UTC.";

/// Show packets of a port while the gateway processes them
///
/// Shows each packet with what became of it: its verdict, the drop reason, and the policies that
/// decided it. A capture changes nothing about the traffic. It ends after --count packets, after
/// --seconds, or when it is interrupted. Only root and members of group lockgate-admin may capture,
/// and each capture is an event.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The port; `any`, or no name: all ports
    #[arg(value_name = "PORT")]
    port: Option<String>,
    /// Show only packets that this expression accepts
    #[arg(value_name = "FILTER")]
    filter: Vec<String>,
    /// Write pcapng to a new file, or to standard output (-)
    #[arg(short, long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Show packets inside tunnels too, or only those: cleartext that policies hide from the wire
    #[arg(
        long, value_enum, value_name = "WHICH", num_args = 0..=1, require_equals = true,
        default_missing_value = "also"
    )]
    inner: Option<Inner>,
    /// Show only dropped packets
    #[arg(long)]
    drops: bool,
    /// Bytes of each packet, at most 9216
    #[arg(
        long, value_name = "BYTES", default_value_t = api::DEFAULT_SNAPLEN,
        value_parser = clap::value_parser!(u32).range(1..=api::MAX_SNAPLEN as i64)
    )]
    snaplen: u32,
    /// End after this many packets, at most 1000000
    #[arg(
        short, long, value_name = "PACKETS", default_value_t = api::DEFAULT_CAPTURE_PACKETS,
        value_parser = clap::value_parser!(u64).range(1..=api::MAX_CAPTURE_PACKETS)
    )]
    count: u64,
    /// End after this many seconds, at most 3600
    #[arg(
        long, value_name = "SECONDS", default_value_t = api::DEFAULT_CAPTURE_SECONDS,
        value_parser = clap::value_parser!(u32).range(1..=api::MAX_CAPTURE_SECONDS as i64)
    )]
    seconds: u32,
    /// Packets per second, at most 100000; packets over the limit are counted as left out
    #[arg(
        long, value_name = "PACKETS", default_value_t = api::DEFAULT_CAPTURE_RATE,
        value_parser = clap::value_parser!(u32).range(1..=api::MAX_CAPTURE_RATE as i64)
    )]
    rate: u32,
    /// Print one JSON object a packet, its bytes in hexadecimal digits
    #[arg(long, conflicts_with = "write")]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Inner {
    /// Show them in addition to the packets on the wire
    Also,
    /// Show them instead of the packets on the wire
    Only,
}

/// The place that packets go to.
enum Output {
    Lines,
    Json,
    File(Box<CaptureFile>),
}

/// The end of a capture, as the client sees it.
enum CaptureEnd {
    /// The daemon says why.
    ByDaemon(String),
    /// Ctrl-C.
    Interrupted,
    /// The reader of the output is gone.
    NoReader,
    /// The connection is gone.
    Lost(Failure),
    /// The daemon fell silent, or the output cannot be written.
    BrokenOff(Failure),
}

/// Counts of a capture.
#[derive(Clone, Copy, Default)]
struct Counts {
    packets: u64,
    by_rate: u64,
    by_room: u64,
}

/// Captures until a bound is reached or the user has seen enough.
pub(crate) fn run(args: &Args, socket: &Socket) -> Result<(), Failure> {
    let to_standard_output = args.write.as_deref().is_some_and(|file| file == STANDARD_OUTPUT);
    if to_standard_output && std::io::stdout().is_terminal() {
        return Err(Usage::CaptureToTerminal.into());
    }
    let mut ask = Ask::new(socket)?;
    let request = request(args);
    let wanted = request.clone();
    let mut stream = ask.call(async |client| client.capture(wanted).await)?;
    // The daemon has agreed: only now is there a file.
    let mut output = match &args.write {
        Some(path) => Output::File(Box::new(CaptureFile::create(path, &request)?)),
        None if args.json => Output::Json,
        None => Output::Lines,
    };
    let (start, mut counts) = (Instant::now(), Counts::default());
    let ended = ask.wait(follow(&mut stream, &mut output, &mut counts));
    let ended = ended.unwrap_or_else(CaptureEnd::BrokenOff);
    drop(stream);
    if let Output::File(file) = &mut output {
        // The packets that came are a whole file.
        let finished = file.finish(counts);
        // The first failure says more than a second one.
        if !matches!(ended, CaptureEnd::BrokenOff(_)) {
            finished?;
        }
    }
    let why = match &ended {
        CaptureEnd::ByDaemon(why) => why.as_str(),
        CaptureEnd::Interrupted => "interrupted",
        CaptureEnd::NoReader => "nobody reads any more",
        CaptureEnd::Lost(_) => "the daemon ended",
        CaptureEnd::BrokenOff(_) => "broken off",
    };
    // The last line is for the person; a terminal that is gone has none.
    complain(&format!("lockgate: {}\n", summary(args, counts, start, why)));
    match ended {
        CaptureEnd::Lost(failure) | CaptureEnd::BrokenOff(failure) => Err(failure),
        CaptureEnd::ByDaemon(_) | CaptureEnd::Interrupted | CaptureEnd::NoReader => Ok(()),
    }
}

fn request(args: &Args) -> v1::CaptureRequest {
    let layers = match args.inner {
        None => "outer",
        Some(Inner::Also) => "both",
        Some(Inner::Only) => "inner",
    };
    let port = args.port.clone().filter(|port| port != ALL_PORTS).unwrap_or_default();
    v1::CaptureRequest {
        port,
        layers: layers.into(),
        drops: args.drops,
        filter: args.filter.join(" "),
        snaplen: args.snaplen,
        packets: args.count,
        seconds: args.seconds,
        packets_per_second: args.rate,
    }
}

/// Puts out what comes.
///
/// # Errors
/// The file cannot be written.
async fn follow(
    stream: &mut Streaming<v1::Captured>,
    output: &mut Output,
    counts: &mut Counts,
) -> Result<CaptureEnd, Failure> {
    let interrupt = tokio::signal::ctrl_c();
    tokio::pin!(interrupt);
    loop {
        let message: Result<Option<v1::Captured>, Status> = tokio::select! {
            message = stream.message() => message,
            _ = &mut interrupt => return Ok(CaptureEnd::Interrupted),
        };
        let message = match message {
            Ok(Some(message)) => message,
            Ok(None) => return Ok(CaptureEnd::Lost(LiveError::StreamEnded.into())),
            Err(status) => return Ok(CaptureEnd::Lost(AnswerError::from(status).into())),
        };
        (counts.by_rate, counts.by_room) = (message.left_out_by_rate, message.left_out_by_room);
        counts.packets += message.packets.len() as u64;
        if put(output, &message.packets)? == Reader::Gone {
            return Ok(CaptureEnd::NoReader);
        }
        if !message.ended.is_empty() {
            return Ok(CaptureEnd::ByDaemon(message.ended));
        }
    }
}

fn put(output: &mut Output, packets: &[v1::CapturedPacket]) -> Result<Reader, Failure> {
    let lines = match output {
        Output::File(file) => return file.put(packets),
        Output::Json => packets.iter().map(line::json).collect::<String>(),
        Output::Lines => packets.iter().map(line::text).collect::<String>(),
    };
    Ok(print_on(&lines)?)
}

/// `812 packets of port wan in 60.0 s, none left out: time limit reached`
fn summary(args: &Args, counts: Counts, start: Instant, why: &str) -> String {
    let packets = counted(counts.packets, "packet");
    let of = match args.port.as_deref() {
        None | Some(ALL_PORTS) => "all ports".to_owned(),
        Some(port) => format!("port {port}"),
    };
    let seconds = start.elapsed().as_secs_f64();
    format!("{packets} of {of} in {seconds:.1} s, {}: {why}", left_out(counts))
}

/// The packets that are missing, and why.
fn left_out(counts: Counts) -> String {
    match (counts.by_rate, counts.by_room) {
        (0, 0) => "none left out".into(),
        (rate, room) => {
            format!(
                "{} left out ({rate} over the rate limit, {room} for lack of buffer space)",
                rate + room
            )
        }
    }
}
