//! The list of abnormal chunkservers that clients poll (C28, `protocols-tail.md` 10.6): who is
//! unreached, slow or drains, in versions. A client is answered with what has changed since its version; with all of
//! them, when that is not known any more or was another master's. When many are abnormal none is named:
//! that is no matter of single servers, and clients rely on what they see themselves. State without I/O
//! or clock.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use base::ServerId;
use wire::control::limits::ABNORMAL_MAX;
use wire::control::{AbnormalServer, AbnormalServers, AbnormalVersion};

use crate::limits::ABNORMAL_LOG_MAX;

/// Condition of a server that is listed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Condition {
    unreached: bool,
    slow: bool,
    draining: bool,
}

/// One master's list.
#[derive(Debug)]
pub(super) struct Abnormal {
    /// One server of so many may be named, and one always.
    share: usize,
    version: AbnormalVersion,
    many: bool,
    listed: BTreeMap<ServerId, Condition>,
    /// The latest changes, the oldest first: the server, and the version with it.
    log: VecDeque<(u64, ServerId)>,
    /// Changes from this version on are in the log.
    logged_from: u64,
}

impl Abnormal {
    /// Empty, with versions of this `boot`.
    pub(super) fn new(boot: u64, share: usize) -> Abnormal {
        Abnormal {
            share: share.max(1),
            version: AbnormalVersion { boot, changes: 1 },
            many: false,
            listed: BTreeMap::new(),
            log: VecDeque::new(),
            logged_from: 1,
        }
    }

    /// Takes over who is unreached now, of `all` servers, who is slow, and who drains. The last are an
    /// operator's doing, however many they are: what the list has no room for is named when others have
    /// drained. Slow ones are named where they have room beside the unreached.
    pub(super) fn update(
        &mut self,
        mut unreached: BTreeSet<ServerId>,
        mut slow: BTreeSet<ServerId>,
        draining: &BTreeSet<ServerId>,
        all: usize,
    ) {
        let most = (all / self.share).clamp(1, ABNORMAL_MAX);
        let many = unreached.len() > most;
        if many {
            unreached.clear();
        }
        if many || unreached.union(&slow).count() > most {
            slow.clear();
        }
        let condition = |&server: &ServerId| {
            let is = |servers: &BTreeSet<ServerId>| servers.contains(&server);
            let (unreached, slow, draining) = (is(&unreached), is(&slow), is(draining));
            (server, Condition { unreached, slow, draining })
        };
        let mut listed: BTreeMap<_, _> = unreached.union(&slow).map(condition).collect();
        let others: Vec<_> =
            draining.iter().filter(|server| !listed.contains_key(server)).collect();
        let room = ABNORMAL_MAX - listed.len();
        listed.extend(others.into_iter().take(room).map(condition));
        if self.many != many {
            // A client that has a version before this one is answered with all.
            self.version.changes += 1;
            (self.many, self.listed, self.logged_from) = (many, listed, self.version.changes);
            self.log.clear();
            return;
        }
        let known: BTreeSet<_> = self.listed.keys().chain(listed.keys()).copied().collect();
        let differs = |server: &ServerId| self.listed.get(server) != listed.get(server);
        let changed: Vec<_> = known.into_iter().filter(differs).collect();
        for server in changed {
            self.version.changes += 1;
            self.log.push_back((self.version.changes, server));
        }
        while self.log.len() > ABNORMAL_LOG_MAX {
            self.logged_from = self.log.pop_front().map_or(self.logged_from, |(at, _)| at);
        }
        self.listed = listed;
    }

    /// The answer to a client that has the list at `known`.
    pub(super) fn answer(&self, known: Option<AbnormalVersion>) -> AbnormalServers {
        let (version, many) = (self.version, self.many);
        let one = |&server: &ServerId| {
            let condition = self.listed.get(&server);
            AbnormalServer {
                server,
                unreached: condition.is_some_and(|it| it.unreached),
                slow: condition.is_some_and(|it| it.slow),
                draining: condition.is_some_and(|it| it.draining),
            }
        };
        let all = || self.listed.keys().map(one).collect();
        let from = known.filter(|known| {
            known.boot == version.boot
                && (self.logged_from..=version.changes).contains(&known.changes)
        });
        let Some(from) = from else {
            return AbnormalServers { version, full: true, many, servers: all() };
        };
        let behind = self.log.iter().rev().take_while(|(at, _)| *at > from.changes);
        let changed: BTreeSet<_> = behind.map(|(_, server)| *server).collect();
        if changed.len() > ABNORMAL_MAX {
            return AbnormalServers { version, full: true, many, servers: all() };
        }
        let servers = changed.iter().map(one).collect();
        AbnormalServers { version, full: false, many, servers }
    }
}

#[cfg(test)]
mod tests {
    use runtime::Rng;

    use super::*;

    fn servers(numbers: impl IntoIterator<Item = u32>) -> BTreeSet<ServerId> {
        numbers.into_iter().map(ServerId::new).collect()
    }

    fn named(answer: &AbnormalServers) -> Vec<(u32, bool)> {
        answer.servers.iter().map(|one| (one.server.get(), one.unreached)).collect()
    }

    #[test]
    fn clients_get_all_first_and_then_what_has_changed() {
        let mut list = Abnormal::new(7, 3);
        list.update(servers([2, 5]), BTreeSet::new(), &BTreeSet::new(), 10);
        let first = list.answer(None);
        assert_eq!(
            (first.full, first.many, named(&first)),
            (true, false, vec![(2, true), (5, true)])
        );
        let same = list.answer(Some(first.version));
        assert_eq!((same.full, same.version, named(&same)), (false, first.version, vec![]));
        list.update(servers([5, 6]), BTreeSet::new(), &BTreeSet::new(), 10);
        let change = list.answer(Some(first.version));
        assert_eq!((change.full, named(&change)), (false, vec![(2, false), (6, true)]));
        // Back and forth is no change of what the client has.
        list.update(servers([2, 5]), BTreeSet::new(), &BTreeSet::new(), 10);
        assert_eq!(named(&list.answer(Some(change.version))), [(2, true), (6, false)]);
    }

