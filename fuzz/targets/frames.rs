//! See `doorbell_fuzz::frames`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| doorbell_fuzz::frames::run(bytes));
