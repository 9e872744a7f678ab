//! Shared receive queues: receive memory pools (RMP), which an SRQ is from ISSI 1 on, XRC SRQs, and SRQs for tag
//! matching (XRQ).

use super::command::Request;
use super::wq::WorkQueue;

fields! {
    /// Context of a receive memory pool (`rmpc`).
    pub struct RmpContext: 0xf0 {
        /// [`state`](super::wq::state).
        state: u8 = 0x00[23:20],
        /// WQEs have no next segment.
        basic_cyclic: bool = 0x04[31],
        /// Queue.
        queue: WorkQueue = 0x30,
    }
}

fields! {
    /// CREATE_RMP, before its pages.
    pub struct CreateRmp: 0x110 {
        /// Head.
        request: Request = 0x00,
        /// Context.
        context: RmpContext = 0x20,
    }
}

fields! {
    /// MODIFY_RMP.
    pub struct ModifyRmp: 0x110 {
        /// Head.
        request: Request = 0x00,
        /// State now.
        state: u8 = 0x08[31:28],
        /// Number.
        rmpn: u32 = 0x08[23:0],
        /// Fields to change: bit 0 the limit.
        bitmask: u64 = 0x10,
        /// Context.
        context: RmpContext = 0x20,
    }
}

fields! {
    /// QUERY_RMP, answer.
    pub struct QueryRmpReply: 0x110 {
        /// Context.
        context: RmpContext = 0x20,
    }
}

fields! {
    /// Context of an XRC SRQ (`xrc_srqc`).
    pub struct XrcSrqContext: 0x40 {
        /// State: 0 good, 1 error.
        state: u8 = 0x00[31:28],
        /// log2 of the WQEs.
        log_size: u8 = 0x00[27:24],
        /// log2 of the bytes of a WQE, less 4.
        log_stride: u8 = 0x04[26:24],
        /// XRC domain.
        xrcd: u32 = 0x04[23:0],
        /// Place in the first page, in units of page size / 64.
        page_offset: u8 = 0x08[31:26],
        /// The doorbell record lies in a UMEM.
        dbr_umem_valid: bool = 0x08[24],
        /// CQ.
        cqn: u32 = 0x08[23:0],
        /// log2 of the page size, less 12.
        log_page_size: u8 = 0x10[29:24],
        /// Number that its CQEs carry.
        user_index: u32 = 0x10[23:0],
        /// Protection domain.
        pd: u32 = 0x18[23:0],
        /// Limit that raises an event.
        lwm: u16 = 0x1c[31:16],
        /// WQEs that are posted.
        wqe_count: u16 = 0x1c[15:0],
        /// Doorbell record, or its offset in the UMEM.
        dbr_addr: u64 = 0x28,
    }
}

fields! {
    /// CREATE_XRC_SRQ, before its pages.
    pub struct CreateXrcSrq: 0x110 {
        /// Head.
        request: Request = 0x00,
        /// Context.
        context: XrcSrqContext = 0x10,
    }
}

fields! {
    /// QUERY_XRC_SRQ, answer.
    pub struct QueryXrcSrqReply: 0x110 {
        /// Context.
        context: XrcSrqContext = 0x10,
    }
}

fields! {
    /// Context of an SRQ for tag matching (`xrqc`).
    pub struct XrqContext: 0x140 {
        /// State: 0 good, 1 error.
        state: u8 = 0x00[31:28],
        /// Topology: 1 tag matching.
        topology: u8 = 0x00[11:8],
        /// Offload: 1 rendezvous.
        offload: u8 = 0x00[3:0],
        /// Number that its CQEs carry.
        user_index: u32 = 0x04[23:0],
        /// CQ.
        cqn: u32 = 0x08[23:0],
        /// Initiators of dynamic connections send to the SRQ.
        dc: bool = 0x0c[0],
        /// log2 of the entries of the tag list.
        log_list_size: u8 = 0x20[31:28],
        /// Entry of the next append.
        append_next_index: u16 = 0x20[15:0],
        /// Unexpected messages that software has handled.
        sw_phase: u16 = 0x24[31:16],
        /// Unexpected messages.
        hw_phase: u16 = 0x24[15:0],
        /// Queue.
        queue: WorkQueue = 0x80,
    }
}

fields! {
    /// CREATE_XRQ, before its pages.
    pub struct CreateXrq: 0x150 {
        /// Head.
        request: Request = 0x00,
        /// Context.
        context: XrqContext = 0x10,
    }
}

fields! {
    /// QUERY_XRQ, answer.
    pub struct QueryXrqReply: 0x150 {
        /// Context.
        context: XrqContext = 0x10,
    }
}

fields! {
    /// ARM_RQ, ARM_XRC_SRQ, ARM_XRQ.
    pub struct ArmSrq: 0x10 {
        /// Head.
        request: Request = 0x00,
        /// SRQ.
        srqn: u32 = 0x08[23:0],
        /// Limit.
        lwm: u16 = 0x0c[15:0],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_tags_stands_at_30_and_the_queue_at_90() {
        let queue = WorkQueue { log_size: 7, ..WorkQueue::ZERO };
        let context = XrqContext { topology: 1, offload: 1, cqn: 0x1234, log_list_size: 7, queue, ..XrqContext::ZERO };
        let bytes = CreateXrq { context, ..CreateXrq::ZERO }.to_bytes();
        assert_eq!(bytes[0x10..0x1c], [0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0x12, 0x34]);
        assert_eq!((bytes[0x30], bytes[0xb3]), (0x70, 7));
    }

    #[test]
    fn the_queue_of_a_pool_stands_at_50() {
        let queue = WorkQueue { log_size: 7, ..WorkQueue::ZERO };
        let context = RmpContext { state: 1, queue, ..RmpContext::ZERO };
        let bytes = CreateRmp { context, ..CreateRmp::ZERO }.to_bytes();
        assert_eq!((bytes[0x21], bytes[0x73]), (0x10, 7));
    }
}
