//! See `doorbell_fuzz::commands`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| doorbell_fuzz::commands::run(bytes));
