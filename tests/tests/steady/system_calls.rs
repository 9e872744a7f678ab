//! Counts the system calls of a thread, whichever library makes them.
//!
//! A seccomp filter turns each system call of the thread into SIGSYS. The handler notes the call and makes
//! it with the one instruction that the filter lets through. So nothing changes for the thread but its
//! speed. Calls that do not enter the kernel (vDSO) are not counted.

use std::arch::{asm, global_asm};
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::mem::zeroed;
use std::{io, ptr};

/// How many calls are remembered by number.
pub const REMEMBERED: usize = 8;

thread_local! {
    // Initialised when the thread starts, so that the handler finds them as they are.
    static CALLS: Cell<u64> = const { Cell::new(0) };
    static LATEST: [Cell<u64>; REMEMBERED] = const { [const { Cell::new(0) }; REMEMBERED] };
}

/// The system calls of the thread that made it.
pub struct Watch(PhantomData<*const ()>);

impl Watch {
    /// Watches the calling thread, for good. Such a thread cannot start others.
    pub fn this_thread() -> Self {
        catch_sigsys();
        install_filter();
        Self(PhantomData)
    }

    /// System calls so far.
    pub fn calls(&self) -> u64 {
        CALLS.get()
    }

    /// The numbers of the latest `n` of them, as far as they are remembered.
    pub fn latest(&self, n: u64) -> Vec<u64> {
        let first = CALLS.get() - n.min(REMEMBERED as u64);
        (first..CALLS.get()).map(|call| LATEST.with(|latest| latest[slot(call)].get())).collect()
    }
}

const fn slot(call: u64) -> usize {
    call as usize % REMEMBERED
}

fn catch_sigsys() {
    // SAFETY: all zeroes is an action with no flags and an empty mask.
    let mut action: libc::sigaction = unsafe { zeroed() };
    action.sa_sigaction = on_sigsys as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: a valid action; the handler touches its thread's counters and its context only.
    assert_eq!(unsafe { libc::sigaction(libc::SIGSYS, &action, ptr::null_mut()) }, 0);
}

extern "C" fn on_sigsys(_signal: c_int, _info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: with SA_SIGINFO the third argument is the context of the interrupted thread.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let get = |register: c_int| registers[register as usize] as u64;
    let number = get(libc::REG_RAX);
    let call = CALLS.replace(CALLS.get() + 1);
    LATEST.with(|latest| latest[slot(call)].set(number));

    let result: u64;
    // SAFETY: makes the very call that the thread was about to make.
    unsafe {
        asm!(
            "call {enter}",
            enter = sym enter,
            inlateout("rax") number => result,
            in("rdi") get(libc::REG_RDI),
            in("rsi") get(libc::REG_RSI),
            in("rdx") get(libc::REG_RDX),
            in("r10") get(libc::REG_R10),
            in("r8") get(libc::REG_R8),
            in("r9") get(libc::REG_R9),
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    registers[libc::REG_RAX as usize] = result as i64;
}

// The instruction that the filter lets through; it is two bytes long.
global_asm!(".text", "doorbell_tests_enter:", "syscall", "ret");

unsafe extern "C" {
    #[link_name = "doorbell_tests_enter"]
    fn enter();
}

fn install_filter() {
    // The filter sees the address after the instruction.
    let after = enter as *const () as u64 + 2;
    // Offsets in `struct seccomp_data`: number, instruction pointer (two halves).
    let (nr, low, high) = (0, 8, 12);
    let load = |offset| filter(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, offset);
    let equal = |value, yes, no| filter(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, yes, no, value);
    let action = |action| filter(libc::BPF_RET | libc::BPF_K, 0, 0, action);
    let program = [
        load(nr),
        // The end of the handler.
        equal(libc::SYS_rt_sigreturn as u32, 4, 0),
        load(low),
        equal(after as u32, 0, 3),
        load(high),
        equal((after >> 32) as u32, 0, 1),
        action(libc::SECCOMP_RET_ALLOW),
        action(libc::SECCOMP_RET_TRAP),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    // SAFETY: a valid program; the kernel copies it.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &program) == 0
    };
    assert!(done, "{}", io::Error::last_os_error());
}

fn filter(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}
