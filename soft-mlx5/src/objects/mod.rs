//! Firmware commands that create, change or destroy an object: their arguments and results.
//!
//! These are the firmware commands of a ConnectX seen from the driver: the kernel side has already
//! parsed the uverbs command and checked capability limits; the NIC side trusts nothing that it later
//! reads from queue memory.

pub(crate) mod completion;
pub(crate) mod compress;
pub(crate) mod cq;
pub(crate) mod dc;
pub mod defects;
pub(crate) mod flow;
pub(crate) mod flow_tables;
pub(crate) mod gid_table;
pub(crate) mod handover;
pub(crate) mod key_list;
pub(crate) mod memory;
pub(crate) mod mkey;
pub(crate) mod qp;
pub(crate) mod rendezvous;
pub(crate) mod requester;
pub(crate) mod responder;
pub(crate) mod rq;
pub(crate) mod rss;
pub(crate) mod scatter;
pub(crate) mod shuffle;
pub(crate) mod sq;
pub(crate) mod srq;
pub mod strict;
pub(crate) mod table;
pub(crate) mod tag_list;
pub(crate) mod timer;
pub mod trace;
pub(crate) mod uar;
pub(crate) mod verdict;
pub(crate) mod wqe;

pub use self::rss::HashAttr;
pub use crate::fabric::opcode::Service;

/// Errno value that the uverbs command returns to the program (positive, as in `errno.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

/// Result of a firmware command.
pub type Result<T> = core::result::Result<T, Errno>;

/// Protection domain number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pdn(pub u32);

impl Pdn {
    /// Domain of the queue pair with which a driver changes the keys of all domains.
    pub const OF_DRIVER: Self = Self(u32::MAX);

    /// Returns `true` if a queue of this domain may name a key of the other.
    pub fn reaches(self, key: Self) -> bool {
        self == key || self == Self::OF_DRIVER
    }
}

/// Completion queue number (24 bits).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cqn(pub u32);
/// Shared receive queue number (24 bits).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Srqn(pub u32);
/// Number of a receive queue of frames (24 bits).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Wqn(pub u32);
/// Number of a transport interface receive: a target of flow rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tirn(pub u32);
/// Queue pair number (24 bits).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Qpn(pub u32);
/// Memory key: index in the upper 24 bits, variant in the lower 8. Serves as lkey and rkey.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mkey(pub u32);

/// Access rights of a memory key or a QP, as `IBV_ACCESS_*` bits.
pub type Access = u32;

/// A registered memory region.
#[derive(Debug, Clone, Copy)]
pub struct MkeyAttr {
    /// Domain the key belongs to; a queue of another domain cannot use it.
    pub pd: Pdn,
    /// First byte in the process.
    pub va: u64,
    /// Address under which the wire and the WQEs name `va`.
    pub iova: u64,
    /// Length in bytes.
    pub length: u64,
    /// `IBV_ACCESS_*`.
    pub access: Access,
}

/// A completion queue in the program's memory.
#[derive(Debug, Clone, Copy)]
pub struct CqAttr {
    /// Address of the CQE buffer.
    pub buf: u64,
    /// Address of the doorbell record {consumer index, arm}.
    pub dbrec: u64,
    /// Number of CQEs, a power of two.
    pub cqe_count: u32,
    /// 64 or 128.
    pub cqe_size: u32,
    /// `None`, or the mini-CQE format (`MLX5DV_CQE_RES_FORMAT_*`) when created with compression.
    pub compression: Option<u8>,
    /// Each CQE is written over the one before, at the begin of the buffer.
    pub collapsed: bool,
    /// Timestamps are in real time: the nanoseconds since 1970 of the device's time 0. `None` for ticks of its
    /// clock.
    pub real_time: Option<u64>,
    /// UAR page whose CQ doorbell (offset 0x20) arms this CQ.
    pub uar: u32,
    /// Overrun is ignored instead of reported (`IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN`).
    pub ignore_overrun: bool,
    /// Completion vector: the interrupt that an adapter would use for events. All vectors are alike here.
    pub comp_vector: u32,
}

