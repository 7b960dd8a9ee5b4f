#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| wire::handshake::fuzz_hello(bytes));
