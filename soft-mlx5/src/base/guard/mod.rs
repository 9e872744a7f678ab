//! Access to memory that the program may have unmapped, at the speed of plain access.
//!
//! Only a few routines in assembly touch the program's memory. When one of them faults, the handler of
//! SIGSEGV and SIGBUS lets it return an error, as in debuggers and kernels. Faults anywhere else are the
//! program's, which sees them as it would without the device ([`signals`]).
//!
//! The compiler does not know these accesses, as it does not know the accesses of an adapter. So no Rust
//! reference may reach the program's memory meanwhile, and two reads of a place may give different values.
//! One [`Unit`] is copied at once. The copies have no order among each other: callers put fences where they
//! need an order.

pub mod signals;

use std::arch::global_asm;

/// The memory is not there, or not with the rights that the access needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unmapped;

// Results of the routines.
const DONE: usize = 0;
const CHANGED: usize = 1;

// No routine uses the stack or a register that belongs to its caller. So the fixup can return to the caller
// in place of the routine, whichever instruction faulted.
#[cfg(target_arch = "x86_64")]
global_asm!(
    ".pushsection .text.soft_mlx5_guarded, \"ax\", @progbits",
    ".hidden soft_mlx5_guarded, soft_mlx5_guarded_end, soft_mlx5_fixup",
    ".hidden soft_mlx5_copy_1, soft_mlx5_copy_4, soft_mlx5_copy_8, soft_mlx5_exchange",
    ".globl soft_mlx5_guarded, soft_mlx5_guarded_end, soft_mlx5_fixup",
    ".globl soft_mlx5_copy_1, soft_mlx5_copy_4, soft_mlx5_copy_8, soft_mlx5_exchange",
    ".macro soft_mlx5_copy size, register",
    "soft_mlx5_copy_\\size:",
    "    test rdx, rdx",
    "    je 3f",
    "2:  mov \\register, [rsi]",
    "    mov [rdi], \\register",
    "    add rsi, \\size",
    "    add rdi, \\size",
    "    dec rdx",
    "    jne 2b",
    "3:  xor eax, eax",
    "    ret",
    ".endm",
    "soft_mlx5_guarded:",
    "soft_mlx5_copy 1, al",
    "soft_mlx5_copy 4, eax",
    "soft_mlx5_copy 8, rax",
    ".purgem soft_mlx5_copy",
    "soft_mlx5_exchange:",
    "    mov rax, [rsi]",
    "    lock cmpxchg [rdi], rdx",
    "    mov [rsi], rax",
    "    setne al",
    "    movzx eax, al",
    "    ret",
    "soft_mlx5_guarded_end:",
    "soft_mlx5_fixup:",
    "    mov eax, 2",
    "    ret",
    ".popsection",
);

#[cfg(target_arch = "aarch64")]
global_asm!(
    ".pushsection .text.soft_mlx5_guarded, \"ax\", @progbits",
    ".hidden soft_mlx5_guarded, soft_mlx5_guarded_end, soft_mlx5_fixup",
    ".hidden soft_mlx5_copy_1, soft_mlx5_copy_4, soft_mlx5_copy_8, soft_mlx5_exchange",
    ".globl soft_mlx5_guarded, soft_mlx5_guarded_end, soft_mlx5_fixup",
    ".globl soft_mlx5_copy_1, soft_mlx5_copy_4, soft_mlx5_copy_8, soft_mlx5_exchange",
    ".macro soft_mlx5_copy size, load, store, register",
    "soft_mlx5_copy_\\size:",
    "    cbz x2, 3f",
    "2:  \\load \\register, [x1], #\\size",
    "    \\store \\register, [x0], #\\size",
    "    subs x2, x2, #1",
    "    b.ne 2b",
    "3:  mov x0, #0",
    "    ret",
    ".endm",
    "soft_mlx5_guarded:",
    "soft_mlx5_copy 1, ldrb, strb, w3",
    "soft_mlx5_copy 4, ldr, str, w3",
    "soft_mlx5_copy 8, ldr, str, x3",
    ".purgem soft_mlx5_copy",
    "soft_mlx5_exchange:",
    "    ldr x3, [x1]",
    "2:  ldaxr x4, [x0]",
    "    cmp x4, x3",
    "    b.ne 3f",
    "    stlxr w5, x2, [x0]",
    "    cbnz w5, 2b",
    "    mov x0, #0",
    "    ret",
    "3:  clrex",
    "    str x4, [x1]",
    "    mov x0, #1",
    "    ret",
    "soft_mlx5_guarded_end:",
    "soft_mlx5_fixup:",
    "    mov x0, #2",
    "    ret",
    ".popsection",
);

unsafe extern "C" {
    fn soft_mlx5_guarded();
    fn soft_mlx5_guarded_end();
    fn soft_mlx5_fixup();
    fn soft_mlx5_copy_1(to: u64, from: u64, count: usize) -> usize;
    fn soft_mlx5_copy_4(to: u64, from: u64, count: usize) -> usize;
    fn soft_mlx5_copy_8(to: u64, from: u64, count: usize) -> usize;
    fn soft_mlx5_exchange(at: u64, expected: *mut u64, new: u64) -> usize;
}

