#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| master::identity::fuzz_identity(bytes));
