#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| master::cluster::fuzz_command(bytes));
