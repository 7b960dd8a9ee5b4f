#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| wire::control::fuzz_control(bytes));
