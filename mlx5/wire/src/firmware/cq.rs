//! Completion queues: context and commands.

use super::command::Request;

fields! {
    /// Context of a completion queue (`cqc`).
    pub struct CqContext: 0x40 {
        /// State: 0 good, 9 overrun.
        status: u8 = 0x00[31:28],
        /// The doorbell record lies in a UMEM.
        dbr_umem_valid: bool = 0x00[25],
        /// Size of a CQE: 0 for 64 bytes, 1 for 128 bytes.
        cqe_size: u8 = 0x00[23:21],
        /// One CQE that is overwritten.
        collapsed: bool = 0x00[20],
        /// An overrun is ignored.
        overrun_ignore: bool = 0x00[17],
        /// CQEs are compressed.
        compression: bool = 0x00[14],
        /// [`mini_format`].
        mini_cqe_format: u8 = 0x00[13:12],
        /// Armed or fired.
        state: u8 = 0x00[11:8],
        /// Place of mini-CQEs: 0 in arrays of eight, 1 as ConnectX-7 has them.
        compression_layout: u8 = 0x00[6:0],
        /// UMEM of the doorbell record.
        dbr_umem_id: u32 = 0x04,
        /// Place in the first page, in units of page size / 64.
        page_offset: u8 = 0x08[11:6],
        /// log2 of the CQEs.
        log_size: u8 = 0x0c[28:24],
        /// UAR page of its doorbells.
        uar_page: u32 = 0x0c[23:0],
        /// Moderation: time.
        period: u16 = 0x10[27:16],
        /// Moderation: CQEs.
        max_count: u16 = 0x10[15:0],
        /// Event queue.
        eqn: u8 = 0x14[7:0],
        /// log2 of the page size, less 12.
        log_page_size: u8 = 0x18[28:24],
        /// CQEs that the program has taken.
        consumer_counter: u32 = 0x28[23:0],
        /// CQEs that the device has written.
        producer_counter: u32 = 0x2c[23:0],
        /// Doorbell record, or its offset in the UMEM.
        dbr_addr: u64 = 0x38,
    }
}

fields! {
    /// CREATE_CQ, before its pages.
    pub struct CreateCq: 0x110 {
        /// Head.
        request: Request = 0x00,
        /// Context.
        context: CqContext = 0x10,
        /// Offset in the UMEM.
        umem_offset: u64 = 0x50,
        /// UMEM of the CQEs.
        umem_id: u32 = 0x58,
        /// The CQEs lie in a UMEM.
        umem_valid: bool = 0x5c[31],
    }
}

fields! {
    /// MODIFY_CQ, before its pages. Modifier 0 changes the moderation, modifier 1 resizes.
    pub struct ModifyCq: 0x110 {
        /// Head.
        request: Request = 0x00,
        /// CQ.
        cqn: u32 = 0x08[23:0],
        /// Fields to change.
        field_select: u32 = 0x0c,
        /// Context.
        context: CqContext = 0x10,
        /// Offset in the UMEM.
        umem_offset: u64 = 0x50,
        /// UMEM of the CQEs.
        umem_id: u32 = 0x58,
        /// The CQEs lie in a UMEM.
        umem_valid: bool = 0x5c[31],
    }
}

/// Values of [`CqContext::mini_cqe_format`].
pub mod mini_format {
    /// Hash of a frame.
    pub const HASH: u8 = 0;
    /// Checksum.
    pub const CHECKSUM: u8 = 1;
    /// Checksum and index of a stride.
    pub const STRIDE_INDEX: u8 = 3;
}

/// Modifiers of MODIFY_CQ.
pub mod modify {
    /// Changes the moderation.
    pub const MODERATE: u16 = 0;
    /// Resizes.
    pub const RESIZE: u16 = 1;
}

fields! {
    /// QUERY_CQ, answer.
    pub struct QueryCqReply: 0x110 {
        /// Context.
        context: CqContext = 0x10,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_of_64_cqes_of_128_bytes() {
        let context = CqContext {
            cqe_size: 1,
            log_size: 6,
            uar_page: 0x11,
            eqn: 0x12,
            page_offset: 3,
            dbr_addr: 0x1122_3344_5566_7788,
            ..CqContext::ZERO
        };
        let bytes = context.to_bytes();
        assert_eq!(bytes[..4], [0, 0x20, 0, 0]);
        assert_eq!(bytes[8..0x18], [0, 0, 0, 0xc0, 6, 0, 0, 0x11, 0, 0, 0, 0, 0, 0, 0, 0x12]);
        assert_eq!(bytes[0x38..], [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88]);
    }
}
