//! See `doorbell_fuzz::sends`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| doorbell_fuzz::sends::run(bytes));
