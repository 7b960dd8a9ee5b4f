//! Checks every store at the end of all faults: each chunk of each file is there as often as its
//! policy says, with equal bytes, and nothing else is left (invariants 2, 5 and 9).

use std::collections::BTreeSet;
use std::time::Duration;

use base::ChunkId;
use chunkstore::ChunkStore;
use client::Client;
use codec::row::{Cell, RowDecoder};
use wire::control::{ChunkPlace, Node, ReplicaPlace};
use wire::data::ReplicaState;
use wire::row::{cell_to, logical_end, rows};
use wire::sector::{client_crc, parse_footer};

use crate::cluster::Cluster;
use crate::oracle::Oracle;
use crate::planted::Store;

/// Bytes read at a time.
const STEP: u32 = 1 << 20;
/// Pause between two checks.
const PAUSE: Duration = Duration::from_secs(3);

/// Waits until the cluster is whole and clean; scrub, repair and collection have `deadline` for it.
pub async fn until_clean(
    cluster: &Cluster,
    oracle: &Oracle,
    deadline: Duration,
) -> Result<(), String> {
    let (_, client) = cluster.client(None).await.map_err(|error| error.to_string())?;
    let started = cluster.sim().elapsed();
    loop {
        let why = match look(cluster, oracle, &client).await {
            Ok(()) => return Ok(()),
            Err(why) => why,
        };
        if cluster.sim().elapsed() - started > deadline {
            return Err(format!("after {deadline:?} without faults: {why}"));
        }
        cluster.sim().sleep(PAUSE).await;
    }
}

/// A sealed chunk of a file.
struct Whole {
    path: String,
    chunk: ChunkPlace,
    len: u32,
}

async fn look(cluster: &Cluster, oracle: &Oracle, client: &Client) -> Result<(), String> {
    let chunks = chunks(oracle, client).await?;
    let replicas = chunks.iter().flat_map(|whole| {
        whole.chunk.replicas.iter().map(|replica| (replica.disk, whole.chunk.chunk))
    });
    let referred: BTreeSet<_> = replicas.collect();
    for server in 0..cluster.servers().len() {
        for (disk, store) in cluster.stores(server) {
            let all = store.list(None, usize::MAX);
            let held = all.iter().filter(|info| !info.stat.state.is_tombstone());
            let left = held.map(|info| info.chunk).find(|&id| !referred.contains(&(disk, id)));
            if let Some(left) = left {
                return Err(format!(
                    "{left} is left on chunkserver {}, and no chunk refers to it",
                    server + 1
                ));
            }
        }
    }
    // The expensive part comes last: this is repeated until all checks pass.
    for whole in &chunks {
        compare(cluster, whole).await.map_err(|why| format!("{}: {why}", whole.path))?;
    }
    Ok(())
}

/// All chunks of all files, each with as many replicas as it was made for.
async fn chunks(oracle: &Oracle, client: &Client) -> Result<Vec<Whole>, String> {
    let mut chunks = Vec::new();
    for entry in client.list_all("/").await.map_err(|error| error.to_string())? {
        let Node::File { .. } = entry.node else { continue };
        let path = format!("/{}", entry.name);
        let file = client.open(&path).await.map_err(|error| error.to_string())?;
        let view = file.chunks().await.map_err(|error| error.to_string())?;
        let forms = view.chunks.chunk_by(|one, next| one.is_coded() == next.is_coded());
        let forms: Vec<_> = forms.map(|some| some[0].is_coded()).collect();
        if forms.ends_with(&[true, false]) {
            client.env().mark("audit: a file goes on in copies");
        }
        if forms.windows(3).any(|some| some == [true, false, true]) {
            client.env().mark("audit: a file is back in its code");
        }
        for chunk in view.chunks {
            let len = chunk.sealed.ok_or_else(|| format!("{path}: {} is open", chunk.chunk))?;
            oracle.sealed(chunk.chunk, len)?;
            if chunk.replicas.len() != usize::from(chunk.copies) {
                let (id, count) = (chunk.chunk, chunk.replicas.len());
                return Err(format!("{path}: {id} has {count} of {} replicas", chunk.copies));
            }
            chunks.push(Whole { path: path.clone(), chunk, len });
        }
    }
    Ok(chunks)
}

