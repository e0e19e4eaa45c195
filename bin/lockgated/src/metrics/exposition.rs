//! Families of samples, described once and encoded by the two libraries that know the formats:
//! `prometheus` for text format 0.0.4, `prometheus-client` for OpenMetrics.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use mime::Mime;
use prometheus::TextEncoder;
use prometheus::proto::{self, MetricFamily};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    CounterValueEncoder, DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue,
    GaugeValueEncoder, MetricEncoder, NoLabelSet, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use super::Report;

/// Prefix of every name that is Lockgate's own.
const PREFIX: &str = "lockgate_";

/// A text format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Format {
    /// Prometheus text format 0.0.4, which every reader knows.
    Text,
    /// OpenMetrics 1.0.0.
    OpenMetrics,
}

impl Format {
    /// Returns the format that an `Accept` header asks for: OpenMetrics only if the header names
    /// it and does not prefer plain text.
    pub(super) fn accepted(accept: &str) -> Format {
        let ranges: Vec<Mime> =
            accept.split(',').filter_map(|range| range.trim().parse().ok()).collect();
        let quality = |wanted: &str| {
            let named = ranges.iter().filter(|range| range.essence_str() == wanted);
            let qualities = named.map(|range| {
                range.get_param("q").map_or(1.0, |q| q.as_str().parse::<f32>().unwrap_or(0.0))
            });
            qualities.fold(0.0, f32::max)
        };
        let open = quality("application/openmetrics-text");
        if open > 0.0 && open >= quality("text/plain") { Format::OpenMetrics } else { Format::Text }
    }

    /// Returns the media type of the format.
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
    /// A number that only rises; its samples' names end with `_total`.
    Counter,
    Gauge,
    /// Always 1: its labels say it; its samples' names end with `_info`.
    Info,
}

/// A value. The older format holds every value as a floating-point number.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Value {
    Unsigned(u64),
    Signed(i64),
    Real(f64),
}

impl Value {
    const fn as_f64(self) -> f64 {
        match self {
            Value::Unsigned(number) => number as f64,
            Value::Signed(number) => number as f64,
            Value::Real(number) => number,
        }
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Value {
        Value::Unsigned(number)
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Value {
        Value::Signed(number)
    }
}

impl From<u32> for Value {
    fn from(number: u32) -> Value {
        Value::Unsigned(number.into())
    }
}

impl From<bool> for Value {
    fn from(state: bool) -> Value {
        Value::Unsigned(state.into())
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Value {
        Value::Real(number)
    }
}

impl EncodeCounterValue for Value {
    fn encode(&self, encoder: &mut CounterValueEncoder<'_>) -> fmt::Result {
        match self {
            Value::Unsigned(number) => EncodeCounterValue::encode(number, encoder),
            Value::Signed(_) | Value::Real(_) => {
                EncodeCounterValue::encode(&self.as_f64(), encoder)
            }
        }
    }
}

impl EncodeGaugeValue for Value {
    fn encode(&self, encoder: &mut GaugeValueEncoder<'_>) -> fmt::Result {
        match self {
            Value::Unsigned(number) => EncodeGaugeValue::encode(number, encoder),
            Value::Signed(number) => EncodeGaugeValue::encode(number, encoder),
            Value::Real(number) => EncodeGaugeValue::encode(number, encoder),
        }
    }
}

/// Name and value of a label.
type Label<'a> = (&'static str, Cow<'a, str>);
/// Names and values of a sample's labels.
pub(super) type Labels<'a, const N: usize> = [Label<'a>; N];

/// A sample of a family.
#[derive(Debug)]
struct Sample<'a> {
    labels: Vec<Label<'a>>,
    value: Value,
}

/// A family of samples.
#[derive(Debug)]
struct Family<'a> {
    /// Name with its unit, without the suffix of its kind.
    name: String,
    help: &'static str,
    kind: Kind,
    /// The samples, at least one.
    samples: Vec<Sample<'a>>,
}

