//! The decoders of the binary's own files, as in `sim::fuzz`.

use std::path::Path;
use std::time::{Duration, Instant};

use runtime::Rng;
use sim::fuzz::{mutate, seeds};

/// Name, function, and a text that it starts from.
type Target = (&'static str, fn(&[u8]), &'static str);

const TARGETS: [Target; 3] = [
    ("file_config", roles::config::fuzz_config, "crates/roles/corpus/config/"),
    ("file_cluster_json", crate::cluster::fuzz_book, "crates/craton/corpus/cluster_json/"),
    ("file_http", roles::http::fuzz_http, "crates/roles/corpus/http/"),
];

#[test]
#[expect(clippy::disallowed_methods, reason = "a budget of real time")]
fn decoders_stand_their_corpus_and_changed_copies_of_it() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let budget = number("CRATON_FUZZ_S").map(Duration::from_secs);
    let only = std::env::var("CRATON_FUZZ_TARGET").ok();
    let mut rng = Rng::new(number("CRATON_FUZZ_SEED").unwrap_or(1));
    let root = &Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for (name, run, corpus) in TARGETS {
        if only.as_deref().is_some_and(|only| only != name) {
            continue;
        }
        let seeds = seeds(root, corpus).expect("the corpus is committed");
        assert!(seeds.len() >= 2, "{name} has {} seeds", seeds.len());
        seeds.iter().for_each(|seed| run(seed));
        let (started, mut count) = (Instant::now(), 0);
        while budget.map_or(count < 300, |budget| started.elapsed() < budget) {
            let input = mutate(&mut rng, &seeds);
            let failed = std::panic::catch_unwind(|| run(&input)).is_err();
            assert!(!failed, "{name} fails on {:?}", String::from_utf8_lossy(&input));
            count += 1;
        }
        println!("{name:<20} {:>3} seeds, {count} changed copies", seeds.len());
    }
}
