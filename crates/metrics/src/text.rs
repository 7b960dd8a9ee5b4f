//! The text of metrics as Prometheus reads it (exposition format 0.0.4).

use std::fmt::Write;

use crate::histogram::Distribution;

/// Unit of a histogram's values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Nanoseconds, shown as seconds: the name ends in `_seconds`.
    Nanoseconds,
    /// Bytes or things, shown as they are.
    Count,
}

/// Powers of two that are bucket bounds, so that a histogram has few lines: for times from 1 us to
/// 68 s, for counts from 1 to 16 M.
const fn powers(unit: Unit) -> (u32, u32) {
    match unit {
        Unit::Nanoseconds => (10, 36),
        Unit::Count => (0, 24),
    }
}

/// Builds the text. Families come one after the other, each with all its samples.
#[derive(Default, Debug)]
pub struct Exposition {
    text: String,
}

impl Exposition {
    /// Nothing yet.
    pub fn new() -> Exposition {
        Exposition::default()
    }

    /// Starts a family of counters. `name` ends in `_total`.
    pub fn counters(&mut self, name: &str, help: &str) -> Family<'_> {
        self.family(name, help, "counter")
    }

    /// Starts a family of gauges.
    pub fn gauges(&mut self, name: &str, help: &str) -> Family<'_> {
        self.family(name, help, "gauge")
    }

    /// Starts a family of histograms.
    pub fn histograms(&mut self, name: &str, help: &str) -> Family<'_> {
        self.family(name, help, "histogram")
    }

    /// The text.
    pub fn finish(self) -> String {
        self.text
    }

    fn family(&mut self, name: &str, help: &str, kind: &str) -> Family<'_> {
        debug_assert!(is_name(name), "'{name}' is no metric name");
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        // Writing to a string cannot fail.
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        Family { text: &mut self.text, name: name.to_owned() }
    }
}

fn is_name(name: &str) -> bool {
    let good = |char: char| char.is_ascii_alphanumeric() || char == '_';
    !name.is_empty() && name.chars().all(good) && !name.starts_with(|c: char| c.is_ascii_digit())
}

/// One family being written.
#[derive(Debug)]
pub struct Family<'a> {
    text: &'a mut String,
    name: String,
}

impl Family<'_> {
    /// A sample of a counter or gauge.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: f64) -> &mut Self {
        self.line("", labels, None, value);
        self
    }

    /// A histogram: bounds, sum and count.
    pub fn distribution(
        &mut self,
        labels: &[(&str, &str)],
        unit: Unit,
        values: &Distribution,
    ) -> &mut Self {
        let scale = |value: f64| match unit {
            Unit::Nanoseconds => value / 1e9,
            Unit::Count => value,
        };
        let (first, last) = powers(unit);
        for power in first..=last {
            let bound = scale(((1u64 << power) - 1) as f64).to_string();
            let count = values.count_below_power(power);
            self.line("_bucket", labels, Some(&bound), count as f64);
        }
        self.line("_bucket", labels, Some("+Inf"), values.count() as f64);
        self.line("_sum", labels, None, scale(values.sum() as f64));
        self.line("_count", labels, None, values.count() as f64);
        self
    }

    fn line(&mut self, suffix: &str, labels: &[(&str, &str)], bound: Option<&str>, value: f64) {
        let _ = write!(self.text, "{}{suffix}", self.name);
        let bound = bound.map(|bound| ("le", bound));
        let mut sign = '{';
        for (name, text) in labels.iter().copied().chain(bound) {
            debug_assert!(is_name(name), "'{name}' is no label name");
            let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.text, "{sign}{name}=\"{text}\"");
            sign = ',';
        }
        if sign == ',' {
            self.text.push('}');
        }
        let _ = writeln!(self.text, " {value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::histogram::Histogram;

    #[test]
    fn text_is_as_prometheus_reads_it() {
        let mut text = Exposition::new();
        text.counters("craton_frames_total", "Frames\nreceived.")
            .sample(&[("service", "data"), ("peer", "a\"b\\c")], 3.0)
            .sample(&[], 1.5);
        text.gauges("craton_disk_used_bytes", "Bytes in use.").sample(&[], 12e12);
        assert_eq!(
            text.finish(),
            "# HELP craton_frames_total Frames\\nreceived.\n\
             # TYPE craton_frames_total counter\n\
             craton_frames_total{service=\"data\",peer=\"a\\\"b\\\\c\"} 3\n\
             craton_frames_total 1.5\n\
             # HELP craton_disk_used_bytes Bytes in use.\n\
             # TYPE craton_disk_used_bytes gauge\n\
             craton_disk_used_bytes 12000000000000\n"
        );
    }

    #[test]
    fn histograms_have_bounds_sum_and_count() {
        let histogram = Histogram::unregistered();
        [1_000, 5_000_000, 200_000_000_000].into_iter().for_each(|ns| histogram.record(ns));
        let mut text = Exposition::new();
        text.histograms("craton_append_seconds", "Appends.").distribution(
            &[("disk", "0")],
            Unit::Nanoseconds,
            &histogram.distribution(),
        );
        let text = text.finish();
        let has =
            |line: &str| assert!(text.lines().any(|one| one == line), "{line} not in\n{text}");
        has("craton_append_seconds_bucket{disk=\"0\",le=\"0.000001023\"} 1");
        has("craton_append_seconds_bucket{disk=\"0\",le=\"68.719476735\"} 2");
        has("craton_append_seconds_bucket{disk=\"0\",le=\"+Inf\"} 3");
        has("craton_append_seconds_sum{disk=\"0\"} 200.005001");
        has("craton_append_seconds_count{disk=\"0\"} 3");
    }
}
