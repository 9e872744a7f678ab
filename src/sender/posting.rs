//! Posting requests, many with one doorbell.

use std::mem::ManuallyDrop;

use mlx5_ring::sq::{Flags, Immediate};
use mlx5_wire::eth::INLINE_L2_HEADER;

use super::Sender;
use super::operation::{self, Operation};
use super::payload::Payload;
use super::queue::{DirectSq, Entry, SendRing};
use super::target::Target;
use super::verbs;
use crate::ids::SqId;
use crate::memory::RemoteRegion;
use crate::not_sent::NotSent;
use crate::pd::DomainId;
use crate::qp::AddressHandle;
use crate::refused::Refused;

impl Sender {
    /// Starts posting several requests to a queue. [`Posting::ring`], or dropping the posting, hands them to the device
    /// with one doorbell. A completion returns each request.
    ///
    /// ```
    /// # let mut world = doorbell_doc::World::new();
    /// # let (queue, pool) = (world.queue(), world.pool.clone());
    /// # let sender = &mut world.sender;
    /// let mut posting = sender.post_many(queue)?;
    /// for number in 0..4 {
    ///     let mut buffer = pool.take().expect("a free buffer");
    ///     buffer.extend_from_slice(b"a message");
    ///     posting.token(number).send(buffer)?;
    /// }
    /// posting.ring();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`NotSent::NoQueue`] for a queue of another sender or a destroyed queue pair; [`NotSent::State`] if the queue
    /// pair is not connected, or has failed.
    #[inline(always)]
    pub fn post_many(&mut self, queue: impl Into<SqId>) -> Result<Posting<'_>, NotSent> {
        self.posting(queue.into(), false)
    }

    /// Starts posting to a queue, requests that have one doorbell together or each its own.
    #[inline(always)]
    pub(super) fn posting(&mut self, queue: SqId, is_single: bool) -> Result<Posting<'_>, NotSent> {
        let has_several = self.queues.len() > 1;
        let entry = self.queues.get_mut(queue.index as usize).and_then(Option::as_deref_mut);
        let Some(entry) = entry.filter(|entry| entry.id.number == queue.number) else {
            return Err(NotSent::NoQueue);
        };
        if !entry.qp.is_ready() {
            return Err(NotSent::State(entry.qp.known_state()));
        }
        if let (true, SendRing::Direct(direct)) = (has_several, &mut entry.ring) {
            self.half = direct.ring.select_half(self.half);
        }
        let flags = if is_single { Flags::SIGNALED } else { Flags::NONE };
        let domain = self.pd.id();
        Ok(Posting { entry, domain, flags, token: 0, is_single, is_unsignaled: false })
    }
}

/// Posts requests to the send queue of one QP, from [`Sender::post_many`]. Dropping it rings the doorbell once.
///
/// A request is posted, or refused with an error that returns its payload; a refused request does not change the queue.
/// [`token`](Self::token), [`solicited`](Self::solicited), [`fence`](Self::fence) and [`own_cqe`](Self::own_cqe)
/// apply to the next request only, also if it is refused: set them again before another attempt.
///
/// After `mem::forget` of a posting, the next posting of the queue rings the doorbell for its requests, too. If the
/// queue pair fails or is dropped before, they are flushed.
///
/// ```
/// # let mut world = doorbell_doc::World::new();
/// # let (queue, pool, remote) = (world.queue(), world.pool.clone(), world.remote());
/// # let sender = &mut world.sender;
/// let mut record = pool.take().expect("a free buffer");
/// record.extend_from_slice(b"a record");
///
/// let mut posting = sender.post_many(queue)?;
/// posting.write(record, &remote.slice(64, 8)?)?;
/// posting.token(1).solicited().send(b"written")?;
/// posting.ring();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Posting<'a> {
    pub(super) entry: &'a mut Entry,
    pub(super) domain: DomainId,
    /// Flags and token of the next request.
    flags: Flags,
    token: u64,
    /// Each request has a doorbell of its own.
    pub(super) is_single: bool,
    /// No completion is returned of the requests that succeed.
    pub(super) is_unsignaled: bool,
}

