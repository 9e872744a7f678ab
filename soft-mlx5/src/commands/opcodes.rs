//! The commands: lengths, the state that each needs, and what executes it.

use mlx5_wire::firmware::capabilities::GROUP;
use mlx5_wire::firmware::command::{
    CreatePathMapping, Created, ManagePages, Multicast, Numbered, OfFunction, Opcode, QueryAdapterReply,
    QueryIssiReply, QueryPagesReply, Request, SetIssi, TeardownHca,
};
use mlx5_wire::firmware::counters::{QueryQCounter, QueryQCounterReply};
use mlx5_wire::firmware::cq::{CreateCq, ModifyCq, QueryCqReply};
use mlx5_wire::firmware::dct::{CreateDct, QueryDctReply};
use mlx5_wire::firmware::eq::{CreateEq, QueryEqReply};
use mlx5_wire::firmware::fields::Value;
use mlx5_wire::firmware::flow::{CreateGroup, CreateTable, DeleteEntry, DestroyGroup, ModifyTable, OfTable, SetEntry};
use mlx5_wire::firmware::mkey::{CreateMkey, CreateUmem, QueryMkeyReply};
use mlx5_wire::firmware::qp::{CreateQp, ModifyQp, QueryQpReply};
use mlx5_wire::firmware::register::AccessRegister;
use mlx5_wire::firmware::srq::{
    ArmSrq, CreateRmp, CreateXrcSrq, CreateXrq, ModifyRmp, QueryRmpReply, QueryXrcSrqReply, QueryXrqReply,
};
use mlx5_wire::firmware::transport::{
    CreateRq, CreateSq, CreateTir, CreateTis, ModifyTir, ModifyTis, QueryRqReply, QuerySqReply, QueryTisReply, RqTable,
};
use mlx5_wire::firmware::vport::{
    GidsReply, ModifyNicVport, ModifyVportState, QueryHcaVportReply, QueryNicVportReply, QueryRoceAddressReply,
    QueryVport, QueryVportStateReply, SetRoceAddress,
};

use super::Execution;
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
    pub run: fn(&mut Execution, &Command, &mut [u8]) -> Result,
}

const HEAD: usize = size_of::<[u32; 2]>();

/// Returns the entry of a command.
pub fn find(opcode: Opcode) -> Option<&'static Entry> {
    let at = ENTRIES.binary_search_by_key(&opcode, |entry| entry.opcode).ok()?;
    Some(&ENTRIES[at])
}

/// Runs what executes a command. A method of [`Execution`] is of one lifetime, an entry of the table of all.
fn run<'a>(
    on: &mut Execution<'a>,
    command: &Command,
    output: &mut [u8],
    run: impl FnOnce(&mut Execution<'a>, &Command, &mut [u8]) -> Result,
) -> Result {
    run(on, command, output)
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
                run: |on, command, output| run(on, command, output, $run),
            },
        )*];
    };
}

const CREATED: usize = Created::SIZE;

