//! The S3 client of the load: objects of a bucket, each request on a connection of its worker.

use std::cell::RefCell;
use std::collections::BTreeMap;

use runtime::{Buf, Env, Rng};

use super::super::Error;
use super::http::Connection;
use super::options::ObjectOptions;
use super::sign::{Request, Signer, UNSIGNED, sha256, sha256_base64, sha256_of};

/// Different contents of objects of one size, and the distance of their first bytes in the noise
/// that all of them are taken from, again from its start when it ends.
const CONTENTS: u64 = 16;
const CONTENT_STEP: usize = 64;
/// Bytes of the noise: no power of two, so that pieces of a body differ.
const NOISE_BYTES: usize = (1 << 20) - 4160;
/// Keys of one bulk delete, which is S3's bound, and of one page of a list.
pub(super) const KEYS_OF_CALL: usize = 1000;
/// Bytes of an error's document that are shown.
const ERROR_SHOWN: usize = 400;

/// A bucket of the measurement.
pub(super) struct S3<'a> {
    env: Env,
    options: &'a ObjectOptions,
    signer: Signer,
    bucket: String,
    noise: Buf,
    hashes: RefCell<BTreeMap<(usize, u64), String>>,
    /// Of workers; none while a request is under way, and before the first.
    connections: Vec<RefCell<Option<Connection>>>,
}

