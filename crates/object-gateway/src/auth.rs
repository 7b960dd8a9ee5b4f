//! Who asks, and who may (object protocols, 11.2): access keys with their secrets, and access to
//! buckets. Everything that is not allowed is denied.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use http::header::HeaderValue;
use object_proto::{AccessKey, Backend, Bucket, BucketName, BucketView, User};
use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::{S3Auth, SecretKey};
use s3s::path::S3Path;
use s3s::{S3Error, S3ErrorCode, S3Result};
use tokio::time::Instant;

use crate::errors::{internal, s3_error};
use crate::keyfile::KeyFile;
use crate::limits::{KEY_AGE, KEY_ID_MAX, KEYS_MAX};

/// The user that a request is signed by; an extension of requests.
#[derive(Clone, Debug)]
pub struct Caller(pub User);

/// The bucket that a request concerns; an extension of requests.
#[derive(Clone, Debug)]
pub struct Place(pub Arc<BucketView>);

/// An access key with its secret.
struct Known {
    key: Arc<AccessKey>,
    secret: SecretKey,
}

struct Entry {
    asked: Instant,
    known: Option<Arc<Known>>,
}

/// Access keys, asked of the backend and kept for a moment.
pub struct Keys {
    backend: Arc<dyn Backend>,
    secrets: Arc<KeyFile>,
    cache: Mutex<BTreeMap<String, Entry>>,
}

impl Keys {
    /// Keys of this backend, whose secrets the key file unwraps.
    pub fn new(backend: Arc<dyn Backend>, secrets: Arc<KeyFile>) -> Keys {
        Keys { backend, secrets, cache: Mutex::default() }
    }

    async fn find(&self, id: &str) -> S3Result<Arc<Known>> {
        if id.len() > KEY_ID_MAX {
            return Err(no_such_key());
        }
        let asked = Instant::now();
        let known = match self.cached(id, asked) {
            Some(known) => known,
            None => {
                let known = self.ask(id).await?;
                self.keep(id, Entry { asked, known: known.clone() });
                known
            }
        };
        // S3 answers the same for a key that is switched off.
        known.filter(|known| known.key.enabled).ok_or_else(no_such_key)
    }

    fn cached(&self, id: &str, now: Instant) -> Option<Option<Arc<Known>>> {
        let cache = self.cache.lock().expect("no panic while it is held");
        let entry = cache.get(id).filter(|entry| now - entry.asked < KEY_AGE)?;
        Some(entry.known.clone())
    }

    fn keep(&self, id: &str, entry: Entry) {
        let mut cache = self.cache.lock().expect("no panic while it is held");
        if cache.len() >= KEYS_MAX && !cache.contains_key(id) {
            cache.retain(|_, other| entry.asked - other.asked < KEY_AGE);
            if cache.len() >= KEYS_MAX {
                cache.clear(); // So many keys in a second are mostly made-up ones.
            }
        }
        cache.insert(id.to_owned(), entry);
    }

    async fn ask(&self, id: &str) -> S3Result<Option<Arc<Known>>> {
        let Some(key) = self.backend.access_key(id).await.map_err(s3_error)? else {
            return Ok(None);
        };
        match self.secrets.unwrap(id, &key.wrapped_secret) {
            Ok(secret) => Ok(Some(Arc::new(Known { key, secret: SecretKey::from(secret) }))),
            Err(cause) => {
                tracing::warn!(access_key = %id, %cause, "an access key cannot be used");
                Err(internal())
            }
        }
    }
}

fn no_such_key() -> S3Error {
    S3Error::with_message(
        S3ErrorCode::InvalidAccessKeyId,
        "The AWS Access Key Id you provided does not exist in our records.",
    )
}

/// Secrets of access keys, as s3s asks for them.
pub struct Secrets(pub Arc<Keys>);

#[async_trait::async_trait]
impl S3Auth for Secrets {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        Ok(self.0.find(access_key).await?.secret.clone())
    }
}

/// Access to operations. It runs before a body is read.
pub struct Access {
    /// Access keys.
    pub keys: Arc<Keys>,
    /// Buckets and their owners.
    pub backend: Arc<dyn Backend>,
}

#[async_trait::async_trait]
impl S3Access for Access {
    async fn check(&self, cx: &mut S3AccessContext<'_>) -> S3Result<()> {
        let Some(credentials) = cx.credentials() else { return Err(denied()) };
        let known = self.keys.find(&credentials.access_key).await?;
        let user = known.key.user.clone();
        let is_creation = cx.s3_op().name() == "CreateBucket";
        let name = match cx.s3_path() {
            S3Path::Root if cx.s3_op().name() == "ListBuckets" => None,
            S3Path::Root => return Err(denied()),
            S3Path::Bucket { .. } if is_creation => None,
            S3Path::Bucket { bucket } | S3Path::Object { bucket, .. } => Some(bucket),
        };
        if let Some(name) = name {
            let invalid = |_| S3Error::new(S3ErrorCode::InvalidBucketName);
            let name = BucketName::new(name).map_err(invalid)?;
            let bucket = self.backend.bucket(name).await.map_err(s3_error)?;
            let owner = cx.headers().get("x-amz-expected-bucket-owner");
            check_bucket(&user, &bucket.bucket, owner)?;
            cx.extensions_mut().insert(Place(bucket));
        }
        cx.extensions_mut().insert(Caller(user));
        Ok(())
    }
}

/// The user may use the bucket, and it is of the owner that the request expects.
pub fn check_bucket(user: &User, bucket: &Bucket, expected: Option<&HeaderValue>) -> S3Result<()> {
    let is_other = expected.is_some_and(|owner| owner != bucket.owner.as_str());
    match !is_other && (user.admin || user.id == bucket.owner) {
        true => Ok(()),
        false => Err(denied()),
    }
}

fn denied() -> S3Error {
    S3Error::with_message(S3ErrorCode::AccessDenied, "Access Denied")
}
