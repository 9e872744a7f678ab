//! Queue pairs, and connecting them.

mod address;
mod ah;
mod config;
mod datagram;
mod dc;
mod encoding;
mod group;
mod multicast;
mod object;
mod transition;

use std::sync::Arc;
use std::{fmt, ptr};

use rdma_core_sys as sys;

use self::address::{Local, MAX_24_BITS};
use crate::attributes::PortState;
use crate::context::Patience;
use crate::cq::Cq;
use crate::error::{Error, Result};
use crate::ids::{QueueId, RqId, SqId};
use crate::pd::ProtectionDomain;
use crate::qp_state::{QpEnd, QpState};
use crate::srq::Srq;
use crate::trace::trace_event;

pub use address::QpAddress;
pub use config::QpConfig;
pub use datagram::AddressHandle;
pub use dc::{DcAddress, DcInitiator, DcPeer, DcTarget};
pub use encoding::AddressError;
#[cfg(test)]
pub(crate) use encoding::tests::ADDRESS;
pub use group::MulticastGroup;

pub(crate) use object::{Qp, ReceiveSide, SendSide};

/// A queue pair, from [`QueuePair::builder`]. It receives through a [`Receiver`](crate::Receiver), or does not receive,
/// and sends through a [`Sender`](crate::Sender), or does not send.
///
/// A new queue pair is in state INIT: post receives before connecting it. On the direct path the library switches off
/// scatter to CQE: a device that stores a short payload in the CQE overwrites the source QP and the SLID there.
///
/// A peer that has died is noticed only by requests to it, which fail with
/// [`WcStatus::RETRY_EXC_ERR`](crate::WcStatus::RETRY_EXC_ERR) after (`retry_cnt` + 1) tries, 1.9 to 7.5 s by
/// default on most adapters ([`QpConfig::timeout`](crate::QpConfig::timeout)). A side that only receives notices
/// nothing: keep the stream of
/// [`connect_over`](Self::connect_over), whose end is the end of the peer. Then call
/// [`Receiver::destroy_qp`](crate::Receiver::destroy_qp), and poll the sender, which returns outstanding buffers.
///
/// A queue pair that has failed is in state ERROR; that of the peer has failed, too, or fails at its next request.
/// Either destroy them, or connect them again. To connect again, both sides poll the completions that have arrived,
/// call
/// [`Receiver::reset_qp`](crate::Receiver::reset_qp), poll the sender until [`Sender::is_busy`](crate::Sender::is_busy)
/// returns `false`, post receives to the queue pair's own receive queue, if any, and connect with new
/// [addresses](Self::address) or over the same stream. A queue pair without a receiver is replaced by a new one.
///
/// To end a connection, poll until all sends have completed and all expected messages have arrived. Then close the
/// writing end of the stream (`shutdown(Shutdown::Write)`), and keep the queue pair until the peer has closed its end
/// (`read_to_end`): a destroyed queue pair does not acknowledge the last send of its peer. The peer destroys its queue
/// pair when its read returns 0, and closes the stream.
///
/// Dropping it disconnects. The receiver and the sender destroy it later, see
/// [`Receiver::destroy_qp`](crate::Receiver::destroy_qp).
///
/// ```
/// # let _device = doorbell_doc::device();
/// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
/// use doorbell::{CqConfig, QpConfig, QpState, QueuePair, Receiver, RqConfig, Sender};
///
/// let config = QpConfig::rc().max_send_wr(16).max_inline(64);
/// let mut receiver = Receiver::new(&pd, &CqConfig::new(16))?;
/// let mut sender = Sender::new(&pd, &CqConfig::new(32))?;
/// let mut qp = QueuePair::builder(&config)
///     .receive(&mut receiver, RqConfig::new(16))
///     .send(&mut sender)
///     .build()?;
/// # let mut other = Receiver::new(&pd, &CqConfig::new(16))?;
/// # let mut peer =
/// #     QueuePair::builder(&config).receive(&mut other, RqConfig::new(16)).build()?;
/// # let theirs = peer.address()?;
/// // `theirs` is the address of the peer, which the program has exchanged. Post receives before.
/// qp.connect(&theirs)?;
/// assert_eq!(qp.state()?, QpState::Rts);
/// println!("QP {:#x} can send", qp.qp_num());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct QueuePair {
    qp: Arc<Qp>,
    config: QpConfig,
    psn: u32,
    max_msg_size: u32,
    /// Where it receives: an SRQ, or its own receive queue.
    receives: Option<QueueId>,
    /// Where it sends; [`SqId::NONE`] without a sender.
    send_queue: SqId,
}

