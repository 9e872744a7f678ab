//! Configuration of a queue pair.

use rdma_core_sys as sys;

use crate::attributes::DeviceAttr;
use crate::error::{Error, Result};
use crate::mtu::Mtu;

/// Transport, sends and connection settings of a queue pair, for [`QueuePair::builder`](crate::QueuePair::builder).
///
/// ```
/// use doorbell::{Mtu, QpConfig};
///
/// let config = QpConfig::rc().max_send_wr(64).max_inline(64).mtu(Mtu::Mtu1024);
/// ```
#[derive(Clone, Debug)]
pub struct QpConfig {
    pub(crate) qp_type: sys::ibv_qp_type,
    pub(crate) max_send_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_inline: Option<u32>,
    pub(crate) max_unsignaled: u32,
    pub(crate) port: u8,
    pub(crate) gid_index: Option<u8>,
    pub(crate) mtu: Option<Mtu>,
    pub(crate) service_level: u8,
    pub(crate) traffic_class: u8,
    pub(crate) pkey_index: u16,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) remote_write: bool,
    /// Peers may read memory that is registered for that.
    pub(crate) remote_read: bool,
    /// Peers may change it by atomic operations.
    pub(crate) remote_atomic: bool,
    /// The device has the send queue, for the rendezvous of tag matching: nothing is posted to it.
    pub(crate) device_sends: bool,
    pub(crate) qkey: u32,
    /// The device takes the VLAN tag out of raw packets.
    pub(crate) vlan_stripping: bool,
    /// Memory windows are bound through it.
    pub(crate) memory_windows: bool,
    /// Many frames may have one WQE.
    pub(crate) multi_packet: bool,
}

/// Queue keys with the upper bit are privileged: only the system sends with them.
const MAX_QKEY: u32 = 0x7fff_ffff;

pub(super) fn check_qkey(qkey: u32) -> Result<()> {
    Error::check_range("qkey (upper bit reserved)", qkey.into(), 0, MAX_QKEY.into())
}

/// More than a WQE of any device has room for. The driver refuses what its own WQEs do not hold; libmlx5 counts with 32
/// bits, and takes the largest numbers for small ones.
const MAX_INLINE: u64 = 1 << 16;

impl QpConfig {
    /// Describes a reliable connection on port 1 with 128 sends. While the peer has no
    /// receive posted, it retries forever.
    ///
    /// ```
    /// use doorbell::QpConfig;
    ///
    /// // Gives up after three retries of about 8 ms, and does not wait for a peer without receives.
    /// let config = QpConfig::rc().max_send_wr(32).timeout(11).retry_cnt(3).rnr_retry(0);
    /// # let _ = config;
    /// ```
    pub const fn rc() -> Self {
        Self {
            qp_type: sys::IBV_QPT_RC,
            max_send_wr: 128,
            max_send_sge: 1,
            max_inline: None,
            max_unsignaled: u32::MAX,
            port: 1,
            gid_index: None,
            mtu: None,
            service_level: 0,
            traffic_class: 0,
            pkey_index: 0,
            timeout: 14,
            retry_cnt: 6,
            rnr_retry: 7,
            min_rnr_timer: 12,
            remote_write: false,
            remote_read: false,
            remote_atomic: false,
            device_sends: false,
            qkey: 0,
            vlan_stripping: false,
            memory_windows: false,
            multi_packet: false,
        }
    }

    /// Ethernet frames.
    pub(crate) const fn raw_packet(vlan_stripping: bool) -> Self {
        let mut config = Self::rc();
        config.qp_type = sys::IBV_QPT_RAW_PACKET;
        config.vlan_stripping = vlan_stripping;
        config
    }

