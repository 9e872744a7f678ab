//! Completion queues: the object, who polls it, and waiting. Each receiver, sender and tag engine owns a [`CqCore`].

mod channel;
mod completions;
mod config;
mod cq_core;
mod object;
mod poller;
mod verbs;

pub use channel::CompletionChannel;
pub use completions::Completions;
pub use config::{Compression, CqConfig, Timestamps};

pub(crate) use completions::{LOOK, Waiting};
pub(crate) use cq_core::{CqCore, NO_CHANNEL};
pub(crate) use object::Cq;
pub(crate) use poller::{DirectCq, Poller};
pub(crate) use verbs::Wc;
