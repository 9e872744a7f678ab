//! A received message, lent by its batch.

use std::fmt;
use std::ops::Deref;
use std::slice;

use mlx5_ring::completion::Cqe;

use super::batch::Batch;
use super::completion_info::{CompletionInfo, MessageSource};
use super::lent::Lent;
use super::post::PostFailure;
use super::slot_context::Owner;
use super::{Poller, Receiver};
use crate::clock::Timestamp;
use crate::memory::{Buffer, BufferError};
use crate::wc_flags::WcFlags;

/// A received message, lent by its batch. Dropping it recycles its slot when the batch goes on;
/// [`take`](Self::take) moves the buffer out.
///
/// Dereferences to exactly the bytes received; of a message that was scattered over several buffers, to
/// those in the first, see [`segments`](Self::segments).
///
/// ```
/// # let mut world = doorbell_doc::World::new();
/// # world.send(b"hello");
/// # let receiver = &mut world.receiver;
/// let mut batch = receiver.poll();
/// let message = batch.next().expect("a message has arrived")?;
/// assert_eq!((message.len(), &message[..]), (5, &b"hello"[..]));
/// assert_eq!((message.imm(), message.written()), (None, None));
/// if let Some(source) = message.source() {
///     println!("from QP {:#x} to QP {:#x}", source.qp_num, message.qp_num());
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Message<'b, 'a> {
    pub(super) lent: Lent,
    /// Its CQE, on the direct path.
    pub(super) cqe: Option<Cqe<'b>>,
    pub(super) batch: &'b mut Batch<'a>,
}

impl Message<'_, '_> {
    /// Bytes received, in all buffers together.
    #[expect(clippy::len_without_is_empty, reason = "is_empty comes from the slice")]
    #[inline]
    pub const fn len(&self) -> usize {
        self.lent.len
    }

