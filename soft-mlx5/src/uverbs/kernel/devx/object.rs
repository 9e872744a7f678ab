//! Objects that programs make, change and ask by commands.

use mlx5_wire::firmware::command::{Created, Numbered, Opcode, Reply};

use super::super::async_event::Reported;
use super::super::attrs::{Attrs, CONSTANT, Carries, Spec, exactly};
use super::super::errno::{EAGAIN, EINVAL};
use super::super::events::Carries as EventKind;
use super::super::{CQ, Call, QP, SRQ};
use super::super::{rss, wq};
use super::{ANSWER, COMMAND, Command, HEAD, answer, errno_of};
use crate::commands::objects::{Id, Kind};
use crate::commands::refusal::Refusal;
use crate::objects::Result;

/// An object that a command made.
#[derive(Debug)]
pub struct DevxObject {
    /// Its place in the registry.
    pub id: Id,
    destroy: Opcode,
}

/// Types of the objects of verbs that commands change and ask about: CQs, queue pairs, SRQs, tables, WQs.
const OF_VERBS: &[u16] = &[CQ, QP, SRQ, rss::TABLE_TYPE, wq::TYPE_ID];

/// Object type (`MLX5_IB_OBJECT_DEVX_OBJ`).
pub const TYPE: u16 = 0x1001;

const HANDLE: u16 = 0x1000;
const INPUT: u16 = 0x1001;
const OUTPUT: u16 = 0x1002;
const ASYNC_FD: u16 = 0x1002;
const ASYNC_ID: u16 = 0x1003;
const ASYNC_LEN: u16 = 0x1004;

/// Attributes of the creation.
pub const CREATE: &[Spec] =
    &[Spec::needs(HANDLE, Carries::New), Spec::needs(INPUT, COMMAND), Spec::needs(OUTPUT, ANSWER)];
/// Attributes of the destruction.
pub const DESTROY: &[Spec] = &[Spec::needs(HANDLE, Carries::Handle)];
/// Attributes of a change and of a query.
pub const COMMAND_ON: &[Spec] =
    &[Spec::needs(HANDLE, Carries::Handle), Spec::needs(INPUT, COMMAND), Spec::needs(OUTPUT, ANSWER)];
/// Attributes of a query whose answer comes to an event file.
pub const ASYNC_QUERY: &[Spec] = &[
    Spec::needs(HANDLE, Carries::Handle),
    Spec::needs(INPUT, COMMAND),
    Spec::needs(ASYNC_FD, Carries::Descriptor),
    Spec::needs(ASYNC_ID, exactly(8)),
    Spec::needs(ASYNC_LEN, CONSTANT),
];

/// Returns what a command makes, and the command that destroys it.
fn creation(opcode: Opcode) -> Option<(Kind, Opcode)> {
    Some(match opcode {
        Opcode::CREATE_MKEY => (Kind::Mkey, Opcode::DESTROY_MKEY),
        Opcode::CREATE_CQ => (Kind::Cq, Opcode::DESTROY_CQ),
        Opcode::CREATE_QP => (Kind::Qp, Opcode::DESTROY_QP),
        Opcode::CREATE_DCT => (Kind::Dct, Opcode::DESTROY_DCT),
        Opcode::CREATE_GENERAL_OBJECT => (Kind::PathMapping, Opcode::DESTROY_GENERAL_OBJECT),
        Opcode::CREATE_XRQ => (Kind::Xrq, Opcode::DESTROY_XRQ),
        Opcode::CREATE_XRC_SRQ => (Kind::XrcSrq, Opcode::DESTROY_XRC_SRQ),
        Opcode::ALLOC_Q_COUNTER => (Kind::Counters, Opcode::DEALLOC_Q_COUNTER),
        Opcode::ALLOC_PD => (Kind::Pd, Opcode::DEALLOC_PD),
        Opcode::ALLOC_XRCD => (Kind::Xrcd, Opcode::DEALLOC_XRCD),
        Opcode::ALLOC_TRANSPORT_DOMAIN => (Kind::TransportDomain, Opcode::DEALLOC_TRANSPORT_DOMAIN),
        Opcode::CREATE_TIR => (Kind::Tir, Opcode::DESTROY_TIR),
        Opcode::CREATE_SQ => (Kind::Sq, Opcode::DESTROY_SQ),
        Opcode::CREATE_RQ => (Kind::Rq, Opcode::DESTROY_RQ),
        Opcode::CREATE_RMP => (Kind::Rmp, Opcode::DESTROY_RMP),
        Opcode::CREATE_TIS => (Kind::Tis, Opcode::DESTROY_TIS),
        Opcode::CREATE_RQT => (Kind::Rqt, Opcode::DESTROY_RQT),
        _ => return None,
    })
}

