//! Connections over a restart: ports that are renamed, exchanged or gone; files that are not ours;
//! lines that are hostile.

use std::io::Cursor;
use std::os::unix::fs::{PermissionsExt, chown, symlink};

use config::ReplayKeys;
use dataplane::Generation;
use dataplane::connections::{Judgement, Key, Observed, Zone};
use policy::connection::{Segment, Shown, State};
use policy::{Book, DomainId, PolicyIndex, PortClass};
use proptest::prelude::*;
use wire::{Family, Flow, Upper};

use super::*;

/// A snapshot of these ports, in this order, whose table is empty.
fn snapshot(ports: &[&str]) -> Snapshot {
    let port = |(number, name): (usize, &&str)| {
        format!("[port.{name}]\nnetdev = \"eth{number}\"\nside = \"protected\"\n")
    };
    let ports: String = ports.iter().enumerate().map(port).collect();
    let text = format!(
        "[node]\nname = \"a\"\n{ports}[group.web]\n[[rule]]\ngroup = \"web\"\n\
         action = \"reflect\"\nfrom = [\"any\"]\nto = [\"any\"]\n[connections]\nmax = 64\n"
    );
    let config = config::parse(&text, "a.toml").unwrap_or_else(|e| panic!("{e}")).validated;
    let keys = ReplayKeys::stand_ins(&config).unwrap();
    control::compile(&config, keys, Generation(1)).unwrap()
}

fn moment(boot_s: u64, now_s: u32) -> Moment {
    Moment { boot_id: "boot-1".into(), boot_s, now_s }
}

/// The key of a packet of a TCP connection at a port, by number; `is_answer`: of the responder.
fn key(snapshot: &Snapshot, port: &str, number: u16, is_answer: bool) -> Key {
    let zone = Zone { attachment: snapshot.port_named(port).unwrap().0, vni: 0 };
    let (family, high) = match number % 2 {
        0 => (Family::V4, 0x0a00_0000),
        _ => (Family::V6, 0x2001_0db8 << 96),
    };
    let upper = Upper::Ports { source: 4000 + number, destination: 443 };
    let (source, destination) = (high + 1, high + 2);
    let flow = Flow { family, source, destination, protocol: 6, upper, opens: false };
    let key = Key::of(&flow, zone).unwrap();
    if is_answer { key.reversed() } else { key }
}

/// Makes an established connection, last seen at `now_s`.
fn establish(snapshot: &Snapshot, port: &str, number: u16, book: Book, now_s: u32) {
    let table = snapshot.connections().unwrap();
    let [asks, answers] = [false, true].map(|answer| key(snapshot, port, number, answer));
    let domain = DomainId::new(PortClass(0), book, asks.family());
    let judgement = Judgement { rule: PolicyIndex(0), domain, generation: Generation(9) };
    let tcp = |segment| Shown::Tcp(segment);
    let Inserted::New(place) = table.insert(&asks, tcp(Segment::Syn), judgement, now_s) else {
        panic!("there is room");
    };
    for (key, segment) in [(&answers, Segment::SynAck), (&asks, Segment::Ack)] {
        let observed = table.observe(place, key, tcp(segment), now_s);
        assert!(matches!(observed, Observed::Seen { .. }), "{observed:?}");
    }
}

fn all(snapshot: &Snapshot, now_s: u32) -> Vec<Connection> {
    let mut page = Vec::new();
    snapshot.connections().unwrap().page(Place(0), usize::MAX, now_s, &mut page);
    page.sort_unstable_by_key(|it| (it.zone, it.originator.port));
    page
}

fn written(snapshot: &Snapshot, moment: &Moment) -> Vec<u8> {
    let mut out = Vec::new();
    write_lines(&mut out, snapshot, moment).unwrap();
    out
}

fn restored(text: &[u8], snapshot: &Snapshot, moment: &Moment) -> Result<Restored, NotRestored> {
    let table = snapshot.connections().unwrap();
    restore_lines(&mut Cursor::new(text), (snapshot, table), moment)
}

