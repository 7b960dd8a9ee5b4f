#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| block_manager::fuzz::fuzz_manager_row(bytes));
