//! SAs that are put into a daemon over a simulated machine.

use std::sync::Arc;

use api::v1;
use control::KeyManager;
use dataplane::counters::Volume;
use ipsec::Spi;
use keystate::KeyOrigin;
use policy::Direction::{Inbound, Outbound};
use zeroize::Zeroizing;

use super::*;
use crate::backend::{Backend, Change, Consent, Includes, Intent, PolicyChange, Save};
use crate::backend_impl::Daemon;
use crate::test_lab::{RunningLab, TestLab, configuration};

const WAN: &str = "[port.wan]\nnetdev = \"eth0\"\nside = \"unprotected\"\n";

fn peer(keys: &str) -> String {
    format!(
        "{WAN}[peer.a]\nlocal = \"192.0.2.1\"\nremote = \"198.51.100.1\"\n{keys}\n\
         suite = \"aes-128-gcm\"\n"
    )
}

fn api_peer() -> String {
    peer("keys = \"api\"")
}

fn spi(value: u32) -> Spi {
    Spi::new(value).unwrap()
}

pub(super) fn sa(direction: Direction, value: u32, key: u8) -> PutSa {
    PutSa {
        manager: KeyManager::Api,
        peer: "a".into(),
        direction,
        spi: spi(value),
        key: Zeroizing::new(vec![key; 20]),
        suite: None,
        numbers: None,
        window: None,
        lifetime: None,
        replaces: Vec::new(),
        worker: None,
        offload: None,
        ends: None,
    }
}

fn name(direction: Direction, value: u32) -> SaName {
    SaName { direction, spi: spi(value), peer: None }
}

/// Puts SAs for which no card is asked.
async fn ask(state: &mut State, put: SaPut) -> Result<SaChange, SaRefusal> {
    let (reply, answer) = tokio::sync::oneshot::channel();
    state.put_sas(put, reply).await.unwrap();
    answer.await.unwrap()
}

pub(super) async fn put(state: &mut State, sas: Vec<PutSa>) -> Result<SaChange, SaRefusal> {
    let incarnation = state.incarnation.to_string();
    ask(state, SaPut { incarnation, origin: KeyOrigin::NamedRun, sas }).await
}

async fn delete(state: &mut State, names: Vec<SaName>) -> Result<SaChange, SaRefusal> {
    state
        .delete_sas(SaDeletion { incarnation: String::new(), names, manager: KeyManager::Api })
        .await
        .unwrap()
}

/// Kind, subject and message of the events about SAs that were put.
pub(super) fn told(events: &Events) -> Vec<(String, String, String)> {
    events.flush();
    let (kept, _) = events.subscribe();
    let about = kept.into_iter().filter(|event| event.kind.starts_with("sa_"));
    about.map(|event| (event.kind, event.subject, event.message)).collect()
}

#[tokio::test]
async fn what_is_put_runs_on_every_worker_and_needs_the_name_of_this_run() {
    let TestLab { folder: _folder, machine, mut state, .. } = TestLab::new(&api_peer());
    assert_eq!(state.incarnation.len(), 32);
    let before = state.gateway.snapshot.clone();
    for incarnation in ["", "x", &"0".repeat(32)] {
        let sas = vec![sa(Outbound, 500, 1)];
        let origin = KeyOrigin::NamedRun;
        let put = SaPut { incarnation: incarnation.into(), origin, sas };
        let refused = ask(&mut state, put).await.unwrap_err();
        assert_eq!((refused.word(), refused.place()), ("other_incarnation", None));
        assert!(refused.to_string().contains(&*state.incarnation), "{refused}");
    }
    assert!(Arc::ptr_eq(&before, &state.gateway.snapshot), "nothing was published");
    let done = put(&mut state, vec![sa(Outbound, 500, 1), sa(Inbound, 600, 2)]).await.unwrap();
    assert_eq!((done.put, done.unchanged), (2, 0));
    assert_eq!(done.names.subject, "a");
    assert_eq!(done.names.text, "outbound 0x000001f4, inbound 0x00000258");
    let walked = machine.walked();
    assert_eq!((walked.outbound().count(), walked.inbound().count()), (1, 1));
    // The key was used before, but this is the SA that runs.
    let again = put(&mut state, vec![sa(Outbound, 500, 1)]).await.unwrap();
    assert_eq!((again.put, again.unchanged), (0, 1));
    assert!(Arc::ptr_eq(&walked, &machine.walked()), "nothing was published");
    let other_run = SaDeletion {
        incarnation: "x".into(),
        names: vec![name(Outbound, 500)],
        manager: KeyManager::Api,
    };
    let refused = state.delete_sas(other_run).await.unwrap().unwrap_err();
    assert_eq!(refused.word(), "other_incarnation");
    assert_eq!(delete(&mut state, vec![name(Outbound, 500)]).await.unwrap().deleted, 1);
    assert_eq!(machine.walked().outbound().count(), 0);
    state.stopping = true;
    assert_eq!(put(&mut state, vec![]).await.unwrap_err().word(), "stopping");
    assert_eq!(delete(&mut state, vec![]).await.unwrap_err().word(), "stopping");
}

