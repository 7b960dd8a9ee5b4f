#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| object_index::fuzz::fuzz_object_piece(bytes));
