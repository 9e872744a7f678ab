//! One request, whose doorbell rings at once.

use std::mem::ManuallyDrop;

use super::Sender;
use super::payload::Payload;
use super::posting::Posting;
use super::target::Target;
use crate::ids::SqId;
use crate::memory::RemoteRegion;
use crate::not_sent::NotSent;
use crate::qp::AddressHandle;
use crate::refused::Refused;

impl Sender {
    /// Sends one message: its doorbell has rung when the call returns.
    ///
    /// ```
    /// # let mut world = doorbell_doc::World::new();
    /// # let pool = world.pool.clone();
    /// # let doorbell_doc::World { sender, qp, .. } = &mut world;
    /// // A copy of bytes, and a buffer that the completion returns.
    /// sender.send(&*qp, b"hello")?;
    /// sender.send(&*qp, pool.take().expect("a free buffer"))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Payload::Error`].
    #[inline(always)]
    pub fn send<P: Payload>(&mut self, queue: impl Into<SqId>, payload: P) -> Result<(), P::Error> {
        match self.post(queue) {
            Ok(request) => request.send(payload),
            Err(reason) => Err(payload.refuse(reason)),
        }
    }

    /// Starts posting one request of any kind: its doorbell has rung when the method of the [`Request`] returns.
    ///
    /// A completion returns the request, unless it is [unsignaled](Request::unsignaled).
    ///
    /// ```
    /// # let mut world = doorbell_doc::World::new();
    /// # let (queue, remote) = (world.queue(), world.remote());
    /// # let sender = &mut world.sender;
    /// sender.post(queue)?.token(7).write(b"a record", &remote.slice(64, 8)?)?;
    /// # doorbell_doc::finish(sender, queue);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// While the queue is full, wait for completions, and try again:
    ///
    /// ```
    /// # let mut world = doorbell_doc::World::new();
    /// # let (queue, remote) = (world.queue(), world.remote());
    /// # let sender = &mut world.sender;
    /// use doorbell::{Completions, NotSent};
    ///
    /// for token in 0..1000 {
    ///     loop {
    ///         match sender.post(queue)?.token(token).write(b"a record", &remote) {
    ///             Err(NotSent::Full { .. }) => sender.wait(None)?,
    ///             posted => break posted?,
    ///         };
    ///         while let Some(done) = sender.next() {
    ///             assert!(done?.token < token);
    ///         }
    ///     }
    /// }
    /// # doorbell_doc::finish(sender, queue);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`NotSent::NoQueue`] for a queue of another sender or a destroyed queue pair; [`NotSent::State`] if the queue
    /// pair is not connected, or has failed.
    #[inline(always)]
    pub fn post(&mut self, queue: impl Into<SqId>) -> Result<Request<'_>, NotSent> {
        Ok(Request { posting: ManuallyDrop::new(self.posting(queue.into(), true)?) })
    }
}

/// One request, from [`Sender::post`]. Each method posts it and rings the doorbell, or refuses it with an error that
/// returns its buffers; [`Posting`] has the same methods for many.
///
/// ```
/// # let mut world = doorbell_doc::World::new();
/// # let queue = world.queue();
/// # let sender = &mut world.sender;
/// // The doorbell has rung before the arms run.
/// match sender.post(queue)?.token(1).solicited().send(b"hello") {
///     Ok(()) => println!("on its way"),
///     Err(error) => println!("{error}"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a request is posted by one of its methods"]
pub struct Request<'a> {
    /// Never dropped, for it has nothing to ring: so no request is alive in the arms of a `match` of its outcome.
    pub(super) posting: ManuallyDrop<Posting<'a>>,
}

/// Declares methods that call those of [`Posting`] of the same name.
macro_rules! requests {
    ($($name:ident<$generic:ident: $bound:ident>(
        $payload:ident: $type:ty $(, $argument:ident: $of:ty)*
    ) -> $error:ty;)*) => {$(
        #[doc = concat!("See [`Posting::", stringify!($name), "`].")]
        ///
        /// # Errors
        #[doc = concat!("The errors of [`Posting::", stringify!($name), "`].")]
        #[inline(always)]
        pub fn $name<$generic: $bound>(
            mut self,
            $payload: $type,
            $($argument: $of),*
        ) -> Result<(), $error> {
            self.posting.$name($payload, $($argument),*)
        }
    )*};
}

impl<'a> Request<'a> {
    /// Returns what posts it.
    #[inline(always)]
    pub(super) const fn into_posting(self) -> ManuallyDrop<Posting<'a>> {
        self.posting
    }
}

impl Request<'_> {
    /// Sets the number that the completion returns.
    #[inline(always)]
    pub fn token(mut self, token: u64) -> Self {
        self.posting.token(token);
        self
    }

    /// Makes the request solicited at the peer, see [`Posting::solicited`].
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

    /// Makes the request unsignaled: no completion returns it if it succeeds. If it fails, a [`SendFailure`] does.
    ///
    /// ```
    /// # let mut world = doorbell_doc::World::new();
    /// # let queue = world.queue();
    /// # let doorbell_doc::World { sender, peer_receiver, .. } = &mut world;
    /// for price in 0..200_u64 {
    ///     sender.post(queue)?.unsignaled().send(price.to_ne_bytes())?;
    /// #   while peer_receiver.next().is_none() {}
    ///     // Frees the slots of requests that succeeded, and returns those that failed.
    ///     if let Some(done) = sender.next() {
    ///         done?;
    ///     }
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// The request has no CQE of its own, unless [`max_unsignaled`](crate::QpConfig::max_unsignaled) requests before it
    /// have none. The next CQE of the queue frees its slot and returns its buffers to their pools, when the sender is
    /// polled. [`is_busy`](Sender::is_busy) does not wait for the request: to learn that all have arrived, end with a
    /// request that is not unsignaled. After [`Receiver::reset_qp`](crate::Receiver::reset_qp) or
    /// [`destroy_qp`](crate::Receiver::destroy_qp), requests that no CQE has covered are returned as flushed, although
    /// they may have arrived.
    ///
    /// [`SendFailure`]: crate::SendFailure
    #[inline(always)]
    pub fn unsignaled(mut self) -> Self {
        self.posting.unsignaled();
        self
    }

    /// See [`Posting::send_to`].
    ///
    /// # Errors
    /// [`Payload::Error`].
    #[inline(always)]
    pub fn send_to<P: Payload>(
        mut self,
        to: &AddressHandle,
        payload: P,
        imm: impl Into<Option<u32>>,
    ) -> Result<(), P::Error> {
        self.posting.send_to(to, payload, imm)
    }

    requests! {
        send<P: Payload>(payload: P) -> P::Error;
        send_with_imm<P: Payload>(payload: P, imm: u32) -> P::Error;
        send_with_invalidate<P: Payload>(payload: P, rkey: u32) -> P::Error;
        send_frame<P: Payload>(payload: P, checksums: bool) -> P::Error;
        write<P: Payload>(payload: P, to: &RemoteRegion) -> P::Error;
        write_with_imm<P: Payload>(payload: P, to: &RemoteRegion, imm: u32) -> P::Error;
        read<B: Target>(buffer: B, from: &RemoteRegion) -> Refused<B>;
        fetch_add<B: Target>(buffer: B, at: &RemoteRegion, add: u64) -> Refused<B>;
        compare_swap<B: Target>(buffer: B, at: &RemoteRegion, compare: u64, swap: u64) -> Refused<B>;
    }
}
