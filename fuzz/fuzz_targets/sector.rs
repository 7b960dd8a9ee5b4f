#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| wire::sector::fuzz_sector(bytes));
