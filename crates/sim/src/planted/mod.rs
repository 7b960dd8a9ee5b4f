//! Bugs on purpose, each of which a checker must find. They are in wrappers around the product that
//! only the simulator puts in: in the place of a chunkserver's store, of a client's network, of a
//! block server's requests and segments, and how these are cut, of the files of tables and segments,
//! and of a front end's volumes. Some are inside of crates, behind their feature `planted`. What is
//! shipped has no switch for them.
//!
//! A bug acts each time that it could, or, in its rare form, one time in so many: tests miss rare
//! faults. A rare bug draws only where its act can matter, e.g. at a change that comes twice, and
//! not at each change: else most acts change nothing that a checker could see.

mod frontend;
mod peers;
mod sight;
mod store;
mod tables;
mod volumes;

pub(crate) use frontend::exports_of;
pub(crate) use peers::peers_of;
pub use store::Store;
pub(crate) use tables::files_of;
pub(crate) use volumes::{handler_of, opener_of};

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use base::ChunkId;
use block_proto::Sequence;
use block_volume::ids::SegmentId;
use block_volume::limits::BLOCK;
use chunkserver::BackgroundShare;
use master::MasterTiming;
use runtime::{Duration, Rng};

/// A bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planted {
    /// Stores acknowledge appends before they are durable.
    AckEarly,
    /// Stores answer a fence and go on taking appends of the old writer.
    NoFence,
    /// Stores answer a seal without sealing.
    NoSeal,
    /// Stores answer a deletion and keep the replica.
    NoDelete,
    /// Stores delete a neighbour beside what they are asked to delete.
    DeleteNeighbour,
    /// Stores never take what repair copies.
    NoRepair,
    /// Stores make a replica without a vote where a copy comes to the tombstone of a fence.
    FillRepairing,
    /// Stores hand out other bytes than were written, with valid checksums.
    WrongBytes,
    /// Stores make reads whose callers have gone.
    CancelIgnored,
    /// Stores answer a probe without asking the disk.
    ProbeSkipsDisk,
    /// Stores answer checks of their media without asking the disk.
    CheckSkipsDisk,
    /// Latencies that chunkservers report count for ever.
    TimesNeverAge,
    /// Clients count an append as stored when it was sent.
    AckUnsent,
    /// Writers release an append when as many replicas have it as acknowledge it.
    ReleaseAtM,
    /// Writers end a chunk at what was placed in it.
    EndAbovePlaced,
    /// An append has its place in the window until all followed replicas have it.
    OneBudget,
    /// Writers read no row back before they send it.
    VerifySkipped,
    /// Masters have no rows checked with all their cells.
    RowsUnchecked,
    /// Appends wait for late replicas as long as for servers that are gone.
    BlockedWaits,
    /// Writers go on with fewer copies because a disk is late.
    FewerWhenLate,
    /// Writers whose own host stood still hold that against replicas.
    OwnPauseEnds,
    /// Writers stay in chunks without bytes, whichever servers they are to leave.
    EmptyStays,
    /// The first answer without the bytes is the end of an open chunk to a reader.
    ShortIsEnd,
    /// A replica that can not be sealed is redundancy to masters.
    UnsettledCounts,
    /// Masters seal an open chunk at the least length that the votes permit.
    StatisticIsLength,
    /// Replicas of open chunks repeat for ever their answer to a client's first question.
    StaleTail,
    /// Replicas serve what they hold of open chunks beyond the committed length.
    Uncommitted,
    /// Clients answer a look-up of a name from their first answer.
    StaleNames,
    /// Clients without an answer of any master for a while answer look-ups from their last answer.
    OldWhenCut,
    /// Clients send some namespace changes again as if they were others.
    TwiceChanged,
    /// Clients that are refused a lock go on as if they had got it.
    ForgedLock,
    /// Clients take a rename for done that they never sent.
    LostRename,
    /// Clients have files made with what they inherit from above their directory.
    PolicyNotInherited,
    /// Clients take a directory's policy for set that they never sent.
    LostPolicy,
    /// Block servers make files with the policy that the volume had when they got the segment.
    PolicyOfOpening,
    /// Block servers acknowledge writes at once, whichever server had the segment before.
    NoHold,
    /// Block servers take their leases for three times as long as granted.
    LongLease,
    /// Block servers do a change as often as its message comes.
    NoSequence,
    /// Block servers answer for segments that others have.
    EndlessLease,
    /// Block servers go on with attachments that are over.
    OldAttachment,
    /// Segments do not remember which changes have happened.
    ForgetChanges,
    /// Block servers without a lease take a segment for theirs without asking.
    NoConfirm,
    /// Segments answer changes behind a cut before all segments are cut.
    NoCutHold,
    /// Segments answer with the locations of blocks at the first question.
    OldPlaces,
    /// Front ends answer writes before they are done.
    EarlyAnswer,
    /// Merges of a table that came from a fork take keys that it does not show.
    LooseBounds,
    /// Forks of tables seal nothing, and their instances go on.
    UnsealedParent,
    /// Owners of tables answer a seal and leave the file to its writer.
    LeakySeal,
    /// Clients ask block managers by force for what they were to ask for without.
    AlwaysForced,
    /// Block managers keep the data of deleted volumes for half of the time.
    HalfKept,
    /// Block servers take an attachment for alone though another was made after it.
    HoldSkippedShared,
    /// Block servers ask the manager about an attachment for one segment of a volume only.
    StandingCached,
    /// Clients of volumes go back to an earlier owner of a segment when its name comes late.
    EarlierOwner,
    /// Block managers and masters take a server whose heartbeats come for one that serves.
    BeatsAreAlive,
    /// Segments never answer a change that a full cluster refuses.
    SilentWhenFull,
    /// Masters take another one that they hear for one that they reach.
    HeardIsReached,
    /// Clients have a change relayed under another identity.
    RelayNewIdentity,
    /// Masters take a server for unreached that clients of one host report.
    OneClientRules,
    /// Masters go on renewing the lock of a holder whom clients do not reach.
    DoubtsUnheard,
    /// Masters end the hold of a lock because clients of one host do not reach the holder.
    OneDoubtRules,
    /// Masters name all servers that they do not reach to clients, however many these are.
    ManyBelieved,
    /// Masters seal chunks of writers that reach their servers, when they do not reach these themselves,
    /// though they hear of the writers.
    OpenGraceUnreached,
    /// Clients open and seal files whichever epoch these have.
    LateOpenFences,
    /// Rights end by the clocks of masters on the wall, and are judged by those of chunkservers. In its
    /// rare form it acts in as many runs.
    RightsByWall,
    /// Rights do not end. In its rare form it acts in as many runs.
    RightsForEver,
    /// Masters leave writers the spares on servers that drain or are gone.
    SparesStay,
    /// Masters drop a replica of a draining server, or of no more use, when one copy lacks.
    DrainDropsFirst,
    /// Masters take a server for drained whatever is left there.
    DrainedTooSoon,
    /// Chunkservers give copies next to nothing of their disks, and no least rate.
    NoFloor,
    /// Object servers answer though the lease of a range's owner before may last.
    RangeNoHold,
    /// Object servers take their leases for four times as long as granted.
    RangeLongLease,
    /// An object manager answers for a change of a key before gateways have seen it.
    KeyForever,
    /// Locks of objects end by the clock of their owner alone.
    LockByClock,
    /// Object managers grant leases without their clock.
    ClockUnsaid,
    /// Lifecycle has whatever a key then has expire, when what was read of it was due.
    ExpireByKey,
    /// Lifecycle goes by the tags that an object had when it was read.
    ExpireForgetsTags,
    /// Lifecycle goes by the clock of a range's owner alone.
    ExpireByClock,
    /// Lifecycle removes versions that are locked.
    ExpireLocked,
    /// Lifecycle goes by rules that were replaced since it read them.
    ExpireByOldRules,
    /// Lifecycle counts the days of an older version from its own time on.
    NoncurrentByOwnAge,
    /// Collection of objects takes a file for one of which nothing lives when its count says so.
    FileDropCounted,
    /// Collection of objects removes files in which bodies may still be committed.
    FileDropHeld,
    /// Collection of objects keeps no file in the trash.
    FileNoTrash,
    /// Owners of ranges do not count what dies in files.
    FileLostCount,
    /// Owners of ranges commit bodies in files that they do not keep.
    FileUnheld,
    /// Owners of ranges and managers leave what closed sessions have sent.
    FileOrphanKept,
    /// Gateways go on in a file behind a body that broke off.
    FileHalfBody,
    /// An object manager removes the directories of a split that goes on.
    SweepEatsSplit,
    /// A half of a range takes no answers over.
    SplitNoInherit,
    /// An owner has a split committed whose halves lack files of bodies.
    SplitHalfCommit,
    /// A listing ends with the range in which it began.
    OneRangeShown,
    /// Halves take in the other half's rows when they merge files of both.
    SplitLooseBounds,
}

