//! Tag matching: by the device and by the library, directly and through verbs.

mod basics;
mod batches;
mod broken;
mod manual;
mod model;
mod races;
mod refusals;
mod world;
