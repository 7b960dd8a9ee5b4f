//! Encryption of objects that are put at once: SSE-S3, SSE-KMS, SSE-C, defaults of buckets, policies
//! that demand it, copies.

use std::io::{Read, Write};

use object_proto::{BucketEncryption, FRAME_BYTES, Setting};

use crate::client::{Ask, BUCKET, Bed, OTHER, Reply, read_reply};
use crate::settings::{delete, get, put};

pub const SSE: &str = "x-amz-server-side-encryption";
pub const KMS_KEY: &str = "x-amz-server-side-encryption-aws-kms-key-id";
pub const ALGORITHM: &str = "x-amz-server-side-encryption-customer-algorithm";
const CONTEXT: &str = "x-amz-server-side-encryption-context";
const BUCKET_KEY: &str = "x-amz-server-side-encryption-bucket-key-enabled";

/// Keys of clients, with their MD5s.
pub const A: (&str, &str) =
    ("pO3upElrwuEXSoFwCfnZPdSsmt/xWeFa0N9KgDijwVs=", "DWygnHRtgiJ77HCm+1rvHw==");
pub const B: (&str, &str) =
    ("6b+WOZ1T3cqZMxgThRcXAQBrS5mXKdDUphvpxptl9/4=", "arxBvwY2V4SiOne6yppVPQ==");

/// How something is encrypted.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Kind {
    Plain,
    S3,
    Kms,
    Customer,
}

pub const KINDS: [Kind; 4] = [Kind::Plain, Kind::S3, Kind::Kms, Kind::Customer];

/// With a client's key, of an object or of the source of a copy.
pub fn with_key(ask: Ask, start: &str, (key, md5): (&str, &str)) -> Ask {
    let name = |end: &str| format!("{start}server-side-encryption-customer-{end}");
    ask.header(&name("algorithm"), "AES256").header(&name("key"), key).header(&name("key-md5"), md5)
}

impl Kind {
    /// A request for a new object of that kind.
    pub fn of_new(self, ask: Ask) -> Ask {
        match self {
            Kind::Plain => ask,
            Kind::S3 => ask.header(SSE, "AES256"),
            Kind::Kms => ask.header(SSE, "aws:kms").header(KMS_KEY, "team"),
            Kind::Customer => with_key(ask, "x-amz-", A),
        }
    }

    /// A request that needs the key of a client only.
    pub fn of_read(self, ask: Ask) -> Ask {
        if self == Kind::Customer { with_key(ask, "x-amz-", A) } else { ask }
    }

    /// Headers that the answer shows.
    pub fn check(self, reply: &Reply) {
        let (method, key, algorithm) = match self {
            Kind::Plain => (None, None, None),
            Kind::S3 => (Some("AES256"), None, None),
            Kind::Kms => (Some("aws:kms"), Some("team"), None),
            Kind::Customer => (None, None, Some("AES256")),
        };
        assert_eq!(reply.header(SSE), method, "{self:?}: {}", reply.text());
        assert_eq!(reply.header(KMS_KEY), key, "{self:?}");
        assert_eq!(reply.header(ALGORITHM), algorithm, "{self:?}");
        let md5 = reply.header("x-amz-server-side-encryption-customer-key-md5");
        assert_eq!(md5, algorithm.map(|_| A.1), "{self:?}");
    }
}

/// A bucket that takes keys of clients.
pub fn open_bed() -> Bed {
    let bed = Bed::with_bucket();
    let set = put_encryption(&bed, &blocked("NONE"));
    assert_eq!(set.status, 200, "{}", set.text());
    bed
}

fn blocked(kind: &str) -> String {
    let kind = format!("<EncryptionType>{kind}</EncryptionType>");
    format!("<BlockedEncryptionTypes>{kind}</BlockedEncryptionTypes>")
}

fn by_default(algorithm: &str, key: &str) -> String {
    let key = match key {
        "" => String::new(),
        key => format!("<KMSMasterKeyID>{key}</KMSMasterKeyID>"),
    };
    format!(
        "<ApplyServerSideEncryptionByDefault><SSEAlgorithm>{algorithm}</SSEAlgorithm>{key}\
         </ApplyServerSideEncryptionByDefault>"
    )
}

