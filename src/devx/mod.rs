//! Objects that commands of the firmware make (DEVX), where libmlx5 makes none: the SRQ for tag matching on RoCE, and
//! the queue pairs on that SRQ.

mod events;
mod memory;
mod xrq;

use std::ffi::c_void;
use std::io;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use mlx5_wire::firmware::command::{Created, Numbered, Opcode, Reply, Request};
use rdma_core_sys::{self as sys, Mlx5dv};

use self::events::Events;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::mlx5;
use crate::pd::ProtectionDomain;

pub(crate) use memory::QueueMemory;
pub(crate) use xrq::Xrq;

/// Bytes of the commands that make and change queues.
pub(crate) const LONG: usize = 0x110;

/// Domain, register and event file of the objects that commands make.
pub(crate) struct Firmware {
    pd: ProtectionDomain,
    mlx5dv: &'static Mlx5dv,
    pdn: u32,
    register: *mut sys::mlx5dv_devx_uar,
    events: Events,
}

// SAFETY: the functions of libmlx5 are thread-safe (ibverbs(7)); who writes to the register is the business of the
// queues.
unsafe impl Send for Firmware {}
// SAFETY: the reason for `Send` holds for shared references, too.
unsafe impl Sync for Firmware {}

impl Firmware {
    /// Allocates a register and opens a file for events.
    pub(crate) fn new(pd: &ProtectionDomain, mlx5dv: &'static Mlx5dv) -> Result<Arc<Self>> {
        let context = pd.context();
        let pdn = mlx5::pdn(mlx5dv, pd.as_raw()).map_err(|error| context.not_direct(error))?;
        let events = Events::open(context, mlx5dv)?;
        // SAFETY: an open context.
        let register = unsafe { (mlx5dv.devx_alloc_uar)(context.as_raw(), sys::MLX5DV_UAR_ALLOC_TYPE_BF) };
        if register.is_null() {
            return Err(Error::last_os("mlx5dv_devx_alloc_uar", context.name()));
        }
        Ok(Arc::new(Self { pd: pd.clone(), mlx5dv, pdn, register, events }))
    }

    pub(crate) fn context(&self) -> &Context {
        self.pd.context()
    }

    pub(crate) const fn mlx5dv(&self) -> &'static Mlx5dv {
        self.mlx5dv
    }

    /// Returns the number of the domain.
    pub(crate) const fn pdn(&self) -> u32 {
        self.pdn
    }

    pub(crate) const fn events(&self) -> &Events {
        &self.events
    }

    /// Returns the number of the page of the register, and the register.
    pub(crate) fn register(&self) -> (u32, Option<NonNull<u8>>) {
        // SAFETY: the structure lives as long as the value.
        let register = unsafe { &*self.register };
        (register.page_id, NonNull::new(register.reg_addr.cast()))
    }

    /// Makes an object by a command, whose queue lies in `memory`.
    pub(crate) fn create(self: &Arc<Self>, command: &[u8], memory: QueueMemory) -> Result<Object> {
        let mut output = [0; Created::SIZE];
        let to = output.as_mut_ptr().cast();
        let (context, input) = (self.context(), command.as_ptr().cast());
        // SAFETY: an open context, and two areas with their lengths.
        let object = unsafe { (self.mlx5dv.devx_obj_create)(context.as_raw(), input, command.len(), to, output.len()) };
        if object.is_null() {
            let error = io::Error::last_os_error();
            return Err(refused("mlx5dv_devx_obj_create", context, command, &output, error));
        }
        let number = Created::from_bytes(&output).number;
        Ok(Object { object, number, memory: ManuallyDrop::new(memory), firmware: Arc::clone(self) })
    }
}

impl Drop for Firmware {
    fn drop(&mut self) {
        if self.context().owner().is_this_process() {
            // SAFETY: allocated by us, freed once; every queue that rings there held this value.
            unsafe { (self.mlx5dv.devx_free_uar)(self.register) }
        }
    }
}

