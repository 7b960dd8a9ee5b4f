//! [`Sealer`]: encrypts what is written and decrypts what is read, by what requests and buckets ask
//! for (object protocols, 11.4).

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use http::header::HeaderMap;
use http::{Extensions, StatusCode};
use object_proto::{
    Backend, BodyPlan, BucketEncryption, BucketSettings, Content, DefaultEncryption, Etag,
    ObjectInfo, StorageRule, Target, Upload, sealed_len,
};
use s3s::crypto::{Checksum as _, Sha256};
use s3s::{S3Error, S3ErrorCode, S3Result};

use super::call::invocation_of;
use super::sse::{
    Asked, CustomerKey, OWN, check_read, check_way, names_customer_key, no_kms_key, show,
    show_context, unfit,
};
use crate::clock;
use crate::digest::Found;
use crate::errors::{coded, internal, s3_error};
use crate::hex;
use crate::seal::{
    Contents, DataKey, Envelope, Kms, KmsError, KmsFacts, OpenedContent, SealedUpload, Wrapped,
    check_of, kek_of, open_key, seal_key,
};

/// What the tag of an object is made for, of a call that may be repeated.
const OF_CALL: &[u8] = b"craton etag of a call\0";

/// What of a request says how it is encrypted.
pub type Ask<'a> = (&'a HeaderMap, &'a Extensions);

/// Encrypts and decrypts.
pub struct Sealer {
    kms: Arc<dyn Kms>,
    backend: Arc<dyn Backend>,
    /// Keys of which the catalog knows that they wrap something.
    used: Mutex<BTreeSet<String>>,
}

/// What a wrapped key is bound to: another object's row does not open it.
fn bound_to(target: &Target, context: &str) -> Vec<u8> {
    let key = target.key.as_str().as_bytes();
    let mut bound = target.bucket.get().to_le_bytes().to_vec();
    bound.extend((key.len() as u64).to_le_bytes());
    bound.extend(key);
    bound.extend(context.as_bytes());
    bound
}

fn damaged(target: &Target, what: &str) -> S3Error {
    tracing::error!(%target, "{what}: the object cannot be read");
    internal()
}

/// A wrapped key that does not open: said in the log, with the key's name.
fn not_opened(target: &Target, is_kms: bool, cause: &KmsError) -> S3Error {
    tracing::error!(%target, %cause, "an encrypted object cannot be read");
    match cause {
        KmsError::NoKey { key } if is_kms => coded(
            "KMS.NotFoundException",
            StatusCode::BAD_REQUEST,
            format!("Key '{key}' is not in the gateway's key file"),
        ),
        _ => internal(),
    }
}

fn is_locked() -> S3Error {
    unfit(
        "The object was stored using a form of Server Side Encryption. The correct parameters must \
         be provided to retrieve the object.",
    )
}

fn is_other_key() -> S3Error {
    S3Error::with_message(
        S3ErrorCode::AccessDenied,
        "Access Denied: the key that was provided is not the one that the object was encrypted with",
    )
}

impl Sealer {
    /// With keys that `kms` wraps.
    pub fn new(kms: Arc<dyn Kms>, backend: Arc<dyn Backend>) -> Sealer {
        Sealer { kms, backend, used: Mutex::default() }
    }

    /// The encryption of an object that a request is to make at `target`, or of an upload: what the
    /// request asks for, else what its bucket does.
    pub async fn of_new(
        &self,
        (headers, extensions): Ask<'_>,
        bucket: &BucketEncryption,
        target: &Target,
    ) -> S3Result<Sealing> {
        if bucket.blocks_customer_keys && names_customer_key(headers, OWN) {
            return Err(S3Error::with_message(
                S3ErrorCode::AccessDenied,
                "Access Denied: the bucket blocks encryption with keys of clients (SSE-C); its owner \
                 allows it by PutBucketEncryption, with BlockedEncryptionTypes NONE",
            ));
        }
        match Asked::of(headers)? {
            Asked::Customer(key) => {
                check_way(extensions)?;
                Sealing::of_customer(&key, target)
            }
            Asked::S3 => self.sealing(target, None, None).await,
            Asked::Kms(name, facts) => self.sealing(target, name, Some(facts)).await,
            Asked::Nothing => self.by_default(bucket, target).await,
        }
    }

