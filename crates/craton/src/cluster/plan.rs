//! Layout of a new cluster: configurations of its processes.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use base::ClusterId;
use object_gateway::KeyFile;
use runtime::Env;

use super::cluster_file::{ClusterFile, Process};
use super::directory::{Directory, config_path};
use super::ports::Reserved;
use super::s3_access::S3Access;
use crate::args::{ClusterUpArgs, Nearby, RoleName};
use crate::exit::{Failure, io};
use crate::role::random_key;
use roles::config::{
    self, BlockManager, BlockServer, Chunkserver, Frontend, FrontendTls, Gateway, Logging, Master,
    ObjectManager, ObjectServer, Peer, Store,
};

/// Shape of a new cluster.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Masters.
    pub masters: u16,
    /// Chunkservers.
    pub chunkservers: u16,
    /// Stores of each chunkserver.
    pub disks: u16,
    /// Partitions of the namespace service.
    pub namespaces: u16,
    /// Partitions of the stream service.
    pub streams: u16,
    /// Block servers.
    pub block_servers: u16,
    /// Block managers.
    pub block_managers: u16,
    /// Front ends.
    pub frontends: u16,
    /// Object managers.
    pub object_managers: u16,
    /// Object servers.
    pub object_servers: u16,
    /// Gateways.
    pub gateways: u16,
    /// How clients reach S3, at the address that the gateways share.
    pub s3: S3Access,
    /// It has no key.
    pub no_key: bool,
    /// Access of this machine's programs to its front ends.
    pub nearby: Nearby,
    /// Access of other machines to the front ends.
    pub access: Access,
}

/// Access of other machines to the front ends.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// Their address; loopback unless given.
    pub listen: Option<IpAddr>,
    /// Directory with `ca-cert.pem`, `server-cert.pem` and `server-key.pem`.
    pub tls: Option<PathBuf>,
    /// Volumes, and names of certificates that may open them.
    pub exports: BTreeMap<String, Vec<String>>,
}

/// The lists of each volume as one.
fn merged(lists: &[(String, Vec<String>)]) -> BTreeMap<String, Vec<String>> {
    let mut all = BTreeMap::<String, Vec<String>>::new();
    for (volume, names) in lists {
        all.entry(volume.clone()).or_default().extend_from_slice(names);
    }
    all
}

impl Access {
    /// Writes it to a front end's file and process entry.
    fn apply(&self, directory: &Directory, made: &mut Process) -> Result<(), Failure> {
        let path = config_path(&made.dir, made.role);
        let mut config: Frontend = config::read(&path)?;
        if let Some(ip) = self.listen {
            made.addr.set_ip(ip);
            config.nbd = Some(made.addr);
        }
        if let Some(dir) = &self.tls {
            let dir = std::fs::canonicalize(dir).map_err(|error| io("open", dir, &error))?;
            config.tls = Some(FrontendTls {
                certificate: dir.join("server-cert.pem"),
                key: dir.join("server-key.pem"),
                client_ca: dir.join("ca-cert.pem"),
            });
        }
        config.exports.clone_from(&self.exports);
        directory.write_config(&made.dir, made.role, &config)
    }
}

impl Shape {
    /// The shape that the command line asks for.
    pub fn of(args: &ClusterUpArgs) -> Shape {
        let object_servers = args.object_servers.unwrap_or(2);
        // Of no use without them.
        let beside = u16::from(object_servers > 0);
        Shape {
            masters: args.masters.unwrap_or(3),
            chunkservers: args.chunkservers.unwrap_or(6),
            disks: args.disks.unwrap_or(1),
            namespaces: args.namespaces.unwrap_or(1),
            streams: args.streams.unwrap_or(1),
            block_servers: args.block_servers.unwrap_or(2),
            block_managers: args.block_managers.unwrap_or(1),
            frontends: args.frontends.unwrap_or(1),
            object_managers: args.object_managers.unwrap_or(beside),
            object_servers,
            gateways: args.gateways.unwrap_or(beside),
            s3: args.s3.clone(),
            no_key: args.no_key,
            nearby: args.nearby.clone(),
            access: Access {
                listen: args.nbd_listen,
                tls: args.nbd_tls.clone(),
                exports: merged(&args.nbd_allow),
            },
        }
    }
}