impl Planted {
    /// All of them.
    pub const ALL: [Planted; 92] = [
        Planted::AckEarly,
        Planted::NoFence,
        Planted::NoSeal,
        Planted::NoDelete,
        Planted::DeleteNeighbour,
        Planted::NoRepair,
        Planted::FillRepairing,
        Planted::WrongBytes,
        Planted::CancelIgnored,
        Planted::ProbeSkipsDisk,
        Planted::CheckSkipsDisk,
        Planted::TimesNeverAge,
        Planted::AckUnsent,
        Planted::ReleaseAtM,
        Planted::EndAbovePlaced,
        Planted::OneBudget,
        Planted::EmptyStays,
        Planted::BlockedWaits,
        Planted::FewerWhenLate,
        Planted::OwnPauseEnds,
        Planted::VerifySkipped,
        Planted::RowsUnchecked,
        Planted::ShortIsEnd,
        Planted::UnsettledCounts,
        Planted::StatisticIsLength,
        Planted::StaleTail,
        Planted::Uncommitted,
        Planted::StaleNames,
        Planted::OldWhenCut,
        Planted::TwiceChanged,
        Planted::ForgedLock,
        Planted::LostRename,
        Planted::PolicyNotInherited,
        Planted::LostPolicy,
        Planted::PolicyOfOpening,
        Planted::NoHold,
        Planted::LongLease,
        Planted::NoSequence,
        Planted::EndlessLease,
        Planted::OldAttachment,
        Planted::ForgetChanges,
        Planted::NoConfirm,
        Planted::NoCutHold,
        Planted::OldPlaces,
        Planted::EarlyAnswer,
        Planted::LeakySeal,
        Planted::AlwaysForced,
        Planted::HalfKept,
        Planted::BeatsAreAlive,
        Planted::HoldSkippedShared,
        Planted::StandingCached,
        Planted::EarlierOwner,
        Planted::SilentWhenFull,
        Planted::HeardIsReached,
        Planted::RelayNewIdentity,
        Planted::OneClientRules,
        Planted::DoubtsUnheard,
        Planted::OneDoubtRules,
        Planted::ManyBelieved,
        Planted::OpenGraceUnreached,
        Planted::LateOpenFences,
        Planted::RightsByWall,
        Planted::RightsForEver,
        Planted::SparesStay,
        Planted::DrainDropsFirst,
        Planted::DrainedTooSoon,
        Planted::NoFloor,
        Planted::RangeNoHold,
        Planted::RangeLongLease,
        Planted::KeyForever,
        Planted::LockByClock,
        Planted::ClockUnsaid,
        Planted::ExpireByKey,
        Planted::ExpireForgetsTags,
        Planted::ExpireByClock,
        Planted::ExpireLocked,
        Planted::ExpireByOldRules,
        Planted::NoncurrentByOwnAge,
        Planted::FileDropCounted,
        Planted::FileDropHeld,
        Planted::FileNoTrash,
        Planted::FileLostCount,
        Planted::FileUnheld,
        Planted::FileOrphanKept,
        Planted::FileHalfBody,
        Planted::SweepEatsSplit,
        Planted::SplitNoInherit,
        Planted::SplitHalfCommit,
        Planted::OneRangeShown,
        Planted::SplitLooseBounds,
        Planted::LooseBounds,
        Planted::UnsealedParent,
    ];
}

