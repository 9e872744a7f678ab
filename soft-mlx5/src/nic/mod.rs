//! The adapter: executes WQEs that the program wrote, moves bytes, writes CQEs.
//!
//! [`Nic`] is a state machine without thread and without clock: whoever drives it calls
//! [`Nic::step`] with the time, real or virtual. It learns of work only as an adapter does: from
//! doorbell records, UAR registers and packets.

pub mod objects;
mod table;

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;

use crate::fabric::{Fabric, Faults, LinkLayer, address};
use objects::{
    CqAttr, Cqn, Errno, Event, Mkey, MkeyAttr, Pdn, QpAttr, QpModify, QpState, QpStatus, Qpn,
    Result, SrqAttr, Srqn,
};
use table::Table;

/// Key of memory that swallows what is written and reads as zeros (`dump_fill_mkey`, the null MR).
pub const DUMP_FILL_MKEY: Mkey = Mkey(0x300);

/// Frequency of the clock behind CQE timestamps, in kHz (`hca_core_clock`): one tick per nanosecond.
pub const CORE_CLOCK_KHZ: u32 = 1_000_000;

/// What a device is told at power-up.
#[derive(Debug, Clone, Default)]
pub struct NicConfig {
    /// Devices it can reach.
    pub fabric: Fabric,
    /// Link of its port.
    pub link_layer: LinkLayer,
    /// What goes wrong on the way out of the port.
    pub faults: Faults,
    /// Seed of everything random.
    pub seed: u64,
    /// Stop the program where an adapter would silently mangle something.
    pub strict: bool,
}

/// Addresses and state of the port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortAddress {
    /// Local identifier; also where GID, GUID and MAC address come from.
    pub lid: u16,
    /// GID at index 0.
    pub gid: [u8; 16],
    /// Port and node GUID.
    pub guid: u64,
    /// MAC address.
    pub mac: [u8; 6],
    /// Link state.
    pub up: bool,
}

/// A UAR page as the program must map it (`MAP_SHARED`, one page).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UarPage {
    /// Memory file, owned by the device.
    pub fd: RawFd,
    /// Offset in that file.
    pub offset: u64,
}

/// A software mlx5 adapter.
#[derive(Debug)]
pub struct Nic {
    config: NicConfig,
    lid: u16,
    pds: Table<()>,
    mkeys: Table<MkeyAttr>,
    cqs: Table<CqAttr>,
    srqs: Table<SrqAttr>,
    qps: Table<(QpAttr, QpState)>,
    events: VecDeque<Event>,
}

const ENOMEM: Errno = Errno(libc::ENOMEM);
const EINVAL: Errno = Errno(libc::EINVAL);

impl Nic {
    /// Powers up a device and joins its fabric.
    pub fn new(config: NicConfig) -> io::Result<Self> {
        Ok(Self {
            config,
            lid: address::FIRST_LID,
            pds: Table::new(1, 1 << 16),
            mkeys: Table::new(0x10, 1 << 20),
            cqs: Table::new(0x400, 1 << 20),
            srqs: Table::new(0x1000, 1 << 20),
            qps: Table::new(0x40, 1 << 18),
            events: VecDeque::new(),
        })
    }

    /// Allocates a protection domain.
    pub fn alloc_pd(&mut self) -> Result<Pdn> {
        self.pds.insert_with(|_| ()).map(Pdn).ok_or(ENOMEM)
    }

    /// Frees a protection domain.
    pub fn dealloc_pd(&mut self, pd: Pdn) -> Result<()> {
        self.pds.remove(pd.0).ok_or(EINVAL)
    }

    /// Registers memory.
    pub fn create_mkey(&mut self, attr: MkeyAttr) -> Result<Mkey> {
        self.mkeys.insert_with(|_| attr).map(|index| Mkey(index << 8)).ok_or(ENOMEM)
    }

    /// Ends a registration: the memory is not touched after this returns.
    pub fn destroy_mkey(&mut self, mkey: Mkey) -> Result<()> {
        self.mkeys.remove(mkey.0 >> 8).map(drop).ok_or(EINVAL)
    }

    /// Creates a completion queue; the caller has filled its buffer with invalid CQEs.
    pub fn create_cq(&mut self, attr: CqAttr) -> Result<Cqn> {
        self.cqs.insert_with(|_| attr).map(Cqn).ok_or(ENOMEM)
    }

