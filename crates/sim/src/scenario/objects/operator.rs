//! What an operator does beside the load: ranges are moved and split, and files of bodies are checked.

use std::rc::Rc;
use std::time::Duration;

use futures_util::future::join;
use object_index::Service;
use object_proto::{BucketId, RangeBound, RangeMap, RangePlace, RangeStatus};
use object_testing::load::KEYS;
use runtime::sim::CrashMode;

use super::{Kind, MANAGERS, World};
use crate::nemesis::{Cut, Way};

/// Of what an operator does, checks of files of bodies.
const CHECK_ONE_IN: u64 = 3;

/// Ranges with keys of the bucket, behind which no more are split.
const SPLITS_MAX: usize = 6;

impl World {
    /// Moves a range to another server now and then, as an operator does, or checks files of bodies.
    pub(super) async fn operate(self: Rc<Self>, service: Service, bucket: BucketId) {
        for round in 0_u64.. {
            if self.is_over() {
                return;
            }
            if round % CHECK_ONE_IN == CHECK_ONE_IN - 1 {
                self.check_files(&service, bucket).await;
            }
            self.sim().sleep(Duration::from_millis(self.draw(300, 3000))).await;
            let Ok(status) = service.status().await else { continue };
            let range = &status.ranges[self.draw(0, status.ranges.len() as u64 - 1) as usize];
            let mut servers = status.servers.iter().map(|server| server.server);
            let Some(to) = servers.find(|&server| Some(server) != range.server) else { continue };
            // A server that is down is refused, and what has no answer may be done.
            if service.move_range(range.range, to).await.is_ok() {
                self.sim().mark("objects: an operator moves a range");
            }
        }
    }

    /// Has the files of bodies checked: all counts are right, but where they are made wrong.
    async fn check_files(&self, service: &Service, bucket: BucketId) {
        match service.check_files(bucket).await {
            Ok(found) if found.corrected > 0 && self.kind == Kind::Collect => {
                self.sim().mark("objects: a check sets a count right");
            }
            Ok(found) if found.corrected > 0 => {
                self.violated(format!("counts of files were wrong: {found:?}"));
            }
            Ok(found) if found.files > 0 && found.failed.is_none() => {
                self.sim().mark("objects: files are checked");
            }
            // The ranges have no owners at present, or others came.
            Ok(_) | Err(_) => {}
        }
    }

    /// Splits ranges that have keys of a bucket, at one of its keys or in the middle, and has something happen to
    /// their owners.
    pub(super) async fn split(self: Rc<Self>, service: Service, bucket: BucketId) {
        while !self.is_over() {
            self.sim().sleep(Duration::from_millis(self.draw(50, 1000))).await;
            let Ok(status) = service.status().await else { continue };
            let place =
                |one: &RangeStatus| RangePlace { range: one.range, first: one.first.clone() };
            let places = status.ranges.iter().map(place).collect();
            let Some(map) = RangeMap::new(places) else {
                return self.violated(format!("no map: {:?}", status.ranges));
            };
            let ranges: Vec<_> = map.of_bucket(bucket).collect();
            if ranges.len() > SPLITS_MAX {
                return;
            }
            let range = ranges[self.draw(0, ranges.len() as u64 - 1) as usize];
            let key = KEYS[self.draw(0, KEYS.len() as u64 - 1) as usize].to_owned();
            let at = (self.draw(0, 3) > 0).then_some(RangeBound { bucket, key });
            let begun = self.sim().elapsed();
            let ask = async {
                if service.split_range(range, at).await.is_ok() {
                    self.sim().mark("objects: an operator splits a range");
                }
            };
            let owner = status.ranges.iter().find(|one| one.range == range);
            let owner = owner.and_then(|one| one.server);
            let server = status.servers.iter().find(|one| Some(one.server) == owner);
            let number: Option<u8> =
                server.and_then(|server| server.name.strip_prefix("os")?.parse().ok());
            let harm = async {
                let Some(number) = number else { return };
                self.at_the_cut(begun).await;
                self.harm_at_the_cut(MANAGERS + usize::from(number) - 1).await;
            };
            join(ask, harm).await;
        }
    }

    /// Has something happen to the owner of a range that is being split.
    async fn harm_at_the_cut(self: &Rc<Self>, index: usize) {
        let host = self.processes[index];
        if self.sim().env(host).is_none() {
            return;
        }
        match self.draw(0, 6) {
            0 | 1 => {
                self.sim().mark("objects: the owner of a range that is split stands still");
                self.sim().pause(host, Duration::from_millis(self.draw(300, 3000)));
            }
            2 => {
                self.sim().mark("objects: the owner of a range that is split crashes");
                self.sim().crash(host, CrashMode::Process);
                self.sim().sleep(Duration::from_millis(self.draw(50, 1500))).await;
                self.boot(index);
            }
            3 | 4 => {
                let mark = "objects: the owner of a range that is split is cut off";
                let cut = Cut::new(mark, Way::Both, &[host], &self.processes[..MANAGERS]);
                self.sim().mark(mark);
                cut.set(self.sim(), true);
                self.sim().sleep(Duration::from_millis(self.draw(600, 2500))).await;
                cut.set(self.sim(), false);
            }
            _ => {}
        }
    }

    /// Ends about when an owner shuts its range out, or when none does for a while.
    async fn at_the_cut(&self, begun: Duration) {
        let filled = "object: the halves of a range are filled";
        let is_filled = || self.sim().last_mark(filled).is_some_and(|at| at >= begun);
        while !is_filled() && self.sim().elapsed() < begun + Duration::from_millis(400) {
            self.sim().sleep(Duration::from_millis(1)).await;
        }
        self.sim().sleep(Duration::from_millis(self.draw(0, 12))).await;
    }
}
