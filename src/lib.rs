//! doorbell is the data path of mlx5 (NVIDIA ConnectX) adapters in Rust.
//!
//! libibverbs creates the objects (context, PD, MR, CQ, QP, SRQ). On the *direct path*, doorbell posts and polls by
//! itself: it writes WQEs, rings doorbells and reads CQEs. On the *verbs path*, for any other device, the same methods
//! call libibverbs.
//! [`DataPath`] selects one.
//!
//! | to | use |
//! |---|---|
//! | open a device, allocate a protection domain | [`open`], [`Context::alloc_pd`] |
//! | allocate and register buffers | [`BufferPool`]; [`MemoryRegion`] for RDMA READ and WRITE by peers |
//! | receive messages | [`Receiver`]: one CQ and the receive queues that complete on it; [`Receiver::next`] and [`Batch`] lend each [`Message`] |
//! | send, RDMA WRITE and READ, atomics | [`Sender`]: one CQ for the send queues of any number of queue pairs; [`Sender::send`], [`Request`], [`Posting`] |
//! | make queue pairs | [`QueuePair::builder`] |
//! | connect | [`QueuePair::connect_over`] any stream, with tokio `connect_over_async`; module `rdmacm` by IP address |
//! | send to many peers over one queue | [`DcInitiator`], [`DcTarget`] |
//! | connect again after a failure | [`Receiver::reset_qp`], steps at [`QueuePair`] |
//! | receive and send datagrams, join multicast groups | [`QpConfig::ud`], [`Message::datagram`], [`QueuePair::join`] |
//! | receive and send Ethernet frames | module [`frames`] |
//! | match messages by tag, as MPI does | module [`tags`] |
//! | receive and send memory of a GPU or of the adapter | module [`opaque`] |
//! | sleep until a completion arrives | trait [`Completions`]; with tokio `Async` |
//! | return buffers from other threads | [`SharedPoster`] |
//! | handle events of the device | [`Context::events`], [`Receiver::handle_event`] |
//! | query optional features of the device | module [`caps`] |
//! | drive the rings themselves | module [`raw`] |
//!
//! A queue owns a posted buffer until its completion, so safe code cannot access memory that the device may write. A
//! call that refuses a buffer returns it in its error. [`Error`] names the function, the device and what to do.
//!
//! ```no_run
//! use doorbell::{BufferPool, CqConfig, PoolConfig, QpConfig, QueuePair, Receiver, SrqConfig};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
//! let pool = BufferPool::new(&pd, &PoolConfig::new(512, 4096))?;
//! let mut receiver = Receiver::new(&pd, &CqConfig::for_pool(&pool))?;
//! let srq = receiver.create_srq(&SrqConfig::for_pool(&pool))?;
//! receiver.fill(srq, &pool)?;
//! let mut qp = QueuePair::builder(&QpConfig::rc()).receive(&mut receiver, srq).build()?;
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
//! - `memmap2`: pools in mappings of the crate memmap2, see [`StableMemory`].
//! - `rdmacm`: connections by IP address, module `rdmacm`.
//! - `serde`: [`QpAddress`] in the formats of serde.
//! - `tokio`: `Async` for everything that has [`Completions`], `EventStream`, `QueuePair::connect_over_async`; with
//!   `rdmacm` also `accept_async` and `wait_disconnected_async`.
//! - `tracing`: events of the control path; the page Diagnostics of the book lists them.

mod attributes;
mod builder;
pub mod caps;
mod clock;
mod connect;
mod context;
mod counters;
mod cq;
mod dc;
mod debug_is_display;
mod device;
mod device_event;
mod devx;
mod error;
#[cfg(test)]
mod error_texts;
mod events;
pub mod frames;
mod gid;
mod ids;
mod local_cpus;
mod memory;
mod message_source;
mod mlx5;
mod mtu;
mod node;
mod not_sent;
pub mod opaque;
mod owner;
mod path;
mod pd;
mod poll;
mod post_failure;
mod qp;
mod qp_state;
pub mod raw;
#[cfg(feature = "rdmacm")]
pub mod rdmacm;
mod receive_from;
mod receiver;
mod refused;
mod routes;
mod sender;
mod srq;
mod status;
pub mod tags;
#[cfg(feature = "tokio")]
mod task;
mod thread_domain;
mod threads;
mod trace;
mod wc_flags;
mod window_keys;

pub use builder::QueuePairBuilder;
pub use clock::{Clock, Timestamp, WrongClock};
pub use context::Context;
pub use cq::{CompletionChannel, Completions, Compression, CqConfig, Timestamps};
pub use dc::{DcInitiators, DcPeerId};
pub use device::{Device, devices, open};
pub use device_event::{DeviceEvent, ObjectName};
pub use error::{Error, Result};
pub use events::DeviceEvents;
pub use gid::{Gid, GidKind};
pub use ids::{QueueId, RqId, SqId, SrqId};
pub use memory::{
    Buffer, BufferPool, Host, HugePages, Memory, MemoryRegion, MemoryWindow, PoolConfig, RemoteAccess, RemoteRegion,
    StableMemory, WindowMemory,
};
pub use message_source::{DatagramSource, MessageSource};
pub use mtu::Mtu;
pub use not_sent::NotSent;
pub use path::{DataPath, NotDirect, UnknownDataPath};
pub use pd::ProtectionDomain;
pub use post_failure::{GRH_SIZE, PostFailure, Scattered};
pub use qp::*;
pub use qp_state::{QpEnd, QpState};
pub use receive_from::{ReceiveFrom, RqConfig};
pub use receiver::{
    Batch, Cause, Datagram, Failure, Message, PostError, Receiver, SharedPoster, SrqStatistics, Statistics, WrongCqe,
};
pub use refused::Refused;
pub use sender::{
    BufferPart, DcPosting, DcRequest, Payload, Posting, Request, SendBatch, SendCompletion, SendFailure, Sender,
    Target, Unsent,
};
pub use srq::SrqConfig;
pub use status::WcStatus;
#[cfg(feature = "tokio")]
pub use task::{Async, EventStream};
pub use wc_flags::WcFlags;

/// The code in the README and the book compiles.
#[cfg(doctest)]
mod shown {
    macro_rules! pages {
        ($($name:ident = $file:literal,)*) => {
            $(#[doc = include_str!($file)] struct $name;)*
        };
    }

    #[cfg(feature = "tokio")]
    pages! {
        Async = "../docs/async.md",
    }

    #[cfg(all(feature = "rdmacm", feature = "tokio"))]
    pages! {
        Connecting = "../docs/connecting.md",
        FourPrograms = "../docs/four-programs.md",
    }

    pages! {
        Readme = "../README.md",
        DynamicConnections = "../docs/dc.md",
        FirstProgram = "../docs/first-program.md",
        GpuMemory = "../docs/gpu-memory.md",
        MarketData = "../docs/market-data.md",
        Porting = "../docs/porting.md",
        ReceiveModels = "../docs/receive-models.md",
        Recipes = "../docs/recipes.md",
        Safety = "../docs/safety.md",
        TagMatching = "../docs/tag-matching.md",
    }
}
