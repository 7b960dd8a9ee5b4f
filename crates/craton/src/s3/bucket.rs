//! `craton bucket`: what an operator does with buckets of any user.

use std::path::Path;

use client::Client;
use object_index::Service;
use object_proto::limits::SMALL_MAX;
use object_proto::{
    Bucket, BucketName, BucketSettings, BucketUsage, BucketView, Conditions, DefaultEncryption,
    Error, Lifecycle, LifecycleState, ListedVersion, LockPeriod, LockRule, ObjectKey, ObjectLock,
    Ownership, PublicAccess, RangeId, RetentionMode, ServiceStatus, Setting, StorageRule, Target,
    UserId, VersionId, Versioning,
};
use serde::Serialize;
use wire::control::Compression;

use super::args::{BucketCommand, Durability, SseC};
use super::quota::{self, ShownFiles, ShownQuota, ShownUsage};
use super::versions::page;
use super::{check, failed, json_time, policy, range, with_core};
use crate::connection::Connection;
use crate::exit::{Done, Failure};
use crate::fs::policy::{CompressionArg, SpreadArg, check_places};
use crate::output::{print_json, print_line, print_table, shell_word, table, visible};

/// A bucket, as JSON.
#[derive(Serialize)]
struct Shown {
    bucket: String,
    owner: String,
    owner_id: String,
    created: String,
    versioning: &'static str,
}

/// How new versions are retained, as JSON.
#[derive(Serialize)]
struct ShownRule {
    mode: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    days: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    years: Option<u32>,
}

/// A bucket with its settings, as JSON.
#[derive(Serialize)]
struct ShownView {
    #[serde(flatten)]
    bucket: Shown,
    public_access_blocked: bool,
    ownership: &'static str,
    grants: usize,
    policy: bool,
    cors_rules: usize,
    lock: &'static str,
    lock_default: Option<ShownRule>,
    encryption: Option<&'static str>,
    kms_key: Option<String>,
    durability: String,
    compression: String,
    sse_c: &'static str,
    tags: std::collections::BTreeMap<String, String>,
    #[serde(flatten)]
    usage: ShownUsage,
    #[serde(flatten)]
    files: ShownFiles,
    quota: Option<ShownQuota>,
    lifecycle: Option<ShownLifecycle>,
    ranges: Vec<ShownRange>,
}

/// A range that has keys of a bucket, as JSON.
#[derive(Serialize)]
struct ShownRange {
    id: String,
    /// The object server that owns it.
    server: Option<String>,
    /// Of the bucket: objects, older versions and delete markers.
    keys: u64,
    /// Bytes of the bucket's objects.
    bytes: u64,
}

/// How far lifecycle is with a bucket, as JSON.
#[derive(Serialize)]
struct ShownLifecycle {
    rules: usize,
    last_pass: Option<String>,
    removed: u64,
    behind_s: u64,
}

impl ShownLifecycle {
    /// None without rules, and without a pass ever.
    fn of(rules: Option<&Lifecycle>, state: LifecycleState) -> Option<ShownLifecycle> {
        let LifecycleState { last_pass_us, removed, behind_us } = state;
        let last_pass = (last_pass_us > 0).then(|| json_time(last_pass_us));
        let rules = rules.map(|lifecycle| lifecycle.rules.len());
        (rules.is_some() || last_pass.is_some() || removed > 0).then(|| ShownLifecycle {
            rules: rules.unwrap_or(0),
            last_pass,
            removed,
            behind_s: behind_us / 1_000_000,
        })
    }

    fn text(&self) -> String {
        let ShownLifecycle { rules, last_pass, removed, behind_s } = self;
        let last = match last_pass {
            Some(time) => format!("last pass {time}"),
            None => "no pass yet".to_owned(),
        };
        format!("{rules} rules, {last}, {removed} removed, {behind_s} s behind")
    }
}

