//! What a bucket holds, of all of its ranges: pages of its keys, versions and uploads, its counts
//! (`object-protocols.md` 9.2). A page goes on in the next range until it is full; of each range it shows one
//! snapshot.

use object_proto::limits::LIST_MAX;
use object_proto::{
    BucketId, BucketUsage, Error, FilesChecked, LifecycleState, ListPage, ListRequest, Listed,
    ListedUpload, ListedVersion, RangeBound, RangeId, RangeReply, RangeRequest, StoredBytes,
    UploadsPage, UploadsRequest, VersionsPage, VersionsRequest,
};

use crate::keys::{CURRENT, UPLOAD, VERSIONS};
use crate::limits::CHECK_LOOK;
use crate::list::Keys;
use crate::planted::Planted;
use crate::service::{Service, unexpected};

/// A listing that goes from range to range.
trait Listing: Clone {
    type Page: Default;

    /// Which keys are asked for, and how many entries at most.
    fn parts(&self) -> (Keys<'_>, u32);

    /// The same, of a range behind what was shown.
    fn goes_on(&mut self, shown: Option<String>, limit: u32);

    fn request(&self) -> RangeRequest;

    fn page(reply: RangeReply) -> Option<Self::Page>;

    fn len(page: &Self::Page) -> usize;

    /// What was shown last, and whether that is a common prefix.
    fn last(page: &Self::Page) -> Option<(String, bool)>;

    /// True when more follows.
    fn has_more(page: &Self::Page) -> bool;

    /// More follows what the page shows.
    fn set_more(page: &mut Self::Page);

    /// Adds the page of a range behind.
    fn add(page: &mut Self::Page, next: Self::Page);
}

impl Listing for ListRequest {
    type Page = ListPage;

    fn parts(&self) -> (Keys<'_>, u32) {
        let (prefix, delimiter, after) = (&self.prefix, &self.delimiter, &self.after);
        let keys = Keys { section: CURRENT, bucket: self.bucket, prefix, delimiter, after };
        (keys, self.limit)
    }

    fn goes_on(&mut self, shown: Option<String>, limit: u32) {
        self.limit = limit;
        self.after = shown.unwrap_or_else(|| std::mem::take(&mut self.after));
    }

    fn request(&self) -> RangeRequest {
        RangeRequest::List(self.clone())
    }

    fn page(reply: RangeReply) -> Option<ListPage> {
        if let RangeReply::Page(page) = reply { Some(page) } else { None }
    }

    fn len(page: &ListPage) -> usize {
        page.entries.len()
    }

    fn last(page: &ListPage) -> Option<(String, bool)> {
        let last = page.entries.last()?;
        Some((last.name().to_owned(), matches!(last, Listed::Prefix(_))))
    }

    fn has_more(page: &ListPage) -> bool {
        page.next.is_some()
    }

    fn set_more(page: &mut ListPage) {
        page.next = page.entries.last().map(|last| last.name().to_owned());
    }

    fn add(page: &mut ListPage, next: ListPage) {
        page.entries.extend(next.entries);
        page.next = next.next;
    }
}

impl Listing for VersionsRequest {
    type Page = VersionsPage;

    fn parts(&self) -> (Keys<'_>, u32) {
        let (prefix, delimiter, after) = (&self.prefix, &self.delimiter, &self.after);
        let keys = Keys { section: VERSIONS, bucket: self.bucket, prefix, delimiter, after };
        (keys, self.limit)
    }

    fn goes_on(&mut self, shown: Option<String>, limit: u32) {
        self.limit = limit;
        if let Some(shown) = shown {
            (self.after, self.after_version) = (shown, None);
        }
    }

    fn request(&self) -> RangeRequest {
        RangeRequest::Versions(self.clone())
    }

    fn page(reply: RangeReply) -> Option<VersionsPage> {
        if let RangeReply::Versions(page) = reply { Some(page) } else { None }
    }

    fn len(page: &VersionsPage) -> usize {
        page.entries.len()
    }

