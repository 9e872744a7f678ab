//! `ibv_resize_cq`.
//!
//! libmlx5 makes a new buffer, has the kernel hand it to the device, copies the CQEs that were not polled, and frees the old
//! buffer. It has a consumer index of its own, which only resizing advances. So between the kernel's answer and the copying,
//! when all CQEs are there, this library takes the CQEs that were not polled, and leaves libmlx5 nothing to copy.

use core::cell::Cell;
use core::ffi::{c_int, c_void};
use core::mem::transmute;
use core::ptr;
use std::sync::atomic::Ordering;

use rdma_core_sys::ibv_cq;

use crate::context;
use crate::decide;
use crate::log;
use crate::objects::{CqSide, Path};
use crate::provider;

/// A CQ that is being resized.
struct Resizing {
    side: *mut CqSide,
    /// Where libmlx5 begins to copy.
    libmlx5_index: u32,
    /// Entries that were not polled; `None` before the kernel has obeyed.
    entries: Option<Vec<u8>>,
    /// Whether the device has written the CQE that ends the old buffer.
    is_complete: bool,
}

thread_local! {
    static RESIZING: Cell<*mut Resizing> = const { Cell::new(ptr::null_mut()) };
}

pub(crate) unsafe extern "C" fn resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    // SAFETY: [verbs], [record-lives]; the new buffer has room for the CQEs that were not polled.
    unsafe {
        let context = context::of((*cq).context);
        let resize = context.original.resize_cq;
        let record = context.cq(cq);
        let Some(record) = record.filter(|record| record.status.path() != Path::Libmlx5) else {
            return resize(cq, cqe);
        };
        // No code decides meanwhile.
        let undecided = context.undecided();
        if record.status.path() != Path::Doorbell {
            let before = (*cq).cqe;
            let error = resize(cq, cqe);
            // libmlx5 does nothing if it is that large already.
            if error == 0 && (*cq).cqe != before {
                record.resized.fetch_add(1, Ordering::Relaxed);
            }
            return error;
        }
        drop(undecided);
        if !stands_in_front() {
            log::warn(format_args!(
                "CQ {} cannot be resized: link the doorbell library before libibverbs",
                (*cq).handle
            ));
            return libc::EOPNOTSUPP;
        }
        let mut guard = record.side.lock();
        let Some(side) = &mut *guard else { return resize(cq, cqe) };
        let libmlx5_index = record.resized.load(Ordering::Relaxed);
        let mut resizing = Resizing { side, libmlx5_index, entries: None, is_complete: false };
        RESIZING.set(&raw mut resizing);
        let before = (*cq).cqe;
        let error = resize(cq, cqe);
        RESIZING.set(ptr::null_mut());
        // libmlx5 does nothing if it is that large already.
        if error == 0 && (resizing.entries.is_some() || (*cq).cqe != before) {
            let entries = resizing.entries.unwrap_or_default();
            let layout = decide::cq_layout(cq);
            let moved = layout.is_ok_and(|(layout, _)| side.ring.resized(layout, &entries).is_ok());
            if !(moved && resizing.is_complete) {
                // libmlx5 has freed the old buffer.
                log::warn(format_args!(
                    "CQ {} has moved to where doorbell cannot follow",
                    (*cq).handle
                ));
                std::process::abort();
            }
            record.resized.fetch_add(1, Ordering::Relaxed);
            side.publish(record);
        }
        error
    }
}

/// Returns `true` if libmlx5 calls [`ibv_cmd_resize_cq`] of this library: a library that is not preloaded may come after libibverbs in
/// the order in which the loader looks for symbols.
fn stands_in_front() -> bool {
    let base_of = |address| provider::file_of(address).map(|file| file.dli_fbase);
    // libmlx5 finds what the program and its libraries have. A library that was opened later may be out of its sight.
    // SAFETY: the name ends with a zero; a null name is that of the program.
    let called = unsafe {
        let program = libc::dlopen(ptr::null(), libc::RTLD_LAZY);
        libc::dlsym(program, c"ibv_cmd_resize_cq".as_ptr())
    };
    base_of(called) == base_of(stands_in_front as *const c_void)
}

type CmdResizeCq =
    unsafe extern "C" fn(*mut ibv_cq, c_int, *mut c_void, usize, *mut c_void, usize) -> c_int;

/// Stands in front of the function of libibverbs by which libmlx5 asks the kernel.
///
/// # Safety
/// As libibverbs asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_cmd_resize_cq(
    cq: *mut ibv_cq,
    cqe: c_int,
    cmd: *mut c_void,
    cmd_size: usize,
    resp: *mut c_void,
    resp_size: usize,
) -> c_int {
    // SAFETY: libibverbs has a function of this name and type, which takes these arguments; the CQ has a context.
    let error = unsafe {
        let provider = provider::function_of((*cq).context);
        let Some(real) = provider::beside(provider, c"ibv_cmd_resize_cq") else {
            return libc::EOPNOTSUPP;
        };
        let real: CmdResizeCq = transmute(real);
        real(cq, cqe, cmd, cmd_size, resp, resp_size)
    };
    // SAFETY: the pointer is null, or `resize_cq` of this thread has set it and waits.
    if let (0, Some(resizing)) = (error, unsafe { RESIZING.get().as_mut() }) {
        // SAFETY: `resize_cq` of this thread holds the lock of the CQ, and does not use `side` meanwhile.
        let side = unsafe { &mut *resizing.side };
        let mut entries = Vec::new();
        resizing.is_complete = side.ring.before_resize(|entry| entries.extend_from_slice(entry));
        side.ring.end_at(resizing.libmlx5_index);
        resizing.entries = Some(entries);
    }
    error
}
