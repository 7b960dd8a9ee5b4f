//! The state machine of one partition does what the model does.

use std::collections::BTreeMap;

use base::{ClientId, DirId, FileId, Kind};
use master_consensus::{RowCopy, StateMachine};
use master_namespace::{
    Answer, Command, Found, Namespace, Outcome, Refusal, decode_outcome, encode_command,
};
use runtime::Rng;
use wire::control::{Attributes, Compression, NameKey, NamespaceChange, Node, OpId, Policy};

use super::model::{Model, No, Path, Thing};

struct Checked {
    state: Namespace,
    /// Rows of the state's checkpoints.
    rows: RowCopy,
    model: Model,
    index: u64,
    seq: u64,
    /// The model's files in the state.
    files: BTreeMap<u64, FileId>,
    /// Earlier mutations with their answers.
    done: Vec<(OpId, NamespaceChange, Outcome)>,
}

impl Checked {
    /// An empty partition, the only one.
    fn new() -> Checked {
        Checked {
            state: Namespace::new(0, 1),
            rows: RowCopy::default(),
            model: Model::default(),
            index: 0,
            seq: 0,
            files: BTreeMap::new(),
            done: Vec::new(),
        }
    }

    fn apply(&mut self, op: OpId, change: &NamespaceChange) -> Outcome {
        self.index += 1;
        let command = Command::Change { op, change: change.clone() };
        let bytes = encode_command(self.index * 10, &command);
        decode_outcome(&self.state.apply(self.index, &bytes).expect("it decodes"))
            .expect("an outcome")
    }

    fn change(&mut self, change: NamespaceChange) -> Outcome {
        self.seq += 1;
        let acked_below = self.seq.saturating_sub(20);
        let op = OpId { client: ClientId::new(7), seq: self.seq, acked_below };
        let outcome = self.apply(op, &change);
        self.done.push((op, change, outcome.clone()));
        outcome
    }

    fn dir(&self, path: &[String]) -> Option<DirId> {
        path.iter().try_fold(DirId::ROOT, |parent, name| {
            match self.state.lookup(&NameKey { parent, name: name.clone() }) {
                Ok(Found::Node(Node::Dir { dir, .. })) => Some(dir),
                _ => None,
            }
        })
    }

    /// A path that is not there has a parent that never was.
    fn place(&self, path: &Path) -> NameKey {
        let (name, dirs) = path.split_last().expect("not the root");
        NameKey { parent: self.dir(dirs).unwrap_or(DirId::new(99)), name: name.clone() }
    }

    fn thing(&self, node: &Node) -> Thing {
        match node {
            Node::Dir { .. } => Thing::Dir,
            Node::Symlink { target, .. } => Thing::Symlink(target.clone()),
            Node::File { file, .. } => {
                let mut known = self.files.iter();
                Thing::File(*known.find(|(_, it)| *it == file).expect("a file of the model").0)
            }
        }
    }

    fn check_all(&self, path: &mut Path, dir: DirId) {
        let mut after: Option<String> = None;
        let mut found = Vec::new();
        loop {
            let (page, more) = self.state.list(dir, after.as_deref(), 3).expect("a directory");
            after = page.last().map(|(name, _)| name.clone());
            for (name, it) in page {
                let Found::Node(node) = it else { panic!("one partition holds all") };
                let thing = self.thing(&node);
                if let (Node::File { links, policy, .. }, Thing::File(file)) = (&node, &thing) {
                    assert_eq!(*links, self.model.links(*file), "links of {path:?}/{name}");
                    assert_eq!(
                        *policy, self.model.file_policies[file],
                        "policy of {path:?}/{name}"
                    );
                }
                if let Node::Dir { dir: inner, .. } = node {
                    assert_eq!(self.state.parent(inner), Ok(dir));
                    path.push(name.clone());
                    self.check_all(path, inner);
                    path.pop();
                }
                found.push((name, thing));
            }
            if !more {
                break;
            }
        }
        assert_eq!(found, self.model.names(path), "names of {path:?}");
        let policy = self.model.dir_policies.get(path).copied();
        assert_eq!(self.state.dir_policy(dir), Ok(policy), "policy of {path:?}");
    }

    fn check(&self) {
        self.check_all(&mut Vec::new(), DirId::ROOT);
        for (&file, &id) in &self.files {
            let alive = self.model.links(file) > 0;
            assert_eq!(self.state.has_file(id), alive, "file {file}");
            let orphan = self.state.orphans(None, usize::MAX).contains(&id);
            assert_eq!(orphan, !alive, "every file without names is an orphan");
        }
        let dirs = self.model.things.values().filter(|thing| **thing == Thing::Dir).count();
        assert_eq!(self.state.dirs(), dirs as u64 + 1);
    }
}

