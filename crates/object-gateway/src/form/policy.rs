//! Who has signed a form, and what its policy allows. The document is read by s3s; the rest is ours,
//! as s3s refuses forms that are older than 15 minutes, and answers a condition that does not hold as
//! a flaw of the document.

use ring::hmac;
use s3s::post_policy::{PostPolicy, PostPolicyCondition as Condition};

use super::fields::{Fields, IGNORED};
use crate::base64;
use crate::head::{ALGORITHM, check_scope, no_v2};
use crate::hex;
use crate::limits::FORM_FILE_MAX;
use crate::reply::Refusal;

/// A form's signature.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Signature<'a> {
    /// Of version 4: the access key, the rest of its scope, and the signature in hexadecimals.
    V4 { key: &'a str, date: &'a str, region: &'a str, value: &'a str },
    /// Of version 2, in base64.
    V2 { key: &'a str, value: &'a str },
}

impl<'a> Signature<'a> {
    /// The signature of a form, and the policy that it signs; `None` for a form without either.
    ///
    /// # Errors
    ///
    /// A [`Refusal`] when a part of it is missing or flawed.
    pub fn of(fields: &'a Fields, allow_v2: bool) -> Result<Option<(Self, &'a str)>, Refusal> {
        if fields.get("x-amz-security-token").is_some() {
            let message = "The provided token is malformed or otherwise invalid.";
            return Err(Refusal::new("InvalidToken", message));
        }
        let has = |name: &str| fields.get(name).is_some();
        let is_v2 = has("signature") || has("awsaccesskeyid");
        let names = ["x-amz-signature", "x-amz-credential", "x-amz-algorithm", "x-amz-date"];
        if !is_v2 && !has("policy") && !names.iter().any(|name| has(name)) {
            return Ok(None);
        }
        let field = |name: &str| fields.get(name).ok_or_else(|| missing(name));
        if is_v2 && !allow_v2 {
            return Err(no_v2());
        }
        let policy = field("policy")?;
        if is_v2 {
            let (key, value) = (field("awsaccesskeyid")?, field("signature")?);
            return Ok(Some((Signature::V2 { key, value }, policy)));
        }
        let [value, credential, algorithm, time] = names.map(field);
        let (value, credential, time) = (value?, credential?, time?);
        if algorithm? != ALGORITHM {
            let message = "X-Amz-Algorithm only supports \"AWS4-HMAC-SHA256\".";
            return Err(Refusal::new("InvalidArgument", message));
        }
        let flawed =
            |why: &str| Refusal::new("InvalidArgument", format!("X-Amz-Credential: {why}"));
        check_scope(credential).map_err(flawed)?;
        let mut parts = credential.split('/');
        let (Some(key), Some(date), Some(region)) = (parts.next(), parts.next(), parts.next())
        else {
            return Err(flawed("it has five parts."));
        };
        if !is_time(time) || !time.starts_with(date) || date.len() != DATE_LEN {
            let message = "X-Amz-Date is a time like 20261128T063557Z, on the credential's date.";
            return Err(Refusal::new("InvalidArgument", message));
        }
        Ok(Some((Signature::V4 { key, date, region, value }, policy)))
    }

    /// ID of the access key.
    pub fn key(&self) -> &'a str {
        let (Signature::V4 { key, .. } | Signature::V2 { key, .. }) = self;
        key
    }

    /// Holds it against the policy, as it is in the form.
    ///
    /// # Errors
    ///
    /// A [`Refusal`] when it is another's.
    pub fn verify(&self, policy: &str, secret: &str) -> Result<(), Refusal> {
        let (key, value) = match self {
            Signature::V4 { date, region, value, .. } => {
                let secret = format!("AWS4{secret}");
                let mut key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
                for part in [*date, *region, "s3", "aws4_request"] {
                    let tag = hmac::sign(&key, part.as_bytes());
                    key = hmac::Key::new(hmac::HMAC_SHA256, tag.as_ref());
                }
                (key, hex::decode(value))
            }
            Signature::V2 { value, .. } => {
                let algorithm = hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY;
                (hmac::Key::new(algorithm, secret.as_bytes()), base64::decode(value))
            }
        };
        let value = value.unwrap_or_default();
        hmac::verify(&key, policy.as_bytes(), &value).map_err(|_| {
            Refusal::new(
                "SignatureDoesNotMatch",
                "The request signature we calculated does not match the signature you provided. \
                 Check your key and signing method.",
            )
        })
    }
}

