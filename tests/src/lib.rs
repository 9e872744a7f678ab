//! Shared parts of the integration tests: the device under test, connections inside one process, and
//! the proof that the direct path is direct.
//!
//! The device can be any. `DOORBELL_DEVICE` names it; by default it is the first device of libibverbs.
//! `DOORBELL_PATH` is `direct` or `verbs`; by default it is the path of `DataPath::Auto`. On a slow machine
//! `DOORBELL_SHARE=N` divides the numbers of messages that are about endurance only.

pub mod by_hand;
pub mod c_program;
pub mod cut;
pub mod descriptor;
pub mod device;
pub mod layers;
pub mod message;
pub mod peers;
pub mod poison;
pub mod programs;
pub mod receiving;
pub mod records;
pub mod repository;
pub mod sending;
pub mod sending_qp;
pub mod sent;
pub mod tags;
pub mod world;

pub use device::{pd, receiver, sender, share};
pub use peers::Peers;

/// Asserts that a value has this form. `=> expression` makes something of it.
#[macro_export]
macro_rules! assert_matches {
    ($value:expr, $pattern:pat $(if $guard:expr)? $(=> $then:expr)? $(,)?) => {
        match $value {
            $pattern $(if $guard)? => ($($then)?),
            ref other => panic!("{other:?} is not {}", stringify!($pattern $(if $guard)?)),
        }
    };
}
