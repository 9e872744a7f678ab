//! See `doorbell_fuzz::completions`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| doorbell_fuzz::completions::run(bytes));
