//! The laboratory with its daemons and charons, the results so far, and the lines of progress.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use console::failure::Form;
use netlab::capture::{Capture, Scope, Tally};
use netlab::charon::{CharonPlan, Esp, KeysInLog};
use netlab::daemon::Counters;
use netlab::sites::Plan;
use netlab::stream::{Delivery, Stream};
use netlab::{Charon, Gateways, LabError, interrupt};
use serde_json::Value;

use super::plan::{CONNECTION, End, Further, Proof};
use super::report::{IkeReport, Skipped};
use crate::play;
use crate::progress::Progress;
use crate::report::{Check, TimeFigure};

/// Gateway a, and the site behind it.
pub(super) const A: u8 = 1;
/// Gateway b.
pub(super) const B: u8 = 2;
/// A step that takes longer than this never ends.
pub(super) const LIMIT: Duration = Duration::from_secs(60);
/// Time between two packets of a stream.
const STEP: Duration = Duration::from_millis(1);

/// The laboratory, and the results so far.
pub(super) struct Stage {
    // Ended before their namespaces.
    charons: [Option<Charon>; 2],
    pub(super) gateways: Gateways,
    ends: [End; 2],
    /// The way in which gateways prove who they are now.
    proof: Proof,
    pub(super) report: IkeReport,
    /// Packets of the captures since the daemons were started.
    tally: Tally,
    /// Number of the last acquire of each gateway that is in the report.
    counted: [u64; 2],
    progress: Progress,
}

/// Builds two sites whose gateways get their keys from IKE. Returns them with the ends of the
/// tunnel; `more` are further lines of each gateway's peer.
pub(super) fn build_sites(more: impl Fn(u8) -> String) -> Result<(Gateways, [End; 2]), LabError> {
    let mut gateways = Gateways::build(Plan::default())?;
    let mut end = |number| {
        let file = gateways.file_mut(number);
        let peer = file.peers.pop().expect("a site has a peer");
        let end = End::new(file.name(), &peer);
        file.extra += &end.lockgate(&more(number));
        end
    };
    let ends = [end(A), end(B)];
    Ok((gateways, ends))
}

/// A pre-shared key that none had before.
pub(super) fn secret() -> Result<String, LabError> {
    const RANDOM: &str = "/proc/sys/kernel/random/uuid";
    let text = std::fs::read_to_string(RANDOM).map_err(LabError::file(RANDOM))?;
    Ok(text.trim().to_owned())
}

impl Stage {
    /// Builds the namespaces and writes all configurations.
    pub(super) fn build(form: Form) -> Result<Stage, LabError> {
        let progress = Progress::start(form);
        let (gateways, ends) = build_sites(|_| String::new())?;
        // Without strongSwan there is nothing to show.
        netlab::charon::plugin()?;
        let (charons, tally) = ([None, None], Tally::default());
        let (proof, report) = (Proof::Secret(secret()?), IkeReport::new());
        progress.say("", "host-a, gw-a, wire, gw-b, host-b: five namespaces");
        Ok(Stage { charons, gateways, ends, proof, report, tally, counted: [0; 2], progress })
    }

    /// Prints a line of progress.
    pub(super) fn say(&self, text: &str) {
        self.progress.say("", text);
    }

    /// Notes whether something holds.
    pub(super) fn note(&mut self, check: Check) {
        play::note(&mut self.report.checks, self.progress, check);
    }

    /// Notes that a scene is not played.
    pub(super) fn skip(&mut self, scene: &'static str, why: impl Into<String>) {
        let skipped = Skipped { scene, why: why.into() };
        self.progress.say("SKIP", &format!("{scene}: {}", skipped.why));
        self.report.skipped.push(skipped);
    }

    /// Notes how long something took. Machines differ and are shared: no time is a check.
    pub(super) fn note_time(&mut self, name: &'static str, took: Option<Duration>) {
        self.report.times.push(TimeFigure::new(name, took));
    }

    /// Notes packets that were lost where none may be.
    pub(super) fn note_lost(&mut self, streams: &[Delivery]) -> (usize, usize) {
        let lost = streams.iter().map(Delivery::lost).sum::<usize>();
        self.report.ike.lost += lost as u64;
        (lost, streams.iter().map(|stream| stream.sent.len()).sum())
    }

    /// The way in which gateways prove who they are now.
    pub(super) fn proof(&self) -> Proof {
        self.proof.clone()
    }

    /// Charons that are started from now on prove it otherwise.
    pub(super) fn prove_by(&mut self, proof: Proof) {
        self.proof = proof;
    }

    /// An end of the tunnel.
    pub(super) fn end(&self, number: u8) -> &End {
        &self.ends[place(number)]
    }

    /// Folder of a gateway's charon.
    pub(super) fn charon_folder(&self, number: u8) -> PathBuf {
        self.gateways.directory().join(format!("charon-{number}"))
    }

