//! The sources and the documents themselves, without a device.
//!
//! Needs: nothing

mod api;
mod compile_fail;
mod docs;
mod layers;
