//! The wire between devices.
