//! What a tag-matching SRQ should be like.

use crate::path::Path;

/// Receives that an adapter wants to see posted before it takes messages.
pub(super) const MIN_SLOTS: u32 = 33;

/// Who matches tags.
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
    /// The device where it can, else the library.
    #[default]
    Auto,
    /// The device, or it is an error.
    Required,
    /// The library.
    Never,
}

/// What a [`TagMatchingSrq`](super::TagMatchingSrq) should be like.
///
/// ```
/// use doorbell::tags::{Offload, TagMatchingConfig};
///
/// let config = TagMatchingConfig::new(512).slots(256).offload(Offload::Required);
/// # let _ = config;
/// ```
#[derive(Clone, Debug)]
pub struct TagMatchingConfig {
    pub(super) max_tags: u16,
    pub(super) slots: u32,
    pub(super) path: Path,
    pub(super) offload: Offload,
    pub(super) manual: bool,
    pub(super) sends: u32,
}

impl TagMatchingConfig {
    /// A list of up to `max_tags` receives, room for 64 messages that match none, and for 8,192 sends.
    pub const fn new(max_tags: u16) -> Self {
        Self {
            max_tags,
            slots: 64,
            path: Path::Auto,
            offload: Offload::Auto,
            manual: false,
            sends: 8192,
        }
    }

    /// Room for messages that match no receive when they arrive, at least 33: fewer are nothing to an
    /// adapter.
    pub const fn slots(mut self, slots: u32) -> Self {
        self.slots = slots;
        self
    }

    /// Receives that the SRQ can have at once: the driver makes it one larger than was asked for, and that a power
    /// of two, of which one stays unposted.
    pub(super) const fn receives(&self) -> u32 {
        (self.slots + 1).next_power_of_two() - 1
    }

    /// Sends that can be outstanding to all peers together, reads of rendezvous among them. A peer takes as much of it
    /// as its send queue holds: with [`QpConfig::rc`](crate::QpConfig::rc) on the direct path 256.
    pub const fn sends(mut self, sends: u32) -> Self {
        self.sends = sends;
        self
    }

    /// How the queues are driven.
    pub const fn path(mut self, path: Path) -> Self {
        self.path = path;
        self
    }

    /// Who matches.
    pub const fn offload(mut self, offload: Offload) -> Self {
        self.offload = offload;
        self
    }

    /// Leaves it to the program to call [`synchronize`](super::TagMatchingSrq::synchronize) where
    /// [`needs_synchronization`](super::TagMatchingSrq::needs_synchronization) says so. Until then the device
    /// matches nothing to receives that were posted while messages arrived that match none.
    pub const fn manual_synchronization(mut self) -> Self {
        self.manual = true;
        self
    }
}
