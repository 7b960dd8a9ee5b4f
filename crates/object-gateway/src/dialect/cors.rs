//! Rules for scripts of other sites: what is stored of them, and shown. See [`crate::cors`] for what
//! they do.

use http::header::HeaderName;
use object_proto::{CorsRule, Setting};
use s3s::dto::{
    CORSRule, DeleteBucketCorsInput, DeleteBucketCorsOutput, GetBucketCorsInput,
    GetBucketCorsOutput, PutBucketCorsInput, PutBucketCorsOutput,
};
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use super::settings::{set, settings_of};
use super::state::{State, context_of};
use super::unset::Missing;
use crate::cors::METHODS;
use crate::limits::{CORS_MAX, CORS_RULES_MAX};

/// Characters of a rule's ID at most, as in S3.
const ID_MAX: usize = 255;

fn invalid(message: String) -> S3Error {
    S3Error::with_message(S3ErrorCode::InvalidRequest, message)
}

fn check_wildcards(kind: &str, pattern: &str) -> S3Result<()> {
    match pattern.matches('*').count() {
        0 | 1 => Ok(()),
        _ => Err(invalid(format!("{kind} \"{pattern}\" can not have more than one wildcard."))),
    }
}

/// A rule as S3 takes it.
fn checked(rule: CORSRule) -> S3Result<CorsRule> {
    let CORSRule { allowed_headers, allowed_methods, allowed_origins, .. } = rule;
    let (headers, expose) =
        (allowed_headers.unwrap_or_default(), rule.expose_headers.unwrap_or_default());
    let id = rule.id.unwrap_or_default();
    if id.chars().count() > ID_MAX {
        return Err(invalid(format!("The ID of a rule has {ID_MAX} characters at most.")));
    }
    if let Some(method) = allowed_methods.iter().find(|method| !METHODS.contains(&method.as_str()))
    {
        return Err(invalid(format!(
            "Found unsupported HTTP method in CORS config. Unsupported method is {method}"
        )));
    }
    for origin in &allowed_origins {
        check_wildcards("AllowedOrigin", origin)?;
    }
    for header in &headers {
        check_wildcards("AllowedHeader", header)?;
    }
    for header in &expose {
        if header.contains('*') {
            return Err(invalid(format!(
                "ExposeHeader \"{header}\" contains wildcard. We currently do not support wildcard \
                 for ExposeHeader."
            )));
        }
        if HeaderName::from_bytes(header.as_bytes()).is_err() {
            return Err(invalid(format!("ExposeHeader \"{header}\" is no name of a header.")));
        }
    }
    let seconds = |age: i32| {
        u32::try_from(age).map_err(|_| invalid("MaxAgeSeconds must not be negative.".to_owned()))
    };
    let max_age = rule.max_age_seconds.map(seconds).transpose()?;
    let (origins, methods) = (allowed_origins, allowed_methods);
    Ok(CorsRule { id, origins, methods, headers, expose, max_age })
}

/// Gives a bucket other rules.
pub async fn put_cors(
    state: &State,
    mut request: S3Request<PutBucketCorsInput>,
) -> S3Result<S3Response<PutBucketCorsOutput>> {
    if context_of(&request)?.content_len().is_some_and(|len| len > CORS_MAX) {
        return Err(S3Error::new(S3ErrorCode::MaxMessageLengthExceeded));
    }
    let rules = std::mem::take(&mut request.input.cors_configuration.cors_rules);
    if rules.len() > CORS_RULES_MAX {
        let message = format!("A CORS configuration has {CORS_RULES_MAX} rules at most.");
        return Err(invalid(message));
    }
    let rules = rules.into_iter().map(checked).collect::<S3Result<Vec<_>>>()?;
    set(state, &request, Setting::Cors(rules)).await?;
    Ok(S3Response::new(PutBucketCorsOutput {}))
}

/// A bucket's rules.
pub fn get_cors(
    request: &S3Request<GetBucketCorsInput>,
) -> S3Result<S3Response<GetBucketCorsOutput>> {
    let rules = &settings_of(request)?.cors;
    if rules.is_empty() {
        return Err(Missing::Cors.error());
    }
    let some = |texts: &Vec<String>| (!texts.is_empty()).then(|| texts.clone());
    let show = |rule: &CorsRule| CORSRule {
        allowed_headers: some(&rule.headers),
        allowed_methods: rule.methods.clone(),
        allowed_origins: rule.origins.clone(),
        expose_headers: some(&rule.expose),
        id: (!rule.id.is_empty()).then(|| rule.id.clone()),
        max_age_seconds: rule.max_age.and_then(|age| i32::try_from(age).ok()),
    };
    let cors_rules = Some(rules.iter().map(show).collect());
    Ok(S3Response::new(GetBucketCorsOutput { cors_rules }))
}

/// Takes a bucket's rules away.
pub async fn delete_cors(
    state: &State,
    request: S3Request<DeleteBucketCorsInput>,
) -> S3Result<S3Response<DeleteBucketCorsOutput>> {
    set(state, &request, Setting::Cors(Vec::new())).await?;
    Ok(S3Response::new(DeleteBucketCorsOutput {}))
}
