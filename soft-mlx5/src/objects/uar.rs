//! User access regions: the pages of registers that a program writes to ring its queues.
//!
//! A page is shared memory: the program's mapping and the device's are two views of one memory file. The
//! device takes a doorbell by swapping it for zero, a value that no doorbell has, so it sees a second
//! ring with the same bytes, too. The device cannot see a ring that was overwritten before it looked. So a
//! register of several queue pairs says only "look at the records of all of them", and a value that names
//! none of them says "look at the records of the page".

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use mlx5_wire::uar::{BLUE_FLAME, CQ_DOORBELL};

use super::Register;

/// A UAR page as the program must map it (`MAP_SHARED`, one page).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UarPage {
    /// Memory file, owned by the device.
    pub fd: RawFd,
    /// Offset in that file.
    pub offset: u64,
}

/// Bytes of a UAR page.
pub const PAGE_SIZE: usize = 4096;
/// Distance between the two halves of a BlueFlame register.
pub const BF_HALF: u32 = 256;

/// Bytes of a BlueFlame write of one basic block.
pub const BLUE_FLAME_WRITE: usize = 64;

// Registers of a page without those of the fast path.
const REGISTERS: [u32; 2] = [BLUE_FLAME as u32, BLUE_FLAME as u32 + 2 * BF_HALF];

const MAX_PAGES: u32 = 1 << 14;
// Registers that a step with other work looks at; a step without other work looks at all of them.
const BUSY_SCAN: usize = 32;

#[derive(Debug)]
struct Page(NonNull<AtomicU64>);

// SAFETY: the mapping belongs to this value alone and is reached only through atomics.
unsafe impl Send for Page {}

impl Page {
    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset % 8 == 0 && offset < PAGE_SIZE);
        // SAFETY: inside the page, which stays mapped as long as this value lives.
        unsafe { self.0.add(offset / 8).as_ref() }
    }

    fn peek<const BYTES: usize>(&self, offset: usize) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        for (word, chunk) in (0..).zip(bytes.chunks_exact_mut(8)) {
            let value = self.word(offset + 8 * word).load(Ordering::Relaxed);
            chunk.copy_from_slice(&value.to_ne_bytes());
        }
        bytes
    }

    fn take(&self, offset: usize) -> Option<u64> {
        let word = self.word(offset);
        if word.load(Ordering::Relaxed) == 0 {
            return None;
        }
        // Acquire: the records and WQEs that the program wrote before it rang are visible now.
        match word.swap(0, Ordering::Acquire) {
            0 => None,
            value => Some(u64::from_be(value)),
        }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: the page was mapped with this size and nothing refers to it any more.
        unsafe { libc::munmap(self.0.as_ptr().cast(), PAGE_SIZE) };
    }
}

#[derive(Debug)]
struct Used {
    register: Register,
    qps: Vec<u32>,
}

/// A ring: a register, and the value that was written to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ring {
    /// Index among the registers in use, for [`Uar::users`].
    pub register: usize,
    /// Half of the register, as an offset.
    pub half: u32,
    /// First eight bytes of a control segment.
    pub value: u64,
}

