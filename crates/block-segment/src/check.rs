//! Verification of stored data: the check of a segment, piece by piece, and its scrub (B14).
//!
//! Both read every block that the index names, through the core's verified reads. The core repairs
//! damaged bytes from another replica; bytes that no replica has are reported. A block that moves
//! during the check is read at its new location.

use std::rc::Rc;

use base::{Fault, Kind};
use block_volume::figures::{FINDINGS_MAX, SegmentCheck, SegmentScrub};
use block_volume::ids::parse_name;
use block_volume::limits::BLOCK;
use runtime::Duration;

use super::core::Core;
use super::format::state::{SCRUB_KEY, ScrubState};
use super::limits::{CHECK_PAGES, PAGE_BLOCKS, SCRUB_BLOCKS, SCRUB_DELAY, SCRUB_SAVE, SWEEP_TIME};

/// Pause after a piece of the scrub could not be read now.
const RETRY: Duration = Duration::from_secs(1);

/// Notes a finding, up to a bound.
fn find(report: &mut SegmentCheck, finding: String) {
    report.findings_count += 1;
    if report.findings.len() < FINDINGS_MAX {
        report.findings.push(finding);
    }
}

impl Core {
    fn page_count(&self) -> u64 {
        self.bytes.div_ceil(BLOCK).div_ceil(u64::from(PAGE_BLOCKS))
    }

    /// The piece of the check that begins at `from`: first the DataFiles, then some pages of the
    /// index at a time. After an error it can be tried again.
    pub(crate) async fn check(&self, from: u64) -> Result<SegmentCheck, Fault> {
        let mut report = SegmentCheck::default();
        let pages = self.page_count();
        if from == 0 {
            self.check_files(&mut report).await?;
            report.next = 1;
            return Ok(report);
        }
        let end = (from - 1).saturating_add(CHECK_PAGES).min(pages);
        for page in from - 1..end {
            let first = page * u64::from(PAGE_BLOCKS);
            let last = (first + u64::from(PAGE_BLOCKS)).min(self.bytes.div_ceil(BLOCK));
            for lba in (first..last).step_by(SCRUB_BLOCKS) {
                let count = (last - lba).min(SCRUB_BLOCKS as u64) as usize;
                report.blocks += self.verify_blocks(lba as u32, count, &mut report).await?;
            }
        }
        report.next = if end < pages { end + 1 } else { 0 };
        Ok(report)
    }

    /// Compares the DataFiles that the table names with those in the directory.
    async fn check_files(&self, report: &mut SegmentCheck) -> Result<(), Fault> {
        let mut stray: Option<Vec<String>> = None;
        let mut missing: Option<Vec<String>> = None;
        // A difference found once may be a file that is being made or removed; one that stays is wrong.
        for round in 0..2 {
            if round > 0 {
                if stray.as_ref().is_some_and(Vec::is_empty)
                    && missing.as_ref().is_some_and(Vec::is_empty)
                {
                    return Ok(());
                }
                self.env.sleep(SWEEP_TIME).await;
            }
            let named: Vec<String> = {
                let files = self.files.borrow();
                files.values().map(|file| file.name.clone()).collect()
            };
            let there = self.data_files().await?;
            report.files = named.len() as u64;
            let still = |name: &String, list: &Option<Vec<String>>| {
                list.as_ref().is_none_or(|list| list.contains(name))
            };
            let now_named =
                |name: &String| self.files.borrow().values().any(|file| file.name == *name);
            let lost = named.iter().filter(|name| there.binary_search(name).is_err());
            missing = Some(
                lost.filter(|name| now_named(name) && still(name, &missing)).cloned().collect(),
            );
            let spare = self.spare.borrow().as_ref().map(|spare| spare.file.name.clone());
            let unnamed = there.iter().filter(|name| {
                !named.contains(name)
                    && !now_named(name)
                    && spare.as_ref() != Some(*name)
                    && !self.cuts.has_discarded(name)
            });
            stray = Some(unnamed.filter(|name| still(name, &stray)).cloned().collect());
        }
        for name in missing.unwrap_or_default() {
            find(report, format!("{}: {name} is missing: its blocks are lost", self.identity));
        }
        for name in stray.unwrap_or_default() {
            let text = format!("{}: {name} is a leak: nothing names it", self.identity);
            find(report, text);
        }
        Ok(())
    }

    /// Names of DataFiles in the directory, in order, without those of later owners. Linked files
    /// have the generation of another directory's table, and a number below this instance's.
    async fn data_files(&self) -> Result<Vec<String>, Fault> {
        let (mut found, mut after) = (Vec::new(), "data-".to_owned());
        loop {
            let page = self.store.list(&after).await;
            let page = page.map_err(|fault| self.cause("list", "its directory", fault))?;
            let of_ours = |name: &&String| {
                parse_name(name).is_some_and(|(generation, number)| {
                    generation <= self.generation || number.get() < self.first_file
                })
            };
            found.extend(page.names.iter().filter(of_ours).cloned());
            match page.names.into_iter().next_back() {
                Some(last) if page.more && last.as_str() < "data." => after = last,
                _ => {
                    found.sort_unstable();
                    return Ok(found);
                }
            }
        }
    }

