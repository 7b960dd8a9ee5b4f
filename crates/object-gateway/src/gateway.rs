//! [`Gateway`]: listeners and threads.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::Duration;

use futures_util::future::{self, Either};
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use object_proto::Backend;
use s3s::config::{S3Config, StaticConfigProvider};
use s3s::service::S3ServiceBuilder;
use s3s::validation::NameValidation;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

use crate::auth::{Access, Keys, Secrets};
use crate::body::BodyTimes;
use crate::budget::Budget;
use crate::clock;
use crate::config::{GatewayConfig, Times};
use crate::conn::{TimeUp, Watch, WatchedStream};
use crate::dialect::{Dialect, EncryptionRoute, Sealer, State};
use crate::facts::Client;
use crate::form::Forms;
use crate::front::Front;
use crate::hosts::Domains;
use crate::keyring::Keyring;
use crate::limits::{CLOCK_SKEW_SECONDS, HEAD_READ_MAX, HEADERS_MAX, XML_MAX};
use crate::requests::Requests;
use crate::rights::Places;
use crate::tls::{Stream, Tls};

/// Connections that wait in the kernel.
const BACKLOG: u32 = 1024;
/// Pause after a failed accept, so that a lack of descriptors does not make a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Why a gateway does not start.
#[derive(Debug)]
pub enum GatewayError {
    /// There is no address to listen on.
    NoAddress,
    /// An address cannot be listened on.
    Listen {
        /// The address.
        addr: SocketAddr,
        /// Cause.
        error: io::Error,
    },
    /// A thread cannot be started.
    Thread(io::Error),
}

impl fmt::Display for GatewayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GatewayError::NoAddress => {
                f.write_str("the gateway has no address to listen on: configure one")
            }
            GatewayError::Listen { addr, error } => write!(
                f,
                "cannot serve S3 on {addr} ({error}): end the process that uses the address, or \
                 configure another"
            ),
            GatewayError::Thread(error) => write!(
                f,
                "cannot start a thread of the gateway ({error}): raise the process's limits"
            ),
        }
    }
}

impl std::error::Error for GatewayError {}

/// Says for a gateway whether it can serve, from any thread.
#[derive(Clone, Debug)]
pub struct Ready {
    ready: Arc<AtomicBool>,
    stopped: watch::Receiver<bool>,
}

impl Ready {
    /// What `/_craton/ready` says from now on. A gateway that is being stopped is not ready.
    pub fn set(&self, ready: bool) {
        self.ready.store(ready && !*self.stopped.borrow(), Ordering::Relaxed);
    }
}

/// A gateway that serves. It stops when it is dropped, without a wait for its requests.
#[derive(Debug)]
pub struct Gateway {
    addrs: Vec<SocketAddr>,
    ready: Arc<AtomicBool>,
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
    /// Room for connections, of so many.
    connections: (Arc<Semaphore>, usize),
    budget: Budget,
}

impl Gateway {
    /// Starts a gateway on a backend, whose access keys' secrets `keyring` unwraps; it wraps
    /// keys of objects, too. It may be called on any thread.
    ///
    /// # Errors
    ///
    /// [`GatewayError`] with cause and remedy.
    pub fn start(
        config: GatewayConfig,
        backend: Arc<dyn Backend>,
        keyring: Arc<Keyring>,
    ) -> Result<Gateway, GatewayError> {
        if config.listen.is_empty() {
            return Err(GatewayError::NoAddress);
        }
        let ready = Arc::new(AtomicBool::new(false));
        let front = Arc::new(front(&config, backend, keyring, ready.clone()));
        let runtimes: Result<Vec<Runtime>, io::Error> = (0..config.threads.max(1))
            .map(|_| Builder::new_current_thread().enable_io().enable_time().build())
            .collect();
        let runtimes = runtimes.map_err(GatewayError::Thread)?;
        let mut listeners = Vec::new();
        for &addr in &config.listen {
            let listener = listen(&runtimes[0], addr, config.share_ports);
            listeners.push(listener.map_err(|error| GatewayError::Listen { addr, error })?);
        }
        let addrs = listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect();
        let (stop, stopped) = watch::channel(false);
        let connections = Arc::new(Semaphore::new(config.connections_max));
        // Each thread holds room for the next connection of each address.
        let most = config.connections_max.saturating_sub(runtimes.len() * listeners.len());
        let room = (connections.clone(), most);
        let (threads, budget) = (Vec::new(), front.budget.clone());
        let mut gateway = Gateway { addrs, ready, stop, threads, connections: room, budget };
        for (index, runtime) in runtimes.into_iter().enumerate() {
            let own: io::Result<Vec<_>> = listeners.iter().map(StdListener::try_clone).collect();
            let server = Server {
                front: front.clone(),
                times: config.times,
                tls: config.tls.clone(),
                connections: connections.clone(),
                stopped: stopped.clone(),
            };
            let own = own.map_err(GatewayError::Thread)?;
            let run = move || runtime.block_on(server.serve(own));
            let thread = clock::thread(format!("s3-{index}"), run);
            gateway.threads.push(thread.map_err(GatewayError::Thread)?);
        }
        Ok(gateway)
    }

