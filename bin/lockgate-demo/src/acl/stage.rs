//! The stage: three hosts and two gateways, what they count, and the results so far.
//!
//! ```text
//! client ── lan gw-a dmz ── server
//!               wan ── wire ── wan gw-b lan ── far server
//! ```

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use console::failure::Form;
use dataplane::DropReason;
use netlab::laboratory::connect;
use netlab::sites::Plan;
use netlab::{Daemon, Gateways, LabError, Namespace, interrupt};
use serde_json::Value;
use wire::Family;

use super::groups::Groups;
use super::report::{AclReport, CounterRow};
use super::traffic::{self, Addresses, Fate, Sent, SentCounts, Servers, Service, names};
use crate::play;
use crate::progress::Progress;
use crate::report::Check;

/// The gateway between client and server, and the client's site.
pub(super) const A: u8 = 1;
/// The gateway at the other end of the tunnel.
pub(super) const B: u8 = 2;
/// The network behind port `dmz`.
const DMZ: u8 = 3;
/// Time for a daemon's counters to be those of all packets that were sent.
const SETTLE: Duration = Duration::from_secs(30);
/// Time for a daemon's ports to be up.
const UP: Duration = Duration::from_secs(60);

/// The laboratory with its daemons and servers, and the results so far.
pub(super) struct Stage {
    // Torn down in this order: servers, daemons and the sites, then the third host.
    servers: Vec<Servers>,
    pub(super) gateways: Gateways,
    /// The host behind port `dmz` of gateway A.
    pub(super) server: Namespace,
    pub(super) report: AclReport,
    progress: Progress,
}

/// The server that the client asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Target {
    /// Behind port `dmz` of gateway A, whose groups judge.
    Dmz,
    /// Behind gateway B, through the tunnel; the groups of gateway B judge.
    Tunnel,
}

impl Target {
    pub(super) fn addresses(self) -> Addresses {
        match self {
            Target::Dmz => Addresses::of_host(DMZ),
            Target::Tunnel => Addresses::of_host(B),
        }
    }

    fn gateway(self) -> u8 {
        match self {
            Target::Dmz => A,
            Target::Tunnel => B,
        }
    }
}

/// Counters of Lockgate that must be as many as the packets that hosts sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Equal {
    /// Rules (`GROUP/NAME`), last rules (`lan (in)`), drop reasons or decisions (`would_deny`):
    /// their sum counts.
    pub(super) counters: &'static [&'static str],
    pub(super) sent: Vec<Sent>,
}

/// Returns what [`Equal`] compares: counters, and the questions of services.
pub(super) fn questions(counters: &'static [&'static str], services: &[Service]) -> Equal {
    Equal { counters, sent: services.iter().map(|it| Sent::Questions(*it)).collect() }
}

/// Returns what [`Equal`] compares: counters, and the answers of services.
pub(super) fn answers(counters: &'static [&'static str], services: &[Service]) -> Equal {
    Equal { counters, sent: services.iter().map(|it| Sent::Answers(*it)).collect() }
}

/// Answers and counts that questions must lead to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Expected<'a> {
    pub(super) target: Target,
    /// Services that are asked, over both families.
    pub(super) asked: &'a [Service],
    /// Those that answer.
    pub(super) answered: &'a [Service],
    /// Counters. A drop reason of groups that is not in it must stay at zero.
    pub(super) equal: Vec<Equal>,
}

impl<'a> Expected<'a> {
    /// All services of the server behind `dmz` are asked, and these answer.
    pub(super) fn answered(answered: &'a [Service], equal: Vec<Equal>) -> Expected<'a> {
        Expected { target: Target::Dmz, asked: &Service::ALL, answered, equal }
    }

    fn fate(&self, service: Service) -> Fate {
        match self.answered.contains(&service) {
            true => Fate::Answered,
            false => Fate::Silent,
        }
    }

    /// All comparisons, with those of drop reasons that must stay at zero.
    fn comparisons(&self) -> Vec<Equal> {
        let named = |reason: &str| self.equal.iter().any(|equal| equal.counters == [reason]);
        let others = GROUP_DROPS.iter().filter(|counters| !named(counters[0]));
        let others = others.map(|counters| Equal { counters, sent: Vec::new() });
        self.equal.iter().cloned().chain(others).collect()
    }
}

/// Counters of the drops by groups, one each.
const GROUP_DROPS: [&[&str]; 2] =
    [&[DropReason::GroupDeny.name()], &[DropReason::GroupNoMatch.name()]];

/// Counts of a gateway and of the kernel so far.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Reading {
    /// Rules, last rules of ports' sides, decisions, drop reasons.
    pub(super) counted: BTreeMap<String, u64>,
    /// Packets that client and server sent.
    pub(super) sent: SentCounts,
}