fn no(refusal: Refusal) -> No {
    match refusal.kind() {
        Kind::NotFound => No::NotFound,
        Kind::Exists => No::Exists,
        Kind::Invalid => No::Invalid,
        kind => panic!("{refusal} is {kind:?}"),
    }
}

const POLICIES: [Policy; 5] = [
    Policy::rep(1),
    Policy::rep(3),
    Policy::rep(5),
    Policy::strict(5),
    Policy::strict(5).compressed(Some(Compression::ZSTD)),
];

fn path(rng: &mut Rng) -> Path {
    let depth = rng.between(1, 3);
    (0..depth).map(|_| (*rng.pick(&["a", "b", "c"])).to_owned()).collect()
}

fn step(it: &mut Checked, rng: &mut Rng) {
    let (one, two) = (path(rng), path(rng));
    let place = it.place(&one);
    let attributes = Attributes { mode: 0o644, mtime: rng.next_u64() };
    match rng.below(14) {
        0..=2 => {
            let expected = it.model.add(&one, Thing::Dir);
            let change = NamespaceChange::Mkdir { place, attributes };
            let outcome = it.change(change);
            assert_eq!(outcome.clone().map(|_| ()).map_err(no), expected, "mkdir {one:?}");
            if let Ok(answer) = outcome {
                assert!(matches!(answer, Answer::Node(Node::Dir { .. })));
            }
        }
        3..=4 => {
            let exclusive = rng.one_in(2);
            let (policy, inherit) = (Policy::strict(3), rng.one_in(2));
            let expected = it.model.create(&one, exclusive, (policy, inherit));
            let change = NamespaceChange::Create { place, policy, attributes, exclusive, inherit };
            match (it.change(change), expected) {
                (Ok(Answer::Node(Node::File { file, .. })), Ok(model)) => {
                    let known = *it.files.entry(model).or_insert(file);
                    assert_eq!(known, file, "create {one:?}");
                }
                (Err(refusal), Err(expected)) => assert_eq!(no(refusal), expected),
                other => panic!("create {one:?}: {other:?}"),
            }
        }
        5 => {
            let target = "somewhere".to_owned();
            let expected = it.model.add(&one, Thing::Symlink(target.clone()));
            let outcome = it.change(NamespaceChange::Symlink { place, target, attributes });
            assert_eq!(outcome.map(|_| ()).map_err(no), expected, "symlink {one:?}");
        }
        6 => {
            let Some((&model, &file)) = it.files.iter().nth(rng.below(8) as usize) else { return };
            let fits = it.model.links(model) > 0;
            let expected = match it.model.clone().add(&one, Thing::File(model)) {
                Ok(()) if !fits => Err(No::NotFound),
                expected => expected,
            };
            let outcome = it.change(NamespaceChange::Link { links: vec![(file, place)] });
            assert_eq!(outcome.map(|_| ()).map_err(no), expected, "link {one:?}");
            if expected.is_ok() {
                it.model.add(&one, Thing::File(model)).expect("tried above");
            }
        }
        7 => {
            let expected = it.model.unlink(&one);
            let outcome = it.change(NamespaceChange::Unlink { place });
            assert_eq!(outcome.map(|_| ()).map_err(no), expected, "unlink {one:?}");
        }
        8 => {
            let expected = it.model.rmdir(&one);
            let outcome = it.change(NamespaceChange::Rmdir { place });
            assert_eq!(outcome.map(|_| ()).map_err(no), expected, "rmdir {one:?}");
        }
        9 | 10 => {
            let (to, replace) = (it.place(&two), !rng.one_in(4));
            let expected = it.model.rename(&one, &two, replace);
            let outcome = it.change(NamespaceChange::Rename { from: place, to, replace });
            let got = outcome.map(|_| ()).map_err(no);
            assert_eq!(got, expected, "rename {one:?} {two:?} {replace}");
        }
        11 => {
            let dir = if rng.one_in(4) { Path::new() } else { one };
            let policy = (!rng.one_in(3)).then(|| *rng.pick(&POLICIES));
            let expected = it.model.set_dir_policy(&dir, policy);
            let id = it.dir(&dir).unwrap_or(DirId::new(99));
            let outcome = it.change(NamespaceChange::SetDirPolicy { dir: id, policy });
            assert_eq!(outcome.map(|_| ()).map_err(no), expected, "policy of {dir:?}: {policy:?}");
        }
        12 => {
            let Some((&model, &file)) = it.files.iter().nth(rng.below(8) as usize) else { return };
            let (policy, named) = (*rng.pick(&POLICIES), it.model.things.get(&one));
            let expected =
                if named == Some(&Thing::File(model)) { Ok(()) } else { Err(No::NotFound) };
            let outcome = it.change(NamespaceChange::SetFilePolicy { place, file, policy });
            assert_eq!(outcome.map(|_| ()).map_err(no), expected, "policy of {one:?}: {policy:?}");
            if expected.is_ok() {
                it.model.file_policies.insert(model, policy);
            }
        }
        _ => match rng.below(3) {
            0 => {
                let Some((op, change, outcome)) = it.done.iter().rev().nth(rng.below(8) as usize)
                else {
                    return;
                };
                let (op, change, outcome) = (*op, change.clone(), outcome.clone());
                assert_eq!(it.apply(op, &change), outcome, "a repeat gets the first answer");
            }
            1 => {
                it.rows.follow(&mut it.state);
                let restored = it.rows.load(&it.state).expect("rows of a state");
                assert_eq!(restored, it.state);
                it.state = restored;
            }
            _ => it.check(),
        },
    }
}

