//! Who asks (object protocols, 11.2): access keys with their secrets; and which rights each operation needs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use object_proto::{AccessKey, Backend, ObjectKey, Target, VersionId};
use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::{S3Auth, SecretKey};
use s3s::path::S3Path;
use s3s::{S3Error, S3ErrorCode, S3Result};

use crate::actions::{Action, actions_of, actions_of_new_bucket, later_actions_of};
use crate::clock;
use crate::errors::{internal, s3_error};
use crate::facts::{Client, Facts};
use crate::keyring::Keyring;
use crate::limits::{KEY_ID_MAX, KEYS_MAX};
use crate::requests::Note;
use crate::rights::{AskedObject, Known, Place, Places, Rights, Rule, Ruled, denied};
use crate::subresources;

/// Access keys of the backend, with secrets that were unwrapped and policies that were read once.
pub struct Keys {
    backend: Arc<dyn Backend>,
    secrets: Arc<Keyring>,
    known: Mutex<BTreeMap<String, Arc<Known>>>,
}

impl Keys {
    /// Keys of this backend, whose secrets the key file unwraps.
    pub fn new(backend: Arc<dyn Backend>, secrets: Arc<Keyring>) -> Keys {
        Keys { backend, secrets, known: Mutex::default() }
    }

    /// The access key of that ID, while it is valid.
    pub async fn find(&self, id: &str) -> S3Result<Arc<Known>> {
        if id.len() > KEY_ID_MAX {
            return Err(no_such_key());
        }
        let key = self.backend.access_key(id).await.map_err(s3_error)?;
        // S3 answers the same for a key that is switched off.
        let is_good = |key: &Arc<AccessKey>| {
            let now_us = clock::unix_seconds() * 1_000_000;
            key.enabled && key.expires_us.is_none_or(|end| now_us < end)
        };
        let key = key.filter(is_good).ok_or_else(no_such_key)?;
        let known = self.known.lock().expect("no panic while it is held").get(id).cloned();
        match known.filter(|known| Arc::ptr_eq(&known.key, &key)) {
            Some(known) => Ok(known),
            None => self.learn(key),
        }
    }

    fn learn(&self, key: Arc<AccessKey>) -> S3Result<Arc<Known>> {
        let secret = self.secrets.unwrap_secret(&key.id, &key.wrapped_secret).map_err(|cause| {
            tracing::warn!(access_key = %key.id, %cause, "an access key cannot be used");
            internal()
        })?;
        let user_rule = Rule::of_identity(key.user.policy.as_ref());
        let key_rule = Rule::of_identity(key.policy.as_ref());
        let id = key.id.clone();
        let known = Arc::new(Known { key, user_rule, key_rule, secret: SecretKey::from(secret) });
        let mut all = self.known.lock().expect("no panic while it is held");
        if all.len() >= KEYS_MAX {
            all.clear();
        }
        all.insert(id, known.clone());
        Ok(known)
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
#[derive(Clone)]
pub struct Access {
    /// Access keys.
    pub keys: Arc<Keys>,
    /// Buckets and their policies.
    pub places: Arc<Places>,
    /// Objects, whose tags policies may ask for.
    pub backend: Arc<dyn Backend>,
}

impl Access {
    /// Allows all that an operation asks for in a bucket that is there.
    pub async fn check_in(
        &self,
        rights: &Rights,
        operation: &str,
        (place, key): (&Ruled, Option<&str>),
        facts: Facts<'_>,
    ) -> S3Result<()> {
        let later = later_actions_of(operation);
        // The document of a caller who could be allowed nothing is not read. In a bulk delete each key is refused
        // by itself, to callers that are known.
        let is_each = operation == "DeleteObjects" && rights.user().is_some();
        let is_asked = !later.is_empty() && !is_each;
        if is_asked && !later.iter().any(|&action| rights.may_ever(action, place)) {
            return Err(denied());
        }
        let facts = facts.of_operation(operation);
        let actions = actions_of(operation, facts.has_version(), facts.headers());
        match key.map(ObjectKey::new) {
            Some(Ok(key)) => {
                let target = Target { bucket: place.view.bucket.id, key };
                let version = facts.parameter("versionId").and_then(VersionId::parse);
                let backend = &*self.backend;
                let object = AskedObject { backend, target: &target, version };
                rights.check_object(&actions, place, object, facts).await
            }
            // A key that is too long is refused by the operation, with its own error.
            Some(Err(_)) | None => {
                actions.iter().try_for_each(|&action| rights.check(action, (place, key), &facts))
            }
        }
    }
}

#[async_trait::async_trait]
impl S3Access for Access {
    async fn check(&self, cx: &mut S3AccessContext<'_>) -> S3Result<()> {
        let client = cx.extensions_mut().get::<Client>().copied();
        let who = match cx.credentials() {
            Some(credentials) => Some(self.keys.find(&credentials.access_key).await?),
            None => None,
        };
        let operation = cx.s3_op().name().to_owned();
        if let Some(note) = cx.extensions_mut().get::<Arc<Note>>() {
            note.asks(&operation, who.as_ref().map(|known| &known.key));
        }
        let rights = Rights::new(who);
        let (bucket, key) = match cx.s3_path() {
            S3Path::Root => (None, None),
            S3Path::Bucket { bucket } => (Some(bucket.to_string()), None),
            S3Path::Object { bucket, key } => (Some(bucket.to_string()), Some(key.to_string())),
        };
        let facts = Facts::new(cx.headers(), cx.uri(), client);
        let place = match (&bucket, operation.as_str()) {
            (None, "ListBuckets") => {
                rights.check_service(Action::LIST_ALL, "", &facts)?;
                None
            }
            (None, _) => return Err(denied()),
            (Some(bucket), "CreateBucket") => {
                for action in actions_of_new_bucket(cx.headers()) {
                    rights.check_service(action, bucket, &facts)?;
                }
                None
            }
            (Some(bucket), _) => {
                let expected = cx.headers().get("x-amz-expected-bucket-owner");
                let place = self.places.find(bucket, expected).await?;
                self.check_in(&rights, &operation, (&place, key.as_deref()), facts).await?;
                Some(place)
            }
        };
        subresources::check(&operation, cx.uri().query().unwrap_or_default())?;
        if let Some(place) = place {
            cx.extensions_mut().insert(Place(place));
        }
        cx.extensions_mut().insert(rights);
        Ok(())
    }
}
