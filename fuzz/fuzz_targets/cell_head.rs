#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| codec::fuzz::fuzz_cell_head(bytes));