/// Returns where to go on after a fault at `pc`, if `pc` is in one of the routines.
fn fixup(pc: usize) -> Option<usize> {
    let address = |code: unsafe extern "C" fn()| code as *const () as usize;
    let routines = address(soft_mlx5_guarded)..address(soft_mlx5_guarded_end);
    routines.contains(&pc).then_some(address(soft_mlx5_fixup))
}

/// Bytes that are copied at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// A byte.
    Byte,
    /// Four bytes.
    Half,
    /// Eight bytes.
    Word,
}

impl Unit {
    /// Returns the size in bytes.
    pub const fn size(self) -> usize {
        match self {
            Self::Byte => 1,
            Self::Half => 4,
            Self::Word => 8,
        }
    }
}

/// Copies `count` units. Either side may be unmapped; some units may have been copied then.
///
/// # Safety
/// The bytes at the target may be overwritten, and no Rust reference is used for them meanwhile. On the
/// program's side addresses are multiples of the unit.
pub unsafe fn copy(to: u64, from: u64, count: usize, unit: Unit) -> Result<(), Unmapped> {
    let routine = match unit {
        Unit::Byte => soft_mlx5_copy_1,
        Unit::Half => soft_mlx5_copy_4,
        Unit::Word => soft_mlx5_copy_8,
    };
    // SAFETY: the routines touch only these ranges and return if a range is not mapped; the caller promises
    // that the target may be overwritten.
    if unsafe { routine(to, from, count) } == DONE { Ok(()) } else { Err(Unmapped) }
}

/// Replaces the word at `at`, a multiple of eight, by `new` if it is `expected`; otherwise the error is the
/// word found.
///
/// # Safety
/// The word may be overwritten, and no Rust reference is used for it meanwhile.
pub unsafe fn exchange(at: u64, expected: u64, new: u64) -> Result<Result<(), u64>, Unmapped> {
    let mut found = expected;
    // SAFETY: as for `copy`; `found` outlives the call.
    match unsafe { soft_mlx5_exchange(at, &mut found, new) } {
        DONE => Ok(Ok(())),
        CHANGED => Ok(Err(found)),
        _ => Err(Unmapped),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::test_memory::Pages;

    const UNITS: [Unit; 3] = [Unit::Byte, Unit::Half, Unit::Word];

    fn address<T>(of: &mut T) -> u64 {
        std::ptr::from_mut(of) as u64
    }

    #[test]
    fn copies_go_up_to_the_page_that_is_missing() {
        signals::install();
        let (pages, page) = (Pages::new(2), 4096);
        // SAFETY: the second page belongs to this test and is not in use. Without rights the page is as good as
        // missing, and no other mapping can take its place.
        assert_eq!(unsafe { libc::mprotect(pages.addr(1) as *mut _, page, libc::PROT_NONE) }, 0);
        for unit in UNITS {
            let mut bytes = [7u8; 16];
            let (local, end) = (address(&mut bytes), pages.addr(1));
            let (near, count) = (end - 16, 16 / unit.size());
            // SAFETY: both ranges belong to this test.
            unsafe {
                assert_eq!(copy(near, local, count, unit), Ok(()));
                assert_eq!(copy(near, local, count + 1, unit), Err(Unmapped));
                assert_eq!(copy(local, end, 1, unit), Err(Unmapped));
                bytes = [0; 16];
                assert_eq!(copy(local, near, count, unit), Ok(()));
            }
            assert_eq!(bytes, [7; 16]);
        }
    }

    #[test]
    fn memory_without_the_rights_counts_as_missing() {
        signals::install();
        let pages = Pages::new(1);
        pages.protect(libc::PROT_READ);
        let mut word = 5;
        let local = address(&mut word);
        // SAFETY: both ranges belong to this test.
        unsafe {
            assert_eq!(copy(pages.addr(0), local, 1, Unit::Word), Err(Unmapped));
            assert_eq!(exchange(pages.addr(0), 0, 1), Err(Unmapped));
            assert_eq!(copy(local, pages.addr(0), 1, Unit::Word), Ok(()));
        }
        assert_eq!(word, 0);
    }

    #[test]
    fn a_file_that_became_shorter_counts_as_missing() {
        signals::install();
        let pages = Pages::of_empty_file();
        let mut word = 5u64;
        // SAFETY: both ranges belong to this test.
        let read = unsafe { copy(address(&mut word), pages.addr(0), 1, Unit::Word) };
        assert_eq!((read, word), (Err(Unmapped), 5), "SIGBUS, not SIGSEGV");
    }

    #[test]
    fn an_exchange_returns_the_old_value() {
        let mut word = 5u64;
        let at = address(&mut word);
        // SAFETY: the word belongs to this test.
        unsafe {
            assert_eq!(exchange(at, 4, 9), Ok(Err(5)));
            assert_eq!(exchange(at, 5, 9), Ok(Ok(())));
        }
        assert_eq!(word, 9);
    }
}
