//! Formatting in directories of a simulated machine.

use chunkstore::flash::FlashStore;
use runtime::sim::Sim;

use super::*;

async fn incarnation(env: &Env, dir: &Path) -> DiskId {
    let store: FlashStore = flash::open(env, &dir.join(FILE)).await.expect("a store");
    let disk = store.info().disk;
    store.close().await.expect("it closes");
    disk
}

/// The next formatting took it for the new one, whose formatting was broken off, and reported success.
#[test]
fn store_that_was_to_be_given_up_is_not_taken_for_the_new_one() {
    let sim = Sim::new(1);
    let host = sim.add_host("cs1");
    let world = sim.clone();
    sim.run(async {
        let (env, dir) = (world.boot(host), Path::new("/d0"));
        env.create_dir_all(dir).await.expect("room");
        let order = async |options: &FormatOptions, force: bool| {
            directory::<Error>(&env, dir, options, force, |_| Ok(())).await
        };
        let options = FormatOptions::tiny();
        let old = order(&options, false).await.expect("nothing is there");
        let wrong = FormatOptions { unit: 3 << 10, ..options.clone() };
        order(&wrong, true).await.expect_err("no unit has 3 KiB");
        let refused = order(&options, false).await.expect_err("the old store is there");
        assert!(refused.to_string().contains("holds a store already"), "{refused}");
        assert_eq!(incarnation(&env, dir).await, old, "nothing was changed");
        let new = order(&options, true).await.expect("it is given up");
        assert_ne!(new, old);
        assert_eq!(incarnation(&env, dir).await, new);
    })
    .expect("nothing stalls");
    sim.close();
}

/// The mark of a formatting that was broken off behind the superblock stayed while the store was served: a
/// later order took it, with what it had by then, for the new one, and reported success.
#[test]
fn served_store_is_not_taken_for_one_whose_formatting_was_broken_off() {
    let sim = Sim::new(2);
    let host = sim.add_host("cs1");
    let world = sim.clone();
    sim.run(async {
        let (env, dir) = (world.boot(host), Path::new("/d0"));
        env.create_dir_all(dir).await.expect("room");
        let options = FormatOptions::tiny();
        let order = async || directory::<Error>(&env, dir, &options, false, |_| Ok(())).await;
        let made = order().await.expect("nothing is there");
        begin(&env, dir).await.expect("it is as before the end of a formatting");
        let served = crate::stores::open_in(&env, dir, flash::Config::default()).await;
        let served = served.expect("it is whole");
        assert_eq!(served.info().disk, made);
        served.close().await.expect("it closes");
        drop(served);
        assert_eq!(look(&env, dir).await.expect("a directory"), Found::Store);
        check_empty(&env, dir).await.expect_err("the store is there");
        let refused = order().await.expect_err("the store is there");
        assert!(refused.to_string().contains("holds a store already"), "{refused}");
    })
    .expect("nothing stalls");
    sim.close();
}