    /// The first address that it listens on.
    pub fn addr(&self) -> SocketAddr {
        self.addrs[0]
    }

    /// All addresses that it listens on, in the order of the configuration.
    pub fn addrs(&self) -> &[SocketAddr] {
        &self.addrs
    }

    /// Counts the connections that are open, at any time.
    pub fn connection_counter(&self) -> impl Fn() -> u32 + Send + 'static {
        let (room, most) = self.connections.clone();
        move || u32::try_from(most.saturating_sub(room.available_permits())).unwrap_or(u32::MAX)
    }

    /// Reads how many bytes of bodies are in memory, and may be, at any time.
    pub fn memory_counter(&self) -> impl Fn() -> (u64, u64) + Send + 'static {
        let budget = self.budget.clone();
        move || budget.state()
    }

    /// What `/_craton/ready` says, for another thread to change.
    pub fn ready(&self) -> Ready {
        Ready { ready: self.ready.clone(), stopped: self.stop.subscribe() }
    }

    /// What `/_craton/ready` says; at first it is not ready.
    pub fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Ordering::Relaxed);
    }

    /// Accepts no more connections, ends idle ones, and lets requests come to their end in their
    /// time. Does not wait for it.
    pub fn begin_stop(&self) {
        self.stop.send_replace(true);
        self.set_ready(false);
    }

    /// Stops, and waits until all requests ended or their time is over. Blocks the thread.
    pub fn stop(mut self) {
        self.begin_stop();
        for thread in std::mem::take(&mut self.threads) {
            let _ = thread.join(); // A thread that panicked has said so.
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.begin_stop();
    }
}

/// Names of buckets as the core takes them.
struct Names;

impl NameValidation for Names {
    fn validate_bucket_name(&self, name: &str) -> bool {
        object_proto::BucketName::new(name).is_ok()
    }
}

fn front(
    config: &GatewayConfig,
    backend: Arc<dyn Backend>,
    keyring: Arc<Keyring>,
    ready: Arc<AtomicBool>,
) -> Front {
    let budget = Budget::new(config.memory_bytes);
    let domains = Domains::new(&config.domains);
    let keys = Arc::new(Keys::new(backend.clone(), keyring.clone()));
    let places = Arc::new(Places::new(backend.clone()));
    let state = State {
        backend: backend.clone(),
        places: places.clone(),
        sealer: Arc::new(Sealer::new(keyring, backend.clone())),
        budget: budget.clone(),
        claim_time: config.times.claim,
        region: config.region.clone(),
        new_buckets: config.new_buckets.clone(),
        lifecycle_day: config.lifecycle_day,
    };
    let mut settings = S3Config::default();
    settings.xml_max_body_size = XML_MAX;
    settings.presigned_url_max_skew_time_secs = CLOCK_SKEW_SECONDS;
    let access = Access { keys: keys.clone(), places, backend: backend.clone() };
    let times = BodyTimes { stall: config.times.stall, claim: config.times.claim };
    let forms = Forms {
        state: state.clone(),
        access: access.clone(),
        budget: budget.clone(),
        times,
        allow_v2: config.allow_v2,
    };
    let route =
        EncryptionRoute { state: state.clone(), access: access.clone(), domains: domains.clone() };
    let mut builder = S3ServiceBuilder::new(Dialect(state));
    builder.set_route(route);
    builder.set_config(Arc::new(StaticConfigProvider::new(Arc::new(settings))));
    builder.set_host(domains.clone());
    builder.set_auth(Secrets(keys));
    builder.set_access(access);
    builder.set_validation(Names);
    Front {
        service: builder.build(),
        forms,
        backend,
        domains,
        budget,
        times,
        allow_v2: config.allow_v2,
        ready,
        requests: Arc::new(Requests::new(config.registry.clone(), config.access_log.clone())),
        next_id: AtomicU64::new(config.request_nonce),
    }
}

