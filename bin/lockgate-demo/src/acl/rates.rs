//! The comparison: throughput and round trips by the rules: none, stateless, stateful.

use std::time::Duration;

use netlab::ping::{Ping, percentile};
use netlab::{LabError, iperf};
use wire::Family;

use super::groups::{Groups, Mode, Rule, tcp_to};
use super::report::Rate;
use super::stage::{Stage, Target};
use crate::report::Check;

/// Rows of the comparison: no groups, and numbers of rules whose last permits or reflects.
const CASES: [Case; 4] = [
    Case { rules: None, kind: "none" },
    Case { rules: Some(1), kind: STATELESS },
    Case { rules: Some(1000), kind: STATELESS },
    Case { rules: Some(1000), kind: STATEFUL },
];
const STATELESS: &str = "stateless";
const STATEFUL: &str = "stateful";
/// Rounds, each with all rows in another order: whatever else the machine does meets all rows.
const ROUNDS: usize = 3;
/// Pings of a row in a round, and the time between two.
const PINGS: (u32, Duration) = (200, Duration::from_millis(2));
/// TCP sends no faster.
const BITS_PER_SECOND: u64 = 10_000_000_000;

/// Subject of a row of the comparison.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Case {
    rules: Option<u32>,
    kind: &'static str,
}

impl Case {
    fn groups(self) -> Groups {
        let Some(count) = self.rules else { return Groups::none() };
        let all = Rule::permit("all", "");
        last_of(count, if self.kind == STATEFUL { all.reflect() } else { all })
    }
}

/// A row of the comparison while it is measured.
#[derive(Default)]
struct Row {
    gbps: Vec<f64>,
    pings_us: Vec<f64>,
}

/// Scene 14: the same traffic without groups, past 1 and 1000 rules, and past 1000 that track.
pub(super) fn compare(stage: &mut Stage, seconds: u32) -> Result<(), LabError> {
    let server = iperf::Server::start(&stage.server)?;
    let mut rows: Vec<Row> = CASES.iter().map(|_| Row::default()).collect();
    for round in 0..ROUNDS {
        for place in (0..rows.len()).map(|place| (place + round) % CASES.len()) {
            stage.apply(&CASES[place].groups())?;
            rows[place].measure(stage, seconds)?;
        }
    }
    drop(server);
    let answered: usize = rows.iter().map(|row| row.pings_us.len()).sum();
    let ok =
        rows.iter().all(|row| !row.pings_us.is_empty() && row.gbps.iter().all(|&gbps| gbps > 0.0));
    stage.report.rates = CASES.into_iter().zip(rows).map(|(case, row)| row.rate(case)).collect();
    let detail = format!("{answered} pings answered; the figures are in a table");
    let name = "pings and TCP pass 1 and 1000 rules, and 1000 that track connections";
    stage.note(Check { name, ok, detail });
    Ok(())
}

impl Row {
    fn measure(&mut self, stage: &Stage, seconds: u32) -> Result<(), LabError> {
        let to = Target::Dmz.addresses().of(Family::V4).to_string();
        let (count, interval) = PINGS;
        let ping = Ping { interval, ..Ping::new(&to, count) };
        self.pings_us.extend(ping.run_until_answered(stage.client())?.times_us);
        let tcp = iperf::start_bounded_tcp(stage.client(), &to, seconds, BITS_PER_SECOND)?;
        self.gbps.push(tcp.finish()? as f64 * 8.0 / 1e9 / f64::from(seconds));
        Ok(())
    }

    fn rate(mut self, Case { rules, kind }: Case) -> Rate {
        self.gbps.sort_by(f64::total_cmp);
        self.pings_us.sort_by(f64::total_cmp);
        let gbps = |part| percentile(&self.gbps, part).unwrap_or(0.0);
        Rate {
            rules,
            kind,
            tcp_gbps: gbps(0.5),
            tcp_gbps_range: [gbps(0.0), gbps(1.0)],
            ping_p50_us: percentile(&self.pings_us, 0.5),
        }
    }
}

/// Groups with a number of rules, of which the last lets everything pass and no other matches.
fn last_of(count: u32, last: Rule) -> Groups {
    let other = |number: u32| {
        // At most 1000: it fits.
        let what = tcp_to(10_000 + number as u16);
        Rule::deny(format!("other-{number}"), what).from("198.51.100.0/24").to("203.0.113.0/24")
    };
    let rules: Vec<Rule> = (1..count).map(other).chain([last]).collect();
    Groups::none().lan_in(&["many"]).group("many", Mode::Enforce, &rules)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_shows_medians_and_the_range_of_its_rounds() {
        let row = Row { gbps: vec![3.0, 1.0, 2.0], pings_us: vec![9.0, 5.0, 7.0] };
        let rate = row.rate(Case { rules: Some(100), kind: STATEFUL });
        assert_eq!((rate.tcp_gbps, rate.tcp_gbps_range), (2.0, [1.0, 3.0]));
        assert_eq!((rate.rules, rate.ping_p50_us), (Some(100), Some(7.0)));
        assert_eq!(rate.kind, "stateful");
    }
}
