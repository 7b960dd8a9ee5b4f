//! Operators' orders about chunkservers (`protocols-tail.md` 10.15): each is checked against what stream
//! partitions have there, by a linearizable look at all of them, and refused by name where redundancy
//! would be lower for it. Then it is committed in the cluster group, and holds whichever master leads.

use std::time::Duration;

use base::{Kind, ServerId};
use futures_util::future::join_all;
use transport::{Priority, Request, Service, Token};
use wire::control::{
    ClusterReply, ClusterRequest, ControlError, ControlReply, ControlRequest, Holdings, Losses,
    MasterInfo, ServerOrder,
};

use super::Master;
use crate::cluster::{Order, Refusal, Standing};
use crate::planted::{Planted, planted};
use master_stream::ClusterSource;
use master_stream::placement::Lack;

/// Time for another master's look at the partitions that it leads: 2 ms for each 2048 chunks, and what
/// else it has to do.
const LOOK_TIMEOUT: Duration = Duration::from_secs(15);
/// Time for a master to apply the orders that the asker has.
const CATCH_UP: Duration = Duration::from_secs(1);
/// Pause between two checks of it.
const CATCH_UP_PAUSE: Duration = Duration::from_millis(5);
/// Files that an error names.
const FILES_NAMED: usize = 4;
/// Copies of which the places must stay when a server goes under maintenance: one to read, and one
/// beside it.
const MAINTAINED_COPIES: u8 = 2;

impl Master {
    /// Checks an order, and gives it. Answers what the server holds; nothing for an order that needs no
    /// look.
    pub(super) async fn give_order(
        &self,
        name: &str,
        order: ServerOrder,
        dry_run: bool,
    ) -> Result<ClusterReply, ControlError> {
        let cluster = &self.0.cluster;
        cluster.host().read_barrier().await?;
        // One at a time: two that are fine alone may not be so together.
        let Some(_turn) = cluster.try_order_turn() else {
            let message = "another order is under way: retry when it has ended";
            return Err(ControlError::new(Kind::Retry, message));
        };
        let found = cluster.host().read(|state| {
            let (id, _) = state.server_named(name)?;
            Some((id, state.standing(id)))
        });
        let Some((id, standing)) = found else {
            let message = format!("no chunkserver '{name}': 'craton status' lists them");
            return Err(ControlError::new(Kind::Invalid, message));
        };
        let held = match order {
            ServerOrder::Drain | ServerOrder::Maintain { .. } => self.held_everywhere(id).await?,
            ServerOrder::Decommission => {
                return self.decommission((name, id), standing, None, dry_run).await;
            }
            ServerOrder::DecommissionLosing(losses) => {
                return self.decommission((name, id), standing, Some(losses), dry_run).await;
            }
            ServerOrder::ListLosses => {
                return Ok(ClusterReply::Held(self.held_everywhere(id).await?));
            }
            ServerOrder::CancelDrain | ServerOrder::EndMaintenance => Holdings::none(id),
        };
        let order = match order {
            ServerOrder::Drain => {
                if standing.drains.is_none() {
                    self.check_drain(name, id, held.widest)?;
                }
                Order::Drain(id)
            }
            ServerOrder::CancelDrain => Order::CancelDrain(id),
            ServerOrder::Maintain { for_ms } => {
                self.check_maintenance(name, id, held.widest)?;
                let now_ms = self.0.env.unix_time().as_nanos() / 1_000_000;
                Order::Maintain(id, (now_ms + for_ms).div_ceil(1000))
            }
            ServerOrder::EndMaintenance => Order::Maintain(id, 0),
            ServerOrder::Decommission
            | ServerOrder::DecommissionLosing(_)
            | ServerOrder::ListLosses => unreachable!("answered above"),
        };
        if standing.decommissioned {
            let message = format!("'{name}': {}", Refusal::Decommissioned);
            return Err(ControlError::new(Kind::Invalid, message));
        }
        if !dry_run {
            cluster.order(order).await?;
        }
        Ok(ClusterReply::Held(held))
    }

