//! Counts the heap calls of a thread: Rust's and those of every library in the process.
//!
//! The functions of the executable come before those of libc, for the shared libraries too.

use std::cell::Cell;
use std::ffi::{c_int, c_void};

thread_local! {
    // Initialised when the thread starts and without a destructor: reading it calls no allocator.
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

/// Heap calls that this thread has made.
pub fn calls() -> u64 {
    CALLS.get()
}

fn count() {
    CALLS.set(CALLS.get() + 1);
}

unsafe extern "C" {
    fn __libc_malloc(size: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, size: usize) -> *mut c_void;
    fn __libc_realloc(old: *mut c_void, size: usize) -> *mut c_void;
    fn __libc_memalign(alignment: usize, size: usize) -> *mut c_void;
    fn __libc_free(old: *mut c_void);
}

// SAFETY (all of them): same signature and meaning as in libc, whose own implementation does the work.

#[unsafe(no_mangle)]
unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
    count();
    // SAFETY: the arguments of the caller.
    unsafe { __libc_malloc(size) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn calloc(number: usize, size: usize) -> *mut c_void {
    count();
    // SAFETY: the arguments of the caller.
    unsafe { __libc_calloc(number, size) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(old: *mut c_void, size: usize) -> *mut c_void {
    count();
    // SAFETY: the arguments of the caller.
    unsafe { __libc_realloc(old, size) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memalign(alignment: usize, size: usize) -> *mut c_void {
    count();
    // SAFETY: the arguments of the caller.
    unsafe { __libc_memalign(alignment, size) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn aligned_alloc(alignment: usize, size: usize) -> *mut c_void {
    count();
    // SAFETY: the arguments of the caller.
    unsafe { __libc_memalign(alignment, size) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn posix_memalign(out: *mut *mut c_void, alignment: usize, size: usize) -> c_int {
    count();
    // SAFETY: the arguments of the caller, who can write to `out`.
    unsafe {
        let memory = __libc_memalign(alignment, size);
        if memory.is_null() {
            return libc::ENOMEM;
        }
        *out = memory;
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn free(old: *mut c_void) {
    count();
    // SAFETY: the arguments of the caller.
    unsafe { __libc_free(old) }
}