/// Kind of shared receive queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SrqKind {
    /// Plain.
    Basic,
    /// Extended reliable connected.
    Xrc {
        /// XRC domain number.
        xrcd: u32,
        /// CQ of its completions.
        cq: Cqn,
    },
    /// Tag matching.
    TagMatching {
        /// CQ of its completions.
        cq: Cqn,
        /// Entries of the tag list.
        max_tags: u32,
        /// List operations that may be outstanding.
        max_ops: u32,
    },
}

/// A shared receive queue in the program's memory.
#[derive(Debug, Clone, Copy)]
pub struct SrqAttr {
    /// Domain of its WQEs' keys.
    pub pd: Pdn,
    /// Kind, with what that kind needs.
    pub kind: SrqKind,
    /// Address of the WQE buffer.
    pub buf: u64,
    /// Address of the doorbell record (word 0: running count).
    pub dbrec: u64,
    /// Slots in the buffer, a power of two.
    pub wqe_count: u32,
    /// log2 of the stride in bytes.
    pub wqe_shift: u32,
    /// User index reported in the CQE by XRC and tag-matching SRQs.
    pub user_index: u32,
    /// Limit that raises `SrqLimit` once, 0 for none.
    pub limit: u32,
    /// WQEs follow each other in memory, whatever their links say.
    pub cyclic: bool,
}

/// Attributes of a raw packet queue pair besides its rings.
#[derive(Debug, Clone, Copy, Default)]
pub struct RawAttr {
    /// Transport domain: frames from it come back to it only with `loopback`.
    pub domain: u32,
    /// Own frames that come back.
    pub loopback: Loopback,
    /// Offloads of the receive side.
    pub offloads: RxOffloads,
}

/// Frames of the own transport domain that are received.
#[derive(Debug, Clone, Copy, Default)]
pub struct Loopback {
    /// Frames to one address.
    pub unicast: bool,
    /// Frames to groups.
    pub multicast: bool,
}

/// Offloads of a receive queue of frames.
#[derive(Debug, Clone, Copy, Default)]
pub struct RxOffloads {
    /// The outermost tag of a customer VLAN goes into the CQE.
    pub strip_vlan: bool,
    /// The frame check sequence is received, too.
    pub scatter_fcs: bool,
}

/// Strides of a receive queue that puts many frames into one WQE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Striding {
    /// log2 of the bytes of a stride.
    pub log_stride: u32,
    /// log2 of the strides of a WQE.
    pub log_strides: u32,
    /// Frames begin two bytes into their first stride.
    pub two_byte_shift: bool,
}

/// A receive queue of frames.
#[derive(Debug, Clone, Copy)]
pub struct RwqAttr {
    /// Domain of its WQEs' keys.
    pub pd: Pdn,
    /// CQ of its completions.
    pub cq: Cqn,
    /// Ring.
    pub ring: WqAttr,
    /// Address of the doorbell record (word 0).
    pub dbrec: u64,
    /// User index reported in every CQE.
    pub user_index: u32,
    /// Many frames in one WQE.
    pub striding: Option<Striding>,
    /// Offloads.
    pub offloads: RxOffloads,
}

/// State of a receive queue of frames (`enum ibv_wq_state`, same numbers).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum WqState {
    /// Reset.
    Reset = 0,
    /// Frames are received.
    Ready = 1,
    /// Error: WQEs are flushed.
    Err = 2,
}

/// A target of flow rules: a receive queue, or several with a hash that picks one.
#[derive(Debug, Clone)]
pub struct TirAttr {
    /// Transport domain.
    pub domain: u32,
    /// Own frames that come back.
    pub loopback: Loopback,
    /// Hash that picks the queue; without it the first queue is picked.
    pub hash: Option<HashAttr>,
    /// Queues, a power of two.
    pub queues: Vec<Wqn>,
}

/// Ring of a QP: address, WQE or WQEBB count (power of two, 0 for none) and log2 of the stride.
#[derive(Debug, Clone, Copy, Default)]
pub struct WqAttr {
    /// First byte in the program.
    pub buf: u64,
    /// Entries.
    pub count: u32,
    /// log2 bytes of one entry (6 for a send queue).
    pub shift: u32,
}

