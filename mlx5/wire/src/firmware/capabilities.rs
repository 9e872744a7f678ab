//! Groups of capabilities, which QUERY_HCA_CAP returns and SET_HCA_CAP sets.

/// Bytes of a group.
pub const GROUP_SIZE: usize = 0x1000;
/// Offset of a group in the answer of QUERY_HCA_CAP and in SET_HCA_CAP.
pub const GROUP: usize = 0x10;

/// Numbers of groups. The modifier is twice the number, plus 1 for the present values instead of the largest.
pub mod group {
    /// [`General`](super::General).
    pub const GENERAL: u16 = 0;
    /// [`Ethernet`](super::Ethernet).
    pub const ETHERNET: u16 = 1;
    /// [`Atomic`](super::Atomic).
    pub const ATOMIC: u16 = 3;
    /// [`Roce`](super::Roce).
    pub const ROCE: u16 = 4;
    /// [`FlowTables`](super::FlowTables).
    pub const FLOW_TABLE: u16 = 7;
    /// [`DeviceMemory`](super::DeviceMemory).
    pub const DEVICE_MEMORY: u16 = 0xf;
}

fields! {
    /// Memory of the adapter (`device_mem_cap`).
    pub struct DeviceMemory: 0x44 {
        /// There is memory for programs.
        memic: bool = 0x00[31],
        /// log2 of the bytes that an allocation has at least.
        log_min_size: u8 = 0x04[20:16],
        /// log2 of the strictest alignment, in units of the smallest allocation.
        log_max_alignment: u8 = 0x04[7:0],
        /// Bytes.
        max_size: u32 = 0x14,
        /// Operations by address, a bit each.
        operations: u32 = 0x40,
    }
}