fn logging(dir: &Path) -> Logging {
    Logging { dir: Some(dir.join("log")), ..Logging::default() }
}

fn process(role: RoleName, id: String, addr: std::net::SocketAddr, root: &Path) -> Process {
    let dir = root.join(&id);
    Process { role, id, pid: 0, addr, dir }
}

/// Writes the files of a new cluster and returns its processes, none of them started.
pub fn make(
    env: &Env,
    directory: &Directory,
    ports: &mut Reserved,
    shape: Shape,
) -> Result<ClusterFile, Failure> {
    let mut raw = [0; 16];
    env.fill_secret(&mut raw);
    let cluster = ClusterId::new(u128::from_le_bytes(raw) | 1);
    directory.write_key((!shape.no_key).then(|| random_key(env)).as_ref())?;
    let mut book = ClusterFile::default();
    for index in 1..=shape.masters {
        let addr = ports.take(env)?;
        let id = format!("m{index}");
        book.processes.push(process(RoleName::Master, id, addr, directory.path()));
    }
    book.refresh_endpoints();
    let peer = |(index, process): (usize, &Process)| Peer {
        raft_id: index as u64 + 1,
        id: process.id.clone(),
        addr: process.addr,
    };
    let peers: Vec<Peer> = book.processes.iter().enumerate().map(peer).collect();
    for own in &peers {
        let mut master = master(env, directory, ports, own, cluster)?;
        master.namespace_partitions = shape.namespaces;
        master.stream_partitions = shape.streams;
        master.peers = peers.clone();
        directory.write_config(&directory.path().join(&own.id), RoleName::Master, &master)?;
    }
    for index in 1..=shape.chunkservers {
        let id = format!("cs{index}");
        let made = chunkserver(env, directory, ports, &book, id, shape.disks)?;
        book.processes.push(made);
    }
    let counts = [
        (RoleName::BlockManager, "bm", shape.block_managers),
        (RoleName::BlockServer, "bs", shape.block_servers),
        (RoleName::Frontend, "f", shape.frontends),
    ];
    for (role, prefix, count) in counts {
        for index in 1..=count {
            let id = format!("{prefix}{index}");
            let mut made = block_role(env, directory, ports, &book, &shape.nearby, (role, id))?;
            if role == RoleName::Frontend {
                shape.access.apply(directory, &mut made)?;
            }
            book.processes.push(made);
        }
    }
    let counts = [
        (RoleName::ObjectManager, "om", shape.object_managers),
        (RoleName::ObjectServer, "os", shape.object_servers),
    ];
    for (role, prefix, count) in counts {
        for index in 1..=count {
            let id = format!("{prefix}{index}");
            let what = ((role, id), &shape.s3);
            let made = object_role(env, directory, ports, &book, what)?;
            book.processes.push(made);
        }
    }
    let shared = match shape.s3.s3_listen.filter(|addr| addr.port() != 0) {
        None if shape.gateways > 0 => Some(ports.take_local(env)?),
        given => given,
    };
    for index in 1..=shape.gateways {
        let id = format!("gw{index}");
        let made = gateway(env, directory, ports, &book, ((id, None, shared), &shape.s3))?;
        book.processes.push(made);
    }
    book.refresh_endpoints();
    Ok(book)
}

/// A block manager, a block server and a front end, as `craton up` has them.
pub fn block_roles(
    env: &Env,
    directory: &Directory,
    ports: &mut Reserved,
    book: &mut ClusterFile,
    nearby: &Nearby,
) -> Result<(), Failure> {
    let roles = [
        (RoleName::BlockManager, "bm1"),
        (RoleName::BlockServer, "bs1"),
        (RoleName::Frontend, "f1"),
    ];
    for (role, id) in roles {
        if !book.processes.iter().any(|process| process.role == role) {
            let made = block_role(env, directory, ports, book, nearby, (role, id.to_owned()))?;
            book.processes.push(made);
        }
    }
    book.refresh_endpoints();
    Ok(())
}