#[test]
fn established_connections_go_on_with_their_ages_and_are_to_be_judged_again() {
    let before = snapshot(&["lan", "dmz"]);
    establish(&before, "lan", 0, Book::GroupIn, 100);
    establish(&before, "dmz", 1, Book::GroupOut, 130);
    // Half-open: it would be no connection yet.
    let syn = key(&before, "lan", 2, false);
    let table = before.connections().unwrap();
    table.insert(&syn, Shown::Tcp(Segment::Syn), Judgement::UNKNOWN, 140);
    let text = written(&before, &moment(1150, 150));
    assert_eq!(text.iter().filter(|byte| **byte == b'\n').count(), 3);
    let after = snapshot(&["lan", "dmz"]);
    let counts = restored(&text, &after, &moment(1160, 2)).unwrap();
    assert_eq!(counts, Restored { restored: 2, ..Restored::default() });
    let shown = all(&after, 2);
    let facts: Vec<_> = shown
        .iter()
        .map(|it| (it.zone.attachment, it.idle_s, it.status.state, it.judgement.domain.book()))
        .collect();
    let [lan, dmz] = ["lan", "dmz"].map(|name| after.port_named(name).unwrap().0);
    let (lan, dmz) = (
        (lan, 60, State::Established, Book::GroupIn),
        (dmz, 30, State::Established, Book::GroupOut),
    );
    assert_eq!(facts, [lan, dmz]);
    assert!(shown.iter().all(|it| it.judgement.generation == Generation(0)));
    // Both directions are of it.
    for (port, number) in [("lan", 0), ("dmz", 1)] {
        for answer in [false, true] {
            let key = key(&after, port, number, answer);
            assert!(after.connections().unwrap().find(&key, 2).is_some());
        }
    }
}

#[test]
fn a_connection_follows_the_name_of_its_port() {
    let before = snapshot(&["lan", "dmz", "old"]);
    establish(&before, "lan", 0, Book::GroupIn, 10);
    establish(&before, "dmz", 2, Book::GroupIn, 10);
    establish(&before, "old", 4, Book::GroupIn, 10);
    let text = written(&before, &moment(100, 10));
    for (ports, lan_at, expected) in [
        // As they were; exchanged; `old` removed and `dmz` renamed; a new one in between.
        (&["lan", "dmz", "old"][..], 0, (3, 0)),
        (&["dmz", "lan", "old"], 1, (3, 0)),
        (&["lan", "new"], 0, (1, 2)),
        (&["new", "lan", "dmz"], 1, (2, 1)),
    ] {
        let after = snapshot(ports);
        let counts = restored(&text, &after, &moment(101, 1)).unwrap();
        assert_eq!((counts.restored, counts.gone), expected, "{ports:?}");
        let of_lan: Vec<_> = all(&after, 1)
            .into_iter()
            .filter(|it| it.originator.port == 4000)
            .map(|it| it.zone.attachment)
            .collect();
        assert_eq!(of_lan, [lan_at], "{ports:?}");
    }
}

#[test]
fn nothing_is_kept_over_a_reboot_or_beyond_its_time_out() {
    let before = snapshot(&["lan"]);
    establish(&before, "lan", 0, Book::GroupIn, 10);
    let text = written(&before, &moment(100, 10));
    let after = snapshot(&["lan"]);
    let other = Moment { boot_id: "boot-2".into(), ..moment(101, 1) };
    assert!(matches!(restored(&text, &after, &other), Err(NotRestored::OtherBoot)));
    let late = restored(&text, &after, &moment(100 + 24 * 3600, 1)).unwrap();
    assert_eq!((late.restored, late.over), (0, 1));
    let future = restored(&text, &after, &moment(99, 1)).unwrap();
    assert_eq!((future.restored, future.bad), (0, 1));
    assert!(all(&after, 1).is_empty());
    for text in ["", "lockgate", "lockgate connections 2 boot-1\n", "\n", "x\u{0}\n"] {
        let refused = restored(text.as_bytes(), &after, &moment(101, 1));
        assert!(matches!(refused, Err(NotRestored::Unknown)), "{text:?}: {refused:?}");
    }
}

