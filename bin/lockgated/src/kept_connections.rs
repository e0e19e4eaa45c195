//! Keeps connections over a restart of the daemon: every few seconds and at the end it writes those
//! that both ends have shown to want to `RUN_DIR/connections`, and reads them at the start.
//!
//! The file is root's, mode 0600, and replaced whole. It holds no secrets, but is believed: one of
//! another user or mode is refused, and every line is checked (`line.rs`). Names of ports stand in
//! it, never their slots; times are those of the clock that goes on while the machine sleeps.
//! Nothing is kept over a reboot. A connection that was restored is judged again at its first
//! packet, by the rules of the side that let it begin.

mod line;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, BufWriter, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use config::{HOST_PORT, MAX_CONNECTIONS};
use dataplane::Snapshot;
use dataplane::connections::{Connection, Connections, Inserted, Place};
use rustix::fs::OFlags;
use rustix::time::{ClockId, clock_gettime};
use tokio::task::JoinHandle;

use crate::clock;
use crate::events::{Events, Kind};
use line::Line;

/// The file's name in the run directory.
const FILE: &str = "connections";
/// First words of the file; the boot's id follows.
const MARK: &str = "lockgate connections 1 ";
/// Bytes of a line at most, without its end.
const MAX_LINE: usize = 256;
/// Least time between two writes.
const EVERY: Duration = Duration::from_secs(10);
/// The pause after a write, as a multiple of the duration of the write.
const PAUSE: u32 = 20;
/// Lines of the table that are read at once.
const LINES: usize = 4096;

/// A moment that a later process of the same boot understands.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Moment {
    boot_id: String,
    /// Seconds since the boot, those in which the machine slept among them.
    boot_s: u64,
    /// The moment by the clock of the connections in this process.
    now_s: u32,
}

impl Moment {
    /// # Errors
    /// The kernel does not say its boot id.
    fn now() -> std::io::Result<Moment> {
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        let boot_s = clock_gettime(ClockId::Boottime).tv_sec.try_into().unwrap_or(0);
        Ok(Moment { boot_id: boot_id.trim().to_owned(), boot_s, now_s: clock::now_s() })
    }
}

/// The reason why a file is not believed.
#[derive(Debug, thiserror::Error)]
enum NotRestored {
    /// The system refuses.
    #[error("{0}")]
    System(#[from] std::io::Error),
    /// Others could have written to the file or read it.
    #[error("mode {mode:04o}, owner {owner}: it must be a file of this user, mode 0600")]
    Insecure { mode: u32, owner: u32 },
    /// The first line is not one of this version.
    #[error("it is not a list of connections of this version")]
    Unknown,
    /// The machine was booted since.
    #[error("it is of an earlier boot")]
    OtherBoot,
}

/// Counts of the lines of a file, by their fate.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Restored {
    restored: u64,
    /// Lines of ports that are not there.
    gone: u64,
    /// Lines of connections whose time-out has passed.
    over: u64,
    /// Lines of connections that the table has no room for, or has already.
    refused: u64,
    /// Lines that are no line that this version writes.
    bad: u64,
}

/// Writes the file while the daemon runs.
pub(crate) struct KeptConnections {
    path: PathBuf,
    /// A write in the background, with its duration.
    writing: Option<JoinHandle<std::io::Result<Duration>>>,
    next: Instant,
}

impl KeptConnections {
    pub(crate) fn new(run_dir: &Path) -> KeptConnections {
        KeptConnections { path: run_dir.join(FILE), writing: None, next: Instant::now() + EVERY }
    }

    /// Writes the file in the background if it is time. Waits for nothing.
    pub(crate) async fn keep_if_due(&mut self, snapshot: &Arc<Snapshot>, events: &Events) {
        if self.writing.as_ref().is_some_and(|writing| !writing.is_finished()) {
            return;
        }
        self.finish(events).await;
        if Instant::now() >= self.next {
            self.begin(snapshot);
        }
    }