/// The families of one scrape; their labels borrow from the report.
#[derive(Default, Debug)]
pub(super) struct Families<'a>(Vec<Family<'a>>);

impl<'a> Families<'a> {
    /// Adds a counter with labels. `name` lacks `lockgate_` and `_total`.
    pub(super) fn counter<const N: usize, V: Into<Value>>(
        &mut self,
        name: &str,
        help: &'static str,
        rows: impl IntoIterator<Item = (Labels<'a, N>, V)>,
    ) {
        self.add(Kind::Counter, format!("{PREFIX}{name}"), help, rows);
    }

    /// Adds a gauge with labels.
    pub(super) fn gauge<const N: usize, V: Into<Value>>(
        &mut self,
        name: &str,
        help: &'static str,
        rows: impl IntoIterator<Item = (Labels<'a, N>, V)>,
    ) {
        self.add(Kind::Gauge, format!("{PREFIX}{name}"), help, rows);
    }

    /// Adds a family whose labels say everything. `name` lacks `_info`.
    pub(super) fn info<const N: usize>(
        &mut self,
        name: &str,
        help: &'static str,
        rows: impl IntoIterator<Item = Labels<'a, N>>,
    ) {
        let rows = rows.into_iter().map(|labels| (labels, 1_u64));
        self.add(Kind::Info, format!("{PREFIX}{name}"), help, rows);
    }

    /// Adds a counter without labels.
    pub(super) fn count(&mut self, name: &str, help: &'static str, value: impl Into<Value>) {
        self.counter(name, help, [([], value)]);
    }

    /// Adds a gauge without labels.
    pub(super) fn level(&mut self, name: &str, help: &'static str, value: impl Into<Value>) {
        self.gauge(name, help, [([], value)]);
    }

    /// Adds a counter of the process, under the name that all exporters share.
    pub(super) fn process_count(
        &mut self,
        name: &str,
        help: &'static str,
        value: impl Into<Value>,
    ) {
        self.add(Kind::Counter, format!("process_{name}"), help, [([], value)]);
    }

    /// Adds a gauge of the process.
    pub(super) fn process_level(
        &mut self,
        name: &str,
        help: &'static str,
        value: impl Into<Value>,
    ) {
        self.add(Kind::Gauge, format!("process_{name}"), help, [([], value)]);
    }

    /// Adds a family. One without samples says nothing, and text format 0.0.4 cannot hold it.
    fn add<const N: usize, V: Into<Value>>(
        &mut self,
        kind: Kind,
        name: String,
        help: &'static str,
        rows: impl IntoIterator<Item = (Labels<'a, N>, V)>,
    ) {
        let sample = |(labels, value): (Labels<'a, N>, V)| Sample {
            labels: Vec::from(labels),
            value: value.into(),
        };
        let samples: Vec<_> = rows.into_iter().map(sample).collect();
        if !samples.is_empty() {
            self.0.push(Family { name, help, kind, samples });
        }
    }
}

impl Report {
    /// Encodes all families.
    pub(super) fn text(self: &Arc<Report>, format: Format) -> String {
        let mut out = String::new();
        match format {
            Format::Text => {
                let families: Vec<_> = self.families().0.into_iter().map(Into::into).collect();
                let encoded = TextEncoder::new().encode_utf8(&families, &mut out);
                encoded.expect("every family has a name and samples");
            }
            Format::OpenMetrics => {
                let mut registry = Registry::default();
                registry.register_collector(Box::new(SharedCollector(self.clone())));
                text::encode(&mut out, &registry).expect("a string takes all text");
            }
        }
        out
    }
}

/// A report for a registry, which asks for a collector of its own.
#[derive(Debug)]
struct SharedCollector(Arc<Report>);

impl Collector for SharedCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.0.families().0.iter().try_for_each(|family| family.encode(&mut encoder))
    }
}

impl Family<'_> {
    /// Splits its name from its unit, which the name ends with.
    fn name_and_unit(&self) -> (&str, Option<Unit>) {
        let units = [Unit::Seconds, Unit::Bytes, Unit::Other("packets".to_owned())];
        let split = units.into_iter().find_map(|unit| {
            let name = self.name.strip_suffix(unit.as_str())?.strip_suffix('_')?;
            Some((name, Some(unit)))
        });
        split.unwrap_or((&self.name, None))
    }

