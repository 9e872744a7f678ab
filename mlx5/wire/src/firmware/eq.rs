//! Event queues: context, commands, and the entries.

use super::command::Request;

fields! {
    /// Context of an event queue (`eqc`).
    pub struct EqContext: 0x40 {
        /// State: 0 good, 10 write failure.
        status: u8 = 0x00[31:28],
        /// An overrun is ignored.
        overrun_ignore: bool = 0x00[17],
        /// Armed (9) or fired (10).
        state: u8 = 0x00[11:8],
        /// Place in the first page, in units of page size / 64.
        page_offset: u8 = 0x08[11:6],
        /// log2 of the entries.
        log_size: u8 = 0x0c[28:24],
        /// UAR page of its doorbells.
        uar_page: u32 = 0x0c[23:0],
        /// Interrupt vector.
        interrupt: u8 = 0x14[7:0],
        /// log2 of the page size, less 12.
        log_page_size: u8 = 0x18[28:24],
        /// Entries that the driver has taken.
        consumer_counter: u32 = 0x28[23:0],
        /// Entries that the device has written.
        producer_counter: u32 = 0x2c[23:0],
    }
}

fields! {
    /// CREATE_EQ, before its pages.
    pub struct CreateEq: 0x110 {
        /// Head.
        request: Request = 0x00,
        /// Context.
        context: EqContext = 0x10,
        /// Bit `n`: events of type `n` below 64 come here.
        event_mask: u64 = 0x58,
    }
}

fields! {
    /// QUERY_EQ, answer. The mask of events stands between head and pages as in CREATE_EQ.
    pub struct QueryEqReply: 0x110 {
        /// Context.
        context: EqContext = 0x10,
        /// Events.
        event_mask: u64 = 0x58,
    }
}

fields! {
    /// An entry of an event queue.
    pub struct Eqe: 0x40 {
        /// Type of the event.
        event: u8 = 0x00[23:16],
        /// Kind of it.
        sub_type: u8 = 0x00[7:0],
        /// Data of the event, by type.
        data: [u8; 28] = 0x20,
        /// Lap of the ring: 0 in the first.
        owner: bool = 0x3c[0],
    }
}

fields! {
    /// Data of a completion event: the CQ. Queue pairs and SRQs stand there, too.
    pub struct QueueData: 0x1c {
        /// Type of a queue: 0 queue pair, 1 receive queue, 2 send queue.
        queue_type: u8 = 0x14[31:24],
        /// Number.
        number: u32 = 0x18[23:0],
    }
}

fields! {
    /// Data of [`event::CQ_ERROR`].
    pub struct CqErrorData: 0x1c {
        /// CQ.
        cqn: u32 = 0x00[23:0],
        /// Reason: 1 overrun, 2 access violation.
        syndrome: u8 = 0x08[7:0],
    }
}

fields! {
    /// Data of [`event::DCT_DRAINED`] and [`event::DCT_KEY_VIOLATION`].
    pub struct DctData: 0x1c {
        /// Target.
        dctn: u32 = 0x18[23:0],
    }
}

fields! {
    /// Data of [`event::COMMAND`].
    pub struct CommandData: 0x1c {
        /// Bit `n`: the command in slot `n` is complete.
        slots: u32 = 0x00,
    }
}

fields! {
    /// Data of [`event::PORT_CHANGE`].
    pub struct PortData: 0x1c {
        /// Port.
        port: u8 = 0x08[31:28],
    }
}

/// Types of events.
pub mod event {
    /// A CQ got a CQE.
    pub const COMPLETION: u8 = 0x00;
    /// First packet in RTR.
    pub const COMMUNICATION_ESTABLISHED: u8 = 0x02;
    /// A send queue is drained.
    pub const SQ_DRAINED: u8 = 0x03;
    /// CQ overrun.
    pub const CQ_ERROR: u8 = 0x04;
    /// A queue went to error by itself.
    pub const WQ_CATASTROPHIC: u8 = 0x05;
    /// The function failed.
    pub const INTERNAL_ERROR: u8 = 0x08;
    /// The port changed.
    pub const PORT_CHANGE: u8 = 0x09;
    /// A command is complete.
    pub const COMMAND: u8 = 0x0a;
    /// Invalid request at a responder.
    pub const WQ_INVALID_REQUEST: u8 = 0x10;
    /// Access violation at a responder.
    pub const WQ_ACCESS_ERROR: u8 = 0x11;
    /// SRQ error.
    pub const SRQ_CATASTROPHIC: u8 = 0x12;
    /// A queue pair took its last WQE from an SRQ.
    pub const SRQ_LAST_WQE: u8 = 0x13;
    /// An SRQ fell below its limit.
    pub const SRQ_LIMIT: u8 = 0x14;

    /// A target has ended its connections.
    pub const DCT_DRAINED: u8 = 0x1c;
    /// A request named a target with another key.
    pub const DCT_KEY_VIOLATION: u8 = 0x1d;

    /// [`PORT_CHANGE`]: down.
    pub const PORT_DOWN: u8 = 1;
    /// [`PORT_CHANGE`]: active.
    pub const PORT_ACTIVE: u8 = 4;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_of_a_completion() {
        let data = QueueData { number: 0x12_3456, ..QueueData::ZERO }.to_bytes();
        let eqe = Eqe { event: event::PORT_CHANGE, sub_type: 4, data, owner: true }.to_bytes();
        assert_eq!(eqe[..4], [0, 9, 0, 4]);
        assert_eq!(eqe[0x38..], [0, 0x12, 0x34, 0x56, 0, 0, 0, 1]);
    }
}
