//! [`Answer`]: what a form is answered with when its object is there.

use http::header::{CONTENT_TYPE, ETAG, HeaderName, HeaderValue, LOCATION};
use http::{Response, StatusCode};
use s3s::dto::{ETag, PutObjectOutput};
use s3s::{Body, S3Result};

use super::fields::Fields;
use crate::errors::{VERSION_ID, internal};
use crate::query::encode;
use crate::reply::{Target, escape};

/// How a form wants to be answered.
pub struct Answer {
    bucket: String,
    key: String,
    /// URL of the object.
    location: String,
    redirect: Option<String>,
    status: StatusCode,
}

impl Answer {
    /// Of a form for that key of a bucket, which was sent to that host.
    pub fn of(
        fields: &Fields,
        (bucket, key): (&str, &str),
        (target, host, scheme): (Target<'_>, Option<&HeaderValue>, &str),
    ) -> Answer {
        let host = host.and_then(|host| host.to_str().ok()).unwrap_or_default();
        let location = match target.host_bucket {
            Some(_) => format!("{scheme}://{host}/{}", encode(key)),
            None => format!("{scheme}://{host}/{}/{}", encode(bucket), encode(key)),
        };
        let redirect = fields.get("success_action_redirect").or_else(|| fields.get("redirect"));
        // S3 passes over a URL that it cannot read, and over other statuses.
        let redirect = redirect.filter(|url| is_url(url)).map(str::to_owned);
        let status = match fields.get("success_action_status").map(str::trim) {
            Some("200") => StatusCode::OK,
            Some("201") => StatusCode::CREATED,
            _ => StatusCode::NO_CONTENT,
        };
        Answer { bucket: bucket.to_owned(), key: key.to_owned(), location, redirect, status }
    }

    /// The answer for an object that was put.
    pub fn written(self, output: &PutObjectOutput) -> S3Result<Response<Body>> {
        let Answer { bucket, key, location, redirect, status } = self;
        let tag = output.e_tag.as_ref().map(ETag::value).unwrap_or_default();
        let tag = format!("\"{tag}\"");
        let mut response = Response::new(Body::empty());
        *response.status_mut() = status;
        let url = match redirect {
            Some(url) => {
                *response.status_mut() = StatusCode::SEE_OTHER;
                redirected(&url, [("bucket", &bucket), ("key", &key), ("etag", &tag)])
            }
            None => location,
        };
        if *response.status_mut() == StatusCode::CREATED {
            let [url, bucket, key, tag] = [&url, &bucket, &key, &tag].map(|text| escape(text));
            *response.body_mut() = Body::from(format!(
                "<?xml version=\"1.0\" encoding=\"UTF-8\"?><PostResponse><Location>{url}</Location>\
                 <Bucket>{bucket}</Bucket><Key>{key}</Key><ETag>{tag}</ETag></PostResponse>"
            ));
            let kind = HeaderValue::from_static("application/xml");
            response.headers_mut().insert(CONTENT_TYPE, kind);
        }
        let checksums = [
            ("x-amz-checksum-crc32", &output.checksum_crc32),
            ("x-amz-checksum-crc32c", &output.checksum_crc32c),
            ("x-amz-checksum-crc64nvme", &output.checksum_crc64nvme),
            ("x-amz-checksum-sha1", &output.checksum_sha1),
            ("x-amz-checksum-sha256", &output.checksum_sha256),
        ];
        let checksums =
            checksums.map(|(name, value)| (HeaderName::from_static(name), value.as_ref()));
        let kind = output.checksum_type.as_ref().map(|kind| kind.as_str().to_owned());
        let headers = [
            (ETAG, Some(&tag)),
            (LOCATION, Some(&url)),
            (VERSION_ID, output.version_id.as_ref()),
            (HeaderName::from_static("x-amz-checksum-type"), kind.as_ref()),
        ];
        for (name, value) in headers.into_iter().chain(checksums) {
            let Some(value) = value else { continue };
            let value = HeaderValue::from_str(value).map_err(|_| internal())?;
            response.headers_mut().insert(name, value);
        }
        Ok(response)
    }
}

/// A URL that a browser may be sent to: of HTTP, and what a header can have.
fn is_url(text: &str) -> bool {
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    rest.is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_graphic()))
}

/// A URL with further parameters.
fn redirected(url: &str, parameters: [(&str, &String); 3]) -> String {
    let (url, fragment) = match url.split_once('#') {
        Some((url, fragment)) => (url, format!("#{fragment}")),
        None => (url, String::new()),
    };
    let parameters = parameters.map(|(name, value)| format!("{name}={}", encode(value)));
    let mark = if url.contains('?') { '&' } else { '?' };
    format!("{url}{mark}{}{fragment}", parameters.join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirection_keeps_the_url_and_adds_what_was_put() {
        let (bucket, key, tag) = ("b".to_owned(), "a b&".to_owned(), "\"0\"".to_owned());
        for (url, wanted) in [
            ("http://a", "http://a?bucket=b&key=a%20b%26&etag=%220%22"),
            ("https://a/?x=1#f", "https://a/?x=1&bucket=b&key=a%20b%26&etag=%220%22#f"),
        ] {
            assert!(is_url(url));
            let found = redirected(url, [("bucket", &bucket), ("key", &key), ("etag", &tag)]);
            assert_eq!(found, wanted);
        }
        for url in ["", "http://", "javascript:x", "//a", "http://a\r\nb: c", "http://é"] {
            assert!(!is_url(url), "{url}");
        }
    }
}
