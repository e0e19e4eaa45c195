//! Files that a configuration names: owners of the open call, refusals of `apply` and SIGHUP.

use std::path::Path;
use std::sync::Arc;

use config::{IncludedTexts, MAX_INCLUDED_BYTES};

use crate::backend::{
    Backend, Change, ChangeError, ChangeReport, Consent, Includes, Intent, PolicyChange, Save,
};
use crate::backend_impl::Daemon;
use crate::fair_turns::WorkCaller;
use crate::test_lab::{PEER, RunningLab, configuration};
use crate::who::Uid;

const LAN: &str = "[port.lan]\nnetdev = \"eth1\"\nside = \"protected\"\n";
/// Content of a file that belongs to somebody else.
const SECRET: &str = "root:*:20228:0:99999:7:::\n";

/// Returns a text that a client sent from a directory, with the texts of its set files.
fn change_from(base: &Path, text: &str, sent: &[(&str, &str)]) -> Change {
    let owned = |(file, text): &(&str, &str)| ((*file).to_owned(), (*text).to_owned());
    let texts: IncludedTexts = sent.iter().map(owned).collect();
    Change {
        text: text.to_owned(),
        file: base.join("new.toml").display().to_string(),
        base_directory: base.to_owned(),
        includes: Includes::Sent(texts),
        intent: Intent::Apply,
        confirm: None,
        save: Save::No,
        only_after: None,
    }
}

/// Applies a text that a client sent from a directory, with the texts of its set files.
async fn apply_from(
    daemon: &Daemon,
    base: &Path,
    text: &str,
    sent: &[(&str, &str)],
) -> Result<ChangeReport, ChangeError> {
    daemon.apply(change_from(base, text, sent), Uid(1000)).await
}

async fn events_of(daemon: &Daemon) -> String {
    let (events, _) = daemon.events().await;
    events.iter().map(|event| format!("{} {}\n", event.kind, event.message)).collect()
}

fn name(daemon: &Daemon) -> String {
    daemon.picture().config().node.name.clone()
}

#[tokio::test]
async fn the_daemon_opens_no_set_file_for_a_client() {
    let lab = RunningLab::new(LAN);
    let secret = lab.folder.path().join("shadow");
    std::fs::write(&secret, SECRET).unwrap();
    for file in [secret.display().to_string(), "shadow".to_owned()] {
        let set = format!("{LAN}[set.admins]\nfile = \"{file}\"\n");
        let text = configuration(&lab.folder, "other", &set);
        let refused = apply_from(&lab.daemon, lab.folder.path(), &text, &[]).await.unwrap_err();
        assert!(refused.to_string().contains("did not come with the configuration"), "{refused}");
        // Sent as an address list, the text is refused by its place alone.
        let sent = [(file.as_str(), SECRET)];
        let refused = apply_from(&lab.daemon, lab.folder.path(), &text, &sent).await.unwrap_err();
        let refused = refused.to_string();
        assert!(refused.contains("shadow:1:1: error: this member is not an address"), "{refused}");
        assert!(!refused.contains("root"), "{refused}");
    }
    assert_eq!(name(&lab.daemon), "gw");
    let events = events_of(&lab.daemon).await;
    assert!(events.contains("apply_refused") && !events.contains("root"), "{events}");
}

#[tokio::test]
async fn a_dry_run_with_mistakes_is_no_event() {
    let lab = RunningLab::new(LAN);
    let set = format!("{LAN}[set.admins]\nfile = \"admins.txt\"\n");
    let text = configuration(&lab.folder, "other", &set);
    let change = change_from(lab.folder.path(), &text, &[]);
    let dry_run = Change { intent: Intent::DryRun, ..change };
    assert!(lab.daemon.apply(dry_run, Uid(1000)).await.is_err());
    let events = events_of(&lab.daemon).await;
    assert!(!events.contains("apply_refused"), "{events}");
}

#[tokio::test]
async fn a_dry_run_of_policies_with_mistakes_is_no_event() {
    let lab = RunningLab::new(LAN);
    let change = |intent| PolicyChange {
        remove: vec!["unknown".to_owned()],
        add: String::new(),
        file: "the command line".to_owned(),
        intent,
        save: Save::No,
        consent: Consent::NotGiven,
    };
    assert!(lab.daemon.change_policies(change(Intent::DryRun), Uid(1000)).await.is_err());
    assert!(!events_of(&lab.daemon).await.contains("policies_refused"));
    assert!(lab.daemon.change_policies(change(Intent::Apply), Uid(1000)).await.is_err());
    assert!(events_of(&lab.daemon).await.contains("policies_refused"));
}

#[tokio::test]
async fn the_daemon_bounds_the_texts_of_set_files_too() {
    let lab = RunningLab::new(LAN);
    let set = format!("{LAN}[set.admins]\nfile = \"0\"\n");
    let text = configuration(&lab.folder, "other", &set);
    let names: Vec<String> = (0..5).map(|number| number.to_string()).collect();
    let comment = "#".repeat(MAX_INCLUDED_BYTES as usize / 4);
    let sent: Vec<_> = names.iter().map(|name| (name.as_str(), comment.as_str())).collect();
    let base = lab.folder.path();
    let refused = apply_from(&lab.daemon, base, &text, &sent).await.unwrap_err().to_string();
    assert!(refused.contains("more than 67108864 bytes together"), "{refused}");
    let longer = format!("{comment}#");
    let sent = [("0", longer.as_str())];
    let refused = apply_from(&lab.daemon, base, &text, &sent).await.unwrap_err().to_string();
    assert!(
        refused.contains("is 16777217 bytes long; at most 16777216 bytes are read"),
        "{refused}"
    );
    assert_eq!(name(&lab.daemon), "gw");
}

