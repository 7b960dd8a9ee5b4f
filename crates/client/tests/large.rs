//! Large numbers on small data: offsets beyond 32 bits, in files most of whose chunks are records
//! alone, and a chunk of the largest size whose bytes no replica holds.

use base::limits::{APPEND_DATA_MAX, CHUNK_LEN_MAX};
use base::{ChunkId, Epoch};
use client::writer::{Action, Event, OpError, StreamOp, Writer, WriterConfig};
use client::{Client, Config, Error, FlatLogFile};
use codec::block::Codec;
use runtime::{Duration, Instant};
use wire::control::{Compression, Policy, WriterGrant};

use crate::cluster::{bytes, run};
use crate::fake::{Chunk, Fake, Health, Stream};
use crate::idle::chunk;

/// A file of `count` sealed chunks of the largest size, of which no replica is there.
async fn file_of(fake: &Fake, client: &Client, path: &str, count: u64) -> FlatLogFile {
    let policy = Policy::strict(3);
    let file = client.create(path, policy, 0o644, true).await.unwrap();
    fake.with(|state| {
        let sealed = Some(CHUNK_LEN_MAX as u32);
        let first = state.next_chunk;
        state.next_chunk += count;
        let chunks = (0..count).map(|index| Chunk {
            id: ChunkId::new(first + index),
            epoch: Epoch::new(1),
            base: index * CHUNK_LEN_MAX,
            sealed,
            servers: vec![0, 1, 2],
            acks: 3,
            copies: 3,
            data: 1,
            compression: None,
        });
        let stream = Stream {
            policy,
            epoch: Epoch::new(1),
            writing: false,
            finished: false,
            chunks: chunks.collect(),
            spares: vec![],
        };
        state.streams.insert(file.id(), stream);
    });
    file
}

#[test]
fn read_beyond_the_end_of_an_open_file_is_empty() {
    let fake = Fake::new(1, 3);
    run(20, &fake.clone(), Config::default(), |client| async move {
        let file = client.create("/file", Policy::strict(3), 0o644, true).await.unwrap();
        let appender = file.append_handle().await.unwrap();
        appender.append(&bytes(1, 100)).await.unwrap();
        client.env().sleep(Duration::from_millis(50)).await;
        let reader = file.reader();
        for beyond in [100, CHUNK_LEN_MAX + 10, (1 << 32) + 10, (1 << 40) + 10, u64::MAX - 50] {
            let read = reader.read_at(beyond, 50).await.unwrap();
            assert!(read.is_empty(), "{} bytes at {beyond} of a file of 100", read.len());
        }
        assert_eq!(reader.read_at(90, 1 << 20).await.unwrap(), &bytes(1, 100)[90..]);
    });
}

#[test]
fn stale_view_of_the_tail_beyond_4_gib_is_refused() {
    let fake = Fake::new(1, 3);
    run(21, &fake.clone(), Config::default(), |client| async move {
        let file = client.create("/file", Policy::strict(3), 0o644, true).await.unwrap();
        let appender = file.append_handle().await.unwrap();
        appender.append(&bytes(1, 10_000)).await.unwrap();
        let reader = file.reader();
        client.env().sleep(Duration::from_millis(50)).await;
        assert_eq!(reader.read_at(0, 10).await.unwrap(), &bytes(1, 10)[..], "the tail is cached");
        appender.close().await.unwrap();
        // At the same time the file has grown by two chunks of the largest size.
        fake.with(|state| {
            let stream = state.streams.get_mut(&file.id()).unwrap();
            stream.chunks[0].sealed = Some(CHUNK_LEN_MAX as u32);
            let mut second = stream.chunks[0].clone();
            (second.id, second.base) = (ChunkId::new(1 << 20), CHUNK_LEN_MAX);
            stream.chunks.push(second);
        });
        let appender = file.append_handle().await.unwrap();
        let data = bytes(2, 10_000);
        assert_eq!(appender.append(&data).await.unwrap(), 1 << 32);
        for at in [5usize, 5000, 9990] {
            let read = reader.read_at((1 << 32) + at as u64, 10).await.unwrap();
            let same = read == data[at..at + 10];
            assert!(same, "{} wrong bytes at 4 GiB and {at}", read.len());
        }
    });
}

#[test]
fn file_beyond_2_to_the_40_is_written_and_read() {
    let fake = Fake::new(1, 4);
    let mut config = Config::default();
    config.writer.chunk_len_max = 1 << 20;
    run(22, &fake.clone(), config, |client| async move {
        const BASE: u64 = 1 << 40;
        let file = file_of(&fake, &client, "/large", BASE / CHUNK_LEN_MAX).await;
        assert_eq!(file.len().await.unwrap(), BASE);
        let appender = file.append_handle().await.unwrap();
        let data = bytes(3, 5_000_000);
        assert_eq!(appender.append(&data).await.unwrap(), BASE);
        let reader = file.reader();
        assert_eq!(file.len().await.unwrap(), BASE + data.len() as u64);
        // Over the border between two chunks, from the open one, and from its end.
        for (at, len) in [(0, 10), (1_000_000, 200_000), (4_990_000, 10_000), (4_999_990, 99)] {
            let read = reader.read_at(BASE + at as u64, len).await.unwrap();
            assert!(read == data[at..(at + len).min(data.len())], "{len} bytes at {at}");
        }
        assert_eq!(appender.close().await.unwrap(), BASE + data.len() as u64);
        assert!(reader.read_at(BASE, data.len() + 1).await.unwrap() == data);
        assert!(file.chunks().await.unwrap().chunks.len() > 512);
    });
}