/// A bug while a seed runs with it.
struct Active {
    bug: Planted,
    /// It acts one time in so many.
    one_in: u64,
    /// Decides when it acts. Its own, so that draws change nothing else.
    rng: Rng,
    /// Chances that it had, and times that it acted.
    acts: Acts,
    /// Decisions on appends, by offset, on fences, by epoch, or on copies: the same for all
    /// replicas.
    decided: BTreeMap<(ChunkId, u64), bool>,
    /// Changes of segments that have come.
    changes: Changes,
    /// Number of openings of each segment.
    openings: BTreeMap<SegmentId, u64>,
    /// Contents of blocks that clients were shown.
    sights: sight::Sights,
    /// Segments that have yet to begin a cut, by the cut.
    uncut: BTreeMap<u64, u64>,
}

/// Acts of a planted bug in a run.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Acts {
    /// Times that it could have acted.
    pub chances: u64,
    /// Times that it has acted.
    pub count: u64,
}

/// A change of a segment: the attachment and the attachment's number of it.
type Change = (u64, u64);

/// Changes of all segments, by their messages.
#[derive(Default)]
struct Changes {
    come: BTreeSet<(SegmentId, Change)>,
    /// The change of each block that came last.
    last: BTreeMap<(SegmentId, u64), Change>,
    /// The highest number of an attachment that had come, each time that one was put behind it.
    inserted: BTreeMap<(SegmentId, u64), Vec<u64>>,
}