#[tokio::test]
async fn only_a_restart_changes_the_socket_of_a_card() {
    let card = |name: &str, socket: &str| {
        format!(
            "{LAN}[card.{name}]\nkind = \"emulated\"\nsocket = \"/nowhere/{socket}\"\n\
             ports = [\"lan\"]\n"
        )
    };
    let lab = RunningLab::new(&card("nic0", "a"));
    let base = lab.folder.path();
    let apply = async |sections: &str| {
        let text = configuration(&lab.folder, "gw", sections);
        apply_from(&lab.daemon, base, &text, &[]).await
    };
    for (name, socket) in [("nic0", "b"), ("nic1", "b"), ("nic1", "a")] {
        let refused = apply(&card(name, socket)).await.unwrap_err().to_string();
        let start = format!("card.{name}.socket is read when lockgated starts");
        assert!(refused.starts_with(&start), "{refused}");
    }
    // A card may leave and come back, with its own socket alone.
    apply(LAN).await.unwrap();
    assert!(apply(&card("nic0", "b")).await.is_err());
    apply(&card("nic0", "a")).await.unwrap();
}

#[tokio::test]
async fn a_sent_set_file_runs_and_its_revision_holds_the_members() {
    let lab = RunningLab::new(LAN);
    let set = format!("{LAN}[set.admins]\nfile = \"admins.txt\"\n");
    let text = configuration(&lab.folder, "other", &set);
    let sent = [("admins.txt", "10.9.0.0/24\n")];
    let done = apply_from(&lab.daemon, Path::new("/nowhere"), &text, &sent).await.unwrap();
    assert_eq!((done.revision, name(&lab.daemon).as_str()), (1, "other"));
    let exported = lab.daemon.export(WorkCaller::Administrator(0), None).await.unwrap();
    assert!(exported.text.contains("10.9.0.0/24") && !exported.text.contains("admins.txt"));
    // A rollback to it needs no file.
    let plain = configuration(&lab.folder, "third", LAN);
    apply_from(&lab.daemon, Path::new("/nowhere"), &plain, &[]).await.unwrap();
    lab.daemon.rollback(Some(done.revision), Uid(0)).await.unwrap();
    assert_eq!(name(&lab.daemon), "other");
}

#[tokio::test]
async fn only_a_restart_changes_keys_dir() {
    let sections = format!("{LAN}{PEER}");
    let lab = RunningLab::new(&sections);
    let elsewhere = tempfile::tempdir().unwrap();
    let named = |keys_dir: &str| {
        let text = configuration(&lab.folder, "other", &sections);
        text.replace("[node]\n", &format!("[node]\nkeys_dir = \"{keys_dir}\"\n"))
    };
    for keys_dir in [elsewhere.path().display().to_string(), "..".to_owned()] {
        let text = named(&keys_dir);
        let refused = apply_from(&lab.daemon, elsewhere.path(), &text, &[]).await.unwrap_err();
        let refused = refused.to_string();
        assert!(refused.starts_with("node.keys_dir is read when lockgated starts"), "{refused}");
        assert!(refused.ends_with("restart it"), "{refused}");
        assert_eq!(name(&lab.daemon), "gw");
    }
    // By another path the directory is the same, and the running words stay.
    let text = named(&lab.folder.path().display().to_string());
    apply_from(&lab.daemon, elsewhere.path(), &text, &[]).await.unwrap();
    assert_eq!(lab.daemon.picture().config().node.keys_dir, Path::new("."));
    // In the same words a file of another directory has the daemon's own keys.
    let text = named(".").replace("other", "third");
    apply_from(&lab.daemon, elsewhere.path(), &text, &[]).await.unwrap();
    assert_eq!(name(&lab.daemon), "third");
    assert_eq!(lab.daemon.picture().keys_directory(), lab.folder.path().join("."));
}

#[tokio::test]
async fn a_hangup_applies_the_daemons_own_file_or_changes_nothing() {
    let lab = RunningLab::new(LAN);
    let file = lab.folder.path().join("gw.toml");
    let daemon: &Arc<Daemon> = &lab.daemon;
    daemon.apply_own_file().await;
    let missing = events_of(daemon).await;
    assert!(missing.contains("apply_refused") && missing.contains("gw.toml"), "{missing}");
    let set = format!("{LAN}[set.admins]\nfile = \"admins.txt\"\n");
    std::fs::write(&file, configuration(&lab.folder, "other", &set)).unwrap();
    std::fs::write(lab.folder.path().join("admins.txt"), "10.9.0.0/24\n").unwrap();
    daemon.apply_own_file().await;
    assert_eq!((name(daemon).as_str(), daemon.picture().revision), ("other", 1));
    let applied = events_of(daemon).await;
    assert!(applied.contains("\napplied revision 1"), "{applied}");
    daemon.apply_own_file().await;
    let again = events_of(daemon).await;
    assert!(again.contains("applied revision 1: unchanged"), "{again}");
    // A set file behind a link, and a mistake: all or nothing.
    std::fs::remove_file(lab.folder.path().join("admins.txt")).unwrap();
    std::os::unix::fs::symlink("/etc/hostname", lab.folder.path().join("admins.txt")).unwrap();
    std::fs::write(&file, configuration(&lab.folder, "third", &set)).unwrap();
    daemon.apply_own_file().await;
    std::fs::write(&file, configuration(&lab.folder, "third", "[port.lan]\n")).unwrap();
    daemon.apply_own_file().await;
    let refused = events_of(daemon).await;
    assert!(refused.contains("is reached by a symbolic link"), "{refused}");
    assert!(refused.contains("[port.lan] lacks"), "{refused}");
    assert_eq!((name(daemon).as_str(), daemon.picture().revision), ("other", 1));
}
