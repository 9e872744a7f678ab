//! UMEMs: memory of the program for queues and keys that it makes by commands.

use mlx5_wire::firmware::command::Opcode;

use super::super::async_event::Reported;
use super::super::attrs::{Attrs, Carries, FLAGS, Spec, exactly, room};
use super::super::errno::{EINVAL, ENOMEM};
use super::super::mapping::Mapping;
use super::super::memlock::Pinned;
use super::super::mr::{access, check_access};
use super::super::{Call, dmabuf};
use crate::objects::Result;

/// A UMEM.
#[derive(Debug)]
pub struct Umem {
    number: u32,
    _memory: Memory,
}

#[derive(Debug)]
enum Memory {
    Program { _pinned: Pinned },
    DmaBuf { _mapping: Mapping },
}

/// Object type (`MLX5_IB_OBJECT_DEVX_UMEM`).
pub const TYPE: u16 = 0x1002;

const HANDLE: u16 = 0x1000;
const ADDR: u16 = 0x1001;
const LEN: u16 = 0x1002;
const ACCESS: u16 = 0x1003;
const OUT_ID: u16 = 0x1004;
const PAGE_SIZES: u16 = 0x1005;
const DMA_BUF: u16 = 0x1006;

/// Attributes of the registration.
pub const REGISTER: &[Spec] = &[
    Spec::needs(HANDLE, Carries::New),
    Spec::needs(ADDR, exactly(8)),
    Spec::needs(LEN, exactly(8)),
    Spec::takes(ACCESS, FLAGS),
    Spec::takes(PAGE_SIZES, exactly(8)),
    Spec::takes(DMA_BUF, exactly(4)),
    Spec::needs(OUT_ID, room(4)),
];
/// Attributes of the end of a registration.
pub const DEREGISTER: &[Spec] = &[Spec::needs(HANDLE, Carries::Handle)];

const ALLOWED: u32 = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ;
const LOG_PAGE: u32 = 12;

/// Returns `true` if one of these page sizes suits the memory. Pages of 4096 bytes always do, larger ones must begin
/// and end with the memory.
fn suits(sizes: u64, addr: u64, len: u64) -> bool {
    let largest = len.checked_next_power_of_two().map_or(63, u64::ilog2).max(LOG_PAGE);
    (LOG_PAGE..=largest).filter(|log| sizes >> log & 1 != 0).any(|log| {
        let in_page = (1u64 << log) - 1;
        log == LOG_PAGE || (addr | len) & in_page == 0
    })
}

/// Registers memory. The offset of a dma-buf stands in place of the address.
pub fn register(call: &mut Call, attrs: &Attrs) -> Result<()> {
    let uid = call.user()?;
    let [addr, len]: [u64; 2] = [attrs.get(ADDR)?, attrs.get(LEN)?];
    let rights = attrs.flags(ACCESS, ALLOWED)?;
    check_access(rights)?;
    let sizes = if attrs.has(PAGE_SIZES) { attrs.get(PAGE_SIZES)? } else { u64::MAX };
    if len == 0 || !suits(sizes, addr, len) {
        return Err(EINVAL);
    }
    let writable = rights & access::WRITING != 0;
    let (addr, memory) = if attrs.has(DMA_BUF) {
        let fd: u32 = attrs.get(DMA_BUF)?;
        let mapping = dmabuf::map(fd as i32, addr, len, writable)?;
        (mapping.addr() + addr, Memory::DmaBuf { _mapping: mapping })
    } else {
        (addr, Memory::Program { _pinned: call.core.memlock.pin(addr, len, writable)? })
    };
    let number = call.core.commands.create_umem_of_process(uid, addr, len).map_err(|_| ENOMEM)?;
    let handle = call.handles().insert(Vec::new(), Umem { number, _memory: memory });
    let answered = attrs.put(OUT_ID, &number).and_then(|()| attrs.put_new(HANDLE, handle));
    call.or_destroy(handle, answered)
}

/// Ends a registration.
pub fn deregister(call: &mut Call, attrs: &Attrs) -> Result<()> {
    call.destroy(attrs.handle(HANDLE)?, TYPE).map(drop)
}

impl Call<'_> {
    pub(in super::super) fn destroy_umem(&mut self, handle: u32) -> Result<Reported> {
        let number = self.get::<Umem>(handle)?.number;
        let uid = self.uid();
        self.core.command_on(uid, Opcode::DESTROY_UMEM, number)?;
        Ok(Reported::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_pages_begin_and_end_with_the_memory() {
        assert!(suits(u64::MAX, 0x1234, 1));
        assert!(!suits(1 << 16, 0x1000, 1 << 16));
        assert!(suits(1 << 16, 1 << 16, 3 << 16));
        assert!(!suits(1 << 16, 1 << 16, (3 << 16) + 1));
        assert!(!suits(1 << 20, 1 << 20, 1 << 16), "a page that is larger than the memory");
        assert!(!suits(0, 0, 1) && !suits(1 << 11, 0, 1 << 20));
    }
}
