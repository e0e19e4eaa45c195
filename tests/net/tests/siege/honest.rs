//! Honest packets and losses in a phase: a stream in each direction of the tunnel, pings, and the
//! packets of a probe.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use net::Lab;
use netlab::ping::Ping;
use netlab::stream::Stream;

use crate::probes::Probe;

/// Length of a phase.
const LENGTH: Duration = Duration::from_secs(8);
/// Time between two packets of a stream.
const STREAM_STEP: Duration = Duration::from_millis(2);
/// Time between two pings, and between two packets of a probe.
const STEP: Duration = Duration::from_millis(20);
/// Bytes of a ping: as large as fits the tunnel, roughly.
const PING_BYTES: u32 = 1200;
/// Time for the last packets of a probe: a new neighbour may take three seconds.
const LAST: Duration = Duration::from_secs(4);
/// Time between two readings of a probe.
const READING: Duration = Duration::from_millis(1);

/// Losses of one kind of packets.
pub(crate) struct KindLoss {
    pub(crate) name: &'static str,
    pub(crate) sent: usize,
    pub(crate) lost: usize,
}

impl KindLoss {
    pub(crate) fn percent(&self) -> f64 {
        100.0 * self.lost as f64 / self.sent.max(1) as f64
    }
}

/// Losses of all kinds in one phase.
pub(crate) struct Phase {
    pub(crate) kinds: Vec<KindLoss>,
}

/// Sends honest packets of all kinds and counts the lost packets.
pub(crate) fn run_phase(lab: &Lab, probe: Option<&mut Probe>) -> Phase {
    let gateways = &lab.gateways;
    let streams =
        [(1, 2), (2, 1)].map(|(from, to)| gateways.stream(from, to, STREAM_STEP).unwrap());
    let stop = AtomicBool::new(false);
    let (answers, probed) = std::thread::scope(|scope| {
        let flag = &stop;
        let probing = probe.map(|probe| scope.spawn(move || run_probe(probe, flag)));
        let pinging = scope.spawn(|| {
            let to = gateways.site(2).host_v4();
            let count = (LENGTH.as_millis() / STEP.as_millis()) as u32;
            let ping = Ping { interval: STEP, size: PING_BYTES, ..Ping::new(&to, count) };
            ping.run_until_answered(&gateways.site(1).host).unwrap()
        });
        std::thread::sleep(LENGTH);
        stop.store(true, Ordering::Relaxed);
        let probed = probing.map(|probing| probing.join().expect("a probe runs to its end"));
        (pinging.join().expect("pings run to their end"), probed)
    });
    let [out, back] = streams.map(Stream::finish);
    let stream = |name, stream: &netlab::stream::Delivery| KindLoss {
        name,
        sent: stream.sent.len(),
        lost: stream.lost(),
    };
    let (sent, lost) = (answers.sent as usize, (answers.sent - answers.received) as usize);
    let pings = KindLoss { name: "pings", sent, lost };
    let tunnel = [stream("stream out", &out), stream("stream back", &back), pings];
    Phase { kinds: tunnel.into_iter().chain(probed).collect() }
}

/// Sends a probe's packets until `stop` is set, and waits for the last arrivals.
fn run_probe(probe: &mut Probe, stop: &AtomicBool) -> KindLoss {
    let first = probe.next;
    let mut arrived = std::collections::HashSet::new();
    let (mut due, mut end) = (Instant::now(), None);
    loop {
        let now = Instant::now();
        if stop.load(Ordering::Relaxed) {
            let end = *end.get_or_insert(now + LAST);
            let sent = usize::from(probe.next - first);
            if now > end || arrived.len() == sent {
                let missing: Vec<u16> =
                    (first..probe.next).filter(|number| !arrived.contains(number)).collect();
                if !missing.is_empty() {
                    println!("siege: {}: {first} and later, lost {missing:?}", probe.name);
                }
                let lost = missing.len();
                return KindLoss { name: probe.name, sent, lost };
            }
        } else if now >= due {
            (probe.send)(probe.next);
            probe.next += 1;
            // No burst after a delay of a busy machine.
            due = now.max(due) + STEP;
        }
        while let Some(number) = (probe.receive)() {
            if (first..probe.next).contains(&number) {
                arrived.insert(number);
            }
        }
        std::thread::sleep(READING);
    }
}