#[test]
fn one_partition_is_the_model() {
    for seed in 0..150 {
        let mut rng = Rng::new(seed);
        let mut it = Checked::new();
        for _ in 0..300 {
            step(&mut it, &mut rng);
        }
        it.check();
    }
}

#[test]
fn a_directory_that_comes_again_has_another_identity() {
    let mut it = Checked::new();
    let mut seen = std::collections::BTreeSet::new();
    for version in 0..10 {
        let place = it.place(&vec!["a".to_owned()]);
        let attributes = Attributes::default();
        let made = it.change(NamespaceChange::Mkdir { place: place.clone(), attributes });
        let Ok(Answer::Node(Node::Dir { dir, .. })) = made else { panic!("{made:?}") };
        assert_eq!(dir, wire::control::dir_id(DirId::ROOT, "a", version));
        assert!(seen.insert(dir));
        let gone = if version % 2 == 0 {
            it.change(NamespaceChange::Rmdir { place })
        } else {
            let to = NameKey { parent: DirId::ROOT, name: format!("moved{version}") };
            it.change(NamespaceChange::Rename { from: place, to, replace: false })
        };
        assert_eq!(gone, Ok(Answer::Done));
    }
}

#[test]
fn policies_that_are_none_are_refused() {
    let mut it = Checked::new();
    for (copies, acks) in [(0, 1), (6, 4), (3, 1), (3, 4), (0, 3)] {
        let policy = Some(Policy::plain(copies, acks));
        let refused = it.change(NamespaceChange::SetDirPolicy { dir: DirId::ROOT, policy });
        assert_eq!(refused, Err(Refusal::BadPolicy), "{policy:?}");
        assert_eq!(it.state.dir_policy(DirId::ROOT), Ok(None));
    }
    let elsewhere = NamespaceChange::SetDirPolicy { dir: DirId::new(99), policy: None };
    assert_eq!(it.change(elsewhere), Err(Refusal::NoDir));
}

/// The first entries of logs that older masters wrote: a directory, a file in it with `rep3-strict`,
/// and the row of the directory before directories had policies.
const OLD_COMMANDS: [&str; 2] = [
    "010a000000000000000107000000000000000100000000000000000000000000000001010000000000000000\
     000000000000000100000061000000000000000000000000",
    "010a000000000000000107000000000000000200000000000000000000000000000002010000000000000000\
     000000000000000100000066030300000000000000000000000001",
];

#[test]
fn commands_and_rows_of_older_masters_are_read() {
    let op = |seq| OpId { client: ClientId::new(7), seq, acked_below: 0 };
    let place = |name: &str| NameKey { parent: DirId::ROOT, name: name.to_owned() };
    let attributes = Attributes::default();
    let (policy, exclusive, inherit) = (Policy::strict(3), true, false);
    let changes = [
        NamespaceChange::Mkdir { place: place("a"), attributes },
        NamespaceChange::Create { place: place("f"), policy, attributes, exclusive, inherit },
    ];
    let mut state = Namespace::new(0, 1);
    for ((index, change), old) in (1..).zip(changes).zip(OLD_COMMANDS) {
        let bytes = encode_command(10, &Command::Change { op: op(index), change });
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, old);
        state.apply(index, &bytes).expect("it decodes");
    }
    // The row of a directory without a policy is the one it was: 16 bytes of its parent and 4 of a
    // version.
    let mut rows = RowCopy::default();
    rows.follow(&mut state);
    let dirs = |rows: &RowCopy| {
        let all = rows.rows().iter().filter(|(key, _)| key[0] == 2);
        all.map(|(_, value)| value.len()).collect::<Vec<_>>()
    };
    assert_eq!(dirs(&rows), [20, 20]);
    let set = NamespaceChange::SetDirPolicy { dir: DirId::ROOT, policy: Some(policy) };
    let bytes = encode_command(10, &Command::Change { op: op(3), change: set });
    state.apply(3, &bytes).expect("it decodes");
    rows.follow(&mut state);
    assert_eq!(dirs(&rows), [22, 20]);
    assert_eq!(rows.load(&state), Ok(state.clone()));
}
