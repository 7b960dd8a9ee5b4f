//! Data in logs, judged: keys under a prefix have some, whose bytes their values foretell.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use runtime::Rng;
use table::{Batch, Error, Place, Range, Table};

/// Keys whose values have the place of data: that first, then its length and a seed.
pub(super) const DATA: &[u8] = b"data/";

/// Bytes of such a value.
const VALUE: usize = Place::BYTES + 12;

/// Whether a table's entry is the one of a model, which knows no places.
pub(super) fn same(have: (&[u8], &[u8]), want: (&[u8], &[u8])) -> bool {
    have.0 == want.0 && comparable(have.0, have.1) == comparable(want.0, want.1)
}

/// A value as the oracle compares it: without the place, which its batch did not know.
pub(super) fn comparable<'a>(key: &[u8], value: &'a [u8]) -> &'a [u8] {
    match key.starts_with(DATA) {
        true => value.get(Place::BYTES..).unwrap_or_default(),
        false => value,
    }
}

fn bytes(len: u32, seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    (0..len).map(|_| rng.next_u64() as u8).collect()
}

/// A key of those with data.
pub(super) fn key(rng: &mut Rng) -> Vec<u8> {
    [DATA, format!("{:02}", rng.below(24)).as_bytes()].concat()
}

/// Puts a key with new data.
pub(super) fn put(batch: &mut Batch, key: &[u8], rng: &mut Rng) {
    let len = *rng.clone().pick(&[1, 40, 600, 3000]) + rng.below(20) as u32;
    put_again(batch, key, len, rng.next_u64());
}

fn put_again(batch: &mut Batch, key: &[u8], len: u32, seed: u64) {
    let mut value = vec![0; Place::BYTES];
    value.extend(len.to_le_bytes());
    value.extend(seed.to_le_bytes());
    batch.put_with_data(key, &value, 0, Rc::new(bytes(len, seed)));
}

struct Value {
    place: Place,
    len: u32,
    seed: u64,
}

fn read(key: &[u8], value: &[u8]) -> Result<Value, String> {
    let value: &[u8; VALUE] = value.try_into().map_err(|_| format!("{key:?} has {value:?}"))?;
    let (place, rest) = value.split_first_chunk::<{ Place::BYTES }>().expect("its length");
    let (len, seed) = rest.split_first_chunk::<4>().expect("its length");
    let place = Place::decode(*place).ok_or_else(|| format!("{key:?} has data without a place"))?;
    let seed = seed.try_into().expect("its length");
    Ok(Value { place, len: u32::from_le_bytes(*len), seed: u64::from_le_bytes(seed) })
}

/// Reads the data of a present value.
pub(super) async fn check(table: &Table, key: &[u8], value: &[u8]) -> Result<(), Failed> {
    let value = read(key, value).map_err(Failed::Rule)?;
    let read = table.read_data(value.place, value.len as usize).await?;
    match read == bytes(value.len, value.seed) {
        true => Ok(()),
        false => Err(Failed::Rule(format!("{key:?} has other data at {:?}", value.place))),
    }
}

/// Why a check ended.
pub(super) enum Failed {
    /// The table said so.
    Table(Error),
    /// A rule was broken.
    Rule(String),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed::Table(error)
    }
}

impl From<Failed> for String {
    fn from(failed: Failed) -> String {
        match failed {
            Failed::Table(error) => error.to_string(),
            Failed::Rule(what) => what,
        }
    }
}

/// Work on the logs that stay for their data: each must have, as its pages show it, just the present
/// keys whose places are in it. One without is released; of another one a key that is to be put again is
/// answered, with its value.
pub(super) async fn maintain(
    table: &Table,
    rng: &mut Rng,
) -> Result<Option<(Vec<u8>, Vec<u8>)>, Failed> {
    let logs = table.data_logs();
    if logs.is_empty() {
        return Ok(None);
    }
    let log = rng.clone().pick(&logs).clone();
    // One moment for all that is compared; places of later changes are in later logs.
    let snapshot = table.snapshot();
    let entries = snapshot.scan(Range::prefix(DATA)).take(usize::MAX).await?;
    let mut present = BTreeMap::new();
    for (key, value) in entries {
        if read(&key, &value).map_err(Failed::Rule)?.place.log() == log.log {
            present.insert(key, value);
        }
    }
    let (mut from, mut logged) = (Some(0), BTreeSet::new());
    let mut data = 0;
    while let Some(at) = from {
        let Some(page) = table.read_log(log.log, at).await? else {
            return Err(Failed::Rule(format!("{} is not kept, though it was", log.name)));
        };
        for (key, value) in page.changes {
            if let Some(value) = value.filter(|_| key.starts_with(DATA)) {
                let found = read(&key, &value).map_err(Failed::Rule)?;
                if found.place.log() != log.log {
                    return Err(Failed::Rule(format!("{} names data of another log", log.name)));
                }
                data += u64::from(found.len);
                logged.insert((key, value));
            }
        }
        from = page.next;
    }
    // Of one that a fork has left, other tables show the rest.
    let has_all = if log.is_inherited { data <= log.data } else { data == log.data };
    if !has_all {
        let what = format!("{} has {data} bytes of data, and says {}", log.name, log.data);
        return Err(Failed::Rule(what));
    }
    if let Some(lost) =
        present.iter().find(|(key, value)| !logged.contains(&((*key).clone(), (*value).clone())))
    {
        return Err(Failed::Rule(format!("{} does not show {:?}", log.name, lost.0)));
    }
    match present.pop_first() {
        Some(entry) => Ok(Some(entry)),
        None => {
            // Nothing that was submitted since can name it.
            table.release_log(log.log).await?;
            Ok(None)
        }
    }
}

/// A batch that moves a key's data to the present log.
pub(super) fn moved((key, value): (Vec<u8>, Vec<u8>)) -> Batch {
    let value = read(&key, &value).expect("it was read before");
    let mut batch = Batch::new();
    put_again(&mut batch, &key, value.len, value.seed);
    batch
}
