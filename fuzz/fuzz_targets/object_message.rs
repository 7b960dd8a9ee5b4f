#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| object_proto::fuzz::fuzz_object_message(bytes));