    /// Returns what the completion says beside the message.
    fn info(&self) -> CompletionInfo<'_> {
        match (&self.cqe, &self.batch.receiver.poller) {
            (Some(cqe), _) => CompletionInfo::Cqe(*cqe),
            (None, Poller::Verbs(cq)) => CompletionInfo::Wc(cq.current()),
            (None, Poller::Direct(_)) => unreachable!("a message of the direct path has a CQE"),
        }
    }

    /// Number of the QP on which the message arrived.
    pub fn qp_num(&self) -> u32 {
        self.info().qp_num()
    }

    /// Immediate data, if the sender sent any.
    ///
    /// ```
    /// # let mut world = doorbell_doc::World::new();
    /// # world.send_with(b"hello", Some(7));
    /// # let receiver = &mut world.receiver;
    /// let mut batch = receiver.poll();
    /// let message = batch.next().expect("a message has arrived")?;
    /// assert_eq!(message.imm(), Some(7));
    /// assert!(message.flags().contains(doorbell::WcFlags::WITH_IMM));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn imm(&self) -> Option<u32> {
        self.info().imm()
    }

    /// The remote key that the sender invalidated with this message.
    pub fn invalidated_rkey(&self) -> Option<u32> {
        self.info().invalidated_rkey()
    }

    /// For the notice of an RDMA WRITE with immediate: how many bytes the peer wrote, to where it wanted
    /// them. The message itself is empty then.
    pub fn written(&self) -> Option<u32> {
        self.info().written()
    }

    /// Where the message came from. `None` when the device put its bytes over this into the CQE, which it
    /// may do with up to 32 bytes on queue pairs that were not made by this library.
    pub fn source(&self) -> Option<MessageSource> {
        self.info().source()
    }

    /// What the completion says in flags. Checksums are those of datagrams, which libmlx5 does not tell on the verbs path.
    pub fn flags(&self) -> WcFlags {
        self.info().flags(self.batch.receiver.qps.is_datagram(self.qp_num()))
    }

    /// When the device completed the message; [`Receiver::clock`] makes nanoseconds of it. `None` unless
    /// [`ReceiverConfig::timestamps`] or [`ReceiverConfig::real_time_timestamps`] asked for it and the device has a
    /// clock.
    ///
    /// [`Receiver::clock`]: crate::Receiver::clock
    /// [`ReceiverConfig::timestamps`]: crate::ReceiverConfig::timestamps
    /// [`ReceiverConfig::real_time_timestamps`]: crate::ReceiverConfig::real_time_timestamps
    pub fn timestamp(&self) -> Option<Timestamp> {
        self.info().timestamp(self.batch.receiver.timestamp_clock())
    }

    /// The pieces of the message, in order.
    ///
    /// ```
    /// # use doorbell::{BufferPool, QpConfig, Receiver, ReceiverConfig, SrqConfig};
    /// # let _device = doorbell_doc::device();
    /// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// # let mut receiver = Receiver::new(&pd, &ReceiverConfig::new())?;
    /// # let srq = receiver.create_srq(&SrqConfig::new(15).max_sge(2))?;
    /// # let mut qp = receiver.create_qp(&QpConfig::rc().srq(srq))?;
    /// # let mut other = Receiver::new(&pd, &ReceiverConfig::new())?;
    /// # let mut peer_sender = doorbell::Sender::new(&pd, &doorbell::SenderConfig::new())?;
    /// # let config = QpConfig::rc().max_inline(64);
    /// # let mut peer = other.create_qp_with_sender(&config, &mut peer_sender)?;
    /// # qp.connect(&peer.address()?)?;
    /// # peer.connect(&qp.address()?)?;
    /// // One message over a small buffer for the header and a larger one.
    /// let (small, large) = (BufferPool::new(&pd, 1, 16)?, BufferPool::new(&pd, 1, 4096)?);
    /// let buffers = [&small, &large].map(|pool| pool.take().expect("a new pool is full"));
    /// receiver.post_scatter(srq, buffers.into())?;
    /// # doorbell_doc::send(&mut peer_sender, &peer, &[7; 40], None);
    /// let mut batch = receiver.poll();
    /// let message = batch.next().expect("a message has arrived")?;
    /// assert!(message.is_scattered());
    /// let lengths: Vec<_> = message.segments().map(|piece| piece.len()).collect();
    /// assert_eq!(lengths, [16, 24]);
    /// let buffers = message.into_buffers();
    /// assert_eq!(buffers.len(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn segments(&self) -> impl Iterator<Item = &[u8]> {
        let mut left = self.lent.len as u32;
        self.batch.receiver.owners.pieces(&self.lent.context).map_while(move |piece| {
            if left == 0 {
                return None;
            }
            let len = left.min(piece.capacity);
            left -= len;
            // SAFETY: a buffer of a pool that the books keep alive; completed and not recycled before
            // this message is gone, so nobody writes it.
            Some(unsafe { slice::from_raw_parts(piece.addr.as_ptr(), len as usize) })
        })
    }

    /// Whether the receive had several buffers.
    pub fn is_scattered(&self) -> bool {
        matches!(self.lent.context.owner(), Owner::List(_))
    }

    /// Moves the buffer out of the queue, holding exactly the bytes received. Post it, or another one,
    /// when the queue shall not run dry.
    ///
    /// ```
    /// # let mut world = doorbell_doc::World::new();
    /// # world.send(b"hello");
    /// # let receiver = &mut world.receiver;
    /// let mut batch = receiver.poll();
    /// let message = batch.next().expect("a message has arrived")?;
    /// let buffer = message.take();
    /// // The bytes stay, whatever arrives.
    /// drop(batch);
    /// assert_eq!(*buffer, *b"hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// When the message was scattered: use [`into_buffers`](Self::into_buffers).
    #[inline(always)]
    pub fn take(self) -> Buffer {
        let Lent { context, start, len, .. } = self.lent;
        if !context.is_single() {
            scattered();
        }
        let receiver = &mut *self.batch.receiver;
        receiver.release(&self.lent);
        // SAFETY: its slot was given back without it, just now; the length was clamped to the buffer.
        unsafe { receiver.owners.take(context.pool(), start, len as u32) }
    }

    /// Moves the buffer out of the queue, holding exactly the bytes received, and puts `buffer` in its place: the
    /// queue stays as full as it was, and nothing has to be posted. This is how to keep messages at the least
    /// cost.
    ///
    /// ```
    /// # let mut world = doorbell_doc::World::new();
    /// # world.send(b"hello");
    /// # let (receiver, pool) = (&mut world.receiver, &world.pool);
    /// let mut spare = pool.take().expect("more buffers than the queue holds");
    /// let mut batch = receiver.poll();
    /// while let Some(message) = batch.next() {
    ///     let buffer = message?.replace(spare)?;
    ///     assert_eq!(*buffer, *b"hello");
    ///     // Whoever is done with one gives it back here.
    ///     spare = buffer;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`BufferError`] with a buffer that the device could not write: one of another domain, or for datagrams one
    /// without room for their header. Then the message is recycled.
    ///
    /// # Panics
    /// When the message was scattered: use [`into_buffers`](Self::into_buffers).
    #[inline(always)]
    pub fn replace(self, buffer: Buffer) -> Result<Buffer, BufferError<PostFailure>> {
        let Lent { queue, slot, context, start, len, .. } = self.lent;
        if !context.is_single() {
            scattered();
        }
        let receiver = &mut *self.batch.receiver;
        if let Some((entered, segment)) = receiver.owners.describe_of(context.pool(), &buffer) {
            // SAFETY: [lent-held]; the buffer is the queue's from now on.
            unsafe { receiver.queue(queue).rewrite(slot, entered, segment) };
            // SAFETY: the slot has the other buffer of this pool now; the length was clamped to this one.
            return Ok(unsafe { buffer.exchange(start, len as u32) });
        }
        receiver.put_in(queue, slot, buffer)?;
        // SAFETY: the slot has the other buffer now; the length was clamped to this one.
        Ok(unsafe { receiver.owners.take(context.pool(), start, len as u32) })
    }

    /// Moves all buffers of the receive out of the queue, each holding its part of the message.
    pub fn into_buffers(self) -> Vec<Buffer> {
        let mut buffers = Vec::new();
        let receiver = &mut *self.batch.receiver;
        receiver.release(&self.lent);
        let Lent { context, len, .. } = self.lent;
        receiver.owners.leave(context, len as u32, |buffer| buffers.push(buffer));
        buffers
    }
}

