//! Tools that every part of the device uses: time, memory access, faults, counters.

pub(crate) mod clock;
pub mod counters;
pub(crate) mod defect;
pub mod dma;
pub mod faults;
pub(crate) mod guard;
pub(crate) mod options;
pub(crate) mod pace;
pub(crate) mod rng;
pub(crate) mod run_dir;
pub(crate) mod tally;
#[cfg(test)]
pub(crate) mod test_memory;
