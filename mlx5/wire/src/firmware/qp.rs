//! Queue pairs: context, address path and commands.

use super::command::Request;

fields! {
    /// Path to a peer (`ads`).
    pub struct AddressPath: 0x2c {
        /// Index of the partition key.
        pkey_index: u16 = 0x00[15:0],
        /// The path has a global route (InfiniBand).
        grh: bool = 0x04[23],
        /// Path bits of the own LID.
        mlid: u8 = 0x04[22:16],
        /// LID of the peer.
        rlid: u16 = 0x04[15:0],
        /// Local ACK timeout.
        ack_timeout: u8 = 0x08[31:27],
        /// Index of the own GID.
        src_addr_index: u8 = 0x08[23:16],
        /// Static rate.
        stat_rate: u8 = 0x08[11:8],
        /// Hop limit.
        hop_limit: u8 = 0x08[7:0],
        /// Traffic class.
        tclass: u8 = 0x0c[27:20],
        /// Flow label.
        flow_label: u32 = 0x0c[19:0],
        /// GID of the peer.
        rgid: [u8; 16] = 0x10,
        /// Differentiated services (RoCE).
        dscp: u8 = 0x20[21:16],
        /// UDP source port (RoCE v2).
        udp_sport: u16 = 0x20[15:0],
        /// Priority of the VLAN tag (RoCE).
        eth_prio: u8 = 0x24[30:28],
        /// Service level.
        sl: u8 = 0x24[27:24],
        /// Port.
        port: u8 = 0x24[23:16],
        /// MAC address of the peer (RoCE).
        rmac: u64 = 0x24[47:0],
    }
}

fields! {
    /// Context of a queue pair (`qpc`).
    pub struct QpContext: 0xe8 {
        /// [`state`].
        state: u8 = 0x00[31:28],
        /// [`service`].
        service: u8 = 0x00[23:16],
        /// State of path migration, 3 for migrated.
        pm_state: u8 = 0x00[12:11],
        /// Offload: 1 rendezvous.
        offload_type: u8 = 0x00[7:4],
        /// Protection domain.
        pd: u32 = 0x04[23:0],
        /// Path MTU: 1 for 256 bytes to 5 for 4096 bytes.
        mtu: u8 = 0x08[31:29],
        /// log2 of the longest message.
        log_msg_max: u8 = 0x08[28:24],
        /// log2 of the receive WQEs.
        log_rq_size: u8 = 0x08[22:19],
        /// log2 of the bytes of a receive WQE, less 4.
        log_rq_stride: u8 = 0x08[18:16],
        /// There is no send queue.
        no_sq: bool = 0x08[15],
        /// log2 of the basic blocks of the send queue.
        log_sq_size: u8 = 0x08[14:11],
        /// Timestamps: 1 default, 2 real time.
        timestamp_format: u8 = 0x08[7:6],
        /// The reserved key may be used.
        reserved_lkey: bool = 0x08[4],
        /// Set of counters.
        counter_set_id: u8 = 0x0c[31:24],
        /// UAR page of its doorbells.
        uar_page: u32 = 0x0c[23:0],
        /// Number that its CQEs carry.
        user_index: u32 = 0x10[23:0],
        /// log2 of the page size, less 12.
        log_page_size: u8 = 0x14[28:24],
        /// Queue pair of the peer.
        remote_qpn: u32 = 0x14[23:0],
        /// Path.
        path: AddressPath = 0x18,
        /// Alternate path.
        alternate_path: AddressPath = 0x44,
        /// One packet of 2^n asks for an acknowledgement.
        log_ack_req_freq: u8 = 0x70[31:28],
        /// log2 of READs and atomics outstanding.
        log_sra_max: u8 = 0x70[23:21],
        /// Transport retries.
        retry_count: u8 = 0x70[18:16],
        /// RNR retries, 7 for ever.
        rnr_retry: u8 = 0x70[15:13],
        /// First PSN to send.
        next_send_psn: u32 = 0x78[23:0],
        /// log2 of the streams of an initiator of dynamic connections.
        log_num_dci_stream_channels: u8 = 0x7c[28:24],
        /// CQ of send completions.
        cqn_snd: u32 = 0x7c[23:0],
        /// log2 of the streams in error that stop an initiator.
        log_num_dci_errored_streams: u8 = 0x80[28:24],
        /// log2 of READs and atomics answered at once.
        log_rra_max: u8 = 0x90[23:21],
        /// Atomics that are allowed: 1 for 8 bytes in the order of the standard, 2 within the device.
        atomic_mode: u8 = 0x90[19:16],
        /// READ by peers.
        rre: bool = 0x90[15],
        /// WRITE by peers.
        rwe: bool = 0x90[14],
        /// Atomics by peers.
        rae: bool = 0x90[13],
        /// Place in the first page, in units of page size / 64.
        page_offset: u8 = 0x90[11:6],
        /// RNR timer asked of the peer.
        min_rnr_nak: u8 = 0x94[28:24],
        /// First PSN expected.
        next_rcv_psn: u32 = 0x94[23:0],
        /// XRC domain.
        xrcd: u32 = 0x98[23:0],
        /// CQ of receive completions.
        cqn_rcv: u32 = 0x9c[23:0],
        /// Doorbell record, or its offset in the UMEM.
        dbr_addr: u64 = 0xa0,
        /// Queue key.
        q_key: u32 = 0xa8,
        /// Receive queue: [`rq_type`].
        rq_type: u8 = 0xac[26:24],
        /// SRQ.
        srqn: u32 = 0xac[23:0],
        /// Basic blocks that the device has executed, and that were posted.
        sq_counters: u32 = 0xb4,
        /// Receive WQEs that the device has taken.
        hw_rq_counter: u32 = 0xb8,
        /// READ and atomic answers in the CQE: 0x11 up to 32 bytes, 0x22 up to 64 bytes.
        scatter_requester: u8 = 0xc4[15:8],
        /// Receives in the CQE: 1 up to 32 bytes, 2 up to 64 bytes.
        scatter_responder: u8 = 0xc4[7:0],
        /// The doorbell record lies in a UMEM.
        dbr_umem_valid: bool = 0xd0[28],
        /// UMEM of the doorbell record.
        dbr_umem_id: u32 = 0xe4,
    }
}