impl QueuePair {
    /// Makes a queue pair and takes it to INIT.
    pub(crate) fn create(
        pd: &ProtectionDomain,
        config: &QpConfig,
        receive: ReceiveSide,
        send: SendSide,
    ) -> Result<Self> {
        let mut this = Self::new(Qp::create(pd, config, receive, send)?, config, random_psn()?)?;
        this.modify_to_init()?;
        Ok(this)
    }

    /// Makes a queue pair for list operations on a tag-matching SRQ, which complete on `cq`, and connects it to
    /// itself.
    pub(crate) fn create_for_list(
        pd: &ProtectionDomain,
        config: &QpConfig,
        cq: Arc<Cq>,
        srq: Arc<Srq>,
    ) -> Result<Self> {
        let send = SendSide::idle(Arc::clone(&cq));
        let receive = ReceiveSide { srq: Some(srq), ..ReceiveSide::idle(cq) };
        let mut this = Self::create(pd, config, receive, send)?;
        let itself = this.address()?;
        this.connect(&itself)?;
        Ok(this)
    }

    /// A queue pair that the caller made and will destroy. Sizes in `config` do not matter; what it
    /// says about the connection is what [`connect`](Self::connect) uses, if the queue pair is not
    /// connected yet. One in the RESET state is taken to INIT.
    ///
    /// # Safety
    /// - `qp` belongs to `pd`, receives and sends as these say, and stays alive for as long as the value.
    /// - No other code posts to it or changes its state.
    pub(crate) unsafe fn from_raw(
        pd: &ProtectionDomain,
        qp: *mut sys::ibv_qp,
        config: &QpConfig,
        receive: ReceiveSide,
        send: SendSide,
    ) -> Result<Self> {
        let refused = |when| Err(Error::Unsupported { operation: "QueuePairBuilder::attach", when });
        // SAFETY: the queue pair is alive, and neither its type nor its queues change.
        let made = unsafe { &*qp };
        if !matches!(made.qp_type, sys::IBV_QPT_RC | sys::IBV_QPT_UC | sys::IBV_QPT_UD) {
            return refused("on a queue pair of this type, such as one for raw packets: it takes RC, UC and UD");
        }
        if !receive.is_idle() && made.recv_cq != receive.cq.as_raw() {
            return refused("for a queue pair that receives on another CQ than this receiver");
        }
        if send.has_sender && made.send_cq != send.cq.as_raw() {
            return refused("for a queue pair that sends on another CQ than this sender");
        }
        if made.send_cq == made.recv_cq {
            return refused(
                "for a queue pair that sends and receives on one CQ: create it with two CQs, or give it to doorbell with doorbell_attach_qp of doorbell.h or with `doorbell run`, which take one",
            );
        }
        if made.srq != receive.srq.as_ref().map_or(ptr::null_mut(), |srq| srq.as_raw()) {
            return refused("unless `receive` names the SRQ that it was created with, if any");
        }
        // SAFETY: the caller's `qp` belongs to `pd`, sends and receives as these say, and stays alive.
        let (qp, attr) = unsafe { Qp::from_raw(pd, qp, receive, send)? };
        let mut config = config.clone();
        (config.max_send_wr, config.max_send_sge) = (qp.cap().max_send_wr, qp.cap().max_send_sge);
        let reset = qp.known_state() == QpState::Reset;
        if !reset {
            config.port = attr.port_num;
        }
        let psn = if qp.known_state() == QpState::Rts { attr.sq_psn } else { random_psn()? };
        let mut this = Self::new(qp, &config, psn)?;
        if reset {
            this.modify_to_init()?;
        }
        Ok(this)
    }

