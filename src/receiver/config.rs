//! Configuration of a receiver and of its shared receive queues.

use mlx5_wire::mini_cqe::MiniCqeFormat;
use rdma_core_sys::{self as sys, Mlx5dv};

use crate::context::Context;
use crate::cq::{Form, Timestamps};
use crate::error::{Error, Result};
use crate::path::Path;

/// Size, path and options of a [`Receiver`](crate::Receiver).
///
/// ```
/// # let _device = doorbell_doc::device();
/// use doorbell::{Receiver, ReceiverConfig};
///
/// let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
/// let config = ReceiverConfig::new().cq_capacity(1000).timestamps(true);
/// let receiver = Receiver::new(&pd, &config)?;
/// assert!(receiver.cq_capacity() >= 1000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ReceiverConfig {
    pub(crate) cq_capacity: u32,
    pub(crate) path: Path,
    pub(crate) timestamps: Option<Timestamps>,
    pub(crate) compression: Option<Compression>,
    pub(crate) comp_vector: u32,
    pub(crate) verify_cqes: bool,
}

/// Contents of a mini CQE beside the length of the message (formats of the basic layout).
///
/// ```
/// # let _device = doorbell_doc::device();
/// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
/// use doorbell::{Compression, Receiver, ReceiverConfig};
///
/// let mut config = ReceiverConfig::new();
/// if pd.context().capabilities()?.cqe_compression.is_some_and(|caps| caps.checksum) {
///     config = config.compression(Compression::Checksum);
/// }
/// let receiver = Receiver::new(&pd, &config)?;
/// # let _ = receiver;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Compression {
    /// The RSS hash.
    Hash,
    /// The checksum of the packet.
    Checksum,
}

impl Compression {
    pub(crate) const fn format(self) -> MiniCqeFormat {
        match self {
            Self::Hash => MiniCqeFormat::Hash,
            Self::Checksum => MiniCqeFormat::Checksum,
        }
    }
}

impl ReceiverConfig {
    /// Describes a CQ of 4,096 entries on [`Path::Auto`].
    pub const fn new() -> Self {
        Self {
            cq_capacity: 4096,
            path: Path::Auto,
            timestamps: None,
            compression: None,
            comp_vector: 0,
            verify_cqes: false,
        }
    }

    /// Sets the number of entries of the CQ, 4,096 by default. It must be at least the number of receives that can be
    /// outstanding on all queues together. An mlx5 device rounds up to a power of two: 501 become 512.
    pub const fn cq_capacity(mut self, entries: u32) -> Self {
        self.cq_capacity = entries;
        self
    }

    /// Requests a timestamp in each completion, see [`Message::timestamp`](crate::Message::timestamp). Without a
    /// clock in the device, messages have no timestamp, and creation does not fail.
    pub const fn timestamps(mut self, wanted: bool) -> Self {
        self.timestamps = if wanted { Some(Timestamps::Ticks) } else { None };
        self
    }

    /// Requests timestamps in real time. The adapter keeps this clock itself: conversion to nanoseconds needs no
    /// clock reading, and the clock does not wrap. [`Receiver::new`](crate::Receiver::new) returns
    /// [`Error::Unsupported`](crate::Error::Unsupported) unless
    /// [`TimestampCaps::real_time`](crate::caps::TimestampCaps::real_time) is set.
    pub const fn real_time_timestamps(mut self) -> Self {
        self.timestamps = Some(Timestamps::RealTime);
        self
    }

    /// Lets the device compress CQEs, which saves PCIe bandwidth for many short messages. Direct path only, because
    /// libmlx5 does not read compressed CQEs. Not together with [`timestamps`](Self::timestamps), because all CQEs of
    /// a block have the timestamp of the first.
    pub const fn compression(mut self, compression: Compression) -> Self {
        self.compression = Some(compression);
        self
    }

