//! Lists of the manager's that may be too long for one message. Where all of one has room, that is the answer, as it
//! was before there were pages. Else the answer is a page, and who asks puts the list together.

use object_proto::{
    AccessKey, Bucket, BucketName, CatalogReply, CatalogRequest, Error, RangeBound, RangeMap,
    RangeMapPage, RangePlace, RangeStatus, ServiceStatus, StatusPage, User, UserId,
};

use crate::limits::{ANSWER_BYTES, MAP_READS};

/// How many of the first items have room in so many bytes.
fn fitting(lens: impl Iterator<Item = usize>, room: usize) -> usize {
    let mut bytes = 0;
    lens.take_while(|len| {
        bytes += len;
        bytes <= room
    })
    .count()
}

/// Leaves the first items, which have room in one answer; true when others are left out.
fn cut<T>(items: &mut Vec<T>, len: impl Fn(&T) -> usize) -> bool {
    let fits = fitting(items.iter().map(len), ANSWER_BYTES);
    let more = fits < items.len();
    items.truncate(fits);
    more
}

/// The answer of a manager of a term to a question for the ranges, or for those that begin behind a bound.
pub(crate) fn map_reply(map: &RangeMap, behind: Option<&RangeBound>, term: u64) -> CatalogReply {
    let all = map.places();
    let from = behind.map_or(0, |bound| all.partition_point(|place| place.first <= *bound));
    let rest = &all[from..];
    let page = &rest[..fitting(rest.iter().map(RangePlace::encoded_len), ANSWER_BYTES)];
    match behind {
        None if page.len() == all.len() => CatalogReply::Map(map.clone()),
        _ => {
            let (count, places) = (all.len() as u32, page.to_vec());
            CatalogReply::MapPage(RangeMapPage { term, count, places })
        }
    }
}

/// The same of a question for the status, whose ranges are in order of their first keys.
pub(crate) fn status_reply(
    mut status: ServiceStatus,
    behind: Option<&RangeBound>,
    term: u64,
) -> CatalogReply {
    let count = status.ranges.len() as u32;
    let mut ranges = std::mem::take(&mut status.ranges);
    if let Some(bound) = behind {
        ranges.drain(..ranges.partition_point(|range| range.first <= *bound));
        status = ServiceStatus::default();
    }
    // Servers and peers are bounded: they leave room for ranges.
    let room = ANSWER_BYTES.saturating_sub(status.encoded_len());
    ranges.truncate(fitting(ranges.iter().map(RangeStatus::encoded_len), room));
    status.ranges = ranges;
    match behind {
        None if status.ranges.len() == count as usize => CatalogReply::Status(Box::new(status)),
        _ => CatalogReply::StatusPage(Box::new(StatusPage { term, count, status })),
    }
}

/// The answer to a question for users, which are in order of their names, or for those with names above one.
pub(crate) fn users_reply(mut users: Vec<User>, behind: Option<&str>) -> CatalogReply {
    if let Some(behind) = behind {
        users.retain(|user| user.name.as_str() > behind);
    }
    let more = cut(&mut users, User::encoded_len);
    match behind {
        None if !more => CatalogReply::Users(users),
        _ => CatalogReply::UsersPage { users, more },
    }
}

/// The same of buckets.
pub(crate) fn buckets_reply(mut buckets: Vec<Bucket>, behind: Option<&BucketName>) -> CatalogReply {
    if let Some(behind) = behind {
        buckets.retain(|bucket| bucket.name > *behind);
    }
    let more = cut(&mut buckets, Bucket::encoded_len);
    match behind {
        None if !more => CatalogReply::Buckets(buckets),
        _ => CatalogReply::BucketsPage { buckets, more },
    }
}

/// The same of a user's access keys, which are in order of their IDs. Each has the user with it.
pub(crate) fn keys_reply(mut keys: Vec<AccessKey>, behind: Option<&str>) -> CatalogReply {
    if let Some(behind) = behind {
        keys.retain(|key| key.id.as_str() > behind);
    }
    let more = cut(&mut keys, AccessKey::encoded_len);
    match behind {
        None if !more => CatalogReply::Keys(keys),
        _ => CatalogReply::KeysPage { keys, more },
    }
}

/// Adds pages to the first one until there are so many ranges. False when a page is of another term or count, and so of
/// other ranges, or when nothing comes any more.
async fn add_pages<T>(
    ask: &impl AsyncFn(CatalogRequest) -> Result<CatalogReply, Error>,
    (term, count): (u64, u32),
    ranges: &mut Vec<T>,
    behind: impl Fn(&T) -> CatalogRequest,
    page_of: impl Fn(CatalogReply) -> Option<((u64, u32), Vec<T>)>,
) -> Result<bool, Error> {
    while ranges.len() < count as usize
        && let Some(last) = ranges.last()
    {
        let (of, page) = page_of(ask(behind(last)).await?).ok_or_else(unexpected)?;
        if of != (term, count) || page.is_empty() {
            return Ok(false);
        }
        ranges.extend(page);
    }
    Ok(ranges.len() == count as usize)
}

