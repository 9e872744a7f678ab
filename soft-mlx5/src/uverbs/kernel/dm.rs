//! Device memory: memory of the adapter, which the program maps and registers.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use super::async_event::Reported;
use super::attrs::{Attrs, CONSTANT, Carries, FLAGS, Spec, exactly, room};
use super::errno::{EINVAL, ENOMEM, EOPNOTSUPP, EPERM};
use super::mapping::{MapRequest, Mapping};
use super::mr::{Memory, access, check_access};
use super::pd::Pd;
use super::{Call, capability};
use crate::commands::limits;
use crate::commands::objects::Kind;
use crate::objects::{MkeyAttr, Result};

/// Object type (`UVERBS_OBJECT_DM`).
pub const TYPE: u16 = 14;

const PAGE: u64 = 4096;
const BLOCK: u64 = 64;
const LOG_BLOCK: u32 = 6;

/// A piece of device memory, in pages of its own.
#[derive(Debug)]
pub struct Dm {
    // Each piece has a file, so that a mapping that outlives the piece shows no other piece.
    file: OwnedFd,
    memory: Mapping,
    length: u64,
    pages: u64,
    // Its number in the offsets of mappings.
    number: u32,
}

const HANDLE: u16 = 0;
const LENGTH: u16 = 1;
const ALIGNMENT: u16 = 2;
const RESP_START_OFFSET: u16 = 0x1000;
const RESP_PAGE_INDEX: u16 = 0x1001;
const REQ_TYPE: u16 = 0x1002;

/// Attributes of the allocation.
pub const ALLOC: &[Spec] = &[
    Spec::needs(HANDLE, Carries::New),
    Spec::needs(LENGTH, exactly(8)),
    Spec::needs(ALIGNMENT, exactly(4)),
    Spec::needs(RESP_START_OFFSET, room(8)),
    Spec::needs(RESP_PAGE_INDEX, room(2)),
    Spec::takes(REQ_TYPE, CONSTANT),
];

const TYPE_MEMIC: u32 = 0;
// Memory for steering rules and header modification, of which the device has none.
const LAST_STEERING_TYPE: u32 = 3;

// Each piece begins at the start of its page.
const START_OFFSET: u64 = 0;

/// Allocates device memory.
pub fn alloc(call: &mut Call, attrs: &Attrs) -> Result<()> {
    call.context()?;
    let length: u64 = attrs.get(LENGTH)?;
    let log_alignment: u32 = attrs.get(ALIGNMENT)?;
    let kind = if attrs.has(REQ_TYPE) { attrs.constant(REQ_TYPE)? } else { TYPE_MEMIC };
    match kind {
        TYPE_MEMIC => {}
        1..=LAST_STEERING_TYPE if !capability::has(capability::RAW_IO) => return Err(EPERM),
        1..=LAST_STEERING_TYPE if !capability::has(capability::NET_RAW) => return Err(EPERM),
        _ => return Err(EOPNOTSUPP),
    }
    let highest = LOG_BLOCK + limits::LOG_MAX_DM_ALIGNMENT;
    if length == 0 || log_alignment > highest {
        return Err(EINVAL);
    }
    let size = length.checked_next_multiple_of(BLOCK).ok_or(EINVAL)?;
    let pages = size.div_ceil(PAGE);
    if pages > limits::MAX_DM_SIZE / PAGE - call.core.dm_pages {
        return Err(ENOMEM);
    }
    let dm = Dm::new(length, pages, call.free_dm_number())?;
    let number = dm.number as u16;
    call.core.dm_pages += pages;
    let handle = call.enter_new(Kind::DeviceMemory, &[], dm)?;
    let answered = attrs
        .put(RESP_START_OFFSET, &START_OFFSET)
        .and_then(|()| attrs.put(RESP_PAGE_INDEX, &number))
        .and_then(|()| attrs.put_new(HANDLE, handle));
    call.or_destroy(handle, answered)
}

impl Dm {
    fn new(length: u64, pages: u64, number: u32) -> Result<Self> {
        // SAFETY: the name is a string.
        let fd = unsafe { libc::memfd_create(c"soft-mlx5-dm".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(ENOMEM);
        }
        // SAFETY: the descriptor was just made and has no other owner.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: no memory is involved.
        if unsafe { libc::ftruncate(fd, (pages * PAGE) as libc::off_t) } != 0 {
            return Err(ENOMEM);
        }
        let memory = Mapping::new(fd, pages * PAGE, true)?;
        Ok(Self { file, memory, length, pages, number })
    }
}

impl Call<'_> {
    fn free_dm_number(&mut self) -> u32 {
        let all = self.handles().of_type(TYPE);
        let taken =
            |number: &u32| all.iter().any(|handle| self.get::<Dm>(*handle).is_ok_and(|dm| dm.number == *number));
        (0..).find(|number| !taken(number)).expect("fewer than 2^32 objects")
    }

