//! UAR pages and BlueFlame registers of a context, and the memory of its mappings.

use std::os::fd::RawFd;

use super::errno::{EBUSY, EINVAL, ENOMEM, ENOSYS, EPERM};
use super::mapping::MapRequest;
use super::{Call, dm};
use crate::commands::objects::{Entry, Id, Kind, Objects};
use crate::objects::{Register, Result};

const PAGE: u64 = 4096;
const FIRST_BFREG: u32 = 0x800;

/// Bytes of a register, two halves.
pub const BFREG_SIZE: usize = 512;
/// Registers of a page that software may use; the other two are the fast path's.
pub const BFREGS_PER_PAGE: usize = 2;
const GROSS_BFREGS_PER_PAGE: usize = 4;
/// Registers that a context starts with: as many as the library can map.
pub const STATIC_BFREGS: usize = 512;
/// Contexts that get all of these registers. Others get as many as they ask for, which is 16 unless `MLX5_TOTAL_UUARS`
/// says otherwise: a process has some 65,000 mappings, and each page takes two.
const LARGE_CONTEXTS: usize = 32;
/// Registers of the thread domains.
pub const DYNAMIC_BFREGS: usize = 512;

/// Allocates a page for the user of a context.
pub fn allocate(objects: &mut Objects, uid: u16) -> Result<u32> {
    objects.insert_new(Kind::Uar, Entry { uid, ..Entry::default() }).map_err(|_| ENOMEM)
}

/// Returns the number of registers of the next context, which asks for `wanted`.
pub fn registers(objects: &Objects, wanted: usize) -> usize {
    let many = objects.count(Kind::Uar) < LARGE_CONTEXTS * (STATIC_BFREGS / BFREGS_PER_PAGE);
    if many { STATIC_BFREGS } else { wanted.min(STATIC_BFREGS) }
}

/// The driver's state of an open file.
#[derive(Debug)]
pub struct Context {
    /// 1 when CQEs carry user indices.
    pub cqe_version: u8,
    /// User of its objects; 0 without DEVX.
    pub uid: u16,
    /// Transport domain of its frames; 0 on InfiniBand.
    pub domain: u32,
    static_pages: Vec<u32>,
    dynamic_pages: Vec<Option<u32>>,
    // Pages of UAR objects; each object releases its page itself.
    object_pages: Vec<Option<u32>>,
    // QPs on each register.
    users: Vec<u32>,
}

impl Context {
    /// Makes a context with its first registers.
    pub fn new(objects: &mut Objects, uid: u16, cqe_version: u8, bfregs: usize) -> Result<Self> {
        let mut context = Self {
            cqe_version,
            uid,
            domain: 0,
            static_pages: Vec::new(),
            dynamic_pages: vec![None; DYNAMIC_BFREGS / BFREGS_PER_PAGE],
            object_pages: Vec::new(),
            users: vec![0; bfregs],
        };
        for _ in 0..bfregs / BFREGS_PER_PAGE {
            match allocate(objects, uid) {
                Ok(page) => context.static_pages.push(page),
                Err(error) => {
                    context.release(objects);
                    return Err(error);
                }
            }
        }
        Ok(context)
    }

    /// Returns the number of registers that it started with.
    pub fn bfregs(&self) -> usize {
        self.users.len()
    }

    /// Makes a context whose library manages UAR objects.
    pub fn of_objects(uid: u16, cqe_version: u8) -> Self {
        Self {
            cqe_version,
            uid,
            domain: 0,
            static_pages: Vec::new(),
            dynamic_pages: Vec::new(),
            object_pages: Vec::new(),
            users: Vec::new(),
        }
    }

    /// Returns `true` if the library manages UAR objects.
    pub fn has_objects(&self) -> bool {
        self.static_pages.is_empty()
    }

