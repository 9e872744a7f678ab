//! The handler for the guarded routines, which passes other faults on to the program's own handler.
//!
//! The kernel knows our handler with the mask and the flags that the program asked for; the address of the
//! program's handler is kept here. `sigaction` and `signal` of the program come here, too
//! ([`crate::interpose`]), so that a handler which it installs later does not take our place.
//!
//! All of this may run inside signal handlers: no lock, no allocation.

use std::ffi::{c_int, c_void};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::{mem, ptr};

use libc::{SIG_DFL, SIG_IGN, sigaction, siginfo_t};

unsafe extern "C" {
    // libc's own, under the name that is not interposed.
    fn __sigaction(signal: c_int, new: *const sigaction, old: *mut sigaction) -> c_int;
}

/// The program's action for a signal, as far as the kernel does not keep it.
struct Wanted {
    signal: c_int,
    handler: AtomicUsize,
    flags: AtomicI32,
}

static WANTED: [Wanted; 2] = [Wanted::new(libc::SIGSEGV), Wanted::new(libc::SIGBUS)];
static INSTALLED: AtomicBool = AtomicBool::new(false);

// Flags of the program that go to the kernel with our handler. SA_RESETHAND does not: it would remove the handler.
const SHARED_FLAGS: c_int = libc::SA_ONSTACK | libc::SA_NODEFER | libc::SA_RESTART;

impl Wanted {
    const fn new(signal: c_int) -> Self {
        Self { signal, handler: AtomicUsize::new(SIG_DFL), flags: AtomicI32::new(0) }
    }

    /// Puts our handler before the handler that `action` names.
    fn stand_before(&self, action: &sigaction) -> c_int {
        self.flags.store(action.sa_flags, Ordering::Relaxed);
        self.handler.store(action.sa_sigaction, Ordering::Release);
        let mut ours = *action;
        ours.sa_sigaction = on_fault as *const () as usize;
        ours.sa_flags = action.sa_flags & SHARED_FLAGS | libc::SA_SIGINFO;
        if action.sa_sigaction == SIG_DFL {
            ours.sa_flags |= libc::SA_ONSTACK;
        }
        // SAFETY: a whole action, whose handler is a function that stays.
        unsafe { __sigaction(self.signal, &ours, ptr::null_mut()) }
    }
}

fn wanted(signal: c_int) -> Option<&'static Wanted> {
    WANTED.iter().find(|wanted| wanted.signal == signal)
}

/// Makes the guarded routines survive faults, in all threads that do not block the signals.
pub fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for wanted in &WANTED {
            // SAFETY: an all-zero action is a valid value to be filled.
            let mut before: sigaction = unsafe { mem::zeroed() };
            // SAFETY: `before` outlives the call.
            if unsafe { __sigaction(wanted.signal, ptr::null(), &mut before) } == 0 {
                wanted.stand_before(&before);
            }
        }
        INSTALLED.store(true, Ordering::Release);
    });
}

/// Runs `sigaction`, as the program calls it.
///
/// # Safety
/// The contract of libc's `sigaction`.
pub unsafe fn change(signal: c_int, new: *const sigaction, old: *mut sigaction) -> c_int {
    let wanted = wanted(signal).filter(|_| INSTALLED.load(Ordering::Acquire));
    let Some(wanted) = wanted else {
        // SAFETY: the arguments are the program's.
        return unsafe { __sigaction(signal, new, old) };
    };
    // Both arguments may be the same memory.
    // SAFETY: null or an action, by the contract of sigaction.
    let new = unsafe { new.as_ref() }.copied();
    if !old.is_null() {
        // SAFETY: memory for an action, by the contract of sigaction. The mask in it is the program's.
        unsafe {
            __sigaction(signal, ptr::null(), old);
            (*old).sa_sigaction = wanted.handler.load(Ordering::Acquire);
            (*old).sa_flags = wanted.flags.load(Ordering::Relaxed);
        }
    }
    new.map_or(0, |new| wanted.stand_before(&new))
}

/// Lets this thread run the handler, whatever other signals it blocks.
pub fn unblock() {
    // SAFETY: an all-zero set is a valid value to be filled, and outlives the calls.
    unsafe {
        let mut faults: libc::sigset_t = mem::zeroed();
        libc::sigemptyset(&mut faults);
        for wanted in &WANTED {
            libc::sigaddset(&mut faults, wanted.signal);
        }
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &faults, ptr::null_mut());
    }
}

extern "C" fn on_fault(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes the context that the fault interrupted, which only this handler has.
    let pc = unsafe { program_counter(&mut *context.cast()) };
    match super::fixup(*pc as usize) {
        Some(fixup) => *pc = fixup as _,
        None => pass_on(signal, info, context),
    }
}

#[cfg(target_arch = "x86_64")]
fn program_counter(context: &mut libc::ucontext_t) -> &mut libc::greg_t {
    &mut context.uc_mcontext.gregs[libc::REG_RIP as usize]
}

