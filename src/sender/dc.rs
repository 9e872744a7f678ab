//! Requests to DC targets.

use std::mem::ManuallyDrop;

use mlx5_ring::sq::Immediate;

use super::Sender;
use super::one::Request;
use super::operation::{self, Operation};
use super::payload::Payload;
use super::posting::{Posting, refuse, refuse_answer};
use super::queue::{DirectSq, Entry, SendRing, Silent};
use super::target::Target;
use super::unsent::{Parts, Unsent};
use crate::cq::Poller;
use crate::error::{Error, Result as Outcome};
use crate::ids::SqId;
use crate::memory::RemoteRegion;
use crate::not_sent::NotSent;
use crate::qp::{DcInitiator, DcPeer};
use crate::refused::Refused;

impl Sender {
    /// Sends one message to a DC target: its doorbell has rung when the call returns.
    ///
    /// ```
    /// # let mut world = doorbell_doc::Dynamic::new();
    /// # let doorbell_doc::Dynamic { sender, initiator, target, .. } = &mut world;
    /// # let initiator = &*initiator;
    /// // The address of the target, which the program has exchanged.
    /// let peer = initiator.peer(&target.address()?)?;
    /// sender.send_dc(initiator, &peer, b"hello")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Payload::Error`].
    #[inline(always)]
    pub fn send_dc<P: Payload>(
        &mut self,
        initiator: impl Into<SqId>,
        peer: &DcPeer,
        payload: P,
    ) -> Result<(), P::Error> {
        match self.post(initiator) {
            Ok(request) => request.to(peer).send(payload),
            Err(reason) => Err(payload.refuse(reason)),
        }
    }

    /// Takes the requests of a DC initiator that came back flushed behind one that failed, in the order of posting:
    /// [`next`](Self::next) has returned a [`SendFailure`](crate::SendFailure) with
    /// [`WR_FLUSH_ERR`](crate::WcStatus::WR_FLUSH_ERR) for each. They wait in the sender until the program takes them,
    /// or the initiator is dropped.
    ///
    /// The example at [`DcInitiator`] posts them again.
    pub fn take_unsent(&mut self, initiator: impl Into<SqId>) -> Vec<Unsent> {
        let id = initiator.into();
        let entry = self.queues.get_mut(id.index as usize).and_then(Option::as_deref_mut);
        entry.filter(|entry| entry.id == id).map_or_else(Vec::new, |entry| std::mem::take(&mut entry.unsent))
    }

    /// Returns how far the queue of a DC initiator of this sender is.
    pub(crate) fn progress(&self, initiator: SqId) -> Option<Progress> {
        let entry = self.find(initiator)?;
        let SendRing::Direct(DirectSq { ring, .. }) = &entry.ring else { return None };
        Some(Progress { posted: ring.posted(), retired: ring.retired(), is_ready: entry.qp.is_ready() })
    }

    /// Takes a DC initiator that has failed to RTS again, where it can send.
    ///
    /// Poll before, until [`is_busy`](Self::is_busy) returns `false`: then the failed request and those behind it have
    /// come back, see [`DcInitiator`].
    ///
    /// # Errors
    /// [`Error::InUse`] while requests are outstanding or were not polled; [`Error::Foreign`] for an initiator of
    /// another sender; [`Error::Verbs`], after which the call can be repeated.
    pub fn restart(&mut self, initiator: &mut DcInitiator) -> Outcome<()> {
        self.end_batch();
        let id = SqId::from(&*initiator);
        let Some(entry) = self.find(id) else {
            return Err(Error::Foreign { what: "the DC initiator", domain: "sender" });
        };
        if !entry.ring.is_empty() {
            return Err(Error::InUse {
                what: "DC initiator",
                users: "requests",
                action: "poll the sender until is_busy returns false, and once more for unsignaled requests",
            });
        }
        initiator.queue_pair().modify_to_reset()?;
        let number = initiator.qp_num();
        if let Poller::Direct(direct) = &mut self.cq.poller {
            direct.cq.purge(|cqe| cqe.qpn() == number);
        }
        if let Some(entry) = self.queues.get_mut(id.index as usize).and_then(Option::as_deref_mut) {
            // SAFETY: the queue pair was reset and not made ready since, and the CQ has nothing of it.
            unsafe { entry.ring.reset() }
            (entry.full, entry.silent) = (None, Silent::default());
            entry.qp.take_back_sends();
        }
        initiator.queue_pair().modify_to_init()?;
        initiator.activate()
    }
}