/// Writes the file of a role of the block service.
pub fn block_role(
    env: &Env,
    directory: &Directory,
    ports: &mut Reserved,
    book: &ClusterFile,
    nearby: &Nearby,
    (role, id): (RoleName, String),
) -> Result<Process, Failure> {
    let addr = match role {
        RoleName::Frontend if nearby.no_nbd_tcp => SocketAddr::from(([127, 0, 0, 1], 0)),
        RoleName::Frontend => ports.take_local(env)?,
        _ => ports.take(env)?,
    };
    let made = process(role, id, addr, directory.path());
    let servers = book.processes.iter().filter(|one| one.role == RoleName::Chunkserver).count();
    let masters: Vec<String> =
        book.endpoints.masters.iter().map(|addr| format!("\"{addr}\"")).collect();
    let mut text = format!("id = {:?}\nmasters = [{}]\n", made.id, masters.join(","));
    match role {
        RoleName::Frontend if nearby.no_nbd_tcp => {}
        RoleName::Frontend => text.push_str(&format!("nbd = \"{addr}\"\n")),
        _ => text.push_str(&format!("listen = \"{addr}\"\n")),
    }
    if role == RoleName::BlockManager {
        text.push_str(&format!("copies = {}\n", servers.clamp(1, 3)));
    }
    let key_file = directory.key()?.map(|_| directory.key_path());
    let metrics = Some(ports.take_local(env)?);
    let log = logging(&made.dir);
    let bad = |error: toml::de::Error| Failure::failed(error.to_string());
    match role {
        RoleName::BlockManager => {
            let read: BlockManager = toml::from_str(&text).map_err(bad)?;
            let config = BlockManager { key_file, metrics, log, ..read };
            directory.write_config(&made.dir, role, &config)?;
        }
        RoleName::BlockServer => {
            let read: BlockServer = toml::from_str(&text).map_err(bad)?;
            let config = BlockServer { key_file, metrics, log, ..read };
            directory.write_config(&made.dir, role, &config)?;
        }
        RoleName::Frontend => {
            let read: Frontend = toml::from_str(&text).map_err(bad)?;
            let nbd_group = nearby.nbd_group.clone();
            directory.make_sockets(nearby.group()?)?;
            // A directory deep down has no socket: its path must fit.
            let socket = directory.sockets().join(format!("{}.sock", made.id));
            let nbd_unix = Some(socket).filter(|path| config::fits_socket(path));
            let config = Frontend { key_file, nbd_unix, nbd_group, metrics, log, ..read };
            directory.write_config(&made.dir, role, &config)?;
        }
        RoleName::Master
        | RoleName::Chunkserver
        | RoleName::ObjectManager
        | RoleName::ObjectServer
        | RoleName::Gateway => {
            unreachable!("these have files of their own kind")
        }
    }
    Ok(made)
}

/// Lines of a role of the object service: ID, masters, copies.
fn object_text(book: &ClusterFile, id: &str) -> String {
    let servers = book.processes.iter().filter(|one| one.role == RoleName::Chunkserver).count();
    let masters: Vec<String> =
        book.endpoints.masters.iter().map(|addr| format!("\"{addr}\"")).collect();
    format!("id = {id:?}\nmasters = [{}]\ncopies = {}\n", masters.join(","), servers.clamp(1, 3))
}

fn read_text<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, Failure> {
    toml::from_str(text).map_err(|error| Failure::failed(error.to_string()))
}

