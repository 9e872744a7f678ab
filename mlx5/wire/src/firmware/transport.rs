//! Queues and targets of frames: send queues, receive queues, their tables, TIRs and TISs.

use super::command::Request;
use super::wq::WorkQueue;

fields! {
    /// Context of a send queue (`sqc`).
    pub struct SqContext: 0xf0 {
        /// The reserved key may be used.
        reserved_lkey: bool = 0x00[31],
        /// WQEs are flushed in error.
        flush_in_error: bool = 0x00[28],
        /// [`state`](super::wq::state).
        state: u8 = 0x00[23:20],
        /// Number that its CQEs carry.
        user_index: u32 = 0x04[23:0],
        /// CQ.
        cqn: u32 = 0x08[23:0],
        /// TISs in the list.
        tis_count: u16 = 0x20[31:16],
        /// TIS.
        tisn: u32 = 0x2c[23:0],
        /// Queue.
        queue: WorkQueue = 0x30,
    }
}

fields! {
    /// CREATE_SQ, before its pages.
    pub struct CreateSq: 0x110 {
        /// Head.
        request: Request = 0x00,
        /// Context.
        context: SqContext = 0x20,
    }
}

fields! {
    /// Context of a receive queue (`rqc`).
    pub struct RqContext: 0xf0 {
        /// The reserved key may be used.
        reserved_lkey: bool = 0x00[31],
        /// The frame check sequence is received, too.
        scatter_fcs: bool = 0x00[29],
        /// VLAN tags stay in frames.
        vlan_strip_disable: bool = 0x00[28],
        /// Queue: 0 its own, 1 an RMP.
        mem_rq_type: u8 = 0x00[27:24],
        /// [`state`](super::wq::state).
        state: u8 = 0x00[23:20],
        /// WQEs are flushed in error.
        flush_in_error: bool = 0x00[18],
        /// Number that its CQEs carry.
        user_index: u32 = 0x04[23:0],
        /// CQ.
        cqn: u32 = 0x08[23:0],
        /// Set of counters.
        counter_set_id: u8 = 0x0c[31:24],
        /// RMP.
        rmpn: u32 = 0x10[23:0],
        /// Queue.
        queue: WorkQueue = 0x30,
    }
}

fields! {
    /// CREATE_RQ, before its pages.
    pub struct CreateRq: 0x110 {
        /// Head.
        request: Request = 0x00,
        /// Context.
        context: RqContext = 0x20,
    }
}

fields! {
    /// MODIFY_SQ and MODIFY_RQ, before the context.
    pub struct ModifyQueue: 0x20 {
        /// Head.
        request: Request = 0x00,
        /// State now.
        state: u8 = 0x08[31:28],
        /// Number.
        number: u32 = 0x08[23:0],
        /// Fields to change.
        bitmask: u64 = 0x10,
    }
}

fields! {
    /// QUERY_SQ, answer.
    pub struct QuerySqReply: 0x110 {
        /// Context.
        context: SqContext = 0x20,
    }
}

fields! {
    /// QUERY_RQ, answer.
    pub struct QueryRqReply: 0x110 {
        /// Context.
        context: RqContext = 0x20,
    }
}

fields! {
    /// CREATE_TIS. The context stands at 20.
    pub struct CreateTis: 0xc0 {
        /// Head.
        request: Request = 0x00,
        /// Priority.
        priority: u8 = 0x20[19:16],
        /// Transport domain.
        transport_domain: u32 = 0x44[23:0],
        /// Protection domain.
        pd: u32 = 0x4c[23:0],
    }
}

fields! {
    /// QUERY_TIS, answer. The context stands at 10.
    pub struct QueryTisReply: 0xb0 {
        /// Priority.
        priority: u8 = 0x10[19:16],
        /// Transport domain.
        transport_domain: u32 = 0x34[23:0],
        /// Protection domain.
        pd: u32 = 0x3c[23:0],
    }
}