    /// Encodes it for OpenMetrics.
    fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let (name, unit) = self.name_and_unit();
        let kind = match self.kind {
            Kind::Counter => MetricType::Counter,
            Kind::Gauge => MetricType::Gauge,
            Kind::Info => MetricType::Info,
        };
        let mut family = encoder.encode_descriptor(name, self.help, unit.as_ref(), kind)?;
        for Sample { labels, value } in &self.samples {
            let labels = labels.as_slice();
            if self.kind == Kind::Info {
                family.encode_info(&labels)?;
            } else if labels.is_empty() {
                self.encode_value(*value, &mut family)?;
            } else {
                self.encode_value(*value, &mut family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }

    fn encode_value(&self, value: Value, encoder: &mut MetricEncoder<'_>) -> fmt::Result {
        match self.kind {
            Kind::Counter => encoder.encode_counter::<NoLabelSet, _, f64>(&value, None),
            Kind::Gauge | Kind::Info => encoder.encode_gauge(&value),
        }
    }
}

/// A family for text format 0.0.4, which knows no infos and adds no suffixes.
impl From<Family<'_>> for MetricFamily {
    fn from(family: Family<'_>) -> MetricFamily {
        let (suffix, kind) = match family.kind {
            Kind::Counter => ("_total", proto::MetricType::COUNTER),
            Kind::Gauge => ("", proto::MetricType::GAUGE),
            Kind::Info => ("_info", proto::MetricType::GAUGE),
        };
        let metric = |sample: Sample<'_>| {
            let labels = sample.labels.into_iter().map(|(name, value)| {
                let mut pair = proto::LabelPair::default();
                pair.set_name(name.to_owned());
                pair.set_value(value.into_owned());
                pair
            });
            let mut metric = proto::Metric::from_label(labels.collect());
            if family.kind == Kind::Counter {
                let mut counter = proto::Counter::default();
                counter.set_value(sample.value.as_f64());
                metric.set_counter(counter);
            } else {
                let mut gauge = proto::Gauge::default();
                gauge.set_value(sample.value.as_f64());
                metric.set_gauge(gauge);
            }
            metric
        };
        let metrics = family.samples.into_iter().map(metric).collect();
        let mut encoded = MetricFamily::default();
        encoded.set_name(family.name + suffix);
        encoded.set_help(family.help.to_owned());
        encoded.set_field_type(kind);
        encoded.set_metric(metrics);
        encoded
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
            ("APPLICATION/OpenMetrics-Text; Version=1.0.0; Q=0.6", Format::OpenMetrics),
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
    fn a_unit_is_the_last_word_of_a_name() {
        for (name, rest, unit) in [
            ("lockgate_uptime_seconds", "lockgate_uptime", Some("seconds")),
            ("lockgate_cache_bytes", "lockgate_cache", Some("bytes")),
            ("lockgate_held_packets", "lockgate_held", Some("packets")),
            ("lockgate_policies", "lockgate_policies", None),
            ("lockgate_kilobytes", "lockgate_kilobytes", None),
        ] {
            let family =
                Family { name: name.into(), help: "", kind: Kind::Gauge, samples: Vec::new() };
            let (found, of) = family.name_and_unit();
            assert_eq!((found, of.as_ref().map(Unit::as_str)), (rest, unit));
        }
    }

    #[test]
    fn a_family_without_samples_is_left_out() {
        let mut families = Families::default();
        families.gauge::<1, u64>("x", "A gauge of nothing", []);
        assert!(families.0.is_empty());
    }
}
