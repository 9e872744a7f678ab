//! doorbell gives programs the data path of mlx5 (NVIDIA ConnectX) adapters without the cost of generic verbs.
//!
//! Control objects (context, PD, MR, CQ, QP, SRQ) come from libibverbs. On an mlx5 device, posting and polling touch
//! nothing but memory: doorbell writes the WQE into the device's queue, rings the doorbell and reads the CQE. On any other
//! device the same calls go through libibverbs.
//!
//! | to | use |
//! |---|---|
//! | receive messages | [`Receiver`]: one CQ and the receive queues that complete on it; [`Batch`] lends messages in place |
//! | send, write, read, and change numbers at a peer | [`Sender`]: one CQ for the sends of any number of queue pairs |
//! | receive Ethernet frames, such as market data | module [`frames`] |
//! | receive by tag, as in MPI | module [`tags`] |
//! | register memory | [`BufferPool`]; [`RemoteMemory`] for memory that peers read or write |
//! | connect | [`QueuePair`] |
//! | sleep until something arrives | [`Receiver::wait`], [`Sender::wait`], [`CompletionChannel`] |
//! | give buffers back from other threads | [`SharedPoster`] |
//! | learn what happens to the device | [`Context::events`], [`Receiver::handle_event`] |
//!
//! A buffer that is posted belongs to the queue until it completes. [`Error`] says which function failed on which device,
//! and what usually helps.
//!
//! ```no_run
//! use doorbell::{BufferPool, QpConfig, Receiver, ReceiverConfig, SrqConfig};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
//! let pool = BufferPool::new(&pd, 512, 4096)?;
//! let mut receiver = Receiver::new(&pd, &ReceiverConfig::new())?;
//! let srq = receiver.create_srq(&SrqConfig::new(511))?;
//! receiver.fill(srq, &pool)?;
//! let mut qp = receiver.create_qp(&QpConfig::rc().srq(srq))?;
//! qp.connect_over(&mut std::net::TcpStream::connect("server:18515")?)?;
//! loop {
//!     let mut batch = receiver.poll();
//!     while let Some(message) = batch.next() {
//!         println!("{} bytes", message?.len());
//!     }
//! }
//! # }
//! ```
//!
//! # Features
//! All are off by default.
//! - `memmap2`: pools in mappings of the crate of that name, see [`StableMemory`].
//! - `rdmacm`: connecting by IP address, module `rdmacm`.
//! - `serde`: [`QpAddress`] in the formats of serde.
//! - `tokio`: `AsyncReceiver` and `EventStream`.
//! - `tracing`: events of the control path, which the page on diagnostics of the book lists.

// Their types are in public signatures.
pub use {mlx5_ring, rdma_core_sys};

pub mod caps;
mod channel;
mod clock;
mod connect;
mod context;
mod counters;
mod cq;
mod device;
mod error;
#[cfg(test)]
mod error_texts;
mod events;
pub mod frames;
mod gid;
mod memory;
mod mlx5;
mod node;
mod owner;
mod path;
mod pd;
mod poll;
mod poller;
mod qp;
pub mod raw;
#[cfg(feature = "rdmacm")]
pub mod rdmacm;
mod receiver;
mod sender;
mod status;
pub mod tags;
#[cfg(feature = "tokio")]
mod task;
mod threads;
mod trace;
mod wc_flags;

pub use channel::CompletionChannel;
pub use clock::{Clock, Timestamp, WrongClock};
pub use context::Context;
pub use device::{Device, devices, open};
pub use error::{Error, Result};
pub use events::{AsyncEvent, AsyncEvents, ObjectName};
pub use gid::{Gid, GidKind};
pub use memory::{
    Buffer, BufferError, BufferPool, HugePages, MemoryError, PoolConfig, RemoteAccess,
    RemoteMemory, RemoteRegion, StableMemory,
};
pub use path::{NotDirect, Path, UnknownPath};
pub use pd::ProtectionDomain;
pub use qp::*;
pub use receiver::{
    Batch, Cause, Compression, Datagram, DatagramSource, Failure, GRH_SIZE, Message, MessageSource,
    PostError, PostFailure, QueueId, Receiver, ReceiverConfig, RqId, SharedPoster, SrqConfig,
    SrqId, Statistics, WrongCqe,
};
pub use sender::{
    BufferPart, NotSent, Payload, Posting, SendBatch, SendCompletion, SendError, Sender,
    SenderConfig, SqId,
};
pub use status::WcStatus;
#[cfg(feature = "tokio")]
pub use task::{AsyncReceiver, AsyncSender, AsyncTagMatchingSrq, EventStream};
pub use wc_flags::WcFlags;

/// What the README and the book show compiles.
#[cfg(doctest)]
mod shown {
    macro_rules! pages {
        ($($name:ident = $file:literal,)*) => {
            $(#[doc = include_str!($file)] struct $name;)*
        };
    }

    pages! {
        Readme = "../README.md",
        FirstProgram = "../docs/first-program.md",
        MarketData = "../docs/market-data.md",
        Porting = "../docs/porting.md",
        ReceiveModels = "../docs/receive-models.md",
        Safety = "../docs/safety.md",
        TagMatching = "../docs/tag-matching.md",
    }
}