fn listen(runtime: &Runtime, addr: SocketAddr, share_ports: bool) -> io::Result<StdListener> {
    let _entered = runtime.enter(); // tokio's sockets belong to a runtime.
    let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.set_reuseport(share_ports)?;
    socket.bind(addr)?;
    socket.listen(BACKLOG)?.into_std()
}

/// One thread's part of a gateway.
#[derive(Clone)]
struct Server {
    front: Arc<Front>,
    times: Times,
    tls: Option<Tls>,
    connections: Arc<Semaphore>,
    stopped: watch::Receiver<bool>,
}

impl Server {
    async fn serve(self, listeners: Vec<StdListener>) {
        let stop_time = self.times.stop;
        // Each connection holds a sender: the receiver ends with the last of them.
        let (alive, mut ended) = mpsc::channel::<()>(1);
        let accepting = listeners.into_iter().filter_map(|listener| {
            let listener = TcpListener::from_std(listener).ok()?;
            Some(self.clone().accept_all(listener, alive.clone()))
        });
        future::join_all(accepting).await;
        drop(alive);
        let _ = tokio::time::timeout(stop_time, ended.recv()).await;
    }

    /// Accepts until the gateway stops.
    async fn accept_all(mut self, listener: TcpListener, alive: mpsc::Sender<()>) {
        loop {
            let accepted = self.accept(&listener);
            let mut stopped = self.stopped.clone();
            let stop = stopped.wait_for(|stopped| *stopped);
            match future::select(pin!(accepted), pin!(stop)).await {
                Either::Left((Some((stream, client, permit)), _)) => {
                    let (server, alive) = (self.clone(), alive.clone());
                    tokio::spawn(async move {
                        if let Some(stream) = server.secure(stream).await {
                            server.serve_connection(stream, client).await;
                        }
                        drop((permit, alive));
                    });
                }
                Either::Left((None, _)) => tokio::time::sleep(ACCEPT_PAUSE).await,
                Either::Right(_) => return,
            }
            self.stopped.mark_unchanged();
        }
    }

    async fn accept(
        &self,
        listener: &TcpListener,
    ) -> Option<(TcpStream, Client, OwnedSemaphorePermit)> {
        let permit = self.connections.clone().acquire_owned().await.ok()?;
        let (stream, addr) = listener.accept().await.ok()?;
        stream.set_nodelay(true).ok()?;
        let client = Client { ip: addr.ip().to_canonical(), is_secure: self.tls.is_some() };
        Some((stream, client, permit))
    }

    /// Shakes hands, if there is TLS, within the time of a head.
    async fn secure(&self, stream: TcpStream) -> Option<Stream> {
        let Some(tls) = &self.tls else { return Some(Stream::Plain(stream)) };
        let shaken = tokio::time::timeout(self.times.head, tls.accept(stream));
        let mut stopped = self.stopped.clone();
        let stop = stopped.wait_for(|stopped| *stopped);
        match future::select(pin!(shaken), pin!(stop)).await {
            // An error concerns this client only.
            Either::Left((shaken, _)) => shaken.ok()?.ok(),
            Either::Right(_) => None,
        }
    }

    /// Serves a connection until it ends, uses up its time, or the gateway stops.
    async fn serve_connection(&self, stream: Stream, client: Client) {
        let watch = Arc::new(Watch::new(self.times));
        let io = TokioIo::new(WatchedStream::new(stream, watch.clone()));
        let service = service_fn(|mut request: Request<Incoming>| {
            request.extensions_mut().insert(client);
            let (front, watch) = (self.front.clone(), watch.clone());
            async move { Ok::<_, std::convert::Infallible>(front.serve(request, watch).await) }
        });
        let connection = http1::Builder::new()
            .max_buf_size(HEAD_READ_MAX)
            .max_headers(HEADERS_MAX)
            .header_read_timeout(None)
            .serve_connection(io, service);
        let mut connection = pin!(connection);
        let mut time_up = pin!(TimeUp::new(watch.clone()));
        let mut stopped = self.stopped.clone();
        let mut stop = pin!(async move { stopped.wait_for(|stopped| *stopped).await.is_ok() });
        let mut is_stopping = false;
        poll_fn(|cx| {
            if !is_stopping && stop.as_mut().poll(cx).is_ready() {
                is_stopping = true;
                connection.as_mut().graceful_shutdown();
            }
            // An error concerns this client only: it went away, or sent no HTTP.
            if connection.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            time_up.as_mut().poll(cx)
        })
        .await;
    }
}