/// A file of SAs in a boot script once reused nonces: its keys were forgotten at the boot.
#[tokio::test]
async fn a_put_without_a_run_needs_no_name_and_its_keys_are_remembered_in_the_state_directory() {
    let TestLab { folder, mut state, .. } = TestLab::new(&api_peer());
    let by_hand = |key| SaPut {
        incarnation: String::new(),
        origin: KeyOrigin::AnyTime,
        sas: vec![sa(Outbound, 500, key)],
    };
    assert_eq!(ask(&mut state, by_hand(1)).await.unwrap().put, 1);
    assert_eq!(ask(&mut state, by_hand(1)).await.unwrap().unchanged, 1);
    delete(&mut state, vec![name(Outbound, 500)]).await.unwrap();
    assert_eq!(ask(&mut state, by_hand(1)).await.unwrap_err().word(), "key_used");
    let keys = state.keys.lock().await;
    assert_eq!(keys.key_counts().put, 1);
    drop(keys);
    // Of the program's own run, nothing is written.
    put(&mut state, vec![sa(Outbound, 501, 2)]).await.unwrap();
    assert_eq!(state.keys.lock().await.key_counts().put, 1);
    // The same SA put without the run: a boot script may put it again after a boot.
    let again = SaPut {
        incarnation: String::new(),
        origin: KeyOrigin::AnyTime,
        sas: vec![sa(Outbound, 501, 2)],
    };
    assert_eq!(ask(&mut state, again).await.unwrap().unchanged, 1);
    assert_eq!(state.keys.lock().await.key_counts().put, 2);
    drop(folder);
    state.stopping = true;
    assert_eq!(ask(&mut state, by_hand(3)).await.unwrap_err().word(), "stopping");
}

#[tokio::test]
async fn a_key_that_was_met_is_refused_with_its_place_and_nothing_is_put() {
    let TestLab { folder, mut state, .. } = TestLab::new(&api_peer());
    put(&mut state, vec![sa(Outbound, 500, 1)]).await.unwrap();
    delete(&mut state, vec![name(Outbound, 500)]).await.unwrap();
    let rows = [
        (vec![sa(Inbound, 600, 9), sa(Outbound, 500, 1)], "put before"),
        (vec![sa(Inbound, 600, 9), sa(Outbound, 501, 9)], "put before"),
    ];
    for (sas, text) in rows {
        let refused = put(&mut state, sas).await.unwrap_err();
        assert_eq!((refused.word(), refused.place()), ("key_used", Some(1)), "{refused}");
        assert!(refused.to_string().contains(text), "{refused}");
        assert_eq!(state.gateway.compiled.put_count(), 0);
    }
    // A refusal that needs no look at the key takes none.
    let unknown = PutSa { peer: "b".into(), ..sa(Outbound, 501, 3) };
    let refused = put(&mut state, vec![sa(Outbound, 500, 2), unknown]).await.unwrap_err();
    assert_eq!((refused.word(), refused.place()), ("unknown_peer", Some(1)));
    put(&mut state, vec![sa(Outbound, 500, 2), sa(Outbound, 501, 3)]).await.unwrap();
    // No key lies in any file.
    for file in walk(folder.path()) {
        let content = std::fs::read(&file).unwrap();
        // The keys' bytes are ASCII: what is no text does not hide them.
        let content = String::from_utf8_lossy(&content);
        for key in [1u8, 2, 3, 9] {
            let raw = char::from(key).to_string().repeat(16);
            let hex = format!("{key:02x}").repeat(16);
            assert!(![raw, hex].iter().any(|text| content.contains(text)), "{}", file.display());
        }
    }
}

