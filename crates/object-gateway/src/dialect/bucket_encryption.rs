//! GetBucketEncryption, PutBucketEncryption and DeleteBucketEncryption. s3s does not know the
//! element `BlockedEncryptionTypes` and refuses documents with it, so the first two are a route of
//! ours past its operations.

use std::sync::Arc;

use futures_util::StreamExt;
use http::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderValue};
use http::{Extensions, Method, Uri};
use object_proto::{BucketEncryption, DefaultEncryption, Setting};
use s3s::dto::{
    DeleteBucketEncryptionInput, DeleteBucketEncryptionOutput, ServerSideEncryption,
    ServerSideEncryptionByDefault,
};
use s3s::route::S3Route;
use s3s::xml::{DeError, Deserializer};
use s3s::{Body, S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use super::settings::{set, settings_of};
use super::sse::{invalid, key_name, no_layers};
use super::state::{State, context_of};
use super::unset::Missing;
use crate::auth::Access;
use crate::errors::{internal, refused};
use crate::facts::{Client, Facts};
use crate::hosts::Domains;
use crate::query::Query;
use crate::reply::{Target, escape};
use crate::requests::Note;
use crate::rights::{Place, Rights, denied};

/// Bytes of a document at most: S3's have a few hundred.
const DOCUMENT_MAX: usize = 64 << 10;
/// What blocks SSE-C.
const SSE_C: &str = "SSE-C";
/// What blocks nothing.
const NONE: &str = "NONE";

/// The way of the two operations past those of s3s.
pub struct EncryptionRoute {
    /// What operations stand on.
    pub state: State,
    /// Who may.
    pub access: Access,
    /// Hosts that name buckets.
    pub domains: Domains,
}

impl EncryptionRoute {
    fn names(&self, uri: &Uri, headers: &HeaderMap) -> (String, String) {
        let host = headers.get(HOST).and_then(|host| host.to_str().ok());
        let host_bucket = host.and_then(|host| self.domains.bucket_of(host));
        Target { path: uri.path(), host_bucket, has_source: false }.names()
    }
}

#[async_trait::async_trait]
impl S3Route for EncryptionRoute {
    fn is_match(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
        _: &mut Extensions,
    ) -> bool {
        let asks = || Query::parse(uri.query().unwrap_or_default()).has("encryption");
        let names = || self.names(uri, headers);
        matches!(*method, Method::GET | Method::PUT)
            && asks()
            && matches!(names(), (bucket, key) if !bucket.is_empty() && key.is_empty())
    }

    /// As [`Access`] checks operations of s3s.
    async fn check_access(&self, request: &mut S3Request<Body>) -> S3Result<()> {
        let (bucket, _) = self.names(&request.uri, &request.headers);
        let who = match &request.credentials {
            Some(credentials) => Some(self.access.keys.find(&credentials.access_key).await?),
            None => None,
        };
        let operation = match request.method {
            Method::PUT => "PutBucketEncryption",
            Method::GET => "GetBucketEncryption",
            _ => return Err(denied()),
        };
        if let Some(note) = request.extensions.get::<Arc<Note>>() {
            note.asks(operation, who.as_ref().map(|known| &known.key));
        }
        let rights = Rights::new(who);
        let expected = request.headers.get("x-amz-expected-bucket-owner");
        let place = self.access.places.find(&bucket, expected).await?;
        let client = request.extensions.get::<Client>().copied();
        let facts = Facts::new(&request.headers, &request.uri, client);
        self.access.check_in(&rights, operation, (&place, None), facts).await?;
        request.extensions.insert(Place(place));
        request.extensions.insert(rights);
        Ok(())
    }

    async fn call(&self, mut request: S3Request<Body>) -> S3Result<S3Response<Body>> {
        let now = &settings_of(&request)?.encryption;
        if request.method == Method::GET {
            let is_new = *now == self.state.new_buckets.encryption;
            let text = document_of(now).filter(|_| !is_new);
            let text = text.ok_or_else(|| Missing::Encryption.error())?;
            let mut response = S3Response::new(Body::from(text));
            let xml = HeaderValue::from_static("application/xml");
            response.headers.insert(CONTENT_TYPE, xml);
            return Ok(response);
        }
        let setting = setting_of(&read(&mut request).await?)?;
        set(&self.state, &request, setting).await?;
        Ok(S3Response::new(Body::empty()))
    }
}

/// Has new objects of a bucket not be encrypted where their requests do not ask for it. SSE-C stays
/// blocked or not, as the bucket has it by then.
pub async fn delete_encryption(
    state: &State,
    request: S3Request<DeleteBucketEncryptionInput>,
) -> S3Result<S3Response<DeleteBucketEncryptionOutput>> {
    set(state, &request, Setting::DefaultEncryption(None)).await?;
    Ok(S3Response::new(DeleteBucketEncryptionOutput {}))
}

/// Reads the document, whose digests are checked on the way.
async fn read(request: &mut S3Request<Body>) -> S3Result<Vec<u8>> {
    let context = context_of(request)?.clone();
    let mut text = Vec::new();
    while let Some(data) = request.input.next().await {
        let data = data.map_err(|_| context.failure().map_or_else(internal, refused))?;
        if text.len() + data.len() > DOCUMENT_MAX {
            return Err(S3Error::new(S3ErrorCode::MaxMessageLengthExceeded));
        }
        text.extend_from_slice(&data);
    }
    Ok(text)
}

/// What a rule says.
#[derive(Default)]
struct Rule {
    default: Option<ServerSideEncryptionByDefault>,
    bucket_key: Option<bool>,
    blocked: Option<Vec<String>>,
}

fn once<T>(field: &mut Option<T>, value: T) -> Result<(), DeError> {
    match field.replace(value) {
        None => Ok(()),
        Some(_) => Err(DeError::DuplicateField),
    }
}

fn rules_of(text: &[u8]) -> Result<Vec<Rule>, DeError> {
    let mut xml = Deserializer::new(text);
    let mut rules = Vec::new();
    xml.named_element("ServerSideEncryptionConfiguration", |xml| {
        xml.for_each_element(|xml, name| match name {
            b"Rule" => {
                rules.push(rule_of(xml)?);
                Ok(())
            }
            _ => Err(DeError::UnexpectedTagName),
        })
    })?;
    xml.expect_eof()?;
    Ok(rules)
}

fn rule_of(xml: &mut Deserializer<'_>) -> Result<Rule, DeError> {
    let mut rule = Rule::default();
    xml.for_each_element(|xml, name| match name {
        b"ApplyServerSideEncryptionByDefault" => once(&mut rule.default, xml.content()?),
        b"BucketKeyEnabled" => once(&mut rule.bucket_key, xml.content()?),
        b"BlockedEncryptionTypes" => {
            let mut blocked = Vec::new();
            xml.for_each_element(|xml, name| match name {
                b"EncryptionType" => {
                    blocked.push(xml.content()?);
                    Ok(())
                }
                _ => Err(DeError::UnexpectedTagName),
            })?;
            once(&mut rule.blocked, blocked)
        }
        _ => Err(DeError::UnexpectedTagName),
    })?;
    Ok(rule)
}

/// What a document sets; where it does not speak of SSE-C, the default alone.
fn setting_of(text: &[u8]) -> S3Result<Setting> {
    let malformed = || S3Error::new(S3ErrorCode::MalformedXML);
    let rules = rules_of(text).map_err(|_| malformed())?;
    let Ok([rule]) = <[Rule; 1]>::try_from(rules) else { return Err(malformed()) };
    let blocks_customer_keys = match rule.blocked.as_deref() {
        None => None,
        Some([one]) if one == SSE_C => Some(true),
        Some([one]) if one == NONE => Some(false),
        Some(_) => return Err(malformed()),
    };
    let default = match rule.default {
        None if rule.blocked.is_none() => return Err(malformed()),
        None => None,
        Some(default) => Some(default_of(default, rule.bucket_key == Some(true))?),
    };
    Ok(match blocks_customer_keys {
        None => Setting::DefaultEncryption(default),
        Some(blocks_customer_keys) => {
            Setting::Encryption(BucketEncryption { default, blocks_customer_keys })
        }
    })
}

fn default_of(
    asked: ServerSideEncryptionByDefault,
    bucket_key: bool,
) -> S3Result<DefaultEncryption> {
    let key = asked.kms_master_key_id.filter(|key| !key.is_empty());
    match asked.sse_algorithm.as_str() {
        ServerSideEncryption::AES256 if key.is_some() => Err(invalid(
            "a KMSMasterKeyID is not applicable if the default sse algorithm is AES256",
        )),
        ServerSideEncryption::AES256 => Ok(DefaultEncryption::S3),
        ServerSideEncryption::AWS_KMS => {
            let key = key.map(|key| key_name(&key)).transpose()?.flatten();
            Ok(DefaultEncryption::Kms { key, bucket_key })
        }
        ServerSideEncryption::AWS_KMS_DSSE => Err(no_layers()),
        _ => Err(S3Error::new(S3ErrorCode::MalformedXML)),
    }
}

/// The document of a bucket that is not as a new one; its objects are then not said to be encrypted
/// when they are not.
fn document_of(encryption: &BucketEncryption) -> Option<String> {
    if *encryption == BucketEncryption::default() {
        return None;
    }
    let (default, bucket_key) = match &encryption.default {
        None => (None, false),
        Some(DefaultEncryption::S3) => (Some((ServerSideEncryption::AES256, None)), false),
        Some(DefaultEncryption::Kms { key, bucket_key }) => {
            (Some((ServerSideEncryption::AWS_KMS, key.as_deref())), *bucket_key)
        }
    };
    let default = default.map(|(algorithm, key)| {
        let key = key.map(|key| format!("<KMSMasterKeyID>{}</KMSMasterKeyID>", escape(key)));
        format!(
            "<ApplyServerSideEncryptionByDefault><SSEAlgorithm>{algorithm}</SSEAlgorithm>{}\
             </ApplyServerSideEncryptionByDefault><BucketKeyEnabled>{bucket_key}</BucketKeyEnabled>",
            key.unwrap_or_default()
        )
    });
    let blocked = if encryption.blocks_customer_keys { SSE_C } else { NONE };
    Some(format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?><ServerSideEncryptionConfiguration \
         xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Rule>{}<BlockedEncryptionTypes>\
         <EncryptionType>{blocked}</EncryptionType></BlockedEncryptionTypes></Rule>\
         </ServerSideEncryptionConfiguration>",
        default.unwrap_or_default()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(rule: &str) -> String {
        format!("<ServerSideEncryptionConfiguration>{rule}</ServerSideEncryptionConfiguration>")
    }

    fn by_default(inner: &str) -> String {
        let inner = format!(
            "<ApplyServerSideEncryptionByDefault>{inner}</ApplyServerSideEncryptionByDefault>"
        );
        format!("<Rule>{inner}</Rule>")
    }

    #[test]
    fn what_is_set_is_shown_and_read_back() {
        let kms = |key: Option<&str>, bucket_key| {
            Some(DefaultEncryption::Kms { key: key.map(str::to_owned), bucket_key })
        };
        assert_eq!(document_of(&BucketEncryption::default()), None);
        for default in
            [None, Some(DefaultEncryption::S3), kms(None, false), kms(Some("payroll"), true)]
        {
            for blocks_customer_keys in [false, true] {
                let encryption =
                    BucketEncryption { default: default.clone(), blocks_customer_keys };
                let Some(text) = document_of(&encryption) else { continue };
                let read = setting_of(text.as_bytes());
                assert_eq!(read.ok(), Some(Setting::Encryption(encryption)));
            }
        }
    }

    #[test]
    fn what_a_document_does_not_say_of_keys_of_clients_stays() {
        let text = document(&by_default("<SSEAlgorithm>AES256</SSEAlgorithm>"));
        let read = setting_of(text.as_bytes()).expect("a document");
        assert_eq!(read, Setting::DefaultEncryption(Some(DefaultEncryption::S3)));
    }

    #[test]
    fn documents_that_are_none_are_refused() {
        let aes = by_default("<SSEAlgorithm>AES256</SSEAlgorithm>");
        let blocked = |types: &str| {
            let types = format!("<BlockedEncryptionTypes>{types}</BlockedEncryptionTypes>");
            format!("<Rule>{types}</Rule>")
        };
        let of = |name: &str| format!("<EncryptionType>{name}</EncryptionType>");
        for (rule, code) in [
            (String::new(), "MalformedXML"),
            ("<Rule></Rule>".to_owned(), "MalformedXML"),
            (format!("{aes}{aes}"), "MalformedXML"),
            (by_default("<SSEAlgorithm>DES</SSEAlgorithm>"), "MalformedXML"),
            (by_default("<KMSMasterKeyID>a</KMSMasterKeyID>"), "MalformedXML"),
            (
                by_default("<SSEAlgorithm>AES256</SSEAlgorithm><KMSMasterKeyID>a</KMSMasterKeyID>"),
                "InvalidArgument",
            ),
            (
                by_default(
                    "<SSEAlgorithm>aws:kms</SSEAlgorithm><KMSMasterKeyID>a/b</KMSMasterKeyID>",
                ),
                "KMS.NotFoundException",
            ),
            (by_default("<SSEAlgorithm>aws:kms:dsse</SSEAlgorithm>"), "NotImplemented"),
            (blocked(""), "MalformedXML"),
            (blocked(&of("SSE-S3")), "MalformedXML"),
            (blocked(&(of("NONE") + &of("SSE-C"))), "MalformedXML"),
            ("<Rule><Other/></Rule>".to_owned(), "MalformedXML"),
        ] {
            let refused = setting_of(document(&rule).as_bytes()).expect_err(&rule);
            assert_eq!(refused.code().as_str(), code, "{rule}");
        }
        assert!(setting_of(b"<ServerSideEncryptionConfiguration>").is_err());
        assert!(setting_of(document(&aes).as_bytes()).is_ok());
    }
}
