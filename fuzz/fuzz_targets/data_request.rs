#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| wire::data_codec::fuzz_request(bytes));