impl Changes {
    /// A change of blocks comes. True when it has come before, and another change of one of the
    /// blocks has come since: only then is there a difference when it is done again.
    fn comes(&mut self, id: SegmentId, change: Change, bytes: Range<u64>) -> bool {
        let mut blocks = bytes.start / BLOCK..bytes.end.div_ceil(BLOCK);
        if self.come.insert((id, change)) {
            self.last.extend(blocks.map(|block| ((id, block), change)));
            return false;
        }
        let other = |block| self.last.get(&(id, block)).is_some_and(|last| *last != change);
        blocks.any(other)
    }

    /// The numbers of a change, when numbers that were put between others have moved it.
    fn moved(&self, id: SegmentId, attachment: u64, sequence: Sequence) -> Sequence {
        let inserted = self.inserted.get(&(id, attachment)).map_or(&[][..], Vec::as_slice);
        let moved = |number| number + inserted.iter().filter(|&&at| at < number).count() as u64;
        Sequence { seq: moved(sequence.seq), floor: moved(sequence.floor) }
    }

    /// A number that no change of the attachment has, or will have: it is put behind the highest
    /// one that has come, and all that come later move.
    fn insert(&mut self, id: SegmentId, attachment: u64) -> u64 {
        let all = (id, (attachment, 0))..=(id, (attachment, u64::MAX));
        let highest = self.come.range(all).next_back().map_or(0, |(_, (_, seq))| *seq);
        let inserted = self.inserted.entry((id, attachment)).or_default();
        inserted.push(highest);
        highest + inserted.len() as u64
    }
}

/// A rare bug that answers early does so only when the work takes longer than this.
const EARLY_AFTER: Duration = Duration::from_millis(2);

