#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| master::namespace::fuzz_row(bytes));