#[test]
fn what_no_connection_can_be_is_not_restored() {
    let good = "lan 0 in 6 10.0.0.1 4000 10.0.0.2 443 4 3 50";
    assert!(Line::parse(good).is_some());
    for (from, to) in [
        (" 4 3 50", " 1 0 50"),      // half-open
        (" 4 3 50", " 4 0 50"),      // established without an answer
        (" 4 3 50", " 4 1 50"),      // not assured
        (" 4 3 50", " 4 7 50"),      // established after a FIN
        (" 4 3 50", " 5 3 50"),      // closing without a FIN
        (" 4 3 50", " 6 7 50"),      // TIME_WAIT with one FIN
        (" 4 3 50", " 10 3 50"),     // a datagram's state
        (" 4 3 50", " 0 3 50"),      // no state
        (" 4 3 50", " 13 3 50"),     // no state
        (" 4 3 50", " 4 19 50"),     // flags that are none
        (" 4 3 50", " 4 3 050"),     // another text of the same number
        (" 4 3 50", " 4 3 +50"),     // likewise
        (" 4 3 50", " 4 3 -50"),     // no number
        (" 4 3 50", " 4 3"),         // too few words
        (" 4 3 50", " 4 3 50 7"),    // too many
        (" 4 3 50", "  4 3 50"),     // an empty word
        (" in ", " out of "),        // no side
        (" in ", " spd "),           // no side
        ("443", "65536"),            // no port
        ("10.0.0.2", "2001:db8::2"), // two families
        ("10.0.0.2", "10.0.0.256"),  // no address
        ("lan 0", "lan 16777216"),   // no virtual network
        (" 6 ", " 256 "),            // no protocol
        (" 6 ", " 1 "),              // ICMP without an echo
        (" 6 ", " 47 "),             // GRE with ports
    ] {
        let line = good.replacen(from, to, 1);
        assert_eq!(Line::parse(&line), None, "{line}");
    }
    for good in [
        "lan 0 out 17 2001:db8::1 53 2001:db8::2 53 10 3 1",
        "lan 0 in 1 10.0.0.1 77 10.0.0.2 77 11 3 1",
        "lan 0 in 58 2001:db8::1 0 2001:db8::2 0 11 3 1",
        "lan 0 in 47 10.0.0.1 0 10.0.0.2 0 12 3 1",
        "lan 0 in 6 10.0.0.1 4000 10.0.0.2 443 6 15 1",
        "lan 0 in 6 10.0.0.1 4000 10.0.0.2 443 7 3 1",
    ] {
        assert!(Line::parse(good).is_some(), "{good}");
    }
}

#[test]
fn a_file_of_others_or_that_others_may_read_is_refused_and_the_next_write_replaces_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(FILE);
    let (before, after) = (snapshot(&["lan"]), snapshot(&["lan"]));
    establish(&before, "lan", 0, Book::GroupIn, clock::now_s());
    let now = Moment::now().unwrap();
    let told = |kind: &str| {
        let events = Events::new();
        restore(directory.path(), &after, &events);
        let told: Vec<_> = events.subscribe().0.into_iter().map(|event| event.kind).collect();
        let expected: &[&str] = if kind.is_empty() { &[] } else { &[kind] };
        assert_eq!(told, expected);
    };
    told("");
    write(&path, &before, &now).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
    for mode in [0o640, 0o602, 0o610] {
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        told("connections_not_restored");
    }
    write(&path, &before, &now).unwrap();
    if rustix::process::geteuid().is_root() {
        chown(&path, Some(65534), None).unwrap();
        told("connections_not_restored");
        write(&path, &before, &now).unwrap();
    } else {
        eprintln!("SKIPPED: a file of another user: needs root");
    }
    let aside = directory.path().join("aside");
    std::fs::rename(&path, &aside).unwrap();
    symlink(&aside, &path).unwrap();
    told("connections_not_restored");
    assert!(all(&after, clock::now_s()).is_empty());
    // A link in the place of the new file is not followed.
    symlink(&aside, path.with_extension("new")).unwrap();
    write(&path, &before, &now).unwrap();
    told("connections_restored");
    assert_eq!(all(&after, clock::now_s()).len(), 1);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2);
}