fields! {
    /// General capabilities (`cmd_hca_cap`).
    pub struct General: 0x200 {
        /// Number of the function.
        vhca_id: u16 = 0x04[15:0],
        /// log2 of the WQEs of an SRQ.
        log_max_srq_sz: u8 = 0x10[31:24],
        /// log2 of the WQEs of a queue.
        log_max_qp_sz: u8 = 0x10[23:16],
        /// log2 of the queue pairs.
        log_max_qp: u8 = 0x10[4:0],
        /// log2 of the SRQs.
        log_max_srq: u8 = 0x14[20:16],
        /// log2 of the CQEs of a CQ.
        log_max_cq_sz: u8 = 0x18[23:16],
        /// log2 of the CQs.
        log_max_cq: u8 = 0x18[4:0],
        /// log2 of the entries of an event queue.
        log_max_eq_sz: u8 = 0x1c[31:24],
        /// log2 of the memory keys.
        log_max_mkey: u8 = 0x1c[21:16],
        /// log2 of the event queues.
        log_max_eq: u8 = 0x1c[3:0],
        /// Lists of keys may have entries of one length (KSM).
        fixed_buffer_size: bool = 0x20[23],
        /// UMR writes to any place of a list.
        umr_extended_translation_offset: bool = 0x20[7],
        /// log2 of the entries of the longest list of a key.
        log_max_klm_list_size: u8 = 0x20[5:0],
        /// Commands change fields that stand behind the context of a queue pair.
        qpc_extension: bool = 0x24[29],
        /// log2 of READs answered at once by a target of dynamic connections.
        log_max_ra_req_dc: u8 = 0x24[21:16],
        /// log2 of READs outstanding of an initiator of dynamic connections.
        log_max_ra_res_dc: u8 = 0x24[5:0],
        /// log2 of READs outstanding.
        log_max_ra_req_qp: u8 = 0x28[21:16],
        /// log2 of READs answered at once.
        log_max_ra_res_qp: u8 = 0x28[5:0],
        /// GIDs: 8 << n.
        gid_table_size: u16 = 0x2c[15:0],
        /// QUERY_VPORT_COUNTER exists.
        vport_counters: bool = 0x30[30],
        /// Sets of queue counters.
        max_qp_cnt: u16 = 0x30[25:16],
        /// Partition keys: 128 << n.
        pkey_table_size: u16 = 0x30[15:0],
        /// Ports are asked with commands instead of datagrams.
        ib_virt: bool = 0x34[29],
        /// The register of registers of the board exists (MCAM).
        mcam_reg: bool = 0x34[22],
        /// The function has flow tables.
        nic_flow_table: bool = 0x34[25],
        /// 0 InfiniBand, 1 Ethernet.
        port_type: u8 = 0x34[9:8],
        /// Ports.
        num_ports: u8 = 0x34[7:0],
        /// log2 of the longest message.
        log_max_msg: u8 = 0x38[28:24],
        /// CQEs carry user indices.
        cqe_version: u8 = 0x3c[3:0],
        /// UMR cannot change the size of a translation, so keys are made with their pages.
        umr_modify_entity_size_disabled: bool = 0x40[24],
        /// Commands are checked.
        cmdif_checksum: u8 = 0x40[15:14],
        /// Dynamic connections.
        dct: bool = 0x40[5],
        /// Offloads of Ethernet.
        eth_net_offloads: bool = 0x40[3],
        /// RoCE.
        roce: bool = 0x40[2],
        /// Atomics.
        atomic: bool = 0x40[1],
        /// CQs change their size.
        cq_resize: bool = 0x44[30],
        /// CQ moderation.
        cq_moderation: bool = 0x44[29],
        /// Memory windows.
        imaicl: bool = 0x44[14],
        /// XRC.
        xrc: bool = 0x44[3],
        /// UD.
        ud: bool = 0x44[2],
        /// UC.
        uc: bool = 0x44[1],
        /// RC.
        rc: bool = 0x44[0],
        /// log2 of the size of the BAR in megabytes.
        uar_sz: u8 = 0x48[21:16],
        /// Objects of the driver itself may use UMEMs.
        umem_uid_0: bool = 0x48[13],
        /// log2 of the smallest page.
        log_pg_sz: u8 = 0x48[7:0],
        /// WQEs may be written to registers.
        bf: bool = 0x4c[31],
        /// SET_DRIVER_VERSION exists.
        driver_version: bool = 0x4c[30],
        /// log2 of the size of such a register.
        log_bf_reg_size: u8 = 0x4c[20:16],
        /// Bytes of a send WQE.
        max_wqe_sz_sq: u16 = 0x50[15:0],
        /// Bytes of a receive WQE.
        max_wqe_sz_rq: u16 = 0x54[15:0],
        /// Bytes of a send WQE of an initiator of dynamic connections.
        max_wqe_sz_sq_dc: u16 = 0x58[15:0],
        /// Queue pairs in a multicast group.
        max_qp_mcg: u32 = 0x5c[24:0],
        /// log2 of the multicast groups.
        log_max_mcg: u8 = 0x60[7:0],
        /// log2 of the transport domains.
        log_max_transport_domain: u8 = 0x64[28:24],
        /// log2 of the protection domains.
        log_max_pd: u8 = 0x64[20:16],
        /// log2 of the XRC domains.
        log_max_xrcd: u8 = 0x64[4:0],
        /// log2 of the receive queues.
        log_max_rq: u8 = 0x6c[28:24],
        /// log2 of the send queues.
        log_max_sq: u8 = 0x6c[20:16],
        /// log2 of the TIRs.
        log_max_tir: u8 = 0x6c[12:8],
        /// log2 of the TISs.
        log_max_tis: u8 = 0x6c[4:0],
        /// log2 of the RMPs.
        log_max_rmp: u8 = 0x70[28:24],
        /// log2 of the tables of receive queues.
        log_max_rqt: u8 = 0x70[20:16],
        /// log2 of the entries of such a table.
        log_max_rqt_size: u8 = 0x70[12:8],
        /// log2 of the WQEs of a work queue.
        log_max_wq_sz: u8 = 0x78[4:0],
        /// log2 of the VLANs that a port receives.
        log_max_vlan_list: u8 = 0x7c[20:16],
        /// log2 of the multicast addresses that a port receives.
        log_max_current_mc_list: u8 = 0x7c[12:8],
        /// log2 of the unicast addresses that a port receives.
        log_max_current_uc_list: u8 = 0x7c[4:0],
        /// Kinds of general objects, a bit each.
        general_obj_types: u64 = 0x80,
        /// log2 of the streams of an initiator of dynamic connections.
        log_max_dci_stream_channels: u8 = 0xb0[20:16],
        /// log2 of the streams in error that an initiator survives.
        log_max_dci_errored_streams: u8 = 0xb0[12:8],
        /// SRQs match tags.
        tag_matching: bool = 0xbc[15],
        /// The device does the rendezvous of matched messages.
        rndv_offload_rc: bool = 0xbc[14],
        /// log2 of the entries of a tag list.
        log_tag_matching_list_sz: u8 = 0xbc[12:8],
        /// log2 of the SRQs for tag matching.
        log_max_xrq: u8 = 0xbc[4:0],
        /// log2 of the users.
        log_max_uctx: u8 = 0x8c[28:24],
        /// log2 of the UMEMs.
        log_max_umem: u8 = 0x8c[20:16],
        /// Event queues, if not 0.
        max_num_eqs: u16 = 0x8c[15:0],
        /// log2 of the size of a UAR page, less 12.
        log_uar_page_sz: u16 = 0x90[15:0],
        /// Frequency of the clock.
        device_frequency_khz: u32 = 0x9c,
    }
}

