//! A library that is preloaded into a program, to make sure that the program uses mlx5 devices directly: every
//! context that it opens has entries that abort, see [`doorbell_tests::poison`].

use std::mem::transmute;
use std::process;

use doorbell_tests::poison;
use rdma_core_sys as sys;

type OpenDevice = unsafe extern "C" fn(*mut sys::ibv_device) -> *mut sys::ibv_context;

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_open_device(device: *mut sys::ibv_device) -> *mut sys::ibv_context {
    // SAFETY: a string; the function has this signature; the arguments are the caller's.
    let context = unsafe {
        let real = libc::dlsym(libc::RTLD_NEXT, c"ibv_open_device".as_ptr());
        if real.is_null() {
            eprintln!("poison: libibverbs has no ibv_open_device");
            process::abort();
        }
        transmute::<*mut libc::c_void, OpenDevice>(real)(device)
    };
    if !context.is_null() {
        // SAFETY: it was opened just now.
        unsafe { poison::post_and_poll(context) };
        poison::sends();
        eprintln!("poison: direct or not at all");
    }
    context
}
