//! The object service of `craton up`: its manager, its server, its gateway, and the key of its administrator.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use base::ClusterId;
use metrics::Exposition;
use object_gateway::{Gateway, GatewayConfig, KeyFile, Keyring, Tls};
use object_index::{Local, Service, ServiceHandle};
use object_proto::{
    BucketEncryption, BucketSettings, Error, LifecycleDay, NewKey, Ownership, PublicAccess, User,
    UserChange, UserId,
};
use roles::config::{self, BucketDefaults};
use roles::object::{self, GatewayRole, ManagerRole, ServerRole};
use runtime::{Class, Duration, Env, Handle};
use serde::{Deserialize, Serialize};

use super::BUILD;
use crate::cluster::{read_tls, read_tls_files, replace_file, tls_files};
use crate::exit::{Failure, io};
use crate::log;

/// Name of the file with the administrator's access key, in the cluster's directory.
pub const ACCESS: &str = "s3.json";
/// Name of the administrator.
const ADMIN: &str = "admin";
/// Characters of access keys and of their secrets, as S3's have.
const KEY_CHARS: usize = 20;
const SECRET_CHARS: usize = 40;
/// Between two looks whether the manager leads.
const PAUSE: Duration = Duration::from_millis(10);
/// Between two looks for another certificate.
const CERTIFICATE_LOOK: Duration = Duration::from_secs(10);
/// For the question which keys are in use: managers of a cluster that was just started lead by then.
const KEYS_TIME: Duration = Duration::from_secs(5);
/// Bytes of the file at most.
const FILE_MAX: u64 = 64 << 10;

/// How clients reach S3: the content of `s3.json`.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub struct Access {
    /// `http://ADDRESS`, or `https://DOMAIN:PORT`.
    pub endpoint: String,
    /// The region.
    pub region: String,
    /// The administrator's access key.
    pub access_key: String,
    /// Its secret.
    pub secret_key: String,
}

/// A running object service.
pub struct Objects {
    manager: ManagerRole,
    server: ServerRole,
    role: GatewayRole,
    gateway: Gateway,
    /// How its administrator reaches it.
    pub access: Access,
    /// The administrator's key was made by this start.
    pub is_new: bool,
}

impl Objects {
    /// Ends the service: requests that are under way first.
    pub async fn stop(self, env: &Env) {
        stop_http(env, self.gateway).await;
        self.role.stop();
        self.server.stop().await;
        self.manager.stop().await;
    }
}

/// Ends a gateway's HTTP: requests that are under way first.
pub async fn stop_http(env: &Env, gateway: Gateway) {
    // It waits for its threads.
    let _ = env.blocking("stop s3", move || gateway.stop()).await;
}

/// The keys of a gateway, which wrap secrets and keys of objects.
pub fn keys(config: &config::Gateway) -> Result<Arc<Keyring>, Failure> {
    let keys = Keyring::load(&config.s3_keys).map_err(|error| {
        Failure::setup(format!("{error} (no other file of keys opens what this one has wrapped)"))
    })?;
    Ok(Arc::new(keys))
}

/// The key of a file that wraps secrets.
pub fn service_key(keys: &KeyFile) -> String {
    keys.wrapping(None).expect("a key file has a key of the service").to_string()
}

/// Checks that the key file has all keys that have wrapped something: without one, objects or access
/// keys could not be used. While managers are silent it is not known, and what lacks its key is refused
/// as it is asked for.
pub async fn check_keys(
    env: &Env,
    (keys, path): (&Keyring, &Path),
    service: &Service,
) -> Result<(), Failure> {
    let in_use = match env.timeout(KEYS_TIME, service.keys_in_use()).await {
        Ok(Ok(in_use)) => in_use,
        Ok(Err(error)) => {
            tracing::warn!(%error, "it is not known which keys are in use: the key file is not checked");
            return Ok(());
        }
        Err(_) => {
            tracing::warn!("no object manager answers: the key file is not checked");
            return Ok(());
        }
    };
    match keys.lacks(in_use.iter().map(String::as_str)) {
        None => Ok(()),
        Some(key) => Err(Failure::setup(format!(
            "key file {} lacks key {key}, which has wrapped keys of objects or secrets: copy the file \
             of a gateway that has it, or restore a copy that 'craton kms export' has made",
            path.display()
        ))),
    }
}

