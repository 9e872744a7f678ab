//! Configuration of a CQ.

use mlx5_wire::mini_cqe::MiniCqeFormat;
use rdma_core_sys as sys;

use crate::context::Context;
use crate::error::{Error, Result};
use crate::path::DataPath;

/// Size, path and options of a completion queue.
///
/// ```
/// # let _device = doorbell_doc::device();
/// use doorbell::{CqConfig, Receiver, Timestamps};
///
/// let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
/// let config = CqConfig::new(1000).timestamps(Timestamps::Ticks);
/// let receiver = Receiver::new(&pd, &config)?;
/// assert!(receiver.cq_capacity() >= 1000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct CqConfig {
    pub(crate) cqe: u32,
    pub(crate) comp_vector: u32,
    pub(crate) path: DataPath,
    pub(crate) timestamps: Timestamps,
    pub(crate) compression: Option<Compression>,
}

/// The time of each completion, `Off` by default.
///
/// ```
/// # let _device = doorbell_doc::device();
/// use doorbell::{CqConfig, Timestamps};
///
/// let timestamps = match doorbell::open("mlx5_0")?.capabilities()?.timestamps {
///     Some(caps) if caps.real_time => Timestamps::RealTime,
///     Some(_) => Timestamps::Ticks,
///     None => Timestamps::Off,
/// };
/// let config = CqConfig::new(512).timestamps(timestamps);
/// # let _ = config;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Timestamps {
    /// Completions have no time.
    #[default]
    Off,
    /// Ticks of the device's clock. Without a clock in the device, completions have no time, and creation does not
    /// fail.
    Ticks,
    /// Seconds and nanoseconds of the adapter's PTP clock. The conversion to nanoseconds needs no clock reading, and
    /// the clock does not wrap. Creation returns [`Error::Unsupported`](crate::Error::Unsupported) unless
    /// [`TimestampCaps::real_time`](crate::caps::TimestampCaps::real_time) is set. All CQs of a queue pair must agree,
    /// because libmlx5 creates no queue pair whose two CQs have different clocks.
    RealTime,
}

impl Timestamps {
    pub(super) const fn wc_flag(self) -> u32 {
        match self {
            Self::Off => 0,
            Self::Ticks => sys::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP,
            // With both flags libmlx5 asks the device for ticks.
            Self::RealTime => sys::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
        }
    }
}

/// Contents of a mini CQE beside the length of the message (formats of the basic layout).
///
/// ```
/// # let _device = doorbell_doc::device();
/// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
/// use doorbell::{Compression, CqConfig, Receiver};
///
/// let mut config = CqConfig::new(4096);
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
    pub(super) const fn format(self) -> MiniCqeFormat {
        match self {
            Self::Hash => MiniCqeFormat::Hash,
            Self::Checksum => MiniCqeFormat::Checksum,
        }
    }
}

impl CqConfig {
    /// Describes a CQ with room for `cqe` completions, without timestamps, on [`DataPath::Auto`].
    ///
    /// The CQ of a [`Receiver`](crate::Receiver) needs an entry for each receive that can be outstanding on all its
    /// queues together, that of a [`Sender`](crate::Sender) one for each request
    /// ([`Sender::capacity`](crate::Sender::capacity) of each queue): [`for_pool`](Self::for_pool) and
    /// [`for_sends`](Self::for_sends) compute the number. A CQ for frames or tags is made as large as its queues need:
    /// there `cqe` is a minimum, and [`default`](Self::default) the configuration to start from. An mlx5 device rounds
    /// up to a power of two: 501 become 512.
    pub const fn new(cqe: u32) -> Self {
        Self { cqe, comp_vector: 0, path: DataPath::Auto, timestamps: Timestamps::Off, compression: None }
    }

    /// Adds the entries that `other` has. Nothing else of `other` is used.
    ///
    /// ```
    /// # let _device = doorbell_doc::device();
    /// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// use doorbell::{CqConfig, QpConfig, Sender};
    ///
    /// // Queue pairs of two configurations send through one sender.
    /// let (clients, exchange) = (QpConfig::rc(), QpConfig::rc().max_send_wr(512).max_inline(200));
    /// let config = CqConfig::for_sends(&clients, 8).and(&CqConfig::for_sends(&exchange, 1));
    /// let sender = Sender::new(&pd, &config)?;
    /// # let _ = sender;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn and(mut self, other: &Self) -> Self {
        self.cqe = self.cqe.saturating_add(other.cqe);
        self
    }

    /// Sets the path of the CQ and its queues, [`DataPath::Auto`] by default.
    pub const fn path(mut self, path: DataPath) -> Self {
        self.path = path;
        self
    }

    /// Sets the completion vector of the CQ, below [`Context::num_comp_vectors`]; 0 by default. On an adapter each
    /// vector is an interrupt that the system can route to a CPU: give CQs whose threads sleep different vectors. A CQ
    /// that is only polled does not use it.
    pub const fn comp_vector(mut self, vector: u32) -> Self {
        self.comp_vector = vector;
        self
    }

    /// Requests the time of each completion: see [`Message::timestamp`](crate::Message::timestamp),
    /// [`Frame::timestamp`](crate::frames::Frame::timestamp) and
    /// [`SendCompletion::timestamp`](crate::SendCompletion::timestamp).
    pub const fn timestamps(mut self, timestamps: Timestamps) -> Self {
        self.timestamps = timestamps;
        self
    }

    /// Lets the device compress CQEs, which saves PCIe bandwidth for many short messages. Direct path of a
    /// [`Receiver`](crate::Receiver) only, because libmlx5 does not read compressed CQEs. Not together with
    /// [`timestamps`](Self::timestamps), because all CQEs of a block have the timestamp of the first.
    pub const fn compression(mut self, compression: Compression) -> Self {
        self.compression = Some(compression);
        self
    }

    /// Refuses compression for an object that does not take compressed CQEs.
    pub(crate) fn uncompressed(&self, object: &'static str) -> Result<()> {
        match self.compression {
            None => Ok(()),
            Some(_) => Err(Error::Unsupported { operation: "CQE compression", when: object }),
        }
    }

    pub(super) fn check(&self, context: &Context) -> Result<()> {
        let max = context.attr().max_cqe.into();
        Error::check_range("cqe of the CQ", self.cqe.into(), 1, max)?;
        let last = context.num_comp_vectors().saturating_sub(1);
        Error::check_range("comp_vector", self.comp_vector.into(), 0, last.into())
    }

    /// Checks whether the device compresses CQEs as asked. Returns the format.
    pub(super) fn mini_cqes(&self, context: &Context, mlx5dv: Option<&sys::Mlx5dv>) -> Result<Option<MiniCqeFormat>> {
        let refused = |when| Err(Error::Unsupported { operation: "CQE compression", when });
        let Some(compression) = self.compression else { return Ok(None) };
        if self.timestamps != Timestamps::Off {
            return refused(
                "together with timestamps, which a compressed block has one of for all its CQEs: ask for one of the two",
            );
        }
        let Some(mlx5dv) = mlx5dv else {
            return refused("on the verbs path: libmlx5 does not read compressed CQEs");
        };
        let format = compression.format();
        if !context.compresses(mlx5dv, format)? {
            return refused("on this device, which does not have the format");
        }
        Ok(Some(format))
    }
}

impl Default for CqConfig {
    /// Describes a CQ of frames or tags, which is made as large as its queues need.
    fn default() -> Self {
        Self::new(1)
    }
}
