//! Memory that the fuzzer's programs may name, and memory that faults where it ends.

use std::ffi::c_void;
use std::ptr;

const PAGE: usize = 4096;

/// Address of the [`Arena`]: the same in each process, so that addresses in a corpus stay valid. Nothing else is in
/// that part of an address space.
pub const ARENA: u64 = 0x2_0000_0000;
/// Size of the arena in bytes.
pub const ARENA_SIZE: usize = 1 << 17;

/// Addresses of a position-independent program, its heap and its libraries are in this range.
const FOREIGN: std::ops::Range<u64> = 0x1000_0000_0000..0x8000_0000_0000;

fn map(addr: *mut c_void, len: usize, protection: i32, fixed: i32) -> *mut u8 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fixed;
    // SAFETY: a new mapping, which replaces none.
    let memory = unsafe { libc::mmap(addr, len, protection, flags, -1, 0) };
    assert_ne!(memory, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    memory.cast()
}

/// Memory at [`ARENA`] without Rust values: any access of a device to it is harmless.
pub struct Arena(());

impl Arena {
    /// Maps the arena, once in a process.
    pub fn new() -> Self {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        map(ARENA as *mut c_void, ARENA_SIZE, rights, libc::MAP_FIXED_NOREPLACE);
        Self(())
    }

    /// Writes `bytes` at an offset, as far as there is room.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let offset = offset.min(ARENA_SIZE);
        let len = bytes.len().min(ARENA_SIZE - offset);
        // SAFETY: inside the mapping, to which no references exist.
        unsafe {
            let to = (ARENA as *mut u8).add(offset);
            to.copy_from_nonoverlapping(bytes.as_ptr(), len);
        }
    }

    /// Whether all bytes from an offset on are zero.
    pub fn is_clear(&self, offset: usize) -> bool {
        assert!(offset <= ARENA_SIZE && offset % 8 == 0);
        let mut seen = 0;
        for at in (offset..ARENA_SIZE).step_by(8) {
            // SAFETY: inside the mapping, to which no references exist.
            seen |= unsafe { (ARENA as *const u8).add(at).cast::<u64>().read_volatile() };
        }
        seen == 0
    }

    /// Sets all bytes to zero.
    pub fn clear(&self) {
        // SAFETY: the whole mapping, to which no references exist.
        unsafe { (ARENA as *mut u8).write_bytes(0, ARENA_SIZE) };
    }
}

/// Turns every number that could be an address of this process into an address of the arena, at every place
/// where a command can have an address. The device writes to any address of a program, as a kernel does.
pub fn tame(bytes: &mut [u8]) {
    for at in (0..bytes.len().saturating_sub(7)).step_by(4) {
        let word: &mut [u8; 8] = (&mut bytes[at..at + 8]).try_into().expect("eight bytes");
        *word = tame_word(u64::from_le_bytes(*word)).to_le_bytes();
    }
}

/// Turns a number that could be an address of this process into an address of the arena.
pub fn tame_word(word: u64) -> u64 {
    if FOREIGN.contains(&word) { ARENA | word & (ARENA_SIZE as u64 - 1) } else { word }
}

/// Allocates whole pages with an inaccessible page on either side, for `struct mlx5dv_ctx_allocators`. The memory
/// ends where the pages end if `size` is a multiple of 64.
///
/// # Safety
/// None.
pub unsafe extern "C" fn guarded_alloc(size: usize, _: *mut c_void) -> *mut c_void {
    let pages = size.div_ceil(PAGE) * PAGE;
    let start = map(ptr::null_mut(), pages + 2 * PAGE, libc::PROT_NONE, 0);
    // SAFETY: inside the mapping, after its first page and before its last.
    unsafe {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        assert_eq!(libc::mprotect(start.add(PAGE).cast(), pages, rights), 0);
        SIZES.with_borrow_mut(|sizes| sizes.push((start.add(PAGE) as usize, pages)));
        start.add(PAGE).cast()
    }
}

/// Frees memory of [`guarded_alloc`].
///
/// # Safety
/// `memory` came from there, in this thread, and was not freed.
pub unsafe extern "C" fn guarded_free(memory: *mut c_void, _: *mut c_void) {
    let size = SIZES.with_borrow_mut(|sizes| {
        let index = sizes.iter().position(|&(at, _)| at == memory as usize);
        sizes.swap_remove(index.expect("memory of this allocator")).1
    });
    // SAFETY: the mapping of that allocation, which is not used any more.
    unsafe { libc::munmap(memory.cast::<u8>().sub(PAGE).cast(), size + 2 * PAGE) };
}

thread_local! {
    static SIZES: std::cell::RefCell<Vec<(usize, usize)>> = const { std::cell::RefCell::new(Vec::new()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_the_process_become_those_of_the_arena() {
        let local = 5u64;
        assert_eq!(tame_word(&raw const local as u64) & !0x1_ffff, ARENA);
        assert_eq!(tame_word(ARENA + 8), ARENA + 8);
        assert_eq!(tame_word(u64::MAX), u64::MAX);
        let mut bytes = [0; 20];
        bytes[4..12].copy_from_slice(&0x7fff_0000_0123_u64.to_le_bytes());
        tame(&mut bytes);
        assert_eq!(bytes[4..12], (ARENA + 0x123).to_le_bytes());
    }
}