impl Reading {
    /// Returns how much counters have grown together since an earlier reading.
    pub(super) fn counted_since(&self, earlier: &Reading, counters: &[&str]) -> u64 {
        let of = |reading: &Reading, name: &str| reading.counted.get(name).copied().unwrap_or(0);
        let grown = counters.iter().map(|it| of(self, it).saturating_sub(of(earlier, it)));
        grown.sum()
    }

    /// Returns how many packets were sent since an earlier reading.
    pub(super) fn sent_since(&self, earlier: &Reading, sent: &[Sent]) -> u64 {
        let of = |reading: &Reading, what| reading.sent.get(what).copied().unwrap_or(0);
        sent.iter().map(|what| of(self, what).saturating_sub(of(earlier, what))).sum()
    }
}

/// The answer of `lockgate explain`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Explained {
    pub(super) verdict: String,
    pub(super) reason: Option<String>,
    /// Rules that decide, one a question.
    pub(super) decided_by: Vec<String>,
}

impl Stage {
    /// Builds the namespaces, starts the daemon of gateway A without groups, and the servers.
    pub(super) fn build(form: Form) -> Result<Stage, LabError> {
        let progress = Progress::start(form);
        let gateways = Gateways::build(Plan::default())?;
        let server = server(&gateways)?;
        let mut stage =
            Stage { servers: Vec::new(), gateways, server, report: AclReport::new(), progress };
        for target in [Target::Dmz, Target::Tunnel] {
            let servers = Servers::start(stage.host_of(target), target.addresses())?;
            stage.servers.push(servers);
        }
        for host in [stage.client(), stage.host_of(Target::Dmz), stage.host_of(Target::Tunnel)] {
            traffic::count(host)?;
        }
        stage.say("", "client, gw-a, server, and wire, gw-b, far server: six namespaces");
        stage.set(&Groups::none());
        // Questions come by other queues than answers: by those of another worker.
        stage.gateways.file_mut(A).workers = "2".to_owned();
        stage.start(A)?;
        Ok(stage)
    }

    /// The host that asks.
    pub(super) fn client(&self) -> &Namespace {
        &self.gateways.site(A).host
    }

    fn host_of(&self, target: Target) -> &Namespace {
        match target {
            Target::Dmz => &self.server,
            Target::Tunnel => &self.gateways.site(B).host,
        }
    }

    /// Starts a daemon and waits until its ports are up.
    pub(super) fn start(&mut self, gateway: u8) -> Result<(), LabError> {
        self.gateways.start(gateway)?;
        let end = Instant::now() + UP;
        let is_up = |port: &Value| port["state"] == "up";
        while !self.gateways.daemon(gateway)?.ports()?.iter().all(is_up) {
            if Instant::now() > end {
                let what =
                    format!("waiting for the ports of {}", self.gateways.file(gateway).name());
                return Err(LabError::TimedOut { what, limit: UP, output: String::new() });
            }
            interrupt::sleep(Duration::from_millis(20))?;
        }
        Ok(())
    }

    /// Stops a daemon as its service manager does, and starts it again. What it has counted is
    /// summed up before.
    pub(super) fn restart(&mut self, gateway: u8) -> Result<(), LabError> {
        self.sum_up(gateway)?;
        if let Some(daemon) = self.gateways.take(gateway) {
            daemon.terminate()?;
        }
        self.start(gateway)
    }

    /// Waits until no packet is under way in a daemon, and adds its drops and what its ledgers are
    /// out of balance by to the report.
    pub(super) fn sum_up(&mut self, gateway: u8) -> Result<(), LabError> {
        let counters = self.gateways.daemon(gateway)?.settled(SETTLE)?;
        *self.report.ledger_imbalance.get_or_insert_default() += counters.ledger_imbalance;
        for (reason, count) in counters.drops.into_iter().filter(|&(_, count)| count > 0) {
            *self.report.drops.entry(reason).or_default() += count;
        }
        Ok(())
    }

    /// Prints a line of progress.
    pub(super) fn say(&self, verdict: &str, text: &str) {
        self.progress.say(verdict, text);
    }

    /// Notes the result of a check.
    pub(super) fn note(&mut self, check: Check) {
        play::note(&mut self.report.checks, self.progress, check);
    }

    fn set(&mut self, groups: &Groups) {
        let file = self.gateways.file_mut(A);
        file.lan = groups.lan_lines();
        file.extra = groups.lines();
    }

    /// Applies groups to gateway A.
    pub(super) fn apply(&mut self, groups: &Groups) -> Result<(), LabError> {
        self.set(groups);
        self.apply_file(A)
    }

    /// Writes the configuration of a gateway and applies it.
    pub(super) fn apply_file(&self, gateway: u8) -> Result<(), LabError> {
        let path = self.gateways.file(gateway).write()?;
        self.gateways.daemon(gateway)?.apply(&path).map(drop)
    }

