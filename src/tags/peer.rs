//! Connections: to each peer one queue pair that receives and one that sends.
//!
//! The device reads the data of a rendezvous with the send queue of the queue pair that received the
//! offer; so that one is the device's, and nothing can be posted to it.

use std::collections::VecDeque;
use std::io::{Read, Write};

use super::TagMatchingSrq;
use super::config::MIN_SLOTS;
use super::header::RENDEZVOUS;
use super::ids::PeerId;
use super::work::{Posted, Work};
use crate::connect;
use crate::context::Patience;
use crate::error::{Error, Result};
use crate::ids::SqId;
use crate::qp::{QpAddress, QpConfig, QueuePair};
use crate::qp_state::QpEnd;
use crate::status::WcStatus;

/// The addresses that a peer needs to connect.
///
/// ```
/// # let mut world = doorbell_doc::Tags::new();
/// # let doorbell_doc::Tags { tags, .. } = &mut world;
/// use doorbell::QpConfig;
///
/// // Two queue pairs: one for messages that come, one for those that go.
/// let peer = tags.add_peer(&QpConfig::rc())?;
/// let address = tags.address(peer)?;
/// assert_ne!(address.incoming.qpn, address.outgoing.qpn);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddress {
    /// The queue pair that receives. The `outgoing` queue pair of the peer connects to it.
    pub incoming: QpAddress,
    /// The queue pair that sends. The `incoming` queue pair of the peer connects to it.
    pub outgoing: QpAddress,
}

pub(super) struct Peer {
    pub(super) incoming: QueuePair,
    pub(super) outgoing: QueuePair,
    /// The send queue of `outgoing`.
    pub(super) queue: SqId,
    /// Work that was posted to `outgoing`, in order.
    pub(super) posted: VecDeque<Posted>,
    /// Work to post as soon as there is room.
    pub(super) backlog: VecDeque<Work>,
    pub(super) failed: bool,
}

impl TagMatchingSrq {
    /// Creates the queue pairs for a peer. `config` sets how they connect and how many sends can be outstanding; its
    /// receives or SRQ are ignored. The peer may read readable pools, as a rendezvous requires, whatever
    /// [`QpConfig::remote_read`] says.
    ///
    /// ```
    /// # let mut world = doorbell_doc::Tags::new();
    /// # let tags = &mut world.tags;
    /// let peer = tags.add_peer(&doorbell::QpConfig::rc())?;
    /// let address = tags.address(peer)?;
    /// println!("{address:?}");
    /// tags.remove_peer(peer)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`] for datagrams; [`Error::CqTooSmall`] if the sends exceed
    /// [`TagMatchingConfig::send_cqe`](super::TagMatchingConfig::send_cqe); [`Error::OutOfRange`];
    /// [`Error::Verbs`].
    pub fn add_peer(&mut self, config: &QpConfig) -> Result<PeerId> {
        if config.qp_type != rdma_core_sys::IBV_QPT_RC {
            return Err(Error::Unsupported {
                operation: "add_peer",
                when: "with a configuration for datagrams: tag matching needs reliable connections, QpConfig::rc()",
            });
        }
        let config = config.clone().remote_read(true);
        let inline = config.max_inline.unwrap_or(0).max(RENDEZVOUS as u32);
        let receiving = if self.offload() { config.clone().device_sends() } else { config.clone().idle() };
        let send = self.sender.idle_side();
        let incoming = self.engine.create_qp(&self.pd, &receiving, send)?;
        let sending = config.max_inline(inline);
        let send = self.sender.send_side(&self.pd)?;
        let mut outgoing = self.engine.create_qp(&self.pd, &sending, send)?;
        // SAFETY: a fresh queue pair that no other code knows, made for this sender.
        let queue = unsafe { self.sender.enter(&mut outgoing, &sending) }?;
        let numbers = [incoming.qp_num(), outgoing.qp_num()];
        let id = self.peers.add(Peer {
            incoming,
            outgoing,
            queue,
            posted: VecDeque::new(),
            backlog: VecDeque::new(),
            failed: false,
        });
        numbers.iter().for_each(|&number| self.routes.insert(number, id.index));
        Ok(id)
    }

    pub(super) fn peer_mut(&mut self, peer: PeerId) -> Option<&mut Peer> {
        self.peers.get_mut(peer)
    }

    pub(super) fn known_peer(&mut self, peer: PeerId) -> Result<&mut Peer> {
        if peer.owner != self.id {
            return Err(Error::Foreign { what: "the peer", domain: "queue" });
        }
        self.peer_mut(peer).ok_or(Error::Gone { what: "peer" })
    }

    /// Returns the addresses that the peer needs to [`connect`](Self::connect).
    ///
    /// # Errors
    /// [`Error::Foreign`], [`Error::Gone`], [`Error::Verbs`].
    pub fn address(&mut self, peer: PeerId) -> Result<PeerAddress> {
        let peer = self.known_peer(peer)?;
        Ok(PeerAddress { incoming: peer.incoming.address()?, outgoing: peer.outgoing.address()? })
    }

