#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| wire::block::fuzz_answer(bytes));
