//! DC initiators: send queues whose requests name their targets.

use std::fmt;

use rdma_core_sys as sys;

use super::{DcAddress, DcPeer};
use crate::error::{Error, Result};
use crate::ids::SqId;
use crate::pd::ProtectionDomain;
use crate::qp::ah::Ah;
use crate::qp::{QpConfig, QueuePair, SendSide, transition};
use crate::qp::{ReceiveSide, address::Local};
use crate::qp_state::QpState;

/// A DC initiator (DCI): a send queue of a [`Sender`](crate::Sender), each request of which names its target, a
/// [`DcPeer`]. It is ready to send as soon as it is made.
///
/// | to | use |
/// |---|---|
/// | send one message | [`Sender::send_dc`](crate::Sender::send_dc) |
/// | post one request of any kind | [`Request::to`](crate::Request::to): `sender.post(&initiator)?.to(&peer)` |
/// | post many with one doorbell | [`Posting::to`](crate::Posting::to), which names the target of what follows |
/// | go on after an error | [`Sender::restart`](crate::Sender::restart) |
///
/// The device executes the requests in order. It turns to the next target when the last one has acknowledged
/// everything, so requests to different targets run side by side only on several initiators.
///
/// # Errors of a target
/// A request that fails stops the initiator. [`Sender::next`](crate::Sender::next) returns it as a
/// [`SendFailure`](crate::SendFailure) with its status. The requests behind it are flushed, and come back
/// [unsent](crate::Sender::take_unsent) in order, with peer and payload. Restart the initiator and
/// [post them again](crate::Posting::post_again):
///
/// ```
/// # let _device = doorbell_doc::device();
/// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
/// use doorbell::{Completions, CqConfig, DcAddress, DcInitiator, DcTarget, QpConfig, Receiver, Sender, SrqConfig};
///
/// # let mut receiver = Receiver::new(&pd, &CqConfig::new(16))?;
/// # let srq = receiver.create_srq(&SrqConfig::new(15))?;
/// # let pool = doorbell::BufferPool::new(&pd, &doorbell::PoolConfig::new(16, 64))?;
/// # receiver.fill(srq, &pool)?;
/// let config = QpConfig::dc().max_send_wr(64);
/// # let config = config.timeout(1).retry_cnt(1);
/// let mut sender = Sender::new(&pd, &CqConfig::for_sends(&config, 1))?;
/// let mut initiator = DcInitiator::new(&mut sender, &config)?;
/// # let target = DcTarget::new(&mut receiver, srq, &config, 1)?;
/// # let addresses = [DcAddress { key: 2, ..target.address()? }, target.address()?];
/// // `addresses` are those of two targets, which the program has exchanged. The first one is gone.
/// let peers = [initiator.peer(&addresses[0])?, initiator.peer(&addresses[1])?];
///
/// let mut posting = sender.post_many(&initiator)?;
/// for (token, peer) in (0..).zip(&peers) {
///     posting.token(token).to(peer).send(b"hello")?;
/// }
/// posting.ring();
///
/// while sender.is_busy(&initiator) {
///     sender.wait(None)?;
///     while let Some(done) = sender.next() {
///         let Err(failure) = done else { continue };
///         println!("{failure}");
///     }
/// }
/// let again = sender.take_unsent(&initiator);
/// sender.restart(&mut initiator)?;
/// assert_eq!((again.len(), again[0].peer()), (1, &peers[1]));
/// let mut posting = sender.post_many(&initiator)?;
/// for request in again {
///     posting.post_again(request)?;
/// }
/// posting.ring();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Dropping an initiator ends it: the sender returns its requests flushed.
pub struct DcInitiator(QueuePair);

impl DcInitiator {
    /// Makes an initiator, and takes it to RTS.
    pub(crate) fn create(pd: &ProtectionDomain, config: &QpConfig, send: SendSide) -> Result<Self> {
        let receive = ReceiveSide::idle(send.cq.clone());
        Ok(Self(QueuePair::create(pd, config, receive, send)?))
    }

    /// Takes it from INIT to RTS.
    pub(crate) fn activate(&mut self) -> Result<()> {
        let Self(qp) = self;
        let device = qp.qp.pd().context().attr();
        let (mut attr, mask) = transition::initiator_rtr(qp.local()?.mtu);
        qp.qp.modify(&mut attr, mask)?;
        let (mut attr, mask) = transition::rts(&qp.config, qp.psn, device);
        qp.qp.modify(&mut attr, mask)
    }

    pub(crate) const fn queue_pair(&mut self) -> &mut QueuePair {
        &mut self.0
    }

    /// Describes the target at `address` to the requests of this and other initiators.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] and [`Error::Handshake`] if the address is invalid, or the path MTU of the target is
    /// smaller than that of the initiator; [`Error::Verbs`].
    pub fn peer(&self, address: &DcAddress) -> Result<DcPeer> {
        let QueuePair { qp, config, .. } = &self.0;
        let (local, at) = (self.0.local()?, address.as_qp());
        let Local { mtu, .. } = local;
        let what = "path MTU of the initiator (QpConfig::mtu)";
        Error::check_range(what, mtu.bytes().into(), 256, address.mtu.bytes().into())?;
        let mut attr = transition::path(config, local.route(&at)?, &at);
        // The WQE has a copy of the address vector, so the handle itself is not needed any more.
        let vector = Ah::create(qp.pd(), &mut attr)?.segment()?;
        Ok(DcPeer::new(vector.to_target(address.number, address.key), qp.pd().clone()))
    }

    /// Returns the number of the initiator, which messages have as their
    /// [source](crate::Message::source).
    pub fn qp_num(&self) -> u32 {
        self.0.qp_num()
    }

    /// Returns how many bytes a request can copy into its WQE.
    pub fn max_inline(&self) -> usize {
        self.0.max_inline()
    }

    /// Returns the state that the driver reports.
    ///
    /// # Errors
    /// [`Error::Verbs`].
    pub fn state(&self) -> Result<QpState> {
        self.0.state()
    }

    /// Moves the initiator to the error state: the sender returns its requests flushed.
    ///
    /// # Errors
    /// [`Error::Verbs`].
    pub fn to_error(&self) -> Result<()> {
        self.0.to_error()
    }

    /// Returns the handle of libibverbs.
    pub fn as_raw(&self) -> *mut sys::ibv_qp {
        self.0.as_raw()
    }
}

/// The send queue of the initiator.
impl From<&DcInitiator> for SqId {
    #[inline(always)]
    fn from(initiator: &DcInitiator) -> Self {
        initiator.0.send_queue
    }
}

impl fmt::Debug for DcInitiator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DcInitiator").field(&self.0).finish()
    }
}