fn put_encryption(bed: &Bed, rule: &str) -> Reply {
    let rule = format!("<Rule>{rule}</Rule>");
    let space = "xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"";
    let name = "ServerSideEncryptionConfiguration";
    put(bed, "encryption", &format!("<{name} {space}>{rule}</{name}>"))
}

pub fn content(len: usize) -> Vec<u8> {
    (0..len as u32).map(|at| (at ^ (at >> 7) ^ (at >> 15)) as u8).collect()
}

fn etag_of(content: &[u8]) -> String {
    use s3s::crypto::{Checksum as _, Md5};
    format!("\"{}\"", crate::signer::hex(&Md5::checksum(content)))
}

#[test]
fn each_kind_stores_no_plain_text_and_reads_back() {
    let bed = open_bed();
    for len in [0, 1, 5000, FRAME_BYTES, FRAME_BYTES + 1, (3 << 20) + 77] {
        let content = content(len);
        for kind in KINDS {
            let ask = kind.of_new(bed.object("PUT", "k")).body(&content);
            let made = ask.header("x-amz-meta-a", "b").send();
            assert_eq!(made.status, 200, "{kind:?} {len}: {}", made.text());
            kind.check(&made);
            let (info, stored) = bed.model.object("k").expect("an object");
            assert_eq!(info.object.facts.encryption.is_some(), kind != Kind::Plain);
            assert_eq!(stored == content, kind == Kind::Plain, "{kind:?} {len}");
            if kind != Kind::Plain && len > 100 {
                assert!(!stored.windows(100).any(|window| window == &content[..100]));
            }
            // Only SSE-C and SSE-KMS hide the MD5, as in S3.
            let shows_md5 = matches!(kind, Kind::Plain | Kind::S3);
            let etag = made.header("etag").expect("a tag").to_owned();
            assert_eq!(etag == etag_of(&content), shows_md5, "{kind:?}");
            assert_eq!(etag.len(), 34);
            for method in ["GET", "HEAD"] {
                let got = kind.of_read(bed.object(method, "k")).send();
                assert_eq!(got.status, 200, "{kind:?} {len}: {}", got.text());
                kind.check(&got);
                let size = len.to_string();
                assert_eq!(got.header("content-length"), Some(size.as_str()));
                assert_eq!(got.header("etag"), Some(etag.as_str()));
                assert_eq!(got.header("x-amz-meta-a"), Some("b"));
                assert!(method == "HEAD" || got.body == content, "{kind:?} {len}");
            }
            let listed = bed.ask("GET", "/bucket").query("list-type", "2").send();
            assert_eq!(listed.field("Size"), len.to_string());
            assert_eq!(listed.field("ETag"), etag);
            let facts = kind.of_read(bed.object("GET", "k").query("attributes", ""));
            let facts = facts.header("x-amz-object-attributes", "ObjectSize,Checksum").send();
            assert_eq!(facts.field("ObjectSize"), len.to_string(), "{}", facts.text());
            kind.check(&facts);
        }
    }
    assert_eq!(bed.model.used_keys(), ["k1", "team/2"], "each once, before its first object");
}

#[test]
fn ranges_conditions_and_checksums_are_of_the_plain_text() {
    let bed = open_bed();
    let content = content(5 * FRAME_BYTES + 100);
    for kind in KINDS {
        let ask = kind.of_new(bed.object("PUT", "k")).body(&content);
        let made = ask.header("x-amz-checksum-algorithm", "CRC32").send();
        let etag = made.header("etag").expect("a tag").to_owned();
        let get = || kind.of_read(bed.object("GET", "k"));
        for (range, from, to) in [
            ("bytes=0-0", 0, 1),
            ("bytes=65535-65536", 65_535, 65_537),
            ("bytes=100000-250000", 100_000, 250_001),
            ("bytes=-100", content.len() - 100, content.len()),
            ("bytes=327680-", 327_680, content.len()),
        ] {
            let got = get().header("range", range).send();
            assert_eq!(got.status, 206, "{kind:?} {range}");
            assert!(got.body == content[from..to], "{kind:?} {range}");
            let wanted = format!("bytes {from}-{}/{}", to - 1, content.len());
            assert_eq!(got.header("content-range"), Some(wanted.as_str()));
        }
        let beyond = get().header("range", "bytes=327780-").send();
        assert_eq!(beyond.status, 416);
        assert_eq!(get().header("if-none-match", &etag).send().status, 304);
        assert_eq!(get().header("if-match", "\"other\"").send().status, 412);
        let got = get().header("x-amz-checksum-mode", "ENABLED").send();
        assert!(got.header("x-amz-checksum-crc64nvme").is_some(), "{kind:?}");
        let part = get().query("partNumber", "1").send();
        assert!(part.status == 206 && part.body == content, "{kind:?}");
    }
    let wrong = Kind::S3.of_new(bed.object("PUT", "k")).body(b"hello");
    let wrong = wrong.header("content-md5", "AAAAAAAAAAAAAAAAAAAAAA==").send();
    assert_eq!(wrong.error(), (400, "BadDigest".into()));
}

