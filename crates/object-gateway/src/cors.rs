//! CORS: what a browser asks for a script of another site, and what a bucket's rules allow it. The
//! front answers, before signatures: a browser signs nothing of it.

use std::sync::Arc;

use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE,
    ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, HeaderMap, HeaderValue, ORIGIN,
    VARY,
};
use http::{Method, Response};
use object_proto::{Backend, BucketName, BucketView, CorsRule, Error};
use s3s::Body;

use crate::errors::s3_error;
use crate::limits::CORS_HEADERS_MAX;
use crate::reply::Refusal;

/// Methods that rules may allow.
pub const METHODS: [&str; 5] = ["GET", "PUT", "POST", "DELETE", "HEAD"];
/// What an answer to such a request depends on.
const VARIES: &str = "Origin, Access-Control-Request-Headers, Access-Control-Request-Method";

/// What a browser asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Asked {
    /// The script's site.
    origin: String,
    /// The method of the request that the script makes, or has made.
    method: String,
    /// Names of headers of that request, in small letters.
    headers: Vec<String>,
}

impl Asked {
    /// From a request's head; `None` without an origin.
    pub fn of(method: &Method, headers: &HeaderMap) -> Option<Asked> {
        let text = |value: &HeaderValue| value.to_str().ok().map(str::to_owned);
        let origin = headers.get(ORIGIN).and_then(text)?;
        // S3 goes by this header in a request that is no question, too.
        let asked = headers.get(ACCESS_CONTROL_REQUEST_METHOD).and_then(text);
        let own = || if *method == Method::OPTIONS { "null" } else { method.as_str() }.to_owned();
        let lists = headers.get_all(ACCESS_CONTROL_REQUEST_HEADERS).iter().filter_map(text);
        let lists: Vec<String> = lists.collect();
        let names = lists.iter().flat_map(|list| list.split(',')).map(str::trim);
        let names = names.filter(|name| !name.is_empty()).map(str::to_ascii_lowercase);
        Some(Asked { origin, method: asked.unwrap_or_else(own), headers: names.collect() })
    }

    /// The site as the rule has it, if the rule allows what is asked for.
    fn allowed<'a>(&self, rule: &'a CorsRule) -> Option<&'a str> {
        let origin = rule.origins.iter().find(|origin| matches(origin, &self.origin))?;
        if !rule.methods.contains(&self.method) || self.headers.len() > CORS_HEADERS_MAX {
            return None;
        }
        let patterns: Vec<String> =
            rule.headers.iter().map(|pattern| pattern.to_ascii_lowercase()).collect();
        let is_known = |name: &String| patterns.iter().any(|pattern| matches(pattern, name));
        self.headers.iter().all(is_known).then_some(origin)
    }

    /// Headers of the answer by the first rule that allows what is asked for.
    fn headers_by(&self, rules: &[CorsRule]) -> Option<HeaderMap> {
        let (rule, origin) = rules.iter().find_map(|rule| Some((rule, self.allowed(rule)?)))?;
        let mut headers = HeaderMap::new();
        let mut add = |name, text: &str| {
            if let Ok(value) = HeaderValue::from_str(text) {
                headers.insert(name, value);
            }
        };
        match origin {
            "*" => add(ACCESS_CONTROL_ALLOW_ORIGIN, "*"),
            _ => {
                add(ACCESS_CONTROL_ALLOW_ORIGIN, &self.origin);
                add(ACCESS_CONTROL_ALLOW_CREDENTIALS, "true");
            }
        }
        add(ACCESS_CONTROL_ALLOW_METHODS, &rule.methods.join(", "));
        if !self.headers.is_empty() {
            add(ACCESS_CONTROL_ALLOW_HEADERS, &self.headers.join(", "));
        }
        if !rule.expose.is_empty() {
            add(ACCESS_CONTROL_EXPOSE_HEADERS, &rule.expose.join(", "));
        }
        if let Some(seconds) = rule.max_age {
            add(ACCESS_CONTROL_MAX_AGE, &seconds.to_string());
        }
        add(VARY, VARIES);
        Some(headers)
    }
}

/// A pattern with one `*` at most, for any text.
fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((start, end)) => text.strip_prefix(start).is_some_and(|rest| rest.ends_with(end)),
    }
}

async fn bucket(backend: &dyn Backend, name: &str) -> Result<Arc<BucketView>, Error> {
    let name = BucketName::new(name).map_err(|_| Error::NoSuchBucket)?;
    backend.bucket(name).await
}

/// What is added to the answer of a request for a bucket; nothing where no rule is known.
pub async fn added(backend: &dyn Backend, name: &str, asked: &Asked) -> HeaderMap {
    let view = bucket(backend, name).await.ok();
    view.and_then(|view| asked.headers_by(&view.settings.cors)).unwrap_or_default()
}

