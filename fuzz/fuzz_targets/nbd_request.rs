#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| block_nbd::fuzz::fuzz_request(bytes));