    /// Describes unreliable datagrams on port 1 with 128 sends. Senders must know
    /// `qkey`; its upper bit is reserved for the system.
    ///
    /// Each receive needs [`GRH_SIZE`](crate::GRH_SIZE) bytes before the payload. [`Message`](crate::Message)
    /// contains both, and [`Message::datagram`](crate::Message::datagram) separates them.
    ///
    /// ```
    /// # let _device = doorbell_doc::device();
    /// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// use doorbell::{CqConfig, QpConfig, QueuePair, Receiver, RqConfig};
    ///
    /// let mut receiver = Receiver::new(&pd, &CqConfig::new(512))?;
    /// let mut qp = QueuePair::builder(&QpConfig::ud(0x1234))
    ///     .receive(&mut receiver, RqConfig::new(512))
    ///     .build()?;
    /// qp.activate()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn ud(qkey: u32) -> Self {
        let mut config = Self::rc();
        config.qp_type = sys::IBV_QPT_UD;
        config.qkey = qkey;
        config
    }

    /// Describes dynamic connections (DC) on port 1: a [`DcInitiator`](crate::DcInitiator) with 128 sends, or a
    /// [`DcTarget`](crate::DcTarget). While a target has no receive posted, an initiator retries forever.
    ///
    /// A target uses port, GID, MTU, service level, traffic class, P_Key, RNR timer and the rights of peers; an
    /// initiator uses all settings but the RNR timer and the rights. On the direct path a request of an initiator takes
    /// two basic blocks or more, because it contains the address of its target.
    pub const fn dc() -> Self {
        let mut config = Self::rc();
        config.qp_type = sys::IBV_QPT_DRIVER;
        config
    }

    /// Sets how many requests the send queue holds at least, 128 by default. Each queue reserves its capacity in the CQ
    /// of its sender: [`CqConfig::for_sends`](crate::CqConfig::for_sends) describes a CQ of that size, and
    /// [`Sender::capacity`](crate::Sender::capacity) how many requests can be outstanding. On the direct path the queue
    /// has the basic blocks (WQEBBs) of 64 bytes for so many of the largest requests
    /// ([`max_send_sge`](Self::max_send_sge), [`max_inline`](Self::max_inline)), rounded up to a power of two, and each
    /// request takes the blocks that it needs. `max_send_wr(4)` is 4 blocks, for 4 requests of one buffer.
    pub const fn max_send_wr(mut self, max_wr: u32) -> Self {
        self.max_send_wr = max_wr;
        self
    }

    /// Sets how many buffers one request can gather, 1 by default.
    pub const fn max_send_sge(mut self, max_sge: u32) -> Self {
        self.max_send_sge = max_sge;
        self
    }

    /// Sets how many bytes a request can copy into its WQE, see [`Payload`](crate::Payload). By default they are 44, as
    /// many as a SEND of one basic block has room for (60 for datagrams, of two blocks); an RDMA WRITE of more than 28
    /// bytes then takes two blocks. A device without room for 44 bytes gets queues without any. The driver may round up
    /// to the end of a WQE: [`QueuePair::max_inline`](crate::QueuePair::max_inline) returns the actual number.
    pub const fn max_inline(mut self, bytes: u32) -> Self {
        self.max_inline = Some(bytes);
        self
    }

    /// Sets how many requests that are rung together, or are [unsignaled](crate::Request::unsignaled), may follow each
    /// other without a CQE, no limit by default. A buffer comes back with the next CQE of its queue, so a smaller
    /// number returns buffers earlier. 0 requests a CQE for each request, like
    /// [`Posting::own_cqe`](crate::Posting::own_cqe). The last request before a doorbell, if it is not unsignaled,
    /// and at least one request in each quarter of the queue always have a CQE.
    pub const fn max_unsignaled(mut self, requests: u32) -> Self {
        self.max_unsignaled = requests;
        self
    }

    /// Sets the port, 1 by default.
    pub const fn port(mut self, port: u8) -> Self {
        self.port = port;
        self
    }

    /// Sets the entry of the port's GID table that is the address of this side. Packets then carry a GRH.
    /// [`QueuePair::address`](crate::QueuePair::address) checks it.
    ///
    /// Without it an InfiniBand port uses LIDs. An Ethernet port (RoCE) uses its first RoCE v2 entry for an IPv4
    /// address, else its first RoCE v2 entry, else entry 0.
    pub const fn gid_index(mut self, index: u8) -> Self {
        self.gid_index = Some(index);
        self
    }

    /// Limits the path MTU. The queue pair uses the smallest of this value, the MTU of the port and that of the peer.
    pub const fn mtu(mut self, mtu: Mtu) -> Self {
        self.mtu = Some(mtu);
        self
    }

    /// Sets the service level of the packets, at most 15, 0 by default. On Ethernet it is the priority in the VLAN
    /// tag.
    pub const fn service_level(mut self, level: u8) -> Self {
        self.service_level = level;
        self
    }

    /// Sets the traffic class of packets with a GRH, 0 by default. On RoCE v2 it is the byte of the IP header whose
    /// upper six bits are the DSCP, with which switches choose the priority. With `rdmacm` the connection manager
    /// sets it, and connecting refuses another one.
    ///
    /// ```
    /// use doorbell::QpConfig;
    ///
    /// // DSCP 26, which many RoCE networks keep for RDMA.
    /// let config = QpConfig::rc().traffic_class(26 << 2);
    /// # let _ = config;
    /// ```
    pub const fn traffic_class(mut self, class: u8) -> Self {
        self.traffic_class = class;
        self
    }

    /// Sets the entry of the port's partition key table, 0 by default, which most ports use for the default
    /// partition. With `rdmacm` the connection manager sets it, and connecting refuses another one.
    pub const fn pkey_index(mut self, index: u16) -> Self {
        self.pkey_index = index;
        self
    }

    /// Sets the time-out of an acknowledgement to 4.096 µs · 2^`timeout`, at most 31; 0 waits forever. 14 by default,
    /// about 67 ms.
    ///
    /// By NVIDIA's release notes adapters take a value below 16 as 16, which is 268 ms, except with adaptive timers
    /// (RoCE, firmware xx.35.1012 or later), and may wait up to four times as long. So with the defaults a request to
    /// a dead peer fails after seven tries of at least 268 ms each on most adapters, 1.9 to 7.5 s, and a packet that is
    /// lost delays those behind it by one of them.
    pub const fn timeout(mut self, timeout: u8) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets how often a packet is sent again before the connection fails, at most 7. 6 by default, because Soft-RoCE
    /// retries forever with 7.
    pub const fn retry_cnt(mut self, retries: u8) -> Self {
        self.retry_cnt = retries;
        self
    }

    /// Sets how often a message is sent again while the peer has no receive posted, at most 7. 7, the default,
    /// retries forever.
    pub const fn rnr_retry(mut self, retries: u8) -> Self {
        self.rnr_retry = retries;
        self
    }

    /// Sets how long the peer waits before it sends again when no receive is posted here, as a code of the InfiniBand
    /// specification (`ibv_modify_qp(3)`), at most 31. 12 by default, 0.64 ms.
    pub const fn min_rnr_timer(mut self, code: u8) -> Self {
        self.min_rnr_timer = code;
        self
    }

    /// Sends many frames with one WQE where the device can do so.
    pub(crate) const fn multi_packet(mut self, wanted: bool) -> Self {
        self.multi_packet = wanted;
        self
    }

    /// Sends nothing. Not every driver makes a queue pair without any room for sends.
    pub(crate) const fn idle(mut self) -> Self {
        (self.max_send_wr, self.max_send_sge, self.max_inline) = (1, 1, Some(0));
        self
    }

    /// Gives the send queue to the device.
    pub(crate) const fn device_sends(mut self) -> Self {
        (self.device_sends, self.max_send_wr, self.max_inline) = (true, 0, Some(0));
        self
    }

    /// Lets the peer write [`MemoryRegion`](crate::MemoryRegion), `false` by default.
    pub const fn remote_write(mut self, allowed: bool) -> Self {
        self.remote_write = allowed;
        self
    }

    /// Lets the peer read [`MemoryRegion`](crate::MemoryRegion) and [readable](crate::PoolConfig::readable) pools,
    /// `false` by default.
    pub const fn remote_read(mut self, allowed: bool) -> Self {
        self.remote_read = allowed;
        self
    }

    /// Lets the peer perform atomic operations on [`MemoryRegion`](crate::MemoryRegion), `false` by default.
    pub const fn remote_atomic(mut self, allowed: bool) -> Self {
        self.remote_atomic = allowed;
        self
    }

    /// Lets [memory windows](crate::MemoryWindow) be bound through the queue pair, which is a reliable connection,
    /// `false` by default. On the direct path the send queue then has four basic blocks for each of its
    /// [`max_send_wr`](Self::max_send_wr) requests, or more, as many as a bind takes.
    pub const fn memory_windows(mut self, allowed: bool) -> Self {
        self.memory_windows = allowed;
        self
    }

    /// Returns how many basic blocks libmlx5 gives the send queue (`mlx5_calc_sq_size`) for the operations of a sender.
    pub(crate) const fn send_blocks(&self) -> u32 {
        const BLOCK: u64 = 64;
        // The most segments in front of the payload: those of a datagram, of a WRITE, of an atomic or of a frame.
        let head = match self.qp_type {
            sys::IBV_QPT_UD => 64,
            sys::IBV_QPT_UC => 32,
            // The address of a DC target, too.
            sys::IBV_QPT_DRIVER => 96,
            // Control segment, the segments of the change of a key, and a translation of four units.
            _ if self.memory_windows => 192,
            _ => 48,
        };
        let gathered = head + 16 * self.max_send_sge as u64;
        let inline = match self.max_inline {
            Some(bytes) if bytes > 0 => head + (4 + bytes as u64).next_multiple_of(16),
            _ => 0,
        };
        let longest = if gathered > inline { gathered } else { inline };
        let bytes = longest.next_multiple_of(BLOCK).saturating_mul(self.max_send_wr as u64);
        match bytes.checked_next_power_of_two() {
            Some(bytes) if bytes / BLOCK <= u32::MAX as u64 => (bytes / BLOCK) as u32,
            _ => u32::MAX,
        }
    }

    /// Returns `true` for dynamic connections.
    pub(crate) const fn is_dc(&self) -> bool {
        self.qp_type == sys::IBV_QPT_DRIVER
    }

    /// Checks what can be checked against the device before anything is made.
    pub(crate) fn check(&self, attr: &DeviceAttr) -> Result<()> {
        check_qkey(self.qkey)?;
        if !self.device_sends {
            Error::check_range("max_send_wr", self.max_send_wr.into(), 1, attr.max_qp_wr.into())?;
            Error::check_range("max_send_sge", self.max_send_sge.into(), 1, attr.max_sge.into())?;
            Error::check_range("max_inline", self.max_inline.unwrap_or(0).into(), 0, MAX_INLINE)?;
        }
        Error::check_range("port", self.port.into(), 1, attr.phys_port_cnt.into())?;
        Error::check_range("service_level", self.service_level.into(), 0, 15)?;
        let pkeys = u64::from(attr.max_pkeys);
        Error::check_range("pkey_index", self.pkey_index.into(), 0, pkeys.saturating_sub(1))?;
        Error::check_range("timeout", self.timeout.into(), 0, 31)?;
        Error::check_range("retry_cnt", self.retry_cnt.into(), 0, 7)?;
        Error::check_range("rnr_retry", self.rnr_retry.into(), 0, 7)?;
        Error::check_range("min_rnr_timer", self.min_rnr_timer.into(), 0, 31)?;
        if self.memory_windows && self.qp_type != sys::IBV_QPT_RC {
            let when = "but for QpConfig::rc: leave it out";
            return Err(Error::Unsupported { operation: "QpConfig::memory_windows", when });
        }
        self.check_datagrams()
    }

    /// Refuses what datagrams do not have.
    fn check_datagrams(&self) -> Result<()> {
        let refused = |operation| Err(Error::Unsupported { operation, when: "for datagrams: leave it out" });
        match self {
            Self { qp_type, .. } if *qp_type != sys::IBV_QPT_UD => Ok(()),
            Self { remote_write: true, .. } => refused("QpConfig::remote_write"),
            Self { remote_read: true, .. } => refused("QpConfig::remote_read"),
            Self { remote_atomic: true, .. } => refused("QpConfig::remote_atomic"),
            Self { mtu: Some(_), .. } => refused("QpConfig::mtu"),
            _ => Ok(()),
        }
    }

    /// Refuses what a connection manager chooses.
    #[cfg(feature = "rdmacm")]
    pub(super) fn check_managed(&self) -> Result<()> {
        let refused = |operation| {
            Err(Error::Unsupported { operation, when: "with rdmacm: the connection manager chooses it, leave it out" })
        };
        match self {
            Self { gid_index: Some(_), .. } => refused("QpConfig::gid_index"),
            Self { service_level: 1.., .. } => refused("QpConfig::service_level"),
            Self { traffic_class: 1.., .. } => refused("QpConfig::traffic_class"),
            Self { pkey_index: 1.., .. } => refused("QpConfig::pkey_index"),
            _ => Ok(()),
        }
    }

    /// Checks the size of a receive queue of its own, of a queue pair without an SRQ.
    pub(super) fn check_receives(&self, (max_wr, max_sge): (u32, u32), shared: bool, attr: &DeviceAttr) -> Result<()> {
        // A queue pair that only sends has no receives at all.
        if shared || (max_wr, max_sge) == (0, 0) {
            return Ok(());
        }
        Error::check_range("max_wr of receives", max_wr.into(), 1, attr.max_qp_wr.into())?;
        Error::check_range("max_sge of receives", max_sge.into(), 1, attr.max_sge.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attr() -> DeviceAttr {
        DeviceAttr { max_qp_wr: 1024, max_sge: 30, phys_port_cnt: 2, max_pkeys: 128, ..Default::default() }
    }

    /// The table of `docs/market-data.md`.
    #[test]
    fn inline_bytes_make_frames_longer() {
        for (bytes, blocks) in [(0, 1), (12, 1), (13, 2), (76, 2), (77, 3), (140, 3), (204, 4), (205, 5), (268, 5)] {
            let config = QpConfig::raw_packet(false).max_inline(bytes).max_send_wr(1024);
            assert_eq!(config.send_blocks(), (1024_u32 * blocks).next_power_of_two(), "{bytes} bytes");
        }
        assert_eq!(QpConfig::raw_packet(false).max_send_wr(64).max_inline(128).send_blocks(), 256);
    }

    fn refused(config: QpConfig) -> &'static str {
        match config.check(&attr()) {
            Err(Error::OutOfRange { what, .. }) => what,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn sizes_are_from_one_to_what_the_device_can_do() {
        let receives = |own| match QpConfig::rc().check_receives(own, false, &attr()) {
            Err(Error::OutOfRange { what, .. }) => what,
            other => panic!("{other:?}"),
        };
        assert!(QpConfig::rc().check(&attr()).is_ok());
        assert!(QpConfig::rc().max_send_wr(1024).port(2).check(&attr()).is_ok());
        assert!(QpConfig::rc().check_receives((1024, 30), false, &attr()).is_ok());
        assert_eq!(receives((0, 1)), "max_wr of receives");
        assert_eq!(receives((1025, 1)), "max_wr of receives");
        assert_eq!(receives((1, 0)), "max_sge of receives");
        assert_eq!(receives((1, 31)), "max_sge of receives");
        assert_eq!(refused(QpConfig::rc().max_send_wr(0)), "max_send_wr");
        assert_eq!(refused(QpConfig::rc().max_send_wr(1025)), "max_send_wr");
        assert_eq!(refused(QpConfig::rc().port(0)), "port");
        assert_eq!(refused(QpConfig::rc().port(3)), "port");
    }

    #[test]
    fn queue_keys_of_the_system_are_refused() {
        assert!(QpConfig::ud(0x7fff_ffff).check(&attr()).is_ok());
        assert!(refused(QpConfig::ud(0x8000_0000)).starts_with("qkey"));
    }

    #[test]
    fn values_that_the_wire_cannot_carry_are_refused() {
        assert_eq!(refused(QpConfig::rc().service_level(16)), "service_level");
        assert_eq!(refused(QpConfig::rc().pkey_index(128)), "pkey_index");
        assert_eq!(refused(QpConfig::rc().timeout(32)), "timeout");
        assert_eq!(refused(QpConfig::rc().retry_cnt(8)), "retry_cnt");
        assert_eq!(refused(QpConfig::rc().rnr_retry(8)), "rnr_retry");
        assert_eq!(refused(QpConfig::rc().min_rnr_timer(32)), "min_rnr_timer");
    }
}
