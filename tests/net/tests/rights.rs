//! Every call of the API and the port of the metrics, at a running daemon, as four users: one in
//! no group, one in `lockgate-admin` alone, a reader and an administrator. The rights are the
//! column of `docs/LIMITS.md`.
//!
//! The test binds copies of `/etc/passwd` and `/etc/group`, with its users and groups, in a mount
//! namespace. The reader asks for the same changes as the administrator, whose changes all happen.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use api::{ConnectError, GatewayClient, v1, whole};
use netlab::process;
use netlab::sites::Plan;
use tokio::runtime::Runtime;
use tonic::{Code, Response, Status, Streaming};

const NAME: &str = "every_call_is_answered_or_refused_as_the_document_says";
const DOCUMENT: &str = include_str!("../../../docs/LIMITS.md");
/// Path of the socket, for a client of another user.
const CLIENT: &str = "LOCKGATE_TEST_CLIENT";
/// Set where the users of the test exist.
const NAMESPACE: &str = "LOCKGATE_TEST_USERS";
const READERS: u32 = 64_100;
const ADMINISTRATORS: u32 = 64_101;
/// Users of the test, and their numbers.
const READER: (&str, u32) = ("lg-reader", 64_331);
const ADMINISTRATOR: (&str, u32) = ("lg-admin", 64_332);
const ADMINISTRATOR_ALONE: (&str, u32) = ("lg-alone", 64_333);
const NOBODY: (&str, u32) = ("nobody", 65_534);
const METRICS: &str = "127.0.0.1:9617";

/// A virtual network, and a peer whose SAs are put.
const MORE: &str = r#"
[overlay.fabric]
kind = "vxlan"
port = "lan"
entrances = ["10.1.0.1"]

[vni.7]

[peer.agreed]
local = "192.0.2.1"
remote = "192.0.2.77"
keys = "api"
suite = "aes-128-gcm"

