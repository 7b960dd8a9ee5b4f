#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| chunkstore::fuzz::fuzz_index(bytes));
