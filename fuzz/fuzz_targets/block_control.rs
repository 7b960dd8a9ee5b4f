#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| block_proto::fuzz_control(bytes));