    /// Sets the completion vector of the CQ, below [`Context::num_comp_vectors`]; 0 by default. On an adapter each
    /// vector is an interrupt that the system can route to a CPU: give receivers that sleep in different threads
    /// different vectors. A receiver that only polls does not use it.
    ///
    /// [`Context::num_comp_vectors`]: crate::Context::num_comp_vectors
    pub const fn comp_vector(mut self, vector: u32) -> Self {
        self.comp_vector = vector;
        self
    }

    /// Checks the signature of every CQE before a batch takes it, see [`WrongCqe`](crate::WrongCqe). Off by default,
    /// at no cost; on, doorbell reads each CQE twice. It enables [statistics](crate::Receiver::enable_statistics).
    ///
    /// A wrong CQE is counted ([`Statistics::wrong_cqes`](crate::Statistics::wrong_cqes)) and kept
    /// ([`Receiver::wrong_cqe`](crate::Receiver::wrong_cqe)), and its message is delivered as the CQE describes it.
    /// CQEs that arrive after the check wait for the next batch.
    ///
    /// Direct path only, and not together with [`compression`](Self::compression):
    /// [`Receiver::new`](crate::Receiver::new) returns [`Error::Unsupported`](crate::Error::Unsupported).
    pub const fn verify_cqes(mut self, wanted: bool) -> Self {
        self.verify_cqes = wanted;
        self
    }

    /// Sets the path of the CQ and its queues, [`Path::Auto`] by default.
    pub const fn path(mut self, path: Path) -> Self {
        self.path = path;
        self
    }

    /// Returns what the CQ is created with.
    pub(super) fn form(&self, context: &Context, mlx5dv: Option<&Mlx5dv>) -> Result<Form> {
        let refused = |when| Err(Error::Unsupported { operation: "CQE compression", when });
        match (self.compression, mlx5dv, self.timestamps) {
            (None, _, None) => Ok(Form::Plain),
            (None, _, Some(timestamps)) => Ok(Form::Timestamps(timestamps)),
            (Some(_), _, Some(_)) => refused(
                "together with timestamps, which a compressed block has one of for all its CQEs: ask for one of the two",
            ),
            (Some(_), None, _) => {
                refused("on the verbs path: libmlx5 does not read compressed CQEs")
            }
            (Some(compression), Some(mlx5dv), None) => {
                let format = compression.format();
                if !context.compresses(mlx5dv, format)? {
                    return refused("on this device, which does not have the format");
                }
                Ok(Form::Compressed(format))
            }
        }
    }
}

impl Default for ReceiverConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// Size of a shared receive queue.
///
/// ```
/// # let _device = doorbell_doc::device();
/// use doorbell::{Receiver, ReceiverConfig, SrqConfig};
///
/// let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
/// let mut receiver = Receiver::new(&pd, &ReceiverConfig::new())?;
/// let srq = receiver.create_srq(&SrqConfig::new(1023).max_sge(2))?;
/// assert_eq!(receiver.capacity(srq), 1023);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct SrqConfig {
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
}

impl SrqConfig {
    /// Describes an SRQ for `max_wr` outstanding receives of one buffer each. An mlx5 device rounds up to a power of
    /// two minus one: see [`Receiver::capacity`](crate::Receiver::capacity).
    pub const fn new(max_wr: u32) -> Self {
        Self { max_wr, max_sge: 1 }
    }

    /// Sets the number of buffers that one receive can have, 1 by default.
    pub const fn max_sge(mut self, max_sge: u32) -> Self {
        self.max_sge = max_sge;
        self
    }

    /// Checks the sizes against the limits of the device.
    pub(super) fn check(&self, attr: &sys::ibv_device_attr) -> Result<()> {
        let max_wr = attr.max_srq_wr.max(0) as u64;
        let max_sge = attr.max_srq_sge.max(0) as u64;
        Error::check_range("max_wr of the SRQ", self.max_wr.into(), 1, max_wr)?;
        Error::check_range("max_sge of the SRQ", self.max_sge.into(), 1, max_sge)
    }
}
