//! Numbers of commands and attributes (`rdma/rdma_netlink.h`).

/// `enum rdma_nldev_command`.
pub mod command {
    pub const GET: u8 = 1;
    pub const PORT_GET: u8 = 5;
    pub const SYS_GET: u8 = 6;
    pub const RES_GET: u8 = 9;
    pub const RES_QP_GET: u8 = 10;
    pub const RES_CM_ID_GET: u8 = 11;
    pub const RES_CQ_GET: u8 = 12;
    pub const RES_MR_GET: u8 = 13;
    pub const RES_PD_GET: u8 = 14;
    pub const GET_CHARDEV: u8 = 15;
    pub const STAT_SET: u8 = 16;
    pub const STAT_GET: u8 = 17;
    pub const STAT_DEL: u8 = 18;
    pub const RES_CTX_GET: u8 = 22;
    pub const RES_SRQ_GET: u8 = 23;
    /// Commands that the kernel has, those that change something among them.
    pub const LAST: u8 = 28;
}

/// `enum rdma_nldev_attr`.
pub mod attr {
    pub const DEV_INDEX: u16 = 1;
    pub const DEV_NAME: u16 = 2;
    pub const PORT_INDEX: u16 = 3;
    pub const CAP_FLAGS: u16 = 4;
    pub const FW_VERSION: u16 = 5;
    pub const NODE_GUID: u16 = 6;
    pub const SYS_IMAGE_GUID: u16 = 7;
    pub const SUBNET_PREFIX: u16 = 8;
    pub const LID: u16 = 9;
    pub const SM_LID: u16 = 10;
    pub const LMC: u16 = 11;
    pub const PORT_STATE: u16 = 12;
    pub const PORT_PHYS_STATE: u16 = 13;
    pub const DEV_NODE_TYPE: u16 = 14;
    pub const RES_SUMMARY: u16 = 15;
    pub const RES_SUMMARY_ENTRY: u16 = 16;
    pub const RES_SUMMARY_ENTRY_NAME: u16 = 17;
    pub const RES_SUMMARY_ENTRY_CURR: u16 = 18;
    pub const RES_QP: u16 = 19;
    pub const RES_QP_ENTRY: u16 = 20;
    pub const RES_LQPN: u16 = 21;
    pub const RES_RQPN: u16 = 22;
    pub const RES_RQ_PSN: u16 = 23;
    pub const RES_SQ_PSN: u16 = 24;
    pub const RES_PATH_MIG_STATE: u16 = 25;
    pub const RES_TYPE: u16 = 26;
    pub const RES_STATE: u16 = 27;
    pub const RES_PID: u16 = 28;
    pub const RES_CM_ID: u16 = 30;
    pub const RES_CQ: u16 = 35;
    pub const RES_CQE: u16 = 37;
    pub const RES_USECNT: u16 = 38;
    pub const RES_MR: u16 = 40;
    pub const RES_RKEY: u16 = 42;
    pub const RES_LKEY: u16 = 43;
    pub const RES_MRLEN: u16 = 45;
    pub const RES_PD: u16 = 46;
    pub const NDEV_INDEX: u16 = 50;
    pub const NDEV_NAME: u16 = 51;
    pub const RES_PDN: u16 = 60;
    pub const RES_CQN: u16 = 61;
    pub const RES_MRN: u16 = 62;
    pub const RES_CTXN: u16 = 64;
    pub const NETNS_MODE: u16 = 66;
    pub const DEV_PROTOCOL: u16 = 67;
    pub const CHARDEV_TYPE: u16 = 69;
    pub const CHARDEV_NAME: u16 = 70;
    pub const CHARDEV_ABI: u16 = 71;
    pub const CHARDEV: u16 = 72;
    pub const UVERBS_DRIVER_ID: u16 = 73;
    pub const STAT_MODE: u16 = 74;
    pub const STAT_COUNTER: u16 = 77;
    pub const STAT_COUNTER_ENTRY: u16 = 78;
    pub const STAT_COUNTER_ID: u16 = 79;
    pub const STAT_HWCOUNTERS: u16 = 80;
    pub const STAT_HWCOUNTER_ENTRY: u16 = 81;
    pub const STAT_HWCOUNTER_ENTRY_NAME: u16 = 82;
    pub const STAT_HWCOUNTER_ENTRY_VALUE: u16 = 83;
    pub const STAT_RES: u16 = 75;
    pub const RES_CTX: u16 = 86;
    pub const RES_SRQ: u16 = 88;
    pub const RES_SRQN: u16 = 90;
    pub const COPY_ON_FORK: u16 = 93;
}