#[test]
fn an_object_of_a_clients_key_answers_to_that_key_only() {
    let bed = open_bed();
    assert_eq!(Kind::Customer.of_new(bed.object("PUT", "k")).body(b"hello").send().status, 200);
    bed.put("plain", b"plain");
    let attributes = |ask: Ask| {
        let ask = ask.query("attributes", "");
        ask.header("x-amz-object-attributes", "ObjectSize").send()
    };
    for method in ["GET", "HEAD"] {
        let ask = |key: &str| bed.object(method, key);
        assert_eq!(ask("k").send().status, 400, "{method} without a key");
        assert_eq!(with_key(ask("k"), "x-amz-", B).send().status, 403, "{method}, another key");
        assert_eq!(with_key(ask("k"), "x-amz-", (A.0, B.1)).send().status, 400);
        assert_eq!(with_key(ask("plain"), "x-amz-", A).send().status, 400);
        assert_eq!(ask("k").header(ALGORITHM, "AES256").send().status, 400);
    }
    let get = || bed.object("GET", "k");
    assert_eq!(get().send().error(), (400, "InvalidRequest".into()));
    assert_eq!(with_key(get(), "x-amz-", B).send().error(), (403, "AccessDenied".into()));
    let applied = with_key(bed.object("GET", "plain"), "x-amz-", A).send();
    assert_eq!(applied.error(), (400, "InvalidRequest".into()));
    assert_eq!(attributes(get()).error(), (400, "InvalidRequest".into()));
    assert_eq!(attributes(with_key(get(), "x-amz-", B)).error(), (403, "AccessDenied".into()));
    // The MD5 may be left out where nothing is written.
    let key = "x-amz-server-side-encryption-customer-key";
    let read = get().header(ALGORITHM, "AES256").header(key, A.0);
    assert_eq!(read.send().body, b"hello");
    let put = || bed.object("PUT", "new").body(b"x");
    for (ask, code) in [
        (put().header(ALGORITHM, "AES256").header(key, A.0), "InvalidArgument"),
        (put().header(key, A.0), "InvalidArgument"),
        (put().header(ALGORITHM, "AES256"), "InvalidArgument"),
        (with_key(put(), "x-amz-", (A.0, B.1)), "InvalidArgument"),
        (with_key(put(), "x-amz-", ("c2hvcnQ=", A.1)), "InvalidArgument"),
        (with_key(put(), "x-amz-", A).header(SSE, "AES256"), "InvalidArgument"),
    ] {
        assert_eq!(ask.send().error(), (400, code.into()));
    }
    assert!(bed.model.object("new").is_none());
    // Tags and deletion need no key.
    let tagging = "<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>";
    let tagged = bed.object("PUT", "k").query("tagging", "").body(tagging.as_bytes()).send();
    assert_eq!(tagged.status, 200, "{}", tagged.text());
    assert_eq!(Kind::Customer.of_read(get()).send().body, b"hello");
    assert_eq!(bed.object("DELETE", "k").send().status, 204);
}

