//! Datagrams: queue pairs without a connection, and where they send to.

use std::fmt;
use std::sync::Arc;

use mlx5_wire::datagram::DatagramSegment;
use rdma_core_sys as sys;

use super::address::QpAddress;
use super::ah::Ah;
use super::config::check_qkey;
use super::{QueuePair, transition};
use crate::error::{Error, Result};
use crate::message_source::DatagramSource;
use crate::mtu::Mtu;
use crate::pd::DomainId;
use crate::qp_state::QpState;

/// The destination of datagrams: a queue pair. Clones share one handle.
///
/// ```
/// # let mut world = doorbell_doc::World::datagrams();
/// // The address of the peer, which the program has exchanged.
/// # let peer = world.peer.address()?;
/// # let (sender, qp, queue) = (&mut world.sender, &world.qp, world.qp.send_queue().expect("a sender"));
/// let to = qp.address_handle(&peer, 0x1234)?;
/// assert_eq!(to.qp_num(), peer.qpn);
/// sender.post(queue)?.send_to(&to, b"hello", None)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct AddressHandle {
    ah: Arc<Ah>,
    qp_num: u32,
    qkey: u32,
    /// The segment of a WQE, on an mlx5 device.
    segment: DatagramSegment,
}

impl AddressHandle {
    /// Returns the number of the queue pair.
    pub const fn qp_num(&self) -> u32 {
        self.qp_num
    }

    /// Returns `true` if queue pairs of this domain can send to it.
    #[inline(always)]
    pub(crate) fn is_of(&self, domain: DomainId) -> bool {
        self.ah.domain() == domain
    }

    /// Returns the segment for the WQE of a datagram.
    #[inline(always)]
    pub(crate) const fn segment(&self) -> &DatagramSegment {
        &self.segment
    }

    /// Puts the destination into a request.
    pub(crate) fn describe(&self, wr: &mut sys::ibv_send_wr) {
        wr.wr.ud = sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_3 {
            ah: self.ah.as_raw(),
            remote_qpn: self.qp_num,
            remote_qkey: self.qkey,
        };
    }
}

impl fmt::Debug for AddressHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressHandle").field("qp_num", &self.qp_num).finish_non_exhaustive()
    }
}

impl QueuePair {
    /// Moves a datagram queue pair from INIT to RTS, where it receives and sends.
    ///
    /// ```
    /// # let _device = doorbell_doc::device();
    /// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// # use doorbell::{BufferPool, CqConfig, PoolConfig, QpConfig, QueuePair, Receiver, RqConfig};
    /// # let mut receiver = Receiver::new(&pd, &CqConfig::new(512))?;
    /// let mut qp = QueuePair::builder(&QpConfig::ud(0x1234))
    ///     .receive(&mut receiver, RqConfig::new(64))
    ///     .build()?;
    /// // Receives are posted before the first datagram can come.
    /// let queue = qp.receive_queue().expect("a queue of its own");
    /// receiver.fill(queue, &BufferPool::new(&pd, &PoolConfig::new(64, 40 + 1024))?)?;
    /// qp.activate()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a connected transport; [`Error::WrongState`] if the queue pair is not in INIT;
    /// [`Error::Verbs`].
    pub fn activate(&mut self) -> Result<()> {
        if !self.is_datagram() {
            return Err(Error::Unsupported { operation: "activate", when: "on a connected transport: use connect" });
        }
        self.check_connectable("activate")?;
        self.qp.modify_state(QpState::Rtr)?;
        let (mut attr, mask) = transition::datagram_rts(self.psn);
        self.qp.modify(&mut attr, mask)
    }

    /// Creates the handle to send to the queue pair at `peer`, which accepts datagrams with this queue key.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] and [`Error::Handshake`] if the address or the queue key is invalid; [`Error::Verbs`].
    pub fn address_handle(&self, peer: &QpAddress, qkey: u32) -> Result<AddressHandle> {
        check_qkey(qkey)?;
        let mut attr = transition::path(&self.config, self.local()?.route(peer)?, peer);
        let ah = Arc::new(Ah::create(self.qp.pd(), &mut attr)?);
        let segment = ah.segment()?.to(peer.qpn, qkey);
        Ok(AddressHandle { ah, qp_num: peer.qpn, qkey, segment })
    }

    /// Creates the handle to answer the sender of a datagram. The sender must accept the queue key of this queue
    /// pair.
    ///
    /// # Errors
    /// The errors of [`address_handle`](Self::address_handle).
    pub fn reply_to(&self, sender: &DatagramSource) -> Result<AddressHandle> {
        let peer = QpAddress {
            lid: sender.lid(),
            gid: sender.gid().unwrap_or_default(),
            qpn: sender.qp_num(),
            psn: 0,
            // For connections only; datagrams fit the MTU of the port.
            mtu: Mtu::Mtu256,
        };
        self.address_handle(&peer, self.config.qkey)
    }

    pub(crate) fn is_datagram(&self) -> bool {
        self.qp.qp_type() == sys::IBV_QPT_UD
    }
}