    async fn by_default(&self, bucket: &BucketEncryption, target: &Target) -> S3Result<Sealing> {
        match &bucket.default {
            None => Ok(Sealing::default()),
            Some(DefaultEncryption::S3) => self.sealing(target, None, None).await,
            Some(DefaultEncryption::Kms { key, bucket_key }) => {
                let facts = KmsFacts { bucket_key: *bucket_key, ..KmsFacts::default() };
                self.sealing(target, key.clone(), Some(facts)).await
            }
        }
    }

    /// With a new key, wrapped by the key of that name.
    async fn sealing(
        &self,
        target: &Target,
        name: Option<String>,
        kms: Option<KmsFacts>,
    ) -> S3Result<Sealing> {
        let key = DataKey::new(clock::random_bytes().ok_or_else(internal)?);
        let context = kms.as_ref().map(|facts| facts.context.clone()).unwrap_or_default();
        let wrapped = self.kms.wrap(name.as_deref(), &key, &bound_to(target, &context)).await;
        let Wrapped { key: id, salt, bytes } = wrapped.map_err(|cause| match cause {
            KmsError::NoKey { key } => no_kms_key(&key),
            cause => {
                tracing::error!(%cause, "the key of an object cannot be wrapped");
                internal()
            }
        })?;
        self.note_use(id.to_string()).await?;
        let contents = match kms {
            None => Contents::S3(id),
            Some(facts) => Contents::Kms(id, facts),
        };
        let envelope = Envelope { contents, salt, wrapped: bytes };
        Ok(Sealing(Some(Sealed { key, envelope, md5: None })))
    }

    /// No row has what a key wrapped before the catalog knows that it does.
    async fn note_use(&self, key: String) -> S3Result<()> {
        let is_known = self.used.lock().expect("no panic while it is held").contains(&key);
        if !is_known {
            self.backend.use_key(key.clone()).await.map_err(s3_error)?;
            self.used.lock().expect("no panic while it is held").insert(key);
        }
        Ok(())
    }

    /// The encryption of a part of an upload that was begun with that envelope. What a part asks for
    /// beside a client's key says nothing: the upload was asked.
    pub async fn of_part(
        &self,
        (headers, extensions): Ask<'_>,
        target: &Target,
        envelope: Option<&object_proto::Envelope>,
    ) -> S3Result<Sealing> {
        let names_key = names_customer_key(headers, OWN);
        let Some(row) = envelope else {
            return match names_key {
                false => Ok(Sealing::default()),
                true => Err(unfit(
                    "The multipart upload initiate did not request encryption. Please resend the \
                     request without sending encryption parameters.",
                )),
            };
        };
        let envelope = read(target, row)?;
        let is_customers = matches!(envelope.contents, Contents::Customer(_));
        if is_customers && !names_key {
            return Err(unfit(
                "The multipart upload initiate requested encryption. Subsequent part requests must \
                 include the appropriate encryption parameters.",
            ));
        }
        let other =
            || unfit("The provided encryption parameters did not match the ones used originally.");
        if names_key && !is_customers {
            return Err(other());
        }
        let customer = CustomerKey::of(headers, OWN, true)?;
        if customer.is_some() {
            check_way(extensions)?;
        }
        let key = match &customer {
            Some(key) => opened_by(key, &envelope, target)?.ok_or_else(other)?,
            None => self.unwrap(&envelope, target).await?,
        };
        let md5 = customer.map(|key| key.md5);
        Ok(Sealing(Some(Sealed { key, envelope, md5 })))
    }

