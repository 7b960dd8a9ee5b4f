//! [`Requests`]: how requests end: counters of each operation, and the access log.
//!
//! A request is followed from its head to the last byte of its answer ([`Following`]). What becomes known of
//! it on the way is noted in its [`Note`].

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use http::header::{CONTENT_LENGTH, HOST, REFERER, USER_AGENT};
use http::{HeaderMap, Method, Request, StatusCode, Uri};
use metrics::{Registry, SharedCounter, SharedHistogram, Unit};
use object_proto::AccessKey;
use tokio::time::Instant;

use crate::access_log::{AccessLog, Entry};
use crate::clock;
use crate::facts::Client;
use crate::reply::{ErrorCode, Target};

/// The operation of a request that was refused before it was known what it asks for.
const UNKNOWN: &str = "Unknown";

/// What becomes known of a request; an extension of it.
#[derive(Debug, Default)]
pub struct Note {
    operation: OnceLock<String>,
    /// None inside for a caller without a signature.
    caller: OnceLock<Option<Arc<AccessKey>>>,
    received: AtomicU64,
}

impl Note {
    /// It is this operation, asked for by the owner of a key, or by a caller without a signature.
    pub fn asks(&self, operation: &str, key: Option<&Arc<AccessKey>>) {
        self.is(operation);
        let _ = self.caller.set(key.cloned()); // The first one counts.
    }

    /// It is this operation; the first one counts.
    pub fn is(&self, operation: &str) {
        self.operation.get_or_init(|| operation.to_owned());
    }

    /// So many more bytes of its body came.
    pub fn receive(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn operation(&self) -> &str {
        self.operation.get().map_or(UNKNOWN, String::as_str)
    }

    /// The caller's kind, as a label: the few that an operator asks for.
    fn caller_kind(&self) -> &'static str {
        match self.caller.get() {
            Some(Some(key)) if key.user.admin => "administrator",
            Some(Some(_)) => "user",
            Some(None) => "anonymous",
            None => "unknown",
        }
    }
}

/// Requests of a gateway, from all of its threads.
pub struct Requests {
    registry: Registry,
    operations: Mutex<BTreeMap<String, Series>>,
    log: Option<AccessLog>,
}

/// Counters of an operation.
struct Series {
    first_byte: SharedHistogram,
    whole: SharedHistogram,
    received: SharedCounter,
    sent: SharedCounter,
    /// By kind of caller and class of status.
    ends: BTreeMap<(&'static str, &'static str), SharedCounter>,
}

impl Series {
    fn new(registry: &Registry, operation: &str) -> Series {
        let labels = [("operation", operation)];
        let times = |name, help| registry.shared_histogram(name, help, Unit::Nanoseconds, &labels);
        let bytes = |name, help| registry.shared_counter(name, help, &labels);
        Series {
            first_byte: times(
                "craton_s3_first_byte_seconds",
                "From a request's head to that of its answer.",
            ),
            whole: times(
                "craton_s3_request_seconds",
                "From a request's head to the last byte of its answer.",
            ),
            received: bytes("craton_s3_received_bytes_total", "Bytes of requests' bodies."),
            sent: bytes("craton_s3_sent_bytes_total", "Bytes of answers' bodies."),
            ends: BTreeMap::new(),
        }
    }
}

impl Requests {
    /// Counted here, and written there.
    pub fn new(registry: Registry, log: Option<AccessLog>) -> Requests {
        Requests { registry, operations: Mutex::default(), log }
    }

    fn count(&self, ended: &Ended<'_>) {
        let operation = ended.note.operation();
        let mut operations = self.operations.lock().expect("no panic while it is held");
        if !operations.contains_key(operation) {
            operations.insert(operation.to_owned(), Series::new(&self.registry, operation));
        }
        let series = operations.get_mut(operation).expect("it is there now");
        if let Some(first_byte_us) = ended.first_byte_us {
            series.first_byte.record(first_byte_us.saturating_mul(1000));
        }
        series.whole.record(ended.whole_us.saturating_mul(1000));
        series.received.add(ended.note.received.load(Ordering::Relaxed));
        series.sent.add(ended.sent);
        let (caller, class) = (ended.note.caller_kind(), class_of(ended.status));
        let count = series.ends.entry((caller, class)).or_insert_with(|| {
            self.registry.shared_counter(
                "craton_s3_requests_total",
                "Requests that ended, by operation, kind of caller and class of status.",
                &[("operation", operation), ("caller", caller), ("status", class)],
            )
        });
        count.inc();
    }
}

impl fmt::Debug for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Requests(log: {})", self.log.is_some())
    }
}

