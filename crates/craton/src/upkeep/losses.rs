//! `craton decommission --losses`: the chunks that are lost without a chunkserver, with the paths of their
//! files, and the words that accept the loss of just these.

use std::collections::BTreeMap;

use base::{DirId, FileId};
use client::Client;
use serde::Serialize;
use wire::control::{Holdings, Losses, LostChunk, Node};

use crate::connect::with_client;
use crate::connection::Connection;
use crate::exit::{Done, Failure};
use crate::output::{bytes, print_json, print_line, print_table, table, visible};

/// Entries of a directory that are asked for at a time.
const PAGE: u32 = 1000;

/// The list as JSON.
#[derive(Serialize)]
struct Listed {
    server: String,
    /// What `--accept-loss` takes; none while nothing is lost.
    losses: Option<String>,
    /// Chunks that are lost; more than are named, if there are very many.
    chunks: u64,
    named: Vec<Named>,
}

/// A lost chunk.
#[derive(Serialize)]
struct Named {
    file: String,
    /// The first name of the file that was found; none when it has none any more.
    path: Option<String>,
    chunk: String,
    offset: u64,
    bytes: u32,
}

/// What `--accept-loss` takes.
fn text(losses: Losses) -> String {
    format!("{}:{:016x}", losses.chunks, losses.digest)
}

/// Prints what is lost without the server.
pub fn list(connection: &Connection, id: &str, held: Holdings, json: bool) -> Done {
    let Holdings { replicas, lost, lost_chunks, .. } = held;
    let paths = match lost_chunks.is_empty() {
        true => BTreeMap::new(),
        false => with_client(connection, async |client| paths(&client, &lost_chunks).await)?,
    };
    if json {
        let named = |it: &LostChunk| Named {
            file: it.file.to_string(),
            path: paths.get(&it.file).cloned(),
            chunk: it.chunk.to_string(),
            offset: it.base,
            bytes: it.len,
        };
        return print_json(&Listed {
            server: id.to_owned(),
            losses: (lost.chunks > 0).then(|| text(lost)),
            chunks: lost.chunks,
            named: lost_chunks.iter().map(named).collect(),
        });
    }
    if lost.chunks == 0 {
        return print_line(&format!(
            "no chunk is lost without {id}: of its {replicas} replicas others have enough, or it serves \
             them itself"
        ));
    }
    let mut out = table(&["file", "offset", "bytes", "chunk"]);
    for it in &lost_chunks {
        let path = paths.get(&it.file).map(|path| visible(path));
        let file = path.unwrap_or_else(|| format!("{} (no name)", it.file));
        out.add_row([file, it.base.to_string(), bytes(it.len.into()), it.chunk.to_string()]);
    }
    print_table(out, &[1, 2])?;
    let unnamed = lost.chunks - lost_chunks.len() as u64;
    if unnamed > 0 {
        print_line(&format!("and {unnamed} more chunks"))?;
    }
    print_line(&format!(
        "These chunks can not be read without {id}. To let it leave for ever all the same:\n\
         craton decommission {id} --accept-loss {}",
        text(lost)
    ))
}

/// The first name of each file that is found, services' files included.
async fn paths(client: &Client, lost: &[LostChunk]) -> Result<BTreeMap<FileId, String>, Failure> {
    let mut wanted: Vec<_> = lost.iter().map(|it| it.file).collect();
    wanted.sort_unstable();
    wanted.dedup();
    let mut found = BTreeMap::new();
    let mut dirs = vec![(DirId::ROOT, String::new())];
    while let Some((dir, path)) = dirs.pop() {
        let mut after: Option<String> = None;
        loop {
            let shown = if path.is_empty() { "/" } else { &path };
            let page = client.list_dir(dir, shown, after.as_deref(), PAGE).await?;
            after = page.entries.last().map(|entry| entry.name.clone());
            for entry in page.entries {
                let path = format!("{path}/{}", entry.name);
                match entry.node {
                    Node::File { file, .. } if wanted.binary_search(&file).is_ok() => {
                        found.entry(file).or_insert(path);
                    }
                    Node::Dir { dir, .. } => dirs.push((dir, path)),
                    Node::File { .. } | Node::Symlink { .. } => {}
                }
            }
            if found.len() == wanted.len() {
                return Ok(found);
            }
            if !page.more || after.is_none() {
                break;
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upkeep::args::parse_losses;

    #[test]
    fn losses_are_parsed_as_they_are_printed_and_nothing_else_is() {
        let losses = Losses { chunks: 3, digest: 0x12ab };
        assert_eq!(parse_losses(&text(losses)), Ok(losses));
        for wrong in [
            "",
            "3",
            "3:",
            "0:00000000000012ab",
            "3:12ab",
            "x:00000000000012ab",
            "3:0000000000001xyz",
        ] {
            assert!(parse_losses(wrong).is_err(), "{wrong}");
        }
    }
}
