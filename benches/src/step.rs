//! Counts the instructions of this thread, whichever library they are in: the processor stops after each one.

use std::arch::asm;
use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::ptr::{self, NonNull};
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

static STEPS: AtomicU64 = AtomicU64::new(0);
static MARK: AtomicU64 = AtomicU64::new(0);
static RUNG: AtomicU64 = AtomicU64::new(0);
/// The halves of a doorbell register.
static HALVES: [AtomicPtr<u64>; 2] = [const { AtomicPtr::new(ptr::null_mut()) }; 2];

/// Instructions of a piece of work.
#[derive(Clone, Copy, Debug)]
pub struct Steps {
    /// All of them.
    pub all: u64,
    /// Instructions before [`mark`].
    pub to_mark: u64,
    /// Instructions up to the store that rings the register, or 0.
    pub to_register: u64,
}

/// The registers between two instructions, as `libc::REG_RIP` and its like index them.
pub type Registers = [libc::greg_t; 23];
/// Where [`trace`] keeps registers, of [`MOST`] instructions, or null.
static TRACE: AtomicPtr<Registers> = AtomicPtr::new(ptr::null_mut());
/// Instructions of a piece of work that is traced, at most.
const MOST: usize = 16_384;

extern "C" fn on_sigtrap(_signal: c_int, _info: *mut libc::siginfo_t, context: *mut c_void) {
    let steps = STEPS.fetch_add(1, Ordering::Relaxed) + 1;
    let trace = TRACE.load(Ordering::Relaxed);
    if !trace.is_null() && steps <= MOST as u64 {
        // SAFETY: the kernel's context of this signal, and a place of the memory that `trace` made.
        unsafe {
            let registers = (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
            trace.add(steps as usize - 1).write(registers);
        }
    }
    let is_rung = |half: &AtomicPtr<u64>| {
        let half = NonNull::new(half.load(Ordering::Relaxed));
        // SAFETY: a half of a register that `watch` was given, which stays mapped.
        half.is_some_and(|half| unsafe { half.read_volatile() } != 0)
    };
    if RUNG.load(Ordering::Relaxed) == 0 && HALVES.iter().any(is_rung) {
        RUNG.store(steps, Ordering::Relaxed);
    }
}

/// Counts stores to this register from now on, whose halves are `size` bytes apart. The device has taken all doorbells,
/// so that the first eight bytes of both are zero.
///
/// # Safety
/// The register stays mapped, and can be read.
pub unsafe fn watch(register: NonNull<u64>, size: u32) {
    // SAFETY: the other half of the register.
    let second = unsafe { register.byte_add(size as usize) };
    for (place, half) in HALVES.iter().zip([register, second]) {
        place.store(half.as_ptr(), Ordering::Relaxed);
    }
}

/// Marks a place in the work that [`count`] runs.
#[inline(always)]
pub fn mark() {
    MARK.store(STEPS.load(Ordering::Relaxed), Ordering::Relaxed);
}

/// Runs `work` on this thread, and returns how many instructions it took. A system call is one.
#[inline(always)]
fn run(work: impl FnOnce()) -> Steps {
    static HANDLER: Once = Once::new();
    HANDLER.call_once(|| {
        // SAFETY: all zeroes is an action with no flags and an empty mask.
        let mut action: libc::sigaction = unsafe { zeroed() };
        action.sa_sigaction = on_sigtrap as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        // SAFETY: a valid action; the handler counts and does nothing else.
        assert_eq!(unsafe { libc::sigaction(libc::SIGTRAP, &action, ptr::null_mut()) }, 0);
    });
    for counter in [&STEPS, &MARK, &RUNG] {
        counter.store(0, Ordering::Relaxed);
    }
    // SAFETY: sets the trap flag alone. The kernel clears it for the handler, and sets it again after the handler.
    unsafe { asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq") };
    work();
    // SAFETY: clears the trap flag alone.
    unsafe { asm!("pushfq", "and qword ptr [rsp], ~0x100", "popfq") };
    let [all, to_mark, to_register] = [&STEPS, &MARK, &RUNG].map(|counter| counter.load(Ordering::Relaxed));
    Steps { all, to_mark, to_register }
}

/// Runs `work`, and returns its instructions with those of counting, and the registers before each but the first.
#[inline(always)]
pub fn trace(work: impl FnOnce()) -> (Steps, Vec<Registers>) {
    let mut registers: Vec<Registers> = vec![[0; 23]; MOST];
    TRACE.store(registers.as_mut_ptr(), Ordering::Relaxed);
    let steps = run(work);
    TRACE.store(ptr::null_mut(), Ordering::Relaxed);
    assert!(steps.all < MOST as u64, "{} instructions", steps.all);
    registers.truncate(steps.all as usize);
    (steps, registers)
}

/// Runs `work`, and returns its instructions without those of counting.
#[inline(always)]
pub fn count(work: impl FnOnce()) -> Steps {
    let nothing = run(mark);
    let Steps { all, to_mark, to_register } = run(work);
    Steps {
        all: all.saturating_sub(nothing.all),
        to_mark: to_mark.saturating_sub(nothing.to_mark),
        to_register: to_register.saturating_sub(nothing.to_mark),
    }
}
