//! DEVX: programs issue commands of the firmware.
//!
//! A context that was opened with DEVX has a user of the firmware. Its commands go to [`Commands`] in the name of this
//! user, whatever the program wrote there, and so do the objects that it makes by verbs: a command may refer to both.
//! [`object`] makes and changes objects, [`umem`] names memory for them, [`events`] delivers their events. This module
//! has the commands about no object.
//!
//! [`Commands`]: crate::commands::Commands

pub mod events;
pub mod object;
pub mod umem;

use mlx5_wire::firmware::command::{Created, Numbered, Opcode, Reply, Request, Status};

use super::attrs::{Attrs, Carries, Spec, exactly, room};
use super::errno::{EAGAIN, EBUSY, EINVAL, EIO, ENOMEM, EOPNOTSUPP, EREMOTEIO};
use super::{Call, Core};
use crate::objects::memory::Space;
use crate::objects::{Errno, Result};

/// Bytes of the head of a command and of an answer that programs give at least.
const HEAD: u16 = 16;
const COMMAND: Carries = Carries::In(HEAD, u16::MAX);
const ANSWER: Carries = Carries::Out(HEAD, u16::MAX);

const INPUT: u16 = 0x1000;
const OUTPUT: u16 = 0x1001;

/// Attributes of a command about no object.
pub const OTHER: &[Spec] = &[Spec::needs(INPUT, COMMAND), Spec::needs(OUTPUT, ANSWER)];
/// Attributes of the queries for the number of a UAR page and of an event queue.
pub const QUERY_NUMBER: &[Spec] = &[Spec::needs(INPUT, exactly(4)), Spec::needs(OUTPUT, room(4))];

/// A command as a program wrote it.
struct Command {
    opcode: Opcode,
    input: Vec<u8>,
}

impl Command {
    fn read(attrs: &Attrs, id: u16) -> Result<Self> {
        let input = attrs.input(id).bytes(0, usize::MAX)?;
        let opcode = Opcode(Request::from_prefix(&input).ok_or(EINVAL)?.opcode);
        Ok(Self { opcode, input })
    }
}

/// Returns the error of the kernel for an answer, where the program does not get the answer itself.
fn errno_of(output: &[u8]) -> Result<()> {
    const KNOWN: &[(Status, Errno)] = &[
        (Status::BadOp, EINVAL),
        (Status::BadParam, EINVAL),
        (Status::BadResource, EINVAL),
        (Status::Busy, EBUSY),
        (Status::Limit, ENOMEM),
        (Status::BadResourceState, EINVAL),
        (Status::BadIndex, EINVAL),
        (Status::NoResources, EAGAIN),
        (Status::BadQpState, EINVAL),
    ];
    let status = Reply::from_prefix(output).map_or(Status::InternalError as u8, |reply| reply.status);
    let known = KNOWN.iter().find(|(known, _)| *known as u8 == status);
    match known {
        _ if status == Status::Ok as u8 => Ok(()),
        Some((_, errno)) => Err(*errno),
        None => Err(EIO),
    }
}

/// Hands an answer to the program, also that of a refused command.
fn answer(attrs: &Attrs, id: u16, output: &[u8]) -> Result<()> {
    attrs.output(id).put_bytes(output)?;
    attrs.mark_written(id)?;
    errno_of(output).map_err(|_| EREMOTEIO)
}

impl Core {
    /// Executes a command in the name of a user; returns the answer.
    fn command(&mut self, uid: u16, input: &mut [u8], room: usize) -> Vec<u8> {
        // The kernel writes the user into each command.
        input[2..4].copy_from_slice(&uid.to_be_bytes());
        let mut output = vec![0; room];
        self.commands.execute(&mut self.nic, &Space::Process, input, &mut output);
        output
    }

    /// Executes a command that has no more than a number.
    fn command_on(&mut self, uid: u16, opcode: Opcode, number: u32) -> Result<()> {
        let mut input = Numbered { request: Request::new(opcode), number, parameter: 0 }.to_bytes();
        errno_of(&self.command(uid, &mut input, usize::from(HEAD)))
    }

