//! A page of metrics, as numbers.

use std::collections::BTreeMap;

/// Labels that tell values of one name apart here; values that differ in others are added up.
const LABELS: [&str; 3] = ["purpose", "service", "partition"];

/// Values of a process.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct MetricsPage {
    /// By name, and by the label of [`LABELS`] that it has, or nothing.
    values: BTreeMap<(String, String), f64>,
}

impl MetricsPage {
    /// Of Prometheus's text; lines that are none are passed over.
    pub fn parse(text: &str) -> MetricsPage {
        let mut page = MetricsPage::default();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let Some((what, value)) = line.rsplit_once(' ') else { continue };
            let Ok(value) = value.parse::<f64>() else { continue };
            let (name, labels) = what.split_once('{').unwrap_or((what, ""));
            let label = LABELS.iter().find_map(|label| label_of(labels, label));
            let key = (name.to_owned(), label.unwrap_or_default().to_owned());
            *page.values.entry(key).or_default() += value;
        }
        page
    }

    /// What was counted since a former page of the same process. A counter that is lower than before is
    /// of another start, and counts as a whole; what is no counter stays as it is.
    pub fn since(mut self, before: &MetricsPage) -> MetricsPage {
        for (key, value) in &mut self.values {
            if COUNTED.contains(&key.0.as_str()) || key.0.ends_with("_total") {
                let before = before.values.get(key).copied().unwrap_or(0.0);
                *value -= if before <= *value { before } else { 0.0 };
            }
        }
        self
    }

    /// The sum of all values of a name.
    pub fn sum(&self, name: &str) -> u64 {
        self.each(name).map(|(_, value)| value).sum()
    }

    /// The value with a label.
    pub fn with(&self, name: &str, label: &str) -> u64 {
        self.each(name).filter(|(of, _)| *of == label).map(|(_, value)| value).sum()
    }

    /// Values of a name, each with its label.
    pub fn each<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (&'a str, u64)> {
        let from = (name.to_owned(), String::new());
        let values = self.values.range(from..).take_while(move |((of, _), _)| of == name);
        values.map(|((_, label), value)| (label.as_str(), *value as u64))
    }

    /// True when it has the name.
    pub fn has(&self, name: &str) -> bool {
        self.each(name).next().is_some()
    }
}

/// Counters that begin at nothing with each opening of a segment, and are no totals by name.
const COUNTED: [&str; 2] = ["craton_block_collect_read_bytes", "craton_block_collected_bytes"];

/// The value of a label; none of these has an escaped sign.
fn label_of<'a>(labels: &'a str, label: &str) -> Option<&'a str> {
    let (before, rest) = labels.split_once(&format!("{label}=\""))?;
    let starts = before.is_empty() || before.ends_with(',');
    starts.then(|| rest.split_once('"').map(|(value, _)| value)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_added_up_by_name_and_label() {
        let page = MetricsPage::parse(
            "# HELP a A.\n# TYPE a counter\na_total{purpose=\"data\",disk=\"x y\"} 3\n\
             a_total{disk=\"z\",purpose=\"data\"} 4\na_total{purpose=\"recovery\"} 1e3\n\
             ab_total 5\nb{path=\"/a b\"} 2.5\nb{path=\"c\"} 2.5\nc{subpurpose=\"data\"} 9\n\
             no number\n",
        );
        assert_eq!((page.with("a_total", "data"), page.sum("a_total")), (7, 1007));
        assert_eq!((page.sum("b"), page.with("c", "data"), page.sum("c")), (5, 0, 9));
        assert!(page.has("ab_total") && !page.has("a"));
    }

    #[test]
    fn a_start_in_between_counts_from_nothing() {
        let page = |bytes: u32| MetricsPage::parse(&format!("a_total {bytes}\nused {bytes}\n"));
        let of = |page: MetricsPage| (page.sum("a_total"), page.sum("used"));
        assert_eq!(of(page(9).since(&page(7))), (2, 9));
        assert_eq!(of(page(9).since(&page(10))), (9, 9));
        assert_eq!(of(page(9).since(&MetricsPage::default())), (9, 9));
    }
}
