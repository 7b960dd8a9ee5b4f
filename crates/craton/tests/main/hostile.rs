//! Clients that break the NBD protocol, or disconnect in the middle of it, at a front end of a
//! cluster of processes: each gets the protocol's error or loses its own connection, without an
//! effect on others.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::bystander::Bystander;
use crate::harness::{Scratch, book, content, json, metric, text, wait};
use crate::machine::Hiccups;
use crate::nbd::{self, BLOCK, Nbd, Negotiation, READ, REFUSED, TRIM, WRITE};
use crate::volumes::up;

const SOON: Duration = Duration::from_secs(20);
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

const WRITE_ZEROES: u16 = 6;
const BLOCK_STATUS: u16 = 7;
const OPTION_EXPORT: u32 = 7;
const UNSUPPORTED: u32 = REFUSED | 1;
const INVALID_OPTION: u32 = REFUSED | 3;
const NOT_ALLOWED: u32 = REFUSED | 2;
const UNKNOWN: u32 = REFUSED | 6;
const INVALID: u32 = 22;
const NO_SPACE: u32 = 28;
const OVERFLOW: u32 = 75;

/// Bytes of one request at most.
const DATA_MAX: u32 = 32 << 20;

/// Bytes that must not change: at the volume's beginning, where all the bad requests go.
const KEPT: usize = 8 << 20;

/// Every process that the cluster has started, with the time at which it began.
fn processes(dir: &Path) -> Vec<(String, u64, String)> {
    let book = book(dir);
    let process = |one: &serde_json::Value| {
        let (id, pid) = (one["id"].as_str().expect("text"), one["pid"].as_u64().expect("a number"));
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
        let stat = stat.unwrap_or_else(|_| panic!("{id} is not there any more"));
        // Behind the name in brackets: the state, and 18 more words before the time.
        let facts = stat.rsplit_once(')').expect("a name").1;
        let mut facts = facts.split_whitespace();
        assert_ne!(facts.next(), Some("Z"), "{id} has ended");
        (id.to_owned(), pid, facts.nth(18).expect("a time").to_owned())
    };
    book["processes"].as_array().expect("processes").iter().map(process).collect()
}

/// True when the front end ends the connection after these bytes.
fn ends_after(url: &str, bytes: &[u8]) -> bool {
    let mut stream = nbd::connect(url);
    stream.read_exact(&mut [0; 18]).expect("a greeting");
    // The other side may end it before it has all of them.
    let _ = stream.write_all(bytes);
    nbd::ends(&mut stream)
}