    /// Makes a user of the firmware.
    pub(super) fn create_user(&mut self) -> Result<u16> {
        let mut input = Numbered { request: Request::new(Opcode::CREATE_UCTX), ..Numbered::ZERO }.to_bytes();
        let output = self.command(0, &mut input, usize::from(HEAD));
        errno_of(&output)?;
        Ok(Created::from_prefix(&output).map_or(0, |created| created.number as u16))
    }

    /// Ends the user of a context that has no objects any more. A context without DEVX has none.
    pub(super) fn destroy_user(&mut self, uid: u16) {
        if uid == 0 {
            return;
        }
        let ended = self.command_on(0, Opcode::DESTROY_UCTX, uid.into());
        debug_assert!(ended.is_ok(), "user {uid} has objects");
    }
}

impl Call<'_> {
    /// Returns the user of the context. A context without DEVX has none.
    fn user(&mut self) -> Result<u16> {
        self.context()?;
        match self.uid() {
            0 => Err(EINVAL),
            uid => Ok(uid),
        }
    }

    /// Returns the user in whose name the program may ask: where the device has users, the kernel asks the most common
    /// questions for every context.
    fn asker(&mut self, opcode: Opcode) -> Result<u16> {
        self.context()?;
        match (self.uid(), opcode) {
            (0, Opcode::QUERY_HCA_CAP | Opcode::QUERY_HCA_VPORT_CONTEXT) if self.core.devx => Ok(0),
            (0, Opcode::QUERY_HCA_CAP | Opcode::QUERY_HCA_VPORT_CONTEXT) => Err(EOPNOTSUPP),
            (0, _) => Err(EINVAL),
            (uid, _) => Ok(uid),
        }
    }
}

/// Returns `true` for a command about no object. The firmware refuses those that it does not have.
fn is_general(opcode: Opcode) -> bool {
    const QUERY_ESW_VPORT_CONTEXT: u16 = 0x752;
    const QUERY_VNIC_ENV: u16 = 0x76f;
    const QUERY_CONG_STATUS: u16 = 0x822;
    const QUERY_CONG_PARAMS: u16 = 0x824;
    const QUERY_CONG_STATISTICS: u16 = 0x826;
    const NOP: u16 = 0x80d;
    match opcode {
        Opcode::QUERY_HCA_CAP
        | Opcode::QUERY_ADAPTER
        | Opcode::QUERY_ISSI
        | Opcode::QUERY_VPORT_STATE
        | Opcode::QUERY_NIC_VPORT_CONTEXT
        | Opcode::QUERY_ROCE_ADDRESS
        | Opcode::QUERY_HCA_VPORT_CONTEXT
        | Opcode::QUERY_VPORT_COUNTER
        | Opcode::QUERY_LAG => true,
        Opcode(QUERY_ESW_VPORT_CONTEXT | QUERY_VNIC_ENV | NOP) => true,
        Opcode(QUERY_CONG_STATUS | QUERY_CONG_PARAMS | QUERY_CONG_STATISTICS) => true,
        Opcode(code) => (0xb00..0xd00).contains(&code),
    }
}

/// Executes a command about no object.
pub fn other(call: &mut Call, attrs: &Attrs) -> Result<()> {
    let mut command = Command::read(attrs, INPUT)?;
    let uid = call.asker(command.opcode)?;
    if !is_general(command.opcode) {
        return Err(EINVAL);
    }
    let output = call.core.command(uid, &mut command.input, attrs.output(OUTPUT).len);
    answer(attrs, OUTPUT, &output)
}

/// Returns the number of the UAR page of a register of a thread domain.
pub fn query_uar(call: &mut Call, attrs: &Attrs) -> Result<()> {
    let register: u32 = attrs.get(INPUT)?;
    let place = call.context()?.dynamic_register(register as usize).ok_or(EINVAL)?;
    attrs.put(OUTPUT, &place.page)
}

/// Returns the number of the event queue of a completion vector.
pub fn query_eqn(call: &mut Call, attrs: &Attrs) -> Result<()> {
    let vector: u32 = attrs.get(INPUT)?;
    call.context()?;
    if vector >= call.core.vectors {
        return Err(EINVAL);
    }
    attrs.put(OUTPUT, &call.core.commands.eqn(vector))
}
