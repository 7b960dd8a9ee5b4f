#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| block::device::fuzz::fuzz_origins(bytes));
