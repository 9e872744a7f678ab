//! Configuration of a tag-matching SRQ.

use crate::cq::CqConfig;

/// Receives that an adapter wants to see posted before it takes messages.
pub(super) const MIN_SLOTS: u32 = 33;

/// Whether the device or the library matches tags.
///
/// ```
/// # let _device = doorbell_doc::device();
/// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
/// use doorbell::tags::{Offload, TagMatchingConfig, TagMatchingSrq};
///
/// let config = TagMatchingConfig::new(64).offload(Offload::Never);
/// assert!(!TagMatchingSrq::new(&pd, &config)?.offload());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Offload {
    /// The device if it can, else the library, as on RoCE without DEVX or on the verbs path;
    /// [`offload_refused`](super::TagMatchingSrq::offload_refused) returns the reason.
    #[default]
    Auto,
    /// The device. Creation fails if it cannot.
    Required,
    /// The library.
    Never,
}

/// Sizes, CQ and offload of a [`TagMatchingSrq`](super::TagMatchingSrq).
///
/// ```
/// use doorbell::tags::{Offload, TagMatchingConfig};
///
/// let config = TagMatchingConfig::new(64).max_wr(256).offload(Offload::Required);
/// # let _ = config;
/// ```
#[derive(Clone, Debug)]
pub struct TagMatchingConfig {
    pub(super) max_tags: u16,
    pub(super) max_wr: u32,
    pub(super) cq: CqConfig,
    pub(super) offload: Offload,
    pub(super) manual: bool,
    pub(super) send_cqe: u32,
}

impl TagMatchingConfig {
    /// Describes a list of at most `max_tags` receives, 64 slots for unexpected messages, and room for 8,192 sends.
    ///
    /// A device matches at most [`TagMatchingCaps::max_num_tags`](crate::caps::TagMatchingCaps::max_num_tags), 127 on
    /// soft-mlx5. A longer list is an error, also with [`Offload::Auto`]; with [`Offload::Never`] the limit is 65,535.
    pub const fn new(max_tags: u16) -> Self {
        Self { max_tags, max_wr: 64, cq: CqConfig::new(1), offload: Offload::Auto, manual: false, send_cqe: 8192 }
    }

    /// Sets the number of slots for unexpected messages (messages that match no receive when they arrive), at least
    /// 33, the minimum of the adapter. The direct path rounds up to a power of two minus one: 64 become 127, which a
    /// pool of 127 buffers fills.
    pub const fn max_wr(mut self, max_wr: u32) -> Self {
        self.max_wr = max_wr;
        self
    }

    /// Receives that the SRQ can have at once. The driver adds one to the number that was asked for, and rounds up to a
    /// power of two; one of these slots stays unposted.
    pub(super) const fn receives(&self) -> u32 {
        (self.max_wr + 1).next_power_of_two() - 1
    }

    /// Sets how many sends can be outstanding to all peers together, including the reads of rendezvous, 8,192 by
    /// default. Each peer reserves the capacity of its send queue: on the direct path twice
    /// [`QpConfig::max_send_wr`](crate::QpConfig::max_send_wr), rounded up to a power of two, because the offer of
    /// a rendezvous takes two blocks. With [`QpConfig::rc`](crate::QpConfig::rc) that is 256, so the default is
    /// enough for 32 peers; for more [`add_peer`](super::TagMatchingSrq::add_peer) returns
    /// [`Error::CqTooSmall`](crate::Error::CqTooSmall): set more here, or fewer sends for each peer.
    pub const fn send_cqe(mut self, cqe: u32) -> Self {
        self.send_cqe = cqe;
        self
    }

    /// Sets path and completion vector of the CQs. The CQ of the receives is made as large as the queue needs, and at
    /// least as large as the `cqe` of `config`, 1 by default. Creation refuses timestamps and compression.
    pub fn cq(mut self, config: CqConfig) -> Self {
        self.cq = config;
        self
    }

    /// Returns the configuration of a CQ that holds so many completions.
    pub(super) fn cq_of(&self, needed: u32) -> CqConfig {
        CqConfig { cqe: self.cq.cqe.max(needed), ..self.cq.clone() }
    }

    /// Sets who matches, [`Offload::Auto`] by default.
    pub const fn offload(mut self, offload: Offload) -> Self {
        self.offload = offload;
        self
    }

    /// Makes the program call [`synchronize`](super::TagMatchingSrq::synchronize) whenever
    /// [`needs_synchronization`](super::TagMatchingSrq::needs_synchronization) returns `true`. Until that call the
    /// library, and not the device, matches the receives that were posted while unexpected messages arrived.
    pub const fn manual_synchronization(mut self) -> Self {
        self.manual = true;
        self
    }
}