fields! {
    /// Offloads of Ethernet.
    pub struct Ethernet: 0x10 {
        /// Checksums.
        csum_cap: bool = 0x00[31],
        /// VLAN tags.
        vlan_cap: bool = 0x00[30],
        /// A TIR may refuse the function's own frames.
        self_lb_en_modifiable: bool = 0x00[23],
        /// log2 of the largest segment that is split.
        max_lso_cap: u8 = 0x00[20:16],
        /// Headers in WQEs: 0 L2, 1 as the port says, 2 none.
        wqe_inline_mode: u8 = 0x00[13:12],
        /// log2 of the entries of a table of receive queues.
        rss_ind_tbl_cap: u8 = 0x00[11:8],
    }
}

fields! {
    /// Atomics.
    pub struct Atomic: 0x40 {
        /// Byte order of 8-byte operands: 0 big-endian, 1 that of the host.
        req_8b_endianness_mode: u8 = 0x08[31:30],
        /// Bit 0 compare and swap, bit 1 fetch and add.
        operations: u16 = 0x10[15:0],
        /// Bit 3: eight bytes.
        size_qp: u16 = 0x14[15:0],
        /// Bit 3: eight bytes, in dynamic connections.
        size_dc: u16 = 0x18[15:0],
    }
}

fields! {
    /// RoCE.
    pub struct Roce: 0x20 {
        /// Bit 1 IPv4, bit 2 IPv6.
        l3_type: u8 = 0x10[19:16],
        /// Bit 0 version 1, bit 2 version 2.
        version: u8 = 0x10[7:0],
        /// UDP port of version 2.
        dest_udp_port: u16 = 0x14[15:0],
        /// Highest UDP source port.
        max_src_udp_port: u16 = 0x18[31:16],
        /// Lowest UDP source port.
        min_src_udp_port: u16 = 0x18[15:0],
        /// Entries of the address table.
        address_table_size: u16 = 0x1c[15:0],
    }
}

fields! {
    /// Flow tables of the receive and the transmit side.
    pub struct FlowTables: 0x200 {
        /// Receive side.
        receive: FlowTable = 0x40,
        /// Transmit side.
        transmit: FlowTable = 0x100,
    }
}

fields! {
    /// Properties of flow tables (`flow_table_prop_layout`).
    pub struct FlowTable: 0x40 {
        /// Flow tables exist.
        support: bool = 0x00[31],
        /// Entries may be changed.
        modify: bool = 0x00[28],
        /// Root tables may be changed.
        modify_root: bool = 0x00[27],
        /// Tables may be entered.
        identified_miss: bool = 0x00[26],
        /// Tables may be chained.
        modify_table: bool = 0x00[25],
        /// log2 of the entries of a table.
        log_max_size: u8 = 0x04[29:24],
        /// Levels.
        max_level: u8 = 0x04[7:0],
        /// log2 of the tables.
        log_max_tables: u8 = 0x0c[7:0],
        /// log2 of the targets of an entry.
        log_max_destination: u8 = 0x10[7:0],
        /// log2 of the entries.
        log_max_flows: u8 = 0x14[7:0],
        /// Fields that entries may match, outer headers.
        match_outer: [u8; 16] = 0x20,
        /// Fields that entries may match, inner headers.
        match_inner: [u8; 16] = 0x30,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_drivers_read() {
        let group = General {
            log_max_qp: 18,
            log_max_qp_sz: 15,
            log_max_srq_sz: 15,
            port_type: 1,
            num_ports: 1,
            ib_virt: true,
            log_max_pd: 16,
            log_max_xrcd: 10,
            ..General::ZERO
        };
        let bytes = group.to_bytes();
        assert_eq!(bytes[0x10..0x14], [15, 15, 0, 18]);
        assert_eq!(bytes[0x34..0x38], [0x20, 0, 1, 1]);
        assert_eq!(bytes[0x64..0x68], [0, 16, 0, 10]);
        let roce = Roce { l3_type: 6, version: 5, ..Roce::ZERO };
        assert_eq!(roce.to_bytes()[0x10..0x14], [0, 6, 0, 5]);
    }
}