    /// Reads the counters of the gateway whose groups judge, and those of the hosts.
    pub(super) fn reading(&self, target: Target) -> Result<Reading, LabError> {
        let mut sent = traffic::counted(self.client())?;
        let is_of_server = |what: &Sent| {
            matches!(what, Sent::Answers(_) | Sent::StreamArrived | Sent::FloodArrived)
        };
        sent.retain(|what, _| !is_of_server(what));
        let of_server = traffic::counted(self.host_of(target))?;
        sent.extend(of_server.into_iter().filter(|(what, _)| is_of_server(what)));
        let daemon = self.gateways.daemon(target.gateway())?;
        Ok(Reading { counted: counted(daemon)?, sent })
    }

    /// The table of connections of gateway A.
    pub(super) fn table(&self) -> Result<Value, LabError> {
        let mut shown = self.gateways.daemon(A)?.ask(&["show", "connection", "port", "1"])?;
        Ok(shown["table"].take())
    }

    /// Asks services and notes whether they answered as they must, and whether the counters are
    /// those of the packets that were sent.
    pub(super) fn expect(
        &mut self,
        name: &'static str,
        expected: &Expected,
    ) -> Result<(), LabError> {
        let before = self.reading(expected.target)?;
        let wanted: Vec<_> = expected.asked.iter().map(|it| (*it, expected.fate(*it))).collect();
        let fates = traffic::ask(self.client(), expected.target.addresses(), &wanted)?;
        let comparisons = expected.comparisons();
        let end = Instant::now() + SETTLE;
        let rows = loop {
            let after = self.reading(expected.target)?;
            let rows = compare(name, &comparisons, &before, &after);
            if rows.iter().all(|row| row.counted == row.sent) || Instant::now() > end {
                break rows;
            }
            interrupt::sleep(Duration::from_millis(50))?;
        };
        let wrong = fates.iter().filter(|(service, _, fate)| *fate != expected.fate(*service));
        let wrong: Vec<String> = wrong
            .map(|(service, family, fate)| {
                let verb = match fate {
                    Fate::Answered => "answered",
                    Fate::Silent => "did not answer",
                };
                format!("{} {verb} over {}", service.name(), family_name(*family))
            })
            .collect();
        let ok = wrong.is_empty() && rows.iter().all(|row| row.counted == row.sent);
        let detail = detail(expected, &wrong, &rows);
        self.report.counters.extend(rows.into_iter().filter(|row| row.sent + row.counted > 0));
        self.note(Check { name, ok, detail });
        Ok(())
    }

    /// Asks gateway A's daemon what becomes of a question to the server behind `dmz`.
    pub(super) fn explain(&self, service: Service, family: Family) -> Result<Explained, LabError> {
        let [from, to]: [IpAddr; 2] =
            [Addresses::of_host(A), Target::Dmz.addresses()].map(|it| it.of(family));
        let [protocol, from, to] = service.flow(from, to);
        let words = ["explain", "--in", "lan", &protocol, &from, &to];
        let answer = self.gateways.daemon(A)?.ask(&words)?;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let policies = answer["policies"].as_array().map(Vec::as_slice).unwrap_or_default();
        Ok(Explained {
            verdict: text(&answer["verdict"]).unwrap_or_default(),
            reason: text(&answer["reason"]),
            decided_by: policies.iter().filter_map(|it| text(&it["decided_by"])).collect(),
        })
    }

    /// Ends the play: everything is torn down, and the report is complete.
    ///
    /// # Errors
    /// [`LabError::Interrupted`], torn down all the same.
    pub(super) fn close(mut self, outcome: Result<(), LabError>) -> Result<AclReport, LabError> {
        let (checks, gateways) = (&mut self.report.checks, &self.gateways);
        self.report.ok = play::end(outcome, checks, || play::logs_of(gateways), self.progress)?;
        let Stage { report, .. } = self;
        Ok(report)
    }
}

/// Makes the third host and its link to gateway A.
fn server(gateways: &Gateways) -> Result<Namespace, LabError> {
    let server = gateways.sites.laboratory.namespace("server")?;
    let gateway = &gateways.site(A).gateway;
    connect((gateway, "dmz"), (&server, "eth0"), 1)?;
    gateway.ip(&format!(
        "link set dmz up
         addr add 10.{DMZ}.0.1/24 dev dmz
         addr add 2001:db8:{DMZ}::1/64 dev dmz nodad"
    ))?;
    server.ip(&format!(
        "link set eth0 up
         addr add 10.{DMZ}.0.10/24 dev eth0
         addr add 2001:db8:{DMZ}::10/64 dev eth0 nodad
         route add default via 10.{DMZ}.0.1
         route add ::/0 via 2001:db8:{DMZ}::1"
    ))?;
    gateway.offload_off("dmz")?;
    server.offload_off("eth0")?;
    Ok(server)
}

