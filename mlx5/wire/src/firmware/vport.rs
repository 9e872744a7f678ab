//! Virtual ports: of InfiniBand, and of Ethernet with the address table of RoCE.

use super::command::{Reply, Request};

fields! {
    /// The commands that ask about a virtual port.
    pub struct QueryVport: 0x10 {
        /// Head.
        request: Request = 0x00,
        /// The port of another function.
        other_vport: bool = 0x08[31],
        /// Physical port, 0 or 1.
        port: u8 = 0x08[19:16],
        /// Function.
        vport: u16 = 0x08[15:0],
        /// Kind of the address list (QUERY_NIC_VPORT_CONTEXT).
        list_type: u8 = 0x0c[26:24],
        /// Index in a table; 0xffff for all entries.
        index: u16 = 0x0c[15:0],
    }
}

fields! {
    /// Context of a port of InfiniBand (`hca_vport_context`).
    pub struct HcaVportContext: 0x200 {
        /// Fields to change.
        field_select: u32 = 0x00,
        /// Packets need a global route.
        grh_required: bool = 0x20[28],
        /// Physical state: 5 link up, 3 disabled.
        physical_state: u8 = 0x20[15:12],
        /// State the driver asks for.
        state_policy: u8 = 0x20[11:8],
        /// State of the port: 1 down, 4 active.
        port_state: u8 = 0x20[7:4],
        /// State of the virtual port: 1 down, 4 active.
        vport_state: u8 = 0x20[3:0],
        /// GUID of the board.
        system_image_guid: u64 = 0x28,
        /// GUID of the port.
        port_guid: u64 = 0x30,
        /// GUID of the function.
        node_guid: u64 = 0x38,
        /// Capabilities of PortInfo.
        cap_mask1: u32 = 0x40,
        /// Capabilities that may be changed.
        cap_mask1_perm: u32 = 0x44,
        /// LID.
        lid: u16 = 0x60[31:16],
        /// log2 of the LIDs.
        lmc: u8 = 0x60[7:5],
        /// Time that the subnet manager needs.
        subnet_timeout: u8 = 0x60[4:0],
        /// LID of the subnet manager.
        sm_lid: u16 = 0x64[31:16],
        /// Service level to the subnet manager.
        sm_sl: u8 = 0x64[15:12],
    }
}

fields! {
    /// QUERY_HCA_VPORT_CONTEXT, answer.
    pub struct QueryHcaVportReply: 0x210 {
        /// Context.
        context: HcaVportContext = 0x10,
    }
}

fields! {
    /// QUERY_HCA_VPORT_GID, answer before the GIDs.
    pub struct GidsReply: 0x10 {
        /// Head.
        reply: Reply = 0x00,
        /// GIDs that follow.
        count: u16 = 0x0c[31:16],
    }
}

fields! {
    /// QUERY_VPORT_STATE, answer.
    pub struct QueryVportStateReply: 0x10 {
        /// State that the driver asked for: 0 down, 1 up, 2 follow the port.
        admin_state: u8 = 0x0c[7:4],
        /// State: 0 down, 1 up.
        state: u8 = 0x0c[3:0],
    }
}

fields! {
    /// MODIFY_VPORT_STATE.
    pub struct ModifyVportState: 0x10 {
        /// Head.
        request: Request = 0x00,
        /// State: 0 down, 1 up, 2 follow the port.
        admin_state: u8 = 0x0c[7:4],
    }
}

fields! {
    /// Context of a port of Ethernet (`nic_vport_context`), before its address list.
    pub struct NicVportContext: 0x100 {
        /// Headers that must stand in a WQE: 0 L2, 1 IP, 2 TCP.
        min_wqe_inline_mode: u8 = 0x00[26:24],
        /// Own frames to one address do not come back.
        disable_uc_local_lb: bool = 0x00[1],
        /// RoCE is on.
        roce_en: bool = 0x00[0],
        /// MTU.
        mtu: u16 = 0x24[15:0],
        /// GUID of the board.
        system_image_guid: u64 = 0x28,
        /// GUID of the port.
        port_guid: u64 = 0x30,
        /// GUID of the function.
        node_guid: u64 = 0x38,
        /// All unicast, multicast, and other frames are received.
        promiscuous: u8 = 0xf0[31:29],
        /// Kind of the address list: 0 unicast, 1 multicast, 2 VLAN.
        list_type: u8 = 0xf0[26:24],
        /// Entries of the address list.
        list_size: u16 = 0xf0[11:0],
        /// MAC address.
        mac: u64 = 0xf4[47:0],
    }
}

