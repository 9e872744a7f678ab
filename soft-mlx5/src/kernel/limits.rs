//! Limits of the device, as a ConnectX-5 Ex reports them, and identity of the adapter.

use std::ops::RangeInclusive;

/// PCI vendor in the form of an IEEE company id, as QUERY_DEVICE wants it.
pub const VENDOR_ID: u32 = 0x02c9;
/// MT4121, ConnectX-5 Ex.
pub const PART_ID: u32 = 4121;
/// Firmware version, major, minor and sub-minor.
pub const FW_VERSION: [u16; 3] = [16, 35, 2000];

/// QP, CQ, SRQ and other object counts.
pub const MAX_QP: u32 = 1 << 18;
pub const MAX_CQ: u32 = 1 << 24;
pub const MAX_MR: u32 = 1 << 24;
pub const MAX_PD: u32 = 1 << 16;
pub const MAX_SRQ: u32 = 1 << 23;
pub const MAX_AH: u32 = i32::MAX as u32;

/// Entries of the largest work queue.
pub const MAX_QP_WR: u32 = 1 << 15;
/// Slots of the largest SRQ.
pub const MAX_SRQ_SLOTS: u32 = 1 << 15;
/// CQEs of the largest CQ.
pub const MAX_CQ_SLOTS: u32 = 1 << 22;

/// Bytes of the largest send WQE.
pub const MAX_SQ_DESC: u32 = 1024;
/// Bytes of the largest receive WQE.
pub const MAX_RQ_DESC: u32 = 512;
/// SGEs that fit after a control and a remote address segment within 512 bytes.
pub const MAX_SGE: u32 = 30;
/// SGEs of the largest receive WQE of an SRQ, whose first 16 bytes are the link.
pub const MAX_SRQ_SGE: u32 = MAX_RQ_DESC / 16 - 1;

/// log2 of the bytes of a stride, and of the strides of a WQE, in a striding receive queue.
pub const LOG_STRIDE: RangeInclusive<u32> = 6..=13;
pub const LOG_STRIDES: RangeInclusive<u32> = 9..=16;
/// log2 of the entries of the largest indirection table, and how many tables there may be.
pub const LOG_INDIRECTION: u32 = 11;
pub const MAX_INDIRECTION_TABLES: u32 = 1 << 20;
/// Receive work queues.
pub const MAX_WQ: u32 = 1 << 18;

/// Responder resources per QP.
pub const MAX_RD_ATOMIC: u8 = 16;

/// Tags that a list holds, list operations that may be outstanding, and bytes of the largest header of
/// a rendezvous.
pub const MAX_TAGS: u32 = 127;
pub const MAX_TAG_OPS: u32 = 8192;
pub const MAX_RENDEZVOUS_HEADER: u32 = 64;

/// Bytes of device memory, and log2 of the blocks of 64 bytes at which a piece may have to start.
pub const MAX_DM_SIZE: u64 = 1 << 18;
pub const LOG_MAX_DM_ALIGNMENT: u32 = 6;

/// Multicast groups, and QPs in each.
pub const MAX_MCAST_GROUPS: u32 = 1 << 21;
pub const MAX_MCAST_QPS: u32 = 240;

/// Entries of the partition key table; only the first holds a key.
pub const PKEYS: u16 = 128;
/// The default partition, full member.
pub const DEFAULT_PKEY: u16 = 0xffff;
/// Entries of the GID table on InfiniBand and on Ethernet.
pub const GIDS_INFINIBAND: u32 = 8;
pub const GIDS_ETHERNET: u32 = 255;

/// Bytes of the longest message.
pub const MAX_MESSAGE: u32 = 1 << 30;