/// Runs `craton bucket`.
pub fn run(connection: &Connection, command: BucketCommand) -> Done {
    with_core(connection, async |client, service| match command {
        BucketCommand::Create { name, owner, lock } => create(service, name, &owner, lock).await,
        BucketCommand::Ls { json } => list(service, json).await,
        BucketCommand::Info { name, json } => info(service, name, json).await,
        BucketCommand::Rm { name, force } => remove(service, name, force).await,
        BucketCommand::Quota { name, user, bytes, objects, clear, json } => {
            let change = quota::QuotaChange { bytes, objects, clear };
            match (name, user) {
                (Some(name), _) => quota::of_bucket(service, &name, change, json).await,
                (None, user) => {
                    quota::of_user(service, &user.unwrap_or_default(), change, json).await
                }
            }
        }
        BucketCommand::Set { name, durability, compression, sse_c } => {
            if durability.is_some() || compression.is_some() {
                set_storage(client, service, &name, (durability, compression)).await?;
            }
            match sse_c {
                Some(sse_c) => set_sse_c(service, name, sse_c).await,
                None => Ok(()),
            }
        }
        BucketCommand::Check { name, json } => {
            let view = find(service, &name).await?;
            check::run(service, &view.bucket, json).await
        }
        BucketCommand::Policy { name, set, clear } => {
            set_policy(service, name, set.as_deref(), clear).await
        }
    })
}

fn about(name: &BucketName) -> String {
    format!("bucket {name}")
}

async fn create(service: &Service, name: BucketName, owner: &str, lock: bool) -> Done {
    let user = service.user(owner).await;
    let user = user.map_err(|error| failed(&format!("user {owner}"), error))?;
    let lock = lock.then(LockRule::default);
    let settings = BucketSettings { lock, ..BucketSettings::default() };
    let made = service.create_bucket(name.clone(), user.id, settings).await;
    made.map_err(|error| match error {
        Error::BucketExists { .. } => {
            Failure::failed(format!("{}: there is a bucket of that name", about(&name)))
        }
        error => failed(&about(&name), error),
    })?;
    print_line(&format!("{name} is made; it belongs to {owner}"))
}

fn versioning(versioning: Versioning) -> &'static str {
    match versioning {
        Versioning::Off => "off",
        Versioning::Enabled => "enabled",
        Versioning::Suspended => "suspended",
    }
}

fn mode(mode: RetentionMode) -> &'static str {
    match mode {
        RetentionMode::Governance => "GOVERNANCE",
        RetentionMode::Compliance => "COMPLIANCE",
    }
}

fn shown_rule((by, period): (RetentionMode, LockPeriod)) -> ShownRule {
    let (days, years) = match period {
        LockPeriod::Days(days) => (Some(days), None),
        LockPeriod::Years(years) => (None, Some(years)),
    };
    ShownRule { mode: mode(by), days, years }
}

/// Object lock as lines show it.
fn lock_text(view: &ShownView) -> String {
    let Some(ShownRule { mode, days, years }) = &view.lock_default else {
        return view.lock.to_owned();
    };
    let period = match (days, years) {
        (Some(days), _) => format!("{days} days"),
        (None, years) => format!("{} years", years.unwrap_or_default()),
    };
    format!("{}; new versions are retained under {mode} for {period}", view.lock)
}

/// Names of users by their IDs.
async fn names(service: &Service) -> Result<impl Fn(&UserId) -> String, Failure> {
    let users = service.users().await.map_err(|error| failed("users", error))?;
    Ok(move |id: &UserId| {
        let user = users.iter().find(|user| user.id == *id);
        user.map_or_else(|| id.as_str().to_owned(), |user| user.name.clone())
    })
}

fn shown(bucket: &Bucket, name_of: impl Fn(&UserId) -> String) -> Shown {
    Shown {
        bucket: bucket.name.as_str().to_owned(),
        owner: name_of(&bucket.owner),
        owner_id: bucket.owner.as_str().to_owned(),
        created: json_time(bucket.created_us),
        versioning: versioning(bucket.versioning),
    }
}

async fn list(service: &Service, json: bool) -> Done {
    let buckets = service.buckets(None).await.map_err(|error| failed("buckets", error))?;
    let name_of = names(service).await?;
    let all: Vec<Shown> = buckets.iter().map(|bucket| shown(bucket, &name_of)).collect();
    if json {
        return print_json(&all);
    }
    let mut out = table(&["bucket", "owner", "created", "versioning"]);
    for Shown { bucket, owner, created, versioning, .. } in all {
        out.add_row([bucket, owner, created, versioning.to_owned()]);
    }
    print_table(out, &[])
}

