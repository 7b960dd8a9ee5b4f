#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| codec::fuzz::fuzz_erasure(bytes));
