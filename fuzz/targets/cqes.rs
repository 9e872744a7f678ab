//! See `doorbell_fuzz::cqes`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| doorbell_fuzz::cqes::run(bytes));