fn walk(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let of = |path: std::path::PathBuf| match path.is_dir() {
        true => walk(&path),
        // The key file of other tests.
        false if path.ends_with("a.keys") => Vec::new(),
        false => vec![path],
    };
    entries.flat_map(of).collect()
}

/// SAs come and go for ever: what they counted is their peer's, and nothing grows.
#[tokio::test]
async fn counts_of_sas_that_are_gone_are_kept_by_peer() {
    let TestLab { folder: _folder, mut state, .. } = TestLab::new(&api_peer());
    for n in 0..5u8 {
        put(&mut state, vec![sa(Outbound, 500, 2 * n + 1), sa(Inbound, 500, 2 * n + 2)])
            .await
            .unwrap();
        let totals = Arc::make_mut(&mut state.gateway.totals);
        let volume = |packets| Volume { packets, bytes: 10 * packets };
        totals.sas.insert((Outbound, spi(500), "a".into()), volume(3));
        totals.sas.insert((Inbound, spi(500), "a".into()), volume(4));
        delete(&mut state, vec![name(Outbound, 500), name(Inbound, 500)]).await.unwrap();
    }
    let totals = &state.gateway.totals;
    assert!(totals.sas.is_empty());
    let volume = |packets| Volume { packets, bytes: 10 * packets };
    assert_eq!(totals.peers()["a"], [volume(15), volume(20)]);
}

#[tokio::test]
async fn an_spi_is_reserved_for_a_worker_and_ends_with_its_sa() {
    let TestLab { folder: _folder, mut state, .. } = TestLab::new(&api_peer());
    let spi_of = |peer: &str| {
        let (peer, manager) = (peer.to_owned(), KeyManager::Api);
        control::SpiRequest { peer, manager, remote: None }
    };
    let reserved = state.reserve_spi(&spi_of("a")).unwrap();
    assert_eq!(reserved.spi.value() & 0xff, reserved.worker);
    assert_eq!(reserved.incarnation, state.incarnation);
    let unknown = state.reserve_spi(&spi_of("b")).unwrap_err();
    assert!(unknown.to_string().contains("there is no peer \"b\""), "{unknown}");
    let inbound = || PutSa { spi: reserved.spi, ..sa(Inbound, 0x100, 1) };
    put(&mut state, vec![inbound()]).await.unwrap();
    let slot = state.gateway.snapshot.inbound_by_spi(reserved.spi).unwrap().id.0;
    assert_eq!(slot % state.gateway.active as u32, reserved.worker);
    state.stopping = true;
    assert_eq!(state.reserve_spi(&spi_of("a")), Err(ReserveError::Stopping));
}

/// A daemon with all its tasks.
struct Lab {
    folder: tempfile::TempDir,
    daemon: Arc<Daemon>,
    events: Events,
}

impl Lab {
    fn new() -> Lab {
        let RunningLab { folder, daemon, events, .. } = RunningLab::new(&api_peer());
        Lab { folder, daemon, events }
    }

    async fn put(&self, sas: Vec<PutSa>) -> Result<SaChange, SaRefusal> {
        let incarnation = self.daemon.status().await.incarnation;
        let origin = KeyOrigin::NamedRun;
        self.daemon.put_sas(SaPut { incarnation, origin, sas }, Uid(7)).await
    }

