//! Changes of clients happen once, through the deaths of owners: whole ones are recognised, and the
//! rest of partial ones is done.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use base::Kind;
use block_segment::{Options, Segment};
use block_volume::contract::{Clear, Device, Owned};
use block_volume::dedup::RequestId;
use block_volume::geometry::Extent;
use runtime::sim::CrashMode;
use runtime::{Class, Duration, Env, Rng};

use crate::device::support::{World, on, open, small};

const BLOCK: u64 = 4096;
const LANES: u64 = 6;
/// Blocks of one lane, which changes them in order, from any byte on.
const SPAN: u64 = 96;
/// Shorter parts may look like another change's.
const TELLING: u64 = 8;

/// A change without an answer.
#[derive(Clone, Copy, Debug)]
struct Pending {
    request: RequestId,
    extent: Extent,
    /// The tag of its content; none for a clear.
    tag: Option<u64>,
}

/// The bytes that a change with this tag writes: no other's, where there are a few of them.
fn content(tag: u64, extent: Extent) -> Vec<u8> {
    let byte = |at: u64| {
        let word = ((tag << 32) ^ (at / 8)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (word ^ (word >> 29)).to_le_bytes()[(at % 8) as usize]
    };
    (extent.offset..extent.offset + extent.len).map(byte).collect()
}

/// Changes that lanes have begun, and each attachment's number of changes.
#[derive(Default)]
struct Book {
    pending: RefCell<BTreeMap<u64, Pending>>,
    next: Cell<u64>,
}

async fn send(env: &Env, segment: &Segment, what: Pending) -> Result<(), base::Fault> {
    match what.tag {
        Some(tag) => {
            let data = env.pool().copy_of(&content(tag, what.extent));
            let data = data.expect("within the budget");
            segment.write_dedup(what.request, what.extent.offset, data).await
        }
        None => segment.clear_dedup(what.request, what.extent, Clear::Zero).await,
    }
}

/// Changes its blocks until the owner dies.
async fn lane(env: Env, segment: Segment, book: Rc<Book>, lane: u64, mut rng: Rng) {
    loop {
        let start = lane * SPAN * BLOCK + rng.below(20 * BLOCK);
        let len = match rng.below(3) {
            0 => rng.between(1, 3 * BLOCK),
            _ => rng.between(1, (SPAN - 20) * BLOCK),
        };
        book.next.set(book.next.get() + 1);
        let request = RequestId { attachment: 1, seq: book.next.get() };
        let tag = if rng.one_in(5) { None } else { Some(request.seq) };
        let what = Pending { request, extent: Extent { offset: start, len }, tag };
        book.pending.borrow_mut().insert(lane, what);
        if send(&env, &segment, what).await.is_err() {
            return;
        }
        book.pending.borrow_mut().remove(&lane);
        env.sleep(Duration::from_micros(rng.below(500))).await;
    }
}

async fn bytes(segment: &Segment, extent: Extent) -> Result<Vec<u8>, base::Fault> {
    let mut found = Vec::new();
    while (found.len() as u64) < extent.len {
        let offset = extent.offset + found.len() as u64;
        let len = (extent.len - found.len() as u64).min(64 * BLOCK);
        found.extend_from_slice(&segment.read(Extent { offset, len }).await?);
    }
    Ok(found)
}

/// Blocks of an extent, and the part of each that it covers.
fn parts(extent: Extent) -> impl Iterator<Item = Extent> {
    let blocks = extent.offset / BLOCK..(extent.offset + extent.len).div_ceil(BLOCK);
    blocks.map(move |block| {
        let start = (block * BLOCK).max(extent.offset);
        let end = ((block + 1) * BLOCK).min(extent.offset + extent.len);
        Extent { offset: start, len: end - start }
    })
}

/// The next owner: another attachment writes over all unanswered changes of the first; then the
/// first sends its changes again. Earlier effects must not come back.
async fn judge(env: Env, segment: Segment, book: Rc<Book>) -> Result<(u64, u64), String> {
    let text = |fault: base::Fault| fault.to_string();
    let pending: Vec<Pending> = book.pending.borrow().values().copied().collect();
    let (mut before, mut after) = (0, 0);
    for (n, what) in pending.into_iter().enumerate() {
        let wanted = |part: Extent| match what.tag {
            Some(tag) => content(tag, part),
            None => vec![0; part.len as usize],
        };
        let mut happened = BTreeSet::new();
        for part in parts(what.extent) {
            // A clear of what was zero is no change.
            if what.tag.is_some() && bytes(&segment, part).await.map_err(text)? == wanted(part) {
                happened.insert(part.offset);
            }
        }
        let seq = segment.last(2) + 1;
        let newer = (1 << 31) | seq;
        let over = Pending {
            request: RequestId { attachment: 2, seq },
            extent: what.extent,
            tag: Some(newer),
        };
        send(&env, &segment, over).await.map_err(text)?;
        // Twice, and by way of one more owner for some.
        for _ in 0..1 + n % 2 {
            send(&env, &segment, what).await.map_err(text)?;
        }
        for part in parts(what.extent).filter(|part| part.len >= TELLING) {
            let now = bytes(&segment, part).await.map_err(text)?;
            let is_newer = now == content(newer, part);
            match happened.contains(&part.offset) {
                true if is_newer => before += 1,
                false if is_newer || now == wanted(part) => after += 1,
                _ => return Err(format!("{what:?}, at {part:?}: it came back, or is half")),
            }
        }
        book.pending.borrow_mut().retain(|_, one| one.request != what.request);
    }
    Ok((before, after))
}

fn life(seed: u64) -> (u64, u64, BTreeMap<&'static str, u64>) {
    let world = World::new(seed);
    let book = Rc::new(Book::default());
    let (sim, mut sums) = (world.sim.clone(), (0, 0));
    let marks = world.run(async {
        for round in 0..12u64 {
            let (host, env) = world.boot();
            let (disk, at, held) = (world.disk.clone(), env.clone(), book.clone());
            let judged = on(&env, async move {
                let segment = open(&at, &disk, round + 1, small()).await.expect("it opens");
                let sums = judge(at.clone(), segment.clone(), held.clone()).await?;
                for number in 0..LANES {
                    let rng = Rng::new(seed << 16 | round << 8 | number);
                    let work = lane(at.clone(), segment.clone(), held.clone(), number, rng);
                    at.spawn(Class::Foreground, "lane", work);
                }
                Ok::<_, String>(sums)
            });
            let (before, after) = judged.await.expect("no crash").unwrap_or_else(|what| {
                panic!("seed {seed}, owner {round}: {what}");
            });
            sums = (sums.0 + before, sums.1 + after);
            sim.sleep(Duration::from_micros(sim.with_rng(|rng| rng.between(500, 60_000)))).await;
            sim.crash(host, CrashMode::Process);
        }
        sim.marks()
    });
    (sums.0, sums.1, marks)
}

#[test]
fn changes_are_not_repeated_by_the_next_owner() {
    let (mut before, mut after) = (0, 0);
    let mut marks: BTreeMap<&'static str, u64> = BTreeMap::new();
    for seed in 0..12 {
        let (one, other, seen) = life(seed);
        (before, after) = (before + one, after + other);
        seen.into_iter().for_each(|(mark, count)| *marks.entry(mark).or_default() += count);
    }
    println!("{before} blocks had happened, {after} had not; {marks:?}");
    assert!(before > 500 && after > 500, "{before} {after}");
    for mark in ["segment: a change has happened before", "segment: a change is completed"] {
        assert!(marks.contains_key(mark), "{mark} was not reached: {marks:?}");
    }
}

/// Windows outlive checkpoints, collection and many owners, and only as long as needed.
#[test]
fn windows_of_attachments_last_until_they_are_over() {
    let world = World::new(5);
    world.run(async {
        for round in 0..3u64 {
            let (host, env) = world.boot();
            let (disk, at) = (world.disk.clone(), env.clone());
            let done = on(&env, async move {
                let segment = open(&at, &disk, round + 1, small()).await.expect("it opens");
                for attachment in 1..=4u32 {
                    assert_eq!(segment.last(attachment), round * 300);
                    for seq in round * 300 + 1..=round * 300 + 300 {
                        let request = RequestId { attachment, seq };
                        let extent = Extent { offset: seq % 64 * BLOCK, len: BLOCK };
                        let what = Pending { request, extent, tag: Some(seq) };
                        send(&at, &segment, what).await.expect("all is well");
                    }
                    // An old change: its state is not known any more, so it is refused.
                    let request = RequestId { attachment, seq: round * 300 + 1 };
                    let extent = Extent { offset: 0, len: 1 };
                    let late = send(&at, &segment, Pending { request, extent, tag: Some(1) });
                    assert_eq!(late.await.unwrap_err().kind, Kind::Invalid);
                }
                segment.confirm().await.expect("no other owner is there");
                segment.checkpoint().await.expect("all is well");
                if round == 2 {
                    segment.forget(0..3);
                    assert_eq!(segment.attachments(), [3, 4]);
                    segment.write(0, at.pool().copy_of(&[1]).expect("a byte")).await.unwrap();
                }
                segment.close().await.expect("all is well");
            });
            done.await.expect("no crash");
            world.sim.crash(host, CrashMode::Process);
        }
        let (_, env) = world.boot();
        let (disk, at) = (world.disk.clone(), env.clone());
        let done = on(&env, async move {
            let segment = open(&at, &disk, 9, small()).await.expect("it opens");
            assert_eq!(segment.attachments(), [3, 4]);
            let rival = open(&at, &disk, 10, small()).await.expect("it opens");
            assert_eq!(segment.confirm().await.unwrap_err().kind, Kind::Fenced);
            rival.confirm().await.expect("it is the owner");
        });
        done.await.expect("no crash");
    });
}

/// The first change of an attachment that a segment remembers may have any number: the segment was cut off
/// and made again, or the attachment was over. Its record has the low half of the number only.
#[test]
fn segment_with_a_number_behind_2_31_changes_opens_again() {
    for seq in [(1 << 31) - 1, 1 << 31, (1 << 31) + 5, (1 << 32) - 1] {
        let world = World::new(6);
        world.run(async {
            // The batch with the window is not written before the owner's death.
            let late = || Options { txn_wait: Duration::from_secs(60), ..small() };
            let request = RequestId { attachment: 7, seq };
            let what = Pending { request, extent: Extent { offset: 0, len: BLOCK }, tag: Some(1) };
            for owner in 1..=3 {
                let (host, env) = world.boot();
                let (disk, at) = (world.disk.clone(), env.clone());
                let done = on(&env, async move {
                    let opened = open(&at, &disk, owner, late()).await;
                    let segment = opened.unwrap_or_else(|fault| panic!("{seq}, {owner}: {fault}"));
                    match owner {
                        1 => send(&at, &segment, what).await.expect("all is well"),
                        _ => {
                            assert!(owner == 2 || segment.last(7) == seq, "{seq}");
                            segment.checkpoint().await.expect("all is well");
                            segment.close().await.expect("all is well");
                        }
                    }
                });
                done.await.expect("no crash");
                world.sim.crash(host, CrashMode::Process);
            }
        });
    }
}
