//! `craton amplification`: what travels, and is stored, for each byte that programs write (C29).

mod figures;
mod page;

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::join_all;
use runtime::Env;

use crate::args::AmplificationArgs;
use crate::cluster::{Directory, config_path};
use crate::connect;
use crate::exit::{Code, Done, Failure, io};
use crate::output::{bytes, print_json, print_line, print_table, table};
use figures::Figures;
use page::MetricsPage;

/// A process that answers nothing for so long does not answer.
const TIMEOUT: Duration = Duration::from_secs(2);

/// A page to read.
struct Source {
    /// Of the process, for messages.
    name: String,
    /// Its process ID, or a number of its own above those.
    process: u32,
    addr: SocketAddr,
}

/// Runs the command.
pub fn run(args: &AmplificationArgs) -> Done {
    crate::log::start_foreground();
    let mut sources = match connect::target(&args.connection)?.dir {
        Some(dir) => of_directory(&Directory::existing(&dir)?)?,
        None => Vec::new(),
    };
    sources.extend(args.from.iter().zip(1u32..).map(|(addr, number)| Source {
        name: addr.to_string(),
        process: u32::MAX - number,
        addr: *addr,
    }));
    if sources.is_empty() {
        return Err(Failure::usage(
            "masters do not know where processes serve metrics: name the address of each with --from",
        ));
    }
    let runtime = connect::runtime()?;
    let figures = runtime.block_on(gather(runtime.env(), &sources, args.span))?;
    if args.json { print_json(&figures) } else { print(&figures) }
}

/// Processes of a cluster on this machine.
fn of_directory(directory: &Directory) -> Result<Vec<Source>, Failure> {
    let mut sources = Vec::new();
    for process in directory.read()?.processes {
        let path = config_path(&process.dir, process.role);
        let text = fs::read_to_string(&path).map_err(|error| io("read", &path, &error))?;
        let config: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            Failure::setup(format!("{}: {}", path.display(), error.message()))
        })?;
        let addr = config.get("metrics").and_then(|addr| addr.as_str()?.parse().ok());
        if let Some(addr) = addr {
            sources.push(Source { name: process.id, process: process.pid, addr });
        }
    }
    Ok(sources)
}

async fn gather(env: &Env, sources: &[Source], span: Option<Duration>) -> Result<Figures, Failure> {
    let begun = env.now();
    let before = match span {
        Some(span) => {
            let before = read_all(env, sources).await;
            env.sleep(span).await;
            Some(before)
        }
        None => None,
    };
    let seconds = before.as_ref().map(|_| (env.now() - begun).as_secs_f64());
    let mut before = before.unwrap_or_default().into_iter();
    let (mut pages, mut errors) = (Vec::new(), Vec::new());
    for (source, page) in sources.iter().zip(read_all(env, sources).await) {
        let former = before.next();
        match page {
            Ok(page) => {
                let page = match former {
                    Some(Ok(former)) => page.since(&former),
                    _ => page,
                };
                pages.push((source.process, page));
            }
            Err(why) => errors.push(format!("{}: {why}", source.name)),
        }
    }
    if pages.is_empty() {
        return Err(Failure::new(
            Code::Unavailable,
            format!("no process answers: {}", errors.join("; ")),
        ));
    }
    Ok(Figures::of(&pages, seconds, errors))
}

async fn read_all(env: &Env, sources: &[Source]) -> Vec<Result<MetricsPage, String>> {
    join_all(sources.iter().map(async |source| {
        let page = env.timeout(TIMEOUT, crate::page::text(env, source.addr, "/metrics")).await;
        let page = page.map_err(|_| format!("nothing comes for {TIMEOUT:?}"))??;
        Ok(MetricsPage::parse(&page))
    }))
    .await
}

fn print(figures: &Figures) -> Done {
    let ratio = |ratio: Option<f64>| ratio.map_or_else(|| "-".to_owned(), |it| format!("{it:.2}"));
    let user = &figures.user;
    let time = match figures.seconds {
        Some(seconds) => format!("in {seconds:.0} s"),
        None => "since the processes started".to_owned(),
    };
    print_line(&format!(
        "programs wrote {} {time}: {} to volumes, {} to objects, {} to files",
        bytes(user.total),
        bytes(user.volumes),
        bytes(user.objects),
        bytes(user.files)
    ))?;
    let mut out = table(&["stage", "bytes", "for each", "what"]);
    let mut row = |stage: &str, count: u64, each: Option<f64>, what: &str| {
        out.add_row([stage, &bytes(count), &ratio(each), what]);
    };
    for network in [true, false] {
        for stage in figures.stages.iter().filter(|stage| stage.network == network) {
            row(stage.stage, stage.bytes, stage.per_user_byte, stage.what);
        }
        match network {
            true => {
                row(
                    "network",
                    figures.network_bytes,
                    figures.network_per_user_byte,
                    "all of these",
                );
            }
            false => row("disks", figures.disk_bytes, figures.disk_per_user_byte, "both of these"),
        }
    }
    print_table(out, &[1, 2])?;
    let space = &figures.space;
    print_line(&format!(
        "space: {} in use on disks a second ago for {} in chunks that have ended: {}",
        bytes(space.used_bytes),
        bytes(space.logical_bytes),
        ratio(space.ratio)
    ))?;
    figures.errors.iter().try_for_each(|error| print_line(&format!("not counted: {error}")))
}
