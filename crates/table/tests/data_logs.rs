//! Logs with data: how long they are, and when they end.

use std::rc::Rc;

use runtime::Env;
use table::limits::DATA_LOG_SHARE;
use table::{Batch, Error, Options, Place, Purpose, Table};

use crate::support::{World, small_with_data};

/// Puts a key with data; answers the log that has it.
async fn put(env: &Env, table: &Table, key: u32, bytes: usize) -> u64 {
    let (value, data) = ([0; Place::BYTES], Rc::new(vec![key as u8; bytes]));
    let mut batch = Batch::new();
    batch.put_with_data(&key.to_be_bytes(), &value, 0, data);
    loop {
        match table.submit_placed(&batch) {
            Ok(outcome) => return outcome.await.unwrap().places[0].log(),
            Err(Error::Busy { retry_after, .. }) => env.sleep(retry_after).await,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Logs grow with the data that there is, and are shorter again without it.
#[test]
fn a_log_has_a_part_of_the_data_of_all() {
    let world = World::new(1);
    world.run(async {
        let (_, env) = world.boot();
        let options =
            Options { data_log_bytes: 1 << 20, data_log_least: 16 << 10, ..small_with_data() };
        let table = world.open(&env, options).await.unwrap();
        for key in 0..1600 {
            put(&env, &table, key, 8 << 10).await;
        }
        table.flush().await.unwrap();
        let logs = table.data_logs();
        let all: u64 = logs.iter().map(|log| log.data).sum();
        let (first, last) = (logs.first().unwrap(), logs.last().unwrap());
        assert!(first.len < 28 << 10, "{first:?}");
        assert!(last.len > 40 << 10 && last.len < all / DATA_LOG_SHARE + (16 << 10), "{last:?}");
        for log in logs {
            table.release_log(log.log).await.unwrap();
        }
        for key in 0..40 {
            put(&env, &table, key, 8 << 10).await;
        }
        table.flush().await.unwrap();
        let log = table.data_logs().pop().unwrap();
        assert!(log.len < 28 << 10, "{log:?}");
    });
}

#[test]
fn a_log_that_is_ended_goes_but_for_data() {
    let world = World::new(2);
    world.run(async {
        let (_, env) = world.boot();
        let table = world.open(&env, small_with_data()).await.unwrap();
        let logs = || {
            let mut names = world.disk.names();
            names.retain(|name| name.starts_with("log-"));
            names
        };
        let log = put(&env, &table, 1, 100).await;
        table.end_log().await.unwrap();
        assert_eq!(table.data_logs().iter().map(|log| log.log).collect::<Vec<_>>(), [log]);
        for key in 0..10u32 {
            table.delete(&key.to_be_bytes()).await.unwrap();
        }
        let before = logs();
        table.flush().await.unwrap();
        env.sleep(runtime::Duration::from_secs(5)).await;
        assert!(before.iter().all(|log| logs().contains(log)), "a flush ends no log");
        table.delete(b"x").await.unwrap();
        table.end_log().await.unwrap();
        env.sleep(runtime::Duration::from_secs(5)).await;
        let left = before.iter().filter(|log| logs().contains(log)).count();
        assert_eq!(left, before.len() - 1, "{before:?}, {:?}", logs());
        table.end_log().await.unwrap();
        assert!(put(&env, &table, 2, 100).await > log);
    });
}

#[test]
fn a_batch_is_for_data_metadata_or_what_it_says() {
    let mut batch = Batch::new();
    assert_eq!(batch.delete(b"a").purpose(), Purpose::Metadata);
    let with_data = batch.put_with_data(b"b", &[0; Place::BYTES], 0, Rc::new(vec![1]));
    assert_eq!(with_data.purpose(), Purpose::Data);
    assert_eq!(batch.set_purpose(Purpose::Recovery).purpose(), Purpose::Recovery);
}
