//! What a sender should be like.

use crate::path::Path;

/// What a [`Sender`](crate::Sender) should be like.
///
/// ```
/// # let _device = doorbell_doc::device();
/// use doorbell::{Sender, SenderConfig};
///
/// let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
/// let sender = Sender::new(&pd, &SenderConfig::new().cq_capacity(1000))?;
/// assert!(sender.cq_capacity() >= 1000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct SenderConfig {
    pub(crate) cq_capacity: u32,
    pub(crate) path: Path,
    pub(crate) comp_vector: u32,
    pub(crate) max_unsignaled: u32,
    pub(crate) real_time: bool,
}

impl SenderConfig {
    /// A CQ of 4,096 entries, [`Path::Auto`].
    pub const fn new() -> Self {
        Self {
            cq_capacity: 4096,
            path: Path::Auto,
            comp_vector: 0,
            max_unsignaled: u32::MAX,
            real_time: false,
        }
    }

    /// Entries of the CQ: at least as many as sends can be outstanding on all queues together. The driver rounds up
    /// to a power of two.
    pub const fn cq_capacity(mut self, entries: u32) -> Self {
        self.cq_capacity = entries;
        self
    }

    /// How the CQ and the queues are driven.
    pub const fn path(mut self, path: Path) -> Self {
        self.path = path;
        self
    }

    /// The completion vector of the CQ, see [`ReceiverConfig::comp_vector`](crate::ReceiverConfig::comp_vector).
    pub const fn comp_vector(mut self, vector: u32) -> Self {
        self.comp_vector = vector;
        self
    }

    /// Most requests of a posting in a row that do not ask for a CQE: how long a buffer may stay away though its send is
    /// over. 0 has each request ask, as [`Posting::signaled`](crate::Posting::signaled) does for one. The last request of
    /// a posting always asks, and at least every fourth part of the queue.
    pub const fn max_unsignaled(mut self, requests: u32) -> Self {
        self.max_unsignaled = requests;
        self
    }

    /// Has the CQ count time as those of receivers with
    /// [`real_time_timestamps`](crate::ReceiverConfig::real_time_timestamps), for queue pairs of such: libmlx5 makes none
    /// whose two CQs have different clocks. [`Sender::new`](crate::Sender::new) gives
    /// [`Error::Unsupported`](crate::Error::Unsupported) where the device has no real time.
    pub const fn real_time_timestamps(mut self) -> Self {
        self.real_time = true;
        self
    }
}

impl Default for SenderConfig {
    fn default() -> Self {
        Self::new()
    }
}
