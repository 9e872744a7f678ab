//! A received frame, lent by its batch.

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::{fmt, slice};

use mlx5_ring::completion::Cqe;
use rdma_core_sys as sys;

use super::FrameReceiver;
use crate::clock::Timestamp;
use crate::cq::{Poller, Wc};
use crate::memory::Buffer;

/// A received frame, lent by its batch, from the Ethernet header on and without the FCS. Its memory is posted again
/// when the batch ends; [`take`](Self::take) keeps it.
///
/// It dereferences to the bytes of the frame: byte 0 is the destination MAC address; a VLAN tag is at byte 12, unless
/// [`FrameConfig::vlan_stripping`](super::FrameConfig::vlan_stripping) removes it; short frames keep their padding, so
/// use the lengths in the headers of IP and UDP. Copying (`to_vec`, [`Buffer::extend_from_slice`]) is best for short
/// frames that are kept for long.
///
/// ```no_run
/// # fn run(receiver: &mut doorbell::frames::FrameReceiver) -> Result<(), Box<dyn std::error::Error>> {
/// let mut batch = receiver.poll();
/// while let Some(frame) = batch.next() {
///     let frame = frame?;
///     println!("{} bytes, checksums good: {}", frame.len(), frame.checksum_ok());
/// }
/// # Ok(())
/// # }
/// ```
pub struct Frame<'b> {
    pub(super) start: NonNull<u8>,
    pub(super) len: usize,
    /// Running index of its WQE.
    pub(super) wqe: u32,
    /// Frames dropped before, from CQEs without a frame.
    pub(super) dropped: u32,
    /// The CQE of the frame, on the direct path.
    pub(super) cqe: Option<Cqe<'b>>,
    pub(super) receiver: &'b mut FrameReceiver,
}

impl Frame<'_> {
    /// Returns `true` if the device verified the checksums of the IP header and of UDP or TCP. `false` means that one
    /// is wrong or that the device did not check: a fragment, or another protocol. On the verbs path it is `false` for
    /// IPv6, of which libibverbs reports nothing.
    #[inline]
    pub fn checksum_ok(&self) -> bool {
        match &self.cqe {
            Some(cqe) => cqe.is_frame_checksum_ok(),
            None => self.wc().is_some_and(|wc| wc.wc.wc_flags & sys::IBV_WC_IP_CSUM_OK != 0),
        }
    }

    /// Returns the TCI of the VLAN tag that the device removed; its lower 12 bits are the VLAN. `None` without
    /// [`FrameConfig::vlan_stripping`](crate::frames::FrameConfig::vlan_stripping).
    #[inline]
    pub fn vlan(&self) -> Option<u16> {
        self.cqe?.vlan()
    }

    /// Returns the [tag](crate::frames::Flow::tag) of the matching rule, 0 if it has none. `None` on the verbs path,
    /// where a rule cannot have one.
    #[inline]
    pub fn tag(&self) -> Option<u32> {
        Some(self.cqe?.flow_tag())
    }

    /// Returns how many frames the device dropped since the previous frame because no buffer was posted: a drop is
    /// reported by the next frame that arrives. Use it to see that frames were dropped, and sequence numbers to count
    /// them: it is at most 255, and no public document describes what the device reports for more. `None` on the verbs
    /// path.
    #[inline]
    pub fn dropped_before(&self) -> Option<u32> {
        Some(self.dropped + u32::from(self.cqe?.dropped()))
    }

    /// Returns the hash of addresses and ports with which
    /// [`FrameReceiver::spread`](crate::frames::FrameReceiver::spread) selects the receiver. `None` on the verbs
    /// path.
    #[inline]
    pub fn rss_hash(&self) -> Option<u32> {
        Some(self.cqe?.rx_hash_result())
    }

    /// Returns when the device completed the frame; [`FrameReceiver::clock`](crate::frames::FrameReceiver::clock)
    /// converts it to nanoseconds. `None` unless the [`CqConfig`](crate::CqConfig::timestamps) requested it and the
    /// device has a clock.
    #[inline]
    pub fn timestamp(&self) -> Option<Timestamp> {
        let clock = self.receiver.cq.object.timestamp_clock()?;
        let raw = match &self.cqe {
            Some(cqe) => cqe.timestamp(),
            None => self.wc()?.timestamp?,
        };
        Some(Timestamp::new(raw, clock))
    }

    /// Returns the completion that verbs reported, on the verbs path.
    fn wc(&self) -> Option<&Wc> {
        match &self.receiver.cq.poller {
            Poller::Verbs(cq) => Some(cq.current()),
            Poller::Direct(_) => None,
        }
    }

    /// Keeps the frame in place, without a copy, until the returned value is dropped. Its whole buffer, with all
    /// strides, stays out of the queue until then; a [spare](crate::frames::FrameConfig::spare) buffer replaces it.
    #[inline]
    pub fn take(self) -> TakenFrame {
        let Self { start, len, wqe, receiver, .. } = self;
        receiver.is_shared = true;
        let buffer = receiver.buffers.share(receiver.queue.buffer(wqe).index);
        TakenFrame { start, len, _buffer: buffer }
    }
}

impl Deref for Frame<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: inside a buffer of the receiver, clamped to it; completed and not posted again before the
        // batch ends, so no code writes it.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl fmt::Debug for Frame<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frame").field("len", &self.len).field("tag", &self.tag()).finish_non_exhaustive()
    }
}

/// A frame that was [taken](Frame::take). It can move to another thread and outlive its receiver. Once all frames of a
/// buffer were dropped, the next batch posts the buffer again.
///
/// ```no_run
/// # fn run(receiver: &mut doorbell::frames::FrameReceiver) -> Result<(), Box<dyn std::error::Error>> {
/// let mut kept = Vec::new();
/// let mut batch = receiver.poll();
/// while let Some(frame) = batch.next() {
///     kept.push(frame?.take());
/// }
/// drop(batch);
/// std::thread::spawn(move || println!("{} frames", kept.len()));
/// # Ok(())
/// # }
/// ```
pub struct TakenFrame {
    start: NonNull<u8>,
    len: usize,
    /// `[taken]`: keeps the memory, and its strides from being posted again.
    _buffer: Arc<Buffer>,
}

// SAFETY: the bytes are only read, and the count of their buffer is atomic.
unsafe impl Send for TakenFrame {}
// SAFETY: the reason for `Send` holds for shared references, too.
unsafe impl Sync for TakenFrame {}

impl Deref for TakenFrame {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: [taken]: as for `Frame`; the device writes the strides of other frames only.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl fmt::Debug for TakenFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TakenFrame").field("len", &self.len).finish_non_exhaustive()
    }
}
