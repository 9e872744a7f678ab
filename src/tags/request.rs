//! Waiting for chosen receives and sends, and the end of a connection on which both sides agree.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use super::TagMatchingSrq;
use super::event::{Received, Sent, TagEvent};
use super::ids::{PeerId, ReceiveId, SendId};
use crate::connect;
use crate::cq::{Completions, LOOK, NO_CHANNEL};
use crate::error::{Error, Result};
use crate::poll;
use crate::qp_state::QpEnd;

/// Identifies a receive or a send of a [`TagMatchingSrq`].
///
/// ```
/// # let mut world = doorbell_doc::Tags::new();
/// # world.send(7, b"hello");
/// # let doorbell_doc::Tags { tags, peer, pool, .. } = &mut world;
/// # let peer = *peer;
/// use doorbell::tags::{RequestId, TaggedBuffer};
///
/// let receive = tags.post(7, u64::MAX, pool.take().expect("a free buffer"))?;
/// let message = TaggedBuffer::new(pool.take().expect("a free buffer")).expect("room");
/// let requests: [RequestId; 2] = [receive.into(), tags.send(peer, 8, 0, message)?.into()];
/// assert!(tags.wait_all(&requests, None)?);
/// for request in requests {
///     println!("{:?}", tags.take(request));
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RequestId {
    /// A receive.
    Receive(ReceiveId),
    /// A send or a rendezvous.
    Send(SendId),
}

impl From<ReceiveId> for RequestId {
    fn from(receive: ReceiveId) -> Self {
        Self::Receive(receive)
    }
}

impl From<SendId> for RequestId {
    fn from(send: SendId) -> Self {
        Self::Send(send)
    }
}

impl TagEvent {
    /// Returns the request that the event completes. An event without a request is a notice, see
    /// [`TagMatchingSrq::next_notice`].
    pub const fn request(&self) -> Option<RequestId> {
        match self {
            Self::Received(Received { receive, .. })
            | Self::Failed { receive, .. }
            | Self::Cancelled { receive, .. } => Some(RequestId::Receive(*receive)),
            Self::Sent(Sent { send, .. }) => Some(RequestId::Send(*send)),
            _ => None,
        }
    }
}

/// How often both sides say that nothing of theirs is outstanding. After the first time no offer is open, after the
/// second the FINs are acknowledged, too.
const ROUNDS: u8 = 2;

