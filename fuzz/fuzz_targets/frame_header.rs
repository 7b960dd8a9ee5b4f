#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| wire::frame::fuzz_header(bytes));
