//! Dynamic connections. An initiator is a requester that turns to another target when everything that it sent to the
//! last one is acknowledged. A target listens: the first packet of a session makes a connection, a responder that
//! completes in the name of the target.
//!
//! Each session begins at packet 0 and has a number greater than those before it, so that a late packet belongs to no
//! other session. No specification says how adapters do it.

pub mod initiator;
mod target;
