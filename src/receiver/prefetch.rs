//! Fetching what a batch is about to lend into the caches.

use std::ptr::NonNull;

use super::batch::queue_of;
use super::queue::RecvQueue;
use super::slot_context::SlotContext;
use super::{Poller, Receiver};

/// Bytes of a cache line.
const LINE: usize = 64;

impl Receiver {
    /// Prefetches the messages that have arrived, at most `budget`, if that was asked for.
    pub(super) fn prefetch(&mut self, budget: u32) {
        let Self { poller, queues, qps, owners, maintenance: Some(work), .. } = self else {
            return;
        };
        let lines = work.prefetch as usize;
        if lines == 0 {
            return;
        }
        let mut each = |context: SlotContext| {
            let Some(first) = owners.parts(&context).first() else { return };
            let end = lines.saturating_mul(LINE).min(first.capacity() as usize);
            for offset in (0..end).step_by(LINE) {
                // SAFETY: inside the buffer.
                fetch(unsafe { first.start().add(offset) });
            }
            work.counted.prefetched += 1;
        };
        match poller {
            Poller::Direct(direct) => direct.cq.look_ahead(budget, |cqe| {
                let queue = queue_of(queues, qps, cqe).and_then(|index| queues.get(index as usize));
                let context = queue.and_then(|entry| entry.queue.posted(cqe.wqe_counter()));
                context.into_iter().for_each(&mut each);
            }),
            Poller::Verbs(cq) => {
                for wc in cq.look_ahead(budget as usize) {
                    let queue = queues.get(wc.queue() as usize);
                    let context = queue.and_then(|entry| match &entry.queue {
                        RecvQueue::Verbs(verbs) => verbs.posted(wc.wc.wr_id),
                        _ => None,
                    });
                    context.into_iter().for_each(&mut each);
                }
            }
        }
    }
}

/// Asks for a cache line. A hint: it reads nothing, and no address is wrong.
#[inline(always)]
fn fetch(addr: NonNull<u8>) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has the instruction.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(addr.as_ptr().cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: changes neither memory nor registers.
    unsafe {
        std::arch::asm!(
            "prfm pldl1keep, [{0}]",
            in(reg) addr.as_ptr(),
            options(nostack, readonly, preserves_flags)
        );
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = addr;
}