impl Posting<'_> {
    /// Rings the doorbell: the device executes the requests. Dropping the posting does the same.
    #[inline(always)]
    pub fn ring(self) {}

    /// Sets the number that the completion of the next request returns.
    #[inline(always)]
    pub fn token(&mut self, token: u64) -> &mut Self {
        self.token = token;
        self
    }

    /// Makes the next request solicited at the peer, see [`Receiver::arm_solicited`](crate::Receiver::arm_solicited).
    #[inline(always)]
    pub fn solicited(&mut self) -> &mut Self {
        self.flags = self.flags | Flags::SOLICITED;
        self
    }

    /// Makes the next request wait for all READs and atomics posted before.
    #[inline(always)]
    pub fn fence(&mut self) -> &mut Self {
        self.flags = self.flags | Flags::FENCE;
        self
    }

    /// Asks for a CQE of its own for the next request (`IBV_SEND_SIGNALED`). Without it the request completes together
    /// with a later one, whose CQE says so: at the latest with the last of the posting.
    #[inline(always)]
    pub fn own_cqe(&mut self) -> &mut Self {
        self.flags = self.flags | Flags::SIGNALED;
        self
    }

    /// Adds flags to those of the next request.
    pub(super) fn add_flags(&mut self, flags: Flags) {
        self.flags = self.flags | flags;
    }

    /// Makes the next request, which is the only one, unsignaled.
    #[inline(always)]
    pub(super) fn unsignaled(&mut self) {
        self.flags = self.flags.without(Flags::SIGNALED);
        self.is_unsignaled = true;
    }

    /// Sends a message.
    ///
    /// # Errors
    /// [`Payload::Error`].
    #[inline(always)]
    pub fn send<P: Payload>(&mut self, payload: P) -> Result<(), P::Error> {
        self.gather(Operation::Send(Immediate::None), payload)
    }

    /// Sends a message with immediate data, which the peer's completion returns as the same number.
    ///
    /// # Errors
    /// [`Payload::Error`].
    #[inline(always)]
    pub fn send_with_imm<P: Payload>(&mut self, payload: P, imm: u32) -> Result<(), P::Error> {
        self.gather(Operation::Send(Immediate::Data(imm)), payload)
    }

    /// Sends a message and invalidates a remote key of the peer.
    ///
    /// # Errors
    /// [`Payload::Error`].
    #[inline(always)]
    pub fn send_with_invalidate<P: Payload>(&mut self, payload: P, rkey: u32) -> Result<(), P::Error> {
        self.gather(Operation::Send(Immediate::Invalidate(rkey)), payload)
    }

    /// Sends a datagram, with or without immediate data.
    ///
    /// ```
    /// # let mut world = doorbell_doc::World::datagrams();
    /// # let queue = world.queue();
    /// # let to = world.qp.address_handle(&world.peer.address()?, 0x1234)?;
    /// # let sender = &mut world.sender;
    /// sender.post(queue)?.send_to(&to, b"hello", None)?;
    /// # assert_eq!(world.received()[40..], *b"hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Payload::Error`].
    #[inline(always)]
    pub fn send_to<P: Payload>(
        &mut self,
        to: &AddressHandle,
        payload: P,
        imm: impl Into<Option<u32>>,
    ) -> Result<(), P::Error> {
        self.gather(Operation::SendTo(to, imm.into()), payload)
    }

    /// Sends an Ethernet frame, without FCS, through a queue pair for
    /// [frames](crate::frames::FrameReceiver::with_sender).
    ///
    /// With `checksums` the device writes the checksums of the IPv4 header and of UDP or TCP, over IPv4 or IPv6, and
    /// ignores what the frame holds there. A fragment of a datagram has none of UDP or TCP of its own: send it without
    /// `checksums`. The wire needs at least 60 bytes: pad shorter frames. Keep frames within the MTU of the network
    /// interface: a frame longer than the port takes completes with
    /// [`WcStatus::LOC_LEN_ERR`](crate::WcStatus::LOC_LEN_ERR), and the send queue has failed. Then create another
    /// [`FrameReceiver`](crate::frames::FrameReceiver).
    ///
    /// # Errors
    /// [`Payload::Error`]; [`NotSent::Runt`] for a frame of fewer than 19 bytes.
    #[inline(always)]
    pub fn send_frame<P: Payload>(&mut self, payload: P, checksums: bool) -> Result<(), P::Error> {
        const { assert!(P::IS_READABLE, "the header of a frame is copied into the WQE: send a Buffer or bytes") }
        self.gather(Operation::Frame { checksums }, payload)
    }

    /// Writes the payload to the first bytes of the peer's memory (RDMA WRITE).
    ///
    /// # Errors
    /// [`Payload::Error`].
    #[inline(always)]
    pub fn write<P: Payload>(&mut self, payload: P, to: &RemoteRegion) -> Result<(), P::Error> {
        self.write_to(payload, to, None)
    }

    /// Writes like [`write`](Self::write). The peer's receiver also gets an empty message with this immediate data,
    /// which uses a posted receive.
    ///
    /// # Errors
    /// [`Payload::Error`].
    #[inline(always)]
    pub fn write_with_imm<P: Payload>(&mut self, payload: P, to: &RemoteRegion, imm: u32) -> Result<(), P::Error> {
        self.write_to(payload, to, Some(imm))
    }

    #[inline(always)]
    fn write_to<P: Payload>(&mut self, payload: P, to: &RemoteRegion, imm: Option<u32>) -> Result<(), P::Error> {
        let (len, max) = (payload.bytes(), to.len());
        if len > max {
            return refuse(payload, NotSent::OutOfBounds { len, max });
        }
        self.gather(Operation::Write(to.remote(), imm), payload)
    }

    /// Reads the whole region of the peer's memory into `buffer` and sets its length (RDMA READ).
    ///
    /// A queue pair executes up to 16 READs and atomics at a time (`max_rd_atomic`), or `max_qp_init_rd_atom` of
    /// [`Context::attr`](crate::Context::attr) if that is less; later ones wait in the send queue. A peer that does not
    /// use doorbell must set `max_dest_rd_atomic` to at least as many.
    ///
    /// ```
    /// # let mut world = doorbell_doc::World::new();
    /// # let (queue, pool, remote) = (world.queue(), world.pool.clone(), world.remote());
    /// # let sender = &mut world.sender;
    /// let buffer = pool.take().expect("a free buffer");
    /// sender.post(queue)?.read(buffer, &remote.slice(0, 16)?)?;
    /// let mut read = None;
    /// while read.is_none() {
    ///     if let Some(done) = sender.poll().next() {
    ///         read = done?.buffer;
    ///     }
    /// }
    /// assert_eq!(read.as_deref(), Some(&[0; 16][..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Refused`] with the buffer.
    #[inline(always)]
    pub fn read<B: Target>(&mut self, buffer: B, from: &RemoteRegion) -> Result<(), Refused<B>> {
        self.fetch(Operation::Read(from.remote()), buffer, from.len())
    }

    /// Adds to a number in the peer's memory: eight bytes in the byte order of its processor, at a multiple of eight.
    /// `buffer` receives the old number in the byte order of this processor.
    ///
    /// ```
    /// # let mut world = doorbell_doc::World::new();
    /// # let (queue, pool, remote) = (world.queue(), world.pool.clone(), world.remote());
    /// # let sender = &mut world.sender;
    /// let buffer = pool.take().expect("a free buffer");
    /// sender.post(queue)?.fetch_add(buffer, &remote.slice(8, 8)?, 1)?;
    /// # let done = doorbell_doc::sent(sender);
    /// # let before = u64::from_ne_bytes(done[..].try_into()?);
    /// # assert_eq!(before, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Refused`] with the buffer.
    #[inline(always)]
    pub fn fetch_add<B: Target>(&mut self, buffer: B, at: &RemoteRegion, add: u64) -> Result<(), Refused<B>> {
        self.atomic(Operation::FetchAdd(at.remote(), add), buffer, at)
    }

    /// Stores `swap` in a number in the peer's memory if the number is `compare`. `buffer` receives the old number.
    /// The formats are those of [`fetch_add`](Self::fetch_add).
    ///
    /// # Errors
    /// [`Refused`] with the buffer.
    #[inline(always)]
    pub fn compare_swap<B: Target>(
        &mut self,
        buffer: B,
        at: &RemoteRegion,
        compare: u64,
        swap: u64,
    ) -> Result<(), Refused<B>> {
        self.atomic(Operation::CompareSwap(at.remote(), [compare, swap]), buffer, at)
    }

    #[inline(always)]
    fn atomic<B: Target>(&mut self, operation: Operation<'_>, buffer: B, at: &RemoteRegion) -> Result<(), Refused<B>> {
        if !at.is_a_number() {
            return refuse_answer(buffer, NotSent::NotANumber);
        }
        self.fetch(operation, buffer, size_of::<u64>())
    }

    /// Posts a request whose answer of `len` bytes goes into `buffer`.
    #[inline(always)]
    fn fetch<B: Target>(&mut self, operation: Operation<'_>, buffer: B, len: usize) -> Result<(), Refused<B>> {
        let capacity = buffer.capacity();
        if len > capacity {
            return refuse_answer(buffer, NotSent::BufferTooSmall { len, capacity });
        }
        self.gather(operation, buffer.answer(len as u32))
            .map_err(|error| Refused { payload: B::back(error.payload), reason: error.reason })
    }

    /// Posts a request that uses the memory of `payload`.
    #[inline(always)]
    fn gather<P: Payload>(&mut self, operation: Operation<'_>, payload: P) -> Result<(), P::Error> {
        let (flags, token) = self.take_options();
        if let Err(reason) = self.check(operation, &payload) {
            return refuse(payload, reason);
        }
        let request = || match self.is_unsignaled {
            true => payload.request(token).unsignaled(),
            false => payload.request(token),
        };
        let Entry { ring, silent, .. } = &mut *self.entry;
        let posted = match ring {
            SendRing::Direct(DirectSq { ring, .. }) => {
                let start = ring.posted();
                // The doorbell rings when this posting ends.
                let mut posting =
                    ManuallyDrop::new(if self.is_single { ring.posting_singly() } else { ring.posting() });
                // SAFETY: [memory] the buffers are the request's until it is retired; inline bytes are copied now.
                // [ready] by `Sender::post`.
                let posted = unsafe { operation::post(&mut posting, operation, &payload, flags, request()) };
                if self.is_unsignaled && payload.inline().is_some() && posted.is_ok() {
                    silent.add(start, ring.posted());
                }
                posted.map_err(|error| self.entry.refusal(error, payload.bytes()))
            }
            // SAFETY: [memory], [ready] as above; libibverbs copies inline bytes during the call.
            SendRing::Verbs(verbs) => unsafe {
                verbs::post_payload(verbs, operation, &payload, flags, request())
                    .map_err(|reason| self.entry.with_time(reason))
            },
        };
        match posted {
            Ok(()) => {
                payload.own(&mut self.entry.gathered);
                Ok(())
            }
            Err(reason) => refuse(payload, reason),
        }
    }

    /// Returns flags and token of the next request, and resets them.
    #[inline(always)]
    pub(super) fn take_options(&mut self) -> (Flags, u64) {
        let options = (self.flags, self.token);
        (self.flags, self.token) = (Flags::NONE, 0);
        options
    }

    #[inline(always)]
    fn check<P: Payload>(&self, operation: Operation<'_>, payload: &P) -> Result<(), NotSent> {
        let limits = &self.entry.limits;
        let copied = match operation {
            Operation::Send(_) | Operation::Write(..) => limits.copied,
            Operation::Frame { .. } if payload.bytes() > INLINE_L2_HEADER => limits.copied_frame,
            _ => 0,
        };
        if payload.inline().is_some() && payload.bytes() < copied {
            return Ok(());
        }
        if !operation.is_of(limits.transport) {
            return Err(NotSent::Transport);
        }
        if !payload.is_of(self.domain) {
            return Err(NotSent::WrongDomain);
        }
        let len = payload.bytes();
        match operation {
            Operation::SendTo(to, _) if !to.is_of(self.domain) => {
                return Err(NotSent::WrongDomain);
            }
            Operation::Frame { .. } if len <= INLINE_L2_HEADER => {
                return Err(NotSent::Runt { len, min: INLINE_L2_HEADER + 1 });
            }
            _ => {}
        }
        let is_inline = payload.inline().is_some();
        let max = if is_inline { limits.inline } else { limits.bytes };
        if len > max {
            return Err(if is_inline { NotSent::InlineTooLong { len, max } } else { NotSent::TooLong { len, max } });
        }
        let buffers = payload.sges().as_ref().len();
        if buffers > 1 && buffers > limits.buffers {
            return Err(NotSent::TooManyBuffers { max: limits.buffers });
        }
        Ok(())
    }
}

impl Drop for Posting<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if let (SendRing::Direct(direct), false) = (&mut self.entry.ring, self.is_single) {
            drop(direct.ring.posting());
        }
    }
}

#[cold]
pub(super) fn refuse<P: Payload>(payload: P, reason: NotSent) -> Result<(), P::Error> {
    Err(payload.refuse(reason))
}

#[cold]
pub(super) fn refuse_answer<B>(payload: B, reason: NotSent) -> Result<(), Refused<B>> {
    Err(Refused { payload, reason })
}
