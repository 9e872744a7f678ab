//! The sources and the documents themselves, without a device.
//!
//! Needs: nothing

mod compile_fail;
mod docs;
mod layers;
