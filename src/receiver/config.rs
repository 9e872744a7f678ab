//! What a receiver and its shared receive queues should be like.

use mlx5_wire::mini_cqe::MiniCqeFormat;
use rdma_core_sys as sys;

use crate::cq::Timestamps;
use crate::error::{Error, Result};
use crate::path::Path;

/// What a [`Receiver`](crate::Receiver) should be like.
///
/// ```
/// # let _device = doorbell_doc::device();
/// use doorbell::{Receiver, ReceiverConfig};
///
/// let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
/// let config = ReceiverConfig::new().cq_capacity(1000).timestamps(true).prefetch(1);
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
    pub(crate) prefetch: u32,
    pub(crate) comp_vector: u32,
    pub(crate) verify_cqes: bool,
}

/// What the CQEs of a compressed block have of their own beside the length of the message (mini-CQE formats
/// of the basic layout).
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
    /// The RSS hash result.
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
    /// A CQ of 4,096 entries, [`Path::Auto`].
    pub const fn new() -> Self {
        Self {
            cq_capacity: 4096,
            path: Path::Auto,
            timestamps: None,
            compression: None,
            prefetch: 0,
            comp_vector: 0,
            verify_cqes: false,
        }
    }

    /// Entries of the CQ: at least as many as receives can be outstanding on all queues together. On an mlx5 device
    /// the CQ has the power of two from there up, on both paths: 501 become 512.
    pub const fn cq_capacity(mut self, entries: u32) -> Self {
        self.cq_capacity = entries;
        self
    }

    /// Asks for the time of each completion, see [`Message::timestamp`](crate::Message::timestamp). It is not
    /// an error when the device has no clock: the messages then have no timestamps.
    pub const fn timestamps(mut self, wanted: bool) -> Self {
        self.timestamps = if wanted { Some(Timestamps::Ticks) } else { None };
        self
    }

    /// Asks for the time of each completion in real time, which the adapter itself keeps: no reading of its clock
    /// is needed to make nanoseconds of it, and it does not turn over. [`Receiver::new`](crate::Receiver::new)
    /// gives [`Error::Unsupported`](crate::Error::Unsupported) where
    /// [`TimestampCaps::real_time`](crate::caps::TimestampCaps::real_time) is not set.
    pub const fn real_time_timestamps(mut self) -> Self {
        self.timestamps = Some(Timestamps::RealTime);
        self
    }

    /// Lets the device compress CQEs, which saves PCIe bandwidth where many short messages arrive. On the
    /// direct path only: libmlx5 itself does not read compressed CQEs. Not together with
    /// [`timestamps`](Self::timestamps), which the CQEs of a block share with the first.
    pub const fn compression(mut self, compression: Compression) -> Self {
        self.compression = Some(compression);
        self
    }

    /// Starts each batch by fetching the first `lines` cache lines (64 bytes each) of every message that has
    /// arrived into the caches, at most as many messages as the batch may take. 0, the default, is never, and
    /// costs nothing.
    ///
    /// It is worth trying where the messages of a batch are read one after the other from memory that is in no
    /// cache: many buffers, and an adapter that does not write to the cache of the CPU that polls. Where they
    /// are in a cache already it only costs. A receiver that prefetches also [counts](crate::Receiver::enable_statistics).
    pub const fn prefetch(mut self, lines: u32) -> Self {
        self.prefetch = lines;
        self
    }

    /// The completion vector by which events of the CQ come, of [`Context::num_comp_vectors`]; 0 by default. On an
    /// adapter each is an interrupt of its own, which the system can send to a CPU of its own: receivers that sleep in
    /// different threads should not share one. It means nothing to a receiver that only polls.
    ///
    /// [`Context::num_comp_vectors`]: crate::Context::num_comp_vectors
    pub const fn comp_vector(mut self, vector: u32) -> Self {
        self.comp_vector = vector;
        self
    }

    /// Checks the signature of every CQE before a batch takes it: see [`WrongCqe`](crate::WrongCqe). Off by default, which
    /// costs nothing; on, it reads each CQE twice. A receiver that checks also
    /// [counts](crate::Receiver::enable_statistics).
    ///
    /// A wrong CQE is counted ([`Statistics::wrong_cqes`](crate::Statistics::wrong_cqes)) and kept
    /// ([`Receiver::wrong_cqe`](crate::Receiver::wrong_cqe)); its message is then delivered as the CQE says. A batch takes no
    /// CQE that was not checked: those that arrive meanwhile wait for the next batch.
    ///
    /// On the direct path, and not together with [`compression`](Self::compression), only:
    /// [`Receiver::new`](crate::Receiver::new) gives [`Error::Unsupported`](crate::Error::Unsupported) otherwise.
    pub const fn verify_cqes(mut self, wanted: bool) -> Self {
        self.verify_cqes = wanted;
        self
    }

    /// How the CQ and the queues are driven.
    pub const fn path(mut self, path: Path) -> Self {
        self.path = path;
        self
    }
}

impl Default for ReceiverConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// What a shared receive queue should be like.
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
    /// A queue for `max_wr` outstanding receives of one buffer each. An mlx5 device makes it a power of two less one:
    /// see [`Receiver::capacity`](crate::Receiver::capacity).
    pub const fn new(max_wr: u32) -> Self {
        Self { max_wr, max_sge: 1 }
    }

    /// Buffers that one receive may be scattered over.
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
