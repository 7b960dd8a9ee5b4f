//! Rows of a state: what a checkpoint holds, sorted by key, and how sorted rows are merged. The byte
//! table of a row is in `docs/formats/raft.md`.

use std::collections::BTreeMap;

use super::limits::{MERGE_OUT_BYTES, ROW_VALUE_LEN_MAX, SLICE_BYTES_MAX, SLICE_ROWS_MAX};
use super::machine::{BadSnapshot, StateMachine};

const HEAD: usize = 6;
const GONE: u32 = u32::MAX;

struct Span {
    start: usize,
    key_len: u16,
    value_len: u32,
}

impl Span {
    fn len(&self) -> usize {
        let value_len = if self.value_len == GONE { 0 } else { self.value_len as usize };
        usize::from(self.key_len) + value_len
    }
}

/// Changed rows, in the order in which they were put.
#[derive(Default)]
pub struct Rows {
    bytes: Vec<u8>,
    spans: Vec<Span>,
    /// Rows and bytes of the slices before this one.
    before: (usize, usize),
}

impl Rows {
    /// A row is new or changed; or gone. Its key has at most 65,535 bytes.
    pub fn put(&mut self, key: &[u8], value: Option<&[u8]>) {
        let start = self.bytes.len();
        let key_len = u16::try_from(key.len()).expect("keys are short");
        let value_len = value.map_or(GONE, |value| {
            assert!(value.len() <= ROW_VALUE_LEN_MAX, "a row of {} bytes", value.len());
            value.len() as u32
        });
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value.unwrap_or_default());
        self.spans.push(Span { start, key_len, value_len });
    }

    /// Enough for one slice of the executor: others run before the next is taken.
    pub fn is_full(&self) -> bool {
        self.spans.len() - self.before.0 >= SLICE_ROWS_MAX
            || self.bytes.len() - self.before.1 >= SLICE_BYTES_MAX
    }

    pub(super) fn next_slice(&mut self) {
        self.before = (self.spans.len(), self.bytes.len());
    }

    /// The rows, as they were put: key, and value unless it is gone.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        self.spans.iter().map(|span| {
            let bytes = &self.bytes[span.start..span.start + span.len()];
            let (key, value) = bytes.split_at(usize::from(span.key_len));
            (key, (span.value_len != GONE).then_some(value))
        })
    }

    /// All rows as bytes, sorted; the last of a key counts.
    pub(super) fn encode(self) -> Vec<u8> {
        let Rows { bytes, mut spans, .. } = self;
        let key = |span: &Span| &bytes[span.start..span.start + usize::from(span.key_len)];
        spans.sort_by(|a, b| key(a).cmp(key(b)));
        let mut out = Vec::with_capacity(bytes.len() + HEAD * spans.len());
        for (at, span) in spans.iter().enumerate() {
            if spans.get(at + 1).is_some_and(|next| key(next) == key(span)) {
                continue;
            }
            out.extend_from_slice(&span.key_len.to_le_bytes());
            out.extend_from_slice(&span.value_len.to_le_bytes());
            out.extend_from_slice(&bytes[span.start..span.start + span.len()]);
        }
        out
    }
}

/// The rows that checkpoints of a state would hold, in memory: for tests and fuzz targets.
#[derive(Clone, Default, Debug)]
pub struct RowCopy(BTreeMap<Vec<u8>, Vec<u8>>);

impl RowCopy {
    /// Takes what has changed since the last call.
    pub fn follow<M: StateMachine>(&mut self, state: &mut M) {
        let mut rows = Rows::default();
        while state.take_changes(&mut rows) {
            rows.next_slice();
        }
        for (key, value) in rows.iter() {
            match value {
                Some(value) => self.0.insert(key.to_vec(), value.to_vec()),
                None => self.0.remove(key),
            };
        }
    }

    /// The state that the rows make, of the identity of `like`.
    pub fn load<M: StateMachine>(&self, like: &M) -> Result<M, BadSnapshot> {
        let mut state = like.blank();
        self.0.iter().try_for_each(|(key, value)| state.load(key, value))?;
        Ok(state)
    }

    /// The rows, by key.
    pub fn rows(&self) -> &BTreeMap<Vec<u8>, Vec<u8>> {
        &self.0
    }
}

/// The bytes are no rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct BadRows;

/// A row at the start of some bytes.
pub(super) struct Row<'a> {
    pub(super) key: &'a [u8],
    pub(super) value: Option<&'a [u8]>,
    /// Bytes of the row.
    pub(super) len: usize,
}