#[test]
fn keys_of_clients_are_blocked_in_a_new_bucket() {
    let bed = Bed::with_bucket();
    let put = |key| with_key(bed.object("PUT", "k"), "x-amz-", key).body(b"x").send();
    assert_eq!(put(A).error(), (403, "AccessDenied".into()));
    assert_eq!(put((A.0, B.1)).error(), (403, "AccessDenied".into()));
    let upload = with_key(bed.object("POST", "k").query("uploads", ""), "x-amz-", A).send();
    assert_eq!(upload.error(), (403, "AccessDenied".into()));
    let none = "ServerSideEncryptionConfigurationNotFoundError";
    assert_eq!(get(&bed, "encryption").error(), (404, none.into()));
    assert_eq!(put_encryption(&bed, &blocked("NONE")).status, 200);
    assert_eq!(get(&bed, "encryption").field("EncryptionType"), "NONE");
    assert_eq!(put(A).status, 200);
    // A default says nothing of them.
    assert_eq!(put_encryption(&bed, &by_default("AES256", "")).status, 200);
    assert_eq!(put(A).status, 200);
    assert_eq!(put_encryption(&bed, &(by_default("AES256", "") + &blocked("SSE-C"))).status, 200);
    assert_eq!(put(A).error(), (403, "AccessDenied".into()));
    // What is there can be read.
    assert_eq!(Kind::Customer.of_read(bed.object("GET", "k")).send().body, b"x");
    let copy = bed.object("PUT", "k2").header("x-amz-copy-source", "bucket/k");
    assert_eq!(with_key(copy, "x-amz-copy-source-", A).send().status, 200);
}

#[test]
fn named_keys_are_those_of_the_key_file() {
    let bed = Bed::with_bucket();
    let put = |headers: &[(&str, &str)]| {
        let ask = bed.object("PUT", "k").body(b"hello").header(SSE, "aws:kms");
        headers.iter().fold(ask, |ask, (name, value)| ask.header(name, value)).send()
    };
    let unknown = put(&[(KMS_KEY, "none")]);
    assert_eq!(unknown.error(), (400, "KMS.NotFoundException".into()));
    assert!(unknown.text().contains("none"));
    // A key of the service is none that clients name.
    assert_eq!(put(&[(KMS_KEY, "k1")]).error(), (400, "KMS.NotFoundException".into()));
    let by_default = put(&[]);
    assert_eq!(by_default.header(KMS_KEY), Some("aws/s3"), "{}", by_default.text());
    let arn = "arn:aws:kms:us-east-1:123456789012:key/team";
    assert_eq!(put(&[(KMS_KEY, arn)]).header(KMS_KEY), Some("team"));
    let context = "eyJwcm9qZWN0IjoiYSJ9";
    let made = put(&[(KMS_KEY, "team"), (CONTEXT, context), (BUCKET_KEY, "true")]);
    assert_eq!(made.header(CONTEXT), Some(context));
    assert_eq!(made.header(BUCKET_KEY), Some("true"));
    let got = bed.object("GET", "k").send();
    assert_eq!((got.body.as_slice(), got.header(BUCKET_KEY)), (&b"hello"[..], Some("true")));
    for (name, value) in [(SSE, "aws:kms"), (KMS_KEY, "team"), (SSE, "AES256")] {
        let read = bed.object("GET", "k").header(name, value).send();
        assert_eq!(read.error(), (400, "InvalidArgument".into()), "{name}");
    }
    for (headers, code, status) in [
        (&[(SSE, "DES")][..], "InvalidArgument", 400),
        (&[(SSE, "aws:kms:dsse")], "NotImplemented", 501),
        (&[(KMS_KEY, "team")], "InvalidArgument", 400),
        (&[(SSE, "AES256"), (KMS_KEY, "team")], "InvalidArgument", 400),
        (&[(SSE, "aws:kms"), (CONTEXT, "{}")], "InvalidArgument", 400),
        (&[(SSE, "aws:kms"), (BUCKET_KEY, "yes")], "InvalidArgument", 400),
    ] {
        let ask = headers
            .iter()
            .fold(bed.object("PUT", "k"), |ask, (name, value)| ask.header(name, value));
        assert_eq!(ask.body(b"x").send().error(), (status, code.into()), "{headers:?}");
    }
}