/// Returns `true` for commands that make what this device does not have for programs.
fn is_creation(opcode: Opcode) -> bool {
    const CREATE_PSV: u16 = 0x600;
    const CREATE_SRQ: u16 = 0x700;
    const CREATE_SCHEDULING_ELEMENT: u16 = 0x782;
    const ADD_VXLAN_UDP_DPORT: u16 = 0x827;
    const SET_L2_TABLE_ENTRY: u16 = 0x829;
    const ALLOC_FLOW_COUNTER: u16 = 0x939;
    const ALLOC_PACKET_REFORMAT_CONTEXT: u16 = 0x93d;
    const ALLOC_MODIFY_HEADER_CONTEXT: u16 = 0x940;
    const MISSING: &[Opcode] = &[
        Opcode(CREATE_PSV),
        Opcode(CREATE_SRQ),
        Opcode(CREATE_SCHEDULING_ELEMENT),
        Opcode::ATTACH_TO_MCG,
        Opcode(ADD_VXLAN_UDP_DPORT),
        Opcode(SET_L2_TABLE_ENTRY),
        Opcode::CREATE_FLOW_TABLE,
        Opcode::CREATE_FLOW_GROUP,
        Opcode::SET_FLOW_TABLE_ENTRY,
        Opcode(ALLOC_FLOW_COUNTER),
        Opcode(ALLOC_PACKET_REFORMAT_CONTEXT),
        Opcode(ALLOC_MODIFY_HEADER_CONTEXT),
    ];
    MISSING.contains(&opcode)
}

/// The answer of firmware that has no such command.
fn unknown_command() -> [u8; Reply::SIZE] {
    let Refusal { status, syndrome, .. } = Refusal::UNKNOWN_COMMAND;
    Reply { status: status as u8, syndrome }.to_bytes()
}

/// Returns the kind of object that a command changes.
fn changed(opcode: Opcode) -> Option<Kind> {
    Some(match opcode {
        Opcode::MODIFY_CQ => Kind::Cq,
        Opcode::RST2INIT_QP
        | Opcode::INIT2INIT_QP
        | Opcode::INIT2RTR_QP
        | Opcode::RTR2RTS_QP
        | Opcode::RTS2RTS_QP
        | Opcode::SQERR2RTS_QP
        | Opcode::MOVE_QP_TO_ERR
        | Opcode::MOVE_QP_TO_RST => Kind::Qp,
        Opcode::ARM_DCT_FOR_KEY_VIOLATION => Kind::Dct,
        // The kernel takes the number for that of a receive queue.
        Opcode::ARM_RQ => Kind::Rq,
        Opcode::ARM_XRC_SRQ => Kind::XrcSrq,
        Opcode::ARM_XRQ => Kind::Xrq,
        Opcode::MODIFY_TIR => Kind::Tir,
        Opcode::MODIFY_SQ => Kind::Sq,
        Opcode::MODIFY_RQ => Kind::Rq,
        Opcode::MODIFY_RMP => Kind::Rmp,
        Opcode::MODIFY_TIS => Kind::Tis,
        Opcode::MODIFY_RQT => Kind::Rqt,
        _ => return None,
    })
}

/// Returns the kind of object that a command asks about.
fn queried(opcode: Opcode) -> Option<Kind> {
    Some(match opcode {
        Opcode::QUERY_MKEY => Kind::Mkey,
        Opcode::QUERY_CQ => Kind::Cq,
        Opcode::QUERY_QP => Kind::Qp,
        Opcode::QUERY_DCT => Kind::Dct,
        Opcode::QUERY_XRC_SRQ => Kind::XrcSrq,
        Opcode::QUERY_XRQ => Kind::Xrq,
        Opcode::QUERY_Q_COUNTER => Kind::Counters,
        Opcode::QUERY_SQ => Kind::Sq,
        Opcode::QUERY_RQ => Kind::Rq,
        Opcode::QUERY_RMP => Kind::Rmp,
        Opcode::QUERY_TIR => Kind::Tir,
        Opcode::QUERY_TIS => Kind::Tis,
        Opcode::QUERY_RQT => Kind::Rqt,
        _ => return None,
    })
}

impl Command {
    /// Returns the number of the object that the command is about.
    fn number(&self) -> Result<u32> {
        if self.opcode == Opcode::QUERY_Q_COUNTER {
            const SET: usize = 0x1f;
            return self.input.get(SET).map(|set| u32::from(*set)).ok_or(EINVAL);
        }
        Ok(Numbered::from_prefix(&self.input).ok_or(EINVAL)?.number)
    }
}

