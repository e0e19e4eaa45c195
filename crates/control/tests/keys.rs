//! Key files: who may hold them, what may stand in them, and that nothing of them is ever shown.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use config::{
    ConfigErrors, KeyFileError, KeyLine, Loaded, PeerId, ReplayKeys, generate_pair, load,
    read_replay_keys, write_key_file, write_replay_keys,
};
use dataplane::{Generation, SetIndex};
use ipsec::{SaId, Suite};
use policy::Direction;
use proptest::prelude::*;
use tempfile::TempDir;

/// A directory of its own, gone with its owner.
struct Directory(TempDir);

impl Directory {
    fn new() -> Directory {
        Directory(tempfile::tempdir().expect("a directory"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn key_file(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.path(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    }

    /// Loads a gateway with these peers; peer NAME has the key file NAME.keys.
    fn load(&self, suite: Suite, peers: &[&str]) -> Result<Loaded, ConfigErrors> {
        let path = self.path("gateway.toml");
        fs::write(&path, configuration("192.0.2.1", "192.0.2.1", suite, peers)).unwrap();
        load(&path, None)
    }

    fn refused(&self, peers: &[&str]) -> String {
        match self.load(Suite::Aes128Gcm, peers) {
            Ok(_) => panic!("keys were taken"),
            Err(errors) => errors.to_string(),
        }
    }
}

fn configuration(own: &str, remote_like: &str, suite: Suite, peers: &[&str]) -> String {
    let mut text = format!(
        "[node]\nname = \"n\"\n[port.wan]\nnetdev = \"e\"\nside = \"unprotected\"\n\
         addresses = [\"{own}/24\"]\n"
    );
    let benchmark = match suite {
        Suite::Null => "benchmark = \"no-integrity\"\n",
        _ => "",
    };
    for (place, peer) in peers.iter().enumerate() {
        let remote =
            if own == remote_like { format!("192.0.2.{}", place + 2) } else { remote_like.into() };
        text.push_str(&format!(
            "[peer.{peer}]\nlocal = \"{own}\"\nremote = \"{remote}\"\nkeys = \"file:{peer}.keys\"\n\
             manual = \"laboratory\"\nsuite = \"{suite}\"\n{benchmark}\
             [[policy]]\nname = \"{peer}\"\npeer = \"{peer}\"\nlocal = [\"any\"]\n\
             remote = [\"any\"]\n"
        ));
    }
    text
}

const A: &str = "a1a2a3a4a5a6a7a8a9aaabacadaeafa0b1b2b3b4";
const B: &str = "c1c2c3c4c5c6c7c8c9cacbcccdcecfc0d1d2d3d4";

#[test]
fn a_good_key_file_becomes_security_associations() {
    let directory = Directory::new();
    let upper = B.to_uppercase();
    let text = format!("# laboratory\n\n  out 0x1001\t{A} # to them\r\nin 4294967295 {upper}\n");
    directory.key_file("p.keys", text);
    let loaded = directory.load(Suite::Aes128Gcm, &["p"]).unwrap_or_else(|e| panic!("{e}"));
    let lines = loaded.keys.of(PeerId(0));
    assert_eq!(lines.len(), 2);
    assert_eq!((lines[0].direction, lines[0].spi.value()), (Direction::Outbound, 0x1001));
    assert_eq!((lines[1].direction, lines[1].spi.value()), (Direction::Inbound, u32::MAX));
    let bytes: Vec<u8> =
        (0..20).map(|i| u8::from_str_radix(&B[2 * i..2 * i + 2], 16).unwrap()).collect();
    assert_eq!(lines[1].material.expose(), bytes);
    let (keys, _) = loaded.keys.for_replay(&loaded.validated, &[]).unwrap();
    let snapshot = control::compile(&loaded.validated, keys, Generation(1)).unwrap();
    assert_eq!(snapshot.outbound().count(), 1);
    assert_eq!(snapshot.inbound().count(), 1);
    assert_eq!(snapshot.inbound_sa(SaId(0)).window.size(), 1024);
    assert_eq!(snapshot.set(SetIndex(0)).outbound, [SaId(0)]);
    assert!(snapshot.inbound_by_spi(ipsec::Spi::new(u32::MAX).unwrap()).is_some());
}

#[test]
fn a_key_file_that_is_missing_is_named_where_the_configuration_names_it() {
    let directory = Directory::new();
    let text = directory.refused(&["p"]);
    assert!(text.contains("gateway.toml:10:8: error: key file "), "{text}");
    assert!(text.contains("p.keys: cannot be read: No such file or directory"), "{text}");
}

#[test]
fn a_key_file_must_be_regular_and_no_link() {
    let directory = Directory::new();
    directory.key_file("real", format!("in 0x1001 {A}\n"));
    symlink(directory.path("real"), directory.path("p.keys")).unwrap();
    assert!(directory.refused(&["p"]).contains("is a symbolic link"));
    fs::remove_file(directory.path("p.keys")).unwrap();
    fs::create_dir(directory.path("p.keys")).unwrap();
    assert!(directory.refused(&["p"]).contains("is not a regular file"));
    fs::remove_dir(directory.path("p.keys")).unwrap();
    let made = std::process::Command::new("mkfifo").arg(directory.path("p.keys")).status();
    assert!(made.expect("mkfifo").success());
    // Must not wait for a writer.
    assert!(directory.refused(&["p"]).contains("is not a regular file"));
}

#[test]
fn a_key_file_wider_than_0600_is_refused() {
    let directory = Directory::new();
    directory.key_file("p.keys", format!("in 0x1001 {A}\nout 0x1001 {B}\n"));
    let mode = |mode| {
        fs::set_permissions(directory.path("p.keys"), Permissions::from_mode(mode)).unwrap();
        directory.load(Suite::Aes128Gcm, &["p"]).map(|_| ()).map_err(|errors| errors.to_string())
    };
    for good in [0o600, 0o400] {
        assert_eq!(mode(good), Ok(()), "{good:o}");
    }
    for bad in [0o640, 0o604, 0o620, 0o602, 0o610, 0o700, 0o666, 0o4600] {
        let text = mode(bad).expect_err("refused");
        assert!(text.contains(&format!("has mode {bad:04o}, wider than 0600")), "{text}");
    }
}

#[test]
fn a_key_file_of_another_user_is_refused() {
    let directory = Directory::new();
    directory.key_file("p.keys", format!("in 0x1001 {A}\nout 0x1001 {B}\n"));
    if std::os::unix::fs::chown(directory.path("p.keys"), Some(12345), None).is_err() {
        eprintln!("SKIPPED: giving a file away needs root");
        return;
    }
    let text = directory.refused(&["p"]);
    assert!(text.contains("belongs to user 12345, who is neither root nor the user"), "{text}");
}

#[test]
fn a_keys_dir_that_others_may_write_to_is_refused() {
    let directory = Directory::new();
    directory.key_file("p.keys", format!("in 0x1001 {A}\nout 0x1001 {B}\n"));
    let set_mode =
        |mode| fs::set_permissions(directory.0.path(), Permissions::from_mode(mode)).unwrap();
    for mode in [0o720, 0o702, 0o777, 0o1777, 0o2775] {
        set_mode(mode);
        let text = directory.refused(&["p"]);
        assert!(text.contains("gateway.toml:10:8: error: `keys_dir` "), "{text}");
        let told = format!("has mode {mode:04o}: others may put files into it");
        assert!(text.contains(&told) && text.contains("chmod go-w"), "{text}");
    }
    for mode in [0o700, 0o755] {
        set_mode(mode);
        assert!(directory.load(Suite::Aes128Gcm, &["p"]).is_ok(), "{mode:o}");
    }
}

#[test]
fn a_keys_dir_of_another_user_is_refused() {
    let directory = Directory::new();
    directory.key_file("p.keys", format!("in 0x1001 {A}\nout 0x1001 {B}\n"));
    if std::os::unix::fs::chown(directory.0.path(), Some(12345), None).is_err() {
        eprintln!("SKIPPED: giving a directory away needs root");
        return;
    }
    let text = directory.refused(&["p"]);
    assert!(text.contains("belongs to user 12345, who is neither root nor the user"), "{text}");
}

#[test]
fn a_key_file_that_is_too_large_or_empty_is_refused() {
    let directory = Directory::new();
    directory.key_file("p.keys", "#".repeat(64 * 1024 + 1));
    assert!(directory.refused(&["p"]).contains("is larger than 65536 bytes"));
    directory.key_file("p.keys", "# nothing\n");
    assert!(directory.refused(&["p"]).contains("no key in key file"));
}

#[test]
fn every_mistake_in_a_key_file_is_named_by_line_and_column_and_never_shown() {
    let directory = Directory::new();
    let rows: &[(String, &str, &str)] = &[
        (format!("inn 0x1001 {A}"), "2:1", "begin with `in` or `out`"),
        (format!("  {A}"), "2:3", "1 words instead of 3"),
        (format!("in 0x1001 {A} {B}"), "2:1", "4 words instead of 3"),
        ("in 0x1001 # deadbeef".into(), "2:1", "2 words instead of 3"),
        (format!("in 0 {A}"), "2:4", "SPIs 0 to 255 are reserved"),
        (format!("in 0xff {A}"), "2:4", "SPIs 0 to 255 are reserved"),
        (format!("in 0x100000000 {A}"), "2:4", "this is not an SPI"),
        (format!("in +4097 {A}"), "2:4", "this is not an SPI"),
        (format!("in 0x {A}"), "2:4", "this is not an SPI"),
        (format!("in spi {A}"), "2:4", "this is not an SPI"),
        (
            format!("in 0x1001 {}", &A[1..]),
            "2:11",
            "aes-128-gcm takes 40 hexadecimal digits (key, then salt), not 39",
        ),
        (format!("in 0x1001 {A}00"), "2:11", "not 42"),
        (format!("in 0x1001 {}x{}", &A[..9], &A[10..]), "2:20", "this is not a hexadecimal digit"),
        (format!("in 0x1001 0x{A}"), "2:12", "this is not a hexadecimal digit"),
        (format!("in 0x1001 {}é", &A[2..]), "2:49", "this is not a hexadecimal digit"),
        (format!("in 0x1001 {A}\nin 0x1001 {B}"), "3:1", "another inbound SA has this SPI"),
        (
            format!("out 0x1001 {A}\nout 0x1001 {B}"),
            "3:1",
            "another outbound SA to the same address has this SPI",
        ),
        (format!("in 0x1001 {A}\nout 0x2002 {A}"), "3:1", "another SA has this key material"),
    ];
    for (line, place, message) in rows {
        directory.key_file("p.keys", format!("# keys\n{line}\n"));
        let text = directory.refused(&["p"]);
        assert!(text.contains(&format!("p.keys:{place}: ")), "{line}:\n{text}");
        assert!(text.contains(message), "{line}:\n{text}");
        assert_nothing_shown(line.as_bytes(), &text);
    }
}

/// Asserts that no run of four hexadecimal digits of the file stands in the text.
fn assert_nothing_shown(content: &[u8], text: &str) {
    // Our own words hold digits too: the middle of "hexadecimal" is four of them.
    let text = text.replace(env!("CARGO_TARGET_TMPDIR"), "").replace("hexadecimal", "");
    let text = text.to_lowercase();
    for run in content.windows(4).filter(|run| run.iter().all(u8::is_ascii_hexdigit)) {
        let run = String::from_utf8_lossy(run).to_lowercase();
        assert!(!text.contains(&run), "{run} of the key file stands in\n{text}");
    }
}

#[test]
fn the_same_key_or_inbound_spi_with_two_peers_is_refused_with_both_places() {
    let directory = Directory::new();
    directory.key_file("p.keys", format!("in 0x1001 {A}\nout 0x1001 {B}\n"));
    directory.key_file("q.keys", format!("\nin 0x1001 {}\nout 0x1001 {A}\n", A.replace('a', "b")));
    let text = directory.refused(&["p", "q"]);
    assert!(text.contains("q.keys:2:1: error: another inbound SA has this SPI"), "{text}");
    assert!(text.contains("q.keys:3:1: error: another SA has this key material"), "{text}");
    let earlier = text.matches("p.keys:1:1)").count();
    assert_eq!(earlier, 2, "both are told where the first stands:\n{text}");
}

/// Outbound SPIs are the receivers' numbers: two receivers may choose the same.
#[test]
fn two_peers_may_have_the_same_outbound_spi() {
    let directory = Directory::new();
    directory.key_file("p.keys", format!("in 0x1001 {A}\nout 0x1001 {B}\n"));
    let (c, d) = (A.replace('a', "e"), B.replace('c', "e"));
    directory.key_file("q.keys", format!("in 0x1002 {c}\nout 0x1001 {d}\n"));
    let loaded = directory.load(Suite::Aes128Gcm, &["p", "q"]).unwrap_or_else(|e| panic!("{e}"));
    let (keys, _) = loaded.keys.for_replay(&loaded.validated, &[]).unwrap();
    assert!(control::compile(&loaded.validated, keys, Generation(1)).is_ok());
}

#[test]
fn a_file_without_a_direction_is_warned_of() {
    let directory = Directory::new();
    directory.key_file("p.keys", format!("in 0x1001 {A}\n"));
    let loaded = directory.load(Suite::Aes128Gcm, &["p"]).unwrap_or_else(|e| panic!("{e}"));
    let text = config::render(&loaded.warnings);
    assert!(text.contains("has no `out` line: nothing can be sent"), "{text}");
}

#[test]
fn what_a_file_lacks_is_not_judged_while_a_line_of_it_is_wrong() {
    let directory = Directory::new();
    directory.key_file("p.keys", format!("in 0x1001 {A}0\noutt 0x1002 {B}\n"));
    let Err(errors) = directory.load(Suite::Aes128Gcm, &["p"]) else { panic!("taken") };
    assert_eq!(errors.errors(), 2, "{errors}");
    let told = errors.to_string();
    assert!(!told.contains("no key in") && !told.contains("line: nothing can be"), "{told}");
}

/// RFC 9611: a set of SAs, which workers share out.
#[test]
fn every_outbound_line_is_an_sa_of_the_peers_set() {
    let directory = Directory::new();
    let c = B.replace('c', "e");
    directory.key_file("p.keys", format!("out 0x1001 {A}\nin 0x1001 {B}\nout 0x1002 {c}\n"));
    let loaded = directory.load(Suite::Aes128Gcm, &["p"]).unwrap_or_else(|e| panic!("{e}"));
    let text = config::render(&loaded.warnings);
    assert!(!text.contains("p.keys"), "{text}");
    let spis: Vec<_> = loaded.keys.of(PeerId(0)).iter().map(|line| line.spi).collect();
    let (keys, _) = loaded.keys.for_replay(&loaded.validated, &[]).unwrap();
    let snapshot = control::compile(&loaded.validated, keys, Generation(1)).unwrap();
    let sealing = snapshot.set(SetIndex(0)).outbound.iter();
    let sealing: Vec<_> = sealing.map(|sa| snapshot.outbound_sa(*sa).spi).collect();
    assert_eq!(sealing, [spis[0], spis[2]]);
}

#[test]
fn a_length_is_told_in_the_parts_that_the_suite_takes() {
    for (suite, digits, parts) in [
        (Suite::Aes192Gcm, 56, "key, then salt"),
        (Suite::ChaCha20Poly1305, 72, "key, then salt"),
        (Suite::Aes128CbcSha256, 96, "encryption key, then HMAC key"),
        (Suite::Aes256CbcSha512, 192, "encryption key, then HMAC key"),
        (Suite::NullSha384, 96, "HMAC key"),
    ] {
        let directory = Directory::new();
        directory.key_file("p.keys", format!("in 0x1001 {A}\n"));
        let Err(errors) = directory.load(suite, &["p"]) else { panic!("{suite} takes 40 digits") };
        let expected = format!("{suite} takes {digits} hexadecimal digits ({parts}), not 40");
        assert!(errors.to_string().contains(&expected), "{errors}");
    }
}

#[test]
fn problems_of_all_files_are_told_in_the_order_of_their_places() {
    let directory = Directory::new();
    directory.key_file("q.keys", format!("in 0x1001 {A}0\n"));
    directory.key_file("p.keys", format!("in 0x1001 {A}0\nin 0x1001 {A}\nin 0x1001 {A}\n"));
    let Err(errors) = directory.load(Suite::Aes128Gcm, &["q", "p"]) else { panic!("taken") };
    let places: Vec<_> = errors.problems.iter().map(|problem| problem.place.clone()).collect();
    assert!(places.len() > 3 && places.is_sorted(), "{errors}");
}

#[test]
fn stand_ins_seal_for_every_peer_under_other_keys_each_time() {
    let directory = Directory::new();
    let path = directory.path("gateway.toml");
    let text = configuration("192.0.2.1", "192.0.2.1", Suite::Aes256Gcm, &["p", "q"]);
    fs::write(&path, text).unwrap();
    let config = config::read(&path).unwrap_or_else(|errors| panic!("{errors}")).validated;
    let keys = || ReplayKeys::stand_ins(&config).unwrap();
    let print = |keys: &ReplayKeys| keys.of(PeerId(1))[0].material.fingerprint();
    assert_ne!(print(&keys()), print(&keys()));
    let snapshot = control::compile(&config, keys(), Generation(1)).unwrap();
    assert!(snapshot.sets().all(|(_, set)| set.outbound.len() == 1));
    assert_eq!(snapshot.inbound().count(), 0);
}

#[test]
fn a_generated_pair_is_crosswise_and_never_the_same_twice() {
    for &suite in Suite::ALL {
        let directory = Directory::new();
        let ([a, b], [c, _]) = (generate_pair(suite).unwrap(), generate_pair(suite).unwrap());
        assert_ne!(*a, *c);
        write_key_file(&directory.path("a.keys"), &a).unwrap();
        write_key_file(&directory.path("b.keys"), &b).unwrap();
        let mode = fs::metadata(directory.path("a.keys")).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
        let again = write_key_file(&directory.path("a.keys"), &c);
        assert!(matches!(again, Err(KeyFileError::Exists { .. })));
        let load = |peer| directory.load(suite, &[peer]).unwrap_or_else(|e| panic!("{e}")).keys;
        let (a, b) = (load("a"), load("b"));
        let of = |keys: &config::Keys, direction| {
            let line = keys.of(PeerId(0)).iter().find(|line| line.direction == direction).unwrap();
            (line.spi, line.material.fingerprint())
        };
        assert_eq!(of(&a, Direction::Outbound), of(&b, Direction::Inbound));
        assert_eq!(of(&b, Direction::Outbound), of(&a, Direction::Inbound));
        assert_ne!(of(&a, Direction::Outbound), of(&a, Direction::Inbound));
    }
}

/// DESIGN I9: what a replay seals with is never configured; the other gateway's replay opens it.
#[test]
fn replay_seals_with_fresh_keys_that_the_other_gateways_replay_opens() {
    let suite = Suite::Aes256Gcm;
    let directory = Directory::new();
    let [a, b] = generate_pair(suite).unwrap();
    write_key_file(&directory.path("b.keys"), &a).unwrap(); // gateway A's keys for peer b
    write_key_file(&directory.path("a.keys"), &b).unwrap();
    let gateway = |name: &str, own, remote, peer| {
        let path = directory.path(name);
        fs::write(&path, configuration(own, remote, suite, &[peer])).unwrap();
        load(&path, None).unwrap_or_else(|errors| panic!("{errors}"))
    };
    let first = gateway("a.toml", "192.0.2.1", "192.0.2.2", "b");
    let second = gateway("b.toml", "192.0.2.2", "192.0.2.1", "a");
    let of = |keys: &[KeyLine], direction| {
        let line = keys.iter().find(|line| line.direction == direction).unwrap();
        (line.spi, line.material.fingerprint())
    };
    let (configured_out, configured_in) = (
        of(first.keys.of(PeerId(0)), Direction::Outbound),
        of(first.keys.of(PeerId(0)), Direction::Inbound),
    );

    let (first_keys, sealed) = first.keys.for_replay(&first.validated, &[]).unwrap();
    let fresh = of(first_keys.of(PeerId(0)), Direction::Outbound);
    assert_eq!(fresh.0, configured_out.0, "the SPI stays");
    assert_ne!(fresh.1, configured_out.1, "the key does not");
    assert_eq!(of(first_keys.of(PeerId(0)), Direction::Inbound), configured_in);

    let path = directory.path("out.keys");
    write_replay_keys(&path, &sealed).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
    let opened = read_replay_keys(&path).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!((opened[0].peer.as_str(), opened.len()), ("b", 1));
    let (second_keys, _) = second.keys.for_replay(&second.validated, &opened).unwrap();
    assert_eq!(of(second_keys.of(PeerId(0)), Direction::Inbound), fresh);
    assert!(control::compile(&second.validated, second_keys, Generation(1)).is_ok());

    // Keys of another tunnel with the same SPI are not meant.
    let stranger = gateway("c.toml", "192.0.2.3", "192.0.2.1", "a");
    let configured = of(stranger.keys.of(PeerId(0)), Direction::Inbound);
    let (stranger_keys, _) = stranger.keys.for_replay(&stranger.validated, &opened).unwrap();
    assert_eq!(of(stranger_keys.of(PeerId(0)), Direction::Inbound), configured);
}

#[test]
fn a_replay_key_file_overwrites_its_own_kind_and_nothing_else() {
    let directory = Directory::new();
    let path = directory.path("out.keys");
    write_replay_keys(&path, &[]).unwrap();
    write_replay_keys(&path, &[]).unwrap();
    let refused =
        |path: &Path| matches!(write_replay_keys(path, &[]), Err(KeyFileError::Exists { .. }));
    fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    assert!(refused(&path), "others may hold it open");
    let key_file = directory.path("p.keys");
    directory.key_file("p.keys", format!("in 0x1001 {A}\n"));
    assert!(refused(&key_file));
    assert!(fs::read_to_string(&key_file).unwrap().contains(A));
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    symlink(&path, directory.path("link")).unwrap();
    assert!(refused(&directory.path("link")));
}

#[test]
fn mistakes_in_a_replay_key_file_are_named_and_never_shown() {
    let directory = Directory::new();
    for (line, place, message) in [
        (format!("in 0x1001 aes-128-gcm {A} 192.0.2.1 192.0.2.2 b"), "1:1", "`out`"),
        (
            format!("out 0x1001 aes-129-gcm {A} 192.0.2.1 192.0.2.2 b"),
            "1:12",
            "the name of a suite",
        ),
        (format!("out 0x1001 aes-256-gcm {A} 192.0.2.1 192.0.2.2 b"), "1:24", "not 40"),
        (format!("out 0x1001 aes-128-gcm {A} 192.0.2 192.0.2.2 b"), "1:65", "not an address"),
        (format!("out 0x1001 {A}"), "1:1", "3 words instead of 7"),
    ] {
        directory.key_file("r.keys", format!("{line}\n"));
        let errors = read_replay_keys(&directory.path("r.keys")).err().expect("refused");
        let text = errors.to_string();
        assert!(text.contains(&format!("r.keys:{place}: ")), "{line}:\n{text}");
        assert!(text.contains(message), "{line}:\n{text}");
        assert_nothing_shown(line.as_bytes(), &text);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Arbitrary key files cause no panic, and messages show nothing of them.
    #[test]
    fn hostile_key_files_never_panic_and_are_never_shown(
        lines in prop::collection::vec(
            prop_oneof![
                Just(format!("in 0xabcd1234 {A}").into_bytes()),
                Just(format!("out 2882343476 {B}").into_bytes()),
                "(in|out|inout|#) +(0x)?[0-9a-f]{5,9} +[0-9a-fx]{30,50}"
                    .prop_map(String::into_bytes),
                prop::collection::vec(any::<u8>(), 0..60),
            ],
            1..6,
        ),
    ) {
        let directory = Directory::new();
        let content = lines.join(&b'\n');
        directory.key_file("p.keys", &content);
        if let Err(errors) = directory.load(Suite::Aes128Gcm, &["p"]) {
            // File names and places hold digits too: only the messages are judged.
            let told: String = errors
                .problems
                .iter()
                .filter(|problem| problem.place.file.ends_with("p.keys"))
                .map(|problem| format!("{}\n{:?}\n", problem.mistake, problem.mistake.help()))
                .collect();
            assert_nothing_shown(&content, &told);
        }
    }
}
