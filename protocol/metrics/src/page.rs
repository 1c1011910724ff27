//! What is told when a daemon is asked for its metrics.

use leasefs_protocol::latency::{BOUNDS, Counts};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use std::fmt;
use std::iter::once;

/// A label's name and value.
type Label = (&'static str, String);

/// A daemon's metrics at one moment.
#[derive(Debug, Default)]
pub struct Page {
    families: Vec<Family>,
}

#[derive(Debug)]
struct Family {
    name: &'static str,
    help: &'static str,
    of: MetricType,
    samples: Vec<(Option<Label>, Value)>,
}

#[derive(Clone, Copy, Debug)]
enum Value {
    Count(u64),
    Level(f64),
    Spread(Counts),
}

impl Page {
    /// What has only grown since the daemon began; its name gets `_total`.
    pub fn counter(&mut self, name: &'static str, help: &'static str, count: u64) {
        let sample = (None, Value::Count(count));
        self.family(name, help, MetricType::Counter, once(sample));
    }

    /// The same by kind, under a label.
    pub fn counters<K: ToString>(
        &mut self,
        name: &'static str,
        help: &'static str,
        label: &'static str,
        counts: impl IntoIterator<Item = (K, u64)>,
    ) {
        let samples = labelled(label, counts, Value::Count);
        self.family(name, help, MetricType::Counter, samples);
    }

    /// What goes up and down.
    pub fn gauge(&mut self, name: &'static str, help: &'static str, level: f64) {
        let sample = (None, Value::Level(level));
        self.family(name, help, MetricType::Gauge, once(sample));
    }

    /// The same by kind, under a label.
    pub fn gauges<K: ToString>(
        &mut self,
        name: &'static str,
        help: &'static str,
        label: &'static str,
        levels: impl IntoIterator<Item = (K, f64)>,
    ) {
        let samples = labelled(label, levels, Value::Level);
        self.family(name, help, MetricType::Gauge, samples);
    }

    /// How long something took.
    pub fn histogram(&mut self, name: &'static str, help: &'static str, counts: Counts) {
        let sample = (None, Value::Spread(counts));
        self.family(name, help, MetricType::Histogram, once(sample));
    }

    /// The same by kind, under a label.
    pub fn histograms<K: ToString>(
        &mut self,
        name: &'static str,
        help: &'static str,
        label: &'static str,
        counts: impl IntoIterator<Item = (K, Counts)>,
    ) {
        let samples = labelled(label, counts, Value::Spread);
        self.family(name, help, MetricType::Histogram, samples);
    }

    /// What has always the value 1, and tells something by its label.
    pub(crate) fn info(&mut self, name: &'static str, help: &'static str, label: Label) {
        let sample = (Some(label), Value::Level(1.0));
        self.family(name, help, MetricType::Gauge, once(sample));
    }

    fn family(
        &mut self,
        name: &'static str,
        help: &'static str,
        of: MetricType,
        samples: impl Iterator<Item = (Option<Label>, Value)>,
    ) {
        self.families.push(Family {
            name,
            help,
            of,
            samples: samples.collect(),
        });
    }

    /// In the OpenMetrics text format; all names begin with `prefix`.
    pub fn text(self, prefix: &'static str) -> String {
        let mut registry = Registry::with_prefix(prefix);
        registry.register_collector(Box::new(self));
        let mut page = String::new();
        match text::encode(&mut page, &registry) {
            Ok(()) => page,
            // A string takes everything.
            Err(error) => format!("# {error}\n"),
        }
    }
}

fn labelled<K: ToString, T>(
    label: &'static str,
    values: impl IntoIterator<Item = (K, T)>,
    value: impl Fn(T) -> Value,
) -> impl Iterator<Item = (Option<Label>, Value)> {
    let sample = move |(kind, of): (K, T)| (Some((label, kind.to_string())), value(of));
    values.into_iter().map(sample)
}

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        for family in &self.families {
            let Family {
                name,
                help,
                of,
                samples,
            } = family;
            let mut encoder = encoder.encode_descriptor(name, help, None, *of)?;
            for (label, value) in samples {
                let labels: &[Label] = label.as_slice();
                value.encode(encoder.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

impl Value {
    fn encode(self, mut encoder: MetricEncoder) -> fmt::Result {
        match self {
            Self::Count(count) => encoder.encode_counter::<[Label; 0], _, u64>(&count, None),
            Self::Level(level) => encoder.encode_gauge(&level),
            Self::Spread(counts) => {
                let bounds = BOUNDS.iter().map(|bound| bound.as_secs_f64());
                let bounds = bounds.chain(once(f64::INFINITY));
                let buckets: Vec<(f64, u64)> = bounds.zip(counts.buckets).collect();
                let sum = counts.sum.as_secs_f64();
                encoder.encode_histogram::<[Label; 0]>(sum, counts.count(), &buckets, None)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasefs_protocol::latency::Histogram;
    use std::time::Duration;

    #[test]
    fn a_page_is_open_metrics_with_each_family_once() {
        let mut page = Page::default();
        page.counters("things", "Things.", "kind", [("a", 3), ("b", 4)]);
        page.gauge("level_bytes", "How much.", 1.5);
        let expected = "\
            # HELP x_things Things.\n# TYPE x_things counter\n\
            x_things_total{kind=\"a\"} 3\nx_things_total{kind=\"b\"} 4\n\
            # HELP x_level_bytes How much.\n# TYPE x_level_bytes gauge\n\
            x_level_bytes 1.5\n# EOF\n";
        assert_eq!(page.text("x"), expected);
    }

    #[test]
    fn the_buckets_of_a_histogram_add_up_to_its_count() {
        let took = Histogram::default();
        took.add(Duration::from_micros(50));
        took.add(Duration::from_millis(2));
        took.add(Duration::from_secs(100));
        let mut page = Page::default();
        page.histogram("took_seconds", "How long.", took.counts());
        let text = page.text("x");
        for line in [
            "x_took_seconds_bucket{le=\"0.0001\"} 1",
            "x_took_seconds_bucket{le=\"0.003\"} 2",
            "x_took_seconds_bucket{le=\"60.0\"} 2",
            "x_took_seconds_bucket{le=\"+Inf\"} 3",
            "x_took_seconds_count 3",
            "x_took_seconds_sum 100.00205",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
    }
}
