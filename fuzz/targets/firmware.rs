//! See `doorbell_fuzz::firmware`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| doorbell_fuzz::firmware::run(bytes));