#[test]
fn a_bucket_encrypts_by_default_what_asks_for_nothing() {
    let bed = Bed::with_bucket();
    let none = "ServerSideEncryptionConfigurationNotFoundError";
    assert_eq!(get(&bed, "encryption").error(), (404, none.into()));
    let put = |ask: fn(Ask) -> Ask| ask(bed.object("PUT", "k").body(b"hello")).send();
    Kind::Plain.check(&put(|ask| ask));
    assert_eq!(put_encryption(&bed, &by_default("AES256", "")).status, 200);
    let shown = get(&bed, "encryption");
    assert_eq!(shown.field("SSEAlgorithm"), "AES256", "{}", shown.text());
    assert_eq!(shown.field("EncryptionType"), "SSE-C");
    assert_eq!(shown.header("content-type"), Some("application/xml"));
    Kind::S3.check(&put(|ask| ask));
    Kind::Kms.check(&put(|ask| Kind::Kms.of_new(ask)));
    let rule = by_default("aws:kms", "team") + "<BucketKeyEnabled>true</BucketKeyEnabled>";
    assert_eq!(put_encryption(&bed, &rule).status, 200);
    let shown = get(&bed, "encryption");
    let fields =
        ["SSEAlgorithm", "KMSMasterKeyID", "BucketKeyEnabled"].map(|name| shown.field(name));
    assert_eq!(fields, ["aws:kms", "team", "true"]);
    let made = put(|ask| ask);
    Kind::Kms.check(&made);
    assert_eq!(made.header(BUCKET_KEY), Some("true"));
    Kind::S3.check(&put(|ask| Kind::S3.of_new(ask)));
    // Of a key that is not there an object is refused, not stored as it is.
    assert_eq!(put_encryption(&bed, &by_default("aws:kms", "none")).status, 200);
    assert_eq!(put(|ask| ask).error(), (400, "KMS.NotFoundException".into()));
    assert_eq!(delete(&bed, "encryption").status, 204);
    assert_eq!(get(&bed, "encryption").error(), (404, none.into()));
    Kind::Plain.check(&put(|ask| ask));
    for (rule, code) in [
        ("", "MalformedXML"),
        (by_default("DES", "").as_str(), "MalformedXML"),
        (by_default("AES256", "team").as_str(), "InvalidArgument"),
    ] {
        assert_eq!(put_encryption(&bed, rule).error(), (400, code.into()), "{rule}");
    }
    assert_eq!(crate::settings::put(&bed, "encryption", "no XML").status, 400);
}

/// The document of a default does not speak of SSE-C, and may come late.
#[test]
fn a_block_of_sse_c_holds_beside_a_document_that_was_held_back() {
    let bed = open_bed();
    let rule = format!("<Rule>{}</Rule>", by_default("AES256", ""));
    let name = "ServerSideEncryptionConfiguration";
    let body = format!("<{name}>{rule}</{name}>");
    let ask = bed.ask("PUT", "/bucket").query("encryption", "").header("expect", "100-continue");
    let bytes = ask.body(body.as_bytes()).bytes();
    let (head, document) = bytes.split_at(bytes.len() - body.len());
    let mut stream = bed.connect();
    stream.write_all(head).expect("sent");
    let mut line = [0; 25];
    stream.read_exact(&mut line).expect("an answer");
    let blocked = BucketEncryption { default: None, blocks_customer_keys: true };
    bed.model.set(BUCKET, Setting::Encryption(blocked));
    stream.write_all(document).expect("sent");
    assert_eq!(read_reply(&mut stream, false).map(|reply| reply.status), Some(200));
    let shown = get(&bed, "encryption");
    assert_eq!(
        (shown.field("SSEAlgorithm"), shown.field("EncryptionType")),
        ("AES256".into(), "SSE-C".into())
    );
}