    /// The key of an object that a key of the key file wraps.
    async fn unwrap(&self, envelope: &Envelope, target: &Target) -> S3Result<DataKey> {
        let (key, context, is_kms) = match &envelope.contents {
            Contents::S3(key) => (key, "", false),
            Contents::Kms(key, facts) => (key, facts.context.as_str(), true),
            Contents::Customer(_) => return Err(is_locked()),
        };
        let wrapped = Wrapped { key: key.clone(), salt: envelope.salt, bytes: envelope.wrapped };
        let key = self.kms.unwrap(&wrapped, &bound_to(target, context)).await;
        key.map_err(|cause| not_opened(target, is_kms, &cause))
    }

    /// An object that is stored so, as a request may see it: headers with that beginning have the
    /// client's key.
    pub fn opening(
        &self,
        (headers, extensions): Ask<'_>,
        start: &str,
        (target, stored): (&Target, ObjectInfo),
    ) -> S3Result<Opening> {
        if start == OWN {
            check_read(headers)?;
        }
        let customer = CustomerKey::of(headers, start, false)?;
        if customer.is_some() {
            check_way(extensions)?;
        }
        let not_applicable =
            || unfit("The encryption parameters are not applicable to this object.");
        let Some(row) = stored.object.facts.encryption.clone() else {
            return match customer {
                None => Ok(Opening { info: stored, sealed: None }),
                Some(_) => Err(not_applicable()),
            };
        };
        let envelope = read(target, &row)?;
        let (key, md5) = match (&envelope.contents, customer) {
            (Contents::Customer(_), None) => return Err(is_locked()),
            (Contents::Customer(_), Some(customer)) => {
                let key = opened_by(&customer, &envelope, target)?.ok_or_else(is_other_key)?;
                (Some(key), Some(customer.md5))
            }
            (Contents::S3(_) | Contents::Kms(..), Some(_)) => return Err(not_applicable()),
            (Contents::S3(_) | Contents::Kms(..), None) => (None, None),
        };
        let info = stored.clone().of_content();
        let info =
            info.ok_or_else(|| damaged(target, "the length of an encrypted body is none"))?;
        let target = target.clone();
        Ok(Opening { info, sealed: Some(OpenedSeal { target, stored, envelope, key, md5 }) })
    }

    /// The content of such an object.
    pub async fn content(
        &self,
        opening: &Opening,
        content: Box<dyn Content>,
    ) -> S3Result<Box<dyn Content>> {
        let Some(sealed) = &opening.sealed else { return Ok(content) };
        let key = match &sealed.key {
            Some(key) => key.clone(),
            None => self.unwrap(&sealed.envelope, &sealed.target).await?,
        };
        let opened = OpenedContent::new(content, key, sealed.stored.clone());
        Ok(Box::new(opened.map_err(s3_error)?))
    }
}

fn read(target: &Target, row: &object_proto::Envelope) -> S3Result<Envelope> {
    Envelope::decode(row).ok_or_else(|| {
        damaged(target, "the envelope of an encrypted object is damaged, or of a newer gateway")
    })
}

/// The key of an object that a client's key wraps; `None` for another client's key.
fn opened_by(
    customer: &CustomerKey,
    envelope: &Envelope,
    target: &Target,
) -> S3Result<Option<DataKey>> {
    let Contents::Customer(check) = &envelope.contents else { return Ok(None) };
    if check_of(&customer.master, &envelope.salt) != *check {
        return Ok(None);
    }
    let kek = kek_of(&customer.master, &envelope.salt);
    let key = open_key(&kek, &envelope.wrapped, &bound_to(target, ""));
    let damage = "the envelope of an encrypted object is damaged, or another object's";
    key.map(Some).ok_or_else(|| damaged(target, damage))
}

struct Sealed {
    key: DataKey,
    envelope: Envelope,
    /// MD5 of the client's key.
    md5: Option<String>,
}

/// The encryption of an object or part that is written; none by default.
#[derive(Default)]
pub struct Sealing(Option<Sealed>);