/// A queue pair in the program's memory.
#[derive(Debug, Clone, Copy)]
pub struct QpAttr {
    /// Domain.
    pub pd: Pdn,
    /// Service.
    pub service: Service,
    /// CQ of send completions.
    pub send_cq: Cqn,
    /// CQ of receive completions.
    pub recv_cq: Cqn,
    /// Shared receive queue instead of `rq`.
    pub srq: Option<Srqn>,
    /// Receive queue.
    pub rq: WqAttr,
    /// Send queue.
    pub sq: WqAttr,
    /// Address of the doorbell record {receive, send}.
    pub dbrec: u64,
    /// Register of the send queue.
    pub register: Register,
    /// User index reported in every CQE of this QP (CQE version 1).
    pub user_index: u32,
    /// Every send WQE raises a CQE (`IBV_SIGNAL_ALL_WR` is software's; this is `sq_signal_bits` in QPC).
    pub signal_all: bool,
    /// Receives of up to 32 (64-byte CQE) or 64 bytes (128-byte CQE) are put into the CQE.
    pub scatter_to_cqe_rq: bool,
    /// RDMA READ and atomic responses of up to 32 or 64 bytes are put into the CQE of the requester.
    pub scatter_to_cqe_sq: bool,
    /// Multicast datagrams that this QP sent are not delivered to itself.
    pub block_multicast_loopback: bool,
    /// Attributes for frames ([`Service::Raw`]).
    pub raw: RawAttr,
    /// Side of dynamic connections ([`Service::Dc`]).
    pub dc: DcAttr,
}

/// Side of a queue pair of dynamic connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DcAttr {
    /// The queue pair has another service.
    #[default]
    None,
    /// Initiator: it has a send queue only.
    Initiator {
        /// Streams in error that stop the queue; `None` if any error stops it.
        streams_in_error: Option<u32>,
    },
    /// Target: it has an SRQ and no queue of its own.
    Target {
        /// Key that initiators must name.
        key: u64,
    },
}

impl QpAttr {
    /// Returns the attributes of a target of dynamic connections, which has no queue of its own.
    pub fn of_target(pd: Pdn, cq: Cqn, srq: Srqn, key: u64) -> Self {
        Self {
            pd,
            service: Service::Dc,
            send_cq: cq,
            recv_cq: cq,
            srq: Some(srq),
            rq: WqAttr::default(),
            sq: WqAttr::default(),
            dbrec: 0,
            register: Register { page: 0, offset: Register::ANY },
            user_index: 0,
            signal_all: false,
            scatter_to_cqe_rq: false,
            scatter_to_cqe_sq: false,
            block_multicast_loopback: false,
            raw: RawAttr::default(),
            dc: DcAttr::Target { key },
        }
    }

    /// Returns the receive queue of a raw packet queue pair.
    pub fn receive_side(&self) -> RwqAttr {
        RwqAttr {
            pd: self.pd,
            cq: self.recv_cq,
            ring: self.rq,
            dbrec: self.dbrec,
            user_index: self.user_index,
            striding: None,
            offloads: self.raw.offloads,
        }
    }

    /// Returns the target that leads to its receive queue.
    pub fn target(&self, queue: Wqn) -> TirAttr {
        let RawAttr { domain, loopback, .. } = self.raw;
        TirAttr { domain, loopback, hash: None, queues: vec![queue] }
    }
}

/// A BlueFlame register: page of the UAR and byte offset of the first half within it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Register {
    /// UAR page index.
    pub page: u32,
    /// Byte offset in the page of the even half, or [`Register::ANY`].
    pub offset: u32,
}

impl Register {
    /// Any register of the page.
    pub const ANY: u32 = u32::MAX;
}

/// State of a QP (`enum ibv_qp_state`, same numbers).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum QpState {
    /// Reset.
    Reset = 0,
    /// Initialised: receives may be posted.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// Send queue drained.
    Sqd = 4,
    /// Send queue error (not RC).
    Sqe = 5,
    /// Error.
    Err = 6,
}

/// Destination of an address vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AddressVector {
    /// Destination LID (InfiniBand).
    pub dlid: u16,
    /// Service level.
    pub sl: u8,
    /// Source path bits.
    pub src_path_bits: u8,
    /// GRH, when `is_global`.
    pub grh: Option<Grh>,
}

/// Global route of an address vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grh {
    /// Destination GID.
    pub dgid: [u8; 16],
    /// Index of the source GID.
    pub sgid_index: u8,
    /// Flow label.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
}