fn class_of(status: Option<StatusCode>) -> &'static str {
    match status.map(|status| status.as_u16()) {
        // The client went away before there was an answer.
        None => "gone",
        Some(503) => "503",
        Some(..300) => "2xx",
        Some(300..400) => "3xx",
        Some(400..500) => "4xx",
        Some(500..) => "5xx",
    }
}

/// A request's end, in numbers.
struct Ended<'a> {
    note: &'a Note,
    status: Option<StatusCode>,
    sent: u64,
    first_byte_us: Option<u64>,
    whole_us: u64,
}

/// What of a request's head goes into the access log.
struct Head {
    at_us: u64,
    client: Option<Client>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
}

/// Follows one request; it is over when this is dropped.
pub struct Following {
    requests: Arc<Requests>,
    note: Arc<Note>,
    id: String,
    /// None where there is no access log.
    head: Option<Box<Head>>,
    target: (String, String),
    since: Instant,
    answered: Option<(StatusCode, Instant)>,
    error: Option<String>,
    is_head: bool,
    /// Bytes that the answer says that it has.
    promised: u64,
    sent: u64,
}

impl Following {
    /// A request whose head has come.
    pub fn new<B>(requests: &Arc<Requests>, id: &str, request: &Request<B>) -> Following {
        let head = requests.log.is_some().then(|| {
            let named = [HOST, USER_AGENT, REFERER];
            let kept = named.map(|name| Some((name.clone(), request.headers().get(name)?.clone())));
            Box::new(Head {
                at_us: clock::unix_us(),
                client: request.extensions().get::<Client>().copied(),
                method: request.method().clone(),
                uri: request.uri().clone(),
                headers: kept.into_iter().flatten().collect(),
            })
        });
        Following {
            requests: requests.clone(),
            note: Arc::default(),
            id: id.to_owned(),
            head,
            target: Default::default(),
            since: Instant::now(),
            answered: None,
            error: None,
            is_head: *request.method() == Method::HEAD,
            promised: 0,
            sent: 0,
        }
    }

    /// What becomes known of it.
    pub fn note(&self) -> &Arc<Note> {
        &self.note
    }

    /// The head of its answer is ready.
    pub fn answer<B>(&mut self, response: &http::Response<B>, target: Target<'_>) {
        self.answered = Some((response.status(), Instant::now()));
        let promised = response.headers().get(CONTENT_LENGTH).and_then(|len| len.to_str().ok());
        self.promised = promised.and_then(|len| len.parse().ok()).unwrap_or(0);
        self.error = response.extensions().get::<ErrorCode>().map(|code| code.0.clone());
        if self.head.is_some() {
            self.target = target.names();
        }
    }

    /// So many more bytes of its answer were handed to the connection.
    pub fn send(&mut self, bytes: usize) {
        self.sent += bytes as u64;
    }
}

fn us_between(since: Instant, until: Instant) -> u64 {
    u64::try_from(until.duration_since(since).as_micros()).unwrap_or(u64::MAX)
}

impl Drop for Following {
    fn drop(&mut self) {
        let ended = Ended {
            note: &self.note,
            status: self.answered.map(|(status, _)| status),
            sent: self.sent,
            first_byte_us: self.answered.map(|(_, at)| us_between(self.since, at)),
            whole_us: us_between(self.since, Instant::now()),
        };
        self.requests.count(&ended);
        let (Some(log), Some(head)) = (&self.requests.log, &self.head) else { return };
        let key = self.note.caller.get().and_then(Option::as_deref);
        // A client may send what is not ASCII; it is shown as far as it is UTF-8.
        let text =
            |name| head.headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()));
        log.write(&Entry {
            at_us: head.at_us,
            request_id: &self.id,
            remote: head.client.map(|client| client.ip),
            tls: head.client.is_some_and(|client| client.is_secure),
            user: key.map(|key| key.user.name.as_str()),
            access_key: key.map(|key| key.id.as_str()),
            operation: ended.note.operation(),
            bucket: &self.target.0,
            key: &self.target.1,
            method: head.method.as_str(),
            uri: &head.uri,
            status: ended.status.map(|status| status.as_u16()),
            error: self.error.as_deref(),
            received_bytes: ended.note.received.load(Ordering::Relaxed),
            sent_bytes: ended.sent,
            cut: !self.is_head && self.sent < self.promised,
            first_byte_us: ended.first_byte_us,
            total_us: ended.whole_us,
            host: text(HOST).as_deref(),
            user_agent: text(USER_AGENT).as_deref(),
            referer: text(REFERER).as_deref(),
        });
    }
}
