#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| wire::token::fuzz_token(bytes));
