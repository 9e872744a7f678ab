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

// SAFETY (all of them): same signature and meaning as in libc, and the implementation of libc does the work.

macro_rules! counted {
    ($($name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?, $libc:ident;)*) => {
        $(#[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) $(-> $result)? {
            count();
            // SAFETY: the arguments of the caller.
            unsafe { $libc($($argument),*) }
        })*
    };
}

counted! {
    malloc(size: usize) -> *mut c_void, __libc_malloc;
    calloc(number: usize, size: usize) -> *mut c_void, __libc_calloc;
    realloc(old: *mut c_void, size: usize) -> *mut c_void, __libc_realloc;
    memalign(alignment: usize, size: usize) -> *mut c_void, __libc_memalign;
    aligned_alloc(alignment: usize, size: usize) -> *mut c_void, __libc_memalign;
    free(old: *mut c_void), __libc_free;
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