/// The counters of a daemon: rules and decisions as `show group` lists them, and drops.
fn counted(daemon: &Daemon) -> Result<BTreeMap<String, u64>, LabError> {
    let answer = daemon.ask(&["show", "group"])?;
    let mut counted = group_counters(&answer).ok_or_else(|| LabError::Answer {
        command: "lockgate show group --json".to_owned(),
        answer: answer.to_string(),
    })?;
    counted.extend(daemon.counters()?.drops);
    Ok(counted)
}

fn group_counters(answer: &Value) -> Option<BTreeMap<String, u64>> {
    let list = |value: &Value| value.as_array().cloned();
    let mut counted = BTreeMap::new();
    for group in list(&answer["groups"])? {
        for rule in list(&group["rules"])? {
            let name = format!("{}/{}", group["name"].as_str()?, rule["name"].as_str()?);
            counted.insert(name, rule["decided"]["packets"].as_u64()?);
        }
    }
    for port in list(&answer["ports"])? {
        let name = format!("{} ({})", port["port"].as_str()?, port["side"].as_str()?);
        counted.insert(name, port["decided"]["packets"].as_u64()?);
    }
    for sum in list(&answer["sums"])? {
        let packets = sum["outbound"]["packets"].as_u64()? + sum["inbound"]["packets"].as_u64()?;
        counted.insert(sum["action"].as_str()?.to_owned(), packets);
    }
    Some(counted)
}

fn compare(
    check: &'static str,
    comparisons: &[Equal],
    before: &Reading,
    after: &Reading,
) -> Vec<CounterRow> {
    let rows = comparisons.iter().map(|Equal { counters, sent }| CounterRow {
        check,
        counter: counters.join(" + "),
        counted: after.counted_since(before, counters),
        sent: after.sent_since(before, sent),
    });
    rows.collect()
}

fn detail(expected: &Expected, wrong: &[String], rows: &[CounterRow]) -> String {
    let silent: Vec<Service> = expected
        .asked
        .iter()
        .copied()
        .filter(|service| expected.fate(*service) == Fate::Silent)
        .collect();
    let mut detail = match (wrong, silent.as_slice()) {
        ([], []) => format!("answered: {}", names(expected.answered)),
        ([], silent) => {
            format!("answered: {}; not: {}", names(expected.answered), names(silent))
        }
        (wrong, _) => wrong.join(", "),
    };
    let (equal, other): (Vec<_>, Vec<_>) = rows
        .iter()
        .filter(|row| row.counted + row.sent > 0)
        .partition(|row| row.counted == row.sent);
    for CounterRow { counter, counted, sent, .. } in other {
        detail += &format!("; {counter} counted {counted} of {sent} sent");
    }
    if !equal.is_empty() {
        let equal: Vec<String> =
            equal.iter().map(|row| format!("{} {}", row.counter, row.counted)).collect();
        detail += &format!("; counted as sent: {}", equal.join(", "));
    }
    detail
}

/// The name of a family, as checks show it.
pub(super) fn family_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_groups_are_read_by_the_names_that_explain_uses() {
        let decided = |packets: u64| serde_json::json!({"packets": packets, "bytes": 9});
        let answer = serde_json::json!({
            "groups": [{"name": "web", "rules": [{"name": "http", "decided": decided(3)}]}],
            "ports": [{"port": "lan", "side": "in", "decided": decided(4)}],
            "sums": [{"action": "would_deny", "outbound": decided(1), "inbound": decided(2)}],
        });
        let counted = group_counters(&answer).unwrap();
        let expected = [("lan (in)", 4), ("web/http", 3), ("would_deny", 3)];
        assert!(counted.iter().map(|(name, count)| (&**name, *count)).eq(expected));
        assert_eq!(group_counters(&Value::Null), None);
    }

    #[test]
    fn a_counter_that_is_not_that_of_the_packets_sent_is_shown_with_both() {
        let http = Sent::Questions(Service::Http);
        let reading = |counted: u64, sent: u64| Reading {
            counted: [("web/http".to_owned(), counted)].into(),
            sent: [(http, sent)].into(),
        };
        let expected =
            Expected::answered(&[Service::Http], vec![questions(&["web/http"], &[Service::Http])]);
        let comparisons = expected.comparisons();
        assert_eq!(comparisons.len(), 3, "drops by groups must stay at zero: {comparisons:?}");
        let rows = compare("one", &comparisons, &reading(5, 7), &reading(8, 11));
        assert_eq!((rows[0].counted, rows[0].sent), (3, 4));
        assert!(detail(&expected, &[], &rows).ends_with("; web/http counted 3 of 4 sent"));
    }
}
