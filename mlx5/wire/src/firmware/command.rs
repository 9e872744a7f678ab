//! Headers of commands and answers, opcodes, and the formats that many commands share.

macro_rules! opcodes {
    ($( $(#[$meta:meta])* $name:ident = $code:literal, )*) => {
        impl Opcode {
            $( $(#[$meta])* pub const $name: Self = Self($code); )*

            /// Returns the name of the command (`MLX5_CMD_OP_*`), or `None` if it has none here.
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $( Self::$name => Some(stringify!($name)), )*
                    _ => None,
                }
            }
        }
    };
}

/// Number of a command (`MLX5_CMD_OP_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Opcode(pub u16);

opcodes! {
    /// Returns a group of capabilities.
    QUERY_HCA_CAP = 0x100,
    /// Returns the identity of the board.
    QUERY_ADAPTER = 0x101,
    /// Starts the function.
    INIT_HCA = 0x102,
    /// Stops the function.
    TEARDOWN_HCA = 0x103,
    /// Makes the function usable.
    ENABLE_HCA = 0x104,
    /// Undoes ENABLE_HCA.
    DISABLE_HCA = 0x105,
    /// Returns how many pages the function needs.
    QUERY_PAGES = 0x107,
    /// Gives pages to the function, or takes them back.
    MANAGE_PAGES = 0x108,
    /// Sets capabilities before INIT_HCA.
    SET_HCA_CAP = 0x109,
    /// Returns the versions of the interface.
    QUERY_ISSI = 0x10a,
    /// Chooses a version of the interface.
    SET_ISSI = 0x10b,
    /// Names the driver.
    SET_DRIVER_VERSION = 0x10d,
    /// Registers memory.
    CREATE_MKEY = 0x200,
    /// Returns the context of a memory key.
    QUERY_MKEY = 0x201,
    /// Ends a registration.
    DESTROY_MKEY = 0x202,
    /// Returns reserved memory keys.
    QUERY_SPECIAL_CONTEXTS = 0x203,
    /// Makes an event queue.
    CREATE_EQ = 0x301,
    /// Destroys an event queue.
    DESTROY_EQ = 0x302,
    /// Returns the context of an event queue.
    QUERY_EQ = 0x303,
    /// Makes a completion queue.
    CREATE_CQ = 0x400,
    /// Destroys a completion queue.
    DESTROY_CQ = 0x401,
    /// Returns the context of a completion queue.
    QUERY_CQ = 0x402,
    /// Moderates or resizes a completion queue.
    MODIFY_CQ = 0x403,
    /// Makes a queue pair.
    CREATE_QP = 0x500,
    /// Destroys a queue pair.
    DESTROY_QP = 0x501,
    /// Reset to Init.
    RST2INIT_QP = 0x502,
    /// Init to RTR.
    INIT2RTR_QP = 0x503,
    /// RTR to RTS.
    RTR2RTS_QP = 0x504,
    /// Changes a queue pair in RTS.
    RTS2RTS_QP = 0x505,
    /// Send queue error to RTS.
    SQERR2RTS_QP = 0x506,
    /// Any state to error.
    MOVE_QP_TO_ERR = 0x507,
    /// Any state to Reset.
    MOVE_QP_TO_RST = 0x50a,
    /// Returns the context of a queue pair.
    QUERY_QP = 0x50b,
    /// Executes a management datagram.
    MAD_IFC = 0x50d,
    /// Changes a queue pair in Init.
    INIT2INIT_QP = 0x50e,
    /// Sets the limit of an SRQ.
    ARM_RQ = 0x703,
    /// Makes an XRC SRQ.
    CREATE_XRC_SRQ = 0x705,
    /// Destroys an XRC SRQ.
    DESTROY_XRC_SRQ = 0x706,
    /// Returns the context of an XRC SRQ.
    QUERY_XRC_SRQ = 0x707,
    /// Sets the limit of an XRC SRQ.
    ARM_XRC_SRQ = 0x708,
    /// Makes a target of dynamic connections.
    CREATE_DCT = 0x710,
    /// Destroys a target of dynamic connections.
    DESTROY_DCT = 0x711,
    /// Ends the connections of a target.
    DRAIN_DCT = 0x712,
    /// Returns the context of a target.
    QUERY_DCT = 0x713,
    /// Asks for an event at the next request that names a target with another key.
    ARM_DCT_FOR_KEY_VIOLATION = 0x714,
    /// Makes an SRQ for tag matching.
    CREATE_XRQ = 0x717,
    /// Destroys an SRQ for tag matching.
    DESTROY_XRQ = 0x718,
    /// Returns the context of an SRQ for tag matching.
    QUERY_XRQ = 0x719,
    /// Sets the limit of an SRQ for tag matching.
    ARM_XRQ = 0x71a,
    /// Returns the state of a virtual port.
    QUERY_VPORT_STATE = 0x750,
    /// Sets the state of a virtual port.
    MODIFY_VPORT_STATE = 0x751,
    /// Returns the context of a virtual Ethernet port.
    QUERY_NIC_VPORT_CONTEXT = 0x754,
    /// Changes the context of a virtual Ethernet port.
    MODIFY_NIC_VPORT_CONTEXT = 0x755,
    /// Returns an entry of the address table of RoCE.
    QUERY_ROCE_ADDRESS = 0x760,
    /// Sets an entry of the address table of RoCE.
    SET_ROCE_ADDRESS = 0x761,
    /// Returns the context of a virtual InfiniBand port.
    QUERY_HCA_VPORT_CONTEXT = 0x762,
    /// Changes the context of a virtual InfiniBand port.
    MODIFY_HCA_VPORT_CONTEXT = 0x763,
    /// Returns GIDs of a virtual InfiniBand port.
    QUERY_HCA_VPORT_GID = 0x764,
    /// Returns partition keys of a virtual InfiniBand port.
    QUERY_HCA_VPORT_PKEY = 0x765,
    /// Returns the counters of a virtual port.
    QUERY_VPORT_COUNTER = 0x770,
    /// Makes a set of queue counters.
    ALLOC_Q_COUNTER = 0x771,
    /// Frees a set of queue counters.
    DEALLOC_Q_COUNTER = 0x772,
    /// Returns a set of queue counters.
    QUERY_Q_COUNTER = 0x773,
    /// Makes a protection domain.
    ALLOC_PD = 0x800,
    /// Frees a protection domain.
    DEALLOC_PD = 0x801,
    /// Makes a UAR page.
    ALLOC_UAR = 0x802,
    /// Frees a UAR page.
    DEALLOC_UAR = 0x803,
    /// Reads or writes a register of the port or the board.
    ACCESS_REG = 0x805,
    /// Joins a multicast group.
    ATTACH_TO_MCG = 0x806,
    /// Leaves a multicast group.
    DETACH_FROM_MCG = 0x807,
    /// Makes an XRC domain.
    ALLOC_XRCD = 0x80e,
    /// Frees an XRC domain.
    DEALLOC_XRCD = 0x80f,
    /// Makes a transport domain.
    ALLOC_TRANSPORT_DOMAIN = 0x816,
    /// Frees a transport domain.
    DEALLOC_TRANSPORT_DOMAIN = 0x817,
    /// Returns how the ports of the device are bonded.
    QUERY_LAG = 0x842,
    /// Makes a target of flow rules.
    CREATE_TIR = 0x900,
    /// Changes a target of flow rules.
    MODIFY_TIR = 0x901,
    /// Destroys a target of flow rules.
    DESTROY_TIR = 0x902,
    /// Returns the context of a TIR.
    QUERY_TIR = 0x903,
    /// Makes a send queue.
    CREATE_SQ = 0x904,
    /// Changes the state of a send queue.
    MODIFY_SQ = 0x905,
    /// Destroys a send queue.
    DESTROY_SQ = 0x906,
    /// Returns the context of a send queue.
    QUERY_SQ = 0x907,
    /// Makes a receive queue.
    CREATE_RQ = 0x908,
    /// Changes the state of a receive queue.
    MODIFY_RQ = 0x909,
    /// Destroys a receive queue.
    DESTROY_RQ = 0x90a,
    /// Returns the context of a receive queue.
    QUERY_RQ = 0x90b,
    /// Makes an SRQ.
    CREATE_RMP = 0x90c,
    /// Changes an SRQ.
    MODIFY_RMP = 0x90d,
    /// Destroys an SRQ.
    DESTROY_RMP = 0x90e,
    /// Returns the context of an SRQ.
    QUERY_RMP = 0x90f,
    /// Makes a source of frames.
    CREATE_TIS = 0x912,
    /// Changes a source of frames.
    MODIFY_TIS = 0x913,
    /// Destroys a source of frames.
    DESTROY_TIS = 0x914,
    /// Returns the context of a TIS.
    QUERY_TIS = 0x915,
    /// Makes a table of receive queues.
    CREATE_RQT = 0x916,
    /// Changes a table of receive queues.
    MODIFY_RQT = 0x917,
    /// Destroys a table of receive queues.
    DESTROY_RQT = 0x918,
    /// Returns a table of receive queues.
    QUERY_RQT = 0x919,
    /// Chooses the first flow table.
    SET_FLOW_TABLE_ROOT = 0x92f,
    /// Makes a flow table.
    CREATE_FLOW_TABLE = 0x930,
    /// Destroys a flow table.
    DESTROY_FLOW_TABLE = 0x931,
    /// Makes a group of flow entries.
    CREATE_FLOW_GROUP = 0x933,
    /// Destroys a group of flow entries.
    DESTROY_FLOW_GROUP = 0x934,
    /// Sets a flow entry.
    SET_FLOW_TABLE_ENTRY = 0x936,
    /// Deletes a flow entry.
    DELETE_FLOW_TABLE_ENTRY = 0x938,
    /// Changes a flow table.
    MODIFY_FLOW_TABLE = 0x93c,
    /// Makes an object of one of many kinds, which the modifier names.
    CREATE_GENERAL_OBJECT = 0xa00,
    /// Destroys such an object.
    DESTROY_GENERAL_OBJECT = 0xa03,
    /// Gives a user a number.
    CREATE_UCTX = 0xa04,
    /// Takes the number of a user back.
    DESTROY_UCTX = 0xa06,
    /// Registers memory for the queues of a user.
    CREATE_UMEM = 0xa08,
    /// Ends such a registration.
    DESTROY_UMEM = 0xa0a,
}

/// Result of a command (`MLX5_CMD_STAT_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// Done.
    Ok = 0x00,
    /// Internal error.
    InternalError = 0x01,
    /// Unknown command or modifier.
    BadOp = 0x02,
    /// A parameter is not supported or out of range.
    BadParam = 0x03,
    /// The function is not in the state that the command needs.
    BadSystemState = 0x04,
    /// A number names no object.
    BadResource = 0x05,
    /// An object is in use for now.
    Busy = 0x06,
    /// More than a limit allows.
    Limit = 0x08,
    /// An object is in a state that does not allow the command, or others refer to it.
    BadResourceState = 0x09,
    /// An index is out of range.
    BadIndex = 0x0a,
    /// No object is free.
    NoResources = 0x0f,
    /// The queue pair is in another state.
    BadQpState = 0x10,
    /// The input is too short.
    BadInputLength = 0x50,
    /// The room for the answer is too short.
    BadOutputLength = 0x51,
}

fields! {
    /// Head of each command.
    pub struct Request: 0x08 {
        /// Number of the command.
        opcode: u16 = 0x00[31:16],
        /// User on whose behalf the command is sent.
        uid: u16 = 0x00[15:0],
        /// Modifier.
        op_mod: u16 = 0x04[15:0],
    }
}

impl Request {
    /// The head of a command of the driver itself.
    pub const fn new(opcode: Opcode) -> Self {
        Self { opcode: opcode.0, ..Self::ZERO }
    }
}

fields! {
    /// Head of each answer.
    pub struct Reply: 0x08 {
        /// [`Status`].
        status: u8 = 0x00[31:24],
        /// Reason of a refusal.
        syndrome: u32 = 0x04,
    }
}

fields! {
    /// A command about an object with a number of 24 bits.
    pub struct Numbered: 0x10 {
        /// Head.
        request: Request = 0x00,
        /// Number of the object.
        number: u32 = 0x08[23:0],
        /// A second parameter.
        parameter: u32 = 0x0c,
    }
}

fields! {
    /// The answer of a command that makes an object.
    pub struct Created: 0x10 {
        /// Head.
        reply: Reply = 0x00,
        /// Number of the object.
        number: u32 = 0x08[23:0],
    }
}

fields! {
    /// CREATE_GENERAL_OBJECT for a path that is mapped to a queue pair (`create_av_qp_mapping_in`).
    pub struct CreatePathMapping: 0x20 {
        /// Head.
        request: Request = 0x00,
        /// Queue pair.
        qpn: u32 = 0x1c,
    }
}

fields! {
    /// QUERY_ISSI, answer.
    pub struct QueryIssiReply: 0x70 {
        /// Head.
        reply: Reply = 0x00,
        /// Version in use.
        current: u16 = 0x08[15:0],
        /// Bit `n`: version `n` is supported.
        supported: u32 = 0x6c,
    }
}

fields! {
    /// SET_ISSI.
    pub struct SetIssi: 0x10 {
        /// Head.
        request: Request = 0x00,
        /// Version.
        current: u16 = 0x08[15:0],
    }
}

fields! {
    /// ENABLE_HCA, DISABLE_HCA, QUERY_PAGES.
    pub struct OfFunction: 0x10 {
        /// Head.
        request: Request = 0x00,
        /// Function, 0 for the own.
        function_id: u16 = 0x08[15:0],
    }
}

fields! {
    /// QUERY_PAGES, answer.
    pub struct QueryPagesReply: 0x10 {
        /// Head.
        reply: Reply = 0x00,
        /// Function.
        function_id: u16 = 0x08[15:0],
        /// Pages that the function needs.
        pages: u32 = 0x0c,
    }
}

fields! {
    /// MANAGE_PAGES, before its pages.
    pub struct ManagePages: 0x10 {
        /// Head; the modifier is 0 for "cannot give", 1 for "give", 2 for "take back".
        request: Request = 0x00,
        /// Function.
        function_id: u16 = 0x08[15:0],
        /// Pages that follow, or that are taken back at most.
        entries: u32 = 0x0c,
    }
}

fields! {
    /// TEARDOWN_HCA.
    pub struct TeardownHca: 0x10 {
        /// Head.
        request: Request = 0x00,
        /// How: 0 gracefully, 1 by force, 2 fast.
        profile: u16 = 0x08[15:0],
    }
}

fields! {
    /// QUERY_ADAPTER, answer.
    pub struct QueryAdapterReply: 0x110 {
        /// Head.
        reply: Reply = 0x00,
        /// Vendor in the form of an IEEE company id.
        ieee_vendor_id: u32 = 0x28[23:0],
        /// PCI vendor of the PSID.
        vsd_vendor_id: u16 = 0x2c[15:0],
        /// Identity of the board.
        psid: [u8; 16] = 0x100,
    }
}

fields! {
    /// ATTACH_TO_MCG, DETACH_FROM_MCG.
    pub struct Multicast: 0x20 {
        /// Head.
        request: Request = 0x00,
        /// Queue pair.
        qpn: u32 = 0x08[23:0],
        /// Group.
        gid: [u8; 16] = 0x10,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_of_requests_and_replies() {
        let request = Request { opcode: 0x503, uid: 7, op_mod: 2 };
        assert_eq!(request.to_bytes(), [5, 3, 0, 7, 0, 0, 0, 2]);
        let reply = Reply { status: Status::BadResource as u8, syndrome: 0x0102_0304 };
        assert_eq!(reply.to_bytes(), [5, 0, 0, 0, 1, 2, 3, 4]);
        let query = Numbered { number: 0xab_cdef, ..Numbered::ZERO };
        assert_eq!(query.to_bytes()[8..12], [0, 0xab, 0xcd, 0xef]);
    }

    #[test]
    fn opcodes_have_names() {
        assert_eq!(Opcode(0x503).name(), Some("INIT2RTR_QP"));
        assert_eq!(Opcode(0xfff).name(), None);
    }
}
