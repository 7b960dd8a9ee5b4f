//! `craton range`: the ranges of all buckets' keys, and which object server owns each.

use object_index::Service;
use object_proto::{
    BucketName, ObjectServerId, RangeBound, RangeId, RangeStatus, ServerStatus, ServiceStatus,
};
use runtime::{Duration, Instant};
use serde::Serialize;

use super::args::RangeCommand;
use super::{failed, with_service};
use crate::connection::Connection;
use crate::exit::{Code, Done, Failure};
use crate::output::{print_json, print_line, print_table, table, visible};

/// A server that lives serves what it is given within its predecessor's lease, and the replay of a log.
const MOVE_TIME: Duration = Duration::from_secs(30);
/// A split reads the range's index once, 8 GiB at most, and links its files.
const SPLIT_TIME: Duration = Duration::from_secs(300);
/// A split is on record within this time, or was not begun.
const BEGIN_TIME: Duration = Duration::from_secs(120);
/// Between two looks whether it does.
const LOOK: Duration = Duration::from_millis(20);

/// Where keys of a range begin: the bucket's ID, and the lowest key of it.
#[derive(Clone, Serialize, PartialEq, Eq, Debug)]
struct ShownBound {
    bucket: String,
    key: String,
}

impl ShownBound {
    fn of(bound: &RangeBound) -> ShownBound {
        ShownBound { bucket: format!("{:016x}", bound.bucket.get()), key: bound.key.clone() }
    }
}

/// A range, as JSON.
#[derive(Serialize, PartialEq, Eq, Debug)]
struct Shown {
    id: String,
    /// Its first key, and the first that is behind it.
    first: ShownBound,
    end: Option<ShownBound>,
    server: Option<String>,
    state: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    cause: String,
    ops_s: u32,
    bytes_per_second: u64,
}

/// Runs `craton range`.
pub fn run(connection: &Connection, command: RangeCommand) -> Done {
    with_service(connection, async |service| match command {
        RangeCommand::Ls { json } => {
            let status = status(service).await?;
            list(&shown(&status), json)
        }
        RangeCommand::Move { range, server } => relocate(service, range, &server).await,
        RangeCommand::Split { range, at } => split(service, range, at).await,
    })
}

/// What the object manager says of servers and ranges.
pub(super) async fn status(service: &Service) -> Result<ServiceStatus, Failure> {
    service.status().await.map_err(|error| failed("the ranges", error))
}

/// A server by its ID.
pub(super) fn server_of(
    status: &ServiceStatus,
    server: Option<ObjectServerId>,
) -> Option<&ServerStatus> {
    status.servers.iter().find(|one| Some(one.server) == server)
}

fn state(range: &RangeStatus) -> &'static str {
    match (range.served, range.server) {
        (true, _) => "served",
        (false, Some(_)) => "opening",
        (false, None) => "no server",
    }
}

fn shown(status: &ServiceStatus) -> Vec<Shown> {
    let ends = status.ranges.iter().skip(1).map(|range| Some(ShownBound::of(&range.first)));
    let one = |(range, end): (&RangeStatus, Option<ShownBound>)| Shown {
        id: range.range.to_string(),
        first: ShownBound::of(&range.first),
        end,
        server: server_of(status, range.server).map(|server| server.name.clone()),
        state: state(range),
        cause: range.cause.clone(),
        ops_s: range.requests,
        bytes_per_second: range.bytes,
    };
    status.ranges.iter().zip(ends.chain([None])).map(one).collect()
}

fn list(ranges: &[Shown], json: bool) -> Done {
    if json {
        return print_json(&ranges);
    }
    let mut rows = table(&["range", "first key", "server", "state", "requests/s", "bytes/s"]);
    for range in ranges {
        let state = match range.cause.is_empty() {
            true => range.state.to_owned(),
            false => format!("{}: {}", range.state, range.cause),
        };
        rows.add_row([
            range.id.clone(),
            match range.first.key.is_empty() {
                true => range.first.bucket.clone(),
                false => format!("{}/{}", range.first.bucket, visible(&range.first.key)),
            },
            range.server.clone().unwrap_or_default(),
            state,
            range.ops_s.to_string(),
            range.bytes_per_second.to_string(),
        ]);
    }
    print_table(rows, &[4, 5])
}

/// Moves a range, and waits until its new owner serves it.
async fn relocate(service: &Service, range: RangeId, server: &str) -> Done {
    let known = status(service).await?;
    let named = known.servers.iter().find(|one| one.name == server);
    let to = named.ok_or_else(|| {
        let mut names: Vec<&str> = known.servers.iter().map(|one| one.name.as_str()).collect();
        names.sort_unstable();
        Failure::failed(format!(
            "there is no object server {server}; there are: {}",
            names.join(", ")
        ))
    })?;
    let (to, env) = (to.server, service.env());
    let began = env.now();
    service.move_range(range, to).await.map_err(|error| failed("the move", error))?;
    match served_by(service, (range, to), began + MOVE_TIME).await? {
        true => {
            let took = (env.now() - began).as_millis();
            print_line(&format!("{range} is served by {server}, after {took} ms"))
        }
        false => Err(Failure::new(
            Code::Unavailable,
            format!(
                "{range} is given to {server}, which does not serve it after {MOVE_TIME:?}: 'craton \
                 range ls' shows why"
            ),
        )),
    }
}

