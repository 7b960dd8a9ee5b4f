//! Commands that show files and directories.

use client::{Client, Error};
use serde::Serialize;
use wire::control::{Attributes, NamedNode, Node, Policy, Verify};

use super::names::base_name;
use super::stored;
use crate::exit::{Code, Done, Failure};
use crate::output::{bytes, print_json, print_line, print_table, table, time, visible};
use crate::status;

#[derive(Serialize)]
struct Facts {
    name: String,
    #[serde(rename = "type")]
    kind: &'static str,
    mode: u32,
    mtime_ns: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    len: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    links: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    copies: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<String>,
    /// What chunks become, and how long behind their seal; null where they stay as they are.
    convert_after: Option<String>,
    /// Which appends writers read back before they send them: `off`, `sampled`, `all`.
    verify: Option<&'static str>,
    /// `lz4` or `zstd`, and the block where it is not 16 KiB: `lz4/64KiB`.
    #[serde(skip_serializing_if = "Option::is_none")]
    compression: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    id: Option<String>,
}

impl Facts {
    fn of(name: &str, node: &Node) -> Facts {
        let new = |kind, attributes: &Attributes| Facts {
            name: name.to_owned(),
            kind,
            mode: attributes.mode,
            mtime_ns: attributes.mtime,
            len: None,
            links: None,
            copies: None,
            policy: None,
            convert_after: None,
            verify: None,
            compression: None,
            target: None,
            id: None,
        };
        match node {
            Node::File { file, policy, attributes, links, len } => Facts {
                len: Some(*len),
                links: Some(*links),
                id: Some(file.to_string()),
                ..new("file", attributes)
            }
            .with_policy(*policy),
            Node::Dir { dir, attributes } => {
                Facts { id: Some(dir.to_string()), ..new("directory", attributes) }
            }
            Node::Symlink { target, attributes } => {
                Facts { target: Some(target.clone()), ..new("symlink", attributes) }
            }
        }
    }

    fn with_policy(self, policy: Policy) -> Facts {
        Facts {
            copies: (!policy.is_coded()).then_some(policy.copies),
            policy: Some(policy.scheme().to_string()),
            convert_after: policy.later.map(|later| later.to_string()),
            verify: Some(policy.verify.name()),
            compression: policy.compression.map(|compression| compression.to_string()),
            ..self
        }
    }

    /// The number of copies, or the code.
    fn redundancy(&self) -> String {
        let copies = self.copies.map(|copies| copies.to_string());
        copies.or_else(|| self.policy.clone()).unwrap_or_else(|| "-".to_owned())
    }

    /// As `ls -l` has it: `drwxr-xr-x`.
    fn mode_text(&self) -> String {
        let mut text = String::from(match self.kind {
            "directory" => "d",
            "symlink" => "l",
            _ => "-",
        });
        for (shift, special, mark) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
            for (bit, letter) in [(4, 'r'), (2, 'w')] {
                text.push(if self.mode >> shift & bit != 0 { letter } else { '-' });
            }
            text.push(match (self.mode & special != 0, self.mode >> shift & 1 != 0) {
                (false, false) => '-',
                (false, true) => 'x',
                (true, false) => mark.to_ascii_uppercase(),
                (true, true) => mark,
            });
        }
        text
    }
}

/// `fs ls`.
pub async fn ls(client: &Client, path: &str, long: bool, json: bool) -> Done {
    let found = client.resolve(path).await?;
    let entries = match found.node {
        Node::Dir { .. } => client.list_all(path).await?,
        node => vec![NamedNode { name: base_name(path).unwrap_or(path).to_owned(), node }],
    };
    let entries: Vec<_> = entries.iter().map(|one| Facts::of(&one.name, &one.node)).collect();
    if json {
        return print_json(&entries);
    }
    if !long {
        return entries.iter().try_for_each(|entry| print_line(&visible(&entry.name)));
    }
    let mut out = table(&["mode", "links", "copies", "bytes", "modified", "name"]);
    for entry in &entries {
        let number = |value: Option<u64>| value.map_or("-".to_owned(), |value| value.to_string());
        let name = match &entry.target {
            Some(target) => format!("{} -> {}", visible(&entry.name), visible(target)),
            None => visible(&entry.name),
        };
        out.add_row([
            entry.mode_text(),
            number(entry.links.map(u64::from)),
            entry.redundancy(),
            number(entry.len),
            time(entry.mtime_ns),
            name,
        ]);
    }
    print_table(out, &[1, 2, 3])
}