/// Values of [`QpContext::service`].
pub mod service {
    /// Reliable connected.
    pub const RC: u8 = 0;
    /// Unreliable connected.
    pub const UC: u8 = 1;
    /// Unreliable datagram.
    pub const UD: u8 = 2;
    /// Initiator of dynamic connections.
    pub const DCI: u8 = 5;
    /// Subnet management, QP 0.
    pub const QP0: u8 = 7;
    /// General services, QP 1.
    pub const QP1: u8 = 8;
    /// Changes memory keys.
    pub const REG_UMR: u8 = 0xc;
}

/// Values of [`QpContext::state`].
pub mod state {
    /// Reset.
    pub const RST: u8 = 0;
    /// Initialised.
    pub const INIT: u8 = 1;
    /// Ready to receive.
    pub const RTR: u8 = 2;
    /// Ready to send.
    pub const RTS: u8 = 3;
    /// Send queue error.
    pub const SQER: u8 = 4;
    /// Send queue drained.
    pub const SQD: u8 = 5;
    /// Error.
    pub const ERR: u8 = 6;
}

/// Values of [`QpContext::rq_type`].
pub mod rq_type {
    /// A receive queue of its own.
    pub const OWN: u8 = 0;
    /// A shared receive queue.
    pub const SRQ: u8 = 1;
    /// A receive queue without WQEs.
    pub const NONE: u8 = 3;
}