fields! {
    /// MODIFY_TIS.
    pub struct ModifyTis: 0xc0 {
        /// Head.
        request: Request = 0x00,
        /// TIS.
        tisn: u32 = 0x08[23:0],
        /// Fields to change: bit 0 the priority.
        bitmask: u64 = 0x10,
        /// Priority.
        priority: u8 = 0x20[19:16],
    }
}

fields! {
    /// CREATE_TIR. The context stands at 20, as in the answer of QUERY_TIR.
    pub struct CreateTir: 0x110 {
        /// Head.
        request: Request = 0x00,
        /// Target: 0 a queue, 1 a table of queues.
        disp_type: u8 = 0x24[31:28],
        /// Queue.
        inline_rqn: u32 = 0x3c[23:0],
        /// Table.
        indirect_table: u32 = 0x40[23:0],
        /// Hash: 1 exclusive or, 2 Toeplitz.
        rx_hash_fn: u8 = 0x44[31:28],
        /// The domain's own frames come back: bit 0 those to one address, bit 1 those to groups.
        self_lb: u8 = 0x44[25:24],
        /// Transport domain.
        transport_domain: u32 = 0x44[23:0],
        /// Key of the hash.
        key: [u8; 40] = 0x48,
        /// Hashed addresses are those of IPv6.
        ipv6: bool = 0x70[31],
        /// Hashed ports are those of UDP.
        udp: bool = 0x70[30],
        /// Hashed fields: [`hash_field`].
        hash_fields: u32 = 0x70[29:0],
    }
}

fields! {
    /// MODIFY_TIR.
    pub struct ModifyTir: 0x110 {
        /// Head.
        request: Request = 0x00,
        /// TIR.
        tirn: u32 = 0x08[23:0],
        /// [`Self::self_lb`] changes.
        changes_self_lb: bool = 0x14[4],
        /// The domain's own frames come back, as in [`CreateTir::self_lb`].
        self_lb: u8 = 0x44[25:24],
    }
}

/// Fields that a TIR may hash.
pub mod hash_field {
    /// Source address.
    pub const SOURCE_IP: u32 = 1 << 0;
    /// Destination address.
    pub const DESTINATION_IP: u32 = 1 << 1;
    /// Source port.
    pub const SOURCE_PORT: u32 = 1 << 2;
    /// Destination port.
    pub const DESTINATION_PORT: u32 = 1 << 3;
}

fields! {
    /// CREATE_RQT, MODIFY_RQT and the answer of QUERY_RQT, before the queues. The context stands at 20, the list of
    /// queues at 110.
    pub struct RqTable: 0x110 {
        /// Head.
        request: Request = 0x00,
        /// Table, of MODIFY_RQT.
        rqtn: u32 = 0x08[23:0],
        /// Entries at most.
        max_size: u16 = 0x34[15:0],
        /// Entries.
        actual_size: u16 = 0x38[15:0],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_context_of_a_tis_stands_at_20_in_a_command_and_at_10_in_an_answer() {
        let created = CreateTis { priority: 3, transport_domain: 9, pd: 7, ..CreateTis::ZERO }.to_bytes();
        let answer = QueryTisReply { priority: 3, transport_domain: 9, pd: 7 }.to_bytes();
        assert_eq!(created[0x20..], answer[0x10..]);
        assert_eq!((answer[0x11], answer[0x37], answer[0x3f]), (3, 9, 7));
    }

    #[test]
    fn the_queue_of_a_send_queue_stands_at_50() {
        let queue = WorkQueue { log_size: 7, pd: 3, ..WorkQueue::ZERO };
        let context = SqContext { cqn: 0x400, tisn: 9, queue, ..SqContext::ZERO };
        let bytes = CreateSq { context, ..CreateSq::ZERO }.to_bytes();
        assert_eq!(bytes[0x28..0x2c], [0, 0, 4, 0]);
        assert_eq!((bytes[0x4f], bytes[0x5b], bytes[0x73]), (9, 3, 7));
    }
}
