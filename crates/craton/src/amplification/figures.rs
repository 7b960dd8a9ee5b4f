//! Bytes of each stage, from the pages of a cluster's processes (C29).

use std::collections::BTreeMap;

use serde::Serialize;

use super::page::MetricsPage;

/// What programs have written.
#[derive(Clone, Copy, Serialize, PartialEq, Eq, Debug, Default)]
pub struct UserBytes {
    pub volumes: u64,
    pub objects: u64,
    /// To files, in chunks that have ended: not what services have written there.
    pub files: u64,
    pub total: u64,
}

/// Bytes of one stage.
#[derive(Clone, Serialize, PartialEq, Debug)]
pub struct Stage {
    pub stage: &'static str,
    /// In words.
    pub what: &'static str,
    /// True for what crosses the network; false for what disks take and give.
    pub network: bool,
    pub bytes: u64,
    /// Over users' bytes; none without any.
    pub per_user_byte: Option<f64>,
}

/// Space of a cluster.
#[derive(Clone, Copy, Serialize, PartialEq, Debug)]
pub struct Space {
    /// Bytes of files, in chunks that have ended.
    pub logical_bytes: u64,
    /// Bytes in use on disks.
    pub used_bytes: u64,
    pub ratio: Option<f64>,
}

/// All of it.
#[derive(Clone, Serialize, PartialEq, Debug)]
pub struct Figures {
    /// The time that it is of; none: since the processes started.
    pub seconds: Option<f64>,
    pub user: UserBytes,
    pub stages: Vec<Stage>,
    /// Sums of the stages.
    pub network_bytes: u64,
    pub network_per_user_byte: Option<f64>,
    pub disk_bytes: u64,
    pub disk_per_user_byte: Option<f64>,
    pub space: Space,
    /// Processes whose page was read, and why others' was not.
    pub processes: usize,
    pub errors: Vec<String>,
}

/// Which stages there are: name, words, over the network or not.
const STAGES: [(&str, &str, bool); 9] = [
    ("services", "from front ends to block servers, and from programs to gateways", true),
    ("data", "appends of users' bytes at chunkservers, all copies and fragments", true),
    ("tables", "appends of services' tables and of what they need, likewise", true),
    ("collection reads", "what garbage collection reads", true),
    ("collection", "appends of what it writes, all copies and fragments", true),
    ("copies", "what chunkservers read from each other for repair, conversion, drains", true),
    ("conversion", "appends of chunks in another form, all copies and fragments", true),
    ("disk writes", "what disks had written a second ago, without zeroes of unused space", false),
    ("scrub", "bytes that scrub has read", false),
];

fn ratio(bytes: u64, of: u64) -> Option<f64> {
    (of > 0).then(|| bytes as f64 / of as f64)
}