fields! {
    /// QUERY_NIC_VPORT_CONTEXT, answer.
    pub struct QueryNicVportReply: 0x110 {
        /// Context.
        context: NicVportContext = 0x10,
    }
}

fields! {
    /// MODIFY_NIC_VPORT_CONTEXT, before the address list.
    pub struct ModifyNicVport: 0x200 {
        /// Head.
        request: Request = 0x00,
        /// Fields to change: [`field`].
        field_select: u32 = 0x0c,
        /// Context.
        context: NicVportContext = 0x100,
    }
}

/// Fields of MODIFY_NIC_VPORT_CONTEXT.
pub mod field {
    /// RoCE on or off.
    pub const ROCE: u32 = 1 << 1;
    /// The address list.
    pub const ADDRESSES: u32 = 1 << 2;
    /// The MAC address.
    pub const MAC: u32 = 1 << 3;
    /// Promiscuous.
    pub const PROMISCUOUS: u32 = 1 << 4;
    /// Events of changes.
    pub const CHANGE_EVENT: u32 = 1 << 5;
    /// The MTU.
    pub const MTU: u32 = 1 << 6;
    /// Own frames that come back.
    pub const LOOPBACK: u32 = 3 << 10;
}

fields! {
    /// SET_ROCE_ADDRESS; QUERY_ROCE_ADDRESS is its first 10 bytes (hexadecimal).
    pub struct SetRoceAddress: 0x30 {
        /// Head.
        request: Request = 0x00,
        /// Index in the table.
        index: u16 = 0x08[31:16],
        /// Entry.
        address: RoceAddress = 0x10,
    }
}

fields! {
    /// An entry of the address table of RoCE (`roce_addr_layout`).
    pub struct RoceAddress: 0x20 {
        /// GID.
        gid: [u8; 16] = 0x00,
        /// Frames have a VLAN tag.
        vlan_valid: bool = 0x10[28],
        /// VLAN.
        vlan_id: u16 = 0x10[27:16],
        /// MAC address.
        mac: u64 = 0x10[47:0],
        /// 0 IPv4, 1 IPv6.
        l3_type: u8 = 0x18[11:8],
        /// 0 RoCE v1, 2 RoCE v2.
        version: u8 = 0x18[7:0],
    }
}

fields! {
    /// QUERY_ROCE_ADDRESS, answer.
    pub struct QueryRoceAddressReply: 0x30 {
        /// Head.
        reply: Reply = 0x00,
        /// Entry.
        address: RoceAddress = 0x10,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mac_addresses_take_48_bits_of_two_words() {
        let context = NicVportContext { roce_en: true, mac: 0x02db_0000_0007, ..NicVportContext::ZERO };
        let bytes = context.to_bytes();
        assert_eq!(bytes[3], 1);
        assert_eq!(bytes[0xf4..0xfc], [0, 0, 0x02, 0xdb, 0, 0, 0, 7]);
        let address = RoceAddress {
            vlan_valid: true,
            vlan_id: 5,
            mac: 0x02db_0000_0007,
            l3_type: 1,
            version: 2,
            ..RoceAddress::ZERO
        };
        let bytes = address.to_bytes();
        assert_eq!(bytes[0x10..0x18], [0x10, 5, 0x02, 0xdb, 0, 0, 0, 7]);
        assert_eq!(bytes[0x1a..0x1c], [1, 2]);
    }

    #[test]
    fn a_port_of_infiniband() {
        let context =
            HcaVportContext { physical_state: 5, port_state: 4, vport_state: 4, lid: 7, ..HcaVportContext::ZERO };
        let bytes = context.to_bytes();
        assert_eq!(bytes[0x20..0x24], [0, 0, 0x50, 0x44]);
        assert_eq!(bytes[0x60..0x64], [0, 7, 0, 0]);
    }
}