    /// Starts a charon, and waits until it is connected to its daemon.
    pub(super) fn start_charon(
        &mut self,
        number: u8,
        proof: &Proof,
        keys_in_log: KeysInLog,
    ) -> Result<(), LabError> {
        let folder = self.charon_folder(number);
        std::fs::create_dir_all(&folder).map_err(LabError::file(&folder))?;
        let before = self.newest(number, "charon_connected")?;
        let run_dir = self.gateways.file(number).run_dir();
        let connections = self.end(number).swanctl(proof, &[]);
        let plan = CharonPlan { esp: Esp::Lockgate(&run_dir), connections, keys_in_log };
        let charon = Charon::launch(&self.gateways.site(number).gateway, &folder, &plan)?;
        self.charons[place(number)] = Some(charon);
        self.wait("charon's plugin is connected", |stage| {
            Ok(stage.newest(number, "charon_connected")? > before)
        })
    }

    /// Gives a charon its connection anew, with further CHILD_SAs.
    pub(super) fn load(
        &self,
        number: u8,
        proof: &Proof,
        further: &[Further],
    ) -> Result<(), LabError> {
        let text = self.end(number).swanctl(proof, further);
        let file = self.charon_folder(number).join("swanctl.conf");
        std::fs::write(&file, text).map_err(LabError::file(&file))?;
        let file = file.display().to_string();
        self.swanctl(number, &["--load-conns", "--file", &file]).map(drop)
    }

    /// Kills a charon as a crash would.
    pub(super) fn kill_charon(&mut self, number: u8) {
        if let Some(mut charon) = self.charons[place(number)].take() {
            charon.kill();
        }
    }

    /// A charon that runs.
    pub(super) fn charon(&self, number: u8) -> Result<&Charon, LabError> {
        self.charons[place(number)].as_ref().ok_or(LabError::NotRunning("charon"))
    }

    /// Runs `swanctl` for a gateway.
    pub(super) fn swanctl(&self, number: u8, words: &[&str]) -> Result<String, LabError> {
        self.charon(number)?.swanctl(&self.gateways.site(number).gateway, words)
    }

    /// Ends the tunnel, and waits until neither gateway can seal by it.
    pub(super) fn terminate(&self) -> Result<(), LabError> {
        self.swanctl(A, &["--terminate", "--ike", CONNECTION])?;
        self.wait("the tunnel is gone", |stage| {
            Ok(stage.outbound(A)?.is_empty() && stage.outbound(B)?.is_empty())
        })
    }

    /// Kills a daemon as a crash would; what its events counted is kept.
    pub(super) fn kill_daemon(&mut self, number: u8) -> Result<(), LabError> {
        self.count_acquires()?;
        self.gateways.kill(number);
        // The next one counts from the beginning.
        self.counted[place(number)] = 0;
        Ok(())
    }

    /// Adds the acquires that are not counted yet. A daemon forgets old events.
    pub(super) fn count_acquires(&mut self) -> Result<(), LabError> {
        for number in [A, B] {
            let counted = &mut self.counted[place(number)];
            for event in events(&self.gateways, number, "acquire")? {
                if is_newer(&event, *counted) {
                    *counted = event["number"].as_u64().unwrap_or(*counted);
                    self.report.ike.acquires += 1;
                }
            }
        }
        Ok(())
    }

    /// Number of the newest event of a kind; 0 if there is none.
    pub(super) fn newest(&self, number: u8, kind: &str) -> Result<u64, LabError> {
        let events = self.events(number, kind)?;
        Ok(events.last().and_then(|event| event["number"].as_u64()).unwrap_or(0))
    }

    /// Events of one kind of a gateway, oldest first.
    pub(super) fn events(&self, number: u8, kind: &str) -> Result<Vec<Value>, LabError> {
        events(&self.gateways, number, kind)
    }

    /// SAs of a gateway.
    pub(super) fn sas(&self, number: u8) -> Result<Vec<Value>, LabError> {
        let shown = self.gateways.daemon(number)?.ask(&["show", "sa"])?;
        Ok(shown["sas"].as_array().cloned().unwrap_or_default())
    }

    /// SPIs of the outbound SAs of a gateway.
    pub(super) fn outbound(&self, number: u8) -> Result<Vec<Value>, LabError> {
        let sas = self.sas(number)?;
        let outbound = sas.iter().filter(|sa| sa["direction"] == "outbound");
        Ok(outbound.map(|sa| sa["spi"].clone()).collect())
    }

    /// Waits until something is so.
    ///
    /// # Errors
    /// [`LabError::TimedOut`] after [`LIMIT`], with what charon said last.
    pub(super) fn wait(
        &self,
        what: &str,
        is_so: impl Fn(&Stage) -> Result<bool, LabError>,
    ) -> Result<(), LabError> {
        wait(what, self.charons.iter().flatten(), || is_so(self))
    }

