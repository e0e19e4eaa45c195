//! The scene in which the wing may no longer trust its fabric.

use std::time::{Duration, Instant, SystemTime};

use netlab::capture::Tally;
use netlab::stream::Stream;
use netlab::{LabError, interrupt};

use super::report::WireReport;
use super::sets::wait_for_kernel;
use super::stage::{Fabric, LIMIT, Network, Stage, WING_MAC};
use crate::report::Check;

/// Time between two packets of a stream.
pub(super) const STEP: Duration = Duration::from_millis(2);
/// Bytes of its packets.
pub(super) const BYTES: usize = 64;
/// Time that the fabric is watched.
const WATCH: Duration = Duration::from_secs(1);
/// Time within which packets that had left are on the fabric.
const ON_ITS_WAY: Duration = Duration::from_millis(100);

/// Formats what the kernel sent, for a check.
pub(super) fn all(kernel: u64) -> String {
    format!("{kernel} packets in the kernel")
}

/// A stream from a tenant of node 1 to one of node 2, in the plain network.
pub(super) fn stream(stage: &Stage) -> Result<Stream, LabError> {
    let [from, to] = [1, 2].map(|node| {
        let address = Network::Plain.tenant(node, 1).parse();
        (stage.node(node), address.expect("an address of ours"))
    });
    Stream::start(from, to, BYTES, STEP)
}

/// Distrusts the fabric under a stream: its port becomes unprotected, with a PROTECT policy (no
/// policy is asked between protected ports). The kernel tier answers nothing more, and what leaves
/// the wing is ESP. Without the policy the kernel tier answers again.
///
/// The nodes have no ESP: they discard what is sealed for them, which proves that nothing is sent
/// otherwise.
pub(super) fn protect(stage: &mut Stage) -> Result<(), LabError> {
    wait_for_kernel(stage)?;
    let capture = stage.capture()?;
    let stream = stream(stage)?;
    let (first, began) = (stage.glance()?, SystemTime::now());
    interrupt::sleep(WATCH)?;
    let applied = SystemTime::now();
    stage.apply(Fabric::Sealed)?;
    let answered = SystemTime::now();
    let before = stage.glance()?;
    let beforehand = before.kernel_since(&first);
    interrupt::sleep(WATCH)?;
    let end = Instant::now() + LIMIT;
    while stage.glance()?.endpoints > 0 && Instant::now() < end {
        interrupt::sleep(Duration::from_millis(100))?;
    }
    let after = stage.glance()?;
    let file = capture.stop()?;
    let of_wing = |times| Tally::of_sender(&file, WING_MAC, &times);
    let control = of_wing(began..applied)?;
    let tally = of_wing(answered + ON_ITS_WAY..SystemTime::now())?;
    let sent = after.kernel_since(&before);
    stage.note(Check {
        name: "the fabric gets a PROTECT policy: the kernel tier is empty",
        ok: beforehand > 0 && before.networks == 0 && after.endpoints == 0 && sent == 0,
        detail: format!(
            "{beforehand} packets before; then {} networks open, {} endpoints, {sent} packets",
            before.networks, after.endpoints
        ),
    });
    let Tally { esp, clear, other, .. } = tally;
    stage.report.wire = WireReport { esp, clear: clear + other };
    stage.note(Check {
        name: "under the policy the wing sends ESP only",
        ok: control.clear > 0 && esp > 0 && clear + other == 0,
        detail: format!(
            "before: {} in clear; then {esp} ESP, {} in clear",
            control.clear,
            clear + other
        ),
    });
    stage.apply(Fabric::Trusted)?;
    let began = Instant::now();
    let kernel = wait_for_kernel(stage)?;
    stage.note_time("policy removed: until the kernel answers again", Some(began.elapsed()));
    stage.note(Check {
        name: "without the policy the kernel answers again",
        ok: kernel > 0,
        detail: all(kernel),
    });
    drop(stream);
    Ok(())
}
