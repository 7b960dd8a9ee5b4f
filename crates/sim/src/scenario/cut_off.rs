//! What is cut off a volume is gone before the volume grows again, for each client: for one, too,
//! that no block manager reaches, with a block server of which the same is true.

use std::rc::Rc;
use std::time::Duration;

use base::{Kind, MIB};
use block_client::{Limits, VolumeExports};
use block_proto::{BlockRequest, Managers};
use block_volume::contract::Device;
use block_volume::export::Exports;
use block_volume::geometry::Extent;
use block_volume::ids::{SegmentId, VolumeId};
use block_volume::limits::BLOCK;
use runtime::sim::HostId;

use super::deleted::{BOUND, SEGMENTS, World};

const NAME: &str = "cut";
/// Bytes of the volume's first group. The other one is cut off.
const GROUP: u64 = 16 * MIB;
/// A request of the client that no manager reaches is given up after so long.
const DEADLINE: Duration = Duration::from_secs(3);
/// By then the managers have noticed that a block server is silent.
const SILENT: Duration = Duration::from_secs(1);
/// Pause between two tries of a request.
const AGAIN: Duration = Duration::from_millis(200);

impl World {
    /// Cuts a volume that a client has open that no manager reaches, has it grow again, and lets
    /// both that client and another use it.
    pub(super) async fn cut_off_is_gone(&self) -> Result<(), String> {
        let volume = self.create(NAME, 2 * GROUP).await?;
        let cluster = self.stack.cluster();
        let (host, client) = cluster.client(None).await.map_err(|error| error.to_string())?;
        let (managers, endpoint) =
            (Managers::with_budget(&client, DEADLINE), cluster.endpoint(client.env()));
        let limits = Limits { deadline: DEADLINE, ..Limits::default() };
        let exports = VolumeExports::new(&managers, &endpoint, "lingers", limits);
        let opened = self.bounded("open", exports.open(NAME)).await?;
        let lingers = opened.map_err(|fault| format!("open {NAME}: {fault}"))?;
        self.put(&lingers, 1).await?;
        let segment = SegmentId { volume, index: SEGMENTS as u32 };
        let views = self.stack.ownership_views();
        let owner = views.iter().find(|(_, (id, ..))| *id == segment).map(|&(server, _)| server);
        let owner = owner.ok_or("a segment that was written to has no owner")?;
        // No other block server takes the segment.
        let (servers, apart) = (self.stack.servers(), [host, self.stack.servers()[owner]]);
        self.part(servers, true);
        self.part(&apart, true);
        self.env.sleep(SILENT).await;
        // Its attachment is over; it does not know.
        self.delete(volume).await?;
        self.ask(BlockRequest::Undelete { volume, name: None }).await?;
        self.resize(volume, GROUP).await?;
        if self.get(&lingers).await == Ok(1) {
            self.env.mark("deleted: what is cut off is read until its files are gone");
        }
        let others: Vec<_> = servers.iter().copied().filter(|one| !apart.contains(one)).collect();
        self.part(&others, false);
        self.resize(volume, 2 * GROUP).await?;
        let other = self.open(NAME).await?;
        match self.get(&other).await? {
            0 => {}
            value => return Err(format!("a volume has grown with content: {value}")),
        }
        self.put(&other, 2).await?;
        let read = self.get(&lingers).await;
        let written = self.put(&lingers, 3).await;
        let left = self.get(&other).await?;
        if read == Ok(1) || written.is_ok() && left != 3 {
            return Err(format!(
                "a volume was cut and has grown, 2 is written; a client from before reads \
                 {read:?}; its write of 3: {written:?}; now {left} is there"
            ));
        }
        self.env.mark("deleted: what is cut off is gone");
        self.part(&apart, false);
        drop((lingers, other));
        self.ask(BlockRequest::Remove { volume, force: true }).await.map(drop)
    }

    /// Parts hosts from the managers, or no longer.
    fn part(&self, hosts: &[HostId], blocked: bool) {
        for &manager in self.stack.managers() {
            for &host in hosts {
                self.sim().set_blocked(manager, host, blocked);
                self.sim().set_blocked(host, manager, blocked);
            }
        }
    }

    /// Changes the length, as soon as that can be done.
    async fn resize(&self, volume: VolumeId, bytes: u64) -> Result<(), String> {
        let end = self.sim().elapsed() + BOUND;
        loop {
            let request = BlockRequest::Resize { volume, bytes, force: true };
            match self.bounded("resize", self.managers.ask(request)).await? {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == Kind::Retry && self.sim().elapsed() < end => {
                    self.env.sleep(AGAIN).await;
                }
                Err(error) => return Err(format!("resize to {bytes}: {error}")),
            }
        }
    }

    /// Fills the first block behind the first group with a byte.
    async fn put(&self, device: &Rc<dyn Device>, byte: u8) -> Result<(), String> {
        let data = self.env.pool().copy_of(&[byte; BLOCK as usize]);
        let data = data.map_err(|error| error.to_string())?;
        let written = self.bounded("write", device.write(GROUP, data)).await?;
        written.map_err(|fault| format!("write {NAME}: {fault}"))
    }

    /// The byte that the first block behind the first group has.
    async fn get(&self, device: &Rc<dyn Device>) -> Result<u8, String> {
        let read = device.read(Extent { offset: GROUP, len: BLOCK });
        let read = self.bounded("read", read).await?;
        read.map(|data| data[0]).map_err(|fault| format!("read {NAME}: {fault}"))
    }
}