impl<'a> S3<'a> {
    /// Makes the bucket, for this many workers.
    pub(super) async fn make(
        env: &Env,
        options: &'a ObjectOptions,
        workers: usize,
    ) -> Result<S3<'a>, Error> {
        let mut noise = vec![0; NOISE_BYTES];
        Rng::new(5).fill(&mut noise);
        let signer = Signer {
            host: options.endpoint.to_string(),
            region: options.region.clone(),
            access_key: options.access_key.clone(),
            secret_key: options.secret_key.clone(),
            of_day: RefCell::default(),
        };
        let s3 = S3 {
            env: env.clone(),
            options,
            signer,
            bucket: format!("bench-object-{:016x}", env.random_u64()),
            noise: env.pool().copy_of(&noise).map_err(Error::failed)?,
            hashes: RefCell::default(),
            connections: (0..workers).map(|_| RefCell::default()).collect(),
        };
        s3.send(0, ("PUT", ""), "", None).await?;
        Ok(s3)
    }

    /// Removes the bucket, which must be empty.
    pub(super) async fn remove(&self) -> Result<(), Error> {
        self.send(0, ("DELETE", ""), "", None).await
    }

    /// Content number `n` of `size` bytes, in parts.
    fn content(&self, size: usize, n: u64) -> Vec<Buf> {
        let (mut start, mut left) = ((n % CONTENTS) as usize * CONTENT_STEP, size);
        let mut parts = Vec::new();
        while left > 0 {
            let len = left.min(NOISE_BYTES - start);
            parts.push(self.noise.slice(start..start + len));
            (start, left) = (0, left - len);
        }
        parts
    }

    /// Puts content number `n` of `size` bytes.
    pub(super) async fn put(
        &self,
        worker: usize,
        key: &str,
        size: usize,
        n: u64,
    ) -> Result<(), Error> {
        let content = self.content(size, n);
        let hash = match self.options.signed {
            true => {
                let mut hashes = self.hashes.borrow_mut();
                let known = hashes
                    .entry((size, n % CONTENTS))
                    .or_insert_with(|| sha256_of(content.iter().map(|part| &part[..])));
                known.clone()
            }
            false => UNSIGNED.to_owned(),
        };
        self.send(worker, ("PUT", key), "", Some((content, hash))).await
    }

    /// Reads an object, and compares it with content number `n` of `size` bytes.
    pub(super) async fn get(
        &self,
        worker: usize,
        key: &str,
        size: usize,
        n: u64,
    ) -> Result<(), Error> {
        let content = self.content(size, n);
        let mut rest = content.iter().map(|part| &part[..]);
        let (mut wanted, mut left, mut equal) = (rest.next().unwrap_or_default(), size, true);
        let compare = |mut piece: &[u8]| {
            equal &= piece.len() <= left;
            while equal && !piece.is_empty() {
                let len = wanted.len().min(piece.len());
                equal &= piece[..len] == wanted[..len];
                (piece, wanted, left) = (&piece[len..], &wanted[len..], left - len);
                if wanted.is_empty() {
                    wanted = rest.next().unwrap_or_default();
                }
            }
        };
        self.request(worker, ("GET", key), "", None, compare).await?;
        match equal && left == 0 {
            true => Ok(()),
            false => Err(Error::Failed(format!("S3: {key} is read otherwise than it was written"))),
        }
    }

    /// Lists a page of at most [`KEYS_OF_CALL`] names with this query; fails when it has not `want`
    /// elements `<NAME>` of the name `element`.
    pub(super) async fn list(
        &self,
        worker: usize,
        query: &str,
        (element, want): (&str, usize),
    ) -> Result<(), Error> {
        let mut text = Vec::new();
        let take = |piece: &[u8]| text.extend_from_slice(piece);
        self.request(worker, ("GET", ""), query, None, take).await?;
        let text = String::from_utf8_lossy(&text);
        match text.matches(element).count() {
            found if found == want => Ok(()),
            found => Err(Error::Failed(format!("S3: a list has {found} {element} of {want}"))),
        }
    }

    /// Deletes some keys, at most [`KEYS_OF_CALL`].
    pub(super) async fn delete(&self, worker: usize, keys: &[String]) -> Result<(), Error> {
        let mut document = "<Delete><Quiet>true</Quiet>".to_owned();
        keys.iter().for_each(|key| document += &format!("<Object><Key>{key}</Key></Object>"));
        document += "</Delete>";
        let body = self.env.pool().copy_of(document.as_bytes()).map_err(Error::failed)?;
        let hash = sha256(&body);
        let mut text = Vec::new();
        let take = |piece: &[u8]| text.extend_from_slice(piece);
        self.request(worker, ("POST", ""), "delete=", Some((vec![body], hash)), take).await?;
        let text = String::from_utf8_lossy(&text);
        match text.contains("<Error>") {
            true => Err(Error::Failed(format!("S3: objects are not deleted: {}", shown(&text)))),
            false => Ok(()),
        }
    }

    async fn send(
        &self,
        worker: usize,
        what: (&str, &str),
        query: &str,
        body: Option<(Vec<Buf>, String)>,
    ) -> Result<(), Error> {
        self.request(worker, what, query, body, |_| ()).await
    }

    /// A request, method and key, with a body and its hash; fails unless it is answered with success.
    async fn request(
        &self,
        worker: usize,
        (method, key): (&str, &str),
        query: &str,
        body: Option<(Vec<Buf>, String)>,
        mut sink: impl FnMut(&[u8]),
    ) -> Result<(), Error> {
        let path = match key {
            "" => format!("/{}", self.bucket),
            key => format!("/{}/{key}", self.bucket),
        };
        let (body, payload) = match body {
            Some(body) => body,
            None => (Vec::new(), sha256(b"")),
        };
        // A document, which is in one part.
        let checksum = (method == "POST").then(|| sha256_base64(&body[0]));
        let request = Request {
            method,
            path: &path,
            query,
            payload: &payload,
            len: body.iter().map(|part| part.len()).sum(),
            checksum: checksum.as_deref(),
        };
        let head = self.signer.head(self.env.unix_time(), &request);
        let place = &self.connections[worker];
        let known = place.take();
        let mut connection = match known {
            Some(connection) => connection,
            None => Connection::open(&self.env, self.options.endpoint).await?,
        };
        let mut first = Vec::new();
        let take = |piece: &[u8]| {
            let room = ERROR_SHOWN.saturating_sub(first.len()).min(piece.len());
            first.extend_from_slice(&piece[..room]);
            sink(piece);
        };
        let status = connection.ask(&head, body, take).await?;
        place.replace(Some(connection));
        match status {
            200..300 => Ok(()),
            status => {
                let said = String::from_utf8_lossy(&first).into_owned();
                Err(Error::Failed(format!("S3: {method} {path} {query}: {status}: {said}")))
            }
        }
    }
}

fn shown(text: &str) -> String {
    text.chars().take(ERROR_SHOWN).collect()
}