/// How far the queue of a DC initiator is, in running counts of blocks.
#[derive(Clone, Copy)]
pub(crate) struct Progress {
    pub(crate) posted: u32,
    pub(crate) retired: u32,
    /// The initiator can send.
    pub(crate) is_ready: bool,
}

impl Progress {
    pub(crate) const fn outstanding(self) -> u32 {
        self.posted.wrapping_sub(self.retired)
    }
}

impl<'a> Posting<'a> {
    /// Names the DC target of what follows. The queue is that of a [`DcInitiator`].
    ///
    /// ```
    /// # let mut world = doorbell_doc::Dynamic::new();
    /// # let (remote, peers) = (world.remote(), [world.peer.clone(), world.peer.clone()]);
    /// # let doorbell_doc::Dynamic { sender, initiator, .. } = &mut world;
    /// let mut posting = sender.post_many(&*initiator)?;
    /// for (token, peer) in (0..).zip(&peers) {
    ///     let mut to = posting.to(peer);
    ///     to.write(b"a record", &remote)?;
    ///     to.token(token).send(b"written")?;
    /// }
    /// posting.ring();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline(always)]
    pub const fn to<'p>(&'p mut self, peer: &'p DcPeer) -> DcPosting<'p, 'a> {
        DcPosting { posting: self, peer }
    }

    /// Posts a request again that came back [unsent](Sender::take_unsent): to the same target, with the same
    /// payload and token, and solicited or fenced as it was.
    ///
    /// # Errors
    /// [`Refused`] with the request.
    pub fn post_again(&mut self, request: Unsent) -> Result<(), Refused<Unsent>> {
        let Parts { peer, token, operation, flags, kept } = *request.0;
        self.token(token).add_flags(flags);
        let posted = self.to(&peer).gather(operation, kept);
        posted.map_err(|Refused { payload: kept, reason }| Refused {
            payload: Unsent(Box::new(Parts { peer, token, operation, flags, kept })),
            reason,
        })
    }

    /// As [`gather`](DcPosting::gather), of requests to a DC target.
    #[inline(always)]
    fn gather_to<P: Payload>(&mut self, peer: &DcPeer, operation: Operation<'_>, payload: P) -> Result<(), P::Error> {
        let (flags, token) = self.take_options();
        if let Err(reason) = self.check_to(peer, operation, &payload) {
            return refuse(payload, reason);
        }
        let request = match self.is_unsignaled {
            true => payload.request(token).unsignaled(),
            false => payload.request(token),
        };
        let Entry { ring: SendRing::Direct(DirectSq { ring, .. }), silent, .. } = &mut *self.entry else {
            return refuse(payload, NotSent::Transport);
        };
        let start = ring.posted();
        // The doorbell rings when this posting ends.
        let mut posting = ManuallyDrop::new(if self.is_single { ring.posting_singly() } else { ring.posting() });
        let to = peer.segment();
        // SAFETY: [memory] the buffers are the request's until it is retired; inline bytes are copied now. [ready] by
        // `Sender::post`.
        let posted = unsafe { operation::post_to_target(&mut posting, to, operation, &payload, flags, request) };
        if self.is_unsignaled && payload.inline().is_some() && posted.is_ok() {
            silent.add(start, ring.posted());
        }
        match posted {
            Ok(()) => {
                payload.own(&mut self.entry.gathered);
                Ok(())
            }
            Err(error) => {
                let reason = self.entry.refusal(error, payload.bytes());
                refuse(payload, reason)
            }
        }
    }

    #[inline(always)]
    fn check_to<P: Payload>(&self, peer: &DcPeer, operation: Operation<'_>, payload: &P) -> Result<(), NotSent> {
        let limits = &self.entry.limits;
        let is_copy = payload.inline().is_some() && matches!(operation, Operation::Send(_) | Operation::Write(..));
        if is_copy && payload.bytes() < limits.copied_to_target && peer.is_of(self.domain) {
            return Ok(());
        }
        if limits.transport != operation::Transport::Dynamic {
            return Err(NotSent::Transport);
        }
        if !peer.is_of(self.domain) || !payload.is_of(self.domain) {
            return Err(NotSent::WrongDomain);
        }
        let (len, is_inline) = (payload.bytes(), payload.inline().is_some());
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

impl<'a> Request<'a> {
    /// Names the DC target of the request. The queue is that of a [`DcInitiator`].
    ///
    /// ```
    /// # let mut world = doorbell_doc::Dynamic::new();
    /// # let (record, peer, pool) = (world.remote(), world.peer.clone(), world.pool.clone());
    /// # let doorbell_doc::Dynamic { sender, initiator, .. } = &mut world;
    /// use doorbell::Completions;
    ///
    /// let buffer = pool.take().expect("a free buffer");
    /// sender.post(&*initiator)?.token(7).to(&peer).read(buffer, &record)?;
    /// sender.wait(None)?;
    /// let read = sender.next().expect("one request")?.buffer.expect("its buffer");
    /// assert_eq!(read.len(), 64);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline(always)]
    pub const fn to<'p>(self, peer: &'p DcPeer) -> DcRequest<'p>
    where
        'a: 'p,
    {
        DcRequest { posting: self.into_posting(), peer }
    }
}

