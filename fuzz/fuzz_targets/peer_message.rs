#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| master_consensus::peers::fuzz_peer_message(bytes));