impl Figures {
    /// From pages, each with the number of its process: what counts for a process as a whole stands on
    /// the page of each of its roles.
    pub fn of(pages: &[(u32, MetricsPage)], seconds: Option<f64>, errors: Vec<String>) -> Figures {
        let sum = |name: &str| -> u64 { pages.iter().map(|(_, page)| page.sum(name)).sum() };
        let with = |name: &str, label: &str| -> u64 {
            pages.iter().map(|(_, page)| page.with(name, label)).sum()
        };
        let processes: BTreeMap<u32, &MetricsPage> =
            pages.iter().map(|(process, page)| (*process, page)).collect();
        let by_process = |name: &str, label: &str| -> u64 {
            processes.values().map(|page| page.with(name, label)).sum()
        };
        // Each master has counted what it has applied of a partition.
        let mut ended: BTreeMap<&str, u64> = BTreeMap::new();
        for (partition, bytes) in
            pages.iter().flat_map(|(_, page)| page.each("craton_ended_bytes_total"))
        {
            let most = ended.entry(partition).or_default();
            *most = bytes.max(*most);
        }
        let by_services = by_process("craton_client_ended_bytes_total", "");
        let (volumes, objects) =
            (sum("craton_block_written_bytes_total"), sum("craton_s3_received_bytes_total"));
        let files = ended.values().sum::<u64>().saturating_sub(by_services);
        let total = volumes + objects + files;
        let appended = |purpose| with("craton_append_bytes_total", purpose);
        let to_block_servers: u64 = pages
            .iter()
            .filter(|(_, page)| page.has("craton_block_written_bytes_total"))
            .map(|(_, page)| page.with("craton_network_received_bytes_total", "block"))
            .sum();
        // The object service reads what it moves.
        let moved: u64 = pages
            .iter()
            .filter(|(_, page)| page.has("craton_object_ranges"))
            .map(|(process, page)| (*process, page))
            .collect::<BTreeMap<_, _>>()
            .values()
            .map(|page| page.with("craton_client_appended_bytes_total", "collection"))
            .sum();
        let is_one = processes.len() == 1;
        let written = sum("craton_disk_written_bytes_total")
            .saturating_sub(sum("craton_disk_zeroed_bytes_total"));
        let bytes = [
            to_block_servers + objects,
            appended("data"),
            appended("metadata") + appended("recovery"),
            // In one process the page of an object server counts volumes' collection, too.
            sum("craton_block_collect_read_bytes") + if is_one { 0 } else { moved },
            appended("collection"),
            by_process("craton_copy_read_bytes_total", ""),
            appended("conversion"),
            written,
            sum("craton_scrubbed_bytes_total"),
        ];
        let stage = |((stage, what, network), bytes)| Stage {
            stage,
            what,
            network,
            bytes,
            per_user_byte: ratio(bytes, total),
        };
        let stages: Vec<Stage> = STAGES.into_iter().zip(bytes).map(stage).collect();
        let of_kind = |network: bool| -> u64 {
            let stages = stages.iter().filter(|stage| stage.network == network);
            stages.map(|stage| stage.bytes).sum()
        };
        let (network_bytes, disk_bytes) = (of_kind(true), of_kind(false));
        let (logical_bytes, used_bytes) =
            (sum("craton_led_logical_bytes"), sum("craton_disk_used_bytes"));
        let space = Space { logical_bytes, used_bytes, ratio: ratio(used_bytes, logical_bytes) };
        Figures {
            seconds,
            user: UserBytes { volumes, objects, files, total },
            network_per_user_byte: ratio(network_bytes, total),
            disk_per_user_byte: ratio(disk_bytes, total),
            stages,
            network_bytes,
            disk_bytes,
            space,
            processes: pages.len(),
            errors,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_are_over_what_programs_write() {
        let page = |text: &str| MetricsPage::parse(text);
        let pages = [
            (
                1,
                page(
                    "craton_ended_bytes_total{partition=\"0\"} 700\n\
                      craton_ended_bytes_total{partition=\"1\"} 50\ncraton_led_logical_bytes 400\n",
                ),
            ),
            (
                2,
                page(
                    "craton_ended_bytes_total{partition=\"0\"} 600\n\
                      craton_ended_bytes_total{partition=\"1\"} 60\n",
                ),
            ),
            (
                3,
                page(
                    "craton_append_bytes_total{purpose=\"data\"} 3000\n\
                      craton_append_bytes_total{purpose=\"collection\"} 500\n\
                      craton_disk_written_bytes_total{disk=\"a\"} 5000\n\
                      craton_disk_zeroed_bytes_total{disk=\"a\"} 1000\n\
                      craton_disk_used_bytes{disk=\"a\"} 1200\n",
                ),
            ),
            (
                4,
                page(
                    "craton_block_written_bytes_total 200\n\
                      craton_network_received_bytes_total{service=\"block\"} 210\n\
                      craton_network_received_bytes_total{service=\"data\"} 90\n\
                      craton_block_collect_read_bytes 100\n\
                      craton_client_ended_bytes_total 160\n",
                ),
            ),
        ];
        let figures = Figures::of(&pages, None, Vec::new());
        assert_eq!(figures.user, UserBytes { volumes: 200, objects: 0, files: 600, total: 800 });
        let bytes: Vec<u64> = figures.stages.iter().map(|stage| stage.bytes).collect();
        assert_eq!(bytes, [210, 3000, 0, 100, 500, 0, 0, 4000, 0]);
        assert_eq!((figures.network_bytes, figures.disk_per_user_byte), (3810, Some(5.0)));
        assert_eq!(figures.space.ratio, Some(3.0));
        // The same process shows its clients on the pages of all of its roles.
        let twice = [pages[3].clone(), (4, page("craton_client_ended_bytes_total 160\n"))];
        let both = Figures::of(&twice, None, Vec::new());
        assert_eq!((both.user.files, both.user.total), (0, 200));
        assert_eq!(Figures::of(&[], None, Vec::new()).network_per_user_byte, None);
    }
}
