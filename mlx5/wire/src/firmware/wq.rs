//! Work queues, which receive queues, send queues and SRQs contain.

fields! {
    /// A work queue (`wq`).
    pub struct WorkQueue: 0xc0 {
        /// [`kind`].
        kind: u8 = 0x00[31:28],
        /// WQEs have signatures.
        signature: bool = 0x00[27],
        /// Place in the first page, in units of page size / 64.
        page_offset: u8 = 0x04[20:16],
        /// Limit that raises an event, 0 for none.
        lwm: u16 = 0x04[15:0],
        /// Protection domain.
        pd: u32 = 0x08[23:0],
        /// UAR page of its doorbells.
        uar_page: u32 = 0x0c[23:0],
        /// Doorbell record, or its offset in the UMEM.
        dbr_addr: u64 = 0x10,
        /// WQEs that the device has taken.
        hw_counter: u32 = 0x18,
        /// WQEs that were posted.
        sw_counter: u32 = 0x1c,
        /// log2 of the bytes of a WQE.
        log_stride: u8 = 0x20[19:16],
        /// log2 of the page size, less 12.
        log_page_size: u8 = 0x20[12:8],
        /// log2 of the WQEs.
        log_size: u8 = 0x20[4:0],
        /// The doorbell record lies in a UMEM.
        dbr_umem_valid: bool = 0x24[31],
        /// The WQEs lie in a UMEM.
        umem_valid: bool = 0x24[30],
        /// log2 of the strides of a WQE, less 9, modulo 16.
        log_strides: u8 = 0x24[11:8],
        /// Frames begin two bytes into their first stride.
        two_byte_shift: bool = 0x24[7],
        /// log2 of the bytes of a stride, less 6.
        log_stride_size: u8 = 0x24[2:0],
        /// UMEM of the doorbell record.
        dbr_umem_id: u32 = 0x28,
        /// UMEM of the WQEs.
        umem_id: u32 = 0x2c,
        /// Offset in the UMEM.
        umem_offset: u64 = 0x30,
    }
}

/// Values of [`WorkQueue::kind`].
pub mod kind {
    /// Linked list.
    pub const LINKED_LIST: u8 = 0;
    /// Ring.
    pub const CYCLIC: u8 = 1;
    /// Linked list of WQEs of many strides.
    pub const LINKED_LIST_STRIDING: u8 = 2;
    /// Ring of WQEs of many strides.
    pub const CYCLIC_STRIDING: u8 = 3;
}

/// States of receive queues, send queues and SRQs.
pub mod state {
    /// Reset.
    pub const RST: u8 = 0;
    /// Ready.
    pub const RDY: u8 = 1;
    /// Error.
    pub const ERR: u8 = 3;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_1024_wqes_of_64_bytes() {
        let queue = WorkQueue { pd: 1, dbr_addr: 0x1040, log_stride: 6, log_size: 10, lwm: 5, ..WorkQueue::ZERO };
        let bytes = queue.to_bytes();
        assert_eq!(bytes[4..8], [0, 0, 0, 5]);
        assert_eq!(bytes[0x14..0x24], [0, 0, 0x10, 0x40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 6, 0, 10]);
    }
}