    fn new(qp: Qp, config: &QpConfig, psn: u32) -> Result<Self> {
        let port = qp.pd().context().query_port(config.port)?;
        let mut config = config.clone();
        config.qp_type = qp.qp_type();
        let max_msg_size = match (config.qp_type, port.active_mtu) {
            (sys::IBV_QPT_UD, Some(mtu)) => mtu.bytes(),
            _ => port.max_msg_sz,
        };
        Ok(Self { qp: Arc::new(qp), config, psn, max_msg_size, receives: None, send_queue: SqId::NONE })
    }

    /// Returns the number of the queue pair.
    pub fn qp_num(&self) -> u32 {
        self.qp.qp_num()
    }

    /// Returns its own receive queue for posting, or `None` if it has none.
    pub fn receive_queue(&self) -> Option<RqId> {
        self.receives.filter(|_| !self.qp.has_srq()).map(RqId)
    }

    /// Returns where it receives, an SRQ or its own receive queue.
    pub(crate) const fn receives(&self) -> Option<QueueId> {
        self.receives
    }

    pub(crate) fn set_receives(&mut self, queue: QueueId) {
        self.receives = Some(queue);
    }

    /// Returns its send queue, or `None` if it does not send.
    pub fn send_queue(&self) -> Option<SqId> {
        Some(self.send_queue).filter(|&queue| queue != SqId::NONE)
    }

    pub(crate) fn set_send_queue(&mut self, queue: SqId) {
        self.send_queue = queue;
    }

    /// Returns how many bytes a request can copy into its WQE.
    pub fn max_inline(&self) -> usize {
        self.qp.cap().max_inline_data as usize
    }

    /// Bytes of the longest message.
    pub(crate) const fn max_msg_size(&self) -> u32 {
        self.max_msg_size
    }

    /// The state as this process knows it.
    pub(crate) fn known_state(&self) -> QpState {
        self.qp.known_state()
    }

    /// The queue key that senders of datagrams need.
    pub(crate) const fn qkey(&self) -> u32 {
        self.config.qkey
    }

    /// Returns the configuration that it was made with, with its actual transport.
    pub(crate) const fn config(&self) -> &QpConfig {
        &self.config
    }

    /// Returns the address that the peer needs to [`connect`](Self::connect). It is valid for one connection:
    /// [`Receiver::reset_qp`](crate::Receiver::reset_qp) changes the PSN.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if the configured index is beyond the GID table of the port, [`Error::NoGid`] if the table
    /// is empty there; [`Error::Verbs`] if the port cannot be queried.
    pub fn address(&self) -> Result<QpAddress> {
        let Local { lid, gid, mtu, .. } = self.local()?;
        Ok(QpAddress { lid, gid, qpn: self.qp_num(), psn: self.psn, mtu })
    }

    fn local(&self) -> Result<Local> {
        Local::query(self.qp.pd().context(), &self.config)
    }

