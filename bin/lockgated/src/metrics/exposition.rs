//! Metrics as text, in the two formats that Prometheus reads: families of samples.

use std::fmt::Write as _;

/// In front of every name that is Lockgate's own.
const PREFIX: &str = "lockgate_";
/// Units in which families may be measured; the name ends with its unit.
const UNITS: [&str; 3] = ["seconds", "bytes", "packets"];

/// A text format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Format {
    /// Prometheus text format 0.0.4, which every reader knows.
    Text,
    /// OpenMetrics 1.0.0.
    OpenMetrics,
}

impl Format {
    /// The format that an `Accept` header asks for: OpenMetrics only if it names it, and does not
    /// like plain text better.
    pub(super) fn accepted(accept: &str) -> Format {
        let quality = |wanted: &str| {
            let ranges = accept.split(',').filter_map(|range| {
                let mut parts = range.split(';').map(str::trim);
                let named = parts.next()?.eq_ignore_ascii_case(wanted);
                let quality = parts.find_map(|part| part.strip_prefix("q="));
                let quality = quality.map_or(1.0, |text| text.parse::<f32>().unwrap_or(0.0));
                named.then_some(quality)
            });
            ranges.fold(0.0, f32::max)
        };
        let open = quality("application/openmetrics-text");
        if open > 0.0 && open >= quality("text/plain") { Format::OpenMetrics } else { Format::Text }
    }

    /// Its media type.
    pub(super) const fn content_type(self) -> &'static str {
        match self {
            Format::Text => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// The type of a family.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Only rises; its samples' names end with `_total`.
    Counter,
    Gauge,
    /// Always 1: its labels say it; its samples' names end with `_info`.
    Info,
}

/// A value.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Number {
    Integer(i128),
    Seconds(f64),
}

macro_rules! integers {
    ($($type:ty)*) => {
        $(impl From<$type> for Number {
            fn from(number: $type) -> Number {
                Number::Integer(number.into())
            }
        })*
    };
}

integers!(u32 i64 u64 bool);

impl From<f64> for Number {
    fn from(seconds: f64) -> Number {
        Number::Seconds(seconds)
    }
}