    async fn apply(&self, sections: &str) {
        let change = Change {
            text: configuration(&self.folder, "gw", sections),
            file: "test".into(),
            base_directory: self.folder.path().into(),
            includes: Includes::BesideFile,
            intent: Intent::Apply,
            confirm: None,
            save: Save::No,
            only_after: None,
        };
        let done = self.daemon.apply(change, Uid(0)).await.unwrap();
        // SAs that were put are no keys of a file.
        assert!(done.key_changes.iter().all(|change| change.removed.is_empty()));
    }

    /// Direction, SPI, owner of each SA.
    async fn shown(&self) -> Vec<v1::SecurityAssociation> {
        self.daemon.security_associations().await
    }
}

#[tokio::test]
async fn sas_outlast_changes_of_configuration_and_end_with_their_peer() {
    let lab = Lab::new();
    lab.put(vec![sa(Outbound, 500, 1), sa(Inbound, 600, 2)]).await.unwrap();
    let shown = lab.shown().await;
    assert_eq!(shown.len(), 2);
    for sa in &shown {
        assert_eq!((sa.owner.as_str(), sa.reserved_to, sa.last_packet_age_ms), ("api", None, None));
        assert!(sa.age_ms.unwrap() < 60_000 && sa.lifetime.is_none(), "{sa:?}");
        assert!(!sa.fingerprint.is_empty());
    }
    assert!(lab.daemon.picture().compiled.key_names()["a"].is_empty());
    lab.apply(&format!("{}[peer.a.lifetime]\nhard_packets = 9\n", api_peer())).await;
    let shown = lab.shown().await;
    assert!(shown.len() == 2 && shown.iter().all(|sa| sa.lifetime.is_some()), "{shown:?}");
    let policy = "[[policy]]\nname = \"p\"\npeer = \"a\"\nlocal = [\"any\"]\nremote = [\"any\"]\n";
    let change = PolicyChange {
        remove: Vec::new(),
        add: policy.into(),
        file: "test".into(),
        intent: Intent::Apply,
        save: Save::No,
        consent: Consent::NotGiven,
    };
    lab.daemon.change_policies(change, Uid(0)).await.unwrap();
    assert_eq!(lab.shown().await.len(), 2);
    let refused = lab.put(vec![sa(Outbound, 501, 1)]).await.unwrap_err();
    assert_eq!(refused.word(), "key_used");
    lab.apply(&peer("keys = \"file:a.keys\"\nmanual = \"laboratory\"")).await;
    let owners: Vec<_> = lab.shown().await.into_iter().map(|sa| sa.owner).collect();
    assert_eq!(owners, ["file", "file"]);
    let told = told(&lab.events);
    let kinds: Vec<_> = told.iter().map(|(kind, subject, _)| (&**kind, &**subject)).collect();
    let expected = [("sa_put", "a"), ("sa_refused", "security associations"), ("sa_deleted", "a")];
    assert_eq!(kinds, expected, "{told:?}");
    assert!(told[0].2.contains("2 SAs were put: outbound 0x000001f4, inbound"), "{told:?}");
    assert!(told[2].2.contains("2 SAs that were put for peer a are gone"), "{told:?}");
}

#[test]
fn an_event_names_the_first_sas_and_counts_the_others() {
    let one = |n: u32| ("a", name_text(&name(Outbound, 0x1000 + n)));
    let names = names_of((0..10).map(one));
    assert_eq!(names.subject, "a");
    assert!(
        names.text.starts_with("outbound 0x00001000, ") && names.text.ends_with(", and 2 more")
    );
    let two = [("a", String::new()), ("b", String::new())];
    assert_eq!(names_of(two.into_iter()).subject, "2 peers");
    let replaces = vec![spi(0x1001)];
    let text = text_of(&PutSa { replaces, ..sa(Inbound, 0x1002, 1) });
    assert_eq!(text, "inbound 0x00001002 instead of 0x00001001");
    let hostile = [("a\n\x1b[2J", String::new())];
    assert_eq!(names_of(hostile.into_iter()).subject, "a\\n\\u{1b}[2J");
}
