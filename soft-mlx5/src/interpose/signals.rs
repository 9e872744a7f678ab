//! The handlers that a program installs for faults: the device's handler stays before them.

use std::ffi::{c_int, c_void};
use std::mem;

use libc::{sigaction as Action, sighandler_t};

use crate::base::guard::signals;

pub const ANCHOR: *const c_void = sigaction as *const c_void;

/// `sigaction`.
///
/// # Safety
/// The contract of the libc function with this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    // SAFETY: the arguments are the program's.
    unsafe { signals::change(signal, new, old) }
}

/// `signal`, with the meaning that BSD and glibc give it.
///
/// # Safety
/// The contract of the libc function with this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: all-zero actions are valid; both outlive the calls.
    unsafe {
        let (mut new, mut old): (Action, Action) = (mem::zeroed(), mem::zeroed());
        new.sa_sigaction = handler;
        new.sa_flags = libc::SA_RESTART;
        libc::sigemptyset(&mut new.sa_mask);
        libc::sigaddset(&mut new.sa_mask, signal);
        if signals::change(signal, &new, &mut old) == 0 { old.sa_sigaction } else { libc::SIG_ERR }
    }
}
