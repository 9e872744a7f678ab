//! See `doorbell_fuzz::connections`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| doorbell_fuzz::connections::run(bytes));
