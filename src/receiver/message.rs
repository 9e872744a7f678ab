//! A received message, lent by its batch.

use std::fmt;
use std::mem;
use std::ops::Deref;
use std::ptr::with_exposed_provenance;
use std::slice;

use mlx5_ring::completion::Cqe;

use super::Receiver;
use super::completion_info::CompletionInfo;
use super::lent::Lent;
use super::post::check;
use super::slot_context::SlotContext;
use crate::clock::Timestamp;
use crate::cq::Poller;
use crate::memory::{Buffer, Host, Memory};
use crate::message_source::MessageSource;
use crate::post_failure::{PostFailure, Scattered};
use crate::refused::Refused;
use crate::wc_flags::WcFlags;

/// A received message, lent by its batch. The end of the batch posts its buffer again. [`take`](Self::take) moves the
/// buffer out.
///
/// It dereferences to the bytes received. A message that was scattered over several buffers dereferences to those in
/// the first; [`segments`](Self::segments) returns all.
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
pub struct Message<'a, M: Memory = Host> {
    pub(super) lent: Lent,
    /// The CQE of the message, on the direct path.
    pub(super) cqe: Option<Cqe<'a>>,
    pub(super) receiver: &'a mut Receiver<M>,
}

impl<M: Memory> Message<'_, M> {
    /// Returns the number of bytes received in all buffers.
    #[expect(clippy::len_without_is_empty, reason = "is_empty comes from the slice")]
    #[inline]
    pub const fn len(&self) -> usize {
        self.lent.len
    }

    /// Returns what the completion says beside the message.
    fn info(&self) -> CompletionInfo<'_> {
        match (&self.cqe, &self.receiver.cq.poller) {
            (Some(cqe), _) => CompletionInfo::Cqe(*cqe),
            (None, Poller::Verbs(cq)) => CompletionInfo::Wc(cq.current()),
            (None, Poller::Direct(_)) => unreachable!("a message of the direct path has a CQE"),
        }
    }

    /// Returns the number of the QP that received the message.
    pub fn qp_num(&self) -> u32 {
        self.info().qp_num()
    }

    /// Returns the immediate data, or `None` if the peer sent none.
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

    /// Returns the remote key that the message invalidated, or `None`. The access that a
    /// [`MemoryWindow`](crate::MemoryWindow) gave with it has ended.
    pub fn invalidated_rkey(&self) -> Option<u32> {
        self.info().invalidated_rkey()
    }

    /// Returns the number of bytes that the peer wrote with RDMA WRITE with immediate, or `None` for other messages.
    /// Such a message is empty: the bytes are where the peer wrote them.
    pub fn written(&self) -> Option<u32> {
        self.info().written()
    }

    /// Returns the source of the message. `None` if the device stored up to 32 bytes of payload over it in the CQE,
    /// which happens only with queue pairs that doorbell did not create.
    pub fn source(&self) -> Option<MessageSource> {
        self.info().source()
    }

    /// Returns the flags of the completion. `IP_CSUM_OK` is reported for datagrams on the direct path; libmlx5 does
    /// not report it.
    pub fn flags(&self) -> WcFlags {
        self.info().flags(self.receiver.qps.is_datagram(self.qp_num()))
    }

    /// Returns when the device completed the message; [`Receiver::clock`] converts it to nanoseconds. `None` unless
    /// [`CqConfig::timestamps`](crate::CqConfig::timestamps) requested it and the device has a clock.
    ///
    /// [`Receiver::clock`]: crate::Receiver::clock
    pub fn timestamp(&self) -> Option<Timestamp> {
        self.info().timestamp(self.receiver.cq.object.timestamp_clock())
    }

    /// Returns `true` if the receive had several buffers.
    pub fn is_scattered(&self) -> bool {
        // SAFETY: [slot-owns], for the slot is held.
        unsafe { !self.lent.context.is_single() }
    }

    /// Moves the buffer out of the queue; its length is that of the message. The program can extend it up to its
    /// capacity and send it. The queue then has one receive less: post another buffer.
    ///
    /// ```
    /// # let mut world = doorbell_doc::World::new();
    /// # world.send(b"hello");
    /// # let receiver = &mut world.receiver;
    /// let mut batch = receiver.poll();
    /// let message = batch.next().expect("a message has arrived")?;
    /// let buffer = message.take()?;
    /// // The bytes stay, whatever arrives.
    /// drop(batch);
    /// assert_eq!(*buffer, *b"hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Scattered`] if the message is in several buffers, which [`into_buffers`](Self::into_buffers) takes. The
    /// message is then recycled.
    #[inline(always)]
    pub fn take(self) -> Result<Buffer<M>, Scattered> {
        let Lent { queue, slot, context, len, .. } = self.lent;
        // SAFETY: [slot-owns], for the slot is held.
        if !unsafe { context.is_single() } {
            return Err(Scattered);
        }
        self.receiver.release(queue, slot);
        // SAFETY: [slot-owns], given back without it just now; the length was clamped to the buffer.
        Ok(unsafe { context.into_buffer(len as u32) })
    }

    /// Moves the buffer out of the queue and puts `buffer` in its place. The queue stays full and nothing needs to be
    /// posted, so this is the cheapest way to keep a message.
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
    ///     // Give a buffer back here when it was used.
    ///     spare = buffer;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Refused`] returns a `buffer` of another protection domain, or one too small for the GRH of a datagram, or any
    /// buffer if the message was scattered. The message is then recycled.
    #[inline(always)]
    pub fn replace(self, buffer: Buffer<M>) -> Result<Buffer<M>, Refused<Buffer<M>, PostFailure>> {
        let Lent { queue, slot, context, len, .. } = self.lent;
        let Receiver { queues, pd, .. } = &mut *self.receiver;
        let entry = &mut queues[queue as usize];
        // SAFETY: [slot-owns], for the slot is held.
        let checked = match unsafe { context.is_single() } {
            true => check(pd, entry.datagrams, buffer.pool()),
            false => Err(PostFailure::Scattered),
        };
        if let Err(reason) = checked {
            return Err(Refused { payload: buffer, reason });
        }
        // SAFETY: [lent]; the buffer is the queue's from now on.
        unsafe { entry.queue.rewrite(slot, SlotContext::of(&buffer), buffer.receive_segment()) };
        mem::forget(buffer);
        // SAFETY: [slot-owns], the slot has the other buffer now; the length was clamped to this one.
        Ok(unsafe { context.into_buffer(len as u32) })
    }

    /// Moves all buffers of the receive out of the queue. The length of each is that of its part of the message.
    pub fn into_buffers(self) -> Vec<Buffer<M>> {
        let Lent { queue, slot, context, len, .. } = self.lent;
        let mut buffers = Vec::new();
        self.receiver.release(queue, slot);
        // SAFETY: [slot-owns], given back just now.
        unsafe { context.into_buffers(len as u32, |buffer| buffers.push(buffer.cast())) };
        buffers
    }
}

