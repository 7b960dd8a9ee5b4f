//! `craton bucket check`: whether what a bucket shows can be read as it was written.

use futures_util::StreamExt;
use futures_util::stream;
use object_gateway::ContentCheck;
use object_index::{BodyContent, Service};
use object_proto::limits::{LIST_MAX, PIECE_BYTES};
use object_proto::{
    Bucket, Error, ListedUpload, ListedVersion, ObjectInfo, PartNumber, PartsRequest, Target,
    UploadId, UploadsRequest, VersionId,
};
use serde::Serialize;

use super::failed;
use super::versions::page;
use crate::exit::{Done, Failure};
use crate::output::{print_json, print_line, visible};

/// Objects that are read at once.
const AT_ONCE: usize = 8;

/// What was found, as JSON.
#[derive(Serialize, Default)]
struct Report {
    bucket: String,
    /// Objects, and older versions.
    objects: u64,
    /// Of uploads that are under way.
    parts: u64,
    /// Bytes that were read.
    bytes: u64,
    damaged: Vec<Damage>,
    /// Files of bodies of the ranges that have the bucket's keys.
    files: u64,
    counts_corrected: u64,
    files_restored: u64,
    files_removed: u64,
}

/// An object or part that cannot be read as it was written.
#[derive(Serialize)]
struct Damage {
    key: String,
    /// None for the version without an ID.
    version: Option<String>,
    part: Option<u16>,
    what: String,
}

/// Something to be read.
struct Item {
    target: Target,
    /// None for the version without an ID, and for parts.
    version: Option<VersionId>,
    part: Option<(UploadId, PartNumber)>,
}

/// What came of it: the bytes, or what is damaged; none when it was removed since.
type Outcome = Option<Result<u64, String>>;

/// Runs it.
pub async fn run(service: &Service, bucket: &Bucket, json: bool) -> Done {
    let mut report = Report { bucket: bucket.name.to_string(), ..Report::default() };
    objects(service, bucket, &mut report).await?;
    uploads(service, bucket, &mut report).await?;
    let files = service.check_files(bucket.id).await.map_err(|error| about(bucket, error))?;
    report.files = files.files;
    report.counts_corrected = files.corrected;
    report.files_restored = files.restored;
    report.files_removed = files.removed;
    match json {
        true => print_json(&report)?,
        false => show(&report)?,
    }
    if let Some(cause) = files.failed {
        let what = format!("bucket {}: not all files were looked at: {cause}", bucket.name);
        return Err(Failure::failed(what));
    }
    match report.damaged.len() {
        0 => Ok(()),
        count => Err(Failure::failed(format!(
            "bucket {}: {count} objects or parts are damaged; 'craton status' shows whether servers are down",
            bucket.name
        ))),
    }
}

fn show(report: &Report) -> Done {
    let Report { bucket, objects, parts, bytes, damaged, files, .. } = report;
    print_line(&format!(
        "{bucket}: {objects} objects and versions, {parts} parts of uploads, {bytes} bytes read"
    ))?;
    for Damage { key, version, part, what } in damaged {
        let version = version.as_ref().map_or_else(String::new, |id| format!(", version {id}"));
        let part = part.map_or_else(String::new, |number| format!(", part {number}"));
        print_line(&visible(&format!("damaged: {key}{version}{part}: {what}")))?;
    }
    print_line(&format!(
        "{files} files of bodies: {} counts set right, {} files brought back from the trash, {} removed \
         that nothing named",
        report.counts_corrected, report.files_restored, report.files_removed
    ))
}

/// Reads all versions.
async fn objects(service: &Service, bucket: &Bucket, report: &mut Report) -> Result<(), Failure> {
    let mut after = (String::new(), None);
    loop {
        let page = page(service, bucket, after).await?;
        let items = page.entries.iter().filter_map(|entry| {
            let ListedVersion::Version { key, info, .. } = entry else { return None };
            let target = Target { bucket: bucket.id, key: key.clone() };
            Some(Item { target, version: Some(info.version()), part: None })
        });
        report.objects += read_all(service, items.collect(), report).await?;
        match page.entries.last().filter(|_| page.more) {
            Some(last) => after = (last.name().to_owned(), last.version()),
            None => return Ok(()),
        }
    }
}

/// Reads the parts of all uploads that are under way.
async fn uploads(service: &Service, bucket: &Bucket, report: &mut Report) -> Result<(), Failure> {
    let mut ask = UploadsRequest {
        bucket: bucket.id,
        prefix: String::new(),
        delimiter: String::new(),
        after: String::new(),
        after_upload: None,
        limit: LIST_MAX,
    };
    loop {
        let page = service.uploads(ask.clone()).await.map_err(|error| about(bucket, error))?;
        for entry in &page.entries {
            let ListedUpload::Upload { key, info } = entry else { continue };
            let target = Target { bucket: bucket.id, key: key.clone() };
            report.parts += parts(service, bucket, (target, info.id), report).await?;
            ask.after = key.as_str().to_owned();
            ask.after_upload = Some(info.id);
        }
        if !page.more {
            return Ok(());
        }
    }
}