/// All UAR pages of a device.
#[derive(Debug)]
pub struct Uar {
    file: OwnedFd,
    pages: Vec<Option<Page>>,
    registers: Vec<Used>,
    by_place: BTreeMap<(u32, u32), usize>,
    cursor: usize,
    // Pages in use, each with the CQs that are armed there.
    cq_pages: Vec<(u32, Vec<u32>)>,
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

impl Uar {
    /// Starts without pages.
    pub fn new() -> io::Result<Self> {
        // SAFETY: the name is a C string.
        let fd = check(unsafe { libc::memfd_create(c"soft-mlx5-uar".as_ptr(), libc::MFD_CLOEXEC) })?;
        // SAFETY: the descriptor was just made and has no other owner.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self {
            file,
            pages: Vec::new(),
            registers: Vec::new(),
            by_place: BTreeMap::new(),
            cursor: 0,
            cq_pages: Vec::new(),
        })
    }

    /// Returns the page with this index, made at its first use.
    pub fn page(&mut self, index: u32) -> io::Result<UarPage> {
        self.map(index)?;
        Ok(UarPage { fd: self.file.as_raw_fd(), offset: offset_of_page(index) })
    }

    /// Makes the memory file this many pages long.
    pub fn reserve(&mut self, pages: u32) -> io::Result<()> {
        let len = offset_of_page(pages.min(MAX_PAGES)) as libc::off_t;
        if self.pages.len() < pages as usize {
            // SAFETY: no memory is involved; the file only grows.
            check(unsafe { libc::ftruncate(self.file.as_raw_fd(), len) })?;
            self.pages.resize_with(pages.min(MAX_PAGES) as usize, || None);
        }
        Ok(())
    }

    /// Returns the memory file of all pages.
    pub fn file(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Stores a doorbell, as a driver does that has the page mapped. Returns `false` if there is no such page or the
    /// offset is not a multiple of eight.
    pub fn store(&mut self, index: u32, offset: usize, doorbell: [u8; 8]) -> bool {
        let Some(Some(page)) = self.pages.get(index as usize) else { return false };
        if offset % 8 != 0 || offset >= PAGE_SIZE {
            return false;
        }
        page.word(offset).store(u64::from_ne_bytes(doorbell), Ordering::Release);
        true
    }

    fn map(&mut self, index: u32) -> io::Result<&Page> {
        if index >= MAX_PAGES {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let at = index as usize;
        if self.pages.len() <= at {
            let len = offset_of_page(index + 1) as libc::off_t;
            // SAFETY: no memory is involved; the file only grows.
            check(unsafe { libc::ftruncate(self.file.as_raw_fd(), len) })?;
            self.pages.resize_with(at + 1, || None);
        }
        let slot = &mut self.pages[at];
        if slot.is_none() {
            // SAFETY: a new mapping, inside the file, at an address the kernel chooses.
            let memory = unsafe {
                libc::mmap(
                    ptr::null_mut(),
                    PAGE_SIZE,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_SHARED,
                    self.file.as_raw_fd(),
                    offset_of_page(index) as libc::off_t,
                )
            };
            if memory == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            let memory = NonNull::new(memory.cast());
            *slot = Some(Page(memory.ok_or(io::ErrorKind::OutOfMemory)?));
        }
        slot.as_ref().ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    /// Lets a queue pair ring at a register.
    pub fn attach_qp(&mut self, register: Register, qpn: u32) -> io::Result<()> {
        if register.offset == Register::ANY {
            return REGISTERS.into_iter().try_for_each(|offset| self.attach_qp(Register { offset, ..register }, qpn));
        }
        let fits = register.offset % 8 == 0 && register.offset as usize + BF_HALF as usize + 8 <= PAGE_SIZE;
        if !fits {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        self.map(register.page)?;
        // A CQ that a program arms at the page of a queue pair breaks a rule.
        self.arms_at(register.page);
        let place = (register.page, register.offset);
        let index = *self.by_place.entry(place).or_insert_with(|| {
            self.registers.push(Used { register, qps: Vec::new() });
            self.registers.len() - 1
        });
        self.registers[index].qps.push(qpn);
        Ok(())
    }

    /// Undoes [`Self::attach_qp`].
    pub fn detach_qp(&mut self, register: Register, qpn: u32) {
        if register.offset == Register::ANY {
            for offset in REGISTERS {
                self.detach_qp(Register { offset, ..register }, qpn);
            }
            return;
        }
        if let Some(&index) = self.by_place.get(&(register.page, register.offset)) {
            self.registers[index].qps.retain(|user| *user != qpn);
        }
    }

    /// Lets a CQ be armed at a page.
    pub fn attach_cq(&mut self, page: u32, cqn: u32) -> io::Result<()> {
        self.map(page)?;
        self.arms_at(page).push(cqn);
        Ok(())
    }

    fn arms_at(&mut self, page: u32) -> &mut Vec<u32> {
        let known = self.cq_pages.iter().position(|(used, _)| *used == page);
        let at = known.unwrap_or_else(|| {
            self.cq_pages.push((page, Vec::new()));
            self.cq_pages.len() - 1
        });
        &mut self.cq_pages[at].1
    }

    /// Undoes [`Self::attach_cq`].
    pub fn detach_cq(&mut self, page: u32, cqn: u32) {
        if let Some((_, cqs)) = self.cq_pages.iter_mut().find(|(used, _)| *used == page) {
            cqs.retain(|user| *user != cqn);
        }
    }

    /// Returns the page of a register in use, and the queue pairs that ring there.
    pub fn users(&self, register: usize) -> (u32, &[u32]) {
        let used = &self.registers[register];
        (used.register.page, &used.qps)
    }

    /// Returns all queue pairs that ring at a page.
    pub fn users_of(&self, page: u32) -> Vec<u32> {
        let there = self.registers.iter().filter(|used| used.register.page == page);
        there.flat_map(|used| used.qps.iter().copied()).collect()
    }

    /// Returns both halves of a register as they are in memory, as far as a BlueFlame write goes, or `None` for
    /// [`Register::ANY`].
    pub fn peek_register(&self, register: Register) -> Option<[[u8; BLUE_FLAME_WRITE]; 2]> {
        if register.offset == Register::ANY {
            return None;
        }
        let page = self.pages.get(register.page as usize)?.as_ref()?;
        Some([0, BF_HALF].map(|half| page.peek((register.offset + half) as usize)))
    }

    /// Returns the CQ doorbell of a page as it is in memory.
    pub fn peek_arm(&self, page: u32) -> Option<[u8; 8]> {
        Some(self.pages.get(page as usize)?.as_ref()?.peek(CQ_DOORBELL))
    }

    /// Takes doorbells of send queues: from all registers, or from the next few.
    pub fn take_rings(&mut self, all: bool, rings: &mut Vec<Ring>) {
        let count = self.registers.len();
        let look = if all { count } else { count.min(BUSY_SCAN) };
        for _ in 0..look {
            self.cursor = if self.cursor + 1 < count { self.cursor + 1 } else { 0 };
            let used = &self.registers[self.cursor];
            let Some(Some(page)) = self.pages.get(used.register.page as usize) else { continue };
            for half in [0, BF_HALF] {
                if let Some(value) = page.take((used.register.offset + half) as usize) {
                    if !used.qps.is_empty() {
                        rings.push(Ring { register: self.cursor, half, value });
                    }
                }
            }
        }
    }

    fn word_of(&self, ring: &Ring, offset: usize) -> Option<&AtomicU64> {
        let register = self.registers.get(ring.register)?.register;
        let page = self.pages.get(register.page as usize)?.as_ref()?;
        Some(page.word((register.offset + ring.half) as usize + offset))
    }

    /// Returns the bytes in the half of the register, with the ring as the first eight bytes.
    pub fn image(&self, ring: &Ring, len: usize) -> Vec<u8> {
        let first = ring.value.to_be_bytes();
        let words = (8..len).step_by(8).flat_map(|at| {
            let word = self.word_of(ring, at).map_or(0, |word| word.load(Ordering::Acquire));
            word.to_ne_bytes()
        });
        first.into_iter().chain(words).collect()
    }

    /// Returns `true` if this half of the register holds another ring, which was not taken.
    pub fn is_rung(&self, ring: &Ring) -> bool {
        self.word_of(ring, 0).is_some_and(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// Clears the bytes after the first eight, so that no later ring gets them.
    pub fn clear(&self, ring: &Ring) {
        for at in (8..BF_HALF as usize).step_by(8) {
            if let Some(word) = self.word_of(ring, at) {
                word.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Clears the bytes after the first eight, unless the register holds another ring.
    pub fn clear_unless_rung(&self, ring: &Ring) {
        if !self.is_rung(ring) {
            self.clear(ring);
        }
    }

    /// Takes CQ doorbells: `armed` gets each page at which one was rung, the CQs of the page, and the value.
    pub fn take_arms(&mut self, mut armed: impl FnMut(u32, &[u32], u64)) -> bool {
        let mut any = false;
        for (index, cqs) in &self.cq_pages {
            let Some(Some(page)) = self.pages.get(*index as usize) else { continue };
            if let Some(value) = page.take(CQ_DOORBELL) {
                armed(*index, cqs, value);
                any = true;
            }
        }
        any
    }
}

fn offset_of_page(index: u32) -> u64 {
    u64::from(index) * PAGE_SIZE as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(uar: &Uar, page: usize, offset: u32, value: u64) {
        let page = uar.pages[page].as_ref().unwrap();
        page.word(offset as usize).store(value.to_be(), Ordering::Release);
    }

    #[test]
    fn a_ring_is_taken_once_and_seen_again_when_repeated() {
        let mut uar = Uar::new().unwrap();
        let register = Register { page: 3, offset: 0x800 };
        uar.attach_qp(register, 7).unwrap();
        let mut rings = Vec::new();
        for half in [0, BF_HALF] {
            write(&uar, 3, 0x800 + half, 0x0102);
            uar.take_rings(true, &mut rings);
            assert_eq!(rings, [Ring { register: 0, half, value: 0x0102 }]);
            rings.clear();
            uar.take_rings(true, &mut rings);
            assert!(rings.is_empty());
        }
        assert_eq!(uar.users(0), (3, &[7][..]));
    }

    #[test]
    fn a_busy_device_still_looks_at_every_register() {
        let mut uar = Uar::new().unwrap();
        for n in 0..200 {
            uar.attach_qp(Register { page: n / 4, offset: 0x800 + 512 * (n % 4) }, n).unwrap();
        }
        let mut rings = Vec::new();
        for n in 0..200 {
            write(&uar, n / 4, 0x800 + 512 * (n % 4) as u32, n as u64 + 1);
        }
        for _ in 0..200_usize.div_ceil(BUSY_SCAN) {
            uar.take_rings(false, &mut rings);
        }
        let mut values: Vec<u64> = rings.iter().map(|ring| ring.value).collect();
        values.sort_unstable();
        values.dedup();
        assert_eq!(values, (1..=200).collect::<Vec<_>>());
    }

    #[test]
    fn the_programs_mapping_is_the_same_memory() {
        let mut uar = Uar::new().unwrap();
        uar.attach_cq(5, 0x400).unwrap();
        let page = uar.page(5).unwrap();
        assert_eq!(page.offset, 5 * PAGE_SIZE as u64);
        let doorbell = 0x1234_u64.to_be_bytes();
        // SAFETY: the buffer is eight bytes; the file has six pages.
        let written = unsafe {
            let offset = page.offset as libc::off_t + CQ_DOORBELL as libc::off_t;
            libc::pwrite(page.fd, doorbell.as_ptr().cast(), 8, offset)
        };
        assert_eq!(written, 8);
        let mut armed = Vec::new();
        assert!(uar.take_arms(|_, cqs, _| armed.extend_from_slice(cqs)));
        assert_eq!(armed, [0x400]);
        assert!(!uar.take_arms(|_, _, _| ()));
    }

    #[test]
    fn a_queue_pair_of_a_whole_page_is_heard_at_each_register() {
        let mut uar = Uar::new().unwrap();
        let page = Register { page: 1, offset: Register::ANY };
        uar.attach_qp(page, 7).unwrap();
        let mut rings = Vec::new();
        for offset in [0x800, 0x900, 0xa00, 0xb00] {
            write(&uar, 1, offset, 0x0102);
            uar.take_rings(true, &mut rings);
            assert_eq!(rings.len(), 1, "{offset:#x}");
            assert_eq!(uar.users(rings.pop().unwrap().register), (1, &[7][..]));
        }
        uar.detach_qp(page, 7);
        write(&uar, 1, 0xa00, 0x0102);
        uar.take_rings(true, &mut rings);
        assert!(rings.is_empty());
    }

    #[test]
    fn places_outside_a_page_are_refused() {
        let mut uar = Uar::new().unwrap();
        assert!(uar.attach_qp(Register { page: 0, offset: 4096 - 256 }, 1).is_err());
        assert!(uar.attach_qp(Register { page: 0, offset: 0x801 }, 1).is_err());
        assert!(uar.page(MAX_PAGES).is_err());
    }
}