/// The row at the start of `bytes`; none when more bytes are needed.
pub(super) fn first_row(bytes: &[u8]) -> Result<Option<Row<'_>>, BadRows> {
    let Some(head) = bytes.get(..HEAD) else { return Ok(None) };
    let key_len = usize::from(u16::from_le_bytes([head[0], head[1]]));
    let value_len = u32::from_le_bytes([head[2], head[3], head[4], head[5]]);
    let gone = value_len == GONE;
    let value_len = if gone { 0 } else { value_len as usize };
    if value_len > ROW_VALUE_LEN_MAX {
        return Err(BadRows);
    }
    let len = HEAD + key_len + value_len;
    let Some(row) = bytes.get(HEAD..len) else { return Ok(None) };
    let (key, value) = row.split_at(key_len);
    Ok(Some(Row { key, value: (!gone).then_some(value), len }))
}

/// Next need of a [`Merge`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// More bytes of an input.
    Feed(usize),
    /// Its output taken.
    Full,
    /// Nothing: the rest of the output is there.
    Done,
}

#[derive(Default)]
struct Input {
    bytes: Vec<u8>,
    at: usize,
    ended: bool,
}

/// Merges sorted rows, piece by piece: of rows with one key the one of the last input counts.
pub(super) struct Merge {
    inputs: Vec<Input>,
    out: Vec<u8>,
    /// Gone rows stay, to cover those of older runs.
    keep_gone: bool,
}

impl Merge {
    /// Of `count` inputs, from the oldest to the newest.
    pub(super) fn new(count: usize, keep_gone: bool) -> Merge {
        let inputs = (0..count).map(|_| Input::default()).collect();
        Merge { inputs, out: Vec::new(), keep_gone }
    }

    /// Adds bytes of an input; `ended` with the last ones.
    pub(super) fn feed(&mut self, input: usize, bytes: &[u8], ended: bool) {
        let input = &mut self.inputs[input];
        input.bytes.drain(..input.at);
        input.at = 0;
        input.bytes.extend_from_slice(bytes);
        input.ended = ended;
    }

    /// Goes on as far as it can.
    pub(super) fn run(&mut self) -> Result<Step, BadRows> {
        while self.out.len() < MERGE_OUT_BYTES {
            let mut least: Option<(usize, Row<'_>)> = None;
            for (number, input) in self.inputs.iter().enumerate() {
                let Some(row) = first_row(&input.bytes[input.at..])? else {
                    match (input.ended, input.at == input.bytes.len()) {
                        (false, _) => return Ok(Step::Feed(number)),
                        (true, true) => continue,
                        (true, false) => return Err(BadRows),
                    }
                };
                if least.as_ref().is_none_or(|(_, least)| row.key <= least.key) {
                    least = Some((number, row));
                }
            }
            let Some((number, least)) = least else { return Ok(Step::Done) };
            if least.value.is_some() || self.keep_gone {
                let from = self.inputs[number].at;
                self.out.extend_from_slice(&self.inputs[number].bytes[from..from + least.len]);
            }
            let (key, mut lens) = (least.key, Vec::with_capacity(self.inputs.len()));
            for input in &self.inputs {
                let row = first_row(&input.bytes[input.at..])?;
                lens.push(row.filter(|row| row.key == key).map_or(0, |row| row.len));
            }
            self.inputs.iter_mut().zip(lens).for_each(|(input, len)| input.at += len);
        }
        Ok(Step::Full)
    }

    /// The output so far.
    pub(super) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }
}

/// Fuzz target: any bytes are rows or an error, whatever the pieces; merging rows with
/// themselves changes nothing.
pub fn fuzz_rows(bytes: &[u8]) {
    let merged = |inputs: usize, piece: usize| {
        let mut merge = Merge::new(inputs, true);
        let (mut fed, mut out) = (vec![0; inputs], Vec::new());
        loop {
            match merge.run() {
                Err(BadRows) => return None,
                Ok(Step::Feed(input)) => {
                    let end = bytes.len().min(fed[input] + piece);
                    merge.feed(input, &bytes[fed[input]..end], end == bytes.len());
                    fed[input] = end;
                }
                Ok(Step::Full) => out.append(&mut merge.take()),
                Ok(Step::Done) => {
                    out.append(&mut merge.take());
                    return Some(out);
                }
            }
        }
    };
    let whole = merged(1, usize::MAX / 2);
    assert_eq!(whole, merged(1, 7), "pieces change rows");
    if let Some(whole) = whole {
        assert_eq!(whole, bytes, "one input comes out as it went in");
        assert!(merged(2, 64).is_some());
    }
}
