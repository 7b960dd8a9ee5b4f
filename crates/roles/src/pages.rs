//! Pages of processes with a client of the core: metrics, health, and what they see of disks.

use std::net::SocketAddr;
use std::rc::Rc;

use client::Client;
use metrics::Exposition;
use runtime::{Env, Handle};
use transport::Endpoint;

use crate::error::Error;
use crate::http::{Page, Pages};
use crate::{Build, http, probe, seen};

/// Serves the metrics of a process: its role, ID and executor, and its `own`; and what it sees of
/// disks.
pub async fn show(
    env: &Env,
    addr: SocketAddr,
    (role, id, build, handle): (&'static str, String, Build, Handle),
    (endpoint, client): (&Endpoint, &Client),
    own: impl Fn(&mut Exposition) + 'static,
) -> Result<(), Error> {
    let (shown, endpoint, client) = (env.clone(), endpoint.clone(), client.clone());
    let pages: Pages = Rc::new(move |path| {
        if path == "/seen" {
            return Some(Page { kind: "application/json", text: seen::page(&id, &client) });
        }
        probe::page(path, || {
            let mut text = Exposition::new();
            probe::process(&mut text, (role, &id, build), &[handle.stats()]);
            probe::operations(&mut text, &shown);
            probe::links(&mut text, &endpoint.stats());
            own(&mut text);
            text.finish()
        })
    });
    http::serve(env, addr, pages).await.map(drop)
}
