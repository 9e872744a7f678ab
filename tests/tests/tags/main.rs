//! Tag matching: by the device and by the library, directly and through verbs.

mod basics;
mod batches;
mod broken;
mod cut;
mod manual;
mod model;
mod peers;
mod races;
mod raw;
mod refusals;
mod requests;
mod waiting;