/// Starts a gateway's HTTP.
pub fn serve_http(
    env: &Env,
    config: &config::Gateway,
    keys: Arc<Keyring>,
    service: &Service,
) -> Result<Gateway, Failure> {
    let tls = config.tls.as_deref().map(read_tls).transpose()?;
    if let (Some(tls), Some(dir)) = (&tls, &config.tls) {
        let (watching, dir) = (tls.clone(), dir.clone());
        env.spawn(Class::Background, "gateway: certificate", watch(env.clone(), watching, dir));
    }
    let new_buckets = match config.defaults {
        BucketDefaults::Aws => BucketSettings::default(),
        BucketDefaults::Classic => BucketSettings {
            public_access: PublicAccess::all(false),
            ownership: Ownership::Unset,
            encryption: BucketEncryption { default: None, blocks_customer_keys: false },
            ..BucketSettings::default()
        },
    };
    let access_log = match (config.access_log, &config.log.dir) {
        (true, Some(dir)) => Some(log::start_access(dir, &config.log, env.tracer().registry())?),
        _ => None,
    };
    let settings = GatewayConfig {
        listen: [Some(config.listen), config.shared].into_iter().flatten().collect(),
        share_ports: config.shared.is_some(),
        domains: config.domains.clone(),
        region: config.region.clone(),
        connections_max: config.connections as usize,
        memory_bytes: config::mib(config.bodies_mib),
        allow_v2: config.allow_v2,
        tls,
        new_buckets,
        registry: env.tracer().registry().clone(),
        access_log,
        lifecycle_day: LifecycleDay::from_us(config.lifecycle_day_ms * 1000),
        request_nonce: env.random_u64(),
        ..GatewayConfig::default()
    };
    let backend = Arc::new(ServiceHandle::new(service));
    Gateway::start(settings, backend, keys).map_err(|error| Failure::setup(error.to_string()))
}

/// What a gateway's HTTP shows beside its counters.
pub fn http_metrics(gateway: &Gateway) -> impl Fn(&mut Exposition) + 'static {
    let (connections, load) = (gateway.connection_counter(), gateway.memory_counter());
    move |text| {
        let help = "Connections of clients that are open.";
        text.gauges("craton_s3_connections", help).sample(&[], f64::from(connections()));
        let (used, budget) = load();
        let help = "Bytes of memory that bodies of requests hold.";
        text.gauges("craton_s3_body_memory_bytes", help).sample(&[], used as f64);
        let help = "What they may hold together: bodies_mib.";
        text.gauges("craton_s3_body_memory_budget_bytes", help).sample(&[], budget as f64);
    }
}

/// Shows clients a certificate that was replaced. For ever.
async fn watch(env: Env, tls: Tls, dir: PathBuf) {
    let mut shown = tls_state(&dir);
    loop {
        env.sleep(CERTIFICATE_LOOK).await;
        let (looked, before) = (dir.clone(), shown.clone());
        // A folder may be on a disk, or a server, that does not answer.
        let look = env.blocking("look at certificate", move || {
            let now = tls_state(&looked);
            let files = (now != before).then(|| read_tls_files(&looked));
            (now, files)
        });
        let (now, files) = look.await;
        let Some(files) = files else { continue };
        let replaced = files.and_then(|[certificate, key]| {
            tls.replace(&certificate, &key).map_err(|error| Failure::setup(error.to_string()))
        });
        let dir = dir.display();
        match replaced {
            Ok(()) => tracing::info!(%dir, "clients are shown another certificate of S3"),
            // One file is there before the other.
            Err(failure) => {
                tracing::warn!(%dir, %failure, "the certificate of S3 stays what it was");
            }
        }
        shown = now;
    }
}

/// Sizes and times of a certificate and its key; none of what is not there.
fn tls_state(dir: &Path) -> Vec<Option<(u64, SystemTime)>> {
    let facts = tls_files(dir).map(|path| {
        let facts = std::fs::metadata(path).ok()?;
        Some((facts.len(), facts.modified().ok()?))
    });
    facts.to_vec()
}

/// Starts the service of a cluster's directory; ends when objects are served.
pub async fn start(
    env: &Env,
    handle: &Handle,
    dir: &Path,
    (manager_config, server_config, config): &(
        config::ObjectManager,
        config::ObjectServer,
        config::Gateway,
    ),
) -> Result<Objects, Failure> {
    let keys = keys(config)?;
    let manager = object::start_manager(env, manager_config).await?;
    manager.show(manager_config, BUILD, handle.clone()).await?;
    let server = object::start_server(env, server_config, Some(manager.manager())).await?;
    server.show(server_config, BUILD, handle.clone()).await?;
    while !manager.manager().leads() {
        env.sleep(PAUSE).await;
    }
    let local =
        Local { manager: Some(manager.manager().clone()), server: Some(server.server().clone()) };
    let role = object::start_gateway(env, config, local).await?;
    let (service, cluster) = (role.service(), role.cluster());
    let endpoint = config.endpoint(config.listen);
    let asked = (endpoint, config.region.clone());
    check_keys(env, (&keys, &config.s3_keys), service).await?;
    let file = keys.file();
    let (access, is_new) = administrator(env, dir, asked, (service, cluster, &file)).await?;
    let gateway = serve_http(env, config, keys, role.service())?;
    role.show(config, BUILD, handle.clone(), http_metrics(&gateway)).await?;
    let (own, ready) = ((config.id.as_str(), config.listen), gateway.ready());
    gateway.set_ready(true);
    role.announce(own, gateway.connection_counter(), move |is_ready| ready.set(is_ready));
    Ok(Objects { manager, server, role, gateway, access, is_new })
}

