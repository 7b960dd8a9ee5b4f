//! The suite on the store in memory.

use runtime::{Duration, Rng};
use table::{Compression, Options};
use testing::tables::conformance;

use crate::support::{World, small, small_with_data};

fn check(seed: u64, steps: u32, options: Options, refuse_one_in: u64) {
    let world = World::new(seed);
    world.disk.with_faults(|faults| faults.refuse_one_in = refuse_one_in);
    let done = world.run(async {
        let (_, env) = world.boot();
        let open = async || loop {
            match world.open(&env, options.clone()).await {
                Err(table::Error::Unavailable { .. }) => {
                    env.sleep(Duration::from_millis(1)).await;
                }
                opened => return opened,
            }
        };
        conformance(open, &mut Rng::new(seed), steps).await
    });
    done.unwrap_or_else(|what| panic!("seed {seed}: {what}"));
}

#[test]
fn holds_with_small_parts() {
    (0..6).for_each(|seed| check(seed, 700, small(), 0));
}

#[test]
fn holds_with_data_in_logs() {
    (30..40).for_each(|seed| check(seed, 700, small_with_data(), 0));
    let options = Options { data_log_bytes: 200 << 10, ..small_with_data() };
    (40..44).for_each(|seed| check(seed, 700, options.clone(), 0));
}

#[test]
fn holds_with_default_options() {
    check(1, 700, Options::default(), 0);
}

#[test]
fn holds_without_compression_and_with_tiny_files() {
    let options = Options {
        compression: Compression::None,
        memtable_bytes: 4 << 10,
        block_bytes: 256,
        ..small()
    };
    (10..14).for_each(|seed| check(seed, 700, options.clone(), 0));
}