    #[test]
    fn version_of_another_master_or_of_none_gets_all() {
        let mut list = Abnormal::new(7, 3);
        list.update(servers([2]), BTreeSet::new(), &BTreeSet::new(), 10);
        let AbnormalVersion { boot, changes } = list.answer(None).version;
        for known in [
            AbnormalVersion { boot: boot + 1, changes },
            AbnormalVersion { boot, changes: changes + 1 },
            AbnormalVersion { boot, changes: 0 },
        ] {
            let answer = list.answer(Some(known));
            assert!(answer.full && named(&answer) == [(2, true)], "{known:?}");
        }
    }

    #[test]
    fn more_than_a_third_are_many() {
        // Servers, unreached ones of them, and whether these are many.
        for (all, unreached, many) in [
            (2, 1, false),
            (2, 2, true),
            (3, 1, false),
            (5, 2, true),
            (8, 2, false),
            (8, 3, true),
            (9, 3, false),
            (1000, 64, false),
            (1000, 65, true),
        ] {
            let mut list = Abnormal::new(7, 3);
            let before = list.answer(None).version;
            list.update(servers(0..unreached), BTreeSet::new(), &BTreeSet::new(), all);
            let answer = list.answer(Some(before));
            assert_eq!(answer.many, many, "{unreached} of {all}");
            assert_eq!(answer.servers.is_empty(), many);
            let had = answer.version;
            list.update(servers([]), BTreeSet::new(), &BTreeSet::new(), all);
            let answer = list.answer(Some(had));
            assert!(!answer.many && answer.full == many, "{unreached} of {all}");
        }
    }

    #[test]
    fn draining_servers_are_named_however_many_there_are() {
        let mut list = Abnormal::new(7, 3);
        list.update(servers([2]), BTreeSet::new(), &servers([2, 3]), 10);
        let first = list.answer(None);
        let named = |answer: &AbnormalServers| -> Vec<_> {
            let one = |one: &AbnormalServer| (one.server.get(), one.unreached, one.draining);
            answer.servers.iter().map(one).collect()
        };
        assert_eq!(named(&first), [(2, true, true), (3, false, true)]);
        list.update(servers([]), BTreeSet::new(), &servers([2, 3]), 10);
        assert_eq!(named(&list.answer(Some(first.version))), [(2, false, true)]);
        // None is named as unreached, and those that drain are.
        list.update(servers([4, 5, 6, 7]), BTreeSet::new(), &servers([3]), 10);
        let many = list.answer(Some(first.version));
        assert_eq!((many.many, many.full, named(&many)), (true, true, vec![(3, false, true)]));
        list.update(servers([]), BTreeSet::new(), &servers(0..200), 300);
        let full = list.answer(None);
        assert!(full.full && full.servers.len() == ABNORMAL_MAX);
    }

    #[test]
    fn slow_servers_are_named_where_unreached_ones_leave_room() {
        let mut list = Abnormal::new(7, 3);
        let named = |list: &Abnormal| -> Vec<_> {
            let answer = list.answer(None);
            answer.servers.iter().map(|one| (one.server.get(), one.unreached, one.slow)).collect()
        };
        list.update(servers([2]), servers([2, 5, 7]), &BTreeSet::new(), 9);
        assert_eq!(named(&list), [(2, true, true), (5, false, true), (7, false, true)]);
        let before = list.answer(None).version;
        list.update(servers([2]), servers([5, 6, 7]), &BTreeSet::new(), 9);
        assert_eq!(named(&list), [(2, true, false)]);
        let change = list.answer(Some(before));
        let gone: Vec<_> = change.servers.iter().map(|one| (one.server.get(), one.slow)).collect();
        assert_eq!((change.full, gone), (false, vec![(2, false), (5, false), (7, false)]));
        list.update(servers([1, 2, 3, 4]), servers([5]), &BTreeSet::new(), 9);
        assert_eq!((list.many, named(&list)), (true, vec![]));
    }

    /// Whatever changes, and whichever version it had: a client has what the master has.
    #[test]
    fn changes_that_are_put_together_make_the_list() {
        let mut rng = Rng::new(3);
        for run in 0..200 {
            let mut list = Abnormal::new(run, 3);
            let mut clients: Vec<(Option<AbnormalVersion>, BTreeSet<ServerId>)> =
                vec![(None, BTreeSet::new()); 3];
            for _ in 0..300 {
                let count = *rng.pick(&[0, 1, 3, 30, 70]);
                list.update(
                    servers((0..count).map(|_| rng.below(200) as u32)),
                    BTreeSet::new(),
                    &BTreeSet::new(),
                    200,
                );
                let at = rng.below(40) as usize;
                let Some((version, has)) = clients.get_mut(at) else { continue };
                let answer = list.answer(*version);
                assert!(answer.servers.len() <= ABNORMAL_MAX);
                if answer.full {
                    has.clear();
                }
                for one in &answer.servers {
                    match one.unreached {
                        true => has.insert(one.server),
                        false => has.remove(&one.server),
                    };
                }
                *version = Some(answer.version);
                assert_eq!(*has, list.listed.keys().copied().collect(), "run {run}");
                assert!(list.log.len() <= ABNORMAL_LOG_MAX);
            }
        }
    }
}