    fn last(page: &VersionsPage) -> Option<(String, bool)> {
        Some(match page.entries.last()? {
            ListedVersion::Version { key, .. } | ListedVersion::Marker { key, .. } => {
                (key.as_str().to_owned(), false)
            }
            ListedVersion::Prefix(prefix) => (prefix.clone(), true),
        })
    }

    fn has_more(page: &VersionsPage) -> bool {
        page.more
    }

    fn set_more(page: &mut VersionsPage) {
        page.more = true;
    }

    fn add(page: &mut VersionsPage, next: VersionsPage) {
        page.entries.extend(next.entries);
        page.more = next.more;
    }
}

impl Listing for UploadsRequest {
    type Page = UploadsPage;

    fn parts(&self) -> (Keys<'_>, u32) {
        let (prefix, delimiter, after) = (&self.prefix, &self.delimiter, &self.after);
        let keys = Keys { section: UPLOAD, bucket: self.bucket, prefix, delimiter, after };
        (keys, self.limit)
    }

    fn goes_on(&mut self, shown: Option<String>, limit: u32) {
        self.limit = limit;
        if let Some(shown) = shown {
            (self.after, self.after_upload) = (shown, None);
        }
    }

    fn request(&self) -> RangeRequest {
        RangeRequest::Uploads(self.clone())
    }

    fn page(reply: RangeReply) -> Option<UploadsPage> {
        if let RangeReply::Uploads(page) = reply { Some(page) } else { None }
    }

    fn len(page: &UploadsPage) -> usize {
        page.entries.len()
    }

    fn last(page: &UploadsPage) -> Option<(String, bool)> {
        Some(match page.entries.last()? {
            ListedUpload::Upload { key, .. } => (key.as_str().to_owned(), false),
            ListedUpload::Prefix(prefix) => (prefix.clone(), true),
        })
    }

    fn has_more(page: &UploadsPage) -> bool {
        page.more
    }

    fn set_more(page: &mut UploadsPage) {
        page.more = true;
    }

    fn add(page: &mut UploadsPage, next: UploadsPage) {
        page.entries.extend(next.entries);
        page.more = next.more;
    }
}

impl Service {
    /// A page of a bucket's keys.
    pub async fn list(&self, ask: ListRequest) -> Result<ListPage, Error> {
        self.page(ask).await
    }

    /// A page of a bucket's versions.
    pub async fn versions(&self, ask: VersionsRequest) -> Result<VersionsPage, Error> {
        self.page(ask).await
    }

    /// A page of a bucket's uploads that are under way.
    pub async fn uploads(&self, ask: UploadsRequest) -> Result<UploadsPage, Error> {
        self.page(ask).await
    }

    async fn page<L: Listing>(&self, mut ask: L) -> Result<L::Page, Error> {
        let (keys, limit) = ask.parts();
        let (bucket, prefix, limit) = (keys.bucket, keys.prefix.to_owned(), limit.min(LIST_MAX));
        let mut from = RangeBound { bucket, key: keys.prefix.max(keys.after).to_owned() };
        if keys.after.starts_with(keys.prefix)
            && let Some(shown) = keys.common_prefix(keys.after)
        {
            from = self.behind_prefix(from, (bucket, shown)).await?;
        }
        let mut page = L::Page::default();
        loop {
            let left = limit - L::len(&page) as u32;
            // A full page says whether something follows it.
            ask.goes_on(None, if limit == 0 { 0 } else { left.max(1) });
            let (reply, (_, end)) = self.ask_behind(&from, ask.request()).await?;
            let next = L::page(reply).ok_or_else(unexpected)?;
            if left == 0 && L::len(&next) > 0 {
                L::set_more(&mut page);
                return Ok(page);
            }
            let is_last = L::has_more(&next) || limit == 0;
            let shown = L::last(&next);
            L::add(&mut page, next);
            let one_alone = self.0.options.bugs.has(Planted::OneRangeShown);
            let goes_on = |end: &RangeBound| end.is_within(bucket, &prefix) && !one_alone;
            let Some(end) = end.filter(|end| !is_last && goes_on(end)) else {
                return Ok(page);
            };
            from = match &shown {
                Some((shown, true)) => self.behind_prefix(end, (bucket, shown)).await?,
                _ => end,
            };
            ask.goes_on(shown.map(|(shown, _)| shown), left);
        }
    }