/// The bound that an operator names: a bucket, and a key of it.
async fn bound(service: &Service, at: &str) -> Result<RangeBound, Failure> {
    let (bucket, key) = at.split_once('/').unwrap_or((at, ""));
    let name = BucketName::new(bucket).map_err(|error| Failure::usage(error.to_string()))?;
    let view = service.bucket(name).await;
    let view = view.map_err(|error| failed(&format!("the bucket {bucket}"), error))?;
    Ok(RangeBound { bucket: view.bucket.id, key: key.to_owned() })
}

/// Splits a range, and waits until others serve its keys.
async fn split(service: &Service, range: RangeId, at: Option<String>) -> Done {
    let at = match at {
        Some(at) => Some(bound(service, &at).await?),
        None => None,
    };
    let known: Vec<RangeId> = status(service).await?.ranges.iter().map(|one| one.range).collect();
    let (env, began) = (service.env(), service.env().now());
    service.split_range(range, at).await.map_err(|error| failed("the split", error))?;
    let mut was_begun = false;
    while env.now() < began + SPLIT_TIME {
        env.sleep(LOOK).await;
        // A manager that ends while one looks is no failure.
        let Ok(status) = service.status().await else { continue };
        let there = |one: &RangeStatus| one.range == range;
        if !status.ranges.iter().any(there) {
            let new = status.ranges.iter().filter(|one| !known.contains(&one.range));
            let new: Vec<_> = new.collect();
            if new.iter().all(|one| one.served) {
                let names: Vec<_> = new.iter().map(|one| one.range.to_string()).collect();
                let took = (env.now() - began).as_millis();
                let names = names.join(" and ");
                return print_line(&format!(
                    "{names} are in the place of {range}, after {took} ms"
                ));
            }
            continue;
        }
        was_begun |= status.splitting > 0;
        if was_begun && status.splitting == 0 || env.now() > began + BEGIN_TIME && !was_begun {
            return Err(Failure::failed(format!(
                "{range} was not split: its object server had to give up, and its log shows why"
            )));
        }
    }
    Err(Failure::new(
        Code::Unavailable,
        format!("{range} is not split after {SPLIT_TIME:?}: 'craton range ls' shows what is there"),
    ))
}

/// Whether a server serves a range before the deadline.
async fn served_by(
    service: &Service,
    (range, to): (RangeId, ObjectServerId),
    deadline: Instant,
) -> Result<bool, Failure> {
    let env = service.env();
    while env.now() < deadline {
        // A manager that ends while one looks is no failure.
        if let Ok(status) = service.status().await {
            let is_there =
                |one: &RangeStatus| one.range == range && one.served && one.server == Some(to);
            if status.ranges.iter().any(is_there) {
                return Ok(true);
            }
        }
        env.sleep(LOOK).await;
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use object_proto::{BucketId, PeerState};

    use super::*;

    #[test]
    fn ranges_are_shown_with_their_bounds_and_servers() {
        let server = ServerStatus {
            server: ObjectServerId::new(3),
            name: "os2".to_owned(),
            addr: "127.0.0.1:7301".parse().expect("an address"),
            state: PeerState::Up,
            ranges: 1,
            requests: 0,
            bytes: 0,
        };
        let range = |id, first, server, served| RangeStatus {
            range: RangeId::new(id),
            first: RangeBound { bucket: BucketId::new(first), key: "a".repeat(id as usize - 1) },
            server,
            served,
            cause: if served { String::new() } else { "it is being opened".to_owned() },
            requests: 7,
            bytes: 9,
        };
        let ranges = vec![range(1, 0, Some(server.server), true), range(2, 1 << 62, None, false)];
        let servers = vec![server];
        let all = shown(&ServiceStatus { servers, ranges, ..ServiceStatus::default() });
        let end = all[0].end.as_ref().expect("a bound");
        assert_eq!((end.bucket.as_str(), end.key.as_str()), ("4000000000000000", "a"));
        assert_eq!((all[0].server.as_deref(), all[0].state), (Some("os2"), "served"));
        assert_eq!((all[1].end.clone(), all[1].state), (None, "no server"));
        let json = serde_json::to_value(&all).expect("JSON");
        assert_eq!(json[0]["ops_s"], 7);
        assert!(json[0].get("cause").is_none());
        assert_eq!(json[1]["cause"], "it is being opened");
    }
}
