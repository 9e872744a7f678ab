//! The calls of libc through which a program reaches a device.
//!
//! They take effect from a preloaded library and equally from definitions linked into the
//! executable. A descriptor or path that is not ours costs one load and goes on to the kernel by a
//! bare system call: no lock, no allocation, also before main and in signal handlers.

mod calls;
mod files;
mod init;
mod mapping;
mod ours;
mod paths;
mod provider;
mod raw;
mod rdma_cm;
mod signals;
mod tree;
mod umad;

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

// Set before main. Until then nothing is ours.
static ACTIVE: AtomicBool = AtomicBool::new(false);

fn is_active() -> bool {
    ACTIVE.load(Ordering::Relaxed)
}

/// Makes the linker take the interposed functions into the executable: they sit in an archive, and
/// nothing else refers to them.
pub fn ensure_linked() {
    let [start, end] = init::ANCHORS;
    let anchors: [*const c_void; 8] =
        [calls::ANCHOR, files::ANCHOR, mapping::ANCHOR, paths::ANCHOR, rdma_cm::ANCHOR, signals::ANCHOR, start, end];
    std::hint::black_box(anchors);
}