/// Writes the files of an object manager or of an object server.
pub fn object_role(
    env: &Env,
    directory: &Directory,
    ports: &mut Reserved,
    book: &ClusterFile,
    ((role, id), s3): ((RoleName, String), &S3Access),
) -> Result<Process, Failure> {
    let addr = ports.take(env)?;
    let made = process(role, id, addr, directory.path());
    let text = object_text(book, &made.id) + &format!("listen = \"{addr}\"\n");
    let (key_file, log) = (directory.key()?.map(|_| directory.key_path()), logging(&made.dir));
    let metrics = Some(ports.take_local(env)?);
    if role == RoleName::ObjectManager {
        let config = ObjectManager { key_file, metrics, log, ..read_text(&text)? };
        directory.write_config(&made.dir, role, &config)?;
    } else {
        let mut config = ObjectServer { key_file, metrics, log, ..read_text(&text)? };
        if let Some(day_ms) = lifecycle_day_ms(book, s3)? {
            config.lifecycle_day_ms = day_ms;
        }
        directory.write_config(&made.dir, role, &config)?;
    }
    Ok(made)
}

/// The length of a day of lifecycle that a cluster has, or else is to have; none for the default.
fn lifecycle_day_ms(book: &ClusterFile, s3: &S3Access) -> Result<Option<u64>, Failure> {
    for one in &book.processes {
        let path = config_path(&one.dir, one.role);
        match one.role {
            RoleName::ObjectServer => {
                return Ok(Some(config::read::<ObjectServer>(&path)?.lifecycle_day_ms));
            }
            RoleName::Gateway => {
                return Ok(Some(config::read::<Gateway>(&path)?.lifecycle_day_ms));
            }
            _ => {}
        }
    }
    Ok(s3.lifecycle_day.map(|day| day.as_millis() as u64))
}

/// The address that the gateways of a cluster share, if they do.
pub fn shared_of(book: &ClusterFile) -> Result<Option<SocketAddr>, Failure> {
    let gateway = book.processes.iter().find(|one| one.role == RoleName::Gateway);
    let Some(gateway) = gateway else { return Ok(None) };
    Ok(config::read::<Gateway>(&config_path(&gateway.dir, gateway.role))?.shared)
}

/// ID of a gateway, its own address and the one that it shares.
type GatewayAt = (String, Option<SocketAddr>, Option<SocketAddr>);

/// Writes the files of a gateway, and, with the first one, the keys that wrap secrets: they are never
/// made again.
pub fn gateway(
    env: &Env,
    directory: &Directory,
    ports: &mut Reserved,
    book: &ClusterFile,
    ((id, listen, shared), s3): (GatewayAt, &S3Access),
) -> Result<Process, Failure> {
    let addr = match listen.filter(|addr| addr.port() != 0) {
        Some(addr) => addr,
        None => ports.take_local(env)?,
    };
    let made = process(RoleName::Gateway, id, addr, directory.path());
    let text = object_text(book, &made.id) + &format!("listen = \"{addr}\"\ns3_keys = \"\"\n");
    let mut config = Gateway {
        key_file: directory.key()?.map(|_| directory.key_path()),
        s3_keys: directory.s3_keys(),
        shared,
        metrics: Some(ports.take_local(env)?),
        log: logging(&made.dir),
        ..read_text(&text)?
    };
    let first = book.processes.iter().find(|one| one.role == RoleName::Gateway);
    match first {
        None => {
            s3.apply(&mut config)?;
            if let Some(day_ms) = lifecycle_day_ms(book, s3)? {
                config.lifecycle_day_ms = day_ms;
            }
        }
        // All of them are alike.
        Some(first) => {
            let first: Gateway = config::read(&config_path(&first.dir, first.role))?;
            (config.tls, config.plain, config.allow_v2) = (first.tls, first.plain, first.allow_v2);
            (config.domains, config.region) = (first.domains, first.region);
            (config.defaults, config.access_log) = (first.defaults, first.access_log);
            config.lifecycle_day_ms = first.lifecycle_day_ms;
        }
    }
    let is_first = first.is_none();
    if is_first && !config.s3_keys.exists() {
        let mut random = [0; 32];
        env.fill_secret(&mut random);
        KeyFile::create(&config.s3_keys, random)
            .map_err(|error| Failure::setup(error.to_string()))?;
    }
    directory.write_config(&made.dir, RoleName::Gateway, &config)?;
    Ok(made)
}