    /// Connects to the queue pair at `peer`, which must connect to this one: INIT to RTR to RTS.
    ///
    /// Packets carry a GRH if the peer has a GID. The path MTU is the smaller of the two. A message sent before the
    /// peer is connected is sent again after a time-out. To avoid this delay, connect the side that does not send first
    /// before it sends its own address, or use [`connect_over`](Self::connect_over), which waits for the peer.
    ///
    /// ```
    /// # let doorbell_doc::World { mut receiver, mut qp, mut peer, mut peer_receiver, device: _device, .. } =
    /// #     doorbell_doc::World::new();
    /// # receiver.reset_qp(&mut qp)?;
    /// let ours = qp.address()?;
    /// println!("tell the peer: QP {:#x}, PSN {:#x}, GID {:?}", ours.qpn, ours.psn, ours.gid);
    /// # peer_receiver.reset_qp(&mut peer)?;
    /// # let theirs = peer.address()?;
    /// qp.connect(&theirs)?;
    /// # peer.connect(&ours)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::WrongState`] if the queue pair is not in INIT; [`Error::InUse`] if it was reset and
    /// [`Sender::is_busy`](crate::Sender::is_busy) still returns `true`; [`Error::Unsupported`] for datagrams;
    /// [`Error::OutOfRange`] and [`Error::Handshake`] if the address is invalid; [`Error::PortDown`];
    /// [`Error::Verbs`] if the device refuses, after which the queue pair must be reset.
    pub fn connect(&mut self, peer: &QpAddress) -> Result<()> {
        if self.is_datagram() {
            return Err(Error::Unsupported {
                operation: "connect",
                when: "for datagrams: use activate and address_handle",
            });
        }
        self.check_connectable("connect")?;
        self.check_port()?;
        let local = self.local()?;
        let (route, mtu) = (local.route(peer)?, local.mtu.min(peer.mtu));
        let pd = self.qp.pd().clone();
        let device = pd.context().attr();
        let (mut attr, mask) = transition::rtr(&self.config, route, mtu, peer, device);
        self.qp.modify(&mut attr, mask)?;
        let (mut attr, mask) = transition::rts(&self.config, self.psn, device);
        self.qp.modify(&mut attr, mask)?;
        trace_event!(qp_num = self.qp_num(), peer_qp_num = peer.qpn, mtu = ?mtu, "connected");
        Ok(())
    }

    /// Refuses a port through which nothing goes.
    fn check_port(&self) -> Result<()> {
        let (context, port) = (self.qp.pd().context(), self.config.port);
        let state = match context.query_port(port)?.state {
            PortState::Down => "down",
            PortState::Init => "initialising",
            _ => return Ok(()),
        };
        Err(Error::PortDown { device: context.name().to_owned(), port, state })
    }

    /// Refuses a queue pair that was connected before.
    pub(crate) fn check_connectable(&self, operation: &'static str) -> Result<()> {
        let (state, needed) = (self.qp.known_state(), QpState::Init);
        if state == needed && self.qp.sends_ended() {
            return Err(Error::InUse {
                what: "send queue",
                users: "its sender, which has not polled since the reset",
                action: "poll the sender until is_busy returns false",
            });
        }
        if state == needed {
            return Ok(());
        }
        Err(Error::WrongState { operation, qp_num: self.qp_num(), state, needed })
    }

    /// Refuses a queue pair that a connection manager cannot connect as it is configured, or that was connected before.
    #[cfg(feature = "rdmacm")]
    pub(crate) fn check_managed(&self) -> Result<()> {
        self.check_connectable("connect")?;
        self.config.check_managed()
    }

    /// Connects with the attributes that a connection manager has for each state. Retries and time-outs are those of
    /// the configuration.
    #[cfg(feature = "rdmacm")]
    pub(crate) fn connect_with(
        &mut self,
        attributes: impl Fn(QpState) -> Result<(sys::ibv_qp_attr, sys::ibv_qp_attr_mask)>,
    ) -> Result<()> {
        self.check_managed()?;
        let (mut attr, _) = attributes(QpState::Init)?;
        self.qp.modify(&mut attr, sys::IBV_QP_STATE | sys::IBV_QP_PKEY_INDEX | sys::IBV_QP_PORT)?;
        self.config.port = attr.port_num;

        let (mut attr, mask) = attributes(QpState::Rtr)?;
        attr.min_rnr_timer = self.config.min_rnr_timer;
        if let Some(most) = self.config.mtu {
            attr.path_mtu = attr.path_mtu.min(most.as_raw());
        }
        self.qp.modify(&mut attr, mask)?;

        let (mut attr, mask) = attributes(QpState::Rts)?;
        attr.timeout = self.config.timeout;
        attr.retry_cnt = self.config.retry_cnt;
        attr.rnr_retry = self.config.rnr_retry;
        self.qp.modify(&mut attr, mask)?;
        trace_event!(qp_num = self.qp_num(), "connected through the connection manager");
        Ok(())
    }

    /// Retries of a packet, and of a message that met no receive.
    #[cfg(feature = "rdmacm")]
    pub(crate) const fn retries(&self) -> (u8, u8) {
        (self.config.retry_cnt, self.config.rnr_retry)
    }