async fn find(service: &Service, name: &BucketName) -> Result<BucketView, Failure> {
    let view = service.bucket(name.clone()).await;
    view.map(|view| (*view).clone()).map_err(|error| failed(&about(name), error))
}

fn shown_range(status: &ServiceStatus, (id, usage): (RangeId, BucketUsage)) -> ShownRange {
    let owner = status.ranges.iter().find(|one| one.range == id).and_then(|one| one.server);
    ShownRange {
        id: id.to_string(),
        server: range::server_of(status, owner).map(|server| server.name.clone()),
        keys: usage.objects + usage.markers,
        bytes: usage.bytes,
    }
}

async fn info(service: &Service, name: BucketName, json: bool) -> Done {
    let BucketView { bucket, settings, .. } = find(service, &name).await?;
    let of_ranges = service.usage_by_range(bucket.id).await;
    let of_ranges = of_ranges.map_err(|error| failed(&about(&name), error))?;
    let usage = of_ranges.iter().fold(BucketUsage::default(), |sum, (_, one)| sum.and(*one));
    let status = range::status(service).await?;
    let stored = service.stored_beside(bucket.id).await;
    let stored = stored.map_err(|error| failed(&about(&name), error))?;
    let state = service.lifecycle_state(bucket.id).await;
    let state = state.map_err(|error| failed(&about(&name), error))?;
    let view = ShownView {
        bucket: shown(&bucket, names(service).await?),
        public_access_blocked: settings.public_access == PublicAccess::all(true),
        ownership: match settings.ownership {
            Ownership::Enforced => "BucketOwnerEnforced",
            Ownership::Preferred => "BucketOwnerPreferred",
            Ownership::Writer | Ownership::Unset => "ObjectWriter",
        },
        grants: settings.acl.len(),
        policy: settings.policy.is_some(),
        cors_rules: settings.cors.len(),
        lock: if settings.lock.is_some() { "enabled" } else { "off" },
        lock_default: settings.lock.and_then(|rule| rule.default).map(shown_rule),
        encryption: match &settings.encryption.default {
            None => None,
            Some(DefaultEncryption::S3) => Some("AES256"),
            Some(DefaultEncryption::Kms { .. }) => Some("aws:kms"),
        },
        kms_key: match settings.encryption.default {
            Some(DefaultEncryption::Kms { key, .. }) => {
                Some(key.unwrap_or_else(|| object_gateway::DEFAULT_KEY.to_owned()))
            }
            Some(DefaultEncryption::S3) | None => None,
        },
        durability: durability_text(&settings.storage),
        compression: compression_text(&settings.storage),
        sse_c: if settings.encryption.blocks_customer_keys { "block" } else { "allow" },
        tags: settings.tags,
        usage: ShownUsage::of(usage),
        files: ShownFiles::of(stored),
        quota: ShownQuota::of(settings.quota),
        lifecycle: ShownLifecycle::of(settings.lifecycle.as_deref(), state),
        ranges: of_ranges.into_iter().map(|one| shown_range(&status, one)).collect(),
    };
    if json {
        return print_json(&view);
    }
    let blocked = match settings.public_access {
        blocks if blocks == PublicAccess::all(true) => "blocked",
        blocks if blocks == PublicAccess::all(false) => "not blocked",
        _ => "blocked in part",
    };
    let lock = lock_text(&view);
    let encryption = match (view.encryption, view.kms_key) {
        (None, _) => "none".to_owned(),
        (Some(method), None) => method.to_owned(),
        (Some(method), Some(key)) => format!("{method} with key {key}"),
    };
    let policy = if view.policy { "'craton bucket policy' shows it" } else { "none" };
    for (what, value) in [
        ("bucket", view.bucket.bucket),
        ("owner", view.bucket.owner),
        ("created", view.bucket.created),
        ("versioning", view.bucket.versioning.to_owned()),
        ("lock", lock),
        ("public access", blocked.to_owned()),
        ("object ownership", view.ownership.to_owned()),
        ("grants of its ACL", view.grants.to_string()),
        ("policy", policy.to_owned()),
        ("CORS rules", view.cors_rules.to_string()),
        ("durability", view.durability),
        ("compression", view.compression),
        ("encryption by default", encryption),
        ("keys of clients (SSE-C)", view.sse_c.to_owned()),
    ] {
        print_line(&visible(&format!("{what}: {value}")))?;
    }
    view.usage.print()?;
    view.files.print()?;
    print_line(&format!("quota: {}", quota::text(settings.quota)))?;
    let lifecycle = view.lifecycle.as_ref().map_or_else(|| "none".to_owned(), ShownLifecycle::text);
    print_line(&format!("lifecycle: {lifecycle}"))?;
    for ShownRange { id, server, keys, bytes } in view.ranges {
        let server = server.as_deref().unwrap_or("no server");
        print_line(&format!("range: {id} of {server}, {keys} keys, {bytes} bytes"))?;
    }
    let tag = |name: &str, value: &str| visible(&format!("tag: {name}={value}"));
    view.tags.iter().try_for_each(|(name, value)| print_line(&tag(name, value)))
}

