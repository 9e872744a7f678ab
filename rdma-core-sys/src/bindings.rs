//! Bindings that bindgen made of the headers.
#![allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    reason = "generated: names are those of the C headers, whose man pages document them"
)]

#[cfg(not(feature = "bindgen"))]
include!("generated/verbs.rs");
#[cfg(all(feature = "bindgen", target_arch = "x86_64"))]
include!(concat!(env!("OUT_DIR"), "/x86_64.rs"));
#[cfg(all(feature = "bindgen", target_arch = "aarch64"))]
include!(concat!(env!("OUT_DIR"), "/aarch64.rs"));