    /// Steady streams from host a to host b and back.
    pub(super) fn both_ways(&self) -> Result<[Stream; 2], LabError> {
        Ok([self.gateways.stream(A, B, STEP)?, self.gateways.stream(B, A, STEP)?])
    }

    /// Starts a capture of the wire.
    pub(super) fn capture(&mut self, scope: Scope) -> Result<Capture, LabError> {
        self.gateways.capture(scope)
    }

    /// Ends a capture, adds its packets to those of the wire, and returns their own count.
    pub(super) fn add_capture(&mut self, capture: Capture) -> Result<Tally, LabError> {
        let file = capture.stop()?;
        self.tally.add(&file)?;
        let own = Tally::of(&file)?;
        std::fs::remove_file(&file).map_err(LabError::file(&file))?;
        Ok(own)
    }

    /// Adds the packets of a capture file, and keeps the file.
    pub(super) fn add_file(&mut self, file: &std::path::Path) -> Result<(), LabError> {
        self.tally.add(file)
    }

    /// Waits until no packet is under way, and notes sums and what all captures saw.
    pub(super) fn settle(&mut self) -> Result<(), LabError> {
        let mut total = Counters::default();
        for number in [A, B] {
            total.add(&self.gateways.daemon(number)?.settled(Duration::from_secs(3))?);
        }
        self.report.ledger_imbalance = Some(total.ledger_imbalance);
        self.report.drops = total.drops.into_iter().filter(|&(_, count)| count > 0).collect();
        let imbalance = total.ledger_imbalance;
        let found = format!("out by {imbalance} packets");
        self.note(Check {
            name: "the ledgers of both gateways balance",
            ok: imbalance == 0,
            detail: found,
        });
        let Tally { esp, clear, repeated, .. } = self.tally;
        let examples = self.tally.clear_examples.join(", ");
        let ok = clear == 0 && esp > 0;
        let detail = format!("{clear} in clear, {esp} in ESP {examples}");
        self.note(Check {
            name: "nothing in clear was on the wire",
            ok,
            detail: detail.trim_end().to_owned(),
        });
        let spis = self.tally.spis().len();
        self.note(Check {
            name: "no sequence number was sent twice by one SA",
            ok: repeated == 0 && esp > 0,
            detail: format!("{esp} packets of {spis} SAs, {repeated} numbers twice"),
        });
        Ok(())
    }

    /// Ends the play: everything is torn down, and the report is complete.
    ///
    /// # Errors
    /// [`LabError::Interrupted`], torn down all the same.
    pub(super) fn close(mut self, outcome: Result<(), LabError>) -> Result<IkeReport, LabError> {
        let logs = || {
            let mut logs = play::logs_of(&self.gateways);
            for (end, charon) in self.ends.iter().zip(&self.charons) {
                // The log of one with keys stays here.
                let log = charon.as_ref().map(without_keys).unwrap_or_default();
                logs.push((format!("charon of {}", end.names[0]), log));
            }
            logs
        };
        self.report.ok = play::end(outcome, &mut self.report.checks, logs, self.progress)?;
        let Tally { esp, clear, .. } = self.tally;
        self.report.wire.esp += esp;
        self.report.wire.clear += clear;
        Ok(std::mem::take(&mut self.report))
    }
}

fn is_newer(event: &Value, than: u64) -> bool {
    event["number"].as_u64().is_some_and(|number| number > than)
}

fn place(number: u8) -> usize {
    usize::from(number) - 1
}

/// Events of one kind of a gateway, oldest first.
pub(super) fn events(gateways: &Gateways, number: u8, kind: &str) -> Result<Vec<Value>, LabError> {
    let printed = gateways.daemon(number)?.run(&["events", "--kind", kind, "--json"])?;
    let lines = printed.stdout.lines();
    Ok(lines.filter_map(|line| serde_json::from_str(line).ok()).collect())
}

/// Waits until something is so; in vain, the charons' logs say why.
pub(super) fn wait<'a>(
    what: &str,
    charons: impl Iterator<Item = &'a Charon>,
    mut is_so: impl FnMut() -> Result<bool, LabError>,
) -> Result<(), LabError> {
    let end = Instant::now() + LIMIT;
    while !is_so()? {
        if Instant::now() > end {
            let output = charons.map(without_keys).collect();
            return Err(LabError::TimedOut { what: what.to_owned(), limit: LIMIT, output });
        }
        interrupt::sleep(Duration::from_millis(30))?;
    }
    Ok(())
}

/// A charon's log without what may be keys: CHILD_SAs are left out.
fn without_keys(charon: &Charon) -> String {
    const GROUPS: [&str; 6] = ["[IKE]", "[CFG]", "[NET]", "[KNL]", "[ENC]", "[LIB]"];
    let log = charon.log();
    let lines = log.lines().filter(|line| GROUPS.iter().any(|group| line.contains(group)));
    lines.fold(String::new(), |text, line| text + line + "\n")
}