/// Requests to one DC target, from [`Posting::to`]: the requests of a [`Posting`] on a connection, with the same types,
/// limits and errors. A peer of another protection domain is refused with [`NotSent::WrongDomain`], and a queue that is
/// not one of a [`DcInitiator`] with [`NotSent::Transport`].
///
/// ```
/// # let mut world = doorbell_doc::Dynamic::new();
/// # let (remote, peer) = (world.remote(), world.peer.clone());
/// # let doorbell_doc::Dynamic { sender, initiator, .. } = &mut world;
/// let mut posting = sender.post_many(&*initiator)?;
/// let mut to = posting.to(&peer);
/// to.write(b"a record", &remote.slice(16, 8)?)?;
/// to.token(1).solicited().send(b"written")?;
/// posting.ring();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct DcPosting<'p, 'a> {
    posting: &'p mut Posting<'a>,
    peer: &'p DcPeer,
}

/// One request to a DC target, from [`Request::to`]. Each method posts it and rings the doorbell, or refuses it with an
/// error that returns its buffers; [`DcPosting`] has the same methods for many.
///
/// ```
/// # let mut world = doorbell_doc::Dynamic::new();
/// # let (remote, peer, pool) = (world.remote(), world.peer.clone(), world.pool.clone());
/// # let doorbell_doc::Dynamic { sender, initiator, .. } = &mut world;
/// let buffer = pool.take().expect("a free buffer");
/// sender.post(&*initiator)?.token(1).to(&peer).fetch_add(buffer, &remote.slice(8, 8)?, 1)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a request is posted by one of its methods"]
pub struct DcRequest<'a> {
    posting: ManuallyDrop<Posting<'a>>,
    peer: &'a DcPeer,
}

impl DcPosting<'_, '_> {
    /// Sets the number that the completion of the next request returns.
    #[inline(always)]
    pub fn token(&mut self, token: u64) -> &mut Self {
        self.posting.token(token);
        self
    }

    /// Makes the next request solicited at the target, see [`Posting::solicited`].
    #[inline(always)]
    pub fn solicited(&mut self) -> &mut Self {
        self.posting.solicited();
        self
    }

