//! The process itself: what it has given away, what it tells.

use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use netlab::ping::Ping;
use netlab::process::Running;
use netlab::sites::{Plan, WAN};
use netlab::{LabError, Namespace};

#[path = "../../../bin/lockgated/src/metrics/lint.rs"]
mod lint;

/// CAP_NET_ADMIN, CAP_NET_RAW, CAP_IPC_LOCK, CAP_PERFMON, CAP_BPF.
const NEEDED: u64 = 1 << 12 | 1 << 13 | 1 << 14 | 1 << 38 | 1 << 39;
/// Address where metrics are read.
const METRICS: &str = "127.0.0.1:9617";
const LONG: Duration = Duration::from_secs(60);

/// A line of a file below `/proc`, without its name.
fn line(text: &str, name: &str) -> String {
    let found = text.lines().find_map(|line| line.strip_prefix(name));
    found.unwrap_or_else(|| panic!("no {name} in {text}")).trim().to_owned()
}

#[test]
fn no_thread_of_a_running_daemon_has_more_than_it_needs() {
    let Some(lab) = net::running("privileges", Plan::default()) else { return };
    for number in [1, 2] {
        let pid = lab.gateways.daemon(number).unwrap().pid();
        let read = |path: &str| {
            std::fs::read_to_string(format!("/proc/{pid}/{path}")).unwrap_or_else(|error| {
                panic!("/proc/{pid}/{path}: {error}");
            })
        };
        let mut threads = 0;
        for task in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
            let name = task.unwrap().file_name().into_string().unwrap();
            let status = read(&format!("task/{name}/status"));
            let set = |set: &str| u64::from_str_radix(&line(&status, set), 16).unwrap();
            for (name, most) in [
                ("CapPrm:", NEEDED),
                ("CapEff:", NEEDED),
                ("CapBnd:", NEEDED),
                ("CapInh:", 0),
                ("CapAmb:", 0),
            ] {
                assert_eq!(set(name) & !most, 0, "{name} {:#x} of {status}", set(name));
            }
            assert_eq!(line(&status, "NoNewPrivs:"), "1");
            threads += 1;
        }
        assert!(threads >= 2, "control and a worker");
        let core = line(&read("limits"), "Max core file size");
        assert!(core.starts_with("0 ") && core.contains(" 0 "), "{core}");
        let locked = line(&read("status"), "VmLck:");
        assert_ne!(locked, "0 kB", "keys can reach a swap device");
    }
}

/// Returns the answer that an HTTP client inside gets, by nothing but bash.
fn get(inside: &Namespace, path: &str) -> Result<String, LabError> {
    get_as(inside, path, "*/*")
}

/// Returns the answer that a client gets that accepts this media type.
fn get_as(inside: &Namespace, path: &str, accept: &str) -> Result<String, LabError> {
    let (host, port) = METRICS.rsplit_once(':').unwrap();
    let script = format!(
        "exec 3<>/dev/tcp/{host}/{port}; \
         printf 'GET {path} HTTP/1.0\\r\\nAccept: {accept}\\r\\n\\r\\n' >&3; cat <&3"
    );
    inside.run(&["bash", "-c", &script], LONG)?.success()
}

/// The sample of this name and labels.
fn sample(text: &str, name: &str) -> u64 {
    line(text, &format!("{name} ")).parse().unwrap()
}

