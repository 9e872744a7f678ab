//! Memory keys and UMEMs.

use super::command::Request;

fields! {
    /// Context of a memory key (`mkc`).
    pub struct MkeyContext: 0x40 {
        /// The key is made without memory.
        free: bool = 0x00[30],
        /// Upper bits of the access mode.
        access_mode_high: u8 = 0x00[28:26],
        /// The key may be changed by UMR.
        umr_en: bool = 0x00[15],
        /// Atomics by peers.
        atomic: bool = 0x00[14],
        /// WRITE by peers.
        remote_write: bool = 0x00[13],
        /// READ by peers.
        remote_read: bool = 0x00[12],
        /// Writes through the lkey.
        local_write: bool = 0x00[11],
        /// Reads through the lkey.
        local_read: bool = 0x00[10],
        /// [`access_mode`].
        access_mode: u8 = 0x00[9:8],
        /// The only queue pair that may use the key, or 0xffffff.
        qpn: u32 = 0x04[31:8],
        /// Lower eight bits of the key, as the driver chose them.
        variant: u8 = 0x04[7:0],
        /// All 64 bits of addresses are valid.
        length64: bool = 0x0c[31],
        /// A peer may invalidate the key.
        remote_invalidate: bool = 0x0c[24],
        /// Protection domain.
        pd: u32 = 0x0c[23:0],
        /// First address.
        start: u64 = 0x10,
        /// Bytes.
        len: u64 = 0x18,
        /// Size of the translation, in units of 16 bytes.
        translations: u32 = 0x34,
        /// log2 of the page size, or of the bytes of an entry of a KSM key.
        log_page_size: u8 = 0x38[5:0],
    }
}

/// Values of [`MkeyContext::access_mode`].
pub mod access_mode {
    /// Addresses are those of the bus.
    pub const PHYSICAL: u8 = 0;
    /// Addresses are translated by a page list.
    pub const MTT: u8 = 1;
    /// Entries name other keys, addresses and lengths.
    pub const KLM: u8 = 2;
    /// Entries name other keys and addresses; all have one length, a power of two.
    pub const KSM: u8 = 3;
}

fields! {
    /// CREATE_MKEY, before its pages.
    pub struct CreateMkey: 0x110 {
        /// Head.
        request: Request = 0x00,
        /// Pages may be missing (on-demand paging).
        pg_access: bool = 0x0c[31],
        /// The memory is a UMEM.
        umem_valid: bool = 0x0c[30],
        /// Context.
        context: MkeyContext = 0x10,
        /// Pages that follow, in units of 16 bytes.
        translations_actual: u32 = 0x60,
        /// UMEM.
        umem_id: u32 = 0x64,
        /// Offset in the UMEM.
        umem_offset: u64 = 0x68,
    }
}

fields! {
    /// QUERY_MKEY, answer.
    pub struct QueryMkeyReply: 0x110 {
        /// Context.
        context: MkeyContext = 0x10,
    }
}

fields! {
    /// CREATE_UMEM, before its pages.
    pub struct CreateUmem: 0x30 {
        /// Head.
        request: Request = 0x00,
        /// log2 of the page size, less 12.
        log_page_size: u8 = 0x20[4:0],
        /// Place in the first page, in bytes.
        page_offset: u32 = 0x24,
        /// Pages that follow.
        pages: u64 = 0x28,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_of_one_page() {
        let context = MkeyContext {
            local_write: true,
            local_read: true,
            access_mode: access_mode::MTT,
            qpn: 0xff_ffff,
            variant: 0x21,
            pd: 5,
            start: 0x7f00_0000_1000,
            len: 0x1000,
            translations: 1,
            log_page_size: 12,
            ..MkeyContext::ZERO
        };
        let bytes = context.to_bytes();
        assert_eq!(bytes[..8], [0, 0, 0x0d, 0, 0xff, 0xff, 0xff, 0x21]);
        assert_eq!(bytes[0xc..0x18], [0, 0, 0, 5, 0, 0, 0x7f, 0, 0, 0, 0x10, 0]);
        assert_eq!(bytes[0x34..0x3c], [0, 0, 0, 1, 0, 0, 0, 12]);
    }
}