impl Message<'_> {
    /// Returns the part of the message in each buffer, in order.
    ///
    /// ```
    /// # use doorbell::{BufferPool, CqConfig, PoolConfig, QpConfig, QueuePair, Receiver, Sender, SrqConfig};
    /// # let _device = doorbell_doc::device();
    /// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// # let mut receiver = Receiver::new(&pd, &CqConfig::new(16))?;
    /// # let srq = receiver.create_srq(&SrqConfig::new(15).max_sge(2))?;
    /// # let config = QpConfig::rc().max_inline(64);
    /// # let mut qp = QueuePair::builder(&config).receive(&mut receiver, srq).build()?;
    /// # let mut peer_sender = Sender::new(&pd, &CqConfig::new(512))?;
    /// # let mut peer = QueuePair::builder(&config).send(&mut peer_sender).build()?;
    /// # qp.connect(&peer.address()?)?;
    /// # peer.connect(&qp.address()?)?;
    /// // One message over a small buffer for the header and a larger one.
    /// let small = BufferPool::new(&pd, &PoolConfig::new(1, 16))?;
    /// let large = BufferPool::new(&pd, &PoolConfig::new(1, 4096))?;
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
        // SAFETY: [slot-owns], for the slot is held.
        unsafe { self.lent.context.sges() }.map_while(move |sge| {
            if left == 0 {
                return None;
            }
            let len = left.min(sge.length);
            left -= len;
            let start = with_exposed_provenance(sge.addr as usize);
            // SAFETY: a buffer of the receive; completed and not recycled before this message is dropped, so no code
            // writes it.
            Some(unsafe { slice::from_raw_parts(start, len as usize) })
        })
    }
}

impl Deref for Message<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: [slot-owns], a buffer of the receive, and the length was clamped to it; completed and not recycled
        // before this message is dropped, so no code writes it.
        unsafe { slice::from_raw_parts(self.lent.start.as_ptr(), self.lent.first) }
    }
}

impl<M: Memory> fmt::Debug for Message<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("len", &self.lent.len)
            .field("qp_num", &self.qp_num())
            .field("imm", &self.imm())
            .finish_non_exhaustive()
    }
}
