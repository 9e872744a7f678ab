//! See `doorbell_fuzz::wqes`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| doorbell_fuzz::wqes::run(bytes));