/// An object that a command made, and the memory of its queue.
pub(crate) struct Object {
    /// Null when destroyed.
    object: *mut sys::mlx5dv_devx_obj,
    number: u32,
    memory: ManuallyDrop<QueueMemory>,
    firmware: Arc<Firmware>,
}

// SAFETY: the functions of libmlx5 are thread-safe (ibverbs(7)).
unsafe impl Send for Object {}
// SAFETY: the reason for `Send` holds for shared references, too.
unsafe impl Sync for Object {}

impl Object {
    pub(crate) const fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn memory(&self) -> &QueueMemory {
        &self.memory
    }

    pub(crate) const fn firmware(&self) -> &Arc<Firmware> {
        &self.firmware
    }

    /// Executes a command that changes the object.
    pub(crate) fn modify(&self, command: &[u8]) -> Result<()> {
        let function = self.firmware.mlx5dv.devx_obj_modify;
        self.execute("mlx5dv_devx_obj_modify", function, command, &mut [0; Created::SIZE])
    }

    /// Executes a command that has no more than the number of the object.
    pub(crate) fn modify_numbered(&self, opcode: Opcode) -> Result<()> {
        self.modify(&self.numbered(opcode))
    }

    /// Asks about the object.
    pub(crate) fn query(&self, opcode: Opcode, answer: &mut [u8]) -> Result<()> {
        let function = self.firmware.mlx5dv.devx_obj_query;
        self.execute("mlx5dv_devx_obj_query", function, &self.numbered(opcode), answer)
    }

    fn numbered(&self, opcode: Opcode) -> [u8; Numbered::SIZE] {
        Numbered { request: Request::new(opcode), number: self.number, ..Numbered::ZERO }.to_bytes()
    }

    fn execute(&self, name: &'static str, function: Function, command: &[u8], answer: &mut [u8]) -> Result<()> {
        let (input, to) = (command.as_ptr().cast(), answer.as_mut_ptr().cast());
        // SAFETY: a live object, and two areas with their lengths.
        let errno = unsafe { function(self.object, input, command.len(), to, answer.len()) };
        if errno == 0 {
            return Ok(());
        }
        Err(refused(name, self.firmware.context(), command, answer, io::Error::from_raw_os_error(errno)))
    }

    /// Destroys the object and frees its memory. Returns `false`, and keeps the memory for ever, if the firmware
    /// refuses.
    pub(crate) fn destroy(&mut self) -> bool {
        let object = std::mem::replace(&mut self.object, ptr::null_mut());
        let context = self.firmware.context();
        if object.is_null() || !context.owner().is_this_process() {
            return false;
        }
        // SAFETY: made by us, destroyed once.
        let errno = unsafe { (self.firmware.mlx5dv.devx_obj_destroy)(object) };
        if !context.destroyed("mlx5dv_devx_obj_destroy", errno) {
            return false;
        }
        // SAFETY: dropped once, for the object is gone; the device does not use the memory any more.
        unsafe { ManuallyDrop::drop(&mut self.memory) };
        true
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        self.destroy();
    }
}

/// A function of libmlx5 that executes a command about an object.
type Function = unsafe extern "C" fn(*mut sys::mlx5dv_devx_obj, *const c_void, usize, *mut c_void, usize) -> i32;

/// Describes why a command was not executed. The answer of a refused command has status and syndrome.
fn refused(function: &'static str, context: &Context, command: &[u8], answer: &[u8], error: io::Error) -> Error {
    let opcode = Opcode(Request::from_prefix(command).map_or(0, |request| request.opcode));
    let source = match (Reply::from_prefix(answer), opcode.name()) {
        (Some(Reply { status, syndrome }), Some(name)) if status != 0 => io::Error::other(format!(
            "the firmware refused {name} (status {status:#x}, syndrome {syndrome:#x}): {error}"
        )),
        _ => error,
    };
    Error::verbs(function, context.name(), source)
}
