//! Where the cache lines are that software shares with the device.

use std::ptr::NonNull;
use std::sync::OnceLock;
use std::thread;

use mlx5_ring::cq;

use crate::adapter::{Complete, Form, Order};
use crate::sends;
use crate::sum::Sum;
use crate::tags;
use crate::world::{Objects, Queue};

/// Where the lines are that the device has written or read, when software gets to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lines {
    /// In the cache of this core.
    Warm,
    /// In memory only: CQEs and WQEs are flushed.
    Flushed,
    /// In the cache of another core, which wrote the CQEs.
    OtherCore,
}

/// All places.
pub const EVERYWHERE: [Lines; 3] = [Lines::Warm, Lines::Flushed, Lines::OtherCore];

impl Lines {
    /// In words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Warm => "warm",
            Self::Flushed => "flushed",
            Self::OtherCore => "other core",
        }
    }

    /// Completes `count` receives, so that the lines are there.
    pub fn complete(self, adapter: &mut dyn Complete, count: u32, order: Order, form: Form) -> Sum {
        if self != Self::OtherCore {
            return adapter.complete(count, order, form);
        }
        thread::scope(|scope| {
            let other = scope.spawn(|| {
                pin(1);
                adapter.complete(count, order, form)
            });
            other.join().expect("the adapter")
        })
    }
}

/// Memory that software shares with the device.
#[derive(Default)]
pub struct Shared(Vec<(NonNull<u8>, usize)>);

// SAFETY: addresses of memory that stays mapped.
unsafe impl Sync for Shared {}

fn cqes(cq: &cq::Layout) -> (NonNull<u8>, usize) {
    (cq.buf, cq.cqe_cnt as usize * cq.cqe_size as usize)
}

impl Shared {
    /// The CQ and the queues.
    pub fn of(objects: &Objects) -> Self {
        let queues = objects.queues.iter().map(|queue| match queue {
            Queue::Srq(srq) => (srq.buf, srq.slots() as usize * srq.stride as usize),
            Queue::Rq(rq) => (rq.buf, rq.wqe_cnt as usize * rq.stride as usize),
        });
        Self([cqes(&objects.cq_layout)].into_iter().chain(queues).collect())
    }

    /// The CQ, and the send queue that list operations are posted to.
    pub fn of_tags(objects: &tags::Objects) -> Self {
        Self(vec![cqes(&objects.cq_layout), objects.operations])
    }

    /// The CQ of sends, and the send queues.
    pub fn of_sends(objects: &sends::Objects) -> Self {
        Self([&[cqes(&objects.cq_layout)], &*objects.wqes].concat())
    }

    /// Has the other core read all lines, as the device does before it completes anything.
    pub fn read_elsewhere(&self) {
        thread::scope(|scope| {
            scope.spawn(|| {
                pin(1);
                self.each_line(|line| {
                    // SAFETY: mapped for as long as the objects live.
                    unsafe { line.read_volatile() };
                });
            });
        });
    }

    fn each_line(&self, mut each: impl FnMut(NonNull<u8>)) {
        for &(start, len) in &self.0 {
            for offset in (0..len).step_by(64) {
                // SAFETY: inside the memory.
                each(unsafe { start.add(offset) });
            }
        }
    }

    /// Writes all lines back to memory and drops them from the caches of all cores.
    pub fn flush(&self) {
        // SAFETY: mapped for as long as the objects live; no value changes.
        self.each_line(|line| unsafe { flush_line(line) });
        end_flush();
    }
}

/// Writes the lines of `len` bytes from `start` on back to memory and drops them from the caches of all cores.
///
/// # Safety
/// The memory is mapped.
pub unsafe fn flush(start: NonNull<u8>, len: usize) {
    for offset in (0..len).step_by(64) {
        // SAFETY: inside the memory; no value changes.
        unsafe { flush_line(start.add(offset)) };
    }
    end_flush();
}

/// Waits until the flushed lines are in memory.
fn end_flush() {
    // SAFETY: every x86-64 has SSE2.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::x86_64::_mm_mfence();
    }
}

/// # Safety
/// The line is mapped.
#[cfg(target_arch = "x86_64")]
unsafe fn flush_line(line: NonNull<u8>) {
    // SAFETY: the line is mapped.
    unsafe { std::arch::x86_64::_mm_clflush(line.as_ptr()) }
}

/// # Safety
/// The line is mapped.
#[cfg(target_arch = "aarch64")]
unsafe fn flush_line(line: NonNull<u8>) {
    // SAFETY: the line is mapped.
    unsafe {
        std::arch::asm!("dc civac, {0}", in(reg) line.as_ptr(), options(nostack, preserves_flags));
        std::arch::asm!("dsb ish", options(nostack, preserves_flags));
    }
}

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