thread_local! {
    static ACTIVE: RefCell<Option<Active>> = const { RefCell::new(None) };
}

/// Calls `run` with a bug planted that acts one time in `one_in`, as drawn from `seed`. Answers also
/// how often it could have acted, and has.
pub(crate) fn with<T>(
    (bug, one_in): (Planted, u64),
    seed: u64,
    run: impl FnOnce() -> T,
) -> (T, Acts) {
    ACTIVE.set(Some(Active {
        bug,
        one_in,
        rng: Rng::new(seed ^ 0x000b_ad5e_ed00),
        acts: Acts::default(),
        decided: BTreeMap::new(),
        changes: Changes::default(),
        openings: BTreeMap::new(),
        sights: sight::Sights::default(),
        uncut: BTreeMap::new(),
    }));
    master::plant(master_bug(bug));
    master_stream::plant(stream_bug(bug));
    client::plant(client_bug(bug));
    block_client::plant(block_client_bug(bug));
    let result = run();
    master::plant(None);
    master_stream::plant(None);
    client::plant(None);
    block_client::plant(None);
    let active = ACTIVE.take();
    (result, active.map(|active| active.acts).unwrap_or_default())
}

/// The bug planted on this thread.
pub(crate) fn planted() -> Option<Planted> {
    ACTIVE.with_borrow(|active| active.as_ref().map(|active| active.bug))
}

/// The bug of masters beside those of stream partitions, if that is where it is planted.
fn master_bug(bug: Planted) -> Option<master::Planted> {
    let of_masters = match bug {
        Planted::BeatsAreAlive => master::Planted::ServersUnpinged,
        Planted::DrainedTooSoon => master::Planted::DrainedTooSoon,
        _ => return None,
    };
    acts(bug).then_some(of_masters)
}

/// The bug of stream partitions, if that is where it is planted.
fn stream_bug(bug: Planted) -> Option<master_stream::Planted> {
    let of_streams = match bug {
        Planted::RightsByWall => master_stream::Planted::RightsByWall,
        Planted::RightsForEver => master_stream::Planted::RightsForEver,
        Planted::RowsUnchecked => master_stream::Planted::RowsUnchecked,
        Planted::SparesStay => master_stream::Planted::SparesStay,
        Planted::OpenGraceUnreached => master_stream::Planted::WritersUnheard,
        Planted::UnsettledCounts => master_stream::Planted::UnsettledCounts,
        Planted::DrainDropsFirst => master_stream::Planted::DrainDropsFirst,
        Planted::StatisticIsLength => master_stream::Planted::StatisticIsLength,
        _ => return None,
    };
    acts(bug).then_some(of_streams)
}

/// The bug of clients, if that is where it is planted.
fn client_bug(bug: Planted) -> Option<client::Planted> {
    let of_clients = match bug {
        Planted::ReleaseAtM => client::Planted::ReleaseAtM,
        Planted::EndAbovePlaced => client::Planted::EndAbovePlaced,
        Planted::OneBudget => client::Planted::OneBudget,
        Planted::EmptyStays => client::Planted::EmptyStays,
        Planted::BlockedWaits => client::Planted::BlockedWaits,
        Planted::FewerWhenLate => client::Planted::FewerWhenLate,
        Planted::OwnPauseEnds => client::Planted::OwnPauseEnds,
        Planted::VerifySkipped => client::Planted::VerifySkipped,
        Planted::ShortIsEnd => client::Planted::ShortIsEnd,
        _ => return None,
    };
    acts(bug).then_some(of_clients)
}

/// The bug of clients of volumes, if that is where it is planted.
fn block_client_bug(bug: Planted) -> Option<block_client::Planted> {
    (bug == Planted::EarlierOwner && acts(bug)).then_some(block_client::Planted::EarlierOwner)
}