    fn check_drain(&self, name: &str, id: ServerId, widest: u8) -> Result<(), ControlError> {
        // At least one place stays, also in a cluster without a file.
        let copies = widest.max(1);
        let view = self.0.cluster.view();
        let Some(lack) = view.lacks_without(id, copies) else { return Ok(()) };
        let unit = lack.unit;
        Err(ControlError::new(
            Kind::Invalid,
            format!(
                "chunkserver '{name}' is not drained: there are files with {copies} copies, which \
                 need as many {unit}, and without it {} stay{}. Add a chunkserver first, or end what \
                 keeps another out",
                lack.there,
                self.not_counted(&lack),
            ),
        ))
    }

    fn check_maintenance(&self, name: &str, id: ServerId, widest: u8) -> Result<(), ControlError> {
        let copies = widest.clamp(1, MAINTAINED_COPIES);
        let view = self.0.cluster.view();
        let Some(lack) = view.lacks_without_maintained(id, copies) else { return Ok(()) };
        let unit = lack.unit;
        Err(ControlError::new(
            Kind::Invalid,
            format!(
                "chunkserver '{name}' does not go under maintenance: {copies} {unit} must stay for \
                 what is written and read, and without it {} stay{}. End the maintenance of another \
                 ('craton maintenance ID --end'), or bring it back first",
                lack.there,
                self.not_counted(&lack),
            ),
        ))
    }

    /// Names of servers that do not count, and why.
    fn not_counted(&self, lack: &Lack) -> String {
        let view = self.0.cluster.view();
        let name = |&id: &ServerId| {
            let name = self.0.cluster.host().read(|state| {
                state.server(id).map_or_else(|| id.to_string(), |server| server.name.clone())
            });
            let why = match view.server(id) {
                Some(server) if server.draining => "drains",
                Some(server) if server.maintained => "is under maintenance",
                Some(server) if server.alive => "is not reached",
                _ => "does not answer",
            };
            format!("'{name}' {why}")
        };
        match lack.out.is_empty() {
            true => String::new(),
            false => {
                let mut named: Vec<_> = lack.out.iter().map(name).collect();
                named.sort();
                format!(" ({})", named.join(", "))
            }
        }
    }

    /// A server leaves for ever: it drains, and no partition has anything there. A second look, when it
    /// has left, finds what a partition whose leader changed may have placed. With `losing` it may have
    /// what is lost with it, if that is just what the operator has seen.
    async fn decommission(
        &self,
        (name, id): (&str, ServerId),
        standing: Standing,
        losing: Option<Losses>,
        dry_run: bool,
    ) -> Result<ClusterReply, ControlError> {
        let Some(drains) = standing.drains.filter(|_| !standing.decommissioned) else {
            let held = self.held_everywhere(id).await?;
            if standing.decommissioned {
                self.check_empty(name, &held, losing)?;
                return Ok(ClusterReply::Held(held));
            }
            let message = format!(
                "chunkserver '{name}' does not drain, and holds {}: 'craton drain {name}' has what it \
                 holds made elsewhere first",
                self.described(&held)
            );
            return Err(ControlError::new(Kind::Invalid, message));
        };
        let held = self.held_everywhere(id).await?;
        self.check_empty(name, &held, losing)?;
        if !dry_run {
            self.0.cluster.order(Order::Decommission(id, drains)).await?;
            self.0.env.mark("cluster: a chunkserver is decommissioned");
            self.check_empty(name, &self.held_everywhere(id).await?, losing)?;
        }
        Ok(ClusterReply::Held(held))
    }

    fn check_empty(
        &self,
        name: &str,
        held: &Holdings,
        losing: Option<Losses>,
    ) -> Result<(), ControlError> {
        if held.replicas == 0 || planted(Planted::DrainedTooSoon) {
            return Ok(());
        }
        let invalid = |message| Err(ControlError::new(Kind::Invalid, message));
        let holds = format!("chunkserver '{name}' still holds {}", self.described(held));
        let lost = held.lost.chunks;
        if held.open > 0 && lost > 0 {
            return invalid(format!(
                "{holds}; {} of them are of chunks that are written: their files are sealed first, by \
                 themselves or by 'craton fs seal --accept-loss'",
                held.open
            ));
        }
        if lost == 0 || held.lost_replicas < held.replicas {
            let also = match (lost, held.only) {
                (0, 0) => String::new(),
                (0, only) => format!(
                    "; {only} of them are the last good replica of a chunk, which would be lost"
                ),
                (lost, _) => format!("; {lost} chunks are lost without it"),
            };
            return invalid(format!(
                "{holds}{also}. Wait until it is drained: 'craton status' shows how far it is"
            ));
        }
        match losing {
            Some(losses) if losses == held.lost => Ok(()),
            Some(_) => invalid(format!(
                "{holds}; the {lost} chunks that are lost without it are others than those of the list. \
                 'craton decommission {name} --losses' lists them again"
            )),
            None => invalid(format!(
                "{holds}; it does not serve them, and chunks are lost without it: {lost}. Bring it back, or see 'craton decommission {name} --losses'"
            )),
        }
    }

