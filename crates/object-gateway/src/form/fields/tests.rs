use proptest::prelude::*;

use super::*;

/// Fields, name of the file and its first bytes, of a form that comes in frames of one size.
fn read(form: &[u8], len: usize) -> Result<Option<(Fields, Bytes)>, &'static str> {
    let mut reader = Reader::new("b");
    for data in form.chunks(len) {
        if let Some(found) = reader.feed(data).map_err(|refusal| refusal.code)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

fn part(parameters: &str, value: &str) -> String {
    format!("--b\r\nContent-Disposition: form-data; {parameters}\r\n\r\n{value}\r\n")
}

fn file(parameters: &str) -> String {
    part(&format!("name=\"file\"{parameters}"), "content")
}

#[test]
fn fields_are_read_up_to_the_file() {
    let form = [
        part("name=\"Key\"", "a/${filename}"),
        part("name=acl", ""),
        "--b \r\nX: y\r\ncontent-disposition:form-data; name=\"x\"\r\n\r\n\r\n--\r\n".to_owned(),
        file("; filename=\"C:\\d\\n \\\"m\\\".txt\"") + "--b--\r\n",
    ];
    for start in ["", "\r\n"] {
        for len in [1, 2, 7, 1000] {
            let form = format!("{start}{}", form.concat());
            let (fields, first) = read(form.as_bytes(), len).expect("a form").expect("a file");
            let all: Vec<_> = fields.iter().collect();
            assert_eq!(all, [("key", "a/n \"m\".txt"), ("acl", ""), ("x", "\r\n--")]);
            assert!(b"content\r\n--b--\r\n".starts_with(&first));
        }
    }
}

#[test]
fn the_name_of_a_file_has_no_folders() {
    for (parameters, name) in [
        ("", ""),
        ("; filename=\"\"", ""),
        ("; filename=a.txt", "a.txt"),
        ("; filename=\"a;b=c.txt\"", "a;b=c.txt"),
        ("; filename=\"/d/e/\"", ""),
        ("; filename=\"d/é\"", "é"),
        ("; filename*=utf-8''%C3%A9.txt", "é.txt"),
    ] {
        let form = file(parameters);
        let (fields, _) = read(form.as_bytes(), 1000).expect("a form").expect("a file");
        assert_eq!(fields.file_name, name, "{parameters}");
    }
}

#[test]
fn what_is_no_form_is_refused() {
    let twice = part("name=\"key\"", "a") + &part("name=\"KEY\"", "b") + "--b";
    let large = part("name=\"key\"", &"a".repeat(FORM_FIELDS_MAX)) + "--b";
    for (form, code) in [
        ("x".to_owned(), "MalformedPOSTRequest"),
        ("\r\n\r\n--b".to_owned(), "MalformedPOSTRequest"),
        ("--bb\r\n".to_owned(), "MalformedPOSTRequest"),
        ("--b\r\nX: y\r\n\r\n".to_owned(), "MalformedPOSTRequest"),
        (part("filename=\"a\"", ""), "MalformedPOSTRequest"),
        (part("name=\"a", ""), "MalformedPOSTRequest"),
        ("--b--".to_owned(), "InvalidArgument"),
        (part("name=\"key\"", "a") + "--b--", "InvalidArgument"),
        (twice, "InvalidArgument"),
        (large, "MaxPostPreDataLengthExceeded"),
    ] {
        for len in [1, 5, 100_000] {
            assert_eq!(read(form.as_bytes(), len), Err(code), "{form}");
        }
    }
    let ignored = part("name=\"x-ignore-a\"", "a").repeat(2) + &file("");
    assert!(read(ignored.as_bytes(), 9).expect("a form").is_some());
}

#[test]
fn a_boundary_is_named_by_the_type() {
    for (kind, boundary) in [
        ("multipart/form-data; boundary=abc", Some("abc")),
        ("multipart/form-data; charset=utf-8; Boundary=\"a b\"", Some("a b")),
        ("multipart/form-data", None),
        ("multipart/form-data; boundary=", None),
        ("multipart/form-data; boundary=é", None),
    ] {
        assert_eq!(boundary_of(kind).ok().as_deref(), boundary, "{kind}");
    }
    let long = format!("multipart/form-data; boundary={}", "a".repeat(71));
    assert!(boundary_of(&long).is_err());
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused_however_they_are_cut(
        parts in proptest::collection::vec(prop_oneof![
            Just("--b".to_owned()), Just("\r\n".to_owned()), Just("--".to_owned()),
            Just("Content-Disposition: form-data; name=\"key\"".to_owned()),
            Just("Content-Disposition: form-data; name=\"file\"".to_owned()),
            "[ -~]{0,9}",
        ], 0..12),
        len in 1..20usize,
    ) {
        let form = parts.concat();
        let cut = read(form.as_bytes(), len).map(|found| found.map(|(fields, _)| fields));
        let whole = read(form.as_bytes(), 10_000).map(|found| found.map(|(fields, _)| fields));
        prop_assert_eq!(cut, whole);
    }
}