/// The answer to a browser that asks before the request (`OPTIONS`).
pub async fn preflight(
    backend: &dyn Backend,
    name: &str,
    method: &Method,
    headers: &HeaderMap,
) -> Response<Body> {
    let refuse = |code, message: String| Refusal::new(code, message).response();
    let Some(asked) = Asked::of(method, headers) else {
        let message = "Insufficient information. Origin request header needed.";
        return refuse("BadRequest", message.to_owned());
    };
    let rules = match bucket(backend, name).await {
        Ok(view) => view,
        Err(Error::NoSuchBucket) => {
            return refuse("AccessForbidden", "CORSResponse: Bucket not found".to_owned());
        }
        Err(error) => {
            let failed = || refuse("InternalError", "We encountered an internal error.".to_owned());
            return s3_error(error).to_http_response().unwrap_or_else(|_| failed());
        }
    };
    let rules = &rules.settings.cors;
    if rules.is_empty() {
        let message = "CORSResponse: CORS is not enabled for this bucket.";
        return refuse("AccessForbidden", message.to_owned());
    }
    if !METHODS.contains(&asked.method.as_str()) {
        let message = format!("Invalid Access-Control-Request-Method: {}", asked.method);
        return refuse("BadRequest", message);
    }
    let Some(allowed) = asked.headers_by(rules) else {
        let message = "CORSResponse: This CORS request is not allowed. This is usually because the \
                       evalution of Origin, request method / Access-Control-Request-Method or \
                       Access-Control-Request-Headers are not whitelisted by the resource's CORS \
                       spec.";
        return refuse("AccessForbidden", message.to_owned());
    };
    let mut response = Response::new(Body::empty());
    response.headers_mut().extend(allowed);
    response
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_star_stands_for_any_text_and_for_none() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("*", "https://a.example", true),
            ("https://*.example", "https://a.example", true),
            ("https://*.example", "https://a.b.example", true),
            ("https://*.example", "https://.example", true),
            ("https://*.example", "https://a.example/", false),
            ("https://*.example", "http://a.example", false),
            ("ab*ba", "aba", false),
            ("ab*ba", "abba", true),
            ("https://a.example", "https://a.example", true),
            ("https://a.example", "https://A.example", false),
            ("", "", true),
            ("", "a", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }

    proptest! {
        #[test]
        fn any_pattern_is_held_against_any_text(pattern in any::<String>(), text in any::<String>()) {
            matches(&pattern, &text);
        }

        #[test]
        fn a_star_matches_what_stands_between(
            start in "[^*]*",
            middle in any::<String>(),
            end in "[^*]*",
        ) {
            let text = format!("{start}{middle}{end}");
            prop_assert!(matches(&format!("{start}*{end}"), &text), "{}", text);
        }
    }

    fn rule(origins: &[&str], methods: &[&str], headers: &[&str]) -> CorsRule {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let (origins, methods, headers) = (texts(origins), texts(methods), texts(headers));
        CorsRule { origins, methods, headers, ..CorsRule::default() }
    }

    fn asked(origin: &str, method: &str, headers: &str) -> Asked {
        let mut head = HeaderMap::new();
        for (name, value) in [
            (ORIGIN, origin),
            (ACCESS_CONTROL_REQUEST_METHOD, method),
            (ACCESS_CONTROL_REQUEST_HEADERS, headers),
        ] {
            head.insert(name, value.parse().expect("a header's value"));
        }
        Asked::of(&Method::OPTIONS, &head).expect("an origin")
    }

    #[test]
    fn the_first_rule_that_allows_all_that_is_asked_for_counts() {
        let rules = [
            rule(&["https://a"], &["GET"], &[]),
            rule(&["https://b", "https://a"], &["GET", "PUT"], &["X-Amz-*", "Range"]),
            rule(&["*"], &["GET", "HEAD"], &["*"]),
        ];
        let methods = |origin: &str, method: &str, headers: &str| {
            let found = asked(origin, method, headers).headers_by(&rules)?;
            Some(found[ACCESS_CONTROL_ALLOW_METHODS].to_str().expect("text").to_owned())
        };
        assert_eq!(methods("https://a", "GET", "").as_deref(), Some("GET"));
        assert_eq!(methods("https://a", "GET", "RANGE, x-amz-date").as_deref(), Some("GET, PUT"));
        assert_eq!(methods("https://a", "GET", "range,if-match").as_deref(), Some("GET, HEAD"));
        assert_eq!(methods("https://a", "PUT", "if-match"), None);
        assert_eq!(methods("https://c", "PUT", ""), None);
        assert_eq!(methods("https://c", "get", ""), None);
        let many = vec!["x"; CORS_HEADERS_MAX + 1].join(",");
        assert_eq!(methods("https://c", "GET", &many), None);
        assert!(methods("https://c", "GET", &many[2..]).is_some());
    }
}