    /// Name of the device.
    #[cfg(feature = "rdmacm")]
    pub(crate) fn device_name(&self) -> &str {
        self.qp.pd().context().name()
    }

    /// Moves the queue pair to the error state, which disconnects it: the receiver and the sender return its requests
    /// flushed.
    ///
    /// ```
    /// # let doorbell_doc::World { mut receiver, mut qp, device: _device, .. } = doorbell_doc::World::new();
    /// qp.to_error()?;
    /// assert_eq!(qp.state()?, doorbell::QpState::Error);
    /// // The queue pair can be connected again.
    /// receiver.reset_qp(&mut qp)?;
    /// assert_eq!(qp.state()?, doorbell::QpState::Init);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Verbs`].
    pub fn to_error(&self) -> Result<()> {
        self.qp.modify_state(QpState::Error)
    }

    /// To RESET. Outstanding sends are over, and the sender gives their buffers back as flushed. The doorbell records
    /// are zero; receives that were posted are forgotten by the device, and their CQEs may still be in the CQ.
    pub(crate) fn modify_to_reset(&mut self) -> Result<()> {
        let psn = random_psn()?;
        self.qp.modify_state(QpState::Reset)?;
        self.psn = psn;
        Ok(())
    }

    /// To ERROR, in which the device takes no receives any more; see [`Qp::stop_receiving`].
    pub(crate) fn stop_receiving(&self, patience: Patience) -> Result<QpEnd> {
        self.qp.stop_receiving(patience)
    }

    /// From RESET to INIT, in which receives can be posted.
    pub(crate) fn modify_to_init(&mut self) -> Result<()> {
        let (mut attr, mask) = transition::init(&self.config);
        self.qp.modify(&mut attr, mask)
    }

    /// Takes a queue pair for raw packets from INIT to RTR, and to RTS if it sends.
    pub(crate) fn activate_raw_packet(&mut self, sends: bool) -> Result<()> {
        self.qp.modify_state(QpState::Rtr)?;
        if sends { self.qp.modify_state(QpState::Rts) } else { Ok(()) }
    }

    /// Returns the state that the driver reports.
    ///
    /// # Errors
    /// [`Error::Verbs`].
    pub fn state(&self) -> Result<QpState> {
        let (attr, _) = self.qp.query(sys::IBV_QP_STATE)?;
        Ok(QpState::from_raw(attr.qp_state))
    }

    /// Returns the handle of libibverbs.
    pub fn as_raw(&self) -> *mut sys::ibv_qp {
        self.qp.as_raw()
    }

    pub(crate) fn object(&self) -> Arc<Qp> {
        Arc::clone(&self.qp)
    }
}

/// The send queue of the queue pair. Without one, posting to it returns [`NotSent::NoQueue`](crate::NotSent::NoQueue).
impl From<&QueuePair> for SqId {
    #[inline(always)]
    fn from(qp: &QueuePair) -> Self {
        qp.send_queue
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.qp.drop_handle();
        // If the receiver, the sender or the program still holds it, its destruction must wait, but the connection ends
        // now. If this fails, the peer learns it later. A forked child leaves the connections of its parent alone.
        let connected = !matches!(self.qp.known_state(), QpState::Reset | QpState::Error);
        let may_end = self.qp.pd().context().owner().is_this_process();
        if may_end && connected && (Arc::strong_count(&self.qp) > 1 || !self.qp.is_ours()) {
            let _ = self.to_error();
        }
    }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair")
            .field("qp_num", &self.qp_num())
            .field("state", &self.qp.known_state())
            .finish_non_exhaustive()
    }
}

/// A first PSN: a random one keeps packets of an earlier connection from being taken for this one's.
fn random_psn() -> Result<u32> {
    let mut psn = [0; 4];
    // SAFETY: an array of four bytes.
    let count = unsafe { libc::getrandom(psn.as_mut_ptr().cast(), psn.len(), 0) };
    if count != psn.len() as isize {
        return Err(Error::last_os("getrandom", "the system"));
    }
    Ok(u32::from_ne_bytes(psn) & MAX_24_BITS)
}