    /// Adds the page of an object; returns its number.
    pub fn add_object_page(&mut self, page: u32) -> u32 {
        let free = self.object_pages.iter().position(Option::is_none);
        let number = free.unwrap_or_else(|| {
            self.object_pages.push(None);
            self.object_pages.len() - 1
        });
        self.object_pages[number] = Some(page);
        number as u32
    }

    /// Takes the page of an object out.
    pub fn remove_object_page(&mut self, number: u32) {
        if let Some(page) = self.object_pages.get_mut(number as usize) {
            *page = None;
        }
    }

    /// Gives the pages back.
    pub fn release(self, objects: &mut Objects) {
        let dynamic = self.dynamic_pages.into_iter().flatten();
        for page in self.static_pages.into_iter().chain(dynamic) {
            objects.remove(Id(Kind::Uar, page));
        }
        objects.remove(Id(Kind::TransportDomain, self.domain));
    }

    /// Returns the page whose doorbell arms the CQs of this context.
    pub fn cq_page(&self) -> Result<u32> {
        self.static_pages.first().copied().ok_or(EINVAL)
    }

    /// Takes the register that the fewest QPs use. Register 0 has no BlueFlame and comes last.
    pub fn allocate_bfreg(&mut self) -> Result<usize> {
        if self.has_objects() {
            return Err(EINVAL);
        }
        let order = (1..self.bfregs()).chain([0]);
        let bfreg = order.min_by_key(|&bfreg| self.users[bfreg]).unwrap_or(0);
        self.users[bfreg] += 1;
        Ok(bfreg)
    }

    /// Takes a QP off its register.
    pub fn release_bfreg(&mut self, bfreg: usize) {
        self.users[bfreg] -= 1;
    }

    /// Returns the place of a register.
    pub fn register(&self, bfreg: usize) -> Register {
        place(self.static_pages[bfreg / BFREGS_PER_PAGE], bfreg)
    }

    /// Returns the place of a register of a thread domain, if its page was mapped.
    pub fn dynamic_register(&self, bfreg: usize) -> Option<Register> {
        let page = self.dynamic_pages.get(bfreg / BFREGS_PER_PAGE).copied().flatten()?;
        Some(place(page, bfreg))
    }
}

fn place(page: u32, bfreg: usize) -> Register {
    let offset = FIRST_BFREG + (bfreg % BFREGS_PER_PAGE * BFREG_SIZE) as u32;
    Register { page, offset }
}

/// Returns the library's number of a register, which also counts the registers of the fast path.
pub fn gross(bfreg: usize) -> u32 {
    (bfreg / BFREGS_PER_PAGE * GROSS_BFREGS_PER_PAGE + bfreg % BFREGS_PER_PAGE) as u32
}

const REGULAR_PAGE: u64 = 0;
const CONTIGUOUS_PAGES: u64 = 1;
const WC_PAGE: u64 = 2;
const NC_PAGE: u64 = 3;
const CORE_CLOCK: u64 = 5;
const ALLOC_WC: u64 = 6;
const CLOCK_INFO: u64 = 7;
const DEVICE_MEMORY: u64 = 8;
const OBJECT: u64 = 9;

/// Returns the offset at which the page of the object with this number is mapped.
pub fn object_offset(number: u32) -> u64 {
    let number = u64::from(number);
    (number >> 8 << 16 | OBJECT << 8 | number & 0xff) * PAGE
}