impl TagMatchingSrq {
    /// Takes what has arrived, and returns `true` if the event of this request is here. [`take`](Self::take) or
    /// [`next`](Self::next) returns the event.
    ///
    /// ```
    /// # let mut world = doorbell_doc::Tags::new();
    /// # let doorbell_doc::Tags { tags, pool, .. } = &mut world;
    /// let request = tags.post(7, u64::MAX, pool.take().expect("a free buffer"))?;
    /// assert!(!tags.is_done(request));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_done(&mut self, request: impl Into<RequestId>) -> bool {
        self.find_or_poll(request.into()).is_some()
    }

    /// Takes what has arrived, and returns the event of this request, or `None` if it is not here. Events of other
    /// requests stay.
    pub fn take(&mut self, request: impl Into<RequestId>) -> Option<TagEvent> {
        let at = self.find_or_poll(request.into())?;
        self.events.remove(at)
    }

    /// Takes what has arrived, and returns the next event that belongs to no request, such as
    /// [`PeerFailed`](TagEvent::PeerFailed) and [`BuffersLow`](TagEvent::BuffersLow).
    pub fn next_notice(&mut self) -> Option<TagEvent> {
        if !self.has_notice() {
            self.progress();
        }
        let at = self.events.iter().position(|event| event.request().is_none())?;
        self.events.remove(at)
    }

    /// Sleeps until the event of this request is here, and returns it. Events of other requests stay. Returns `None`
    /// if the time is over, and while there is a [notice](Self::next_notice): the request may wait for a peer that has
    /// failed, or for buffers.
    ///
    /// ```
    /// # let mut world = doorbell_doc::Tags::new();
    /// # world.send(7, b"hello");
    /// # let doorbell_doc::Tags { tags, pool, peer, .. } = &mut world;
    /// use std::time::Duration;
    ///
    /// use doorbell::tags::TagEvent;
    ///
    /// let request = tags.post(7, u64::MAX, pool.take().expect("a free buffer"))?;
    /// match tags.wait_for(request, Duration::from_secs(1))? {
    ///     // The event names the sender: the tag needs no bits for it.
    ///     Some(TagEvent::Received(got)) => assert_eq!((got.peer, &*got.buffer), (*peer, &b"hello"[..])),
    ///     Some(other) => println!("{other:?}"),
    ///     None => println!("too late, or: {:?}", tags.next_notice()),
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`arm`](crate::Completions::arm).
    pub fn wait_for(
        &mut self,
        request: impl Into<RequestId>,
        timeout: impl Into<Option<Duration>>,
    ) -> Result<Option<TagEvent>> {
        let request = request.into();
        self.sleep_until(deadline(timeout), |tags| tags.find(request).is_some())?;
        Ok(self.find(request).and_then(|at| self.events.remove(at)))
    }

    /// Sleeps until the events of all these requests are here. [`take`](Self::take) returns them. Returns `false` if
    /// the time is over, and while there is a [notice](Self::next_notice).
    ///
    /// # Errors
    /// The errors of [`arm`](crate::Completions::arm).
    pub fn wait_all(&mut self, requests: &[RequestId], timeout: impl Into<Option<Duration>>) -> Result<bool> {
        let mut done = 0;
        self.sleep_until(deadline(timeout), |tags| {
            done += requests[done..].iter().take_while(|request| tags.find(**request).is_some()).count();
            done == requests.len()
        })?;
        Ok(done == requests.len())
    }

    /// Ends the connection to a peer whose owner calls `end_over` at the other end of `stream`: waits until nothing is
    /// outstanding between the two, and [removes](Self::remove_peer) the peer. Messages that have arrived and their
    /// events stay. If the connection has failed, the call does not wait for what is outstanding: it comes back from
    /// `remove_peer`. Both sides write two bytes to the stream, which blocks.
    ///
    /// A program with several peers ends them in an order in which no two programs wait for each other, such as that of
    /// ranks.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; [`Error::Handshake`] if the peer closes the stream or sends something else; [`Error::Io`];
    /// [`Error::Gone`] and [`Error::Foreign`]. The peer stays: call [`remove_peer`](Self::remove_peer), after which
    /// nothing of it is outstanding. Also the errors of that.
    pub fn end_over<S: Read + Write + AsFd>(
        &mut self,
        peer: PeerId,
        stream: &mut S,
        timeout: impl Into<Option<Duration>>,
    ) -> Result<QpEnd> {
        let deadline = deadline(timeout);
        self.known_peer(peer)?;
        let mut heard = 0;
        for round in 1..=ROUNDS {
            while !self.is_idle(peer)? {
                self.hear(peer, stream, &mut heard, deadline)?;
            }
            stream.write_all(&[round]).and_then(|()| stream.flush()).map_err(connect::failed)?;
            while heard < round {
                self.hear(peer, stream, &mut heard, deadline)?;
            }
        }
        self.remove_peer(peer)
    }

    /// Sleeps until something arrives from any peer, or the next byte of this one.
    fn hear<S: Read + AsFd>(
        &mut self,
        peer: PeerId,
        stream: &mut S,
        heard: &mut u8,
        deadline: Option<Instant>,
    ) -> Result<()> {
        // A peer that has said all may close the stream.
        let listens = *heard < ROUNDS;
        if !self.sleep(deadline, listens.then(|| stream.as_fd()))? {
            let subject = format!("peer {}", peer.index());
            return Err(Error::TimedOut { operation: "end_over", subject });
        }
        if !listens || !poll::is_readable(stream.as_fd(), Some(Instant::now()))? {
            return Ok(());
        }
        let mut byte = [0];
        match (stream.read(&mut byte).map_err(connect::failed)?, byte) {
            (0, _) => Err(connect::handshake(connect::CLOSED)),
            (_, [byte]) if byte == *heard + 1 => {
                *heard = byte;
                Ok(())
            }
            (_, [byte]) => Err(connect::handshake(&format!("it sent {byte:#x}, which is no byte of end_over"))),
        }
    }

    /// Returns `true` if no send of this side is outstanding, and no FIN or READ of the library. Those to a peer that
    /// failed return when it is removed.
    fn is_idle(&mut self, id: PeerId) -> Result<bool> {
        let peer = self.known_peer(id)?;
        let has_posted_all = peer.posted.is_empty() && peer.backlog.is_empty();
        Ok(peer.failed || has_posted_all && !self.offers.any(|(_, to)| *to == id))
    }

    fn find(&self, request: RequestId) -> Option<usize> {
        self.events.iter().position(|event| event.request() == Some(request))
    }

    fn find_or_poll(&mut self, request: RequestId) -> Option<usize> {
        self.find(request).or_else(|| {
            self.progress();
            self.find(request)
        })
    }

    fn has_notice(&self) -> bool {
        self.events.iter().any(|event| event.request().is_none())
    }

    /// Sleeps until that is enough, there is a notice, or the time is over.
    fn sleep_until(&mut self, deadline: Option<Instant>, mut is_enough: impl FnMut(&Self) -> bool) -> Result<()> {
        let mut is_in_time = true;
        loop {
            self.progress();
            if is_enough(self) || self.has_notice() || !is_in_time {
                return Ok(());
            }
            is_in_time = self.sleep(deadline, None)?;
        }
    }

    /// Sleeps until something arrives or `other` is readable. Returns `false` if the time is over.
    fn sleep(&mut self, deadline: Option<Instant>, other: Option<BorrowedFd<'_>>) -> Result<bool> {
        self.arm_all()?;
        if self.progress() > 0 {
            return Ok(true);
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let sleep = if self.is_short_of_buffers() { Some(left.map_or(LOOK, |left| left.min(LOOK))) } else { left };
        let channel = self.channel().ok_or(NO_CHANNEL)?;
        Ok(channel.or_is_readable(other, sleep)? || sleep != left)
    }
}

fn deadline(timeout: impl Into<Option<Duration>>) -> Option<Instant> {
    timeout.into().and_then(|timeout| Instant::now().checked_add(timeout))
}
