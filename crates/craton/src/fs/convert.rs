//! `craton convert`: stored chunks get the form that their files' policies ask for (C18,
//! `protocols-tail.md` 9.12).

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::time::Duration;

use clap::Args;
use client::{Client, Error, FlatLogFile};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use wire::control::{Later, Node, StreamView};

use crate::connection::Connection;
use crate::exit::{Done, Failure};
use crate::output::{bytes, print_json, print_line, warn};

/// `craton convert`.
#[derive(Args, Debug)]
pub struct ConvertArgs {
    /// Which cluster.
    #[command(flatten)]
    pub connection: Connection,
    /// Also in /.craton, where services keep their files
    #[arg(long)]
    pub services: bool,
    /// A file, or a directory with all files in it and below
    path: String,
    /// Leave what has not been converted yet as it is
    #[arg(long)]
    cancel: bool,
    /// Do not wait for the end: it goes on in the background
    #[arg(long, conflicts_with = "cancel")]
    no_wait: bool,
    /// Print one JSON object at the end
    #[arg(long)]
    json: bool,
}

/// Pause between two looks at the files.
const PAUSE: Duration = Duration::from_millis(500);
/// Without progress for so long the operator is asked to look.
const STALL: Duration = Duration::from_secs(60);

/// What there is of some files.
#[derive(Clone, Copy, Default, PartialEq, Eq, Serialize)]
struct Extent {
    files: u64,
    /// Files of which something is to be converted yet.
    converting: u64,
    /// Bytes in sealed chunks.
    bytes: u64,
    /// Of them, those in the form that the file's policy asks for, or has old chunks get.
    in_form_bytes: u64,
}

impl Extent {
    fn add(&mut self, view: &StreamView) {
        self.files += 1;
        self.converting += u64::from(view.converting);
        for chunk in &view.chunks {
            let len = chunk.sealed.map_or(0, u64::from);
            let form = (chunk.data, chunk.copies, chunk.compression);
            let later = view.policy.and_then(|it| it.later).map(Later::policy);
            let mut wanted = view.policy.into_iter().chain(later);
            let is_wanted = wanted.any(|it| (it.data, it.copies, it.compression) == form);
            self.bytes += len;
            self.in_form_bytes += if is_wanted { len } else { 0 };
        }
    }
}

/// Runs the command.
pub async fn run(client: &Client, args: &ConvertArgs) -> Done {
    let files = files_of(client, &args.path).await?;
    let mut left: VecDeque<FlatLogFile> = VecDeque::new();
    for file in files {
        if there(file.convert(!args.cancel).await)?.is_some() {
            left.push_back(file);
        }
    }
    let mut done = Extent::default();
    let (bar, mut before, mut since) = (bar(args.json), None, client.env().now());
    loop {
        let mut now = done;
        for _ in 0..left.len() {
            let file = left.pop_front().expect("counted");
            let Some(view) = there(file.chunks().await)? else { continue };
            now.add(&view);
            // What is converted stays so: only the others are looked at again.
            match view.converting {
                true => left.push_back(file),
                false => done.add(&view),
            }
        }
        bar.set_length(now.bytes);
        bar.set_position(now.in_form_bytes);
        if left.is_empty() || args.no_wait {
            bar.finish_and_clear();
            return report(args, now);
        }
        if before != Some(now) {
            (before, since) = (Some(now), client.env().now());
        } else if client.env().now() - since >= STALL {
            since = client.env().now();
            warn(&format!(
                "nothing was converted for {} s: chunks are while repair has nothing to do and the \
                 policy's places are there; see 'craton status' and the masters' logs",
                STALL.as_secs()
            ));
        }
        client.env().sleep(PAUSE).await;
    }
}

fn bar(hidden: bool) -> ProgressBar {
    if hidden || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(0);
    // The template is fixed: it is valid or the default is shown.
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {bytes}/{total_bytes} converted") {
        bar.set_style(style);
    }
    bar
}

fn report(args: &ConvertArgs, now: Extent) -> Done {
    if args.json {
        return print_json(&now);
    }
    let Extent { files, converting, bytes: all, in_form_bytes } = now;
    let figures = format!(
        "{files} files, {} of {} in the form that their policies ask for",
        bytes(in_form_bytes),
        bytes(all)
    );
    if converting > 0 {
        return print_line(&format!(
            "{figures}; {converting} files are converted in the background"
        ));
    }
    if args.cancel {
        return print_line(&format!("{figures}; the rest stays as it is"));
    }
    // Few bytes stay in copies.
    print_line(&format!("{figures}; nothing is left to convert"))
}

/// What a file answers; nothing when it has been removed since it was found.
fn there<T>(answer: Result<T, Error>) -> Result<Option<T>, Error> {
    match answer {
        Err(Error::NotFound { .. }) => Ok(None),
        answer => answer.map(Some),
    }
}

/// The files that a path names.
async fn files_of(client: &Client, path: &str) -> Result<Vec<FlatLogFile>, Failure> {
    let found = client.resolve(path).await?;
    if !matches!(found.node, Node::Dir { .. }) {
        return Ok(vec![client.file_of(path, found)?]);
    }
    let (mut files, mut dirs) = (Vec::new(), vec![path.trim_end_matches('/').to_owned()]);
    while let Some(dir) = dirs.pop() {
        let above = if dir.is_empty() { "/" } else { &dir };
        for entry in client.list_all(above).await? {
            let path = format!("{dir}/{}", entry.name);
            match entry.node {
                Node::Dir { .. } => dirs.push(path),
                Node::File { .. } => {
                    if let Some(found) = there(client.lookup(&path).await)? {
                        files.push(client.file_of(&path, found)?);
                    }
                }
                _ => {}
            }
        }
    }
    Ok(files)
}