    /// Destroys a completion queue.
    pub fn destroy_cq(&mut self, cq: Cqn) -> Result<()> {
        self.cqs.remove(cq.0).map(drop).ok_or(EINVAL)
    }

    /// Moves a completion queue to a new buffer: a resize CQE ends the old one.
    pub fn resize_cq(&mut self, cq: Cqn, buf: u64, cqe_count: u32) -> Result<()> {
        let attr = self.cqs.get_mut(cq.0).ok_or(EINVAL)?;
        (attr.buf, attr.cqe_count) = (buf, cqe_count);
        Ok(())
    }

    /// Creates a shared receive queue.
    pub fn create_srq(&mut self, attr: SrqAttr) -> Result<Srqn> {
        self.srqs.insert_with(|_| attr).map(Srqn).ok_or(ENOMEM)
    }

    /// Sets the limit that raises [`Event::SrqLimit`] once; 0 disarms it.
    pub fn modify_srq_limit(&mut self, srq: Srqn, limit: u32) -> Result<()> {
        self.srqs.get_mut(srq.0).ok_or(EINVAL)?.limit = limit;
        Ok(())
    }

    /// The limit as it stands: 0 once the event was raised.
    pub fn srq_limit(&self, srq: Srqn) -> Result<u32> {
        Ok(self.srqs.get(srq.0).ok_or(EINVAL)?.limit)
    }

    /// Destroys a shared receive queue.
    pub fn destroy_srq(&mut self, srq: Srqn) -> Result<()> {
        self.srqs.remove(srq.0).map(drop).ok_or(EINVAL)
    }

    /// Creates a queue pair in state Reset.
    pub fn create_qp(&mut self, attr: QpAttr) -> Result<Qpn> {
        self.qps.insert_with(|_| (attr, QpState::Reset)).map(Qpn).ok_or(ENOMEM)
    }

    /// Changes the context of a queue pair.
    pub fn modify_qp(&mut self, qp: Qpn, change: &QpModify) -> Result<()> {
        let qp = self.qps.get_mut(qp.0).ok_or(EINVAL)?;
        qp.1 = change.state.unwrap_or(qp.1);
        Ok(())
    }

    /// Reports what the device changed by itself.
    pub fn query_qp(&self, qp: Qpn) -> Result<QpStatus> {
        let qp = self.qps.get(qp.0).ok_or(EINVAL)?;
        Ok(QpStatus { state: qp.1, rq_psn: 0, sq_psn: 0, sq_draining: false })
    }

    /// Destroys a queue pair; its queues are not touched after this returns.
    pub fn destroy_qp(&mut self, qp: Qpn) -> Result<()> {
        self.qps.remove(qp.0).map(drop).ok_or(EINVAL)
    }

    /// Delivers datagrams for a multicast group to a UD queue pair.
    pub fn attach_multicast(&mut self, qp: Qpn, _group: [u8; 16]) -> Result<()> {
        self.qps.get(qp.0).map(drop).ok_or(EINVAL)
    }

    /// Ends what [`Self::attach_multicast`] began.
    pub fn detach_multicast(&mut self, qp: Qpn, _group: [u8; 16]) -> Result<()> {
        self.qps.get(qp.0).map(drop).ok_or(EINVAL)
    }

    /// The UAR page with this index, made at its first use.
    pub fn uar_page(&mut self, _index: u32) -> Result<UarPage> {
        Err(ENOMEM)
    }

    /// Addresses and state of the port.
    pub fn port(&self) -> PortAddress {
        PortAddress {
            lid: self.lid,
            gid: address::gid(self.lid),
            guid: address::guid(self.lid),
            mac: address::mac(self.lid),
            up: true,
        }
    }

    /// Next event for the driver.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Works for a bounded while at time `now_ns`; `false` when there was nothing to do.
    pub fn step(&mut self, _now_ns: u64) -> bool {
        false
    }

    /// Time of the next timer; until then only doorbells and packets make work.
    pub fn next_deadline(&self) -> Option<u64> {
        None
    }

    /// Descriptor that becomes readable when packets from other processes wait, for a driver that
    /// wants to sleep; `None` without a named fabric.
    pub fn wait_fd(&self) -> Option<RawFd> {
        None
    }
}