async fn parts(
    service: &Service,
    bucket: &Bucket,
    (target, upload): (Target, UploadId),
    report: &mut Report,
) -> Result<u64, Failure> {
    let mut ask = PartsRequest { target, upload, after: 0, limit: LIST_MAX };
    let mut read = 0;
    loop {
        let page = match service.parts(ask.clone()).await {
            Ok(page) => page,
            Err(Error::NoSuchUpload) => return Ok(read),
            Err(error) => return Err(about(bucket, error)),
        };
        let item = |number| Item {
            target: ask.target.clone(),
            version: None,
            part: Some((upload, number)),
        };
        let items = page.parts.iter().map(|part| item(part.number)).collect();
        read += read_all(service, items, report).await?;
        match page.parts.last().filter(|_| page.more) {
            Some(last) => ask.after = last.number.get(),
            None => return Ok(read),
        }
    }
}

fn about(bucket: &Bucket, error: Error) -> Failure {
    failed(&format!("bucket {}", bucket.name), error)
}

/// Reads some, several at once; how many are there.
async fn read_all(
    service: &Service,
    items: Vec<Item>,
    report: &mut Report,
) -> Result<u64, Failure> {
    let mut reading = stream::iter(items)
        .map(|item| async move {
            let outcome = read(service, &item).await;
            (item, outcome)
        })
        .buffered(AT_ONCE);
    let mut there = 0;
    while let Some((item, outcome)) = reading.next().await {
        let key = item.target.key.as_str();
        let Some(outcome) = outcome.map_err(|error| failed(key, error))? else { continue };
        there += 1;
        match outcome {
            Ok(bytes) => report.bytes += bytes,
            Err(what) => {
                let version = item.version.filter(|version| *version != VersionId::Null);
                let version = version.map(|version| version.to_string());
                let part = item.part.map(|(_, number)| number.get());
                report.damaged.push(Damage { key: key.to_owned(), version, part, what });
            }
        }
    }
    Ok(there)
}

async fn read(service: &Service, item: &Item) -> Result<Outcome, Error> {
    let opened = match item.part {
        None => service.open(&item.target, item.version).await.map(Some),
        Some(part) => open_part(service, &item.target, part).await,
    };
    let (info, content) = match opened {
        Ok(Some(opened)) => opened,
        Ok(None) | Err(Error::NoSuchKey | Error::NoSuchVersion) => return Ok(None),
        Err(Error::Damaged { what }) => return Ok(Some(Err(what))),
        Err(error) => return Err(error),
    };
    let (size, mut at) = (info.object.size, 0);
    let mut check = ContentCheck::of(&info.object.facts);
    while at < size {
        match content.read(at, PIECE_BYTES).await {
            Ok(bytes) if bytes.is_empty() => {
                return Ok(Some(Err(format!("it has {at} bytes and not {size}"))));
            }
            Ok(bytes) => {
                at += bytes.len() as u64;
                check.iter_mut().for_each(|check| check.update(&bytes));
            }
            // Removed while it was read.
            Err(Error::NoSuchKey) => return Ok(None),
            Err(Error::Damaged { what }) => return Ok(Some(Err(what))),
            // As when all replicas fail: it is named, and the others are read.
            Err(error) => return Ok(Some(Err(error.to_string()))),
        }
    }
    let differs = check.and_then(|check| check.finish().err());
    Ok(Some(match differs {
        Some(digest) => Err(format!("its content has another {digest} than it was put with")),
        None => Ok(size),
    }))
}

/// A part of an upload; none when it is gone.
async fn open_part(
    service: &Service,
    target: &Target,
    (upload, number): (UploadId, PartNumber),
) -> Result<Option<(ObjectInfo, BodyContent)>, Error> {
    let after = number.get() - 1;
    let mut before = None;
    loop {
        let ask = PartsRequest { target: target.clone(), upload, after, limit: 1 };
        let found = service.part_bodies(ask).await?.into_iter().find(|(it, _)| *it == number);
        let Some((_, info)) = found else { return Ok(None) };
        match service.content(target, &info).await {
            Ok(content) => return Ok(Some((info, content))),
            // Collection may have moved it.
            Err(Error::NoSuchKey) if before.as_ref() != Some(&info) => before = Some(info),
            Err(Error::NoSuchKey) => {
                return Err(Error::Damaged { what: "its file is not there".to_owned() });
            }
            Err(error) => return Err(error),
        }
    }
}