/// The bug of an object server, manager or gateway, if that is where it is planted.
pub(crate) fn object_bugs() -> object_index::Bugs {
    use object_index::Planted as Of;
    let Some(bug) = planted() else { return object_index::Bugs::default() };
    let of_objects = match bug {
        Planted::RangeNoHold => Of::NoHold,
        Planted::RangeLongLease => Of::LongLease,
        Planted::KeyForever => Of::KeyForever,
        Planted::LockByClock => Of::LockByClock,
        Planted::ClockUnsaid => Of::ClockUnsaid,
        Planted::ExpireByKey => Of::ExpireByKey,
        Planted::ExpireForgetsTags => Of::ExpireForgetsTags,
        Planted::ExpireByClock => Of::ExpireByClock,
        Planted::ExpireLocked => Of::ExpireLocked,
        Planted::ExpireByOldRules => Of::ExpireByOldRules,
        Planted::NoncurrentByOwnAge => Of::NoncurrentByOwnAge,
        Planted::FileDropCounted => Of::DropCounted,
        Planted::FileDropHeld => Of::DropUnpinned,
        Planted::FileNoTrash => Of::NoTrash,
        Planted::FileLostCount => Of::LostCount,
        Planted::FileUnheld => Of::CommitUnlinked,
        Planted::FileOrphanKept => Of::OrphanKept,
        Planted::FileHalfBody => Of::HalfBody,
        Planted::SweepEatsSplit => Of::SweepEatsSplit,
        Planted::SplitNoInherit => Of::NoInherit,
        Planted::SplitHalfCommit => Of::HalfCommit,
        Planted::OneRangeShown => Of::OneRangeShown,
        _ => return object_index::Bugs::default(),
    };
    match acts(bug) {
        true => object_index::Bugs::of(of_objects),
        false => object_index::Bugs::default(),
    }
}

/// The bug of an object server's tables, if that is where it is planted.
pub(crate) fn object_table_bugs() -> table::Bugs {
    match planted() {
        Some(bug @ Planted::SplitLooseBounds) if acts(bug) => {
            table::Bugs::of(table::Planted::LooseBounds)
        }
        _ => table::Bugs::default(),
    }
}

/// Times of a master, which may have a bug.
pub(crate) fn times_of(mut timing: MasterTiming) -> MasterTiming {
    if acts(Planted::HeardIsReached) {
        timing.unreached = Duration::from_secs(3600);
    }
    if acts(Planted::OneClientRules) {
        timing.report_hosts = 1;
    }
    if acts(Planted::DoubtsUnheard) {
        timing.doubt_hosts = usize::MAX;
    }
    if acts(Planted::OneDoubtRules) {
        timing.doubt_hosts = 1;
    }
    if acts(Planted::ManyBelieved) {
        timing.abnormal_share = 1;
    }
    if acts(Planted::OpenGraceUnreached) {
        timing.stream.open_grace_unreached = timing.stream.open_grace;
    }
    timing
}

/// The share of a disk for copies, which may have a bug.
pub(crate) fn share_of(share: BackgroundShare) -> BackgroundShare {
    match acts(Planted::NoFloor) {
        true => BackgroundShare { busy: 0, idle: 0, urgent: 0, floor_bytes_per_s: 0 },
        false => share,
    }
}

/// Time after which a latency in heartbeats counts half, which may have a bug.
pub(crate) fn times_halving(usual: Duration) -> Duration {
    match acts(Planted::TimesNeverAge) {
        true => Duration::from_secs(1 << 30),
        false => usual,
    }
}

/// The bug of a table that is forked, if that is where it is planted.
pub(crate) fn table_bugs() -> table::Bugs {
    match planted() {
        Some(bug @ Planted::LooseBounds) if acts(bug) => {
            table::Bugs::of(table::Planted::LooseBounds)
        }
        Some(bug @ Planted::UnsealedParent) if acts(bug) => {
            table::Bugs::of(table::Planted::UnsealedParent)
        }
        _ => table::Bugs::default(),
    }
}