fn bad_handshakes(url: &str, name: &str) {
    assert!(ends_after(url, &content(64 << 10, 3)), "garbage");
    assert!(ends_after(url, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"), "another protocol");
    let hello = 3u32.to_be_bytes();
    let option = |code: u32, len: u32| {
        [&hello[..], b"IHAVEOPT", &code.to_be_bytes(), &len.to_be_bytes()].concat()
    };
    assert!(ends_after(url, &option(OPTION_EXPORT, u32::MAX)), "an option without end");
    assert!(ends_after(url, &[&option(2, 0)[..11], &[0xff; 13]].concat()), "no option begins so");
    // A client that sends nothing more, or half of it, is gone without a trace.
    for bytes in [&[][..], &hello[..2], &option(OPTION_EXPORT, 10)[..7], &option(OPTION_EXPORT, 10)]
    {
        let mut stream = nbd::connect(url);
        stream.write_all(bytes).expect("it is sent");
        stream.shutdown(Shutdown::Write).expect("it is open");
        let mut said = Vec::new();
        stream.read_to_end(&mut said).expect("it ends");
        assert_eq!(said.len(), 18, "it says its greeting, and closes");
    }

    // Options are refused where possible, and the same connection goes on.
    let mut talk = Negotiation::begin(url);
    let refused = |talk: &mut Negotiation, code: u32, data: &[u8], want: u32| {
        let (got, words, _) = talk.option(code, data);
        assert_eq!(got, want, "option {code}: {}", String::from_utf8_lossy(&words));
        assert!(!words.is_empty(), "option {code} is refused without words");
    };
    refused(&mut talk, 4711, b"what is this", UNSUPPORTED);
    refused(&mut talk, OPTION_EXPORT, b"", INVALID_OPTION);
    refused(&mut talk, OPTION_EXPORT, &[0xff; 10], INVALID_OPTION);
    refused(&mut talk, 3, b"a list takes no data", INVALID_OPTION);
    let missing: [(&[u8], u32); 3] =
        [(b"none", UNKNOWN), (b"v@none", UNKNOWN), (b"../v", NOT_ALLOWED)];
    for (name, want) in missing {
        let (back, code, words) = talk.go(name).err().expect("no such export");
        assert!(code == want && !words.is_empty(), "{name:?}: {code:x} {words}");
        talk = back;
    }
    let odd: [&[u8]; 2] = [&[0xff, 0xfe], &[b'x'; 300]];
    for name in odd {
        let (back, code, _) = talk.go(name).err().expect("no name of a volume");
        assert_eq!(code, INVALID_OPTION);
        talk = back;
    }
    let opened = talk.go(name.as_bytes()).map_err(|(_, code, words)| (code, words));
    assert_eq!(opened.expect("it was refused much, and may come in").bytes, GIB);
}

fn bad_requests(url: &str) {
    let mut nbd = Nbd::open(url);
    let nowhere = u64::MAX;
    for (op, flags, place, error) in [
        (READ, 0, (GIB - 10, 11), INVALID),
        (READ, 0, (GIB, 1), INVALID),
        (READ, 0, (nowhere - 3, 4), INVALID),
        (WRITE, 0, (GIB - 10, 11), NO_SPACE),
        (WRITE, 0, (nowhere, 4096), NO_SPACE),
        (WRITE_ZEROES, 0, (GIB - 10, 11), NO_SPACE),
        (WRITE_ZEROES, 0, (0, u32::MAX), NO_SPACE),
        (TRIM, 0, (GIB - 10, 11), INVALID),
        (TRIM, 0, (nowhere, u32::MAX), INVALID),
        (READ, 0, (0, 0), INVALID),
        (WRITE, 0, (0, 0), INVALID),
        (TRIM, 0, (0, 0), INVALID),
        (WRITE_ZEROES, 0, (0, 0), INVALID),
        (READ, 0, (0, DATA_MAX + 1), OVERFLOW),
        (READ, 0, (0, u32::MAX), OVERFLOW),
        (WRITE, 0, (0, DATA_MAX + 1), OVERFLOW),
        // Flags and commands that are not known, and features that were not negotiated.
        (READ, 1 << 9, (0, 1), INVALID),
        (WRITE, 1 << 9, (0, 5), INVALID),
        (99, 0, (0, 1), INVALID),
        (BLOCK_STATUS, 0, (0, 4096), INVALID),
    ] {
        let data = vec![0xee; if op == WRITE { place.1 as usize } else { 0 }];
        let answer = nbd.try_ask(op, flags, place, &data);
        assert_eq!(answer, Err(error), "request {op} with {flags:x} of {place:?}");
    }
    // Blocks are no bound for clients: any offset and any length will do.
    let own = 64 * MIB;
    let bytes = content(5000, 9);
    for (offset, len) in [(own + 777, 1), (own + 4095, 2), (own + 8191, 5000), (GIB - 1, 1)] {
        nbd.ask(WRITE, offset, len, &bytes[..len]);
        assert!(nbd.ask(READ, offset, len, &[]) == bytes[..len], "{len} bytes at {offset}");
    }
    assert_eq!(nbd.ask(READ, own + 770, 9, &[])[..7], [0; 7], "bytes beside it are untouched");
    // The longest that may be asked for.
    let longest = nbd.try_ask(READ, 0, (0, DATA_MAX), &[]);
    assert_eq!(longest.map(|data| data.len()), Ok(DATA_MAX as usize));

    // Bytes that break the protocol end the connection.
    let mut magic = nbd::head(READ, 0, 1, (0, 1));
    magic[0] ^= 1;
    for bytes in [magic, nbd::head(WRITE, 0, 1, (0, u32::MAX)), content(4096, 5)] {
        let mut nbd = Nbd::open(url);
        nbd.send(&bytes).expect("it is sent");
        assert!(nbd.ends());
    }
}

/// Half a request, half the data of a small write, and half of one that is done in pieces.
fn half_frames(url: &str, kept: &[u8]) {
    let small = nbd::head(WRITE, 0, 1, (4096, 64 << 10));
    let cut_small = [&small[..], &[0xee; 20 << 10]].concat();
    for bytes in [&small[..11], &small[..], &cut_small] {
        Nbd::open(url).go_away_after(bytes);
    }
    let large = 100 * MIB;
    let mut nbd = Nbd::open(url);
    nbd.ask(WRITE, large, 4 << 20, &vec![1; 4 << 20]);
    let sent = 3 * MIB as usize / 2 + 100;
    let head = nbd::head(WRITE, 0, 2, (large, 4 << 20));
    nbd.go_away_after(&[&head[..], &vec![2; sent]].concat());
    // An unanswered request is done or not, block by block; unsent data is never written.
    let mut nbd = Nbd::open(url);
    let read = nbd.ask(READ, large, 4 << 20, &[]);
    let (sent_blocks, rest) = read.split_at(sent / BLOCK * BLOCK);
    for block in sent_blocks.chunks(BLOCK) {
        assert!(block == [1; BLOCK] || block == [2; BLOCK], "a block is neither old nor new");
    }
    assert!(rest.iter().all(|&byte| byte == 1), "what was not sent was written");
    assert!(nbd.ask(READ, 0, 1 << 20, &[]) == kept[..1 << 20], "a cut write was done");
}

/// A client that asks for more than sockets hold, and takes no answer.
fn does_not_read(url: &str) -> TcpStream {
    let stream = Nbd::open(url).into_tcp();
    stream.set_write_timeout(Some(Duration::from_millis(500))).expect("a socket");
    for cookie in 0..4000 {
        let len = if cookie % 3 == 0 { 3 << 20 } else { 128 << 10 };
        if (&stream).write_all(&nbd::head(READ, 0, cookie, (0, len))).is_err() {
            break;
        }
    }
    stream
}

#[test]
fn bad_clients_harm_no_other_client() {
    let mut scratch = Scratch::new("hostile-nbd");
    let dir = scratch.cluster("cluster");
    up(&dir);
    let cluster = text(&dir);
    let args = ["volume", "create", "v", "--size", "1GiB", "--json", "--cluster", cluster];
    let url = json(&args)["nbd"].as_str().expect("an export").to_owned();
    let kept = content(KEPT, 1);
    Nbd::open(&url).ask(WRITE, 0, KEPT, &kept);
    let before = processes(&dir);
    let bystander = Bystander::start(&url, GIB / 2);
    bystander.goes_on("nothing");

    bad_handshakes(&url, "v");
    bystander.goes_on("bad handshakes");
    bad_requests(&url);
    bystander.goes_on("bad requests");
    half_frames(&url, &kept);
    bystander.goes_on("half frames");
    let silent = (does_not_read(&url), does_not_read(&url));
    bystander.goes_on("clients that take no answers");
    let refused = |dir: &Path| metric(dir, "f1", "craton_nbd_refused_total");
    assert_eq!(refused(&dir), 0.0);
    // One too many is closed before it is greeted; its wait does not affect the others.
    let crowd: Vec<TcpStream> = (0..70).map(|_| nbd::connect(&url)).collect();
    wait("some of a crowd are turned away", SOON, || refused(&dir) > 0.0);
    bystander.goes_on("a crowd");
    drop((crowd, silent));
    wait("they are gone", SOON, || metric(&dir, "f1", "craton_nbd_connections") == 1.0);

    let mut nbd = Nbd::open(&url);
    assert!(nbd.ask(READ, 0, KEPT, &[]) == kept, "bad requests have changed the volume");
    drop(nbd);
    bystander.goes_on("nothing");
    bystander.end();
    assert_eq!(processes(&dir), before, "a process is another than before");
    assert!(metric(&dir, "f1", "craton_nbd_broken_total") >= 7.0);
    for (id, ..) in before {
        let log = std::fs::read_to_string(dir.join(&id).join("log/craton.jsonl")).expect("a log");
        let error = log.lines().find(|line| line.contains("\"ERROR\""));
        assert_eq!(error, None, "in the log of {id}");
    }
}

/// Attacks in the test of their neighbours' latency.
#[derive(Clone, Copy, Debug)]
enum Attack {
    /// Heads of writes whose bodies never come.
    Heads,
    /// Requests whose answers are never read.
    Answers,
    /// Connections, each with half a handshake.
    Connections,
}

/// One attack, until it is dropped.
struct Attacker {
    stop: Arc<AtomicBool>,
    work: Option<std::thread::JoinHandle<()>>,
}

impl Attacker {
    fn begin(attack: Attack, url: &str) -> Attacker {
        let (stop, url) = (Arc::new(AtomicBool::new(false)), url.to_owned());
        let over = stop.clone();
        let work = std::thread::spawn(move || {
            let mut held: Vec<TcpStream> = match attack {
                Attack::Heads => (0..4).map(|_| heads_without_bodies(&url)).collect(),
                Attack::Answers => vec![does_not_read(&url), does_not_read(&url)],
                Attack::Connections => Vec::new(),
            };
            while !over.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(5));
                if matches!(attack, Attack::Connections) {
                    let mut half = nbd::connect(&url);
                    let _ = half.write_all(&[0, 0]);
                    held.push(half);
                    // More than the bound on handshakes.
                    held.drain(..held.len().saturating_sub(200));
                }
            }
        });
        Attacker { stop, work: Some(work) }
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.work.take().map(std::thread::JoinHandle::join);
    }
}

