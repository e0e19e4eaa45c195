//! Revisions: what runs already is unchanged, rollback goes step by step, and a change that nobody
//! confirms undoes itself, with the SAs that ran before and the numbers that they had reached.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use net::{Random, lab, running};
use netlab::Gateways;
use netlab::capture::{Scope, esp_frames_to};
use netlab::configuration::make_keys;
use netlab::inject::inject;
use netlab::process::Finished;
use netlab::sites::Plan;
use serde_json::Value;

/// Time for what the daemon does by itself.
const BY_ITSELF: Duration = Duration::from_secs(60);

fn run(gateways: &Gateways, words: &[&str]) -> Finished {
    gateways.daemon(1).unwrap().run(words).unwrap()
}

fn succeed(gateways: &Gateways, words: &[&str]) -> String {
    let finished = run(gateways, words);
    assert!(finished.status.success(), "{words:?}: {}\n{}", finished.stdout, finished.stderr);
    finished.stdout
}

/// Runs a command that must end with 1, and returns what it says.
fn refused(gateways: &Gateways, words: &[&str]) -> String {
    let finished = run(gateways, words);
    assert_eq!(finished.status.code(), Some(1), "{words:?}: {}", finished.stdout);
    finished.stderr
}

fn ask(gateways: &Gateways, words: &[&str]) -> Value {
    gateways.daemon(1).unwrap().ask(words).unwrap()
}

fn revision(gateways: &Gateways) -> u64 {
    ask(gateways, &["show", "status"])["revision"].as_u64().unwrap()
}

