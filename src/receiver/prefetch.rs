//! Fetching what a batch is about to lend into the caches.

use std::ptr::NonNull;

use super::direct::Ring;
use super::{Engine, Receiver};

/// Bytes of a cache line.
const LINE: usize = 64;

impl Receiver {
    /// Prefetches the messages that have arrived, at most `budget`, if that was asked for; how many.
    pub(super) fn prefetch(&mut self, budget: u32) -> u64 {
        let Some(lines @ 1..) = self.upkeep.as_ref().map(|upkeep| upkeep.prefetch) else {
            return 0;
        };
        let books = &self.books;
        let mut fetched = 0;
        let mut each = |resident| {
            let Some(piece) = books.pieces(&resident).next() else { return };
            let end = (lines as usize).saturating_mul(LINE).min(piece.capacity as usize);
            for offset in (0..end).step_by(LINE) {
                // SAFETY: inside the buffer.
                fetch(unsafe { piece.addr.add(offset) });
            }
            fetched += 1;
        };
        match &mut self.engine {
            Engine::Direct(direct) => {
                let only = (direct.queues.len() == 1).then_some(0);
                direct.cq.look_ahead(budget, |cqe| {
                    let index = only.or_else(|| direct.routes.find(cqe.qpn()));
                    let resident = match index.map(|index| &direct.queues[index as usize]) {
                        Some(Ring::Srq(srq)) => srq.ring.book().posted(cqe.wqe_counter().into()),
                        Some(Ring::Rq(rq)) => rq.ring.book().posted(cqe.wqe_counter().into()),
                        Some(Ring::Gone) | None => None,
                    };
                    resident.into_iter().for_each(&mut each);
                });
            }
            Engine::Verbs(verbs) => {
                // Asks the device when nothing is left of what it gave.
                verbs.has_arrived();
                verbs.look_ahead(budget, each);
            }
        }
        fetched
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