/// `YYYYMMDD`.
const DATE_LEN: usize = 8;

fn is_time(text: &str) -> bool {
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let parts = text.strip_suffix('Z').and_then(|text| text.split_once('T'));
    parts.is_some_and(|(date, time)| {
        date.len() == 8 && time.len() == 6 && digits(date) && digits(time)
    })
}

/// The policy's end is written as S3 wants it, which s3s takes more lightly: with a `T`, in GMT.
fn has_gmt(policy: &str) -> bool {
    let bytes = base64::decode(policy).unwrap_or_default();
    let fields = serde_json::from_slice::<serde_json::Value>(&bytes).unwrap_or_default();
    let end = fields["expiration"].as_str().unwrap_or_default();
    end.ends_with('Z') && end.as_bytes().get(10) == Some(&b'T')
}

/// S3's refusal of a form without a field that it must have.
pub fn missing(name: &str) -> Refusal {
    let message = format!(
        "Bucket POST must contain a field named '{name}'. If it is specified, please check the \
         order of the fields."
    );
    Refusal::new("InvalidArgument", message)
}

/// Bytes of a file at least and at most, where no policy says another.
pub const BOUNDS: (u64, u64) = (0, FORM_FILE_MAX);

/// Holds a form for a bucket against its policy; the bytes that its file may have.
///
/// # Errors
///
/// The [`Refusal`] that S3 would answer.
pub fn check(
    policy: &str,
    (fields, bucket): (&Fields, &str),
    now: u64,
) -> Result<(u64, u64), Refusal> {
    let text = policy;
    let policy = PostPolicy::from_base64(text).map_err(|error| {
        Refusal::new("InvalidPolicyDocument", format!("Invalid Policy: {error}"))
    })?;
    if !has_gmt(text) {
        let message = "Invalid Policy: Invalid 'expiration' value, as 2099-12-31T12:00:00.000Z";
        return Err(Refusal::new("InvalidPolicyDocument", message));
    }
    let now = std::time::UNIX_EPOCH + std::time::Duration::from_secs(now);
    if policy.expiration <= s3s::dto::Timestamp::from(now) {
        return Err(against("Policy expired."));
    }
    let value = |name: &str| if name == "bucket" { Some(bucket) } else { fields.get(name) };
    let (mut min, mut max) = BOUNDS;
    for condition in &policy.conditions {
        let (operator, field, wanted, holds) = match condition {
            Condition::ContentLengthRange { min: least, max: most } => {
                (min, max) = (min.max(*least), max.min(*most));
                continue;
            }
            Condition::Eq { field, value: wanted } => {
                ("eq", field, wanted, value(field) == Some(wanted))
            }
            Condition::StartsWith { field, prefix } => {
                let value = value(field).unwrap_or_default();
                let is_list = field == "content-type";
                let mut values = value.split(|c| is_list && c == ',').map(|value| match is_list {
                    true => value.trim_start(),
                    false => value,
                });
                ("starts-with", field, prefix, values.all(|value| value.starts_with(&**prefix)))
            }
        };
        if !holds {
            let condition = format!("[\"{operator}\", \"${field}\", \"{wanted}\"]");
            return Err(against(&format!("Policy Condition failed: {condition}")));
        }
    }
    let is_covered = |name: &str| {
        policy.conditions.iter().any(|condition| match condition {
            Condition::Eq { field, .. } | Condition::StartsWith { field, .. } => field == name,
            Condition::ContentLengthRange { .. } => false,
        })
    };
    let names = fields.iter().map(|(name, _)| name).filter(|name| !is_free(name));
    let extra: Vec<&str> = names.chain(["bucket"]).filter(|name| !is_covered(name)).collect();
    match extra.is_empty() {
        true => Ok((min, max)),
        false => Err(against(&format!("Extra input fields: {}", extra.join(", ")))),
    }
}

/// A field that no condition needs to cover.
fn is_free(name: &str) -> bool {
    matches!(
        name,
        "x-amz-signature" | "signature" | "awsaccesskeyid" | "policy" | "file" | "bucket"
    ) || name.starts_with(IGNORED)
}

fn against(why: &str) -> Refusal {
    Refusal::new("AccessDenied", format!("Invalid according to Policy: {why}"))
}