    fn described(&self, held: &Holdings) -> String {
        let Holdings { replicas, bytes, open, files, .. } = held;
        let named: Vec<_> = files.iter().take(FILES_NAMED).map(ToString::to_string).collect();
        let of = match named.is_empty() {
            true => String::new(),
            false => format!(
                " (of files {}{})",
                named.join(", "),
                if files.len() > FILES_NAMED { ", ..." } else { "" }
            ),
        };
        let written =
            if *open > 0 { format!(", {open} of them being written") } else { String::new() };
        format!("{replicas} replicas with {bytes} bytes{written}{of}")
    }

    /// What the stream partitions that this master leads have on a server. Their leaders place nothing
    /// on it any more when it drains: this master has applied the order.
    pub(super) async fn held_here(
        &self,
        server: ServerId,
        orders: u64,
    ) -> Result<Holdings, ControlError> {
        let env = &self.0.env;
        let end = env.now() + CATCH_UP;
        while self.0.cluster.host().read(|state| state.orders().count) < orders {
            if env.now() >= end {
                let message = "this master has not applied the last orders yet: retry";
                return Err(ControlError::new(Kind::Retry, message));
            }
            env.sleep(CATCH_UP_PAUSE).await;
        }
        let mut all = Holdings::none(server);
        for partition in self.0.streams.partitions.iter().filter(|it| it.host.leads()) {
            all.add(&partition.service.held(server).await?);
        }
        Ok(all)
    }

    /// What all stream partitions have on a server.
    async fn held_everywhere(&self, server: ServerId) -> Result<Holdings, ControlError> {
        let cluster = &self.0.cluster;
        let orders = cluster.host().read(|state| state.orders().count);
        let masters = cluster.masters();
        let asked = masters.iter().map(|master| self.held_by(master, server, orders));
        let (mut all, mut failure) = (Holdings::none(server), None);
        for answer in join_all(asked).await {
            match answer {
                Ok(held) => all.add(&held),
                Err(error) => failure = Some(error),
            }
        }
        all.partitions.sort_unstable();
        let partitions = self.0.streams.partitions.len();
        if all.partitions.iter().map(|&it| usize::from(it)).eq(0..partitions) {
            return Ok(all);
        }
        let cause = failure.map_or_else(|| "leaders have changed".to_owned(), |it| it.message);
        let message = format!(
            "{} of {partitions} stream partitions have said what they hold ({cause}): retry when all \
             of them have a leader",
            all.partitions.len()
        );
        Err(ControlError::new(Kind::Retry, message))
    }

    async fn held_by(
        &self,
        master: &MasterInfo,
        server: ServerId,
        orders: u64,
    ) -> Result<Holdings, ControlError> {
        if master.id == self.0.cluster.master() {
            return self.held_here(server, orders).await;
        }
        let ask = ControlRequest::Cluster(ClusterRequest::Held { server, orders });
        let request = Request {
            service: Service::CONTROL,
            op: 0,
            priority: Priority::Background,
            flow: 0,
            trace: self.0.env.trace(),
            token: Token::NONE,
            body: ask.encode(),
            payload: None,
        };
        let response = self.0.streams.endpoint.call(master.addr, request, LOOK_TIMEOUT).await;
        let response =
            response.map_err(|error| ControlError::new(error.kind(), error.to_string()))?;
        let invalid = |error: wire::control::WireError| {
            ControlError::new(Kind::Invalid, format!("{}: {error}: upgrade it", master.name))
        };
        if response.status != 0 {
            return Err(ControlError::decode(&response.body).unwrap_or_else(invalid));
        }
        match ControlReply::decode(&response.body).map_err(invalid)? {
            ControlReply::Cluster(ClusterReply::Held(held)) => Ok(held),
            _ => Err(Refusal::BadCommand.into()),
        }
    }
}
