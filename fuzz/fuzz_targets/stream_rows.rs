#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| master_stream::fuzz_rows(bytes));
