//! Counts the instructions of a thread, whichever library they are in: the processor stops after each one.

use std::arch::asm;
use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

static STEPS: AtomicU64 = AtomicU64::new(0);

extern "C" fn on_sigtrap(_signal: c_int) {
    STEPS.fetch_add(1, Ordering::Relaxed);
}

/// Runs `work` on this thread, and returns how many instructions it took. A system call is one.
pub fn count(work: impl FnOnce()) -> u64 {
    // SAFETY: all zeroes is an action with no flags and an empty mask.
    let mut action: libc::sigaction = unsafe { zeroed() };
    action.sa_sigaction = on_sigtrap as *const () as usize;
    // SAFETY: a valid action; the handler counts and does nothing else.
    assert_eq!(unsafe { libc::sigaction(libc::SIGTRAP, &action, ptr::null_mut()) }, 0);
    STEPS.store(0, Ordering::Relaxed);
    // SAFETY: sets the trap flag alone. The kernel clears it for the handler, and sets it again after the handler.
    unsafe { asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq") };
    work();
    // SAFETY: clears the trap flag alone.
    unsafe { asm!("pushfq", "and qword ptr [rsp], ~0x100", "popfq") };
    STEPS.load(Ordering::Relaxed)
}

#[test]
fn instructions_of_a_loop_are_counted() {
    let of = |rounds: u64| {
        count(|| {
            for _ in 0..rounds {
                // SAFETY: no instruction that does anything.
                unsafe { asm!("nop") };
            }
        })
    };
    let (few, many) = (of(100), of(1100));
    assert!(few > 100 && many - few >= 1000 && (many - few) % 1000 == 0, "{few}, {many}");
}
