//! A plan as text.

use console::output::{Columns, Numbers, counted, table, wrapped};
use console::terminal::Terminal;
use offload::{Ability, Placing, Plan, Reason, Source};

use super::{Planned, action, version};

/// Lines of a list at most, unless all are asked for.
pub(super) const MOST_LINES: usize = 20;
/// Columns of a line where there is no terminal.
const USUAL_COLUMNS: usize = 100;

/// The reasons of a plan with the number of rules of each, the most first.
pub(super) fn by_reason(plan: &Plan) -> Vec<(&Reason, usize)> {
    let mut reasons: Vec<(&Reason, usize)> = Vec::new();
    for (_, reason) in &plan.left {
        match reasons.iter_mut().find(|(known, _)| known.name() == reason.name()) {
            Some((_, rules)) => *rules += 1,
            None => reasons.push((reason, 1)),
        }
    }
    reasons.sort_by_key(|(reason, rules)| (std::cmp::Reverse(*rules), reason.name()));
    reasons
}

impl Planned<'_> {
    /// The plan, with at most so many lines in a list.
    pub(super) fn text(&self, most: usize) -> String {
        let columns = Columns::Within(Terminal::stdout().width().unwrap_or(USUAL_COLUMNS));
        let sas = super::sas::text(&self.sas, columns);
        [self.head(), self.placed(most), self.reasons(columns), self.left(most), sas].concat()
    }

    fn head(&self) -> String {
        let card = self.card;
        let source = match card.source {
            Source::Emulated => "emulated: software plays it",
            Source::Asked => "as its driver answered",
            Source::AsRead => "as its documents read; not tried",
        };
        let abilities = match &card.rules {
            Ability::Lacks(why) => format!("no rules: {why}"),
            Ability::Has(rules) => format!(
                "{} for all its ports, order {}, {} ms to program one",
                entries(rules.entries.into()),
                rules.order.name(),
                rules.programming_ms
            ),
        };
        let plan = &self.plan;
        let rules = plan.place.len() + plan.left.len();
        let share = 100.0 * plan.share.fraction();
        let (packets, assumed) = match self.counters {
            Some(_) => ("of the packets that were counted", String::new()),
            None => (
                "of the packets",
                "No counters: every rule is taken to decide as many packets as any other.\n".into(),
            ),
        };
        let notes: String = self.notes.iter().map(|note| format!("{note}\n")).collect();
        format!(
            "Card {} ({source})\n {abilities}\n ports: {}\n{assumed}\n\
             {} of {} would be placed, {}: {share:.1} % {packets}\n{notes}\n",
            card.name,
            if self.ports.is_empty() { "none".into() } else { self.ports.join(", ") },
            plan.place.len(),
            counted(rules as u64, "rule"),
            entries(plan.entries),
        )
    }

    fn placed(&self, most: usize) -> String {
        let row = |placing: &Placing| {
            let packets = self.packets(placing.key);
            vec![
                self.name(placing.key).to_owned(),
                version(placing.key.family).to_string(),
                action(&placing.policy).to_owned(),
                placing.rule.entries().to_string(),
                placing.guards.len().to_string(),
                packets.map_or("-".into(), |packets| packets.to_string()),
                self.port_names(&placing.rule.ports).join(" "),
            ]
        };
        let header = ["rule", "IP", "action", "entries", "behind", "packets", "ports"];
        let placed = &self.plan.place;
        let rows = placed.iter().take(most).map(row);
        let text =
            table("Rules that would be placed, winners first", &header, rows, Numbers(3..=5));
        with_rest(text, placed.len(), most)
    }

    fn reasons(&self, columns: Columns) -> String {
        let rows = by_reason(&self.plan).into_iter().map(|(reason, rules)| {
            vec![reason.name().to_owned(), rules.to_string(), reason.help().to_owned()]
        });
        let title = "Rules that the gateway decides itself, by reason";
        wrapped(title, &["reason", "rules", "meaning"], rows, Numbers(1..=1), columns)
    }

    fn left(&self, most: usize) -> String {
        let left = &self.plan.left;
        let rows = left.iter().take(most).map(|(key, reason)| {
            let packets = self.packets(*key);
            vec![
                self.name(*key).to_owned(),
                version(key.family).to_string(),
                action(self.policy(*key)).to_owned(),
                packets.map_or("-".into(), |packets| packets.to_string()),
                reason.name().to_owned(),
                self.ports_of(*key).join(" "),
                reason.cause().map_or("", |key| self.name(key)).to_owned(),
            ]
        });
        let header = ["rule", "IP", "action", "packets", "reason", "ports", "because of"];
        let text = table("Rules that the gateway decides itself", &header, rows, Numbers(3..=3));
        with_rest(text, left.len(), most)
    }
}

/// A list with a line about what it leaves out.
fn with_rest(mut text: String, all: usize, most: usize) -> String {
    if all > most {
        text.pop();
        text.push_str(&format!(" … and {} more: --all\n\n", all - most));
    }
    text
}

fn entries(count: u64) -> String {
    if count == 1 { "1 entry".to_owned() } else { format!("{count} entries") }
}
