#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| block_volume::diff::fuzz_diff(bytes));
