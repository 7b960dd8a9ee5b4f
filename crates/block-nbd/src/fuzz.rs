//! Fuzz targets: plain functions over bytes, one per decoder. The tests replay them over the
//! corpus in `tests/corpus/`; a coverage-guided run calls the same.
//!
//! Beside "no panic", each checks that what is accepted is written back as it was read, where
//! the protocol has one form.

use crate::protocol::{
    ClientHello, Greeting, OptionHead, OptionRequest, Request, SimpleReply, decode_chunk,
    decode_reply,
};

/// The server's greeting.
pub fn fuzz_greeting(bytes: &[u8]) {
    if let Some(Ok(greeting)) = bytes.first_chunk().map(Greeting::decode) {
        assert_eq!(Greeting::decode(&greeting.encode()), Ok(greeting));
    }
}

/// The client's flags.
pub fn fuzz_hello(bytes: &[u8]) {
    if let Some(Ok(hello)) = bytes.first_chunk().map(|bytes| ClientHello::decode(*bytes)) {
        assert_eq!(hello.encode()[..], bytes[..4]);
    }
}

/// An option: head and data.
pub fn fuzz_option(bytes: &[u8]) {
    let Some(Ok(head)) = bytes.first_chunk().map(OptionHead::decode) else { return };
    let Some(data) = bytes[OptionHead::LEN..].get(..head.len as usize) else { return };
    if let Ok(option) = OptionRequest::decode(head.code, data) {
        let mut back = Vec::new();
        option.encode(&mut back);
        if option != OptionRequest::Abort {
            assert_eq!(back, bytes[..OptionHead::LEN + data.len()]);
        }
    }
}

/// A reply to an option.
pub fn fuzz_reply(bytes: &[u8]) {
    if let Ok(Some((to, reply, len))) = decode_reply(bytes) {
        let mut back = Vec::new();
        reply.encode(to, &mut back);
        // The data of a bare acknowledgement says nothing, and must not be there.
        assert_eq!(back, bytes[..len]);
    }
}

/// A request.
pub fn fuzz_request(bytes: &[u8]) {
    if let Some(Ok(Ok(request))) = bytes.first_chunk().map(Request::decode) {
        assert_eq!(request.encode()[..], bytes[..Request::LEN]);
    }
}

/// A simple reply.
pub fn fuzz_simple_reply(bytes: &[u8]) {
    if let Some(Ok(reply)) = bytes.first_chunk().map(SimpleReply::decode) {
        assert_eq!(SimpleReply::decode(&reply.encode()), Ok(reply));
    }
}

/// A chunk of a structured reply.
pub fn fuzz_chunk(bytes: &[u8]) {
    if let Ok(Some((cookie, done, chunk, len))) = decode_chunk(bytes) {
        let mut back = Vec::new();
        chunk.encode(cookie, done, &mut back);
        let again = decode_chunk(&back);
        assert_eq!(again, Ok(Some((cookie, done, chunk, len))));
    }
}

/// The subject of a client's certificate.
pub fn fuzz_common_names(bytes: &[u8]) {
    for name in crate::server::tls::common_names(bytes) {
        assert!(!name.chars().any(char::is_control));
        assert!(bytes.windows(name.len().max(1)).any(|part| part.starts_with(name.as_bytes())));
    }
}