    /// Writes the file now, and returns when it is there.
    pub(crate) async fn keep(&mut self, snapshot: &Arc<Snapshot>, events: &Events) {
        // It may have read a connection that is gone by now.
        self.finish(events).await;
        self.begin(snapshot);
        self.finish(events).await;
    }

    fn begin(&mut self, snapshot: &Arc<Snapshot>) {
        if snapshot.connections().is_none() {
            return;
        }
        let (path, snapshot) = (self.path.clone(), snapshot.clone());
        self.writing = Some(tokio::task::spawn_blocking(move || {
            let start = Instant::now();
            write(&path, &snapshot, &Moment::now()?).map(|()| start.elapsed())
        }));
    }

    async fn finish(&mut self, events: &Events) {
        let Some(writing) = self.writing.take() else { return };
        let written = match writing.await {
            Ok(written) => written,
            Err(panic) => std::panic::resume_unwind(panic.into_panic()),
        };
        let took = written.unwrap_or_else(|error| {
            let message = format!(
                "{}: {error}: a restart would not keep the connections of now",
                self.path.display()
            );
            events.record(Kind::ConnectionsNotKept, "", message, &[]);
            Duration::ZERO
        });
        self.next = Instant::now() + EVERY.max(took * PAUSE);
    }
}

/// Replaces the file by one of the connections of now.
fn write(path: &Path, snapshot: &Snapshot, moment: &Moment) -> std::io::Result<()> {
    let new = path.with_extension("new");
    let written = (|| {
        match std::fs::remove_file(&new) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        let mut out = BufWriter::with_capacity(1 << 16, file);
        write_lines(&mut out, snapshot, moment)?;
        out.flush()?;
        // Not synced: nothing of it is for after a power cut.
        std::fs::rename(&new, path)
    })();
    if written.is_err() {
        let _ = std::fs::remove_file(&new);
    }
    written
}

fn write_lines(out: &mut impl Write, snapshot: &Snapshot, moment: &Moment) -> std::io::Result<()> {
    writeln!(out, "{MARK}{}", moment.boot_id)?;
    let Some(table) = snapshot.connections() else { return Ok(()) };
    let (mut from, mut page) = (Some(Place(0)), Vec::new());
    while let Some(place) = from {
        from = table.page(place, LINES, moment.now_s, &mut page);
        for connection in page.drain(..) {
            if let Some(line) = line_of(&connection, snapshot, moment) {
                writeln!(out, "{line}")?;
            }
        }
    }
    Ok(())
}

/// The line of a connection; `None`: it is not kept.
fn line_of<'s>(
    connection: &Connection,
    snapshot: &'s Snapshot,
    moment: &Moment,
) -> Option<Line<'s>> {
    let port = crate::api::port_name(snapshot, connection)?;
    let seen_s = moment.boot_s.checked_sub(connection.idle_s.into())?;
    Line::of(connection, port, seen_s)
}

/// Makes the connections of an earlier daemon, before workers walk by the snapshot. What became of
/// them is an event. Blocks, a second for a million of them.
pub(crate) fn restore(run_dir: &Path, snapshot: &Snapshot, events: &Events) {
    let path = run_dir.join(FILE);
    let Some(table) = snapshot.connections() else {
        // No rule of now let them begin: they have ended.
        let _ = std::fs::remove_file(&path);
        return;
    };
    let file = match open(&path) {
        Err(NotRestored::System(error)) if error.kind() == ErrorKind::NotFound => return,
        opened => opened,
    };
    let restored = file.and_then(|file| {
        restore_lines(&mut BufReader::new(file), (snapshot, table), &Moment::now()?)
    });
    match restored {
        Ok(restored) => report(restored, events),
        Err(NotRestored::OtherBoot) => {}
        Err(error) => {
            let message = format!("{}: {error}: no connection is restored", path.display());
            events.record(Kind::ConnectionsNotRestored, "", message, &[]);
        }
    }
}

