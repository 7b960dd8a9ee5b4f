//! [`GatewayConfig`]: settings of a gateway.

use std::net::SocketAddr;
use std::time::Duration;

use metrics::Registry;
use object_proto::{BucketSettings, LifecycleDay};

use crate::access_log::AccessLog;
use crate::limits;
use crate::tls::Tls;

/// Settings of a gateway.
#[derive(Clone, Debug)]
pub struct GatewayConfig {
    /// Addresses to listen on; port 0 for any that is free.
    pub listen: Vec<SocketAddr>,
    /// Other processes may listen on the same ports (`SO_REUSEPORT`): each gets a share of the new
    /// connections.
    pub share_ports: bool,
    /// Threads that serve connections, named `s3-0` and so on.
    pub threads: usize,
    /// Domains below which a host's name is a bucket (`bucket.localhost`).
    pub domains: Vec<String>,
    /// Region, as clients see it. Requests are taken for any.
    pub region: String,
    /// Connections at once; further ones wait.
    pub connections_max: usize,
    /// Bytes of bodies in memory.
    pub memory_bytes: usize,
    /// Signatures of version 2 are taken. botocore presigns with them by default in `us-east-1` and
    /// other old regions. s3s does not verify those of requests for a bucket (`GET /bucket`) that
    /// botocore signs as `/bucket/`.
    pub allow_v2: bool,
    /// Number that request IDs begin at: random, so that gateways and their lives differ.
    pub request_nonce: u64,
    /// What connections are served over; plain HTTP for none.
    pub tls: Option<Tls>,
    /// Settings of buckets that are made through it, where their requests say nothing.
    pub new_buckets: BucketSettings,
    /// Requests are counted here.
    pub registry: Registry,
    /// And written there, each as it ends.
    pub access_log: Option<AccessLog>,
    /// Length of a day of lifecycle, the same as object servers have: it is in what answers say of rules.
    pub lifecycle_day: LifecycleDay,
    /// Time limits.
    pub times: Times,
}

/// Time limits of a gateway.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// See [`limits::HEAD_TIME`].
    pub head: Duration,
    /// See [`limits::IDLE_TIME`].
    pub idle: Duration,
    /// See [`limits::STALL_TIME`].
    pub stall: Duration,
    /// See [`limits::CLAIM_TIME`].
    pub claim: Duration,
    /// See [`limits::STOP_TIME`].
    pub stop: Duration,
}

impl Default for Times {
    fn default() -> Times {
        Times {
            head: limits::HEAD_TIME,
            idle: limits::IDLE_TIME,
            stall: limits::STALL_TIME,
            claim: limits::CLAIM_TIME,
            stop: limits::STOP_TIME,
        }
    }
}

impl Default for GatewayConfig {
    fn default() -> GatewayConfig {
        GatewayConfig {
            listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
            share_ports: false,
            threads: 1,
            domains: vec!["localhost".to_owned()],
            region: "us-east-1".to_owned(),
            connections_max: limits::CONNECTIONS_MAX,
            memory_bytes: limits::MEMORY_BYTES,
            allow_v2: false,
            request_nonce: 0,
            tls: None,
            new_buckets: BucketSettings::default(),
            registry: Registry::new(),
            access_log: None,
            lifecycle_day: LifecycleDay::default(),
            times: Times::default(),
        }
    }
}
