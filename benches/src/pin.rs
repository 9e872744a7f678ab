//! The processors of the measured threads.

use std::sync::OnceLock;

/// Pins this thread to the `nth` processor of those that the process could run on at first. Returns `false` if
/// there are fewer.
pub fn pin(nth: usize) -> bool {
    static ALLOWED: OnceLock<Vec<usize>> = OnceLock::new();
    let Some(&cpu) = ALLOWED.get_or_init(allowed).get(nth) else {
        return false;
    };
    // SAFETY: a plain structure of the right size.
    unsafe {
        let mut one: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut one);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &one) == 0
    }
}

fn allowed() -> Vec<usize> {
    // SAFETY: a plain structure of the right size.
    unsafe {
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut allowed);
        (0..libc::CPU_SETSIZE as usize).filter(|&cpu| libc::CPU_ISSET(cpu, &allowed)).collect()
    }
}