    /// Makes the next request wait for all READs and atomics posted before.
    #[inline(always)]
    pub fn fence(&mut self) -> &mut Self {
        self.posting.fence();
        self
    }

    /// Asks for a CQE of its own for the next request, see [`Posting::own_cqe`].
    #[inline(always)]
    pub fn own_cqe(&mut self) -> &mut Self {
        self.posting.own_cqe();
        self
    }

    #[inline(always)]
    fn gather<P: Payload>(&mut self, operation: Operation<'_>, payload: P) -> Result<(), P::Error> {
        self.posting.gather_to(self.peer, operation, payload)
    }
}

impl DcPosting<'_, '_> {
    /// Sends a message.
    ///
    /// # Errors
    /// [`Payload::Error`].
    #[inline(always)]
    pub fn send<P: Payload>(&mut self, payload: P) -> Result<(), P::Error> {
        self.gather(Operation::Send(Immediate::None), payload)
    }

    /// Sends a message with immediate data, which the completion of the target returns as the same number.
    ///
    /// # Errors
    /// [`Payload::Error`].
    #[inline(always)]
    pub fn send_with_imm<P: Payload>(&mut self, payload: P, imm: u32) -> Result<(), P::Error> {
        self.gather(Operation::Send(Immediate::Data(imm)), payload)
    }

    /// Sends a message and invalidates a remote key of the target's process.
    ///
    /// # Errors
    /// [`Payload::Error`].
    #[inline(always)]
    pub fn send_with_invalidate<P: Payload>(&mut self, payload: P, rkey: u32) -> Result<(), P::Error> {
        self.gather(Operation::Send(Immediate::Invalidate(rkey)), payload)
    }

    /// Writes the payload to the first bytes of memory of the target's process (RDMA WRITE).
    ///
    /// # Errors
    /// [`Payload::Error`].
    #[inline(always)]
    pub fn write<P: Payload>(&mut self, payload: P, to: &RemoteRegion) -> Result<(), P::Error> {
        match outside(&payload, to) {
            Some(reason) => refuse(payload, reason),
            None => self.gather(Operation::Write(to.remote(), None), payload),
        }
    }

    /// Writes like [`write`](Self::write). The receiver of the target also gets an empty message with this
    /// immediate data, which uses a posted receive.
    ///
    /// # Errors
    /// [`Payload::Error`].
    #[inline(always)]
    pub fn write_with_imm<P: Payload>(&mut self, payload: P, to: &RemoteRegion, imm: u32) -> Result<(), P::Error> {
        match outside(&payload, to) {
            Some(reason) => refuse(payload, reason),
            None => self.gather(Operation::Write(to.remote(), Some(imm)), payload),
        }
    }

    /// Reads the whole region of the target's process into `buffer` and sets its length (RDMA READ).
    ///
    /// # Errors
    /// [`Refused`] with the buffer.
    #[inline(always)]
    pub fn read<B: Target>(&mut self, buffer: B, from: &RemoteRegion) -> Result<(), Refused<B>> {
        let (len, capacity) = (from.len(), buffer.capacity());
        if len > capacity {
            return refuse_answer(buffer, NotSent::BufferTooSmall { len, capacity });
        }
        back(self.gather(Operation::Read(from.remote()), buffer.answer(len as u32)))
    }

    /// Adds to a number in memory of the target's process, see [`Posting::fetch_add`].
    ///
    /// # Errors
    /// [`Refused`] with the buffer.
    #[inline(always)]
    pub fn fetch_add<B: Target>(&mut self, buffer: B, at: &RemoteRegion, add: u64) -> Result<(), Refused<B>> {
        match not_a_number(&buffer, at) {
            Some(reason) => refuse_answer(buffer, reason),
            None => back(self.gather(Operation::FetchAdd(at.remote(), add), buffer.answer(NUMBER))),
        }
    }