#[derive(Serialize)]
struct Replica {
    server: String,
    /// Number of the fragment that it has of a coded chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    fragment: Option<u8>,
    disk: String,
    addr: String,
    /// Bytes that it takes on its disk, sectors and unused ends of units too; null where its server does
    /// not say.
    stored_bytes: Option<u64>,
}

#[derive(Serialize)]
struct Chunk {
    chunk: String,
    offset: u64,
    len: Option<u64>,
    state: &'static str,
    epoch: u64,
    /// Copies that it is to have, and how many of them acknowledge.
    scheme: String,
    /// What its writer was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    compression: Option<String>,
    /// Null where replicas are fragments of a code.
    copies: Option<u8>,
    acks: u8,
    /// Bytes that its replicas take, as far as their servers say it.
    stored_bytes: u64,
    replicas: Vec<Replica>,
}

#[derive(Serialize)]
struct Stat {
    path: String,
    #[serde(flatten)]
    facts: Facts,
    /// Bytes known to be in a file whose end is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    len_at_least: Option<u64>,
    /// Bytes that its chunks take on disks, as far as servers say it; absent of what is no file.
    #[serde(skip_serializing_if = "Option::is_none")]
    stored_bytes: Option<u64>,
    /// An operator had it sealed without replicas that were gone; absent of what is no file.
    #[serde(skip_serializing_if = "Option::is_none")]
    loss_accepted: Option<bool>,
    /// Sealed chunks are being given the form of the policy (`craton convert`).
    #[serde(skip_serializing_if = "Option::is_none")]
    converting: Option<bool>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    chunks: Vec<Chunk>,
}

/// `fs stat`.
pub async fn stat(client: &Client, path: &str, json: bool) -> Done {
    let found = client.lookup(path).await?;
    let mut facts = Facts::of(base_name(path).unwrap_or("/"), &found.node);
    let (mut chunks, mut len_at_least) = (Vec::new(), None);
    let (mut loss_accepted, mut converting) = (None, None);
    if matches!(found.node, Node::File { .. }) {
        let file = client.file_of(path, found)?;
        (facts.len, len_at_least) = match file.len().await {
            Ok(len) => (Some(len), None),
            // Its chunks have the cause.
            Err(Error::OpenEnd { offset, .. }) => (None, Some(offset)),
            Err(error) => return Err(error.into()),
        };
        let names = status::server_names(client).await?;
        let name = |server: base::ServerId| {
            names.get(&server).cloned().unwrap_or_else(|| server.to_string())
        };
        let view = file.chunks().await?;
        (loss_accepted, converting) = (Some(view.loss_accepted), Some(view.converting));
        // What a set policy has made of it, also where its record in the directory is late.
        let policy = view.policy.unwrap_or(file.policy());
        facts = facts.with_policy(policy);
        let stored = stored::of(client, &view.chunks).await;
        for place in view.chunks {
            // An older master does not say how many copies there are to be.
            let replicas_now = place.replicas.len() as u8;
            let copies = if place.copies == 0 { replicas_now } else { place.copies };
            let scheme = Policy { data: place.data, ..Policy::plain(copies, place.acks) };
            let replica = |replica: &wire::control::ReplicaPlace| Replica {
                server: name(replica.server),
                fragment: place.fragment(replica).map(|fragment| fragment.number),
                disk: replica.disk.to_string(),
                addr: replica.addr.to_string(),
                stored_bytes: stored.get(&(place.chunk, replica.disk)).copied(),
            };
            let replicas: Vec<Replica> = place.replicas.iter().map(replica).collect();
            chunks.push(Chunk {
                chunk: place.chunk.to_string(),
                offset: place.base,
                len: place.sealed.map(u64::from),
                state: if place.sealed.is_some() { "sealed" } else { "open" },
                epoch: place.epoch.get(),
                scheme: scheme.to_string(),
                compression: place.compression.map(|compression| compression.to_string()),
                copies: (!place.is_coded()).then_some(copies),
                acks: place.acks,
                stored_bytes: replicas.iter().filter_map(|one| one.stored_bytes).sum(),
                replicas,
            });
        }
    }
    let path = path.to_owned();
    let is_file = loss_accepted.is_some();
    let stored_bytes = is_file.then(|| chunks.iter().map(|chunk| chunk.stored_bytes).sum());
    let stat = Stat { path, facts, len_at_least, stored_bytes, loss_accepted, converting, chunks };
    if json {
        return print_json(&stat);
    }
    print_stat(&stat)
}

