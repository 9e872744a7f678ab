//! Targets of dynamic connections (DCT): context and commands.

use super::command::Request;

fields! {
    /// Context of a target (`dctc`).
    pub struct DctContext: 0x40 {
        /// State: 0 active, 1 draining, 2 drained.
        state: u8 = 0x00[27:24],
        /// Offload: 1 rendezvous.
        offload_type: u8 = 0x00[7:4],
        /// Number that its CQEs carry.
        user_index: u32 = 0x04[23:0],
        /// CQ.
        cqn: u32 = 0x08[23:0],
        /// Set of counters.
        counter_set_id: u8 = 0x0c[31:24],
        /// Atomics that are allowed: 1 for 8 bytes in the order of the standard, 2 within the device.
        atomic_mode: u8 = 0x0c[23:20],
        /// READ by initiators.
        rre: bool = 0x0c[19],
        /// WRITE by initiators.
        rwe: bool = 0x0c[18],
        /// Atomics by initiators.
        rae: bool = 0x0c[17],
        /// Receives in the CQE: 1 up to 32 bytes, 2 up to 64 bytes.
        cs_res: u8 = 0x10[23:16],
        /// RNR timer asked of initiators.
        min_rnr_nak: u8 = 0x10[12:8],
        /// SRQ, or SRQ for tag matching.
        srqn_xrqn: u32 = 0x14[23:0],
        /// Protection domain.
        pd: u32 = 0x18[23:0],
        /// Traffic class.
        tclass: u8 = 0x1c[31:24],
        /// Flow label.
        flow_label: u32 = 0x1c[19:0],
        /// Key that initiators must name.
        dc_access_key: u64 = 0x20,
        /// Path MTU: 1 for 256 bytes to 5 for 4096 bytes.
        mtu: u8 = 0x28[26:24],
        /// Port.
        port: u8 = 0x28[23:16],
        /// Index of the partition key.
        pkey_index: u16 = 0x28[15:0],
        /// Index of the own GID.
        my_addr_index: u8 = 0x2c[23:16],
        /// Hop limit.
        hop_limit: u8 = 0x2c[7:0],
        /// Requests with another key.
        dc_access_key_violation_count: u32 = 0x30,
        /// Service level, or priority of the VLAN tag (RoCE).
        eth_prio: u8 = 0x34[10:8],
    }
}

fields! {
    /// CREATE_DCT.
    pub struct CreateDct: 0x80 {
        /// Head.
        request: Request = 0x00,
        /// Context.
        context: DctContext = 0x10,
    }
}

fields! {
    /// QUERY_DCT, answer.
    pub struct QueryDctReply: 0x80 {
        /// Context.
        context: DctContext = 0x10,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_stands_where_it_should() {
        let context =
            DctContext { rre: true, rae: true, min_rnr_nak: 12, dc_access_key: 0x1ee7_a330, ..DctContext::ZERO };
        let bytes = CreateDct { context, ..CreateDct::ZERO }.to_bytes();
        assert_eq!(bytes[0x1c..0x24], [0, 0x0a, 0, 0, 0, 0, 0x0c, 0]);
        assert_eq!(bytes[0x30..0x38], [0, 0, 0, 0, 0x1e, 0xe7, 0xa3, 0x30]);
    }
}