/// Makes an object.
pub fn create(call: &mut Call, attrs: &Attrs) -> Result<()> {
    let uid = call.user()?;
    let mut command = Command::read(attrs, INPUT)?;
    let Some((kind, destroy)) = creation(command.opcode) else {
        return if is_creation(command.opcode) { answer(attrs, OUTPUT, &unknown_command()) } else { Err(EINVAL) };
    };
    let output = call.core.command(uid, &mut command.input, attrs.output(OUTPUT).len);
    if errno_of(&output).is_err() {
        return answer(attrs, OUTPUT, &output);
    }
    let number = Created::from_prefix(&output).ok_or(EINVAL)?.number;
    let handle = call.handles().insert(Vec::new(), DevxObject { id: Id(kind, number), destroy });
    let answered = answer(attrs, OUTPUT, &output).and_then(|()| attrs.put_new(HANDLE, handle));
    call.or_destroy(handle, answered)
}

/// Destroys an object.
pub fn destroy(call: &mut Call, attrs: &Attrs) -> Result<()> {
    call.destroy(attrs.handle(HANDLE)?, TYPE).map(drop)
}

/// Changes an object.
pub fn modify(call: &mut Call, attrs: &Attrs) -> Result<()> {
    run_on(call, attrs, changed)
}

/// Asks about an object.
pub fn query(call: &mut Call, attrs: &Attrs) -> Result<()> {
    run_on(call, attrs, queried)
}

fn run_on(call: &mut Call, attrs: &Attrs, kind: fn(Opcode) -> Option<Kind>) -> Result<()> {
    let uid = call.user()?;
    let mut command = Command::read(attrs, INPUT)?;
    call.check_object(attrs.handle(HANDLE)?, &command, kind)?;
    let output = call.core.command(uid, &mut command.input, attrs.output(OUTPUT).len);
    answer(attrs, OUTPUT, &output)
}

/// Asks about an object; the answer comes to an event file.
pub fn query_async(call: &mut Call, attrs: &Attrs) -> Result<()> {
    /// Bytes of answers that an event file holds.
    const MOST: usize = 1 << 20;
    let uid = call.user()?;
    let mut command = Command::read(attrs, INPUT)?;
    let len = usize::from(u16::try_from(attrs.constant(ASYNC_LEN)?).map_err(|_| EINVAL)?);
    call.check_object(attrs.handle(HANDLE)?, &command, queried)?;
    let fd = attrs.descriptor(ASYNC_FD)?.ok_or(EINVAL)?;
    let file = call.event_file(fd, EventKind::Answers)?;
    if len < usize::from(HEAD) {
        return Err(EINVAL);
    }
    if call.core.events.unread_bytes(file) + len > MOST {
        return Err(EAGAIN);
    }
    let id: u64 = attrs.get(ASYNC_ID)?;
    let output = call.core.command(uid, &mut command.input, len);
    call.core.events.push_answer(file, id, &output);
    Ok(())
}

impl Call<'_> {
    /// Checks that a command is about the object with this handle, which verbs or a command made.
    fn check_object(&mut self, handle: u32, command: &Command, kind: fn(Opcode) -> Option<Kind>) -> Result<()> {
        let id = Id(kind(command.opcode).ok_or(EINVAL)?, command.number()?);
        let made = self.get::<DevxObject>(handle).map(|object| object.id);
        let is_it = match made {
            Ok(made) => made == id,
            // The kernel knows no command about a domain or a region of verbs.
            Err(_) => OF_VERBS.contains(&self.handles().type_id(handle)?) && self.handles().ids(handle).contains(&id),
        };
        if is_it { Ok(()) } else { Err(EINVAL) }
    }

    pub(in super::super) fn destroy_devx_object(&mut self, handle: u32) -> Result<Reported> {
        let object = self.get::<DevxObject>(handle)?;
        let (id, destroy) = (object.id, object.destroy);
        let uid = self.uid();
        if let Id(Kind::Qp | Kind::Dct, _) = id {
            self.core.settle();
        }
        if let Id(Kind::Dct, number) = id {
            self.core.command_on(uid, Opcode::DRAIN_DCT, number)?;
        }
        self.core.command_on(uid, destroy, id.1)?;
        self.core.end_subscriptions(id);
        Ok(Reported::default())
    }

    /// Destroys all objects of commands, and their memory: users before what they use.
    pub(in super::super) fn destroy_all_devx(&mut self) {
        for type_id in [TYPE, super::umem::TYPE] {
            let mut left = usize::MAX;
            while self.handles().of_type(type_id).len() < left {
                let handles = self.handles().of_type(type_id);
                left = handles.len();
                for handle in handles {
                    // An object in use waits for its users.
                    let _ = self.destroy_object(handle, type_id);
                }
            }
        }
    }
}