/// Returns the memory of a mapping of a UAR page, of a page of the clock, or of device memory.
pub fn map(call: &mut Call, request: MapRequest) -> Result<(RawFd, u64)> {
    let context = call.context()?;
    let page = request.offset / PAGE;
    let command = page >> 8 & 0xff;
    let index = match command {
        REGULAR_PAGE | WC_PAGE | NC_PAGE => {
            check_uar(&request)?;
            *context.static_pages.get((page & 0xff) as usize).ok_or(EINVAL)?
        }
        ALLOC_WC => {
            check_uar(&request)?;
            let index = (page & 0xff | (page >> 16 & 0xff) << 8) as usize;
            let dynamic = context.dynamic_pages.get(index).ok_or(EINVAL)?;
            if dynamic.is_some() {
                return Err(EBUSY);
            }
            let uid = context.uid;
            let page = allocate(&mut call.core.commands.objects, uid)?;
            call.context()?.dynamic_pages[index] = Some(page);
            page
        }
        OBJECT => {
            check_uar(&request)?;
            let number = (page & 0xff | page >> 16 << 8) as usize;
            context.object_pages.get(number).copied().flatten().ok_or(EINVAL)?
        }
        DEVICE_MEMORY => {
            let number = page & 0xff | page >> 16 << 8;
            return dm::map(call, number as u32, &request);
        }
        CONTIGUOUS_PAGES => return Err(ENOSYS),
        CORE_CLOCK | CLOCK_INFO if request.length != PAGE => return Err(EINVAL),
        CORE_CLOCK | CLOCK_INFO if request.protection & libc::PROT_WRITE != 0 => return Err(EPERM),
        CORE_CLOCK => return Ok(call.core.clock_pages.clock()),
        CLOCK_INFO => return Ok(call.core.clock_pages.info()),
        _ => return Err(EINVAL),
    };
    let page = call.nic().uar_page(index)?;
    Ok((page.fd, page.offset))
}

fn check_uar(request: &MapRequest) -> Result<()> {
    let shared = request.flags & libc::MAP_SHARED != 0;
    if request.length == PAGE && shared { Ok(()) } else { Err(EINVAL) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn each_qp_has_its_own_register_until_there_are_none_left() {
        let mut context = Context::new(&mut Objects::of_process(), 0, 1, STATIC_BFREGS).unwrap();
        let bfregs: Vec<_> = (0..STATIC_BFREGS).map(|_| context.allocate_bfreg().unwrap()).collect();
        let places: HashSet<_> = bfregs.iter().map(|&bfreg| context.register(bfreg)).collect();
        assert_eq!(places.len(), STATIC_BFREGS);
        assert_eq!(*bfregs.last().unwrap(), 0);
        assert_eq!(context.allocate_bfreg(), Ok(1));
        context.release_bfreg(7);
        assert_eq!(context.allocate_bfreg(), Ok(7));
    }

    #[test]
    fn registers_sit_in_the_second_half_of_their_page() {
        let mut objects = Objects::of_process();
        let first = Context::new(&mut objects, 0, 1, STATIC_BFREGS).unwrap();
        let second = Context::new(&mut objects, 0, 1, STATIC_BFREGS).unwrap();
        assert_eq!(first.register(3), Register { page: 1, offset: 0xa00 });
        assert_eq!(second.register(2), Register { page: 257, offset: 0x800 });
        assert_eq!((gross(0), gross(1), gross(2), gross(3)), (0, 1, 4, 5));
        assert_eq!(first.dynamic_register(0), None);
    }

    #[test]
    fn pages_of_a_closed_context_rest() {
        let mut objects = Objects::of_process();
        let first = Context::new(&mut objects, 0, 1, STATIC_BFREGS).unwrap();
        first.release(&mut objects);
        assert_eq!(Context::new(&mut objects, 0, 1, 16).unwrap().cq_page(), Ok(256));
    }

    #[test]
    fn contexts_run_out_when_pages_do() {
        let mut objects = Objects::of_process();
        let mut open = Vec::new();
        let error = loop {
            let bfregs = registers(&objects, 16);
            match Context::new(&mut objects, 0, 1, bfregs) {
                Ok(context) => open.push(context),
                Err(error) => break error,
            }
        };
        assert_eq!((open.len(), error), (32 + (16384 - 32 * 256) / 8, ENOMEM));
        assert_eq!((open[31].bfregs(), open[32].bfregs()), (512, 16));
        open.pop().unwrap().release(&mut objects);
        assert!(Context::new(&mut objects, 0, 1, 16).is_ok());
    }
}