/// The object service of `craton up`: an object manager, an object server and a gateway, where there are
/// none.
pub fn objects(
    env: &Env,
    directory: &Directory,
    ports: &mut Reserved,
    book: &mut ClusterFile,
    s3: &S3Access,
) -> Result<(), Failure> {
    let has = |book: &ClusterFile, role| book.processes.iter().any(|one| one.role == role);
    for (role, id) in [(RoleName::ObjectManager, "om1"), (RoleName::ObjectServer, "os1")] {
        if !has(book, role) {
            let what = ((role, id.to_owned()), s3);
            let made = object_role(env, directory, ports, book, what)?;
            book.processes.push(made);
        }
    }
    if !has(book, RoleName::Gateway) {
        let at = ("gw1".to_owned(), s3.s3_listen, None);
        let made = gateway(env, directory, ports, book, (at, s3))?;
        book.processes.push(made);
    }
    book.refresh_endpoints();
    Ok(())
}

/// Access of this machine's programs to the front ends of a cluster.
pub fn nearby_of(book: &ClusterFile) -> Result<Nearby, Failure> {
    let frontend = book.processes.iter().find(|one| one.role == RoleName::Frontend);
    let Some(frontend) = frontend else { return Ok(Nearby::default()) };
    let config: Frontend = config::read(&config_path(&frontend.dir, frontend.role))?;
    Ok(Nearby { no_nbd_tcp: config.nbd.is_none(), nbd_group: config.nbd_group })
}

/// The configuration of a master, not yet with partitions and peers.
pub fn master(
    env: &Env,
    directory: &Directory,
    ports: &mut Reserved,
    own: &Peer,
    cluster: ClusterId,
) -> Result<Master, Failure> {
    let dir = directory.path().join(&own.id);
    let text = format!(
        "id = {:?}\nraft_id = {}\ncluster = \"{cluster}\"\nlisten = \"{}\"\ndata_dir = \"\"",
        own.id, own.raft_id, own.addr
    );
    let config: Result<Master, _> = toml::from_str(&text);
    let mut config = config.map_err(|error| Failure::failed(error.to_string()))?;
    config.data_dir = dir.join("data");
    config.key_file = directory.key()?.map(|_| directory.key_path());
    config.metrics = Some(ports.take_local(env)?);
    config.log = logging(&dir);
    Ok(config)
}

/// Writes the files of a chunkserver.
pub fn chunkserver(
    env: &Env,
    directory: &Directory,
    ports: &mut Reserved,
    book: &ClusterFile,
    id: String,
    disks: u16,
) -> Result<Process, Failure> {
    // Of so many executors its disks are of use ('cores'); each has a port.
    let addr = ports.take_run(env, disks.max(1))?;
    let made = process(RoleName::Chunkserver, id, addr, directory.path());
    let store = |index: u16| match disks {
        1 => made.dir.join("store"),
        _ => made.dir.join(format!("store{}", index + 1)),
    };
    let stores: Vec<Store> = (0..disks).map(|index| Store::small_files(store(index))).collect();
    // They are formatted next, before the chunkserver is on the list: never again after that.
    for store in &stores {
        std::fs::create_dir_all(&store.path).map_err(|error| io("make", &store.path, &error))?;
    }
    let config = Chunkserver {
        id: made.id.clone(),
        cluster: None,
        listen: addr,
        masters: book.endpoints.masters.clone(),
        domain: None,
        key_file: directory.key()?.map(|_| directory.key_path()),
        metrics: Some(ports.take_local(env)?),
        heartbeat_ms: 250,
        scrub_mib_per_second: 8,
        memory_mib: 512,
        cores: 1,
        log: logging(&made.dir),
        stores,
    };
    directory.write_config(&made.dir, RoleName::Chunkserver, &config)?;
    Ok(made)
}
