//! Dynamic connections (DC): initiators, whose requests name a target each, and targets, which receive from any
//! initiator.

mod address;
mod initiator;
mod peer;
mod target;

pub use address::DcAddress;
pub use initiator::DcInitiator;
pub use peer::DcPeer;
pub use target::DcTarget;
