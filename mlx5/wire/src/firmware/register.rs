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
    /// Module and lanes of the port.
    pub const PMLP: u16 = 0x5002;
    /// Type and speed of the port.
    pub const PTYS: u16 = 0x5004;
    /// State of the port.
    pub const PAOS: u16 = 0x5006;
    /// Flow control.
    pub const PFCC: u16 = 0x5007;
    /// Counters of the port.
    pub const PPCNT: u16 = 0x5008;
    /// Virtual lanes.
    pub const PVLC: u16 = 0x500f;
    /// Forward error correction.
    pub const PPLM: u16 = 0x5023;
    /// Why the port is down.
    pub const PDDR: u16 = 0x5031;
    /// Description of the node.
    pub const NODE_DESC: u16 = 0x6001;
    /// Byte order of the host.
    pub const HOST_ENDIANNESS: u16 = 0x7004;
    /// Identity of the board.
    pub const MGIR: u16 = 0x9020;
    /// Memory of the module.
    pub const MCIA: u16 = 0x9014;
    /// Components of the firmware.
    pub const MCQS: u16 = 0x9060;
    /// Information on a component.
    pub const MCQI: u16 = 0x9061;
    /// Registers of the board that exist.
    pub const MCAM: u16 = 0x907f;
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

fields! {
    /// [`id::MCIA`], before the bytes.
    pub struct Mcia: 0x10 {
        /// Module.
        module: u8 = 0x00[23:16],
        /// Result: 0 ok, 1 no memory of the module.
        status: u8 = 0x00[7:0],
        /// Bytes.
        size: u16 = 0x08[15:0],
    }
}

fields! {
    /// [`id::MCQS`].
    pub struct Mcqs: 0x10 {
        /// There is no component after this one.
        last: bool = 0x00[31],
        /// Component.
        component: u16 = 0x00[15:0],
        /// Kind: 1 image of the firmware.
        identifier: u16 = 0x04[15:0],
        /// Update: 0 none.
        update_state: u8 = 0x08[3:0],
    }
}

fields! {
    /// [`id::MCQI`], before the information.
    pub struct Mcqi: 0x18 {
        /// Component.
        component: u16 = 0x00[15:0],
        /// Information: 1 version.
        info_type: u8 = 0x08[4:0],
        /// Bytes of the information.
        info_size: u32 = 0x0c,
        /// Bytes that the driver takes.
        data_size: u16 = 0x14[15:0],
    }
}

fields! {
    /// Version of a component, information of [`id::MCQI`].
    pub struct McqiVersion: 0x80 {
        /// Version: 8 bits major, 8 minor, 16 sub-minor.
        version: u32 = 0x04,
    }
}

fields! {
    /// [`id::MCAM`].
    pub struct Mcam: 0x48 {
        /// Group of registers: 0 those from 0x9000 to 0x907f.
        group: u8 = 0x00[7:0],
        /// [`id::MCQI`] exists.
        mcqi: bool = 0x08[1],
        /// [`id::MCQS`] exists.
        mcqs: bool = 0x08[0],
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