/// Whether a bug that is planted on this thread acts seldom.
fn is_rare() -> bool {
    ACTIVE.with_borrow(|active| active.as_ref().is_some_and(|active| active.one_in > 1))
}

/// Whether `bug` is planted on this thread and acts now.
pub(crate) fn acts(bug: Planted) -> bool {
    acts_in(bug, 1)
}

/// As [`acts`], of a bug that acts one time in `least` at most.
fn acts_in(bug: Planted, least: u64) -> bool {
    ACTIVE.with_borrow_mut(|active| match active {
        Some(active) if active.bug == bug => {
            let one_in = active.one_in.max(least);
            let acts = one_in == 1 || active.rng.one_in(one_in);
            active.acts.chances += 1;
            active.acts.count += u64::from(acts);
            acts
        }
        _ => false,
    })
}

/// As [`acts`], of a bug that in its rare form may act only where it `matters`.
fn acts_where(bug: Planted, matters: bool) -> bool {
    (matters || !is_rare()) && acts(bug)
}

/// As [`acts`], with one decision for an append or a fence on all replicas of a chunk.
fn acts_on_all(bug: Planted, chunk: ChunkId, number: u64) -> bool {
    if planted() != Some(bug) {
        return false;
    }
    let known = ACTIVE.with_borrow(|active| {
        active.as_ref().and_then(|active| active.decided.get(&(chunk, number)).copied())
    });
    known.unwrap_or_else(|| {
        let acts = acts(bug);
        ACTIVE.with_borrow_mut(|active| {
            if let Some(active) = active {
                active.decided.insert((chunk, number), acts);
            }
        });
        acts
    })
}

/// Takes note of a change of a segment's bytes; true when doing it now undoes another one.
fn change_comes(id: SegmentId, change: Change, bytes: Range<u64>) -> bool {
    ACTIVE.with_borrow_mut(|active| {
        active.as_mut().is_some_and(|active| active.changes.comes(id, change, bytes))
    })
}

/// The numbers of a change of an attachment; with `as_new`, those of one that has not come before.
fn renumber(id: SegmentId, attachment: u64, sequence: Sequence, as_new: bool) -> Sequence {
    ACTIVE.with_borrow_mut(|active| {
        let Some(active) = active else { return sequence };
        let Sequence { seq, floor } = active.changes.moved(id, attachment, sequence);
        let seq = if as_new { active.changes.insert(id, attachment) } else { seq };
        Sequence { seq, floor }
    })
}

/// Takes note of the opening of a segment; answers its number.
fn segment_opens(id: SegmentId) -> u64 {
    ACTIVE.with_borrow_mut(|active| {
        let Some(active) = active else { return 0 };
        let openings = active.openings.entry(id).or_default();
        *openings += 1;
        *openings
    })
}

/// A segment is asked for a cut.
pub(crate) fn cut_is_asked(cut: u64) {
    ACTIVE.with_borrow_mut(|active| {
        if let Some(active) = active {
            *active.uncut.entry(cut).or_default() += 1;
        }
    });
}

/// A segment has begun a cut. Whether it ends its hold at once: in the rare form, only where another
/// segment has yet to begin the cut.
pub(crate) fn ends_hold(cut: u64) -> bool {
    let others = ACTIVE.with_borrow_mut(|active| {
        let uncut = active.as_mut()?.uncut.get_mut(&cut)?;
        *uncut -= 1;
        Some(*uncut)
    });
    acts_where(Planted::NoCutHold, others.is_some_and(|others| others > 0))
}

/// Whether a segment was opened again after this opening.
fn is_opened_since(id: SegmentId, opening: u64) -> bool {
    ACTIVE.with_borrow(|active| {
        let known = active.as_ref().and_then(|active| active.openings.get(&id));
        known.is_some_and(|&last| last > opening)
    })
}