    pub(super) fn free_dm(&mut self, handle: u32) -> Result<Reported> {
        let pages = self.get::<Dm>(handle)?.pages;
        self.core.dm_pages -= pages;
        Ok(Reported::default())
    }
}

/// Returns the memory of a mapping of the piece with this number.
pub fn map(call: &mut Call, number: u32, request: &MapRequest) -> Result<(RawFd, u64)> {
    for handle in call.handles().of_type(TYPE) {
        let dm = call.get::<Dm>(handle)?;
        if dm.number == number {
            let shared = request.flags & libc::MAP_SHARED != 0;
            let fits = shared && request.length == dm.pages * PAGE;
            return if fits { Ok((dm.file.as_raw_fd(), 0)) } else { Err(EINVAL) };
        }
    }
    Err(EINVAL)
}

const REG_OFFSET: u16 = 1;
const REG_LENGTH: u16 = 2;
const REG_PD: u16 = 3;
const REG_ACCESS: u16 = 4;
const REG_DM: u16 = 5;
const REG_RESP_LKEY: u16 = 6;
const REG_RESP_RKEY: u16 = 7;

/// Attributes of the registration.
pub const REGISTER: &[Spec] = &[
    Spec::needs(HANDLE, Carries::New),
    Spec::needs(REG_OFFSET, exactly(8)),
    Spec::needs(REG_LENGTH, exactly(8)),
    Spec::needs(REG_PD, Carries::Handle),
    Spec::needs(REG_ACCESS, FLAGS),
    Spec::needs(REG_DM, Carries::Handle),
    Spec::needs(REG_RESP_LKEY, room(4)),
    Spec::needs(REG_RESP_RKEY, room(4)),
];

/// Registers a part of device memory, whose addresses count from 0.
pub fn register(call: &mut Call, attrs: &Attrs) -> Result<()> {
    const ALLOWED: u32 =
        access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC | access::ZERO_BASED;
    let (dm_handle, pd) = (attrs.handle(REG_DM)?, attrs.handle(REG_PD)?);
    let (whole, start) = {
        let dm = call.get::<Dm>(dm_handle)?;
        (dm.length, dm.memory.addr())
    };
    call.get::<Pd>(pd)?;
    let [offset, length]: [u64; 2] = [attrs.get(REG_OFFSET)?, attrs.get(REG_LENGTH)?];
    let flags = attrs.flags(REG_ACCESS, access::KNOWN)?;
    if flags & access::ZERO_BASED == 0 {
        return Err(EINVAL);
    }
    check_access(flags)?;
    let inside = offset <= whole && length <= whole - offset;
    if !inside || flags & !ALLOWED != 0 {
        return Err(EINVAL);
    }
    let attr = MkeyAttr { pd: call.get::<Pd>(pd)?.pdn, va: start + offset, iova: 0, length, access: flags };
    let memory = Memory { dm: Some(dm_handle), ..Memory::default() };
    let (handle, mkey) = call.add_mr(pd, attr, memory)?;
    let answered = attrs
        .put(REG_RESP_LKEY, &mkey.0)
        .and_then(|()| attrs.put(REG_RESP_RKEY, &mkey.0))
        .and_then(|()| attrs.put_new(HANDLE, handle));
    call.or_destroy(handle, answered)
}

const DRIVER_HANDLE: u16 = 0x1000;

/// Attributes of the question where a piece is mapped.
pub const QUERY: &[Spec] = &[
    Spec::needs(DRIVER_HANDLE, Carries::Handle),
    Spec::needs(0x1001, room(8)),
    Spec::needs(0x1002, room(2)),
    Spec::needs(0x1003, room(8)),
];

/// Says where a piece is mapped, to a program that imports it.
pub fn query(call: &mut Call, attrs: &Attrs) -> Result<()> {
    let dm = call.get::<Dm>(attrs.handle(DRIVER_HANDLE)?)?;
    attrs.put(0x1001, &START_OFFSET)?;
    attrs.put(0x1002, &(dm.number as u16))?;
    attrs.put(0x1003, &dm.length)
}

/// Attributes of the mapping of an operation, such as an atomic, on a piece.
pub const MAP_OPERATION: &[Spec] = &[
    Spec::needs(DRIVER_HANDLE, Carries::Handle),
    Spec::needs(0x1001, exactly(1)),
    Spec::needs(0x1002, room(8)),
    Spec::needs(0x1003, room(2)),
];

/// Refuses the mapping of an operation on device memory: the device offers no such operation.
pub fn map_operation(call: &mut Call, attrs: &Attrs) -> Result<()> {
    call.get::<Dm>(attrs.handle(DRIVER_HANDLE)?)?;
    Err(EOPNOTSUPP)
}
