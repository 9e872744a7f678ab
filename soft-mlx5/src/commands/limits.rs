//! Limits of the device in the terms of verbs, and identity of the adapter. What a capability says comes from there.

use std::ops::RangeInclusive;

pub use super::capabilities::{DEFAULT_PKEY, FW_VERSION, GIDS_ETHERNET, GIDS_INFINIBAND, PKEYS, VENDOR_ID};
use super::capabilities::{DEVICE_MEMORY, GENERAL, GENERAL_ETHERNET, LOG_TAGS};

/// MT4121, ConnectX-5 Ex.
pub const PART_ID: u32 = 4121;

/// QP, CQ, SRQ and other object counts.
pub const MAX_QP: u32 = 1 << GENERAL.log_max_qp;
pub const MAX_CQ: u32 = 1 << GENERAL.log_max_cq;
pub const MAX_MR: u32 = 1 << GENERAL.log_max_mkey;
pub const MAX_PD: u32 = 1 << GENERAL.log_max_pd;
pub const MAX_SRQ: u32 = 1 << GENERAL.log_max_srq;
pub const MAX_AH: u32 = i32::MAX as u32;

/// Entries of the largest work queue.
pub const MAX_QP_WR: u32 = 1 << GENERAL.log_max_qp_sz;
/// Slots of the largest SRQ.
pub const MAX_SRQ_SLOTS: u32 = 1 << GENERAL.log_max_srq_sz;
/// CQEs of the largest CQ.
pub const MAX_CQ_SLOTS: u32 = 1 << GENERAL.log_max_cq_sz;

/// Bytes of the largest send WQE.
pub const MAX_SQ_DESC: u32 = GENERAL.max_wqe_sz_sq as u32;
/// Bytes of the largest receive WQE.
pub const MAX_RQ_DESC: u32 = GENERAL.max_wqe_sz_rq as u32;
/// SGEs that fit after a control and a remote address segment within 512 bytes.
pub const MAX_SGE: u32 = 30;
/// SGEs of the largest receive WQE of an SRQ, whose first 16 bytes are the link.
pub const MAX_SRQ_SGE: u32 = MAX_RQ_DESC / 16 - 1;

/// log2 of the bytes of a stride, and of the strides of a WQE, in a striding receive queue.
pub const LOG_STRIDE: RangeInclusive<u32> = 6..=13;
pub const LOG_STRIDES: RangeInclusive<u32> = 9..=16;
/// log2 of the entries of the largest indirection table, and how many tables there may be.
pub const LOG_INDIRECTION: u32 = GENERAL_ETHERNET.log_max_rqt_size as u32;
pub const MAX_INDIRECTION_TABLES: u32 = 1 << GENERAL_ETHERNET.log_max_rqt;
/// Receive work queues.
pub const MAX_WQ: u32 = 1 << GENERAL_ETHERNET.log_max_rq;

/// Responder resources per QP.
pub const MAX_RD_ATOMIC: u8 = 1 << GENERAL.log_max_ra_req_qp;

/// Tags that a list holds, list operations that may be outstanding, and bytes of the largest header of
/// a rendezvous.
pub const MAX_TAGS: u32 = (1 << LOG_TAGS) - 1;
pub const MAX_TAG_OPS: u32 = 8192;
pub const MAX_RENDEZVOUS_HEADER: u32 = 64;

/// Bytes of device memory, and log2 of the blocks of 64 bytes at which a piece may have to start.
pub const MAX_DM_SIZE: u64 = DEVICE_MEMORY.max_size as u64;
pub const LOG_MAX_DM_ALIGNMENT: u32 = DEVICE_MEMORY.log_max_alignment as u32;

/// Multicast groups, and QPs in each.
pub const MAX_MCAST_GROUPS: u32 = 1 << GENERAL.log_max_mcg;
pub const MAX_MCAST_QPS: u32 = GENERAL.max_qp_mcg;
/// QPs of all multicast groups that commands attach; few in unit tests, which reach the limit.
pub const MAX_MCAST_MEMBERS: usize = if cfg!(test) { 64 } else { 1 << GENERAL.log_max_mcg };

/// Bytes of the longest message.
pub const MAX_MESSAGE: u32 = 1 << GENERAL.log_max_msg;

/// Capabilities of an InfiniBand port: automatic migration, system image GUID, extended speeds, connection manager,
/// client reregistration and the like, as a ConnectX on a managed fabric shows them.
pub const PORT_CAPS_INFINIBAND: u32 = 0x2651_e848;
/// Capabilities of an Ethernet port: IP-based GIDs and connection manager.
pub const PORT_CAPS_ETHERNET: u32 = 1 << 26 | 1 << 16;
