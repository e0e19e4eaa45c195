//! Calls by users in no group, in `lockgate` and in `lockgate-admin`, and by root.

use super::*;

/// Path of the socket, for a client of another user.
const CLIENT: &str = "LOCKGATE_TEST_CLIENT";
/// Set where the groups of the test exist.
const GROUPED: &str = "LOCKGATE_TEST_GROUPS";
const READERS: u32 = 64_100;
const ADMINS: u32 = 64_101;
const NOBODY: u32 = 65_534;
/// A user that the machine knows, in no group of ours.
const DAEMON: u32 = 1;
const STRANGER: u32 = 64_333;

#[test]
fn only_readers_read_and_only_admins_change() {
    // AX-37
    const NAME: &str = "only_readers_read_and_only_admins_change";
    if let Some(socket) = std::env::var_os(CLIENT) {
        return as_client(Path::new(&socket));
    }
    if std::env::var_os(GROUPED).is_some() {
        return with_groups();
    }
    if !is_root(NAME) {
        return;
    }
    // Groups of our own, in a mount namespace of our own.
    let directory = Directory::new();
    let groups = directory.0.path().join("group");
    let mut text = std::fs::read_to_string("/etc/group").unwrap();
    let ours = |line: &&str| !line.starts_with("lockgate");
    text = text.lines().filter(ours).map(|line| format!("{line}\n")).collect();
    text.push_str(&format!("lockgate:x:{READERS}:\nlockgate-admin:x:{ADMINS}:nobody\n"));
    std::fs::write(&groups, text).unwrap();
    let script = "mount --bind \"$1\" /etc/group && shift && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]).arg(&groups).arg(this_test().0);
    let ran = command.args(this_test().1).env(GROUPED, "1").output();
    let Ok(ran) = ran else {
        eprintln!("SKIPPED: {NAME}: `unshare` of util-linux is not there");
        return;
    };
    let (out, err) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{out}{err}");
    assert!(out.contains("CHECKED 6 clients"), "{out}{err}");
}

/// This program, and the arguments that run this test alone.
fn this_test() -> (PathBuf, [&'static str; 3]) {
    let name = "api::tests::rights::only_readers_read_and_only_admins_change";
    (std::env::current_exe().unwrap(), [name, "--exact", "--nocapture"])
}

/// Serves, and asks as six others.
fn with_groups() {
    let directory = Directory::new();
    // The others must get as far as the socket's directory, and must be able to run this program.
    std::fs::set_permissions(directory.0.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let program = directory.0.path().join("client");
    // `cp` writes the copy: a child of another test's thread could inherit the descriptor of our
    // own copy, and Linux executes no file open for writing.
    let copied = Command::new("cp").arg(this_test().0).arg(&program).status().unwrap();
    assert!(copied.success());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(ask_as_others(&directory.socket(), &program));
}

async fn ask_as_others(socket: &Path, program: &Path) {
    let fake = Fake::new(Duration::ZERO);
    let server = Server::start(bind(socket).await.unwrap(), &fake);
    let clients = [
        (STRANGER, STRANGER, None, "denied"),
        (STRANGER, STRANGER, Some(READERS), "read, no change"),
        (DAEMON, DAEMON, Some(READERS), "read, no change"),
        (STRANGER, ADMINS, Some(READERS), "read, change"),
        (NOBODY, READERS, None, "read, change"),
        (0, 0, None, "read, change"),
    ];
    for (user, group, more, expected) in clients {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &user.to_string(), "--regid", &group.to_string()]);
        match more {
            None => command.arg("--clear-groups"),
            Some(more) => command.args(["--groups", &more.to_string()]),
        };
        command.arg(program).args(this_test().1).env(CLIENT, socket);
        let ran = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
        let out = String::from_utf8_lossy(&ran.stdout);
        let err = String::from_utf8_lossy(&ran.stderr);
        let line = format!("CLIENT: {expected}\n");
        assert!(out.contains(&line), "{user} {group} {more:?}: {expected}: {out}{err}");
    }
    assert!(fake.asked().contains(&format!("apply denied to {STRANGER}")), "{:?}", fake.asked());
    assert!(fake.asked().contains(&format!("capture denied to {STRANGER}")), "{:?}", fake.asked());
    server.stop().await;
    println!("CHECKED {} clients", clients.len());
}