/// QP context that MODIFY_QP changes; `None` leaves a field as it is.
#[derive(Debug, Clone, Copy, Default)]
pub struct QpModify {
    /// New state (already found legal by the kernel side's transition table).
    pub state: Option<QpState>,
    /// Remote access rights, `IBV_ACCESS_*`.
    pub access: Option<Access>,
    /// Partition key index.
    pub pkey_index: Option<u16>,
    /// Port.
    pub port: Option<u8>,
    /// Queue key (UD).
    pub qkey: Option<u32>,
    /// Address of the peer.
    pub av: Option<AddressVector>,
    /// Path MTU in bytes (256 to 4096).
    pub path_mtu: Option<u32>,
    /// Peer QP number.
    pub dest_qpn: Option<u32>,
    /// First PSN expected.
    pub rq_psn: Option<u32>,
    /// First PSN sent.
    pub sq_psn: Option<u32>,
    /// RDMA READs and atomics answered at once.
    pub max_dest_rd_atomic: Option<u8>,
    /// RDMA READs and atomics outstanding.
    pub max_rd_atomic: Option<u8>,
    /// RNR timer asked of the peer (5-bit code of the InfiniBand specification, table 45).
    pub min_rnr_timer: Option<u8>,
    /// Local ACK timeout (4.096 us * 2^n, 0 for none).
    pub timeout: Option<u8>,
    /// Transport retries.
    pub retry_cnt: Option<u8>,
    /// RNR retries, 7 for ever.
    pub rnr_retry: Option<u8>,
}

/// State for QUERY_CQ that the driver does not know.
#[derive(Debug, Clone, Copy)]
pub struct CqStatus {
    /// The queue overran.
    pub failed: bool,
    /// CQEs that the program has taken, by its record.
    pub consumer: u32,
    /// CQEs that were written.
    pub producer: u32,
    /// CQEs for which there is room, a power of two.
    pub cqe_count: u32,
}

/// State of a target of dynamic connections that the driver does not know.
#[derive(Debug, Clone, Copy)]
pub struct TargetStatus {
    /// It has ended its connections.
    pub drained: bool,
    /// Requests that named it with another key.
    pub key_violations: u32,
    /// Connections.
    pub connections: usize,
}

/// State for QUERY_QP that the kernel side does not know.
#[derive(Debug, Clone, Copy)]
pub struct QpStatus {
    /// State now: the NIC moves a QP to `Err` or `Sqe` by itself.
    pub state: QpState,
    /// Next PSN expected.
    pub rq_psn: u32,
    /// Next PSN to send.
    pub sq_psn: u32,
    /// Send queue is draining (SQD).
    pub sq_draining: bool,
}

/// Events that the NIC reports to the kernel driver through its event queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// An armed CQ got a CQE.
    Completion(Cqn),
    /// CQ overrun.
    CqError(Cqn),
    /// QP went to error by itself (`IBV_EVENT_QP_FATAL`).
    QpFatal(Qpn),
    /// Access violation at the responder (`IBV_EVENT_QP_ACCESS_ERR`).
    QpAccessError(Qpn),
    /// Invalid request at the responder (`IBV_EVENT_QP_REQ_ERR`).
    QpRequestError(Qpn),
    /// First packet on a QP in RTR (`IBV_EVENT_COMM_EST`).
    CommunicationEstablished(Qpn),
    /// Send queue drained (`IBV_EVENT_SQ_DRAINED`).
    SqDrained(Qpn),
    /// A QP in error took its last WQE from the SRQ (`IBV_EVENT_QP_LAST_WQE_REACHED`).
    LastWqe(Qpn),
    /// The SRQ fell below its limit (`IBV_EVENT_SRQ_LIMIT_REACHED`).
    SrqLimit(Srqn),
    /// SRQ error (`IBV_EVENT_SRQ_ERR`).
    SrqError(Srqn),
    /// A receive queue of frames went to error by itself (`IBV_EVENT_WQ_FATAL`).
    WqFatal(Wqn),
    /// A target has ended its connections.
    DctDrained(Qpn),
    /// A request named a target with another key.
    DctKeyViolation(Qpn),
    /// Port changed state.
    Port {
        /// `true` for `IBV_EVENT_PORT_ACTIVE`.
        up: bool,
    },
    /// Device was removed (`IBV_EVENT_DEVICE_FATAL`).
    DeviceFatal,
}