/// The names of the policies of gateway 1, sorted.
fn policies(gateways: &Gateways) -> Vec<String> {
    let shown = ask(gateways, &["show", "policy"]);
    let all = shown["policies"].as_array().unwrap().iter();
    let mut names: Vec<String> =
        all.map(|policy| policy["name"].as_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

/// The outbound SA of gateway 1: fingerprint and last number.
fn outbound(gateways: &Gateways) -> (String, u64) {
    let shown = ask(gateways, &["show", "sa"]);
    let sas = shown["sas"].as_array().unwrap();
    let sa = sas.iter().find(|sa| sa["direction"] == "outbound").unwrap();
    (sa["fingerprint"].as_str().unwrap().to_owned(), sa["sequence"].as_u64().unwrap())
}

/// A policy that concerns no stream.
fn policy(name: &str, third: u8) -> String {
    format!(
        "\n[[policy]]\nname = \"{name}\"\naction = \"discard\"\nlocal = [\"10.1.0.0/16\"]\n\
         remote = [\"10.{third}.0.0/16\"]\npriority = 50\n"
    )
}

fn keys_dir(gateways: &Gateways) -> PathBuf {
    gateways.directory().join("keys")
}

/// Writes gateway 1's file with these policies more, beside the one in use.
fn file_with(gateways: &mut Gateways, name: &str, extra: &str) -> String {
    let mut file = gateways.file(1).clone();
    file.extra = extra.to_owned();
    let path = file.write_as(&file.beside(name)).unwrap();
    path.display().to_string()
}

/// The overview on one line: it breaks long sentences.
fn overview(gateways: &Gateways) -> String {
    let text = succeed(gateways, &["show", "status"]);
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Writes gateway 1's file, the one that it starts with, with a policy more and keys of another
/// file that the peer does not have.
fn change_start_file(gateways: &mut Gateways) -> String {
    make_keys(&gateways.programs, &keys_dir(gateways), "gw-a", "other").unwrap();
    let mut file = gateways.file(1).clone();
    file.peers[0].keys = "gw-a-other.keys".into();
    file.extra = policy("new", 77);
    file.write().unwrap().display().to_string()
}

/// Starts gateway 1 with its file as it is.
fn start_as_it_is(gateways: &mut Gateways) {
    gateways.start_as_it_is(1).unwrap();
}

fn log(gateways: &Gateways) -> String {
    gateways.daemon(1).unwrap().log()
}

#[test]
fn what_runs_already_is_unchanged_and_other_keys_are_named() {
    let Some(mut lab) = running("unchanged", Plan::default()) else { return };
    let gateways = &mut lab.gateways;
    let file = gateways.file(1).path().display().to_string();
    let first = revision(gateways);
    for _ in 0..2 {
        let said = succeed(gateways, &["apply", "-f", &file]);
        assert_eq!(said, format!("unchanged: revision {first} runs on\n"));
    }
    assert_eq!(succeed(gateways, &["diff", "-f", &file]), "");
    assert_eq!(revision(gateways), first);
    let before = outbound(gateways).0;
    make_keys(&gateways.programs, &keys_dir(gateways), "gw-a", "gw-b").unwrap();
    let dry = succeed(gateways, &["apply", "-f", &file, "--dry-run"]);
    assert!(dry.contains("~ keys of peer gw-b\n"), "{dry}");
    assert!(dry.contains(&format!("fingerprint {before}…")), "{dry}");
    assert!(dry.contains(&format!("OK: 1 change against running revision {first}")), "{dry}");
    let difference = run(gateways, &["diff", "-f", &file]);
    assert_eq!(difference.status.code(), Some(1));
    assert!(difference.stdout.starts_with("~ keys of peer gw-b\n"), "{}", difference.stdout);
    let text = std::fs::read_to_string(keys_dir(gateways).join("gw-a-gw-b.keys")).unwrap();
    for material in text.split_whitespace().filter(|word| word.len() == 40) {
        assert!(!dry.contains(&material[..16]), "key material: {dry}");
    }
    assert_eq!((outbound(gateways).0, revision(gateways)), (before.clone(), first));
    let applied = ask(gateways, &["apply", "-f", &file]);
    assert_eq!(applied["key_changes"][0]["peer"], "gw-b");
    assert_eq!((applied["unchanged"] == false, revision(gateways)), (true, first + 1));
    assert_ne!(outbound(gateways).0, before);
    assert_eq!(ask(gateways, &["apply", "-f", &file])["unchanged"], true);
    assert_eq!(revision(gateways), first + 1);
    gateways.daemon(2).unwrap().apply(&gateways.file(2).path()).unwrap();
    lab.flows_again();
    lab.balances();
}

#[test]
fn rollback_goes_back_step_by_step_and_says_what_it_cannot_bring_back() {
    let Some(mut lab) = running("steps", Plan::default()) else { return };
    let gateways = &mut lab.gateways;
    let first = revision(gateways);
    let one = file_with(gateways, "one.toml", &policy("a", 71));
    let two = file_with(gateways, "two.toml", &(policy("a", 71) + &policy("b", 72)));
    succeed(gateways, &["apply", "-f", &one]);
    succeed(gateways, &["apply", "-f", &two]);
    make_keys(&gateways.programs, &keys_dir(gateways), "gw-a", "gw-b").unwrap();
    succeed(gateways, &["apply", "-f", &two]);
    assert_eq!((revision(gateways), policies(gateways).len()), (first + 3, 3));
    // The revision before has the same text: only its keys were others, and they do not come back.
    let back = ask(gateways, &["rollback"]);
    assert_eq!(
        (back["revision"].as_u64(), policies(gateways)),
        (Some(first + 4), vec!["a".to_owned(), "to-gw-b".to_owned()])
    );
    let notes = back["notes"].to_string();
    assert!(notes.contains("the keys of peer gw-b changed since and are not brought"), "{notes}");
    succeed(gateways, &["rollback"]);
    assert_eq!(policies(gateways), ["to-gw-b"]);
    let end = refused(gateways, &["rollback"]);
    assert!(end.contains("no earlier revision differs from what runs"), "{end}");
    // From a revision that was named, the steps go on.
    succeed(gateways, &["rollback", &(first + 2).to_string()]);
    assert_eq!(policies(gateways), ["a", "b", "to-gw-b"]);
    succeed(gateways, &["rollback"]);
    assert_eq!(policies(gateways), ["a", "to-gw-b"]);
    let newest = revision(gateways);
    assert_eq!(newest, first + 7);
    let same = succeed(gateways, &["rollback", &(first + 1).to_string()]);
    assert_eq!(same, format!("unchanged: revision {newest} runs on\n"));
    let no_such = refused(gateways, &["rollback", "99"]);
    assert!(no_such.contains(&format!("no revision 99; the newest is {newest}")), "{no_such}");
    let listed = ask(gateways, &["rollback", "--list"]);
    let restored: Vec<Option<u64>> = listed["revisions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|revision| revision["restored"].as_u64())
        .collect();
    let expected = [Some(1), Some(2), Some(0), Some(1)].map(|more| more.map(|n: u64| first + n));
    assert_eq!(restored[..4], expected);
    assert!(succeed(gateways, &["rollback", "--list"]).contains("rollback to"));
    lab.balances();
}

#[test]
fn a_change_that_nobody_confirms_undoes_itself_with_the_numbers_that_were_reached() {
    let Some(mut lab) = running("unconfirmed", Plan::default()) else { return };
    let first = revision(&lab.gateways);
    lab.flows_again();
    let old_frames = frames_to_first(&mut lab.gateways);
    let before = outbound(&lab.gateways);
    let quarry = lab.hunt(|gateways| {
        let file = change_start_file(gateways);
        let said = succeed(gateways, &["apply", "-f", &file, "--confirm", "8s"]);
        let waits = format!("revision {} waits for `lockgate confirm`: in 8 s", first + 1);
        assert!(said.contains(&waits), "{said}");
        assert_ne!(outbound(gateways).0, before.0);
        while_it_waits(gateways, &file, first);
        gateways.daemon_mut(1).unwrap().wait_for("confirm_expired", BY_ITSELF).unwrap();
    });
    let gateways = &mut lab.gateways;
    assert_eq!((revision(gateways), policies(gateways)), (first + 2, vec!["to-gw-b".to_owned()]));
    let after = outbound(gateways);
    assert_eq!(after.0, before.0, "the SA that ran before");
    assert!(after.1 > before.1, "{before:?} {after:?}");
    assert!(quarry.streams[0].arrived.len() > 100, "{}", quarry.streams[0].arrived.len());
    // Its window, too, is the one that it had: what was received before is received no more.
    let refused_again = |gateways: &Gateways| {
        let counters = gateways.daemon(1).unwrap().counters().unwrap();
        counters.dropped("replayed") + counters.dropped("replay_too_old")
    };
    let known = refused_again(gateways);
    let port = gateways.site(1).wire_port();
    let sent = inject(&gateways.sites.wire, &port, &old_frames).unwrap();
    assert_eq!(refused_again(gateways) - known, sent as u64);
    let status = ask(gateways, &["show", "status"]);
    assert_eq!(status["waiting"], Value::Null, "{status}");
    let late = refused(gateways, &["confirm"]);
    let said = format!("revision {} was not confirmed in time", first + 1);
    assert!(late.contains(&said), "{late}");
    let listed = ask(gateways, &["rollback", "--list"]);
    assert_eq!(
        (&listed["revisions"][0]["cause"], listed["revisions"][0]["restored"].as_u64()),
        (&Value::from("timeout"), Some(first))
    );
    lab.flows_again();
    // The file still holds what nobody confirmed: it does not start, however often.
    for _ in 0..2 {
        lab.gateways.kill(1);
        start_as_it_is(&mut lab.gateways);
        assert!(log(&lab.gateways).contains("unconfirmed_not_started"), "{}", log(&lab.gateways));
        assert_eq!(policies(&lab.gateways), ["to-gw-b"]);
        lab.flows_again();
    }
    lab.balances();
}

/// ESP frames that gateway 1 has received.
fn frames_to_first(gateways: &mut Gateways) -> Vec<Vec<u8>> {
    const FRAMES: usize = 100;
    let capture = gateways.capture(Scope::Whole).unwrap();
    let stream = gateways.stream(2, 1, Duration::from_millis(1)).unwrap();
    assert!(stream.wait_for_arrivals(2 * FRAMES, net::AGAIN).unwrap());
    let file = capture.stop().unwrap();
    assert_eq!(stream.finish().repeated(), 0);
    let frames = esp_frames_to(&file, Ipv4Addr::new(192, 0, 2, 1)).unwrap();
    assert!(frames.len() >= FRAMES, "{} frames", frames.len());
    frames[..FRAMES].to_vec()
}

/// Everything that would change something is refused by name; what only looks is not.
fn while_it_waits(gateways: &Gateways, file: &str, first: u64) {
    let waiting = ask(gateways, &["show", "status"])["waiting"].clone();
    assert_eq!(waiting["revision"].as_u64(), Some(first + 1), "{waiting}");
    assert_eq!(waiting["previous"].as_u64(), Some(first), "{waiting}");
    assert!(waiting["left_ms"].as_u64().is_some_and(|left| left <= 8000), "{waiting}");
    assert!(overview(gateways).contains("waits for `lockgate confirm`"));
    let end = ["policy", "add", "--name", "x", "--action", "discard", "--local", "10.1.0.0/16"];
    let add = [&end[..], &["--remote", "10.9.0.0/16"]].concat();
    let changes: [&[&str]; 4] =
        [&["apply", "-f", file], &["apply", "-f", file, "--confirm", "9"], &["rollback"], &add];
    for words in changes {
        let said = refused(gateways, words);
        let expected = format!("revision {} waits for `lockgate confirm`, ", first + 1);
        assert!(said.contains(&expected), "{words:?}: {said}");
    }
    let other = refused(gateways, &["confirm", &first.to_string()]);
    assert!(other.contains("does not wait to be confirmed"), "{other}");
    succeed(gateways, &["apply", "-f", file, "--dry-run"]);
}

/// Applies over one connection, and tries to confirm over the same. Returns what it was told.
fn confirm_over_the_same_connection(socket: &Path, text: String, file: &str) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut client = api::connect(socket).await.unwrap();
        let request = api::v1::ApplyRequest {
            text,
            file: file.to_owned(),
            base_directory: "/".into(),
            confirm_within_s: 600,
            ..Default::default()
        };
        let applied = client.apply(request).await.unwrap().into_inner();
        assert!(applied.ok && applied.waiting.is_some(), "{applied:?}");
        let refused = client.confirm(api::v1::ConfirmRequest { revision: None }).await;
        refused.unwrap_err().message().to_owned()
    })
}

#[test]
fn a_change_is_confirmed_over_a_new_connection_and_starts_from_then_on() {
    let Some(mut lab) = running("confirmed", Plan::default()) else { return };
    let gateways = &mut lab.gateways;
    let nothing = refused(gateways, &["confirm"]);
    assert!(nothing.contains("nothing waits to be confirmed: revision 1 runs"), "{nothing}");
    let file = change_start_file(gateways);
    let text = std::fs::read_to_string(&file).unwrap();
    let socket = gateways.daemon(1).unwrap().socket().to_owned();
    let same = confirm_over_the_same_connection(&socket, text, &file);
    assert!(same.contains("confirm revision 2 over a new connection"), "{same}");
    assert_eq!(succeed(gateways, &["confirm"]), "revision 2 is confirmed and stays\n");
    let twice = refused(gateways, &["confirm"]);
    assert!(twice.contains("revision 2 is confirmed already"), "{twice}");
    assert_eq!(ask(gateways, &["show", "status"])["waiting"], Value::Null);
    assert!(log(gateways).contains(" confirmed"), "{}", log(gateways));
    gateways.kill(1);
    start_as_it_is(gateways);
    assert_eq!(policies(gateways), ["new", "to-gw-b"]);
    assert!(!log(gateways).contains("unconfirmed_not_started"), "{}", log(gateways));
    lab.balances();
}

#[test]
fn killed_while_a_change_waits_a_gateway_starts_with_the_revision_before() {
    let Some(mut lab) = running("killed_waiting", Plan::default()) else { return };
    let before = outbound(&lab.gateways).0;
    let mut file = String::new();
    lab.hunt(|gateways| {
        file = change_start_file(gateways);
        succeed(gateways, &["apply", "-f", &file, "--confirm", "600"]);
        std::thread::sleep(Duration::from_millis(200));
        gateways.kill(1);
        start_as_it_is(gateways);
        std::thread::sleep(Duration::from_millis(500));
    });
    assert_eq!(outbound(&lab.gateways).0, before);
    assert_eq!(policies(&lab.gateways), ["to-gw-b"]);
    lab.flows_again();
    let gateways = &mut lab.gateways;
    let said = log(gateways);
    let expected = "holds revision 2, which was never confirmed: revision 1 starts instead";
    assert!(said.contains(expected), "{said}");
    // Applied for good, it starts.
    succeed(gateways, &["apply", "-f", &file]);
    gateways.kill(1);
    start_as_it_is(gateways);
    assert_eq!(policies(gateways), ["new", "to-gw-b"]);
    lab.balances();
}

#[test]
fn with_a_damaged_record_a_gateway_still_starts_with_the_revision_before() {
    let Some(mut lab) = running("damaged_record", Plan::default()) else { return };
    let gateways = &mut lab.gateways;
    let file = change_start_file(gateways);
    succeed(gateways, &["apply", "-f", &file, "--confirm", "600"]);
    gateways.kill(1);
    let record = gateways.file(1).state_dir().join("unconfirmed");
    let whole = std::fs::read(&record).unwrap();
    std::fs::write(&record, &whole[..40]).unwrap();
    start_as_it_is(gateways);
    assert_eq!(policies(gateways), ["to-gw-b"]);
    let said = log(gateways);
    for part in ["unconfirmed_record_damaged", "written anew", "revision 1 starts instead"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    // It is whole again, and refuses the file without a word of damage.
    gateways.kill(1);
    start_as_it_is(gateways);
    assert_eq!(policies(gateways), ["to-gw-b"]);
    let said = log(gateways);
    assert!(said.contains("unconfirmed_not_started"), "{said}");
    assert!(!said.contains("unconfirmed_record_damaged"), "{said}");
    lab.flows_again();
    lab.balances();
}

/// Writes what is no database over the one of gateway 1's revisions, which must not run.
fn damage_revisions(gateways: &Gateways) {
    let database = gateways.file(1).state_dir().join("revisions.sqlite");
    assert!(database.exists());
    std::fs::write(&database, "no database at all\n".repeat(1000)).unwrap();
    // Its write-ahead file says nothing without it.
    let _ = std::fs::remove_file(database.with_extension("sqlite-wal"));
}

#[test]
fn with_a_damaged_database_a_gateway_still_starts_with_the_revision_before() {
    let Some(mut lab) = running("damaged_database", Plan::default()) else { return };
    let gateways = &mut lab.gateways;
    let file = change_start_file(gateways);
    succeed(gateways, &["apply", "-f", &file, "--confirm", "600"]);
    gateways.kill(1);
    damage_revisions(gateways);
    start_as_it_is(gateways);
    assert_eq!(policies(gateways), ["to-gw-b"]);
    let said = log(gateways);
    let parts = ["revision 1 starts instead", "revisions.sqlite is damaged", "sqlite.damaged now"];
    for part in parts {
        assert!(said.contains(part), "{part}: {said}");
    }
    // Those to come are kept, and a revision that nobody had to confirm starts.
    succeed(gateways, &["apply", "-f", &file]);
    succeed(gateways, &["rollback"]);
    assert_eq!(policies(gateways), ["to-gw-b"]);
    succeed(gateways, &["apply", "-f", &file]);
    gateways.kill(1);
    damage_revisions(gateways);
    start_as_it_is(gateways);
    assert_eq!(policies(gateways), ["new", "to-gw-b"]);
    // With its record damaged too, nobody can say what was confirmed: nothing starts.
    let change = file_with(gateways, "other.toml", &policy("other", 78));
    succeed(gateways, &["apply", "-f", &change, "--confirm", "600"]);
    gateways.kill(1);
    damage_revisions(gateways);
    let record = gateways.file(1).state_dir().join("unconfirmed");
    std::fs::write(&record, "# lockgate").unwrap();
    let refused = gateways.start_as_it_is(1).unwrap_err().to_string();
    assert!(refused.contains("nothing starts; remove"), "{refused}");
    std::fs::remove_file(&record).unwrap();
    start_as_it_is(gateways);
    lab.balances();
}

#[test]
fn files_of_an_earlier_version_are_taken_over_at_the_first_start() {
    let Some(mut lab) = running("earlier_files", Plan::default()) else { return };
    let gateways = &mut lab.gateways;
    let text = succeed(gateways, &["export", "1"]);
    gateways.kill(1);
    let state_dir = gateways.file(1).state_dir();
    for name in ["revisions.sqlite", "revisions.sqlite-wal"] {
        let _ = std::fs::remove_file(state_dir.join(name));
    }
    let facts = serde_json::json!({
        "unix_ns": 1_000_000_000, "uid": 0, "cause": "apply", "file": "earlier.toml",
        "base": gateways.file(1).path().parent().unwrap(), "changes": 0, "keys": {},
    });
    std::fs::create_dir(state_dir.join("revisions")).unwrap();
    let earlier = text + &policy("earlier", 79);
    let content = format!("# lockgate revision: {facts}\n{earlier}");
    std::fs::write(state_dir.join("revisions/40.toml"), content).unwrap();
    for start in 0..2 {
        start_as_it_is(gateways);
        assert!(!state_dir.join("revisions").exists());
        assert_eq!(revision(gateways), 41 + start);
        assert_eq!(succeed(gateways, &["export", "40"]).trim(), earlier.trim());
        gateways.kill(1);
    }
    start_as_it_is(gateways);
    succeed(gateways, &["rollback", "40"]);
    assert_eq!(policies(gateways), ["earlier", "to-gw-b"]);
    lab.flows_again();
    lab.balances();
}

/// The newest revision that gateway 1 lists.
fn newest(gateways: &Gateways) -> u64 {
    let listed = ask(gateways, &["rollback", "--list"]);
    listed["revisions"][0]["revision"].as_u64().unwrap()
}

#[test]
fn killed_at_any_moment_of_a_change_a_gateway_keeps_every_revision_that_was_answered() {
    let Some(mut lab) = running("killed_changing", Plan::default()) else { return };
    let mut random = Random::from_environment();
    let gateways = &mut lab.gateways;
    let mut next = 1;
    for round in 0..6 {
        // Changes until it is killed, each another policy.
        let mut answered = revision(gateways);
        let after = Duration::from_millis(random.below(700));
        let files: Vec<String> = (0..40)
            .map(|_| {
                next += 1;
                file_with(gateways, &format!("{next}.toml"), &policy(&format!("p{next}"), next))
            })
            .collect();
        let daemon = gateways.daemon(1).unwrap();
        let commands: Vec<Command> =
            files.iter().map(|file| daemon.command(&["apply", "--json", "-f", file])).collect();
        std::thread::scope(|scope| {
            let applying = scope.spawn(move || {
                for mut command in commands {
                    let output = command.output().unwrap();
                    let Ok(said) = serde_json::from_slice::<Value>(&output.stdout) else { break };
                    let Some(made) = said["revision"].as_u64() else { break };
                    answered = made;
                }
                answered
            });
            std::thread::sleep(after);
            gateways.kill(1);
            answered = applying.join().unwrap();
        });
        start_as_it_is(gateways);
        // The start is a revision of its own.
        let kept = newest(gateways) - 1;
        assert!(kept == answered || kept == answered + 1, "{round}: {kept}, not {answered}");
        let text = succeed(gateways, &["export", &kept.to_string()]);
        assert!(text.contains("[[policy]]"), "{text}");
        println!("killed after {after:?}: revision {answered} answered, {kept} kept");
    }
    lab.balances();
}

/// Runs lines of the shell, as an operator would.
fn shell(directory: &Path, lines: &str) {
    let ran = Command::new("sh").args(["-e", "-c", lines]).current_dir(directory).output().unwrap();
    assert!(ran.status.success(), "{lines}: {}", String::from_utf8_lossy(&ran.stderr));
}

#[test]
fn keys_are_replaced_in_two_steps_without_a_lost_packet() {
    let Some(mut lab) = running("rekey_steps", Plan::default()) else { return };
    let before = outbound(&lab.gateways).0;
    let quarry = lab.hunt(|gateways| {
        let keys = keys_dir(gateways);
        make_keys(&gateways.programs, &keys.join("new"), "gw-a", "gw-b").unwrap();
        // The lines of docs/OPERATION.md; the gateways have one directory here.
        let learn = |file: &str| format!("grep '^in' new/{file} >> {file}");
        let switch =
            |file: &str| format!("sed -i '/^out/d' {file}\ngrep '^out' new/{file} >> {file}");
        let pause = || std::thread::sleep(Duration::from_millis(300));
        let files = [(1, "gw-a-gw-b.keys"), (2, "gw-b-gw-a.keys")];
        for step in [&learn as &dyn Fn(&str) -> String, &switch] {
            for (number, file) in files {
                shell(&keys, &step(file));
                gateways.daemon(number).unwrap().apply(&gateways.file(number).path()).unwrap();
                pause();
            }
        }
    });
    for stream in &quarry.streams {
        assert_eq!((stream.lost(), stream.repeated()), (0, 0), "of {}", stream.sent.len());
        assert!(stream.sent.len() > 1000, "{}", stream.sent.len());
    }
    assert_eq!(quarry.wire.spis().len(), 4, "two SAs each way");
    assert_ne!(outbound(&lab.gateways).0, before);
    let [sent, other] = quarry.streams.map(|stream| stream.sent.len());
    println!("{sent} and {other} packets over a change of keys: none lost, none delivered twice");
    for number in 1..=2 {
        let counters = lab.gateways.daemon(number).unwrap().counters().unwrap();
        for reason in ["unknown_spi", "integrity", "replayed", "replay_too_old"] {
            assert_eq!(counters.dropped(reason), 0, "{number}: {reason}");
        }
    }
    lab.balances();
}

/// A small file system, until it is dropped.
struct Small(PathBuf);

impl Small {
    fn mount(path: &Path) -> Small {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=256k,mode=700", "tmpfs"]).arg(path);
        assert!(mount.status().unwrap().success());
        Small(path.to_owned())
    }

    fn fill(&self) {
        let filled = std::fs::write(self.0.join("filler"), vec![0; 1 << 20]);
        assert!(filled.is_err(), "it is not full");
    }

    fn empty(&self) {
        std::fs::remove_file(self.0.join("filler")).unwrap();
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_state_directory_keeps_a_gateway_neither_from_starting_again_nor_from_changes() {
    let Some(lab) = lab("full_state", Plan::default()) else { return };
    let small = Small::mount(&lab.gateways.file(1).state_dir());
    let Some(mut lab) = lab.start("full_state") else { return };
    lab.flows_again();
    let troubles = |gateways: &Gateways| {
        let status = ask(gateways, &["show", "status"]);
        status["troubles"].as_array().unwrap().clone()
    };
    assert_eq!(troubles(&lab.gateways), [""; 0]);
    small.fill();
    let gateways = &mut lab.gateways;
    let one = file_with(gateways, "one.toml", &policy("a", 71));
    let applied = ask(gateways, &["apply", "-f", &one]);
    assert!(applied["notes"].to_string().contains("revision 2 runs but is not kept"), "{applied}");
    assert_eq!(policies(gateways), ["a", "to-gw-b"]);
    let same = succeed(gateways, &["apply", "-f", &one, "--confirm", "60"]);
    assert_eq!(same, "unchanged: revision 2 runs on\n", "nothing has to be confirmed");
    let two = file_with(gateways, "two.toml", &policy("b", 72));
    let waits = refused(gateways, &["apply", "-f", &two, "--confirm", "60"]);
    assert!(waits.contains("a restart could not restore"), "{waits}");
    for _ in 0..2 {
        lab.gateways.kill(1);
        lab.gateways.start(1).unwrap();
        lab.flows_again();
        let told = format!("{:?}", troubles(&lab.gateways));
        assert!(told.contains("runs but is not kept") && told.contains("disk is full"), "{told}");
    }
    assert!(log(&lab.gateways).contains("revision_refused"), "{}", log(&lab.gateways));
    small.empty();
    succeed(&lab.gateways, &["apply", "-f", &one]);
    assert_eq!(troubles(&lab.gateways), [""; 0]);
    succeed(&lab.gateways, &["rollback", "1"]);
    lab.balances();
}

#[test]
fn what_runs_is_saved_and_what_is_not_is_told() {
    let Some(lab) = running("saved", Plan::default()) else { return };
    let mut gateways = lab.gateways;
    let gateways = &mut gateways;
    let file = gateways.file(1).path();
    let name = file.display().to_string();
    let drift = |gateways: &Gateways| ask(gateways, &["show", "status"])["drift"].clone();
    assert_eq!(drift(gateways)["saved"], true);
    let original = std::fs::read_to_string(&file).unwrap();
    let unchanged = succeed(gateways, &["save"]);
    assert_eq!(unchanged, format!("unchanged: {name} is equivalent to revision 1\n"));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), original);
    // A policy that only runs, then one that is saved with it.
    let add = |name, third, more: &[&str]| {
        let remote = format!("10.{third}.0.0/16");
        let words = ["policy", "add", "--name", name, "--action", "discard", "--local"];
        let words = [&words[..], &["10.1.0.0/16", "--remote", &remote], more].concat();
        succeed(gateways, &words)
    };
    add("a", 71, &[]);
    let told = drift(gateways);
    assert_eq!((told["saved"].as_bool(), told["changes"].as_u64()), (Some(false), Some(1)));
    let text =
        format!("running revision 2 differs from {name}: 1 change not saved (`lockgate diff`)");
    assert_eq!(told["text"], text.as_str());
    assert!(overview(gateways).contains(&text));
    let difference = run(gateways, &["diff"]);
    assert_eq!(
        (difference.status.code(), difference.stdout.lines().next()),
        (Some(1), Some("- policy a"))
    );
    let said = add("b", 72, &["--save"]);
    assert!(said.ends_with(&format!("saved to {name}\n")), "{said}");
    assert_eq!(drift(gateways)["saved"], true);
    assert_eq!(succeed(gateways, &["diff"]), "");
    gateways.kill(1);
    gateways.start_as_it_is(1).unwrap();
    assert_eq!(policies(gateways), ["a", "b", "to-gw-b"]);
    // A file's own text is written, with its comments.
    let commented = format!("# by hand\n{original}");
    let other = gateways.file(1).beside("other.toml");
    std::fs::write(&other, &commented).unwrap();
    succeed(gateways, &["apply", "-f", &other.display().to_string(), "--save"]);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), commented);
    assert_eq!(drift(gateways)["saved"], true);
    // Behind the daemon's back.
    std::fs::write(&file, "nonsense").unwrap();
    let told = drift(gateways);
    assert!(
        told["saved"] == false && told["text"].to_string().contains("lockgate check"),
        "{told}"
    );
    succeed(gateways, &["save"]);
    assert_eq!(drift(gateways)["saved"], true);
    // Never through a link, and nothing changes for it.
    std::fs::rename(&file, &other).unwrap();
    std::os::unix::fs::symlink(&other, &file).unwrap();
    let before = (revision(gateways), std::fs::read_to_string(&other).unwrap());
    let words = ["policy", "del", "to-gw-b", "--save"];
    let said = refused(gateways, &words);
    assert!(said.contains("is a symbolic link"), "{said}");
    assert_eq!((revision(gateways), std::fs::read_to_string(&other).unwrap()), before);
    assert_eq!(policies(gateways), ["to-gw-b"]);
}

#[test]
fn a_change_that_cannot_be_undone_by_a_restart_is_not_made_to_wait() {
    let Some(mut lab) = running("record", Plan::default()) else { return };
    let gateways = &mut lab.gateways;
    // Nothing can be written in the place of this.
    std::fs::create_dir_all(gateways.file(1).state_dir().join("unconfirmed/x")).unwrap();
    let file = change_start_file(gateways);
    let said = refused(gateways, &["apply", "-f", &file, "--confirm", "9"]);
    assert!(said.contains("a restart could not restore the running configuration"), "{said}");
    assert_eq!(policies(gateways), ["to-gw-b"]);
    assert_eq!(ask(gateways, &["show", "status"])["waiting"], Value::Null);
    lab.flows_again();
    lab.balances();
}
