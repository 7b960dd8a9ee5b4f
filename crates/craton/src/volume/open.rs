//! Volumes that this command opens itself, through the block client.

use std::rc::Rc;

use base::Fault;
use block_client::{Limits, VolumeExports};
use block_proto::{Managers, VolumeInfo};
use block_volume::contract::Device;
use block_volume::export::Exports;
use roles::check::{VolumeCheck, check};
use runtime::{Duration, Env};

use crate::cluster::Endpoints;
use crate::connect::{self, Target};
use crate::exit::{Code, Failure};

/// The command ends without the confirmation of a detachment after this long.
const DETACH_WAIT: Duration = Duration::from_secs(3);
/// Wait for a front end to close a volume whose last client has gone.
const CLOSE_WAIT: Duration = Duration::from_secs(2);
/// Between two checks of a detachment.
const DETACH_LOOK: Duration = Duration::from_millis(10);

/// A cluster, for commands that read and write volumes.
pub struct Site<'a> {
    /// Its block managers.
    pub managers: &'a Managers,
    /// Addresses of its front ends, as far as known.
    pub endpoints: Endpoints,
    exports: VolumeExports,
    holder: String,
}

impl<'a> Site<'a> {
    /// The managers' cluster, which is `target`.
    pub fn new(managers: &'a Managers, target: &Target, endpoints: Endpoints) -> Site<'a> {
        let env = managers.client().env();
        let endpoint = connect::endpoint(env, target);
        // The name is unique, so that no other command takes this one's attachments over.
        let holder = format!("craton {} ({:08x})", std::process::id(), env.random_u64() as u32);
        let exports = VolumeExports::new(managers, &endpoint, &holder, Limits::default());
        Site { managers, endpoints, exports, holder }
    }

    /// The executor's.
    pub fn env(&self) -> &Env {
        self.managers.client().env()
    }

    /// A volume's facts. Fails when a client has it open. A listed client may be dead: the next
    /// client that opens the volume replaces it.
    pub async fn closed(&self, name: &str) -> Result<VolumeInfo, Failure> {
        let device = self.open(name).await?;
        self.close(name, device).await;
        Ok(self.managers.volume(name).await?)
    }

    /// Opens a volume that no other client has open, whether it is shared or not; or a snapshot,
    /// which does not change under its readers.
    pub async fn open(&self, name: &str) -> Result<Rc<dyn Device>, Failure> {
        let device = self.look(name).await?;
        let info = self.managers.volume(name).await?;
        let other = info.attachments.iter().find(|one| one.holder != self.holder);
        let Some(other) = other.filter(|_| info.parent.is_none()) else { return Ok(device) };
        if self.is_closed_soon(name).await {
            return Ok(device);
        }
        self.close(name, device).await;
        let holder = &other.holder;
        Err(Failure::failed(format!("{name}: {holder} has it open; close it there first")))
    }

    /// Opens a volume that others may have open, too: a shared one, or a snapshot. Any other volume
    /// is then open nowhere else.
    ///
    /// A front end whose client has just gone is about to close the volume: this waits for it a
    /// little, so that a command can follow at once on 'volume detach' or the end of a program.
    pub async fn look(&self, name: &str) -> Result<Rc<dyn Device>, Failure> {
        let fault = match self.exports.open(name).await {
            Ok(device) => return Ok(device),
            Err(fault) => fault,
        };
        // A volume that no client has open was refused for another reason, which stays.
        if fault.kind != base::Kind::Invalid || !self.is_closed_soon(name).await {
            return Err(failure(name, &fault));
        }
        self.exports.open(name).await.map_err(|fault| failure(name, &fault))
    }

    /// True when others have the volume open, and all of them close it within a short time.
    async fn is_closed_soon(&self, name: &str) -> bool {
        let has_others = async || {
            let info = self.managers.volume(name).await;
            info.is_ok_and(|info| info.attachments.iter().any(|one| one.holder != self.holder))
        };
        if !has_others().await {
            return false;
        }
        let closed = async {
            while has_others().await {
                self.env().sleep(DETACH_LOOK).await;
            }
        };
        self.env().timeout(CLOSE_WAIT, closed).await.is_ok()
    }

    /// Compares the map of a volume or snapshot with its stored data.
    pub async fn check(&self, name: &str) -> Result<VolumeCheck, Failure> {
        let info = self.managers.volume(name).await?;
        let found = check(self.managers, &self.exports, &info).await;
        if info.parent.is_some() {
            self.wait_detached(name).await; // It was open for the check.
        }
        found.map_err(|fault| failure(name, &fault))
    }

    /// Ends what [`Site::open`] or [`Site::look`] began.
    pub async fn close(&self, name: &str, device: Rc<dyn Device>) {
        drop(device); // Begins to detach.
        self.wait_detached(name).await;
    }

    async fn wait_detached(&self, name: &str) {
        let gone = async {
            while let Ok(info) = self.managers.volume(name).await
                && info.attachments.iter().any(|one| one.holder == self.holder)
            {
                self.env().sleep(DETACH_LOOK).await;
            }
        };
        // The block manager ends it when it is not renewed.
        let _ = self.env().timeout(DETACH_WAIT, gone).await;
    }
}

/// A request on a volume that failed.
pub fn failure(name: &str, fault: &Fault) -> Failure {
    let code = match fault.kind {
        base::Kind::Retry | base::Kind::Unknown => Code::Unavailable,
        base::Kind::Corrupt => Code::Damage,
        _ => Code::Failed,
    };
    match fault.message.starts_with(&format!("{name}: ")) {
        true => Failure::new(code, &fault.message),
        false => Failure::new(code, format!("{name}: {fault}")),
    }
}
