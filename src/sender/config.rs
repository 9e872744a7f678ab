//! Configuration of a sender.

use crate::path::Path;

/// Size, path and options of a [`Sender`](crate::Sender).
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
    /// Describes a CQ of 4,096 entries on [`Path::Auto`].
    pub const fn new() -> Self {
        Self {
            cq_capacity: 4096,
            path: Path::Auto,
            comp_vector: 0,
            max_unsignaled: u32::MAX,
            real_time: false,
        }
    }

    /// Sets the number of entries of the CQ, 4,096 by default. It must be at least the sum of
    /// [`Sender::capacity`](crate::Sender::capacity) of all queues. The driver rounds up to a power of two.
    pub const fn cq_capacity(mut self, entries: u32) -> Self {
        self.cq_capacity = entries;
        self
    }

    /// Sets the path of the CQ and its queues, [`Path::Auto`] by default.
    pub const fn path(mut self, path: Path) -> Self {
        self.path = path;
        self
    }

    /// Sets the completion vector of the CQ, see [`ReceiverConfig::comp_vector`](crate::ReceiverConfig::comp_vector).
    pub const fn comp_vector(mut self, vector: u32) -> Self {
        self.comp_vector = vector;
        self
    }

    /// Sets how many requests of a posting may follow each other without a CQE, no limit by default. A buffer comes back with
    /// the next CQE of its queue, so a smaller number returns buffers earlier. 0 requests a CQE for each request, like
    /// [`Posting::signaled`](crate::Posting::signaled). The last request of a posting and at least one request in each quarter
    /// of the queue always have a CQE.
    pub const fn max_unsignaled(mut self, requests: u32) -> Self {
        self.max_unsignaled = requests;
        self
    }

    /// Gives the CQ the clock of receivers with
    /// [`real_time_timestamps`](crate::ReceiverConfig::real_time_timestamps). Their queue pairs need it, because
    /// libmlx5 creates no queue pair whose two CQs have different clocks. [`Sender::new`](crate::Sender::new) returns
    /// [`Error::Unsupported`](crate::Error::Unsupported) if the device has no real-time clock.
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