async fn remove(service: &Service, name: BucketName, force: bool) -> Done {
    let view = find(service, &name).await?;
    let removed = match force {
        true => {
            if view.settings.lock.is_some() {
                check_unlocked(service, &view.bucket).await?;
            }
            empty(service, &view.bucket).await?
        }
        false => 0,
    };
    service.remove_bucket(name.clone()).await.map_err(|error| match error {
        Error::BucketNotEmpty => Failure::failed(format!(
            "{}: it holds objects: 'craton bucket rm {name} --force' deletes them all",
            about(&name)
        )),
        error => failed(&about(&name), error),
    })?;
    match removed {
        0 => print_line(&format!("{name} is removed")),
        1 => print_line(&format!("{name} is removed, with the one version in it")),
        removed => print_line(&format!("{name} is removed, with {removed} objects and versions")),
    }
}

/// A failure when a version is held, or its retention has not ended by this host's clock: nothing is deleted then.
async fn check_unlocked(service: &Service, bucket: &Bucket) -> Result<(), Failure> {
    let now_us = service.env().unix_time().as_nanos() / 1000;
    let mut after = (String::new(), None);
    loop {
        let page = page(service, bucket, after).await?;
        for entry in &page.entries {
            let ListedVersion::Version { key, info, .. } = entry else { continue };
            let lock = info.object.facts.lock;
            if lock.check_removal(now_us, false).is_err() {
                let version = info.version();
                let why = locked(&bucket.name, key, version, lock);
                return Err(Failure::failed(format!("{why} Nothing was deleted")));
            }
        }
        match page.entries.last().filter(|_| page.more) {
            Some(last) => after = (last.name().to_owned(), last.version()),
            None => return Ok(()),
        }
    }
}

/// What keeps a version of a bucket, and the way out.
fn locked(name: &BucketName, key: &ObjectKey, version: VersionId, lock: ObjectLock) -> String {
    let word = shell_word(key.as_str());
    let ask = format!("--bucket {name} --key {word} --version-id {version}");
    let (state, way) = match lock.retention {
        _ if lock.is_held() => (
            "is held".to_owned(),
            format!(
                "'aws s3api put-object-legal-hold {ask} --legal-hold Status=OFF' takes its hold off"
            ),
        ),
        Some(retention) if retention.mode == RetentionMode::Governance => (
            format!("is retained under governance until {}", json_time(retention.until_us)),
            format!("'aws s3api delete-object {ask} --bypass-governance-retention' removes it"),
        ),
        Some(retention) => (
            format!("is retained under compliance until {}", json_time(retention.until_us)),
            "it is not removed before".to_owned(),
        ),
        None => ("is locked".to_owned(), "wait until its retention ends".to_owned()),
    };
    let key = visible(key.as_str());
    format!("{}: version {version} of '{key}' {state}: {way}.", about(name))
}

/// Deletes all that a bucket holds; returns how many versions and delete markers.
async fn empty(service: &Service, bucket: &Bucket) -> Result<u64, Failure> {
    let mut removed = 0;
    loop {
        let page = page(service, bucket, (String::new(), None)).await?;
        if page.entries.is_empty() {
            return Ok(removed);
        }
        for entry in page.entries {
            let (key, version, lock) = match entry {
                ListedVersion::Version { key, info, .. } => {
                    (key, info.version(), info.object.facts.lock)
                }
                ListedVersion::Marker { key, version, .. } => (key, version, ObjectLock::default()),
                ListedVersion::Prefix(_) => continue,
            };
            let target = Target { bucket: bucket.id, key: key.clone() };
            delete(service, target, version).await.map_err(|error| match error {
                Error::Locked => {
                    let why = locked(&bucket.name, &key, version, lock);
                    Failure::failed(format!("{why} {removed} others were deleted"))
                }
                error => failed(&about(&bucket.name), error),
            })?;
            removed += 1;
        }
    }
}

