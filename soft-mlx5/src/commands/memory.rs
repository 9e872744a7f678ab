//! Memory of the host that contexts name: page lists, UMEMs and doorbell records.

use std::sync::Arc;

use mlx5_wire::firmware::mkey::CreateUmem;
use mlx5_wire::firmware::pages;

use super::objects::{Entry, Id, Kind};
use super::opcodes::{Command, Result, created};
use super::refusal::Refusal;
use super::umem::Umem;
use super::{Commands, Execution};
use crate::objects::memory::{PageList, Space, Spaces};

/// log2 of the smallest page.
pub const LOG_PAGE: u32 = 12;
// log2 of the largest page: addresses of a host have no more than 52 bits.
const LOG_LARGEST: u32 = 52;
// Lower bits of a page address, which carry rights.
const RIGHTS: u64 = (1 << LOG_PAGE) - 1;

/// Memory of a queue as its context describes it.
#[derive(Debug, Clone, Copy, Default)]
pub struct QueueMemory<'a> {
    /// log2 of the page size, less 12.
    pub log_page_size: u8,
    /// Place in the first page, in units of page size / 64.
    pub page_offset: u8,
    /// The page list, and what follows it.
    pub list: &'a [u8],
    /// The UMEM stands in place of the list.
    pub umem_valid: bool,
    /// UMEM and offset in it.
    pub umem: (u32, u64),
    /// Doorbell record, or offset in the UMEM that follows.
    pub record: u64,
    /// The record lies in a UMEM.
    pub record_umem_valid: bool,
    /// UMEM of the record.
    pub record_umem: u32,
}

/// Spaces, addresses in them, and the UMEMs that the queue refers to.
#[derive(Debug)]
pub struct Located {
    /// Spaces.
    pub spaces: Spaces,
    /// Address of the ring.
    pub ring: u64,
    /// Address of the record.
    pub record: u64,
    /// UMEMs.
    pub uses: Vec<Id>,
}

impl Execution<'_> {
    /// Returns the list of the pages that hold `len` bytes from byte `start` of the first page.
    pub(super) fn page_list(&self, log_size: u32, start: u64, len: u64, list: &[u8]) -> Result<Arc<PageList>> {
        if !(LOG_PAGE..=LOG_LARGEST).contains(&log_size) {
            return Err(Refusal::PAGE_SIZE);
        }
        let end = start.checked_add(len).ok_or(Refusal::PAGE_LIST)?;
        let needed = end.div_ceil(1 << log_size);
        let given = pages(list);
        if (given.len() as u64) < needed {
            return Err(Refusal::PAGE_LIST);
        }
        let pages = given.take(needed as usize).map(|page| page & !RIGHTS).collect();
        self.host.page_list(log_size, start, pages).ok_or(Refusal::PAGE_LIST)
    }

    /// Finds `len` bytes at an offset of a UMEM that an object of `uid` may refer to.
    pub(super) fn umem(&self, number: u32, uid: u16, offset: u64, len: u64) -> Result<(Space, u64)> {
        let id = self.state.objects.check_use(Id(Kind::Umem, number), uid)?;
        let umem = self.state.objects.find(id, 0)?.umem.as_ref().ok_or(Refusal::NO_OBJECT)?;
        umem.place(offset, len)
    }

    /// Returns `true` if memory is a UMEM: where the command says so, and always in a process, as the kernel has it.
    pub(super) fn is_umem(&self, valid: bool) -> bool {
        valid || self.host.is_process()
    }

    /// Finds the memory of a ring of `len` bytes, and its UMEM.
    pub(super) fn locate_ring(&self, memory: &QueueMemory, len: u64, uid: u16) -> Result<(Space, u64, Option<Id>)> {
        if len == 0 {
            return Ok((Space::Process, 0, None));
        }
        if self.is_umem(memory.umem_valid) {
            let (number, offset) = memory.umem;
            let (space, ring) = self.umem(number, uid, offset, len)?;
            return Ok((space, ring, Some(Id(Kind::Umem, number))));
        }
        let log_size = LOG_PAGE + u32::from(memory.log_page_size);
        let unit = 1u64.checked_shl(log_size).ok_or(Refusal::PAGE_SIZE)? / 64;
        let start = unit * u64::from(memory.page_offset);
        Ok((Space::Pages(self.page_list(log_size, start, len, memory.list)?), 0, None))
    }

    /// Finds the memory of a queue whose ring has `len` bytes.
    pub(super) fn locate(&self, memory: &QueueMemory, len: u64, uid: u16) -> Result<Located> {
        let (ring_space, ring, umem) = self.locate_ring(memory, len, uid)?;
        let mut uses = Vec::from_iter(umem);
        if memory.record % 8 != 0 {
            return Err(Refusal::RECORD);
        }
        let (record_space, record) = if len == 0 {
            // A queue pair without queues has no doorbell record.
            (Space::Process, 0)
        } else if self.is_umem(memory.record_umem_valid) {
            uses.push(Id(Kind::Umem, memory.record_umem));
            self.umem(memory.record_umem, uid, memory.record, 8)?
        } else {
            (self.host.clone(), memory.record)
        };
        // Memory of a process may begin anywhere.
        if record % 8 != 0 {
            return Err(Refusal::RECORD);
        }
        let spaces = Spaces { ring: ring_space, record: record_space };
        Ok(Located { spaces, ring, record, uses })
    }

    pub(super) fn create_umem(&mut self, command: &Command, output: &mut [u8]) -> Result {
        let umem: CreateUmem = command.parse()?;
        let log_size = LOG_PAGE + u32::from(umem.log_page_size);
        let start = u64::from(umem.page_offset);
        let size = umem.pages.checked_shl(log_size).filter(|size| size >> log_size == umem.pages);
        let len = size.and_then(|size| size.checked_sub(start)).ok_or(Refusal::PAGE_LIST)?;
        if umem.pages == 0 || start >= 1 << log_size {
            return Err(Refusal::PAGE_LIST);
        }
        let list = command.after::<CreateUmem>();
        let umem = Some(Umem::Pages(self.page_list(log_size, start, len, list)?));
        let entry = Entry { uid: command.uid(), umem, ..Entry::default() };
        created(output, self.state.objects.insert_new(Kind::Umem, entry)?)
    }
}

impl Commands {
    /// Makes a UMEM of memory of this process, which CREATE_UMEM cannot describe; returns its number.
    pub(crate) fn create_umem_of_process(&mut self, uid: u16, addr: u64, len: u64) -> Result<u32> {
        let umem = Some(Umem::Process { addr, len });
        self.objects.insert_new(Kind::Umem, Entry { uid, umem, ..Entry::default() })
    }
}
