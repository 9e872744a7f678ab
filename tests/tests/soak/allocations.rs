//! Counts the memory that Rust code of this program has allocated and not freed, without libmlx5 and the device.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, Ordering};

static BLOCKS: AtomicIsize = AtomicIsize::new(0);
static BYTES: AtomicIsize = AtomicIsize::new(0);

/// Returns the blocks and the bytes that are allocated.
pub fn live() -> (isize, isize) {
    (BLOCKS.load(Ordering::Relaxed), BYTES.load(Ordering::Relaxed))
}

fn add(blocks: isize, bytes: isize) {
    BLOCKS.fetch_add(blocks, Ordering::Relaxed);
    BYTES.fetch_add(bytes, Ordering::Relaxed);
}

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

// SAFETY: all work is done by the allocator of the system. The size of a layout is less than `isize::MAX`.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(1, layout.size() as isize);
        // SAFETY: the arguments of the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        add(-1, -(layout.size() as isize));
        // SAFETY: the arguments of the caller.
        unsafe { System.dealloc(old, layout) }
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        add(0, size as isize - layout.size() as isize);
        // SAFETY: the arguments of the caller.
        unsafe { System.realloc(old, layout, size) }
    }
}
