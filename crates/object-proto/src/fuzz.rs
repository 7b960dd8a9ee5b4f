//! Fuzz targets: plain functions over bytes. The simulator's tests replay them over the corpus in
//! `tests/corpus/`; a coverage-guided run calls the same.

use crate::message::Request;
use crate::wire::{decode_answer, encode_answer};

/// A message: the first byte says whether it is a request or an answer. What is accepted has one form.
pub fn fuzz_object_message(bytes: &[u8]) {
    let Some((&kind, bytes)) = bytes.split_first() else { return };
    match kind % 2 {
        0 => {
            if let Some(request) = Request::decode(bytes) {
                assert_eq!(request.encode(), bytes);
            }
        }
        _ => {
            if let Some(answer) = decode_answer(bytes) {
                assert_eq!(encode_answer(&answer), bytes);
            }
        }
    }
}