async fn delete(service: &Service, target: Target, version: VersionId) -> Result<(), Error> {
    service.delete_version(target, version, Conditions::default(), false).await.map(drop)
}

async fn set_storage(
    client: &Client,
    service: &Service,
    name: &BucketName,
    (durability, compression): (Option<Durability>, Option<CompressionArg>),
) -> Done {
    if let Some(Durability(Some(policy))) = durability {
        check_places(client, policy, SpreadArg::Domain).await?;
    }
    let compression = compression.map(|compression| compression.with(None)).transpose()?;
    let setting = storage_setting(durability, compression);
    let set = service.set_bucket(name.clone(), setting).await;
    set.map_err(|error| failed(&about(name), error))?;
    // Behind the change: what is not named is as it is on record.
    let storage = find(service, name).await?.settings.storage;
    print_line(&format!(
        "new objects of {name} of more than {} KiB are stored as {}, compression {}; those that are there \
         when collection moves them",
        SMALL_MAX >> 10,
        durability_text(&storage),
        compression_text(&storage),
    ))
}

/// The change of what is named, one of them at least. It carries that alone: of two operators who change one each
/// at the same time, neither undoes what the other has changed.
fn storage_setting(
    durability: Option<Durability>,
    compression: Option<Option<Compression>>,
) -> Setting {
    match (durability, compression) {
        (Some(Durability(durability)), Some(compression)) => {
            Setting::Storage(StorageRule { durability, compression })
        }
        (Some(Durability(durability)), None) => Setting::Durability(durability),
        (None, compression) => Setting::Compression(compression.flatten()),
    }
}

fn durability_text(storage: &StorageRule) -> String {
    storage.durability.map_or_else(|| "default".to_owned(), |policy| policy.to_string())
}

fn compression_text(storage: &StorageRule) -> String {
    storage.compression.map_or_else(|| "none".to_owned(), |it| it.to_string())
}

async fn set_sse_c(service: &Service, name: BucketName, sse_c: SseC) -> Done {
    let are_blocked = sse_c != SseC::Allow;
    let set = service.set_bucket(name.clone(), Setting::CustomerKeysBlocked(are_blocked)).await;
    set.map_err(|error| failed(&about(&name), error))?;
    print_line(&match are_blocked {
        true => format!("{name} takes no more objects that are encrypted with keys of clients"),
        false => format!("objects of {name} may be encrypted with keys of clients"),
    })
}

async fn set_policy(service: &Service, name: BucketName, set: Option<&Path>, clear: bool) -> Done {
    let view = find(service, &name).await?;
    let change = async |setting| {
        service
            .set_bucket(name.clone(), setting)
            .await
            .map_err(|error| failed(&about(&name), error))
    };
    match set.map(|path| (path.to_str(), path)) {
        None if !clear => {
            let text = view.settings.policy;
            let text = text.ok_or_else(|| Failure::failed(format!("{name} has no policy")))?;
            print_line(text.trim_end())
        }
        None | Some((Some("private"), _)) => {
            change(Setting::Policy(None)).await?;
            print_line(&format!("{name} has no policy any more"))
        }
        Some((Some("public-read"), _)) => {
            change(Setting::PublicPoliciesBlocked(false)).await?;
            change(Setting::Policy(Some(public_read(&name)))).await?;
            print_line(&format!(
                "all may read the objects of {name}, without a signature too; its block of public \
                 policies is lifted"
            ))
        }
        Some((_, path)) => {
            let text = policy::read_bucket(path, name.as_str())?;
            change(Setting::Policy(Some(text))).await?;
            print_line(&format!("{name} goes by its policy now"))
        }
    }
}

/// All may read objects.
fn public_read(name: &BucketName) -> String {
    format!(
        r#"{{"Version":"2012-10-17","Statement":[{{"Sid":"PublicRead","Effect":"Allow","Principal":"*","Action":"s3:GetObject","Resource":"arn:aws:s3:::{name}/*"}}]}}"#
    )
}

#[cfg(test)]
mod tests;
