//! The commands: lengths, the state that each needs, and what executes it.

use mlx5_wire::firmware::command::{
    Created, ManagePages, Multicast, Numbered, OfFunction, Opcode, QueryAdapterReply, QueryIssiReply, QueryPagesReply,
    Request, SetIssi, TeardownHca,
};
use mlx5_wire::firmware::cq::{CreateCq, ModifyCq, QueryCqReply};
use mlx5_wire::firmware::eq::{CreateEq, QueryEqReply};
use mlx5_wire::firmware::fields::Value;
use mlx5_wire::firmware::flow::{CreateGroup, CreateTable, DeleteEntry, DestroyGroup, ModifyTable, OfTable, SetEntry};
use mlx5_wire::firmware::mkey::{CreateMkey, CreateUmem, QueryMkeyReply};
use mlx5_wire::firmware::qp::{CreateQp, ModifyQp, QueryQpReply};
use mlx5_wire::firmware::register::AccessRegister;
use mlx5_wire::firmware::srq::{ArmSrq, CreateRmp, CreateXrcSrq, ModifyRmp, QueryRmpReply, QueryXrcSrqReply};
use mlx5_wire::firmware::transport::{
    CreateRq, CreateSq, CreateTir, CreateTis, ModifyQueue, QueryRqReply, QuerySqReply, RqTable,
};
use mlx5_wire::firmware::vport::{
    GidsReply, ModifyNicVport, ModifyVportState, QueryHcaVportReply, QueryNicVportReply, QueryRoceAddressReply,
    QueryVport, QueryVportStateReply, SetRoceAddress,
};

use super::Function;
use super::objects::Kind;
use super::refusal::Refusal;
use super::stage::Stage;

/// Result of a command.
pub type Result<T = ()> = std::result::Result<T, Refusal>;

/// A command whose input has the length that its entry asks for.
#[derive(Debug, Clone, Copy)]
pub struct Command<'a> {
    /// Head.
    pub request: Request,
    /// Input, with the head.
    pub input: &'a [u8],
}

impl<'a> Command<'a> {
    /// Reads the format that the input begins with.
    pub fn parse<T: Value>(&self) -> Result<T> {
        let bytes = self.input.get(..T::SIZE).ok_or(Refusal::INPUT_LENGTH)?;
        Ok(T::read(bytes, 0, 0))
    }

    /// Returns the input after a format.
    pub fn after<T: Value>(&self) -> &'a [u8] {
        self.input.get(T::SIZE..).unwrap_or_default()
    }

    /// Returns the user.
    pub fn uid(&self) -> u16 {
        self.request.uid
    }

    /// Returns the number of the object in the commands that have nothing else.
    pub fn number(&self) -> Result<u32> {
        Ok(self.parse::<Numbered>()?.number)
    }
}

/// Writes an answer over its head, which comes later.
pub fn answer<T: Value>(output: &mut [u8], value: T) -> Result {
    let bytes = output.get_mut(..T::SIZE).ok_or(Refusal::OUTPUT_LENGTH)?;
    value.write(bytes, 0, 0);
    Ok(())
}

/// Answers with the number of a new object.
pub fn created(output: &mut [u8], number: u32) -> Result {
    answer(output, Created { number, ..Created::ZERO })
}

/// A command of the device.
pub struct Entry {
    /// Number.
    pub opcode: Opcode,
    /// State of the function that the command needs.
    pub stage: Stage,
    /// Bytes of the input at least.
    pub input: usize,
    /// Bytes of the answer, of which a driver may not leave out one.
    pub output: usize,
    /// Executes the command.
    pub run: fn(&mut Function, &Command, &mut [u8]) -> Result,
}

const HEAD: usize = size_of::<[u32; 2]>();

/// Returns the entry of a command.
pub fn find(opcode: Opcode) -> Option<&'static Entry> {
    let at = ENTRIES.binary_search_by_key(&opcode, |entry| entry.opcode).ok()?;
    Some(&ENTRIES[at])
}