/// Bits of the mask of optional fields (`MLX5_QP_OPTPAR_*`).
pub mod optional {
    /// READ by peers.
    pub const RRE: u32 = 1 << 1;
    /// Atomics by peers.
    pub const RAE: u32 = 1 << 2;
    /// WRITE by peers.
    pub const RWE: u32 = 1 << 3;
    /// Index of the partition key.
    pub const PKEY_INDEX: u32 = 1 << 4;
    /// Queue key.
    pub const Q_KEY: u32 = 1 << 5;
    /// RNR timer.
    pub const RNR_TIMEOUT: u32 = 1 << 6;
    /// Path.
    pub const PRIMARY_PATH: u32 = 1 << 7;
    /// READs outstanding.
    pub const SRA_MAX: u32 = 1 << 8;
    /// READs answered.
    pub const RRA_MAX: u32 = 1 << 9;
    /// Transport retries.
    pub const RETRY_COUNT: u32 = 1 << 12;
    /// RNR retries.
    pub const RNR_RETRY: u32 = 1 << 13;
    /// Local ACK timeout.
    pub const ACK_TIMEOUT: u32 = 1 << 14;
    /// Set of counters.
    pub const COUNTER_SET: u32 = 1 << 25;
    /// Stream of an initiator, in the mask of [`ModifyQpExtension`](super::ModifyQpExtension).
    pub const STREAM: u64 = 1 << 0;
}

fields! {
    /// CREATE_QP, before its pages.
    pub struct CreateQp: 0x110 {
        /// Head.
        request: Request = 0x00,
        /// Optional fields.
        optional: u32 = 0x10,
        /// Context.
        context: QpContext = 0x18,
        /// Offset in the UMEM.
        umem_offset: u64 = 0x100,
        /// UMEM of the queues.
        umem_id: u32 = 0x108,
        /// The queues lie in a UMEM.
        umem_valid: bool = 0x10c[31],
    }
}

fields! {
    /// The commands that change a queue pair.
    pub struct ModifyQp: 0x100 {
        /// Head.
        request: Request = 0x00,
        /// Queue pair.
        qpn: u32 = 0x08[23:0],
        /// Optional fields: [`optional`].
        optional: u32 = 0x10,
        /// Context.
        context: QpContext = 0x18,
    }
}

fields! {
    /// Fields behind the context of [`ModifyQp`].
    pub struct ModifyQpExtension: 0x114 {
        /// Head.
        request: Request = 0x00,
        /// These fields count.
        extended: bool = 0x08[31],
        /// Optional fields behind the context: bit 0 the stream.
        optional: u64 = 0x108,
        /// Stream of an initiator that goes on after an error.
        stream: u16 = 0x110[15:0],
    }
}

fields! {
    /// QUERY_QP, answer.
    pub struct QueryQpReply: 0x110 {
        /// Context.
        context: QpContext = 0x18,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_stands_where_it_should() {
        let path = AddressPath {
            rlid: 0x1234,
            src_addr_index: 3,
            hop_limit: 64,
            tclass: 0xff,
            flow_label: 1,
            port: 1,
            rmac: 0x02db_0000_0007,
            ..AddressPath::ZERO
        };
        let bytes = QpContext { path, remote_qpn: 0x40, ..QpContext::ZERO }.to_bytes();
        assert_eq!(bytes[0x14..0x20], [0, 0, 0, 0x40, 0, 0, 0, 0, 0, 0, 0x12, 0x34]);
        assert_eq!(bytes[0x20..0x28], [0, 3, 0, 64, 0x0f, 0xf0, 0, 1]);
        assert_eq!(bytes[0x3c..0x44], [0, 1, 0x02, 0xdb, 0, 0, 0, 7]);
    }

    #[test]
    fn queues_stand_where_they_should() {
        let context = QpContext {
            state: state::RTS,
            service: service::UD,
            log_rq_size: 8,
            log_rq_stride: 2,
            log_sq_size: 7,
            rq_type: rq_type::SRQ,
            srqn: 0x1000,
            ..QpContext::ZERO
        };
        let bytes = context.to_bytes();
        assert_eq!(bytes[..4], [0x30, 2, 0, 0]);
        assert_eq!(bytes[8..12], [0, 0x42, 0x38, 0]);
        assert_eq!(bytes[0xac..0xb0], [1, 0, 0x10, 0]);
    }
}
