//! Against a model of the device: what the queue writes, byte by byte and in which order, and what it makes of
//! completions.

mod bytes;
mod completions;
mod doorbell;
mod explorer;
mod random;
mod rig;
mod whole;