/// A chunk of the largest size takes appends up to its last byte that fits, and none behind it.
#[test]
fn chunk_of_the_largest_size_ends_below_its_limit() {
    let start = Instant::from_nanos(1_000_000_000);
    let config = WriterConfig { chunk_len_max: CHUNK_LEN_MAX as u32, ..WriterConfig::default() };
    let (mut current, spare) = (chunk(1, [1, 2, 3]), chunk(2, [4, 5, 6]));
    current.base = u64::MAX / 2 - 7;
    let grant = WriterGrant {
        epoch: current.epoch,
        len: current.base,
        current: Some(current.clone()),
        spares: vec![spare],
        rights_ms: None,
    };
    let mut writer = Writer::new(config, crate::idle::chase(), grant, start).unwrap();
    let (mut events, mut advanced) = (Vec::new(), None);
    let fits = CHUNK_LEN_MAX / APPEND_DATA_MAX as u64;
    for _ in 0..=fits {
        events.push(Event::plain_append(APPEND_DATA_MAX as u32));
        while let Some(event) = events.pop() {
            let mut actions = Vec::new();
            writer.handle(start, event, &mut actions);
            for action in actions {
                match action {
                    Action::Send { id, request, .. } if id.chunk == current.chunk => {
                        let len = request.offset.checked_add(request.len).expect("it fits");
                        assert!(u64::from(len) <= CHUNK_LEN_MAX);
                        events.push(Event::Sent { id, result: Ok(len) });
                    }
                    Action::Op(StreamOp::Advance { sealed, len, .. }) => {
                        assert_eq!(sealed, current.chunk);
                        advanced = Some(len);
                    }
                    Action::Op(_) => {
                        events.push(Event::Op(Err(OpError::Failed("not now".to_owned()))));
                    }
                    Action::Failed(error) => panic!("{error:?}"),
                    _ => {}
                }
            }
        }
    }
    let len = u64::from(advanced.expect("the chunk is full"));
    assert_eq!(len, fits * APPEND_DATA_MAX as u64);
    assert_eq!(writer.acked_len(), current.base + len);
}

/// Three latent errors at three places: what no replica has in one piece, they have together.
#[test]
fn range_of_which_every_replica_lacks_another_sector_is_read() {
    let fake = Fake::new(1, 3);
    run(23, &fake.clone(), Config::default(), |client| async move {
        let file = client.create("/file", Policy::strict(3), 0o644, true).await.unwrap();
        let appender = file.append_handle().await.unwrap();
        let data = bytes(4, 1 << 20);
        appender.append(&data).await.unwrap();
        appender.close().await.unwrap();
        let damage = |replica: usize, sector: usize| {
            fake.with(|state| {
                state.replicas.values_mut().nth(replica).unwrap().sectors[sector].1[17] ^= 1;
            });
        };
        (0..3).for_each(|replica| damage(replica, 3 + 70 * replica));
        let reader = file.reader();
        for (at, len) in [(0, 4000), (0, 1 << 20), (777, 1_036_288), (777, 1 << 20)] {
            let read = reader.read_at(at as u64, len).await.unwrap();
            assert!(read == data[at..(at + len).min(data.len())], "{len} bytes at {at}");
        }
        // A sector that no replica has is named, and all before it is still read.
        (0..3).for_each(|replica| damage(replica, 200));
        let lost = 200 * 4048;
        assert!(reader.read_at(0, lost).await.unwrap() == data[..lost]);
        match reader.read_at(0, 1 << 20).await {
            Err(Error::Corrupt { offset, .. }) => assert_eq!(offset, lost as u64),
            other => panic!("{:?}", other.map(|bytes| bytes.len())),
        }
    });
}

/// Two latent errors at two places, and a third server that is down. With rows, which are read whole,
/// they are in one of them.
#[test]
fn range_that_two_damaged_replicas_have_together_is_read_while_the_third_is_down() {
    for (codec, apart) in [(None, 70), (Some(Codec::Plain), 37), (Some(Codec::Lz4), 37)] {
        let fake = Fake::new(1, 3);
        let read_budget = Duration::from_secs(2);
        let config =
            Config { compression: codec.map(Compression::of), read_budget, ..Config::default() };
        run(24, &fake.clone(), config, |client| async move {
            let file = client.create("/file", Policy::strict(3), 0o644, true).await.unwrap();
            let appender = file.append_handle().await.unwrap();
            let data = bytes(5, 1 << 20);
            appender.append(&data).await.unwrap();
            appender.close().await.unwrap();
            let damage = |replica: usize, sector: usize| {
                fake.with(|state| {
                    state.replicas.values_mut().nth(replica).unwrap().sectors[sector].1[17] ^= 1;
                });
            };
            (0..2).for_each(|replica| damage(replica, 3 + apart * replica));
            fake.with(|state| state.health[2] = Health::Dead);
            let reader = file.reader();
            assert!(reader.read_at(0, 1 << 20).await.unwrap() == data);
            assert!(reader.read_at(100_000, 10).await.unwrap() == data[100_000..100_010]);
            // A sector that neither has may be on the third: it is waited for.
            (0..2).for_each(|replica| damage(replica, 200));
            let error = reader.read_at(0, 1 << 20).await.unwrap_err();
            assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
            fake.with(|state| state.health[2] = Health::Good);
            assert!(reader.read_at(0, 1 << 20).await.unwrap() == data);
        });
    }
}
