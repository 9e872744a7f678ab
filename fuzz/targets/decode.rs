//! See `doorbell_fuzz::decode`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| doorbell_fuzz::decode::run(bytes));