impl Sealing {
    fn of_customer(customer: &CustomerKey, target: &Target) -> S3Result<Sealing> {
        let key = DataKey::new(clock::random_bytes().ok_or_else(internal)?);
        let salt = clock::random_bytes().ok_or_else(internal)?;
        let kek = kek_of(&customer.master, &salt);
        let envelope = Envelope {
            contents: Contents::Customer(check_of(&customer.master, &salt)),
            salt,
            wrapped: seal_key(&kek, &key, &bound_to(target, "")),
        };
        Ok(Sealing(Some(Sealed { key, envelope, md5: Some(customer.md5.clone()) })))
    }

    /// How a content of `len` is stored in a bucket. What is encrypted cannot be compressed.
    pub fn plan(&self, len: Option<u64>, settings: &BucketSettings) -> BodyPlan {
        let storage = settings.storage;
        match self.0.is_some() {
            true => BodyPlan {
                len: len.map(sealed_len),
                storage: StorageRule { compression: None, ..storage },
            },
            false => BodyPlan { len, storage },
        }
    }

    /// The upload that is written through: of a part, or of a whole object for 0.
    pub fn upload(&self, inner: Box<dyn Upload>, part: u16) -> S3Result<Box<dyn Upload>> {
        let Some(sealed) = &self.0 else { return Ok(inner) };
        let head = clock::random_bytes().ok_or_else(internal)?;
        Ok(Box::new(SealedUpload::new(inner, &sealed.key, head, part)))
    }

    /// What rows have of it.
    pub fn envelope(&self) -> Option<object_proto::Envelope> {
        self.0.as_ref().map(|sealed| sealed.envelope.encode())
    }

    /// The key, where tags are not to show the content's MD5: with SSE-KMS and SSE-C, as in S3.
    fn hiding(&self) -> Option<&DataKey> {
        let sealed = self.0.as_ref()?;
        match sealed.envelope.contents {
            Contents::S3(_) => None,
            Contents::Kms(..) | Contents::Customer(_) => Some(&sealed.key),
        }
    }

    /// The tag of an object with that content. A request that is repeated makes the same one: it is
    /// answered with the tag that the first one stored.
    pub fn etag(&self, found: &Found, headers: &HeaderMap) -> Etag {
        match invocation_of(headers).filter(|_| self.hiding().is_some()) {
            None => self.part_etag(found),
            Some(call) => {
                let mut hash = Sha256::new();
                hash.update(OF_CALL);
                hash.update(call);
                hash.update(&found.md5);
                Etag::new(hex::encode(&hash.finalize()[..16]))
            }
        }
    }

    /// The tag of a part with that content.
    pub fn part_etag(&self, found: &Found) -> Etag {
        match self.hiding() {
            None => found.etag(),
            Some(key) => Etag::new(hex::encode(&key.etag(&found.md5))),
        }
    }

    /// Headers of the answer.
    pub fn headers(&self) -> S3Result<HeaderMap> {
        let mut headers = HeaderMap::new();
        if let Some(Sealed { envelope, md5, .. }) = &self.0 {
            show(&mut headers, envelope, md5.as_deref())?;
            show_context(&mut headers, envelope);
        }
        Ok(headers)
    }
}

struct OpenedSeal {
    target: Target,
    stored: ObjectInfo,
    envelope: Envelope,
    /// Where the client's key has opened it.
    key: Option<DataKey>,
    md5: Option<String>,
}

/// An object that a request may see.
pub struct Opening {
    /// The object, with sizes of its content.
    pub info: ObjectInfo,
    sealed: Option<OpenedSeal>,
}

impl Opening {
    /// Adds headers of the answer.
    pub fn show(&self, headers: &mut HeaderMap) -> S3Result<()> {
        match &self.sealed {
            None => Ok(()),
            Some(OpenedSeal { envelope, md5, .. }) => show(headers, envelope, md5.as_deref()),
        }
    }
}

/// Headers of an answer on an upload that was begun with that envelope.
pub fn upload_headers(envelope: Option<&object_proto::Envelope>) -> S3Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    // What cannot be read is found where a part is written or read.
    let envelope = envelope.and_then(Envelope::decode);
    if let Some(envelope) = envelope.filter(|one| !matches!(one.contents, Contents::Customer(_))) {
        show(&mut headers, &envelope, None)?;
    }
    Ok(headers)
}