fn heads_without_bodies(url: &str) -> TcpStream {
    let mut stream = Nbd::open(url).into_tcp();
    stream.write_all(&nbd::head(WRITE, 0, 1, (200 * MIB, DATA_MAX))).expect("it is sent");
    stream
}

/// The 99th of 100 requests, writes and reads of a block in turn, without the times in which the
/// machine stood still.
fn p99(nbd: &mut Nbd) -> Duration {
    const REQUESTS: u64 = 600;
    let hiccups = Hiccups::watch();
    let mut waits = Vec::new();
    for count in 0..REQUESTS {
        let offset = GIB / 2 + count * 41 % 500 * BLOCK as u64;
        let (op, data) = if count % 2 == 0 { (WRITE, vec![7; BLOCK]) } else { (READ, Vec::new()) };
        let began = Instant::now();
        nbd.ask(op, offset, BLOCK, &data);
        waits.push((began, began.elapsed()));
    }
    let noted = hiccups.end();
    let mut waits: Vec<_> =
        waits.into_iter().map(|(began, took)| noted.without(began, took)).collect();
    waits.sort_unstable();
    waits[waits.len() * 99 / 100]
}

/// Issue 10, 4.6. Pairs of turns, without and with hostile clients, and the median of their ratios: a
/// machine with few cores has other reasons for a slow turn. Where the first pairs say no, more of them
/// decide: their median comes nearer to the true one.
#[test]
fn p99_beside_hostile_clients_is_within_twice_its_own() {
    const PAIRS: usize = 5;
    const PAIRS_MOST: usize = 25;
    let mut scratch = Scratch::alone("hostile-p99");
    let dir = scratch.cluster("cluster");
    up(&dir);
    let args = ["volume", "create", "v", "--size", "1GiB", "--json", "--cluster", text(&dir)];
    let url = json(&args)["nbd"].as_str().expect("an export").to_owned();
    let mut nbd = Nbd::open(&url);
    p99(&mut nbd);
    for attack in [Attack::Heads, Attack::Answers, Attack::Connections] {
        let mut ratios: Vec<f64> = Vec::new();
        while ratios.len() < PAIRS || median(&ratios) > 2.0 && ratios.len() < PAIRS_MOST {
            let alone = p99(&mut nbd);
            let _attacker = Attacker::begin(attack, &url);
            ratios.push(p99(&mut nbd).as_secs_f64() / alone.as_secs_f64());
        }
        println!("p99 beside {attack:?}, by p99 without: {ratios:.2?}");
        assert!(median(&ratios) <= 2.0, "beside {attack:?}: {ratios:.2?}");
    }
}

fn median(ratios: &[f64]) -> f64 {
    let mut sorted = ratios.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}