entries! {
    QUERY_HCA_CAP: Enabled, Request => GROUP, Execution::query_hca_cap;
    QUERY_ADAPTER: Enabled, Request => QueryAdapterReply::SIZE, Execution::query_adapter;
    INIT_HCA: Enabled, Request => HEAD, Execution::init_hca;
    TEARDOWN_HCA: Initialized, TeardownHca => HEAD, Execution::teardown_hca;
    ENABLE_HCA: Disabled, OfFunction => HEAD, Execution::enable_hca;
    DISABLE_HCA: Enabled, OfFunction => HEAD, Execution::disable_hca;
    QUERY_PAGES: Enabled, OfFunction => QueryPagesReply::SIZE, Execution::query_pages;
    MANAGE_PAGES: Enabled, ManagePages => HEAD, Execution::manage_pages;
    SET_HCA_CAP: Enabled, Request => HEAD, Execution::set_hca_cap;
    QUERY_ISSI: Enabled, Request => QueryIssiReply::SIZE, Execution::query_issi;
    SET_ISSI: Enabled, SetIssi => HEAD, Execution::set_issi;

    CREATE_MKEY: Initialized, CreateMkey => CREATED, Execution::create_mkey;
    QUERY_MKEY: Initialized, Numbered => QueryMkeyReply::SIZE, Execution::query_mkey;
    DESTROY_MKEY: Initialized, Numbered => HEAD, |on, command, _| {
        on.destroy(Kind::Mkey, command)
    };
    CREATE_EQ: Initialized, CreateEq => CREATED, Execution::create_eq;
    DESTROY_EQ: Initialized, Numbered => HEAD, |on, command, _| {
        on.destroy(Kind::Eq, command)
    };
    QUERY_EQ: Initialized, Numbered => QueryEqReply::SIZE, Execution::query_eq;
    CREATE_CQ: Initialized, CreateCq => CREATED, Execution::create_cq;
    DESTROY_CQ: Initialized, Numbered => HEAD, |on, command, _| {
        on.destroy(Kind::Cq, command)
    };
    QUERY_CQ: Initialized, Numbered => QueryCqReply::SIZE, Execution::query_cq;
    MODIFY_CQ: Initialized, ModifyCq => HEAD, Execution::modify_cq;

    CREATE_QP: Initialized, CreateQp => CREATED, Execution::create_qp;
    DESTROY_QP: Initialized, Numbered => HEAD, |on, command, _| {
        on.destroy(Kind::Qp, command)
    };
    RST2INIT_QP: Initialized, ModifyQp => HEAD, Execution::modify_qp;
    INIT2RTR_QP: Initialized, ModifyQp => HEAD, Execution::modify_qp;
    RTR2RTS_QP: Initialized, ModifyQp => HEAD, Execution::modify_qp;
    RTS2RTS_QP: Initialized, ModifyQp => HEAD, Execution::modify_qp;
    SQERR2RTS_QP: Initialized, ModifyQp => HEAD, Execution::modify_qp;
    MOVE_QP_TO_ERR: Initialized, Numbered => HEAD, Execution::move_qp;
    MOVE_QP_TO_RST: Initialized, Numbered => HEAD, Execution::move_qp;
    QUERY_QP: Initialized, Numbered => QueryQpReply::SIZE, Execution::query_qp;
    INIT2INIT_QP: Initialized, ModifyQp => HEAD, Execution::modify_qp;

    ARM_RQ: Initialized, ArmSrq => HEAD, Execution::arm_rq;
    CREATE_XRC_SRQ: Initialized, CreateXrcSrq => CREATED, Execution::create_xrc_srq;
    DESTROY_XRC_SRQ: Initialized, Numbered => HEAD, |on, command, _| {
        on.destroy(Kind::XrcSrq, command)
    };
    QUERY_XRC_SRQ: Initialized, Numbered => QueryXrcSrqReply::SIZE, Execution::query_xrc_srq;
    ARM_XRC_SRQ: Initialized, ArmSrq => HEAD, Execution::arm_xrc_srq;
    CREATE_DCT: Initialized, CreateDct => CREATED, Execution::create_dct;
    DESTROY_DCT: Initialized, Numbered => HEAD, |on, command, _| {
        on.destroy(Kind::Dct, command)
    };
    DRAIN_DCT: Initialized, Numbered => HEAD, Execution::drain_dct;
    QUERY_DCT: Initialized, Numbered => QueryDctReply::SIZE, Execution::query_dct;
    ARM_DCT_FOR_KEY_VIOLATION: Initialized, Numbered => HEAD, Execution::arm_dct;
    CREATE_XRQ: Initialized, CreateXrq => CREATED, Execution::create_xrq;
    DESTROY_XRQ: Initialized, Numbered => HEAD, |on, command, _| {
        on.destroy(Kind::Xrq, command)
    };
    QUERY_XRQ: Initialized, Numbered => QueryXrqReply::SIZE, Execution::query_xrq;
    ARM_XRQ: Initialized, ArmSrq => HEAD, |on, command, _| {
        on.arm_srq(Kind::Xrq, command)
    };

    QUERY_VPORT_STATE: Enabled, QueryVport => QueryVportStateReply::SIZE,
        Execution::query_vport_state;
    MODIFY_VPORT_STATE: Enabled, ModifyVportState => HEAD, Execution::modify_vport_state;
    QUERY_NIC_VPORT_CONTEXT: Enabled, QueryVport => QueryNicVportReply::SIZE,
        Execution::query_nic_vport;
    MODIFY_NIC_VPORT_CONTEXT: Enabled, ModifyNicVport => HEAD, Execution::modify_nic_vport;
    QUERY_ROCE_ADDRESS: Initialized, QueryVport => QueryRoceAddressReply::SIZE,
        Execution::query_roce_address;
    SET_ROCE_ADDRESS: Initialized, SetRoceAddress => HEAD, Execution::set_roce_address;
    QUERY_HCA_VPORT_CONTEXT: Enabled, QueryVport => QueryHcaVportReply::SIZE,
        Execution::query_hca_vport;
    MODIFY_HCA_VPORT_CONTEXT: Enabled, QueryVport => HEAD, Execution::modify_hca_vport;
    QUERY_HCA_VPORT_GID: Enabled, QueryVport => GidsReply::SIZE, Execution::query_gids;
    QUERY_HCA_VPORT_PKEY: Enabled, QueryVport => GidsReply::SIZE, Execution::query_pkeys;
    QUERY_VPORT_COUNTER: Enabled, QueryVport => Execution::VPORT_COUNTERS,
        Execution::query_vport_counter;
    ALLOC_Q_COUNTER: Initialized, Request => CREATED, Execution::alloc_q_counter;
    DEALLOC_Q_COUNTER: Initialized, Numbered => HEAD, |on, command, _| {
        on.destroy(Kind::Counters, command)
    };
    QUERY_Q_COUNTER: Initialized, QueryQCounter => QueryQCounterReply::SIZE, Execution::query_q_counter;

    ALLOC_PD: Initialized, Request => CREATED, Execution::alloc_pd;
    DEALLOC_PD: Initialized, Numbered => HEAD, |on, command, _| {
        on.destroy(Kind::Pd, command)
    };
    ALLOC_UAR: Initialized, Request => CREATED, |on, command, output| {
        on.create_numbered(Kind::Uar, command, output)
    };
    DEALLOC_UAR: Initialized, Numbered => HEAD, |on, command, _| {
        on.destroy(Kind::Uar, command)
    };
    ACCESS_REG: Enabled, AccessRegister => AccessRegister::SIZE, Execution::access_register;
    ATTACH_TO_MCG: Initialized, Multicast => HEAD, Execution::attach_multicast;
    DETACH_FROM_MCG: Initialized, Multicast => HEAD, Execution::detach_multicast;
    ALLOC_XRCD: Initialized, Request => CREATED, |on, command, output| {
        on.create_numbered(Kind::Xrcd, command, output)
    };
    DEALLOC_XRCD: Initialized, Numbered => HEAD, |on, command, _| {
        on.destroy(Kind::Xrcd, command)
    };
    ALLOC_TRANSPORT_DOMAIN: Initialized, Request => CREATED, |on, command, output| {
        on.create_numbered(Kind::TransportDomain, command, output)
    };
    DEALLOC_TRANSPORT_DOMAIN: Initialized, Numbered => HEAD, |on, command, _| {
        on.destroy(Kind::TransportDomain, command)
    };

    // The ports are not bonded.
    QUERY_LAG: Initialized, Request => CREATED, |_, _, _| Ok(());

    CREATE_TIR: Initialized, CreateTir => CREATED, Execution::create_tir;
    MODIFY_TIR: Initialized, ModifyTir => HEAD, Execution::modify_tir;
    DESTROY_TIR: Initialized, Numbered => HEAD, |on, command, _| {
        on.destroy(Kind::Tir, command)
    };
    QUERY_TIR: Initialized, Numbered => CreateTir::SIZE, Execution::query_tir;
    CREATE_SQ: Initialized, CreateSq => CREATED, Execution::create_sq;
    MODIFY_SQ: Initialized, CreateSq => HEAD, Execution::modify_sq;
    DESTROY_SQ: Initialized, Numbered => HEAD, |on, command, _| {
        on.destroy(Kind::Sq, command)
    };
    QUERY_SQ: Initialized, Numbered => QuerySqReply::SIZE, Execution::query_sq;
    CREATE_RQ: Initialized, CreateRq => CREATED, Execution::create_rq;
    MODIFY_RQ: Initialized, CreateRq => HEAD, Execution::modify_rq;
    DESTROY_RQ: Initialized, Numbered => HEAD, |on, command, _| {
        on.destroy(Kind::Rq, command)
    };
    QUERY_RQ: Initialized, Numbered => QueryRqReply::SIZE, Execution::query_rq;
    CREATE_RMP: Initialized, CreateRmp => CREATED, Execution::create_rmp;
    MODIFY_RMP: Initialized, ModifyRmp => HEAD, Execution::modify_rmp;
    DESTROY_RMP: Initialized, Numbered => HEAD, |on, command, _| {
        on.destroy(Kind::Rmp, command)
    };
    QUERY_RMP: Initialized, Numbered => QueryRmpReply::SIZE, Execution::query_rmp;

    CREATE_TIS: Initialized, CreateTis => CREATED, Execution::create_tis;
    MODIFY_TIS: Initialized, ModifyTis => HEAD, Execution::modify_tis;
    DESTROY_TIS: Initialized, Numbered => HEAD, |on, command, _| {
        on.destroy(Kind::Tis, command)
    };
    QUERY_TIS: Initialized, Numbered => QueryTisReply::SIZE, Execution::query_tis;
    CREATE_RQT: Initialized, RqTable => CREATED, Execution::create_rqt;
    MODIFY_RQT: Initialized, RqTable => HEAD, Execution::modify_rqt;
    DESTROY_RQT: Initialized, Numbered => HEAD, |on, command, _| {
        on.destroy(Kind::Rqt, command)
    };
    QUERY_RQT: Initialized, Numbered => RqTable::SIZE, Execution::query_rqt;
    SET_FLOW_TABLE_ROOT: Initialized, OfTable => HEAD, Execution::set_flow_table_root;
    CREATE_FLOW_TABLE: Initialized, CreateTable => CREATED, Execution::create_flow_table;
    DESTROY_FLOW_TABLE: Initialized, OfTable => HEAD, Execution::destroy_flow_table;
    CREATE_FLOW_GROUP: Initialized, CreateGroup => CREATED, Execution::create_flow_group;
    DESTROY_FLOW_GROUP: Initialized, DestroyGroup => HEAD, Execution::destroy_flow_group;
    SET_FLOW_TABLE_ENTRY: Initialized, SetEntry => HEAD, Execution::set_flow_entry;
    DELETE_FLOW_TABLE_ENTRY: Initialized, DeleteEntry => HEAD, Execution::delete_flow_entry;
    MODIFY_FLOW_TABLE: Initialized, ModifyTable => HEAD, Execution::modify_flow_table;

    CREATE_GENERAL_OBJECT: Initialized, CreatePathMapping => CREATED, Execution::create_general_object;
    DESTROY_GENERAL_OBJECT: Initialized, Numbered => HEAD, |on, command, _| {
        on.destroy(Kind::PathMapping, command)
    };
    CREATE_UCTX: Initialized, Request => CREATED, Execution::create_user;
    DESTROY_UCTX: Initialized, Numbered => HEAD, Execution::destroy_user;
    CREATE_UMEM: Initialized, CreateUmem => CREATED, Execution::create_umem;
    DESTROY_UMEM: Initialized, Numbered => HEAD, |on, command, _| {
        on.destroy(Kind::Umem, command)
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