#[test]
fn a_write_that_fails_is_an_event_and_the_next_one_replaces_what_is_there() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path().join("run");
    let (events, snapshot) = (Events::new(), Arc::new(snapshot(&["lan"])));
    establish(&snapshot, "lan", 0, Book::GroupIn, clock::now_s());
    let mut kept = KeptConnections::new(&run_dir);
    runtime.block_on(kept.keep(&snapshot, &events));
    assert_eq!(events.subscribe().0[0].kind, "connections_not_kept");
    std::fs::create_dir(&run_dir).unwrap();
    runtime.block_on(kept.keep(&snapshot, &events));
    runtime.block_on(kept.keep_if_due(&snapshot, &events));
    assert_eq!(std::fs::read_to_string(run_dir.join(FILE)).unwrap().lines().count(), 2);
    // No rule of now let them begin.
    let config = config::parse(
        "[node]\nname = \"a\"\n[port.lan]\nnetdev = \"e\"\nside = \"protected\"\n",
        "b",
    );
    let config = config.unwrap().validated;
    let keys = ReplayKeys::stand_ins(&config).unwrap();
    let without = control::compile(&config, keys, Generation(1)).unwrap();
    restore(&run_dir, &without, &events);
    assert!(!run_dir.join(FILE).exists());
}

/// A file of a few connections, with its moment.
fn file() -> (Vec<u8>, Moment) {
    let before = snapshot(&["lan", "dmz"]);
    for number in 0..4 {
        establish(&before, if number < 2 { "lan" } else { "dmz" }, number, Book::GroupIn, 50);
    }
    let moment = moment(1000, 60);
    (written(&before, &moment), moment)
}

/// Asserts that a restored connection is one that could have been written.
fn assert_sound(snapshot: &Snapshot, counts: Restored, now_s: u32) {
    let shown = all(snapshot, now_s);
    assert_eq!(shown.len() as u64, counts.restored);
    for it in shown {
        assert!(!it.status.is_half_open() && it.judgement.generation == Generation(0), "{it:?}");
        assert!(matches!(it.judgement.domain.book(), Book::GroupIn | Book::GroupOut), "{it:?}");
        assert!(usize::from(it.zone.attachment) < 2 && it.zone.vni == 0, "{it:?}");
        assert_eq!(it.originator.address.family, it.responder.address.family);
        assert_eq!(it.judgement.domain.family(), it.originator.address.family);
        let line = Line::of(&it, "lan", 7).expect("it is kept again").to_string();
        assert!(Line::parse(&line).is_some(), "{line}");
    }
}

proptest! {
    // `PROPTEST_CASES` asks for more.
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn hostile_bytes_never_panic_and_restore_only_what_can_be(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
        is_cut in any::<bool>(),
        tail in prop::collection::vec(any::<u8>(), 0..600),
        boot_s in prop_oneof![Just(1000u64), any::<u64>()],
    ) {
        let (mut text, at) = file();
        for (place, byte) in changes {
            let place = place.index(text.len());
            text[place] = byte;
        }
        if is_cut {
            text.truncate(cut.index(text.len()));
        }
        text.extend(tail);
        let after = snapshot(&["lan", "dmz"]);
        if let Ok(counts) = restored(&text, &after, &Moment { boot_s, ..at }) {
            assert_sound(&after, counts, 60);
        }
    }

    #[test]
    fn words_in_any_order_never_panic_and_restore_only_what_can_be(
        lines in prop::collection::vec(
            "(lan|dmz|x|host) (0|1|16777216) (in|out|both) (1|6|17|47|58|136|256) \
             (10\\.0\\.0\\.[1-3]|2001:db8::[1-3]|::) (0|77|443|65536) \
             (10\\.0\\.0\\.[1-3]|2001:db8::[1-3]|::ffff:1\\.2\\.3\\.4) (0|77|443) \
             ([0-9]|1[0-3]) ([0-9]|1[0-6]) (0|500|990|1000|1001|18446744073709551615)",
            0..40,
        ),
    ) {
        let text = format!("{MARK}boot-1\n{}\n", lines.join("\n"));
        let after = snapshot(&["lan", "dmz"]);
        let counts = restored(text.as_bytes(), &after, &moment(1000, 60)).unwrap();
        assert_sound(&after, counts, 60);
    }
}
