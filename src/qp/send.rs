//! Sending, through the calls of libibverbs and a CQ of the queue pair's own.

use std::fmt;
use std::io;
use std::ptr;

use rdma_core_sys as sys;

use super::QueuePair;
use super::datagram::AddressHandle;
use super::state::QpState;
use crate::memory::Buffer;
use crate::sender::SendCompletion;
use crate::status::WcStatus;

/// Why a send was not posted. The queue is as it was.
///
/// ```
/// # let mut world = doorbell_doc::World::new();
/// # let qp = &mut world.qp;
/// use doorbell::NotSent;
///
/// match qp.send_inline(b"hello", None) {
///     Ok(()) => println!("on its way"),
///     Err(NotSent::Full) => println!("take completions, and send again"),
///     Err(error) => println!("{error}"),
/// }
/// # doorbell_doc::finish(qp);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotSent {
    /// As many sends are outstanding as the queue holds.
    #[error("the send queue is full: take completions with poll_send")]
    Full,
    /// The queue pair is not ready to send.
    #[error(
        "the queue pair is in state {0}, and sends from RTS only: connect it, or reset it if it failed"
    )]
    State(QpState),
    /// The message is too long.
    #[error("{len} bytes are more than the {max} that are possible")]
    TooLong {
        /// Bytes of the message.
        len: usize,
        /// Bytes there is room for: in a WQE for an inline send, else in a message of the port.
        max: usize,
    },
    /// The buffer or the address handle is of another protection domain.
    #[error("the buffer or the address handle belongs to another protection domain")]
    Foreign,
    /// A datagram without a destination, or a destination where the connection has one.
    #[error("datagrams, and only they, are sent with send_to and send_inline_to")]
    Transport,
    /// The queue belongs to another sender, or its queue pair is gone.
    #[error("the queue is that of another sender, or its queue pair was destroyed")]
    NoQueue,
    /// More buffers than a request of this queue gathers.
    #[error(
        "more buffers than the {max} that a request gathers: ask for more with QpConfig::send_buffers"
    )]
    TooManyBuffers {
        /// Buffers there is room for.
        max: usize,
    },
    /// More bytes than the memory of the peer has.
    #[error("{len} bytes are more than the {max} of the peer's memory")]
    OutOfBounds {
        /// Bytes of the request.
        len: usize,
        /// Bytes of the memory.
        max: usize,
    },
    /// The memory of the peer is none for an atomic operation.
    #[error("atomic operations take eight bytes at an address that is a multiple of eight")]
    NotANumber,
    /// `ibv_post_send` failed.
    #[error("ibv_post_send: {0}")]
    Verbs(#[source] io::Error),
}

/// A send was not posted; the buffer is back.
///
/// ```
/// # let _device = doorbell_doc::device();
/// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
/// # use doorbell::{BufferPool, QpConfig, Receiver, ReceiverConfig};
/// # let mut receiver = Receiver::new(&pd, &ReceiverConfig::new())?;
/// # let mut qp = receiver.create_qp(&QpConfig::rc())?;
/// # let pool = BufferPool::new(&pd, 1, 64)?;
/// // A queue pair that was not connected.
/// let buffer = pool.take().expect("a new pool is full");
/// let refused = qp.send(buffer, None).unwrap_err();
/// println!("{refused}");
/// // Nothing is lost.
/// drop(refused.payload);
/// assert_eq!(pool.available(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(thiserror::Error)]
#[error("not sent: {reason}")]
pub struct SendError<P = Buffer> {
    /// What was to be sent, as it was given.
    pub payload: P,
    /// Why.
    #[source]
    pub reason: NotSent,
}

impl<P> fmt::Debug for SendError<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.reason, f)
    }
}

impl QueuePair {
    /// Bytes that [`send_inline`](Self::send_inline) takes.
    pub fn max_inline(&self) -> usize {
        self.qp.cap().max_inline_data as usize
    }

