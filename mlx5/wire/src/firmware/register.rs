//! Registers of the port and the board, which ACCESS_REG reads and writes.

use super::command::{Reply, Request};

fields! {
    /// ACCESS_REG, before the register; the modifier is 0 for a write, 1 for a read.
    pub struct AccessRegister: 0x10 {
        /// Head.
        request: Request = 0x00,
        /// Register: [`id`].
        id: u16 = 0x08[15:0],
        /// Argument.
        argument: u32 = 0x0c,
    }
}

fields! {
    /// ACCESS_REG, answer before the register.
    pub struct AccessRegisterReply: 0x10 {
        /// Head.
        reply: Reply = 0x00,
    }
}

/// Numbers of registers (`MLX5_REG_*`).
pub mod id {
    /// MTU of the port.
    pub const PMTU: u16 = 0x5003;
    /// Type and speed of the port.
    pub const PTYS: u16 = 0x5004;
    /// State of the port.
    pub const PAOS: u16 = 0x5006;
    /// Counters of the port.
    pub const PPCNT: u16 = 0x5008;
    /// Virtual lanes.
    pub const PVLC: u16 = 0x500f;
    /// Description of the node.
    pub const NODE_DESC: u16 = 0x6001;
    /// Byte order of the host.
    pub const HOST_ENDIANNESS: u16 = 0x7004;
    /// Identity of the board.
    pub const MGIR: u16 = 0x9020;
}

fields! {
    /// [`id::PMTU`].
    pub struct Pmtu: 0x10 {
        /// Port.
        port: u8 = 0x00[23:16],
        /// Largest MTU.
        max_mtu: u16 = 0x04[31:16],
        /// MTU that the driver asked for.
        admin_mtu: u16 = 0x08[31:16],
        /// MTU.
        oper_mtu: u16 = 0x0c[31:16],
    }
}

fields! {
    /// [`id::PTYS`].
    pub struct Ptys: 0x40 {
        /// Port.
        port: u8 = 0x00[23:16],
        /// Protocol: 1 InfiniBand, 4 Ethernet.
        protocol: u8 = 0x00[2:0],
        /// Ethernet: speeds that the port has.
        eth_capability: u32 = 0x0c,
        /// InfiniBand: widths and speeds that the port has.
        ib_width_capability: u16 = 0x10[31:16],
        /// Speeds.
        ib_speed_capability: u16 = 0x10[15:0],
        /// Ethernet: speeds that the driver allows.
        eth_admin: u32 = 0x18,
        /// InfiniBand: widths that the driver allows.
        ib_width_admin: u16 = 0x1c[31:16],
        /// Speeds that the driver allows.
        ib_speed_admin: u16 = 0x1c[15:0],
        /// Ethernet: speed.
        eth_oper: u32 = 0x24,
        /// InfiniBand: width.
        ib_width_oper: u16 = 0x28[31:16],
        /// Speed.
        ib_speed_oper: u16 = 0x28[15:0],
    }
}

fields! {
    /// [`id::PAOS`].
    pub struct Paos: 0x10 {
        /// Port.
        port: u8 = 0x00[23:16],
        /// State that the driver asks for: 1 up, 2 down, 0 as it is.
        admin: u8 = 0x00[11:8],
        /// State: 1 up, 2 down.
        oper: u8 = 0x00[3:0],
        /// The driver's state is valid.
        admin_enable: bool = 0x04[31],
    }
}

fields! {
    /// [`id::PVLC`].
    pub struct Pvlc: 0x10 {
        /// Port.
        port: u8 = 0x00[23:16],
        /// Virtual lanes that the port has: 1, 2, 4, 8 or 15.
        hardware: u8 = 0x04[3:0],
        /// Virtual lanes that the driver allows.
        admin: u8 = 0x08[3:0],
        /// Virtual lanes in use.
        oper: u8 = 0x0c[3:0],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_of_infiniband_and_ethernet() {
        let register =
            Ptys { port: 1, protocol: 4, eth_oper: 1 << 23, ib_width_oper: 4, ib_speed_oper: 0x20, ..Ptys::ZERO };
        let bytes = register.to_bytes();
        assert_eq!(bytes[..4], [0, 1, 0, 4]);
        assert_eq!(bytes[0x24..0x2c], [0, 0x80, 0, 0, 0, 4, 0, 0x20]);
    }
}
