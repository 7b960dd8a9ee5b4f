//! The object service in one process: the owner of the objects, and the service that a gateway's HTTP
//! stands on. The HTTP is the process's to start: it runs on threads of its own.

use std::rc::Rc;

use base::ClusterId;
use futures_util::future::LocalBoxFuture;
use object_index::{ClientFiles, Files, Owner, Owners, Service, ServiceOptions};
use object_proto::{Error as ObjectError, Reply, Request};
use runtime::{Duration, Env};
use tenancy::Contest;
use transport::Endpoint;
use wire::control::Policy;

use crate::config;
use crate::error::Error;
use crate::home::Home;
use crate::seams::Seams;

/// A running gateway, without its HTTP.
#[derive(Clone)]
pub struct ObjectRole {
    owner: Owner,
    service: Service,
    endpoint: Endpoint,
    cluster: ClusterId,
}

impl ObjectRole {
    /// Buckets and objects.
    pub fn service(&self) -> &Service {
        &self.service
    }

    /// The cluster.
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// Owner of the objects, while this process has the lock.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Gives the objects up and ends.
    pub async fn stop(&self) {
        self.owner.stop().await;
        self.endpoint.close();
    }
}

/// The owner in the same process.
struct InProcess(Owner, Env);

impl Owners for InProcess {
    fn call(
        &self,
        request: Request,
        timeout: Duration,
    ) -> LocalBoxFuture<'_, Result<Reply, ObjectError>> {
        Box::pin(async move {
            let answered = self.1.timeout(timeout, self.0.handle(request)).await;
            answered.unwrap_or_else(|_| {
                Err(ObjectError::Unknown { cause: "the owner does not answer".to_owned() })
            })
        })
    }
}

/// Starts a gateway's owner and service.
pub async fn start(env: &Env, config: &config::Gateway) -> Result<ObjectRole, Error> {
    start_with(env, config, &Seams::none(), |_| ()).await
}

/// The same with seams; `tune` changes values that no configuration has.
pub async fn start_with(
    env: &Env,
    config: &config::Gateway,
    seams: &Seams,
    tune: impl FnOnce(&mut object_index::Config),
) -> Result<ObjectRole, Error> {
    let home = Home {
        role: "gateway",
        id: &config.id,
        cluster: config.cluster.as_deref(),
        key_file: config.key_file.as_deref(),
        masters: &config.masters,
        seams,
    };
    let endpoint = home.endpoint(env)?;
    let client = home.connect(env, &endpoint, client::Config::default()).await?;
    let lock_ttl = Duration::from_millis(config.lock_ms);
    let locks = home.connect_for_lock(env, &endpoint, lock_ttl).await?;
    let mut settings = object_index::Config { lock_ttl, ..object_index::Config::default() };
    tune(&mut settings);
    let bugs = settings.bugs;
    let contest =
        Contest::new(locks, object_index::LOCK, (&config.id, config.listen), settings.lock_ttl);
    let (policy, cluster) = (Policy::rep(config.copies), client.cluster());
    let files: Rc<dyn Files> = Rc::new(ClientFiles { client, policy });
    let owner = Owner::start(env, contest, files.clone(), settings);
    let owners = Rc::new(InProcess(owner.clone(), env.clone()));
    let options = ServiceOptions { bugs, ..ServiceOptions::default() };
    let service = Service::new(env, owners, files, options);
    Ok(ObjectRole { owner, service, endpoint, cluster })
}