/// The ranges, by as many questions as it takes.
pub(crate) async fn read_map(
    ask: impl AsyncFn(CatalogRequest) -> Result<CatalogReply, Error>,
) -> Result<RangeMap, Error> {
    let behind = |place: &RangePlace| CatalogRequest::MapBehind(place.first.clone());
    let page_of = |reply| match reply {
        CatalogReply::MapPage(page) => Some(((page.term, page.count), page.places)),
        _ => None,
    };
    for _ in 0..MAP_READS {
        let RangeMapPage { term, count, mut places } = match ask(CatalogRequest::Map).await? {
            CatalogReply::Map(map) => return Ok(map),
            CatalogReply::MapPage(page) => page,
            _ => return Err(unexpected()),
        };
        if add_pages(&ask, (term, count), &mut places, behind, page_of).await?
            && let Some(map) = RangeMap::new(places)
        {
            return Ok(map);
        }
    }
    Err(changing())
}

/// What the service is made of, likewise. How single ranges are may be of different moments.
pub(crate) async fn read_status(
    ask: impl AsyncFn(CatalogRequest) -> Result<CatalogReply, Error>,
) -> Result<ServiceStatus, Error> {
    let behind = |range: &RangeStatus| CatalogRequest::StatusBehind(range.first.clone());
    let page_of = |reply| match reply {
        CatalogReply::StatusPage(page) => Some(((page.term, page.count), page.status.ranges)),
        _ => None,
    };
    for _ in 0..MAP_READS {
        let StatusPage { term, count, mut status } = match ask(CatalogRequest::Status).await? {
            CatalogReply::Status(status) => return Ok(*status),
            CatalogReply::StatusPage(page) => *page,
            _ => return Err(unexpected()),
        };
        if add_pages(&ask, (term, count), &mut status.ranges, behind, page_of).await? {
            return Ok(status);
        }
    }
    Err(changing())
}

/// A list, by as many questions as it takes: `behind` has the one for what is above an item.
async fn read_list<T>(
    ask: impl AsyncFn(CatalogRequest) -> Result<CatalogReply, Error>,
    first: CatalogRequest,
    behind: impl Fn(&T) -> CatalogRequest,
    page_of: impl Fn(CatalogReply) -> Option<(Vec<T>, bool)>,
) -> Result<Vec<T>, Error> {
    let (mut all, mut request) = (Vec::new(), first);
    loop {
        let (page, more) = page_of(ask(request).await?).ok_or_else(unexpected)?;
        let is_empty = page.is_empty();
        all.extend(page);
        if !more {
            return Ok(all);
        }
        // Behind an empty page the same would be asked for again and again.
        let last = all.last().filter(|_| !is_empty);
        request = behind(last.ok_or_else(unexpected)?);
    }
}

/// The users in order of their names.
pub(crate) async fn read_users(
    ask: impl AsyncFn(CatalogRequest) -> Result<CatalogReply, Error>,
) -> Result<Vec<User>, Error> {
    let behind = |user: &User| CatalogRequest::UsersBehind(user.name.clone());
    let page_of = |reply| match reply {
        CatalogReply::Users(users) => Some((users, false)),
        CatalogReply::UsersPage { users, more } => Some((users, more)),
        _ => None,
    };
    read_list(ask, CatalogRequest::Users, behind, page_of).await
}

/// The buckets of a user, or all, in order of their names.
pub(crate) async fn read_buckets(
    ask: impl AsyncFn(CatalogRequest) -> Result<CatalogReply, Error>,
    of: Option<UserId>,
) -> Result<Vec<Bucket>, Error> {
    let first = CatalogRequest::Buckets(of.clone());
    let behind = |bucket: &Bucket| {
        let (of, name) = (of.clone(), bucket.name.clone());
        CatalogRequest::BucketsBehind { of, name }
    };
    let page_of = |reply| match reply {
        CatalogReply::Buckets(buckets) => Some((buckets, false)),
        CatalogReply::BucketsPage { buckets, more } => Some((buckets, more)),
        _ => None,
    };
    read_list(ask, first, behind, page_of).await
}

/// The access keys of a user, in order of their IDs.
pub(crate) async fn read_keys(
    ask: impl AsyncFn(CatalogRequest) -> Result<CatalogReply, Error>,
    user: UserId,
) -> Result<Vec<AccessKey>, Error> {
    let first = CatalogRequest::Keys(user.clone());
    let behind = |key: &AccessKey| {
        let (user, key) = (user.clone(), key.id.clone());
        CatalogRequest::KeysBehind { user, key }
    };
    let page_of = |reply| match reply {
        CatalogReply::Keys(keys) => Some((keys, false)),
        CatalogReply::KeysPage { keys, more } => Some((keys, more)),
        _ => None,
    };
    read_list(ask, first, behind, page_of).await
}

fn unexpected() -> Error {
    Error::Busy { cause: "the object manager answered something else".to_owned() }
}

fn changing() -> Error {
    Error::Busy { cause: "the ranges change while they are read".to_owned() }
}