/// Calls everything, and returns the names of the calls that are denied, sorted.
async fn denied_calls(client: &mut GatewayClient) -> Vec<&'static str> {
    let (mut denied, mut called) = (Vec::new(), Vec::new());
    macro_rules! call {
        ($($name:literal $method:ident $request:expr;)*) => {$(
            let refused = client.$method($request).await.err();
            if refused.is_some_and(|status| status.code() == Code::PermissionDenied) {
                denied.push($name);
            }
            called.push($name);
        )*};
    }
    let show = v1::ShowRequest::default;
    call! {
        "ShowStatus" show_status show();
        "ShowPorts" show_ports show();
        "ShowPeers" show_peers show();
        "ShowSecurityAssociations" show_security_associations show();
        "ShowPolicies" show_policies show();
        "ShowGroups" show_groups show();
        "ShowPlacement" show_placement show();
        "ShowConnections" show_connections v1::ConnectionsRequest::default();
        "ShowCache" show_cache show();
        "ShowCacheEntries" show_cache_entries v1::CacheEntriesRequest::default();
        "ShowNeighbours" show_neighbours show();
        "ShowRoutes" show_routes show();
        "ShowCounters" show_counters show();
        "Explain" explain v1::ExplainRequest::default();
        "Export" export v1::ExportRequest::default();
        "ShowEndpoints" show_endpoints v1::EndpointsRequest::default();
        "WatchEndpoints" watch_endpoints v1::EndpointsWatch::default();
        "ShowRevisions" show_revisions show();
        "Events" events v1::EventsRequest::default();
        "ClearConnections" clear_connections v1::ConnectionsRequest::default();
        "Apply" apply v1::ApplyRequest::default();
        "Confirm" confirm v1::ConfirmRequest::default();
        "Rollback" rollback v1::RollbackRequest::default();
        "Save" save v1::SaveRequest::default();
        "ChangePolicies" change_policies v1::ChangePoliciesRequest::default();
        "PutSecurityAssociations"
            put_security_associations v1::PutSecurityAssociationsRequest::default();
        "DeleteSecurityAssociations"
            delete_security_associations v1::DeleteSecurityAssociationsRequest {
                sas: vec![v1::SaName {
                    direction: "inbound".into(),
                    spi: "1281".into(),
                    peer: String::new(),
                }],
                ..v1::DeleteSecurityAssociationsRequest::default()
            };
        "ReserveSpi" reserve_spi v1::ReserveSpiRequest::default();
        "ChangeEndpoints" change_endpoints tokio_stream::empty::<v1::EndpointChanges>();
        "WatchAcquires" watch_acquires v1::WatchAcquiresRequest::default();
        "Capture" capture v1::CaptureRequest::default();
    }
    called.sort_unstable();
    let mut all = api::CALL_NAMES.to_vec();
    all.sort_unstable();
    assert_eq!(called, all);
    denied.sort_unstable();
    denied
}

/// Reads, tries to change something, and says how far it got.
fn as_client(socket: &Path) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut client = match api::connect(socket).await {
            Err(ConnectError::Denied { .. }) => return println!("CLIENT: denied"),
            connected => connected.unwrap(),
        };
        client.show_ports(v1::ShowRequest::default()).await.unwrap();
        let denied = denied_calls(&mut client).await;
        let captured = client.capture(v1::CaptureRequest::default()).await;
        let may_capture = match captured {
            Ok(stream) => stream.into_inner().message().await.unwrap().is_some(),
            Err(status) => {
                assert_eq!(status.code(), Code::PermissionDenied, "{status}");
                false
            }
        };
        match client.apply(apply_of(CONFIG)).await {
            Ok(_) => {
                assert!(may_capture, "an admin captures");
                assert_eq!(denied, [""; 0]);
                println!("CLIENT: read, change");
            }
            Err(status) => {
                assert!(!may_capture, "only admins capture");
                let of_administrators =
                    CALL_LIMITS.iter().filter(|limit| limit.right == CallRight::Administrator);
                let mut expected: Vec<_> = of_administrators.map(|limit| limit.name).collect();
                expected.sort_unstable();
                assert_eq!(denied, expected);
                assert_eq!(status.code(), Code::PermissionDenied, "{status}");
                assert!(status.message().contains("lockgate-admin"), "{status}");
                println!("CLIENT: read, no change");
            }
        }
    });
}
