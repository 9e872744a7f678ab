//! Benches of doorbell beside stock libmlx5.
//!
//! Both drive queues that stock libibverbs and libmlx5 made, on a device of soft-mlx5 that is never stepped
//! while anything is measured. The [`adapter`] does the work of the device, *outside* of the measurement: it
//! follows the WQEs of the queue and writes CQEs into the memory of the CQ, in the same way for every subject.
//! Messages of [`tags`] match the receives of a tag list. The device is stepped for them, outside of the
//! measurement, too. So the speed of a device model enters nowhere, and all subjects find memory of the same
//! shape and in the same state.
//!
//! - [`world`] makes the objects.
//! - [`subject`] has the subjects: the rings of doorbell, its safe layer, and libmlx5. Each does the same
//!   work, and returns a sum over the messages, which must match the CQEs that the adapter wrote.
//! - [`rig`] puts them together.
//! - `single` counts one message at a time, instruction by instruction.

pub mod adapter;
pub mod adjacency;
pub mod case;
pub mod frames;
pub mod name;
pub mod operation;
pub mod pin;
#[path = "../../soft-mlx5/tests/common/qp_states.rs"]
mod qp_states;
pub mod report;
pub mod rig;
pub mod sends;
#[cfg(target_arch = "x86_64")]
pub mod single;
#[cfg(target_arch = "x86_64")]
pub mod step;
pub mod subject;
pub mod sum;
pub mod tags;
pub mod world;