/// Reads all replicas of a chunk whole and compares them.
async fn compare(cluster: &Cluster, whole: &Whole) -> Result<(), String> {
    let (chunk, len) = (whole.chunk.chunk, whole.len);
    let mut first: Option<Vec<(u32, u32)>> = None;
    let mut fragments = Vec::new();
    for replica in &whole.chunk.replicas {
        let about = |what: &str| format!("{chunk} at {}: {what}", replica.addr);
        let store = store_of(cluster, replica).ok_or_else(|| about("its disk is not there"))?;
        let stat = store.stat(chunk).map_err(|error| about(&error.to_string()))?;
        if (stat.state, stat.len) != (ReplicaState::Sealed, len) {
            return Err(about(&format!("{stat:?}, to be sealed at {len}")));
        }
        let sectors = sectors(&store, chunk, len).await.map_err(|why| about(&why))?;
        if whole.chunk.is_coded() {
            fragments.push((replica.fragment, sectors));
            continue;
        }
        let facts = facts(&sectors).map_err(|why| about(&why))?;
        match &first {
            None => first = Some(facts),
            Some(first) if *first == facts => {}
            Some(_) => return Err(about("other bytes than the first replica")),
        }
    }
    if whole.chunk.is_coded() {
        fragments.sort();
        let cells = check_code(whole, &fragments);
        cells.map_err(|why| format!("{chunk}, a coded chunk: {why}"))?;
        cluster.sim().mark("audit: a coded chunk is whole");
    }
    Ok(())
}

/// Each fragment is there once, and the cells of each row are those of one row: k of them give the
/// others bit for bit.
fn check_code(whole: &Whole, fragments: &[(u8, Vec<u8>)]) -> Result<(), String> {
    let numbers: Vec<_> = fragments.iter().map(|fragment| fragment.0).collect();
    if numbers != (0..whole.chunk.copies).collect::<Vec<_>>() {
        return Err(format!("its replicas are fragments {numbers:?}"));
    }
    let k = usize::from(whole.chunk.data);
    let mut all: Vec<_> = fragments.iter().map(|(_, sectors)| rows(sectors)).collect();
    let mut decoder = RowDecoder::new();
    let mut end = 0;
    loop {
        let row: Option<Vec<_>> = all.iter_mut().map(Iterator::next).collect();
        let Some(row) = row else { break };
        let mut cells = Vec::new();
        for (number, (row, sectors)) in row.iter().enumerate() {
            if usize::from(row.fragment.number) != number || row.offset != end {
                return Err(format!("fragment {number} has {row:?}, to be at {end}"));
            }
            let mut cell = vec![0; row.cell_len as usize];
            cell_to(sectors, &mut cell);
            cells.push(cell);
        }
        end = row[0].0.offset + row[0].0.len;
        let (data, parity) = cells.split_at(k);
        let at_hand: Vec<_> =
            (0..).zip(data).map(|(fragment, bytes)| Cell { fragment, bytes }).collect();
        let wanted: Vec<u8> = (k as u8..whole.chunk.copies).collect();
        let mut made: Vec<_> = parity.iter().map(|cell| vec![0; cell.len()]).collect();
        let mut views: Vec<&mut [u8]> = made.iter_mut().map(Vec::as_mut_slice).collect();
        let decoded = decoder.rebuild(&at_hand, &wanted, &mut views);
        decoded.map_err(|error| format!("the row that ends at {end}: {error}"))?;
        if made != parity {
            return Err(format!("the row that ends at {end} has other parity than its data"));
        }
    }
    if end == whole.len { Ok(()) } else { Err(format!("its rows end at {end} of {}", whole.len)) }
}

fn store_of(cluster: &Cluster, replica: &ReplicaPlace) -> Option<Store> {
    let stores = (0..cluster.servers().len()).flat_map(|server| cluster.stores(server));
    stores.into_iter().find(|(disk, _)| *disk == replica.disk).map(|(_, store)| store)
}

/// Offset and checksum of each sector of a replica of copies.
fn facts(sectors: &[u8]) -> Result<Vec<(u32, u32)>, String> {
    let fact = |sector: &[u8]| {
        let footer = parse_footer(sector).map_err(|error| error.to_string())?;
        Ok((footer.offset, client_crc(sector)))
    };
    sectors.chunks(base::limits::SECTOR).map(fact).collect()
}

/// The sectors of a replica.
async fn sectors(store: &Store, chunk: ChunkId, len: u32) -> Result<Vec<u8>, String> {
    let (mut sectors, mut offset) = (Vec::new(), 0);
    while offset < len {
        let read = store.read(chunk, offset, STEP.min(len - offset)).await;
        let read = read.map_err(|error| error.to_string())?;
        if read.sectors.is_empty() {
            return Err(format!("ends at {offset} of {len}"));
        }
        sectors.extend_from_slice(&read.sectors);
        offset = logical_end(&read.sectors).ok_or("sectors that do not verify")?;
    }
    Ok(sectors)
}
