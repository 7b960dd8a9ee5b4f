//! Fuzz target: a plain function over bytes. The tests of `craton` replay it over the corpus in
//! `corpus/`.

use crate::policy::{Policy, PolicyKind, Verdict};
use crate::request::{Context, NoContext, Principal, Request, Values};

/// A context in which every key has the same value.
struct Same<'a>(&'a str);

impl Context for Same<'_> {
    fn values(&self, _: &str) -> Values<'_> {
        Values::one(self.0)
    }
}

/// Any text is a policy or has a flaw. A policy decides on any request, and what it allows to
/// everyone without a condition makes it public.
pub fn fuzz_policy(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    for kind in [PolicyKind::Bucket { name: "box" }, PolicyKind::Identity] {
        let policy = match Policy::parse(text, kind) {
            Ok(policy) => policy,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                continue;
            }
        };
        assert_eq!(policy.text(), text);
        assert_eq!(Policy::parse(policy.text(), kind).as_ref(), Ok(&policy));
        let anonymous = Principal::Anonymous;
        for (principal, context) in [
            (anonymous, &NoContext as &dyn Context),
            (anonymous, &Same("10.0.0.1")),
            (Principal::User { id: "u1", name: "ann" }, &Same("true")),
            (Principal::User { id: "u1", name: "ann" }, &Same("2026-01-01T00:00:00Z")),
        ] {
            for (action, key) in [("s3:ListBucket", None), ("s3:GetObject", Some("a/b"))] {
                let request = Request { action, bucket: "box", key, principal, context };
                policy.decide(&request);
            }
        }
        let action = "s3:GetObject";
        let key = Some("a/b");
        let request =
            Request { action, bucket: "box", key, principal: anonymous, context: &NoContext };
        if kind != PolicyKind::Identity && policy.decide(&request) == Verdict::Allow {
            assert!(policy.is_public(), "{text}");
        }
    }
}