    /// Connects to a peer, which must connect too.
    ///
    /// ```
    /// # use doorbell::tags::{TagMatchingConfig, TagMatchingSrq};
    /// # use doorbell::{BufferPool, PoolConfig};
    /// # let _device = doorbell_doc::device();
    /// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// # let side = || -> doorbell::Result<_> {
    /// #     let mut tags = TagMatchingSrq::new(&pd, &TagMatchingConfig::new(16))?;
    /// #     tags.keep_filled(&BufferPool::new(&pd, &PoolConfig::new(128, 2048))?)?;
    /// #     let peer = tags.add_peer(&doorbell::QpConfig::rc())?;
    /// #     Ok((tags, peer))
    /// # };
    /// # let ((mut tags, peer), (mut other, other_peer)) = (side()?, side()?);
    /// let address = tags.address(peer)?;
    /// // The program exchanges the addresses.
    /// # let theirs = other.address(other_peer)?;
    /// tags.connect(peer, &theirs)?;
    /// # other.connect(other_peer, &address)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`] before [`keep_filled`](Self::keep_filled) has posted 33 buffers; the errors of
    /// [`QueuePair::connect`].
    pub fn connect(&mut self, peer: PeerId, address: &PeerAddress) -> Result<()> {
        self.check_filled()?;
        let peer = self.known_peer(peer)?;
        peer.incoming.connect(&address.outgoing)?;
        peer.outgoing.connect(&address.incoming)
    }

    /// Refuses to connect before the queue has enough buffers for unexpected messages.
    fn check_filled(&mut self) -> Result<()> {
        // Messages of other peers may have taken some since the last poll.
        self.refill();
        if self.engine.posted() >= MIN_SLOTS {
            return Ok(());
        }
        const { assert!(MIN_SLOTS == 33) }
        Err(Error::Unsupported {
            operation: "connecting a peer",
            when: "before 33 buffers are posted: call keep_filled with a larger pool",
        })
    }

    /// Connects to the peer whose owner calls `connect_over` at the other end of `stream`, and returns when both
    /// sides are connected, like [`QueuePair::connect_over`]. Call [`keep_filled`](Self::keep_filled) before, with at
    /// least 33 buffers.
    ///
    /// # Errors
    /// The errors of [`connect`](Self::connect) and of [`QueuePair::connect_over`]. After [`Error::Handshake`] the peer
    /// may be connected on this side: [remove](Self::remove_peer) it, and [add](Self::add_peer) another one to try
    /// again.
    pub fn connect_over<S: Read + Write>(&mut self, peer: PeerId, stream: &mut S) -> Result<()> {
        self.check_filled()?;
        let known = self.known_peer(peer)?;
        known.incoming.check_connectable("connect_over")?;
        known.outgoing.check_connectable("connect_over")?;
        let PeerAddress { incoming, outgoing } = self.address(peer)?;
        connect::exchange(stream, &[incoming, outgoing], |[incoming, outgoing]| {
            self.connect(peer, &PeerAddress { incoming, outgoing })
        })
    }

    /// Ends a connection. Outstanding sends and unread rendezvous complete with `WR_FLUSH_ERR`. Receives whose data was
    /// still to be read from the peer fail: with [`PeerGone`](super::ReceiveFailure::PeerGone) if no READ was posted,
    /// with
    /// [`Read`](super::ReceiveFailure::Read) if the library posted it, and with
    /// [`Dropped`](super::ReceiveFailure::Dropped) if the device did. Complete messages keep waiting for their
    /// receives.
    ///
    /// The call waits for the device, not for the peer, until it has returned the buffers of incomplete messages: like
    /// [`Receiver::reset_qp`](crate::Receiver::reset_qp), it returns [`QpEnd::LastWqeMissing`] after 5 s without any
    /// event of the device.
    ///
    /// # Errors
    /// [`Error::Foreign`]; [`Error::Gone`]; [`Error::Verbs`] if the device refuses, and the peer stays.
    pub fn remove_peer(&mut self, id: PeerId) -> Result<QpEnd> {
        let peer = self.known_peer(id)?;
        // In ERROR before either is waited for.
        peer.incoming.to_error()?;
        let ends =
            [peer.outgoing.stop_receiving(Patience::Progress)?, peer.incoming.stop_receiving(Patience::Progress)?];
        // Requests that are flushed from here on are not reported as a failure of the peer.
        peer.failed = true;
        self.take_arrived();
        let peer = self.known_peer(id)?;
        peer.outgoing.modify_to_reset()?;
        let queue = peer.queue;
        while self.sender.is_busy(queue) {
            self.poll_sends();
        }
        let Some(peer) = self.peers.remove(id) else { return Ok(QpEnd::Complete) };
        // All that they received has been taken.
        self.routes.remove(peer.incoming.qp_num());
        self.routes.remove(peer.outgoing.qp_num());
        // Work waits behind requests that were posted, and `poll_sends` has failed it: the queue pair takes no more.
        debug_assert!(peer.backlog.is_empty());
        // The device does not read any more.
        self.engine.destroy_qp(peer.incoming);
        self.engine.destroy_qp(peer.outgoing);
        self.sender.close_departed();
        self.unexpected.forget_offers(id);
        for (buffer, (send, peer)) in self.offers.withdraw_all(|(_, peer)| *peer == id) {
            self.sent(send, peer, true, WcStatus::WR_FLUSH_ERR, buffer);
        }
        let complete = ends.into_iter().all(|end| end == QpEnd::Complete);
        Ok(if complete { QpEnd::Complete } else { QpEnd::LastWqeMissing })
    }
}