/// The administrator's access. It is written before the user is made: a start that was broken off
/// between the two goes on with the same key.
pub async fn administrator(
    env: &Env,
    dir: &Path,
    (endpoint, region): (String, String),
    (service, cluster, keys): (&Service, ClusterId, &KeyFile),
) -> Result<(Access, bool), Failure> {
    let path = dir.join(ACCESS);
    let known = read(&path)?;
    let mut access = known.unwrap_or_else(|| Access {
        endpoint: endpoint.clone(),
        region: region.clone(),
        access_key: random_key(env),
        secret_key: random_secret(env),
    });
    access.endpoint = endpoint;
    access.region = region;
    let mut text = serde_json::to_string_pretty(&access)
        .map_err(|error| Failure::failed(format!("cannot write JSON: {error}")))?;
    text.push('\n');
    replace_file(&path, text.as_bytes(), 0o600)?;
    let refused = |error: Error| Failure::failed(format!("S3's administrator: {error}"));
    if service.access_key(&access.access_key).await.map_err(refused)?.is_some() {
        return Ok((access, false));
    }
    let mut nonce = [0; 12];
    env.fill_secret(&mut nonce);
    service.use_key(service_key(keys)).await.map_err(refused)?;
    let user = User {
        // The same behind a loss of the file: it gets another key of the same user.
        id: UserId::new(format!("{:064x}", cluster.get())),
        name: ADMIN.to_owned(),
        display_name: ADMIN.to_owned(),
        admin: true,
        ..User::default()
    };
    let key = Box::new(NewKey {
        id: access.access_key.clone(),
        wrapped_secret: keys.wrap(&access.access_key, &access.secret_key, nonce),
        expires_us: None,
        policy: None,
    });
    let change = match service.user(ADMIN).await {
        Ok(known) => UserChange::AddKey { user: known.id, key },
        Err(Error::NoSuchUser) => UserChange::Create { user: Box::new(user), key },
        Err(error) => return Err(refused(error)),
    };
    service.change_user(change).await.map_err(refused)?;
    Ok((access, true))
}

/// How S3 is reached; with `is_new` also with which key.
pub fn text(dir: &Path, access: &Access, is_new: bool) -> String {
    let mut text = format!("S3: {}\n", access.endpoint);
    if is_new {
        text += &format!(
            "access key of 'admin': {} (its secret is in {1}/s3.json)\n\
             keep a copy of {1}/s3-keys ('craton kms export FILE'): without it no access key of S3 \
             works, and no encrypted object can be read\n",
            access.access_key,
            dir.display()
        );
    }
    text
}

/// Reads the administrator's access of a cluster's directory; none if there is no file.
pub fn read(path: &Path) -> Result<Option<Access>, Failure> {
    let len = match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        facts => facts.map_err(|error| io("read", path, &error))?.len(),
    };
    let damaged = |what: &str| {
        Failure::setup(format!(
            "{} is damaged ({what}): restore it; it has the administrator's key of S3",
            path.display()
        ))
    };
    if len > FILE_MAX {
        return Err(damaged("it is too long"));
    }
    let text = std::fs::read_to_string(path).map_err(|error| io("read", path, &error))?;
    serde_json::from_str(&text).map(Some).map_err(|error| damaged(&error.to_string()))
}

/// The public part of a new access key.
pub fn random_key(env: &Env) -> String {
    let text = random_text(env, b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", KEY_CHARS - 2);
    format!("CR{text}")
}

/// The secret of a new access key.
pub fn random_secret(env: &Env) -> String {
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    random_text(env, alphabet, SECRET_CHARS)
}

/// Random characters of an alphabet whose length is a power of two.
fn random_text(env: &Env, alphabet: &[u8], count: usize) -> String {
    debug_assert!(alphabet.len().is_power_of_two());
    let mut raw = vec![0; count];
    env.fill_secret(&mut raw);
    raw.iter().map(|byte| alphabet[usize::from(*byte) % alphabet.len()] as char).collect()
}