#[test]
fn metrics_say_what_the_api_says() {
    let Some(mut lab) = net::lab("metrics", Plan::default()) else { return };
    lab.gateways.file_mut(1).metrics = METRICS.to_owned();
    lab.gateways.start_all().unwrap();
    let before = get(&lab.gateways.site(1).gateway, "/metrics").unwrap();
    let to = lab.gateways.site(2).host_v4();
    let answers = Ping::new(&to, 20).run_until_answered(&lab.gateways.site(1).host).unwrap();
    assert!(answers.all_answered(), "{}", answers.text);
    lab.balances();
    // All readers of a second get the same report.
    std::thread::sleep(Duration::from_millis(1100));
    let text = get(&lab.gateways.site(1).gateway, "/metrics").unwrap();
    assert!(text.starts_with("HTTP/1.0 200 OK"), "{text}");
    assert!(text.contains("text/plain; version=0.0.4"), "{text}");
    let plain = lint::samples(text.split_once("\r\n\r\n").unwrap().1);
    // The time of the last packet of a peer is there within a second.
    let heard = "lockgate_peer_last_received_timestamp_seconds{peer=\"gw-b\"}";
    let end = Instant::now() + LONG;
    let open = loop {
        let open = "application/openmetrics-text";
        let open = get_as(&lab.gateways.site(1).gateway, "/metrics", open).unwrap();
        let open = lint::samples(open.split_once("\r\n\r\n").unwrap().1);
        if open.contains_key(heard) || Instant::now() > end {
            break open;
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    assert!(open.get(heard).is_some_and(|time| *time > 1e9), "{open:?}");
    let lacking: Vec<_> = plain.keys().filter(|name| !open.contains_key(*name)).collect();
    assert!(lacking.is_empty(), "only in the older format: {lacking:?}");
    let received = "lockgate_peer_received_packets_total{peer=\"gw-b\"}";
    assert!(plain[received] >= 20.0, "{text}");
    let policy = "lockgate_policy_packets_total{policy=\"to-gw-b\",direction=\"outbound\"}";
    let sealed = sample(&text, policy) - sample(&before, policy);
    assert!(sealed >= 20, "{sealed} packets sealed\n{text}");
    assert_eq!(sample(&text, "lockgate_ledger_imbalance_packets"), 0);
    assert_eq!(sample(&text, "lockgate_guard_intact"), 1);
    assert_eq!(sample(&text, "lockgate_frames_missing{worker=\"0\"}"), 0);
    for port in lab.gateways.daemon(1).unwrap().ports().unwrap() {
        let name = port["name"].as_str().unwrap();
        let received = port["ledger"]["received"].as_u64().unwrap();
        let metric = format!("lockgate_port_received_packets_total{{port=\"{name}\"}}");
        let shown = sample(&text, &metric);
        // Some may have come in between.
        assert!(shown <= received && received - shown < 20, "{metric}: {shown}, API {received}");
        assert_eq!(sample(&text, &format!("lockgate_port_up{{port=\"{name}\"}}")), 1);
    }
    let index = get(&lab.gateways.site(1).gateway, "/").unwrap();
    assert!(index.starts_with("HTTP/1.0 200") && index.contains("/metrics"), "{index}");
    let health = get(&lab.gateways.site(1).gateway, "/healthz").unwrap();
    assert!(health.starts_with("HTTP/1.0 200"), "{health}");
    lab.gateways.site(1).gateway.ip(&format!("link set {WAN} down")).unwrap();
    let end = Instant::now() + LONG;
    let told = loop {
        let health = get(&lab.gateways.site(1).gateway, "/healthz").unwrap();
        if health.starts_with("HTTP/1.0 503") || Instant::now() > end {
            break health;
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    assert!(told.contains("port wan: down"), "{told}");
    let elsewhere = get(&lab.gateways.site(1).gateway, "/x").unwrap();
    assert!(elsewhere.starts_with("HTTP/1.0 404"), "{elsewhere}");
}

/// Time in which a service manager wants to hear from a daemon.
const WATCHDOG: Duration = Duration::from_secs(3);

/// A daemon that has nothing to do lives too: nobody may end it.
#[test]
fn an_idle_daemon_is_ready_feeds_the_watchdog_and_says_that_it_ends() {
    let Some(lab) = net::lab("service_manager", Plan::default()) else { return };
    let socket = lab.gateways.directory().join("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(LONG)).unwrap();
    let hear = || {
        let mut buffer = [0; 1024];
        manager.recv(&mut buffer).map(|length| String::from_utf8_lossy(&buffer[..length]).into())
    };
    let mut command = lab.gateways.site(1).gateway.command(&lab.gateways.programs.lockgated);
    command.arg("--config").arg(lab.gateways.file(1).write().unwrap());
    command.env("NOTIFY_SOCKET", &socket);
    command.env("WATCHDOG_USEC", WATCHDOG.as_micros().to_string()).env_remove("WATCHDOG_PID");
    let daemon = Running::start(command).unwrap();
    let first: String = hear().unwrap_or_else(|error| panic!("{error}: {}", daemon.stderr()));
    assert!(first.starts_with("READY=1\nSTATUS=2 netdevs"), "{first}");
    let mut last = Instant::now();
    for _ in 0..4 {
        let told: String = hear().unwrap();
        assert_eq!(told, "WATCHDOG=1\n");
        // The daemon sends three messages in this time; a busy machine may delay a message.
        assert!(last.elapsed() < 10 * WATCHDOG, "{:?} without a word", last.elapsed());
        last = Instant::now();
    }
    let ended = daemon.terminate(LONG).unwrap();
    assert!(ended.status.success(), "{ended:?}");
    let told = std::iter::from_fn(|| hear().ok()).find(|told: &String| !told.contains("WATCHDOG"));
    assert!(told.as_ref().is_some_and(|told| told.starts_with("STOPPING=1\n")), "{told:?}");
}

#[test]
fn a_hangup_applies_the_file_and_a_stopped_daemon_is_named() {
    let Some(lab) = net::running("hangup", Plan::default()) else { return };
    let path = lab.gateways.file(1).path();
    let good = std::fs::read_to_string(&path).unwrap();
    let policy = "
[[policy]]
name = \"lookup\"
action = \"bypass\"
local = [\"any\"]
remote = [\"9.9.9.9/32\"]
";
    let running = |lab: &net::Lab| lab.gateways.daemon(1).unwrap().run(&["export"]).unwrap().stdout;
    for (more, event) in [(policy, "applied"), ("[port.lan]\n", "apply_refused")] {
        std::fs::write(&path, format!("{good}{more}")).unwrap();
        lab.gateways.daemon(1).unwrap().hang_up();
        net::wait_for(event, || !net::events(&lab.gateways, 1, event).is_empty());
        assert!(running(&lab).contains("9.9.9.9"), "{event}");
    }
    let refused = net::events(&lab.gateways, 1, "apply_refused");
    assert_eq!(refused[0]["subject"], path.display().to_string());
    let daemon = lab.gateways.daemon(1).unwrap();
    daemon.pause();
    let status = daemon.run(&["status"]).unwrap();
    daemon.resume();
    let named = format!("lockgated (process {}, state T) does not answer", daemon.pid());
    assert!(status.stderr.contains(&named), "{}", status.stderr);
    assert_eq!(status.status.code(), Some(1));
    std::fs::write(&path, good).unwrap();
    lab.flows_again();
    lab.balances();
}
