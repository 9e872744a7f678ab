//! Many Ethernet frames with one call, and with as few WQEs as the device allows.

use std::mem::ManuallyDrop;

use mlx5_ring::sge::Sge;
use mlx5_wire::eth::{INLINE_L2_HEADER, L3_CSUM, L4_CSUM, MULTI_PACKET_FRAMES};

use super::payload::sealed::Payload as _;
use super::posting::Posting;
use super::queue::{DirectSq, SendRing};
use super::request::{self, WorkRequest};
use crate::memory::Buffer;
use crate::not_sent::NotSent;
use crate::pd::DomainId;

impl Posting<'_> {
    /// Sends Ethernet frames, each in a buffer, through a queue pair for
    /// [frames](crate::frames::FrameReceiver::with_sender), and takes them out of `frames`. The frames and `checksums`
    /// are those of [`send_frame`](Self::send_frame).
    ///
    /// A device with [`multi_packet_sends`](crate::caps::Capabilities::multi_packet_sends) sends up to 32 frames with
    /// one WQE, on the direct path. They complete together, and the completion
    /// [returns all](crate::SendCompletion::take_buffers). If one fails, a [`SendFailure`](crate::SendFailure) has all
    /// of them, and some may have left. Otherwise each frame has its own WQE and completion. The
    /// [token](Self::token) is that of each completion.
    ///
    /// ```no_run
    /// use doorbell::frames::{FrameConfig, FrameReceiver};
    /// use doorbell::{Buffer, BufferPool, CqConfig, NotSent, PoolConfig, Sender};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// let pool = BufferPool::new(&pd, &PoolConfig::new(64, 2048))?;
    /// let config = FrameConfig::new().plain(4, 2048);
    /// let mut sender = Sender::new(&pd, &CqConfig::for_frame_sends(&config, 1))?;
    /// let receiver = FrameReceiver::with_sender(&pd, &config, &mut sender)?;
    /// let queue = receiver.send_queue().expect("created with a sender");
    ///
    /// let mut frames: Vec<Buffer> = std::iter::from_fn(|| pool.take()).collect();
    /// for frame in &mut frames {
    ///     frame.extend_from_slice(&[0xff; 60]);
    /// }
    /// let mut sent = Vec::new();
    /// while !frames.is_empty() {
    ///     match sender.post_many(queue)?.send_frames(&mut frames, false) {
    ///         // Completions free room for the frames that are left.
    ///         Ok(()) | Err(NotSent::Full { .. }) => {}
    ///         Err(error) => return Err(error.into()),
    ///     }
    ///     while let Some(done) = sender.next() {
    ///         done?.take_buffers(&mut sent);
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`NotSent`]. The frames before the refused one are posted; the refused one is the first of those left in
    /// `frames`.
    pub fn send_frames(&mut self, frames: &mut Vec<Buffer>, checksums: bool) -> Result<(), NotSent> {
        let (flags, token) = self.take_options();
        let cs_flags = if checksums { L3_CSUM | L4_CSUM } else { 0 };
        while !frames.is_empty() {
            let SendRing::Direct(DirectSq { ring, .. }) = &mut self.entry.ring else {
                return self.send_each(frames, checksums, token);
            };
            if !self.entry.multi_packet {
                return self.send_each(frames, checksums, token);
            }
            let mut posting = ManuallyDrop::new(if self.is_single { ring.posting_singly() } else { ring.posting() });
            let mut sges = [Sge { addr: 0, length: 0, lkey: 0 }; MULTI_PACKET_FRAMES];
            let mut count = 0;
            let mut refused = None;
            for (frame, to) in frames.iter().zip(&mut sges).take(posting.frames_of_next(MULTI_PACKET_FRAMES)) {
                if let Err(reason) = check(frame, self.domain, self.entry.limits.bytes) {
                    refused = Some(reason);
                    break;
                }
                let [sge] = frame.sges();
                (*to, count) = (sge, count + 1);
            }
            if count > 0 {
                let first = &frames[0];
                let request = WorkRequest::of(token, first, first.len() as u32, count as u32 - 1);
                // SAFETY: [memory] the buffers are the request's until it is retired. [ready] by `Sender::post_many`.
                // There is a frame, and none is empty.
                let posted = unsafe { posting.send_frames(cs_flags, &sges[..count], flags, request) };
                if let Err(error) = posted {
                    return Err(self.entry.refusal(error, 0));
                }
                let mut taken = frames.drain(..count);
                taken.next().into_iter().for_each(request::own);
                self.entry.gathered.extend(taken);
            }
            if let Some(reason) = refused {
                return Err(reason);
            }
        }
        Ok(())
    }

    /// Sends each frame with its own WQE.
    #[cold]
    fn send_each(&mut self, frames: &mut Vec<Buffer>, checksums: bool, token: u64) -> Result<(), NotSent> {
        let mut left = frames.drain(..);
        while let Some(frame) = left.next() {
            if let Err(refused) = self.token(token).send_frame(frame, checksums) {
                let kept: Vec<_> = std::iter::once(refused.payload).chain(left).collect();
                frames.extend(kept);
                return Err(refused.reason);
            }
        }
        Ok(())
    }
}

/// Checks a frame against the limits of its queue.
#[inline]
fn check(frame: &Buffer, domain: DomainId, max: usize) -> Result<(), NotSent> {
    let len = frame.len();
    if len <= INLINE_L2_HEADER {
        return Err(NotSent::Runt { len, min: INLINE_L2_HEADER + 1 });
    }
    if len > max {
        return Err(NotSent::TooLong { len, max });
    }
    if !frame.is_of(domain) {
        return Err(NotSent::WrongDomain);
    }
    Ok(())
}