[[policy]]
name = "to-agreed"
peer = "agreed"
local = ["10.1.0.0/24"]
remote = ["10.77.0.0/24"]
"#;
/// The policy that clients add.
const ADDED: &str = "
[[policy]]
name = \"added\"
action = \"bypass\"
local = [\"any\"]
remote = [\"9.9.9.9/32\"]
";
/// SPI of the SA that clients put.
const SPI: &str = "4660";

#[test]
fn every_call_is_answered_or_refused_as_the_document_says() {
    // AX-37
    if let Some(socket) = std::env::var_os(CLIENT) {
        return as_client(Path::new(&socket));
    }
    if std::env::var_os(NAMESPACE).is_some() {
        return with_users();
    }
    let directory = tempfile::tempdir().unwrap();
    let script = "mount --bind \"$1\" /etc/passwd && mount --bind \"$2\" /etc/group && \
                  shift 2 && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]);
    let of_users = [READER, ADMINISTRATOR, ADMINISTRATOR_ALONE].map(|(name, number)| {
        format!("{name}:x:{number}:{number}::/nonexistent:/usr/sbin/nologin\n")
    });
    let of_groups = [
        format!("lockgate:x:{READERS}:{},{}\n", READER.0, ADMINISTRATOR.0),
        format!(
            "lockgate-admin:x:{ADMINISTRATORS}:{},{}\n",
            ADMINISTRATOR.0, ADMINISTRATOR_ALONE.0
        ),
    ];
    for (file, lines) in [("passwd", of_users.concat()), ("group", of_groups.concat())] {
        let text = std::fs::read_to_string(Path::new("/etc").join(file)).unwrap();
        let others = text.lines().filter(|line| !line.starts_with("lockgate"));
        let others: String = others.map(|line| format!("{line}\n")).collect();
        let copy = directory.path().join(file);
        std::fs::write(&copy, others + &lines).unwrap();
        command.arg(copy);
    }
    let ran = command.arg(this_test().0).args(this_test().1).env(NAMESPACE, "1").output();
    let Ok(ran) = ran else {
        println!("SKIPPED: {NAME}: `unshare` of util-linux is not there");
        return;
    };
    let (out, err) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    if err.contains("unshare failed") {
        println!("SKIPPED: {NAME}: {err}");
        return;
    }
    assert!(ran.status.success(), "{out}{err}");
    match out.lines().find(|line| line.starts_with("SKIPPED")) {
        Some(skipped) => println!("{skipped}"),
        None => assert!(out.contains("CHECKED"), "{out}{err}"),
    }
}

/// This program, and the arguments that run this test alone.
fn this_test() -> (PathBuf, [&'static str; 3]) {
    (std::env::current_exe().unwrap(), [NAME, "--exact", "--nocapture"])
}

/// Starts a daemon, and makes all calls as each user.
fn with_users() {
    let Some(mut lab) = net::lab(NAME, Plan::default()) else { return };
    let file = lab.gateways.file_mut(1);
    file.extra = MORE.to_owned();
    file.metrics = METRICS.to_owned();
    // Other users come as far as the directory of the socket, which the daemon makes.
    for open in [lab.gateways.directory(), &lab.gateways.file(1).beside("")] {
        std::fs::set_permissions(open, Permissions::from_mode(0o755)).unwrap();
    }
    std::fs::remove_dir(lab.gateways.file(1).run_dir()).unwrap();
    net::copy_program(&this_test().0, &lab.gateways.directory().join("client"));
    lab.gateways.start(1).unwrap();

    let rights = documented_rights();
    let running = state_of(&lab);
    for user in [NOBODY, ADMINISTRATOR_ALONE] {
        assert_eq!(calls_of(&lab, user), None, "{user:?} opened the socket");
    }
    // The mode of the socket itself refuses them too.
    std::fs::set_permissions(lab.gateways.file(1).run_dir(), Permissions::from_mode(0o755))
        .unwrap();
    for user in [NOBODY, ADMINISTRATOR_ALONE] {
        assert_eq!(calls_of(&lab, user), None, "{user:?} opened the socket");
    }

    let calls = calls_of(&lab, READER).expect("a reader opens the socket");
    for (call, right) in &rights {
        let outcome = &calls[*call];
        match *right {
            "reader" => assert_eq!(outcome, "Ok", "{call} of a reader"),
            _ => assert!(
                outcome.starts_with("PermissionDenied") && outcome.contains("lockgate-admin"),
                "{call} of a reader: {outcome}"
            ),
        }
    }
    assert_eq!(state_of(&lab), running, "a reader changed something");
    let denied = net::events(&lab.gateways, 1, "change_denied");
    assert!(!denied.is_empty(), "no event about the reader");

    let calls = calls_of(&lab, ADMINISTRATOR).expect("an administrator opens the socket");
    for call in rights.keys() {
        assert_eq!(calls[*call], "Ok", "{call} of an administrator");
    }
    // The changes that a reader could not make happen for an administrator.
    let changed = state_of(&lab);
    for ((what, before), (_, after)) in running.iter().zip(&changed) {
        assert_ne!(before, after, "{what}: the test would not notice a change");
    }
    println!("CHECKED {} calls", rights.len());
}

/// The right that each call needs: rows `| Name | right | …` of the document.
fn documented_rights() -> BTreeMap<&'static str, &'static str> {
    let row = |line: &'static str| {
        let (name, cells) = line.strip_prefix("| `")?.split_once("` |")?;
        Some((name, cells.split('|').next()?.trim()))
    };
    let rights: BTreeMap<_, _> = DOCUMENT.lines().filter_map(row).collect();
    let mut calls = api::CALL_NAMES.to_vec();
    calls.sort_unstable();
    assert_eq!(rights.keys().copied().collect::<Vec<_>>(), calls, "rows of docs/LIMITS.md");
    for (call, right) in &rights {
        assert!(["reader", "administrator"].contains(right), "{call}: {right}");
    }
    rights
}

/// Returns the state that clients may change, by name.
fn state_of(lab: &net::Lab) -> [(&'static str, String); 4] {
    let daemon = lab.gateways.daemon(1).unwrap();
    let file = std::fs::read_to_string(lab.gateways.file(1).path()).unwrap();
    let text = daemon.run(&["export"]).unwrap().success().unwrap();
    let endpoints = daemon.ask(&["show", "endpoint"]).unwrap()["endpoints"].to_string();
    let runtime = runtime();
    let revisions = runtime.block_on(async {
        let mut client = api::connect(daemon.socket()).await.unwrap();
        client.show_revisions(v1::ShowRequest::default()).await.unwrap().into_inner()
    });
    let revisions = format!("{:?}", revisions.revisions);
    [("file", file), ("text", text), ("endpoints", endpoints), ("revisions", revisions)]
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Makes all calls as a user, and returns the outcome of each. `None`: the file's mode refused the
/// user. Fails unless the user can read metrics.
fn calls_of(lab: &net::Lab, (name, number): (&str, u32)) -> Option<BTreeMap<String, String>> {
    let mut command = lab.gateways.site(1).gateway.command("setpriv");
    command.args([format!("--reuid={name}"), format!("--regid={number}")]).arg("--init-groups");
    command.arg(lab.gateways.directory().join("client")).args(this_test().1);
    command.env(CLIENT, lab.gateways.file(1).socket()).env_remove(NAMESPACE);
    let out = process::run(command, net::AGAIN).unwrap().success().unwrap();
    assert!(out.contains("\nMETRICS read\n"), "{out}");
    if out.contains("\nSOCKET denied\n") {
        return None;
    }
    let calls = out.lines().filter_map(|line| line.strip_prefix("CALL ")?.split_once(' '));
    Some(calls.map(|(name, outcome)| (name.to_owned(), outcome.to_owned())).collect())
}

/// Reads metrics, makes all calls, and prints the outcome of each.
fn as_client(socket: &Path) {
    // The test runner's line does not end.
    println!();
    for (request, status, text) in [
        ("GET /metrics", "200 OK", "lockgate_port_up{port=\"lan\"} 1"),
        ("GET /healthz", "200 OK", ""),
        ("POST /metrics", "405 ", ""),
        ("DELETE /healthz", "405 ", ""),
    ] {
        let mut stream = std::net::TcpStream::connect(METRICS).unwrap();
        stream.write_all(format!("{request} HTTP/1.0\r\n\r\n").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.0 {status}")), "{request}: {answer}");
        assert!(answer.contains(text), "{request}: {answer}");
    }
    println!("METRICS read");
    if let Some(file) = opened_beside(socket) {
        panic!("opened {}", file.display());
    }
    runtime().block_on(async {
        let mut client = match api::connect(socket).await {
            Err(ConnectError::Denied { .. }) => return println!("SOCKET denied"),
            connected => connected.unwrap(),
        };
        read_as_a_whole(&mut client).await;
        read_in_pages(&mut client).await;
        // A change is confirmed over another connection.
        let mut other = api::connect(socket).await.unwrap();
        change_the_configuration(&mut client, &mut other).await;
        change_the_rest(&mut client).await;
        refuse_unknown_names(&mut client).await;
    });
}

/// Returns a file of the daemon's run directory, at any depth, that this user can open.
fn opened_beside(socket: &Path) -> Option<PathBuf> {
    let mut directories = vec![socket.parent().unwrap().to_owned()];
    while let Some(directory) = directories.pop() {
        let Ok(entries) = std::fs::read_dir(&directory) else { continue };
        for path in entries.map(|entry| entry.unwrap().path()) {
            let writes = std::fs::OpenOptions::new().write(true).open(&path).is_ok();
            if path.is_dir() {
                directories.push(path);
            } else if writes || std::fs::File::open(&path).is_ok() {
                return Some(path);
            }
        }
    }
    None
}

/// Prints the outcome of a call.
fn report<T>(call: &str, outcome: Result<T, Status>) {
    match outcome {
        Ok(_) => println!("CALL {call} Ok"),
        Err(status) => println!("CALL {call} {:?}: {}", status.code(), status.message()),
    }
}

/// Reads a stream to its end.
async fn to_the_end<T>(answer: Result<Response<Streaming<T>>, Status>) -> Result<(), Status> {
    let mut messages = answer?.into_inner();
    while messages.message().await?.is_some() {}
    Ok(())
}

/// Reads the first message of a stream.
async fn first<T>(answer: Result<Response<Streaming<T>>, Status>) -> Result<T, Status> {
    let message = answer?.into_inner().message().await?;
    message.ok_or_else(|| Status::unavailable("the stream has no message"))
}

async fn read_as_a_whole(client: &mut GatewayClient) {
    let show = v1::ShowRequest::default;
    report("ShowStatus", client.show_status(show()).await);
    report("ShowPorts", client.show_ports(show()).await);
    report("ShowGroups", client.show_groups(show()).await);
    report("ShowCache", client.show_cache(show()).await);
    let entries = v1::CacheEntriesRequest::default();
    report("ShowCacheEntries", client.show_cache_entries(entries).await);
    report("ShowNeighbours", client.show_neighbours(show()).await);
    report("ShowRoutes", client.show_routes(show()).await);
    report("ShowCounters", client.show_counters(show()).await);
    report("ShowRevisions", client.show_revisions(show()).await);
    report("Explain", client.explain(flow_by("lan")).await);
}

/// The question for a flow of ESP that comes by a port.
fn flow_by(port: &str) -> v1::ExplainRequest {
    v1::ExplainRequest {
        port: port.to_owned(),
        source: "10.1.0.10".into(),
        destination: "10.2.0.10".into(),
        protocol: 50,
        ..v1::ExplainRequest::default()
    }
}

async fn read_in_pages(client: &mut GatewayClient) {
    let show = v1::ShowRequest::default;
    report("ShowPeers", to_the_end(client.show_peers(show()).await).await);
    let sas = client.show_security_associations(show()).await;
    report("ShowSecurityAssociations", to_the_end(sas).await);
    report("ShowPolicies", to_the_end(client.show_policies(show()).await).await);
    report("ShowPlacement", to_the_end(client.show_placement(show()).await).await);
    let connections = client.show_connections(v1::ConnectionsRequest::default()).await;
    report("ShowConnections", to_the_end(connections).await);
    report("Export", to_the_end(client.export(v1::ExportRequest::default()).await).await);
    let endpoints = client.show_endpoints(v1::EndpointsRequest::default()).await;
    report("ShowEndpoints", to_the_end(endpoints).await);
    let watch = client.watch_endpoints(v1::EndpointsWatch::default()).await;
    report("WatchEndpoints", first(watch).await);
    report("Events", to_the_end(client.events(v1::EventsRequest::default()).await).await);
}

/// Returns the answer to a change, as an error if the daemon refused the change.
fn done(answer: Result<Response<v1::Applied>, Status>) -> Result<v1::Applied, Status> {
    let applied = answer?.into_inner();
    match applied.ok {
        true => Ok(applied),
        false => Err(Status::aborted(applied.refused + &applied.rendered)),
    }
}

async fn change_the_configuration(client: &mut GatewayClient, other: &mut GatewayClient) {
    let exported = client.export(v1::ExportRequest::default()).await.unwrap();
    let exported = whole(exported).await.unwrap().into_inner();
    let apply = v1::ApplyRequest {
        text: exported.toml + ADDED,
        file: "added.toml".into(),
        base_directory: exported.base_directory,
        confirm_within_s: 600,
        ..v1::ApplyRequest::default()
    };
    report("Apply", done(client.apply(apply).await));
    report("Confirm", other.confirm(v1::ConfirmRequest::default()).await);
    let removal = v1::ChangePoliciesRequest {
        remove: vec!["added".into()],
        ..v1::ChangePoliciesRequest::default()
    };
    report("ChangePolicies", done(client.change_policies(removal).await));
    report("Rollback", done(client.rollback(v1::RollbackRequest::default()).await));
    report("Save", client.save(v1::SaveRequest::default()).await);
}

/// Returns the answer to a change of SAs, as an error if the daemon refused the change.
fn done_with_sas(
    answer: Result<Response<v1::SecurityAssociationsChanged>, Status>,
) -> Result<(), Status> {
    let changed = answer?.into_inner();
    if changed.ok { Ok(()) } else { Err(Status::aborted(changed.refused)) }
}

async fn change_the_rest(client: &mut GatewayClient) {
    let peer = || "agreed".to_owned();
    let direction = || "inbound".to_owned();
    report("ReserveSpi", client.reserve_spi(v1::ReserveSpiRequest { peer: peer() }).await);
    let sa = v1::NewSecurityAssociation {
        direction: direction(),
        spi: SPI.into(),
        peer: peer(),
        key: (1..=20).collect(),
        ..v1::NewSecurityAssociation::default()
    };
    let status = client.show_status(v1::ShowRequest::default()).await.unwrap().into_inner();
    let incarnation = status.incarnation;
    let put = v1::PutSecurityAssociationsRequest { incarnation, sas: vec![sa] };
    let put = client.put_security_associations(put).await;
    report("PutSecurityAssociations", done_with_sas(put));
    let name = v1::SaName { direction: direction(), spi: SPI.into(), peer: peer() };
    let deletion = v1::DeleteSecurityAssociationsRequest { sas: vec![name], ..Default::default() };
    let deletion = client.delete_security_associations(deletion).await;
    report("DeleteSecurityAssociations", done_with_sas(deletion));
    let endpoint = v1::Endpoint {
        vni: 7,
        address: "172.16.0.1".into(),
        host: "10.1.0.10".into(),
        mac: "02:07:00:00:00:01".into(),
        ..v1::Endpoint::default()
    };
    let change = v1::EndpointChange { change: Some(v1::endpoint_change::Change::Put(endpoint)) };
    let changes = v1::EndpointChanges { changes: vec![change] };
    let changed = client.change_endpoints(tokio_stream::once(changes)).await;
    let changed = first(changed).await.and_then(|changed| match changed.applied {
        1 => Ok(()),
        _ => Err(Status::aborted(format!("{changed:?}"))),
    });
    report("ChangeEndpoints", changed);
    let all = v1::ConnectionsRequest::default();
    report("ClearConnections", client.clear_connections(all).await);
    // No packet waits for an SA: the stream has no message.
    report("WatchAcquires", client.watch_acquires(v1::WatchAcquiresRequest {}).await);
    let capture = v1::CaptureRequest { port: "lan".into(), seconds: 1, ..Default::default() };
    report("Capture", first(client.capture(capture).await).await);
}

/// Fails unless each refusal names the unknown name or the missing right.
async fn refuse_unknown_names(client: &mut GatewayClient) {
    const UNKNOWN: &str = "unheard-of";
    let unknown = || UNKNOWN.to_owned();
    let show = || v1::ShowRequest { name: Some(unknown()) };
    let policy = v1::ChangePoliciesRequest { remove: vec![unknown()], ..Default::default() };
    let sa = v1::SaName { direction: "inbound".into(), spi: "4661".into(), peer: unknown() };
    let sas = v1::DeleteSecurityAssociationsRequest { sas: vec![sa], ..Default::default() };
    let deletion = client.delete_security_associations(sas).await.and_then(|changed| {
        let changed = changed.into_inner();
        if changed.ok { Ok(()) } else { Err(Status::not_found(changed.message)) }
    });
    let capture = v1::CaptureRequest { port: unknown(), ..Default::default() };
    let revision = v1::RollbackRequest { revision: Some(987_654) };
    let refusals = [
        client.show_ports(show()).await.map(drop),
        to_the_end(client.show_peers(show()).await).await,
        to_the_end(client.show_policies(show()).await).await,
        client.explain(flow_by(UNKNOWN)).await.map(drop),
        done(client.change_policies(policy).await).map(drop),
        done(client.rollback(revision).await).map(drop),
        deletion,
        client.reserve_spi(v1::ReserveSpiRequest { peer: unknown() }).await.map(drop),
        client.capture(capture).await.map(drop),
    ];
    for (number, refusal) in refusals.into_iter().enumerate() {
        let status = refusal.expect_err("an unknown name is refused");
        let (code, message) = (status.code(), status.message());
        let is_named = [UNKNOWN, "4661", "987654"].iter().any(|name| message.contains(name));
        assert!(is_named || code == Code::PermissionDenied, "{number}: {status}");
    }
}
