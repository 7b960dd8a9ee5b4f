#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| table::fuzz::fuzz_manifest(bytes));
