//! The bytes of a simulated file, in pages that versions of it share.

use std::collections::BTreeMap;
use std::rc::Rc;

/// Bytes of a page, and what direct I/O is aligned to.
pub(super) const PAGE: usize = 4096;

static ZEROS: [u8; PAGE] = [0; PAGE];

/// Content in pages; absent pages are zeros.
#[derive(Clone, Default)]
pub(super) struct Content {
    pages: BTreeMap<u64, Rc<[u8; PAGE]>>,
    pub(super) len: u64,
}

impl Content {
    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let (page, within) = (at / PAGE as u64, (at % PAGE as u64) as usize);
            let count = (PAGE - within).min(bytes.len() - done);
            let part = &bytes[done..done + count];
            if part == &ZEROS[..count] && (count == PAGE || !self.pages.contains_key(&page)) {
                self.pages.remove(&page);
            } else if count == PAGE {
                // Copied once, into its place: an array made first would be copied twice.
                let kept = Rc::<[u8]>::from(part).try_into().expect("a whole page");
                self.pages.insert(page, kept);
            } else {
                let kept = self.pages.entry(page).or_insert_with(|| Rc::new([0; PAGE]));
                Rc::make_mut(kept)[within..within + count].copy_from_slice(part);
            }
            done += count;
        }
        self.len = self.len.max(offset + bytes.len() as u64);
    }

    /// Makes a range equal to `other`'s. Whole pages are shared, not copied.
    pub(super) fn adopt(&mut self, other: &Content, offset: u64, len: usize) {
        let end = offset + len as u64;
        let mut at = offset;
        while at < end {
            let (page, within) = (at / PAGE as u64, (at % PAGE as u64) as usize);
            let count = ((PAGE - within) as u64).min(end - at) as usize;
            if count == PAGE {
                match other.pages.get(&page) {
                    Some(kept) => self.pages.insert(page, kept.clone()),
                    None => self.pages.remove(&page),
                };
            } else {
                let mut part = [0; PAGE];
                other.read(at, &mut part[..count]);
                self.write(at, &part[..count]);
            }
            at += count as u64;
        }
        self.len = self.len.max(end);
    }

    pub(super) fn read(&self, offset: u64, bytes: &mut [u8]) -> usize {
        let end = self.len.min(offset.saturating_add(bytes.len() as u64));
        let count = end.saturating_sub(offset) as usize;
        let mut done = 0;
        while done < count {
            let at = offset + done as u64;
            let (page, within) = (at / PAGE as u64, (at % PAGE as u64) as usize);
            let part = (PAGE - within).min(count - done);
            match self.pages.get(&page) {
                Some(kept) => {
                    bytes[done..done + part].copy_from_slice(&kept[within..within + part])
                }
                None => bytes[done..done + part].fill(0),
            }
            done += part;
        }
        count
    }

    pub(super) fn set_len(&mut self, len: u64) {
        if len < self.len {
            let first_gone = len.div_ceil(PAGE as u64);
            self.pages.split_off(&first_gone);
            let within = (len % PAGE as u64) as usize;
            if let Some(last) = self.pages.get_mut(&(len / PAGE as u64)) {
                Rc::make_mut(last)[within..].fill(0);
            }
        }
        self.len = len;
    }
}