/// Names and values of a sample's labels.
pub(super) type Labels<const N: usize> = [(&'static str, String); N];

/// Text in the making.
pub(super) struct Exposition {
    format: Format,
    text: String,
}

impl Exposition {
    /// Empty text.
    pub(super) fn new(format: Format) -> Exposition {
        Exposition { format, text: String::new() }
    }

    /// The text as a whole.
    pub(super) fn into_text(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }

    /// A counter with labels. `name` lacks `lockgate_` and `_total`.
    pub(super) fn counter<const N: usize, V: Into<Number>>(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = (Labels<N>, V)>,
    ) {
        self.family(Kind::Counter, &format!("{PREFIX}{name}"), help, rows);
    }

    /// A gauge with labels.
    pub(super) fn gauge<const N: usize, V: Into<Number>>(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = (Labels<N>, V)>,
    ) {
        self.family(Kind::Gauge, &format!("{PREFIX}{name}"), help, rows);
    }

    /// A family whose labels say everything. `name` lacks `_info`.
    pub(super) fn info<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = Labels<N>>,
    ) {
        let rows = rows.into_iter().map(|labels| (labels, 1_u64));
        self.family(Kind::Info, &format!("{PREFIX}{name}"), help, rows);
    }

    /// A counter without labels.
    pub(super) fn count(&mut self, name: &str, help: &str, value: impl Into<Number>) {
        self.counter(name, help, [([], value)]);
    }

    /// A gauge without labels.
    pub(super) fn level(&mut self, name: &str, help: &str, value: impl Into<Number>) {
        self.gauge(name, help, [([], value)]);
    }

    /// A counter of the process, under the name that all exporters share.
    pub(super) fn process_count(&mut self, name: &str, help: &str, value: impl Into<Number>) {
        self.family(Kind::Counter, &format!("process_{name}"), help, [([], value)]);
    }

    /// A gauge of the process.
    pub(super) fn process_level(&mut self, name: &str, help: &str, value: impl Into<Number>) {
        self.family(Kind::Gauge, &format!("process_{name}"), help, [([], value)]);
    }

    fn family<const N: usize, V: Into<Number>>(
        &mut self,
        kind: Kind,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = (Labels<N>, V)>,
    ) {
        let suffix = match kind {
            Kind::Counter => "_total",
            Kind::Gauge => "",
            Kind::Info => "_info",
        };
        let (family, word) = match (self.format, kind) {
            (Format::OpenMetrics, Kind::Counter) => (name.to_owned(), "counter"),
            (Format::OpenMetrics, Kind::Info) => (name.to_owned(), "info"),
            // The older format knows no suffixes and no infos.
            (Format::Text, Kind::Counter) => (format!("{name}{suffix}"), "counter"),
            (Format::Text, Kind::Info) => (format!("{name}{suffix}"), "gauge"),
            (_, Kind::Gauge) => (name.to_owned(), "gauge"),
        };
        let help = self.escaped_help(help);
        let _ = writeln!(self.text, "# HELP {family} {help}\n# TYPE {family} {word}");
        let unit = UNITS.iter().find(|unit| name.ends_with(&format!("_{unit}")));
        if let (Format::OpenMetrics, Some(unit)) = (self.format, unit) {
            let _ = writeln!(self.text, "# UNIT {family} {unit}");
        }
        for (labels, value) in rows {
            let _ = write!(self.text, "{name}{suffix}");
            for (place, (label, value)) in labels.iter().enumerate() {
                let before = if place == 0 { '{' } else { ',' };
                let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
                let _ = write!(self.text, "{before}{label}=\"{value}\"");
            }
            let close = if N == 0 { "" } else { "}" };
            let _ = match value.into() {
                Number::Integer(number) => writeln!(self.text, "{close} {number}"),
                Number::Seconds(number) => writeln!(self.text, "{close} {number:?}"),
            };
        }
    }

    fn escaped_help(&self, help: &str) -> String {
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        match self.format {
            Format::Text => help,
            Format::OpenMetrics => help.replace('"', "\\\""),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openmetrics_is_answered_only_to_those_who_ask_for_it() {
        let prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
                          text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        for (accept, format) in [
            (prometheus, Format::OpenMetrics),
            ("application/openmetrics-text", Format::OpenMetrics),
            ("", Format::Text),
            ("*/*", Format::Text),
            ("text/html, */*;q=0.8", Format::Text),
            ("text/plain;version=0.0.4", Format::Text),
            ("application/openmetrics-text;q=0", Format::Text),
            ("application/openmetrics-text;q=0.3, text/plain;q=0.5", Format::Text),
            (";;,,q=", Format::Text),
        ] {
            assert_eq!(Format::accepted(accept), format, "{accept}");
        }
    }

    #[test]
    fn both_formats_name_a_counter_as_their_readers_expect() {
        let written = |format| {
            let mut text = Exposition::new(format);
            text.counter("cpu_seconds", "A \"b\" \\", [([("peer", "x\"\n".into())], 1.5)]);
            text.info("node", "Node", [[("version", "1".into())]]);
            text.into_text()
        };
        assert_eq!(
            written(Format::OpenMetrics),
            "# HELP lockgate_cpu_seconds A \\\"b\\\" \\\\\n\
             # TYPE lockgate_cpu_seconds counter\n\
             # UNIT lockgate_cpu_seconds seconds\n\
             lockgate_cpu_seconds_total{peer=\"x\\\"\\n\"} 1.5\n\
             # HELP lockgate_node Node\n\
             # TYPE lockgate_node info\n\
             lockgate_node_info{version=\"1\"} 1\n\
             # EOF\n"
        );
        assert_eq!(
            written(Format::Text),
            "# HELP lockgate_cpu_seconds_total A \"b\" \\\\\n\
             # TYPE lockgate_cpu_seconds_total counter\n\
             lockgate_cpu_seconds_total{peer=\"x\\\"\\n\"} 1.5\n\
             # HELP lockgate_node_info Node\n\
             # TYPE lockgate_node_info gauge\n\
             lockgate_node_info{version=\"1\"} 1\n"
        );
    }
}
