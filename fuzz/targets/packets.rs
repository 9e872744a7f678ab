//! See `doorbell_fuzz::packets`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| doorbell_fuzz::packets::run(bytes));
