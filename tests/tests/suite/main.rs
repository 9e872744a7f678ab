//! What a program sees of doorbell on a device, the same on both paths.

mod basics;
mod completions;
mod connection_manager;
mod direct;
mod exhaustion;
mod failures;
mod forget;
mod order;
mod panics;
mod processes;
mod raw;
mod refusals;
mod reset;
mod teardown;
mod waiting;
mod witness;
mod wraparound;