#[cfg(target_arch = "aarch64")]
fn program_counter(context: &mut libc::ucontext_t) -> &mut libc::c_ulonglong {
    &mut context.uc_mcontext.pc
}

// Passes a fault of the program on.
fn pass_on(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let Some(wanted) = wanted(signal) else { return };
    // SAFETY: the kernel passes a whole siginfo.
    let sent = unsafe { (*info).si_code } <= 0;
    let handler = wanted.handler.load(Ordering::Acquire);
    match handler {
        SIG_IGN if sent => {}
        SIG_DFL | SIG_IGN => end(signal, sent),
        _ => {
            if wanted.flags.load(Ordering::Relaxed) & libc::SA_RESETHAND != 0 {
                wanted.handler.store(SIG_DFL, Ordering::Release);
            }
            // SAFETY: the program installed this handler; a handler of a single argument ignores the others.
            unsafe {
                let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = mem::transmute(handler);
                handler(signal, info, context);
            }
        }
    }
}

// Ends as without a handler: the instruction faults again when this returns, or the signal is sent again.
fn end(signal: c_int, sent: bool) {
    // SAFETY: an all-zero action is the default one.
    unsafe {
        let default: sigaction = mem::zeroed();
        __sigaction(signal, &default, ptr::null_mut());
        if sent {
            libc::raise(signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::guard::{Unit, Unmapped, copy};
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};
    use std::sync::atomic::AtomicU32;

    const VARIABLE: &str = "SOFT_MLX5_FAULT_IN_TEST";

    fn guarded_fault() -> Result<(), Unmapped> {
        let mut word = 0u64;
        // SAFETY: the target is our own; nothing is mapped at the source.
        unsafe { copy(&raw mut word as u64, 8, 1, Unit::Word) }
    }

    fn set(handler: usize) -> usize {
        // SAFETY: the handlers of these tests do nothing that a handler may not.
        unsafe { libc::signal(libc::SIGSEGV, handler) }
    }

    fn send() {
        // SAFETY: no memory is involved.
        unsafe { libc::raise(libc::SIGSEGV) };
    }

    static SEEN: AtomicU32 = AtomicU32::new(0);

    extern "C" fn count(_: c_int) {
        SEEN.fetch_add(1, Ordering::Relaxed);
    }

    extern "C" fn leave(_: c_int) {
        // SAFETY: ends the process.
        unsafe { libc::_exit(7) };
    }

    // Tests that each run in a process of their own, by number.
    const DEEDS: [fn(); 6] = [
        || fault(),
        || {
            set(SIG_DFL);
            send();
        },
        || {
            set(SIG_IGN);
            fault();
        },
        || {
            set(SIG_IGN);
            send();
            leave(0);
        },
        || {
            set(leave as *const () as usize);
            fault();
        },
        || {
            let handler = count as *const () as usize;
            let before = set(handler);
            // A handler that resets itself does its work once.
            send();
            assert_eq!(guarded_fault(), Err(Unmapped));
            assert_eq!((SEEN.load(Ordering::Relaxed), set(before)), (1, handler));
            // SAFETY: both actions are valid and outlive the calls.
            unsafe {
                let mut action: sigaction = mem::zeroed();
                (action.sa_sigaction, action.sa_flags) = (handler, libc::SA_RESETHAND);
                libc::sigaction(libc::SIGSEGV, &action, ptr::null_mut());
                send();
                libc::sigaction(libc::SIGSEGV, ptr::null(), &mut action);
                assert_eq!((action.sa_sigaction, SEEN.load(Ordering::Relaxed)), (SIG_DFL, 2));
            }
            assert_eq!(guarded_fault(), Err(Unmapped));
            leave(0);
        },
    ];

    fn fault() {
        // SAFETY: the test wants the fault; the page holds nothing.
        unsafe { (16 as *const u64).read_volatile() };
    }

    #[test]
    fn the_programs_faults_and_handlers_stay_its_own() {
        let name = "base::guard::signals::tests::the_programs_faults_and_handlers_stay_its_own";
        if let Ok(number) = std::env::var(VARIABLE) {
            install();
            assert_eq!(guarded_fault(), Err(Unmapped));
            DEEDS[number.parse::<usize>().unwrap()]();
            return;
        }
        let killed = (Some(libc::SIGSEGV), None);
        let left = (None, Some(7));
        for (number, end) in [killed, killed, killed, left, left, left].into_iter().enumerate() {
            let mut test = Command::new(std::env::current_exe().unwrap());
            test.args(["--exact", "--nocapture", name]).env(VARIABLE, number.to_string());
            let output = test.stdin(Stdio::null()).output().unwrap();
            let status = (output.status.signal(), output.status.code());
            assert_eq!(status, end, "{number}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
}
