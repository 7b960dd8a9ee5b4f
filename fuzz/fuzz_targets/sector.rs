#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| wire::row::fuzz_sector(bytes));
