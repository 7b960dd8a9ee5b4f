use http::header::HeaderValue;

use super::*;

type Pairs<'a> = &'a [(&'static str, &'a str)];

fn headers(pairs: Pairs<'_>) -> HeaderMap {
    let entry = |(name, value): &(&'static str, &str)| {
        (HeaderName::from_static(name), HeaderValue::from_str(value).expect("a value"))
    };
    pairs.iter().map(entry).collect()
}

fn digest(kind: ChecksumKind, parts: &[&[u8]]) -> Found {
    let mut digest = Digest::new(kind);
    parts.iter().for_each(|part| digest.update(part));
    digest.finish()
}

#[test]
fn digests_of_the_standard_check_text_come_out() {
    // The check values of the algorithms' specifications, for the text 123456789.
    for (kind, value) in [
        (ChecksumKind::Crc32, "cbf43926"),
        (ChecksumKind::Crc32c, "e3069283"),
        (ChecksumKind::Crc64Nvme, "ae8b14860a799888"),
        (ChecksumKind::Sha1, "f7c3bc1d808e04732adf679965ccc34ca7ae3441"),
        (ChecksumKind::Sha256, "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225"),
    ] {
        let found = digest(kind, &[b"1234", b"", b"56789"]);
        assert_eq!(hex::encode(&found.checksum.value), value, "{kind:?}");
        assert_eq!(found.etag().as_str(), "25f9e794323b453885f5181f1b624d0b");
    }
}

#[test]
fn what_was_sent_is_compared() {
    let found = digest(ChecksumKind::Crc32, &[b"123456789"]);
    let cases: &[(Pairs<'_>, Result<(), &str>)] = &[
        (&[], Ok(())),
        (&[("x-amz-checksum-crc32", "y/Q5Jg==")], Ok(())),
        (&[("x-amz-checksum-crc32", "y/Q5Jw==")], Err("BadDigest")),
        (&[("x-amz-checksum-crc32c", "y/Q5Jg==")], Err("BadDigest")),
        (&[("content-md5", "JfnnlDI7RTiF9RgfG2JNCw==")], Ok(())),
        (&[("content-md5", "JfnnlDI7RTiF9RgfG2JNDA==")], Err("BadDigest")),
        (&[("content-md5", "Jfnn")], Err("InvalidDigest")),
        (&[("x-amz-checksum-mode", "ENABLED"), ("x-amz-checksum-type", "FULL_OBJECT")], Ok(())),
        (&[("x-amz-checksum-crc32", "y/Q5")], Err("InvalidRequest")),
        (&[("x-amz-checksum-md5", "y/Q5")], Err("NotImplemented")),
        (&[("x-amz-trailer", "x-amz-meta-a")], Err("InvalidRequest")),
        (&[("x-amz-trailer", "x-amz-checksum-crc32,x-amz-checksum-sha1")], Err("InvalidRequest")),
        (
            &[("x-amz-trailer", "x-amz-checksum-sha1"), ("x-amz-checksum-crc32", "y/Q5Jg==")],
            Err("InvalidRequest"),
        ),
    ];
    for (pairs, outcome) in cases {
        let checked = Expected::of(&headers(pairs)).and_then(|expected| expected.check(&found));
        assert_eq!(checked.map_err(|refusal| refusal.code), *outcome, "{pairs:?}");
    }
}

#[test]
fn a_trailer_must_come_once() {
    let announced = headers(&[("x-amz-trailer", "X-Amz-Checksum-Crc32")]);
    let take = |trailers: Option<&HeaderMap>| {
        let mut expected = Expected::of(&announced).map_err(|refusal| refusal.code)?;
        expected.take_trailers(trailers).map_err(|refusal| refusal.code)?;
        Ok::<_, &str>(expected.checksum)
    };
    let value = vec![0xcb, 0xf4, 0x39, 0x26];
    let good = headers(&[("x-amz-checksum-crc32", "y/Q5Jg==")]);
    assert_eq!(take(Some(&good)), Ok(Some((ChecksumKind::Crc32, value))));
    assert_eq!(take(None), Err("MalformedTrailerError"));
    assert_eq!(take(Some(&HeaderMap::new())), Err("MalformedTrailerError"));
    let mut twice = good.clone();
    twice.append("x-amz-checksum-crc32", HeaderValue::from_static("y/Q5Jg=="));
    assert_eq!(take(Some(&twice)), Err("MalformedTrailerError"));
}
