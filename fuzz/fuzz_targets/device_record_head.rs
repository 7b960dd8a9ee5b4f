#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| block_segment::fuzz::fuzz_record_head(bytes));