impl Receiver {
    /// Puts a buffer into the slot of a message, whose own buffer is the caller's from now on.
    #[cold]
    fn put_in(
        &mut self,
        queue: u32,
        slot: u32,
        buffer: Buffer,
    ) -> Result<(), BufferError<PostFailure>> {
        let Some(mut pool) = self.owners.batch(&buffer) else {
            return Err(BufferError { reason: PostFailure::WrongDomain, buffer });
        };
        let (entered, segment) = pool.describe(&buffer);
        let least = &mut self.queues[queue as usize].least_buffer;
        if let Err(reason) = least.take(entered.capacity()) {
            drop(pool);
            return Err(BufferError { reason, buffer });
        }
        pool.keep(buffer);
        drop(pool);
        // SAFETY: [lent-held]; the buffer is the queue's from now on.
        unsafe { self.queue(queue).rewrite(slot, entered, segment) };
        Ok(())
    }
}

#[cold]
#[inline(never)]
fn scattered() -> ! {
    panic!("take or replace on a scattered message: use into_buffers");
}

impl Deref for Message<'_, '_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: a buffer of a pool that the books keep alive, and the length was clamped to it; completed
        // and not recycled before this message is gone, so nobody writes it.
        unsafe { slice::from_raw_parts(self.lent.start.as_ptr(), self.lent.first) }
    }
}

impl fmt::Debug for Message<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("len", &self.lent.len)
            .field("qp_num", &self.qp_num())
            .field("imm", &self.imm())
            .finish_non_exhaustive()
    }
}