macro_rules! entries {
    ($( $opcode:ident: $stage:ident, $input:ty => $output:expr, $run:expr; )*) => {
        /// All commands, in the order of their numbers.
        pub static ENTRIES: &[Entry] = &[$(
            Entry {
                opcode: Opcode::$opcode,
                stage: Stage::$stage,
                input: <$input>::SIZE,
                output: $output,
                run: $run,
            },
        )*];
    };
}

const CREATED: usize = Created::SIZE;

entries! {
    QUERY_HCA_CAP: Enabled, Request => Function::CAPABILITIES, Function::query_hca_cap;
    QUERY_ADAPTER: Enabled, Request => QueryAdapterReply::SIZE, Function::query_adapter;
    INIT_HCA: Enabled, Request => HEAD, Function::init_hca;
    TEARDOWN_HCA: Initialized, TeardownHca => HEAD, Function::teardown_hca;
    ENABLE_HCA: Disabled, OfFunction => HEAD, Function::enable_hca;
    DISABLE_HCA: Enabled, OfFunction => HEAD, Function::disable_hca;
    QUERY_PAGES: Enabled, OfFunction => QueryPagesReply::SIZE, Function::query_pages;
    MANAGE_PAGES: Enabled, ManagePages => HEAD, Function::manage_pages;
    SET_HCA_CAP: Enabled, Request => HEAD, Function::set_hca_cap;
    QUERY_ISSI: Enabled, Request => QueryIssiReply::SIZE, Function::query_issi;
    SET_ISSI: Enabled, SetIssi => HEAD, Function::set_issi;

    CREATE_MKEY: Initialized, CreateMkey => CREATED, Function::create_mkey;
    QUERY_MKEY: Initialized, Numbered => QueryMkeyReply::SIZE, Function::query_mkey;
    DESTROY_MKEY: Initialized, Numbered => HEAD, |function, command, _| {
        function.destroy(Kind::Mkey, command)
    };
    CREATE_EQ: Initialized, CreateEq => CREATED, Function::create_eq;
    DESTROY_EQ: Initialized, Numbered => HEAD, |function, command, _| {
        function.destroy(Kind::Eq, command)
    };
    QUERY_EQ: Initialized, Numbered => QueryEqReply::SIZE, Function::query_eq;
    CREATE_CQ: Initialized, CreateCq => CREATED, Function::create_cq;
    DESTROY_CQ: Initialized, Numbered => HEAD, |function, command, _| {
        function.destroy(Kind::Cq, command)
    };
    QUERY_CQ: Initialized, Numbered => QueryCqReply::SIZE, Function::query_cq;
    MODIFY_CQ: Initialized, ModifyCq => HEAD, Function::modify_cq;

    CREATE_QP: Initialized, CreateQp => CREATED, Function::create_qp;
    DESTROY_QP: Initialized, Numbered => HEAD, |function, command, _| {
        function.destroy(Kind::Qp, command)
    };
    RST2INIT_QP: Initialized, ModifyQp => HEAD, Function::modify_qp;
    INIT2RTR_QP: Initialized, ModifyQp => HEAD, Function::modify_qp;
    RTR2RTS_QP: Initialized, ModifyQp => HEAD, Function::modify_qp;
    RTS2RTS_QP: Initialized, ModifyQp => HEAD, Function::modify_qp;
    SQERR2RTS_QP: Initialized, ModifyQp => HEAD, Function::modify_qp;
    MOVE_QP_TO_ERR: Initialized, Numbered => HEAD, Function::move_qp;
    MOVE_QP_TO_RST: Initialized, Numbered => HEAD, Function::move_qp;
    QUERY_QP: Initialized, Numbered => QueryQpReply::SIZE, Function::query_qp;
    INIT2INIT_QP: Initialized, ModifyQp => HEAD, Function::modify_qp;

    ARM_RQ: Initialized, ArmSrq => HEAD, |function, command, _| {
        function.arm_srq(Kind::Rmp, command)
    };
    CREATE_XRC_SRQ: Initialized, CreateXrcSrq => CREATED, Function::create_xrc_srq;
    DESTROY_XRC_SRQ: Initialized, Numbered => HEAD, |function, command, _| {
        function.destroy(Kind::XrcSrq, command)
    };
    QUERY_XRC_SRQ: Initialized, Numbered => QueryXrcSrqReply::SIZE, Function::query_xrc_srq;
    ARM_XRC_SRQ: Initialized, ArmSrq => HEAD, |function, command, _| {
        function.arm_srq(Kind::XrcSrq, command)
    };

    QUERY_VPORT_STATE: Enabled, QueryVport => QueryVportStateReply::SIZE,
        Function::query_vport_state;
    MODIFY_VPORT_STATE: Enabled, ModifyVportState => HEAD, Function::modify_vport_state;
    QUERY_NIC_VPORT_CONTEXT: Enabled, QueryVport => QueryNicVportReply::SIZE,
        Function::query_nic_vport;
    MODIFY_NIC_VPORT_CONTEXT: Enabled, ModifyNicVport => HEAD, Function::modify_nic_vport;
    QUERY_ROCE_ADDRESS: Initialized, QueryVport => QueryRoceAddressReply::SIZE,
        Function::query_roce_address;
    SET_ROCE_ADDRESS: Initialized, SetRoceAddress => HEAD, Function::set_roce_address;
    QUERY_HCA_VPORT_CONTEXT: Enabled, QueryVport => QueryHcaVportReply::SIZE,
        Function::query_hca_vport;
    MODIFY_HCA_VPORT_CONTEXT: Enabled, QueryVport => HEAD, Function::modify_hca_vport;
    QUERY_HCA_VPORT_GID: Enabled, QueryVport => GidsReply::SIZE, Function::query_gids;
    QUERY_HCA_VPORT_PKEY: Enabled, QueryVport => GidsReply::SIZE, Function::query_pkeys;
    QUERY_VPORT_COUNTER: Enabled, QueryVport => Function::VPORT_COUNTERS,
        Function::query_vport_counter;
    ALLOC_Q_COUNTER: Initialized, Request => CREATED, |function, command, output| {
        function.create_numbered(Kind::Counters, command, output)
    };
    DEALLOC_Q_COUNTER: Initialized, Numbered => HEAD, |function, command, _| {
        function.destroy(Kind::Counters, command)
    };
    QUERY_Q_COUNTER: Initialized, Numbered => Function::QUEUE_COUNTERS,
        Function::query_q_counter;

    ALLOC_PD: Initialized, Request => CREATED, Function::alloc_pd;
    DEALLOC_PD: Initialized, Numbered => HEAD, |function, command, _| {
        function.destroy(Kind::Pd, command)
    };
    ALLOC_UAR: Initialized, Request => CREATED, |function, command, output| {
        function.create_numbered(Kind::Uar, command, output)
    };
    DEALLOC_UAR: Initialized, Numbered => HEAD, |function, command, _| {
        function.destroy(Kind::Uar, command)
    };
    ACCESS_REG: Enabled, AccessRegister => AccessRegister::SIZE, Function::access_register;
    ATTACH_TO_MCG: Initialized, Multicast => HEAD, Function::attach_multicast;
    DETACH_FROM_MCG: Initialized, Multicast => HEAD, Function::detach_multicast;
    ALLOC_XRCD: Initialized, Request => CREATED, |function, command, output| {
        function.create_numbered(Kind::Xrcd, command, output)
    };
    DEALLOC_XRCD: Initialized, Numbered => HEAD, |function, command, _| {
        function.destroy(Kind::Xrcd, command)
    };
    ALLOC_TRANSPORT_DOMAIN: Initialized, Request => CREATED, |function, command, output| {
        function.create_numbered(Kind::TransportDomain, command, output)
    };
    DEALLOC_TRANSPORT_DOMAIN: Initialized, Numbered => HEAD, |function, command, _| {
        function.destroy(Kind::TransportDomain, command)
    };

    CREATE_TIR: Initialized, CreateTir => CREATED, Function::create_tir;
    MODIFY_TIR: Initialized, ModifyQueue => HEAD, |function, command, _| {
        function.keep(Kind::Tir, command)
    };
    DESTROY_TIR: Initialized, Numbered => HEAD, |function, command, _| {
        function.destroy(Kind::Tir, command)
    };
    CREATE_SQ: Initialized, CreateSq => CREATED, Function::create_sq;
    MODIFY_SQ: Initialized, CreateSq => HEAD, Function::modify_sq;
    DESTROY_SQ: Initialized, Numbered => HEAD, |function, command, _| {
        function.destroy(Kind::Sq, command)
    };
    QUERY_SQ: Initialized, Numbered => QuerySqReply::SIZE, Function::query_sq;
    CREATE_RQ: Initialized, CreateRq => CREATED, Function::create_rq;
    MODIFY_RQ: Initialized, CreateRq => HEAD, Function::modify_rq;
    DESTROY_RQ: Initialized, Numbered => HEAD, |function, command, _| {
        function.destroy(Kind::Rq, command)
    };
    QUERY_RQ: Initialized, Numbered => QueryRqReply::SIZE, Function::query_rq;
    CREATE_RMP: Initialized, CreateRmp => CREATED, Function::create_rmp;
    MODIFY_RMP: Initialized, ModifyRmp => HEAD, Function::modify_rmp;
    DESTROY_RMP: Initialized, Numbered => HEAD, |function, command, _| {
        function.destroy(Kind::Rmp, command)
    };
    QUERY_RMP: Initialized, Numbered => QueryRmpReply::SIZE, Function::query_rmp;

    CREATE_TIS: Initialized, CreateTis => CREATED, Function::create_tis;
    MODIFY_TIS: Initialized, ModifyQueue => HEAD, |function, command, _| {
        function.keep(Kind::Tis, command)
    };
    DESTROY_TIS: Initialized, Numbered => HEAD, |function, command, _| {
        function.destroy(Kind::Tis, command)
    };
    CREATE_RQT: Initialized, RqTable => CREATED, Function::create_rqt;
    MODIFY_RQT: Initialized, RqTable => HEAD, Function::modify_rqt;
    DESTROY_RQT: Initialized, Numbered => HEAD, |function, command, _| {
        function.destroy(Kind::Rqt, command)
    };
    SET_FLOW_TABLE_ROOT: Initialized, OfTable => HEAD, Function::set_flow_table_root;
    CREATE_FLOW_TABLE: Initialized, CreateTable => CREATED, Function::create_flow_table;
    DESTROY_FLOW_TABLE: Initialized, OfTable => HEAD, Function::destroy_flow_table;
    CREATE_FLOW_GROUP: Initialized, CreateGroup => CREATED, Function::create_flow_group;
    DESTROY_FLOW_GROUP: Initialized, DestroyGroup => HEAD, Function::destroy_flow_group;
    SET_FLOW_TABLE_ENTRY: Initialized, SetEntry => HEAD, Function::set_flow_entry;
    DELETE_FLOW_TABLE_ENTRY: Initialized, DeleteEntry => HEAD, Function::delete_flow_entry;
    MODIFY_FLOW_TABLE: Initialized, ModifyTable => HEAD, Function::modify_flow_table;

    CREATE_UCTX: Initialized, Request => CREATED, Function::create_user;
    DESTROY_UCTX: Initialized, Numbered => HEAD, Function::destroy_user;
    CREATE_UMEM: Initialized, CreateUmem => CREATED, Function::create_umem;
    DESTROY_UMEM: Initialized, Numbered => HEAD, |function, command, _| {
        function.destroy(Kind::Umem, command)
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_in_order_and_have_names() {
        assert!(ENTRIES.windows(2).all(|pair| pair[0].opcode < pair[1].opcode));
        assert!(ENTRIES.iter().all(|entry| entry.opcode.name().is_some()));
        assert!(find(Opcode(0xffff)).is_none());
    }
}