/// Another client blocks SSE-C between what a request has read and what it sets.
#[test]
fn a_block_of_sse_c_holds_beside_a_change_of_the_default() {
    let put_default = |bed: &Bed| put_encryption(bed, &by_default("AES256", ""));
    let delete_default = |bed: &Bed| delete(bed, "encryption");
    for (name, change) in [
        ("DELETE", &delete_default as &dyn Fn(&Bed) -> Reply),
        ("PUT", &put_default as &dyn Fn(&Bed) -> Reply),
    ] {
        let bed = open_bed();
        let put = || with_key(bed.object("PUT", "k"), "x-amz-", A).body(b"x").send();
        assert_eq!(put().status, 200, "{name}");
        let blocked = BucketEncryption { default: None, blocks_customer_keys: true };
        bed.model.set_before_next(Setting::Encryption(blocked));
        let reply = change(&bed);
        assert!(reply.status < 300, "{name}: {}", reply.text());
        assert_eq!(put().error(), (403, "AccessDenied".into()), "{name}");
    }
}

#[test]
fn who_may_set_the_default_is_decided_as_for_other_settings() {
    let bed = Bed::with_bucket();
    let ask = |method: &str| bed.ask(method, "/bucket").query("encryption", "");
    for method in ["GET", "PUT", "DELETE"] {
        let by_other = ask(method).by(OTHER).body(b"<a/>").send();
        assert_eq!(by_other.error(), (403, "AccessDenied".into()), "{method}");
        assert_eq!(ask(method).body(b"<a/>").send_plain().status, 403, "{method}");
    }
    let policy = r#"{"Statement":[{"Effect":"Allow","Principal":{"CanonicalUser":"id-other"},
        "Action":"s3:GetEncryptionConfiguration","Resource":"arn:aws:s3:::bucket"}]}"#;
    assert_eq!(put(&bed, "policy", policy).status, 204);
    assert_eq!(ask("GET").by(OTHER).send().status, 404);
    assert_eq!(ask("PUT").by(OTHER).body(b"<a/>").send().status, 403);
    let missing = bed.ask("GET", "/nowhere").query("encryption", "").send();
    assert_eq!(missing.error(), (404, "NoSuchBucket".into()));
    // By the host's name, too.
    let host = format!("bucket.localhost:{}", bed.gateway.addr().port());
    let by_host = bed.ask("GET", "/").host(&host).query("encryption", "").send();
    assert_eq!(by_host.status, 404, "{}", by_host.text());
    // A digest that is not that of the document.
    let wrong = ask("PUT").body(b"<a/>").header("content-md5", "AAAAAAAAAAAAAAAAAAAAAA==").send();
    assert_eq!(wrong.error(), (400, "BadDigest".into()));
}

