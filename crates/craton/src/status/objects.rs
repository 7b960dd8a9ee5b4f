//! The object service in `craton status`.

use base::Kind;
use client::Client;
use object_index::{Local, SERVICE_DIR};
use object_proto::{PeerRole, PeerState, PeerStatus, ServerStatus, ServiceStatus};
use serde::Serialize;

use crate::exit::Done;
use crate::output::{natural, print_line, print_table, table};

/// Wait for the masters to say whether there was an object service.
const LOOK: std::time::Duration = std::time::Duration::from_millis(500);

/// The object service.
#[derive(Serialize, Clone, Debug)]
pub struct Objects {
    /// `up`, `down` when no object manager leads, `none` in a cluster that never had one, `unknown` when the
    /// masters do not say.
    pub object_service: &'static str,
    /// Object managers, by name, as the leading one has heard of them; none when none leads.
    pub object_managers: Vec<ObjectManager>,
    /// Object servers, by name.
    pub object_servers: Vec<ObjectServer>,
    /// Gateways, by name.
    pub gateways: Vec<Gateway>,
    /// Ranges of the index.
    pub object_ranges: Ranges,
    /// Why ranges are not served, where that is known.
    #[serde(skip)]
    causes: Vec<String>,
}

/// An object manager.
#[derive(Serialize, Clone, Debug)]
pub struct ObjectManager {
    /// Its ID.
    pub id: String,
    /// Its address.
    pub addr: String,
    /// `up` or `down`.
    pub state: &'static str,
    /// True for the one that leads.
    pub leader: bool,
}

/// An object server.
#[derive(Serialize, Clone, Debug)]
pub struct ObjectServer {
    /// Its ID.
    pub id: String,
    /// Its address.
    pub addr: String,
    /// `up`, `unreached` while its heartbeats come and it answers no ping, or `down`.
    pub state: &'static str,
    /// Ranges that it owns.
    pub ranges: u32,
    /// Requests a second.
    pub ops_s: u64,
    /// Bytes a second of bodies that it took.
    pub bytes_per_second: u64,
}

/// A gateway.
#[derive(Serialize, Clone, Debug)]
pub struct Gateway {
    /// Its ID.
    pub id: String,
    /// Its own address.
    pub addr: String,
    /// `up` or `down`.
    pub state: &'static str,
    /// Open connections.
    pub connections: u32,
}

/// Ranges of the index.
#[derive(Serialize, Clone, Copy, Debug, Default)]
pub struct Ranges {
    /// All.
    pub total: usize,
    /// Those that no server serves now.
    pub unserved: usize,
    /// Those that are being split.
    pub splitting: usize,
}

fn state(state: PeerState) -> &'static str {
    match state {
        PeerState::Up => "up",
        PeerState::Down => "down",
        PeerState::Unreached => "unreached",
    }
}

impl Objects {
    fn without(object_service: &'static str) -> Objects {
        Objects {
            object_service,
            object_managers: Vec::new(),
            object_servers: Vec::new(),
            gateways: Vec::new(),
            object_ranges: Ranges::default(),
            causes: Vec::new(),
        }
    }

    /// Asks the leading manager.
    pub async fn gather(client: &Client) -> Objects {
        let service = roles::object::service(client, 1, Local::default());
        if let Ok(status) = service.status().await {
            return Objects::of(status);
        }
        let look = client.lookup(SERVICE_DIR);
        Objects::without(match client.env().timeout(LOOK, look).await {
            Ok(Ok(_)) => "down",
            Ok(Err(error)) if error.kind() == Kind::NotFound => "none",
            Ok(Err(_)) | Err(_) => "unknown",
        })
    }

    fn of(status: ServiceStatus) -> Objects {
        let manager = |it: &PeerStatus| ObjectManager {
            id: it.peer.name.clone(),
            addr: it.peer.addr.to_string(),
            state: state(it.state),
            leader: it.leads,
        };
        let gateway = |it: &PeerStatus| Gateway {
            id: it.peer.name.clone(),
            addr: it.peer.addr.to_string(),
            state: state(it.state),
            connections: it.peer.connections,
        };
        let server = |it: &ServerStatus| ObjectServer {
            id: it.name.clone(),
            addr: it.addr.to_string(),
            state: state(it.state),
            ranges: it.ranges,
            ops_s: it.requests,
            bytes_per_second: it.bytes,
        };
        let of_role = |role| status.peers.iter().filter(move |it| it.peer.role == role);
        let mut objects = Objects {
            object_managers: of_role(PeerRole::Manager).map(manager).collect(),
            gateways: of_role(PeerRole::Gateway).map(gateway).collect(),
            object_servers: status.servers.iter().map(server).collect(),
            object_ranges: Ranges {
                total: status.ranges.len(),
                unserved: status.ranges.iter().filter(|range| !range.served).count(),
                splitting: status.splitting as usize,
            },
            ..Objects::without("up")
        };
        let unserved = status.ranges.iter().filter(|range| !range.served);
        objects.causes = unserved.map(|it| format!("{}: {}", it.range, it.cause)).collect();
        objects.object_managers.sort_by(|a, b| natural(&a.id).cmp(&natural(&b.id)));
        objects.object_servers.sort_by(|a, b| natural(&a.id).cmp(&natural(&b.id)));
        objects.gateways.sort_by(|a, b| natural(&a.id).cmp(&natural(&b.id)));
        objects
    }

    /// Shows it, when there is one.
    pub fn print(&self) -> Done {
        match self.object_service {
            "up" => print_line("")?,
            "down" => {
                return print_line(
                    "\nobject service  down: no object manager leads; S3 waits for one",
                );
            }
            _ => return Ok(()),
        }
        let mut out = table(&["object service", "state", "address", "ranges", "does"]);
        let none = || "-".to_owned();
        for one in &self.object_managers {
            let does = if one.leader { "object manager, leads" } else { "object manager" };
            let (id, state, addr) = (one.id.clone(), one.state.to_owned(), one.addr.clone());
            out.add_row([id, state, addr, none(), does.to_owned()]);
        }
        for one in &self.object_servers {
            let (id, state, addr) = (one.id.clone(), one.state.to_owned(), one.addr.clone());
            let does = format!("object server, {} requests/s", one.ops_s);
            out.add_row([id, state, addr, one.ranges.to_string(), does]);
        }
        for one in &self.gateways {
            let (id, state, addr) = (one.id.clone(), one.state.to_owned(), one.addr.clone());
            let does = format!("gateway, {} connections", one.connections);
            out.add_row([id, state, addr, none(), does]);
        }
        print_table(out, &[3])?;
        for cause in &self.causes {
            print_line(&format!("not served: {cause}"))?;
        }
        Ok(())
    }
}
