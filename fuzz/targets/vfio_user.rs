//! See `doorbell_fuzz::vfio_user`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| doorbell_fuzz::vfio_user::run(bytes));