    /// Stores `swap` in a number in memory of the target's process if the number is `compare`, see
    /// [`Posting::compare_swap`].
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
        let operation = Operation::CompareSwap(at.remote(), [compare, swap]);
        match not_a_number(&buffer, at) {
            Some(reason) => refuse_answer(buffer, reason),
            None => back(self.gather(operation, buffer.answer(NUMBER))),
        }
    }
}

/// Declares methods that call those of [`DcPosting`] of the same name.
macro_rules! requests {
    ($($name:ident<$generic:ident: $bound:ident>(
        $payload:ident: $type:ty $(, $argument:ident: $of:ty)*
    ) -> $error:ty;)*) => {$(
        #[doc = concat!("See [`DcPosting::", stringify!($name), "`].")]
        ///
        /// # Errors
        #[doc = concat!("The errors of [`DcPosting::", stringify!($name), "`].")]
        #[inline(always)]
        pub fn $name<$generic: $bound>(
            mut self,
            $payload: $type,
            $($argument: $of),*
        ) -> Result<(), $error> {
            DcPosting { posting: &mut self.posting, peer: self.peer }.$name($payload, $($argument),*)
        }
    )*};
}

impl DcRequest<'_> {
    /// Sets the number that the completion returns.
    #[inline(always)]
    pub fn token(mut self, token: u64) -> Self {
        self.posting.token(token);
        self
    }

    /// Makes the request solicited at the target, see [`Posting::solicited`].
    #[inline(always)]
    pub fn solicited(mut self) -> Self {
        self.posting.solicited();
        self
    }

    /// Makes the request wait for all READs and atomics posted before.
    #[inline(always)]
    pub fn fence(mut self) -> Self {
        self.posting.fence();
        self
    }

    /// Makes the request unsignaled, see [`Request::unsignaled`].
    #[inline(always)]
    pub fn unsignaled(mut self) -> Self {
        self.posting.unsignaled();
        self
    }

    requests! {
        send<P: Payload>(payload: P) -> P::Error;
        send_with_imm<P: Payload>(payload: P, imm: u32) -> P::Error;
        send_with_invalidate<P: Payload>(payload: P, rkey: u32) -> P::Error;
        write<P: Payload>(payload: P, to: &RemoteRegion) -> P::Error;
        write_with_imm<P: Payload>(payload: P, to: &RemoteRegion, imm: u32) -> P::Error;
        read<B: Target>(buffer: B, from: &RemoteRegion) -> Refused<B>;
        fetch_add<B: Target>(buffer: B, at: &RemoteRegion, add: u64) -> Refused<B>;
        compare_swap<B: Target>(buffer: B, at: &RemoteRegion, compare: u64, swap: u64) -> Refused<B>;
    }
}

/// Bytes of the number that an atomic operation changes.
const NUMBER: u32 = size_of::<u64>() as u32;

/// Says why a payload cannot be written to the memory of a peer.
#[inline(always)]
fn outside<P: Payload>(payload: &P, to: &RemoteRegion) -> Option<NotSent> {
    let (len, max) = (payload.bytes(), to.len());
    (len > max).then_some(NotSent::OutOfBounds { len, max })
}

/// Says why an atomic operation cannot change the memory of a peer, with an answer to `buffer`.
#[inline(always)]
fn not_a_number<B: Target>(buffer: &B, at: &RemoteRegion) -> Option<NotSent> {
    let (len, capacity) = (NUMBER as usize, buffer.capacity());
    match at.is_a_number() {
        false => Some(NotSent::NotANumber),
        true => (len > capacity).then_some(NotSent::BufferTooSmall { len, capacity }),
    }
}

/// Returns the buffer of a refused request as the caller gave it.
#[inline(always)]
fn back<B: Target>(posted: Result<(), Refused<B::Answer>>) -> Result<(), Refused<B>> {
    posted.map_err(|error| Refused { payload: B::back(error.payload), reason: error.reason })
}