#[test]
fn policies_may_demand_encryption() {
    let bed = open_bed();
    let deny = |condition: &str| {
        let policy = format!(
            r#"{{"Statement":[{{"Effect":"Deny","Principal":"*","Action":"s3:PutObject",
            "Resource":"arn:aws:s3:::bucket/*","Condition":{condition}}}]}}"#
        );
        let set = put(&bed, "policy", &policy);
        assert_eq!(set.status, 204, "{}", set.text());
    };
    let status = |kind: Kind| kind.of_new(bed.object("PUT", "k")).body(b"x").send().status;
    let all = || KINDS.map(status);
    deny(&format!(r#"{{"Null":{{"s3:{SSE}":"true"}}}}"#));
    assert_eq!(all(), [403, 200, 200, 403]);
    deny(&format!(r#"{{"StringNotEquals":{{"s3:{SSE}":"AES256"}}}}"#));
    assert_eq!(all(), [403, 200, 403, 403]);
    deny(&format!(r#"{{"StringNotEquals":{{"s3:{KMS_KEY}":"team"}}}}"#));
    assert_eq!(all(), [403, 403, 200, 403]);
    deny(&format!(r#"{{"Null":{{"s3:{ALGORITHM}":"true"}}}}"#));
    assert_eq!(all(), [403, 403, 403, 200]);
    deny(&format!(r#"{{"StringNotEquals":{{"s3:{ALGORITHM}":"AES256"}}}}"#));
    let other = bed.object("PUT", "k").header(ALGORITHM, "AES192").body(b"x").send();
    assert_eq!(other.status, 403);
}

#[test]
fn a_flipped_bit_is_an_error_and_never_other_data() {
    let bed = open_bed();
    let content = content((2 << 20) + 5);
    for kind in [Kind::S3, Kind::Kms, Kind::Customer] {
        let put =
            || assert_eq!(kind.of_new(bed.object("PUT", "k")).body(&content).send().status, 200);
        let get = || kind.of_read(bed.object("GET", "k")).send();
        put();
        // In the first piece: nothing was answered yet.
        bed.model.change("k", |_, stored| stored[100_000] ^= 1);
        assert_eq!(get().error(), (500, "InternalError".into()), "{kind:?}");
        put();
        // In a later one: the connection is cut, and what has come is right.
        bed.model.change("k", |_, stored| stored[(3 << 20) / 2] ^= 128);
        let got = get();
        assert!(got.status == 200 && !got.whole, "{kind:?}");
        assert!(got.body.len() < content.len() && content.starts_with(&got.body), "{kind:?}");
        let range = kind.of_read(bed.object("GET", "k")).header("range", "bytes=0-99").send();
        assert!(range.status == 206 && range.body == content[..100], "other frames are whole");
        let copy = bed.object("PUT", "copy").header("x-amz-copy-source", "bucket/k");
        let copy = match kind {
            Kind::Customer => with_key(copy, "x-amz-copy-source-", A),
            _ => copy,
        };
        assert_eq!(copy.send().error(), (500, "InternalError".into()), "{kind:?}");
        assert!(bed.model.object("copy").is_none(), "{kind:?}");
        put();
        // The end is cut off, and the row says so.
        bed.model.change("k", |info, stored| {
            stored.truncate(32 + 16 * (FRAME_BYTES + 16));
            info.object.size = stored.len() as u64;
        });
        let got = get();
        assert!(got.status == 500 || !got.whole, "{kind:?}");
        // What is another object's does not open here.
        put();
        let (info, stored) = bed.model.object("k").expect("an object");
        let other = kind.of_new(bed.object("PUT", "other")).body(b"other").send();
        assert_eq!(other.status, 200);
        bed.model.change("other", |its, bytes| {
            (its.object.facts, its.object.size) = (info.object.facts, info.object.size);
            *bytes = stored;
        });
        let moved = kind.of_read(bed.object("GET", "other")).send();
        assert_eq!(moved.error(), (500, "InternalError".into()), "{kind:?}");
    }
    // An envelope that is none.
    Kind::S3.of_new(bed.object("PUT", "k")).body(b"x").send();
    bed.model.change("k", |info, _| {
        info.object.facts.encryption = object_proto::Envelope::new(vec![9, 9]);
    });
    assert_eq!(bed.object("GET", "k").send().status, 500);
    assert_eq!(bed.object("HEAD", "k").send().status, 500);
}

#[test]
fn an_object_whose_key_is_missing_is_refused() {
    let bed = Bed::with_bucket();
    for (kind, wanted) in
        [(Kind::Kms, (400, "KMS.NotFoundException")), (Kind::S3, (500, "InternalError"))]
    {
        assert_eq!(kind.of_new(bed.object("PUT", "k")).body(b"x").send().status, 200);
        bed.model.change("k", |info, _| {
            let envelope = info.object.facts.encryption.take().expect("it is encrypted");
            let mut bytes = envelope.as_bytes().to_vec();
            bytes[3] = b'z'; // The first letter of the key's name.
            info.object.facts.encryption = object_proto::Envelope::new(bytes);
        });
        let got = bed.object("GET", "k").send();
        assert_eq!(got.error(), (wanted.0, wanted.1.into()), "{kind:?}: {}", got.text());
        assert_eq!(bed.object("HEAD", "k").send().status, 200, "its facts are there");
    }
}

#[test]
fn copies_are_made_from_each_kind_to_each_kind() {
    let bed = open_bed();
    let content = content(FRAME_BYTES + 9);
    for from in KINDS {
        let made = from.of_new(bed.object("PUT", "from")).body(&content);
        assert_eq!(made.header("x-amz-meta-a", "b").send().status, 200);
        for to in KINDS {
            let ask = bed.object("PUT", "to").header("x-amz-copy-source", "bucket/from");
            let without_key = to.of_new(ask.clone()).send();
            let ask = match from {
                Kind::Customer => {
                    assert_eq!(without_key.error(), (400, "InvalidRequest".into()));
                    let wrong = with_key(to.of_new(ask.clone()), "x-amz-copy-source-", B).send();
                    assert_eq!(wrong.error(), (403, "AccessDenied".into()));
                    with_key(ask, "x-amz-copy-source-", A)
                }
                _ => ask,
            };
            let copied = to.of_new(ask).send();
            assert_eq!(copied.status, 200, "{from:?} to {to:?}: {}", copied.text());
            to.check(&copied);
            let got = to.of_read(bed.object("GET", "to")).send();
            assert!(got.body == content, "{from:?} to {to:?}");
            to.check(&got);
            assert_eq!(got.header("etag"), Some(copied.field("ETag").as_str()));
            assert_eq!(got.header("x-amz-meta-a"), Some("b"));
        }
    }
    // A copy onto itself changes the encryption, or is refused.
    bed.put("k", b"hello");
    let onto = |kind: Kind| {
        let ask = bed.object("PUT", "k").header("x-amz-copy-source", "bucket/k");
        kind.of_new(ask).send()
    };
    assert_eq!(onto(Kind::Plain).error(), (400, "InvalidRequest".into()));
    for kind in [Kind::S3, Kind::Kms] {
        assert_eq!(onto(kind).status, 200);
        kind.check(&bed.object("HEAD", "k").send());
    }
    // Without a wish the bucket's default counts, not what the source has.
    assert_eq!(put_encryption(&bed, &by_default("AES256", "")).status, 200);
    let ask = bed.object("PUT", "to").header("x-amz-copy-source", "bucket/k").send();
    assert_eq!(ask.header(SSE), Some("AES256"));
}

#[test]
fn a_url_that_is_presigned_with_encryption_encrypts() {
    let bed = open_bed();
    for kind in [Kind::S3, Kind::Kms, Kind::Customer] {
        // In the URL, as SDKs write them; and as headers that are signed.
        let in_url = match kind {
            Kind::S3 => bed.object("PUT", "k").query(SSE, "AES256"),
            Kind::Kms => bed.object("PUT", "k").query(SSE, "aws:kms").query(KMS_KEY, "team"),
            _ => kind.of_new(bed.object("PUT", "k")),
        };
        for ask in [in_url, kind.of_new(bed.object("PUT", "k"))] {
            let made = ask.presigned("60").body(b"hello").send_plain();
            assert_eq!(made.status, 200, "{kind:?}: {}", made.text());
            kind.check(&made);
        }
        let got = kind.of_read(bed.object("GET", "k")).presigned("60").send_plain();
        assert_eq!((got.status, got.body.as_slice()), (200, &b"hello"[..]), "{kind:?}");
    }
}

#[test]
fn a_create_that_is_repeated_has_the_tag_of_the_first_one() {
    let bed = open_bed();
    for (kind, key) in [(Kind::Kms, "kms"), (Kind::Customer, "customer")] {
        let create = |call: &str| {
            let ask = kind.of_new(bed.object("PUT", key)).body(b"hello");
            ask.header("amz-sdk-invocation-id", call).send()
        };
        let tags = ["one", "one", "two"].map(create);
        let tags = tags.map(|reply| reply.header("etag").expect("a tag").to_owned());
        assert_eq!(tags[0], tags[1], "{kind:?}");
        assert_ne!(tags[0], tags[2], "{kind:?}");
    }
}

#[test]
fn a_large_object_is_encrypted_in_bounded_memory() {
    let bed = Bed::with(object_gateway::GatewayConfig {
        memory_bytes: 1 << 20,
        ..object_gateway::GatewayConfig::default()
    });
    assert_eq!(bed.ask("PUT", "/bucket").send().status, 200);
    let content = content((9 << 20) + 3);
    assert_eq!(Kind::S3.of_new(bed.object("PUT", "k")).body(&content).send().status, 200);
    assert!(bed.object("GET", "k").send().body == content, "the bytes differ");
    let copied = bed.object("PUT", "copy").header("x-amz-copy-source", "bucket/k");
    assert_eq!(Kind::Kms.of_new(copied).send().status, 200);
    assert!(bed.object("GET", "copy").send().body == content, "the bytes differ");
}