fn print_stat(stat: &Stat) -> Done {
    let facts = &stat.facts;
    let mut lines = vec![
        format!("path      {}", stat.path),
        format!("type      {}", facts.kind),
        format!("mode      {} ({:04o})", facts.mode_text(), facts.mode),
        format!("modified  {}", time(facts.mtime_ns)),
    ];
    let numbers = [
        ("bytes    ", facts.len),
        ("stored   ", stat.stored_bytes),
        ("links    ", facts.links.map(u64::from)),
    ];
    for (title, value) in numbers {
        lines.extend(value.map(|value| format!("{title} {value}")));
    }
    let at_least = |len| format!("bytes     {len} or more: its writer is not heard of");
    lines.extend(stat.len_at_least.map(at_least));
    if stat.loss_accepted == Some(true) {
        lines.push("loss      accepted: it was sealed without replicas that were gone".to_owned());
    }
    if stat.converting == Some(true) {
        lines.push("converts  what is stored to its policy, in the background".to_owned());
    }
    let with = |word: &String, compression: &Option<String>| match compression {
        Some(compression) => format!("{word} {compression}"),
        None => word.clone(),
    };
    let policy = facts.policy.as_ref().map(|policy| with(policy, &facts.compression));
    lines.extend(policy.map(|policy| format!("policy    {policy}")));
    // The usual is not said.
    let verify = facts.verify.filter(|word| *word != Verify::default().name());
    lines.extend(verify.map(|word| format!("verify    {word}")));
    lines.extend(facts.convert_after.iter().map(|later| format!("then      {later}")));
    lines.extend(facts.target.as_ref().map(|target| format!("target    {target}")));
    lines.extend(facts.id.as_ref().map(|id| format!("id        {id}")));
    lines.iter().try_for_each(|line| print_line(&visible(line)))?;
    if stat.chunks.is_empty() {
        return Ok(());
    }
    let titles = ["chunk", "offset", "bytes", "stored", "state", "epoch", "scheme", "replicas"];
    let mut out = table(&titles);
    for chunk in &stat.chunks {
        let replicas: Vec<&str> = chunk.replicas.iter().map(|one| one.server.as_str()).collect();
        out.add_row([
            chunk.chunk.clone(),
            chunk.offset.to_string(),
            chunk.len.map_or("-".to_owned(), |len| len.to_string()),
            chunk.stored_bytes.to_string(),
            chunk.state.to_owned(),
            chunk.epoch.to_string(),
            with(&chunk.scheme, &chunk.compression),
            replicas.join(","),
        ]);
    }
    print_table(out, &[1, 2, 3, 5])
}

/// `fs df`.
pub async fn df(client: &Client, json: bool) -> Done {
    #[derive(Serialize)]
    struct Space {
        capacity_bytes: u64,
        used_bytes: u64,
        available_bytes: u64,
        logical_bytes: u64,
        files: u64,
        directories: u64,
    }
    let picture = status::gather(client).await?;
    let capacity_bytes = picture.chunkservers.iter().map(|one| one.capacity_bytes).sum();
    let used_bytes = picture.chunkservers.iter().map(|one| one.used_bytes).sum();
    if capacity_bytes == 0 {
        return Err(Failure::new(
            Code::Unavailable,
            "no chunkserver has reported its capacity yet",
        ));
    }
    let space = Space {
        capacity_bytes,
        used_bytes,
        available_bytes: capacity_bytes.saturating_sub(used_bytes),
        logical_bytes: picture.bytes.logical,
        files: picture.names.files,
        directories: picture.names.directories,
    };
    if json {
        return print_json(&space);
    }
    let mut out = table(&["capacity", "used", "available", "use", "logical", "files", "dirs"]);
    out.add_row([
        bytes(space.capacity_bytes),
        bytes(space.used_bytes),
        bytes(space.available_bytes),
        format!("{:.0}%", used_bytes as f64 / capacity_bytes as f64 * 100.0),
        bytes(space.logical_bytes),
        space.files.to_string(),
        space.directories.to_string(),
    ]);
    print_table(out, &[0, 1, 2, 3, 4, 5, 6])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_shown_as_ls_does() {
        let check = |mode, want: &str| {
            let attributes = Attributes { mode, mtime: 0 };
            let node = Node::Symlink { target: String::new(), attributes };
            assert_eq!(Facts { kind: "file", ..Facts::of("f", &node) }.mode_text(), want);
        };
        check(0o640, "-rw-r-----");
        check(0o4755, "-rwsr-xr-x");
        check(0o2644, "-rw-r-Sr--");
        check(0o1777, "-rwxrwxrwt");
        check(0o1776, "-rwxrwxrwT");
    }
}
