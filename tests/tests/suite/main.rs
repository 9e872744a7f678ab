//! What a program sees of doorbell on a device, the same on both paths.

mod attributes;
mod basics;
mod completions;
mod connection_manager;
mod datagrams;
mod direct;
mod disconnect;
mod exhaustion;
mod failures;
mod first_use;
mod forget;
mod memory;
mod numbers;
mod order;
mod panics;
mod processes;
mod raw;
mod refusals;
mod reset;
mod tasks;
mod teardown;
mod traces;
mod upkeep;
mod waiting;
mod witness;
mod wraparound;