fn report(restored: Restored, events: &Events) {
    let Restored { restored, gone, over, refused, bad } = restored;
    if [restored, gone, over, refused, bad] == [0; 5] {
        return;
    }
    let message = format!(
        "{restored} connections of before the restart go on; not restored: {over} whose time-out \
         has passed, {gone} of ports that are not there, {refused} without room, {bad} lines that \
         are damaged"
    );
    let details: crate::events::Details<'_> = &[
        ("restored", &restored),
        ("over", &over),
        ("port_gone", &gone),
        ("refused", &refused),
        ("damaged", &bad),
    ];
    events.record(Kind::ConnectionsRestored, "", message, details);
}

/// Opens a file that only this user may have written or read.
fn open(path: &Path) -> Result<File, NotRestored> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    let (mode, owner) = (metadata.mode() & 0o7777, metadata.uid());
    let is_ours = owner == 0 || owner == rustix::process::geteuid().as_raw();
    match metadata.is_file() && is_ours && mode & 0o077 == 0 {
        true => Ok(file),
        false => Err(NotRestored::Insecure { mode, owner }),
    }
}

fn restore_lines(
    file: &mut impl BufRead,
    (snapshot, table): (&Snapshot, &Connections),
    moment: &Moment,
) -> Result<Restored, NotRestored> {
    let first = next_line(file)?.flatten().ok_or(NotRestored::Unknown)?;
    let boot_id = first.strip_prefix(MARK).ok_or(NotRestored::Unknown)?;
    if boot_id != moment.boot_id {
        return Err(NotRestored::OtherBoot);
    }
    // The host port lists no groups.
    let ports = snapshot.ports().filter(|(_, port)| port.name != HOST_PORT);
    let ports: HashMap<&str, u16> =
        ports.map(|(slot, port)| (port.name.as_str(), slot.0)).collect();
    let mut counts = Restored::default();
    for _ in 0..MAX_CONNECTIONS {
        let Some(text) = next_line(file)? else { break };
        match text.as_deref().and_then(Line::parse) {
            None => counts.bad += 1,
            Some(line) => restore_line(&line, (&ports, table), moment, &mut counts),
        }
    }
    Ok(counts)
}

fn restore_line(
    line: &Line<'_>,
    (ports, table): (&HashMap<&str, u16>, &Connections),
    moment: &Moment,
    counts: &mut Restored,
) {
    let Some(slot) = ports.get(line.port).filter(|_| line.vni == 0) else {
        counts.gone += 1;
        return;
    };
    let idle_s = moment.boot_s.checked_sub(line.seen_s);
    let Some(connection) = idle_s.and_then(|idle_s| line.connection(*slot, idle_s)) else {
        // Last seen in the future, or without a key.
        counts.bad += 1;
        return;
    };
    if connection.idle_s >= table.timeouts().of(connection.status) {
        counts.over += 1;
        return;
    }
    match table.restore(&connection, moment.now_s) {
        Inserted::New(_) => counts.restored += 1,
        Inserted::Raced(_) | Inserted::Refused(_) | Inserted::MakesNone => counts.refused += 1,
    }
}

/// Reads a line; `None`: the end. Inside, `None`: it is too long, not text, or has no end.
fn next_line(file: &mut impl BufRead) -> std::io::Result<Option<Option<String>>> {
    let mut bytes = Vec::new();
    if file.by_ref().take(MAX_LINE as u64 + 1).read_until(b'\n', &mut bytes)? == 0 {
        return Ok(None);
    }
    if bytes.pop() != Some(b'\n') {
        // The rest of a line that is too long is no line of its own.
        while !file.fill_buf()?.is_empty() {
            let (length, has_end) = {
                let some = file.fill_buf()?;
                let end = some.iter().position(|byte| *byte == b'\n');
                (end.map_or(some.len(), |end| end + 1), end.is_some())
            };
            file.consume(length);
            if has_end {
                break;
            }
        }
        return Ok(Some(None));
    }
    Ok(Some(String::from_utf8(bytes).ok()))
}