    /// Reads blocks from `lba` on; returns the number of those with verified data. Damage is noted;
    /// after an error the state is not known now.
    async fn verify_blocks(
        &self,
        lba: u32,
        count: usize,
        report: &mut SegmentCheck,
    ) -> Result<u64, Fault> {
        let mut good = 0;
        let Err(fault) = self.read_blocks(lba, count, &mut |_, _| good += 1).await else {
            return Ok(good);
        };
        if count == 1 {
            if !matches!(fault.kind, Kind::Corrupt | Kind::NotFound | Kind::Invalid) {
                return Err(fault);
            }
            let offset = u64::from(lba) * BLOCK;
            let text = format!("block {lba} (byte {offset} of the segment): {}", fault.message);
            find(report, text);
            return Ok(0);
        }
        // At least one of them.
        let mut good = 0;
        for n in 0..count as u32 {
            good += Box::pin(self.verify_blocks(lba + n, 1, report)).await?;
        }
        Ok(good)
    }

    /// Progress of the scrub.
    pub(crate) fn scrub_progress(&self) -> SegmentScrub {
        let state = self.scrub.get();
        SegmentScrub {
            passes: state.passes,
            done_bytes: (state.next * BLOCK).min(self.bytes),
            total_bytes: self.bytes,
            read_bytes: self.scrub_read.get(),
            damaged: state.damaged.max(state.damaged_before),
        }
    }

    /// Seconds since 1970.
    fn unix_seconds(&self) -> u64 {
        self.env.unix_time().as_nanos() / 1_000_000_000
    }

    /// Stores the progress of the scrub in the table; false when the instance is over.
    async fn save_scrub(&self, state: ScrubState) -> bool {
        self.scrub.set(state);
        if self.options.read_only {
            return !self.is_over();
        }
        self.commit(|batch| {
            batch.put(SCRUB_KEY, &state.encode());
        })
        .await
        .is_ok()
    }

    /// The task that repeatedly reads all stored data, at a capped rate (B14), until the instance
    /// is over. It continues a pass of a previous owner.
    pub(crate) async fn scrub_always(self: Rc<Self>) {
        let rate = self.options.scrub_bytes_per_second;
        if rate == 0 || !self.rest(self.env.jitter(SCRUB_DELAY)).await {
            return;
        }
        loop {
            let mut state = self.scrub.get();
            if state.begun > self.unix_seconds() {
                // A clock was ahead once: the period counts from now on.
                state.begun = self.unix_seconds();
                if !self.save_scrub(state).await {
                    return;
                }
            }
            if state.next == 0 {
                if state.passes > 0 {
                    let since =
                        Duration::from_secs(self.unix_seconds().saturating_sub(state.begun));
                    let rest = self.options.scrub_period.saturating_sub(since);
                    if !self.rest(rest.max(RETRY)).await {
                        return;
                    }
                }
                let (begun, damaged_before) = (self.unix_seconds(), state.damaged);
                self.scrub.set(ScrubState { begun, damaged: 0, damaged_before, ..state });
            }
            if !self.scrub_once(rate).await {
                return;
            }
            let state = self.scrub.get();
            let passes = state.passes + 1;
            if !self.save_scrub(ScrubState { passes, next: 0, damaged_before: 0, ..state }).await {
                return;
            }
            self.env.mark("segment: scrubbed");
        }
    }

    /// The rest of a pass; false when the instance is over.
    async fn scrub_once(&self, rate: u64) -> bool {
        let blocks = self.bytes.div_ceil(BLOCK);
        let mut saved = self.env.now();
        // A page that only the scrub has used leaves the memory behind it.
        let (mut page, mut was_there) = (u32::MAX, true);
        while self.scrub.get().next < blocks {
            let lba = self.scrub.get().next;
            if lba as u32 / PAGE_BLOCKS != page {
                if !was_there {
                    self.share.forget(page);
                }
                page = lba as u32 / PAGE_BLOCKS;
                was_there = self.share.index.borrow().has(page);
            }
            let count = (blocks - lba).min(SCRUB_BLOCKS as u64);
            let mut report = SegmentCheck::default();
            let pause = match self.verify_blocks(lba as u32, count as usize, &mut report).await {
                Ok(good) => {
                    for finding in &report.findings {
                        tracing::error!(finding, "scrub of a volume: data is damaged");
                    }
                    let mut state = self.scrub.get();
                    state.next = lba + count;
                    state.damaged += report.findings_count;
                    self.scrub.set(state);
                    self.scrub_read.set(self.scrub_read.get() + good * BLOCK);
                    if self.env.now() - saved >= SCRUB_SAVE {
                        saved = self.env.now();
                        if !self.save_scrub(state).await {
                            return false;
                        }
                    }
                    let read = (good + report.findings_count) * BLOCK;
                    // Over holes it goes on at once, but not alone.
                    match read {
                        0 => Duration::ZERO,
                        read => self.share.shared().scrubbed(self.env.now(), read, rate),
                    }
                }
                Err(_) => RETRY,
            };
            if !self.rest(pause).await {
                return false;
            }
        }
        true
    }

    /// Waits; false when the instance is over.
    async fn rest(&self, pause: Duration) -> bool {
        let end = self.env.now() + pause;
        loop {
            let changed = self.changed.notified();
            if self.is_over() {
                return false;
            }
            let left = end - self.env.now();
            if left.is_zero() {
                self.env.yield_now().await;
                return !self.is_over();
            }
            let _ = self.env.timeout(left, changed).await; // Both wake the check above.
        }
    }
}