    /// The first bound, from one on, behind which may be more than keys that begin with a prefix.
    async fn behind_prefix(
        &self,
        mut from: RangeBound,
        (bucket, prefix): (BucketId, &str),
    ) -> Result<RangeBound, Error> {
        let map = self.map().await?;
        while let (_, Some(end)) = map.behind(&from)
            && end.is_within(bucket, prefix)
        {
            from = end.clone();
        }
        Ok(from)
    }

    /// Asks all owners of a bucket's keys, in order.
    async fn ask_all(
        &self,
        bucket: BucketId,
        request: RangeRequest,
    ) -> Result<Vec<(RangeId, RangeReply)>, Error> {
        let (mut from, mut replies) = (RangeBound::of_bucket(bucket), Vec::new());
        loop {
            let (reply, (range, end)) = self.ask_behind(&from, request.clone()).await?;
            replies.push((range, reply));
            match end {
                Some(end) if end.bucket == bucket && !end.key.is_empty() => from = end,
                _ => return Ok(replies),
            }
        }
    }

    /// What a bucket holds.
    pub async fn usage(&self, bucket: BucketId) -> Result<BucketUsage, Error> {
        let of_ranges = self.usage_by_range(bucket).await?;
        Ok(of_ranges.into_iter().fold(BucketUsage::default(), |sum, (_, usage)| sum.and(usage)))
    }

    /// What each range holds of a bucket that has keys of it, in order of keys.
    pub async fn usage_by_range(
        &self,
        bucket: BucketId,
    ) -> Result<Vec<(RangeId, BucketUsage)>, Error> {
        let replies = self.ask_all(bucket, RangeRequest::Usage(vec![bucket])).await?;
        let usage = |(range, reply)| match reply {
            RangeReply::Usage(usages) => Ok((range, *usages.first().ok_or_else(unexpected)?)),
            _ => Err(unexpected()),
        };
        replies.into_iter().map(usage).collect()
    }

    /// Bytes of the files of bodies of the ranges that have a bucket's keys, and those of other buckets.
    pub async fn stored_beside(&self, bucket: BucketId) -> Result<StoredBytes, Error> {
        let mut sum = StoredBytes::default();
        for (_, reply) in self.ask_all(bucket, RangeRequest::Stored).await? {
            let RangeReply::Stored(bytes) = reply else { return Err(unexpected()) };
            sum = sum.and(bytes);
        }
        Ok(sum)
    }

    /// Has the files of bodies of all ranges checked that have a bucket's keys, and says what was found. It takes as
    /// long as it takes to read the heads of all bodies there.
    pub async fn check_files(&self, bucket: BucketId) -> Result<FilesChecked, Error> {
        let mut sum = FilesChecked { done: true, ..FilesChecked::default() };
        let (mut from, mut run) = (RangeBound::of_bucket(bucket), 0);
        loop {
            let (reply, (_, end)) = self.ask_behind(&from, RangeRequest::Check { run }).await?;
            let RangeReply::Checked(checked) = reply else { return Err(unexpected()) };
            // Another owner has begun another one.
            if !checked.done || checked.run != run {
                run = checked.run;
                self.env().sleep(CHECK_LOOK).await;
                continue;
            }
            sum = sum.and(checked);
            match end {
                Some(end) if end.bucket == bucket && !end.key.is_empty() => (from, run) = (end, 0),
                _ => return Ok(sum),
            }
        }
    }

    /// How far lifecycle is with a bucket.
    pub async fn lifecycle_state(&self, bucket: BucketId) -> Result<LifecycleState, Error> {
        let mut all: Option<LifecycleState> = None;
        for (_, reply) in self.ask_all(bucket, RangeRequest::Lifecycle(bucket)).await? {
            let RangeReply::Lifecycle(state) = reply else { return Err(unexpected()) };
            all = Some(all.map_or(state, |all| all.and(state)));
        }
        all.ok_or_else(unexpected)
    }
}