    /// Sends the bytes of `buffer`, and `imm` as immediate data, which the peer's completion carries as
    /// the same number: in network byte order on the wire. The buffer comes back from
    /// [`poll_send`](Self::poll_send).
    ///
    /// ```
    /// # let mut world = doorbell_doc::World::new();
    /// # let (qp, pool) = (&mut world.qp, &world.pool);
    /// let mut buffer = pool.take().expect("half of the buffers are not posted");
    /// buffer.set_len(5);
    /// buffer.copy_from_slice(b"hello");
    /// qp.send(buffer, Some(7))?;
    /// while qp.sends_outstanding() > 0 {
    ///     if let Some(done) = qp.poll_send() {
    ///         // The buffer is back.
    ///         println!("{}: {:?}", done.status, done.buffer);
    ///     }
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`SendError`] has the buffer and the reason.
    pub fn send(&mut self, buffer: Buffer, imm: Option<u32>) -> Result<(), SendError> {
        self.send_with_headroom(buffer, 0, imm)
    }

    /// As [`send`](Self::send), with the last `headroom` bytes in front of the buffer as the start of the
    /// message, see [`Buffer::headroom_mut`].
    ///
    /// ```
    /// # let mut world = doorbell_doc::World::new();
    /// # let (qp, pd) = (&mut world.qp, world.pd.clone());
    /// use doorbell::{BufferPool, PoolConfig};
    ///
    /// let pool = BufferPool::with(&pd, &PoolConfig::new(16, 256).headroom(8))?;
    /// let mut buffer = pool.take().expect("a new pool is full");
    /// buffer.set_len(5);
    /// buffer.copy_from_slice(b"hello");
    /// buffer.headroom_mut().copy_from_slice(b"header: ");
    /// // The peer gets `header: hello`.
    /// qp.send_with_headroom(buffer, 8, None)?;
    /// # doorbell_doc::finish(qp);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`SendError`] has the buffer and the reason.
    ///
    /// # Panics
    /// When the pool of the buffer has less headroom.
    pub fn send_with_headroom(
        &mut self,
        buffer: Buffer,
        headroom: usize,
        imm: Option<u32>,
    ) -> Result<(), SendError> {
        let max = self.max_msg_size as usize;
        let posted = if !buffer.pool().pd().is_same(self.qp.pd()) {
            Err(NotSent::Foreign)
        } else {
            let bytes = buffer.with_headroom(headroom);
            let addr = bytes.as_ptr().expose_provenance() as u64;
            // SAFETY: the buffer is registered in the domain of the queue pair with its headroom, and `sends`
            // owns it until its completion or the end of the queue pair.
            unsafe { self.post(addr, bytes.len(), buffer.pool().lkey(), max, 0, imm, None) }
        };
        match posted {
            Ok(()) => {
                self.sends.posted(Some(buffer));
                Ok(())
            }
            Err(reason) => Err(SendError { payload: buffer, reason }),
        }
    }

    /// Sends a copy of `bytes`, which need no registered memory and may be at most
    /// [`max_inline`](Self::max_inline); `imm` is as for [`send`](Self::send). It has a completion like
    /// any send.
    ///
    /// ```
    /// # let mut world = doorbell_doc::World::new();
    /// # let qp = &mut world.qp;
    /// use doorbell::NotSent;
    ///
    /// qp.send_inline(b"hello", None)?;
    /// let long = vec![0; qp.max_inline() + 1];
    /// assert!(matches!(qp.send_inline(&long, None), Err(NotSent::TooLong { .. })));
    /// # doorbell_doc::finish(qp);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`NotSent`].
    pub fn send_inline(&mut self, bytes: &[u8], imm: Option<u32>) -> Result<(), NotSent> {
        let addr = bytes.as_ptr().expose_provenance() as u64;
        let max = self.max_inline();
        // SAFETY: an inline send copies the bytes before it returns.
        unsafe { self.post(addr, bytes.len(), 0, max, sys::IBV_SEND_INLINE, imm, None)? }
        self.sends.posted(None);
        Ok(())
    }

    /// Posts a send of which `sends` does not know yet.
    ///
    /// # Safety
    /// The memory can be read, by the device until the completion unless the send is inline.
    #[expect(clippy::too_many_arguments, reason = "they are what a send is made of")]
    pub(super) unsafe fn post(
        &mut self,
        addr: u64,
        len: usize,
        lkey: u32,
        max: usize,
        flags: sys::ibv_send_flags,
        imm: Option<u32>,
        to: Option<&AddressHandle>,
    ) -> Result<(), NotSent> {
        self.check_room(len, max)?;
        let mut sge = sys::ibv_sge { addr, length: len as u32, lkey };
        let mut wr = sys::ibv_send_wr {
            wr_id: self.sends.next(),
            sg_list: &mut sge,
            num_sge: (len > 0).into(),
            opcode: sys::IBV_WR_SEND,
            send_flags: sys::IBV_SEND_SIGNALED | flags,
            ..Default::default()
        };
        self.direct(&mut wr, to)?;
        if let Some(imm) = imm {
            wr.opcode = sys::IBV_WR_SEND_WITH_IMM;
            wr.__bindgen_anon_1.imm_data = imm.to_be();
        }
        // SAFETY: the memory is by the contract.
        unsafe { self.submit(&mut wr) }
    }

    /// Whether a request of `len` bytes, of at most `max`, can be posted now.
    pub(super) fn check_room(&self, len: usize, max: usize) -> Result<(), NotSent> {
        if self.qp.has_sender() {
            return Err(NotSent::NoQueue);
        }
        let state = self.qp.known_state();
        if state != QpState::Rts {
            return Err(NotSent::State(state));
        }
        if len > max {
            return Err(NotSent::TooLong { len, max });
        }
        if self.sends.is_full() {
            return Err(NotSent::Full);
        }
        Ok(())
    }

    /// Posts one request, of which `sends` does not know yet.
    ///
    /// # Safety
    /// The request's list names memory that the device may use as the opcode says, until the completion
    /// unless it is inline.
    pub(super) unsafe fn submit(&mut self, wr: &mut sys::ibv_send_wr) -> Result<(), NotSent> {
        let mut bad_wr = ptr::null_mut();
        // SAFETY: a live queue pair in RTS and a list of one initialised request; the memory is by the
        // contract.
        let errno = unsafe { sys::ibv_post_send(self.qp.as_raw(), wr, &mut bad_wr) };
        match errno {
            0 => Ok(()),
            // Some providers return -1 and set errno where the man page promises the number.
            ..0 => Err(NotSent::Verbs(io::Error::last_os_error())),
            _ => Err(NotSent::Verbs(io::Error::from_raw_os_error(errno))),
        }
    }

    /// Takes the next completion of a send, in the order of sending. After a failure the buffers of all
    /// sends that were outstanding come back this way, flushed.
    ///
    /// ```
    /// # let mut world = doorbell_doc::World::new();
    /// # let qp = &mut world.qp;
    /// qp.send_inline(b"hello", None)?;
    /// let done = loop {
    ///     if let Some(done) = qp.poll_send() {
    ///         break done;
    ///     }
    /// };
    /// assert!(done.status.is_success() && done.buffer.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use = "it has the buffer"]
    pub fn poll_send(&mut self) -> Option<SendCompletion<'static>> {
        if self.sends.outstanding() == 0 {
            return None;
        }
        let mut wc = sys::ibv_wc::default();
        // SAFETY: a live CQ that nobody else polls, and room for one completion.
        while unsafe { sys::ibv_poll_cq(self.qp.send_cq().as_raw(), 1, &mut wc) } == 1 {
            let status = WcStatus::from_raw(wc.status);
            let vendor_err = if status.is_success() { 0 } else { wc.vendor_err };
            if let Some(completion) = self.sends.complete(wc.wr_id, status, vendor_err) {
                // A completion from before a reset says nothing about the state after it.
                if !status.is_success() && !self.sends.was_given_up(wc.wr_id) {
                    self.qp.mark_failed();
                }
                return Some(completion);
            }
        }
        self.sends.take_given_up()
    }

    /// Sends that were posted and whose completion was not taken.
    pub fn sends_outstanding(&self) -> usize {
        self.sends.outstanding() as usize
    }
}
