//! What a CQE says of a send queue.

use mlx5_wire::cqe::CqeFormat;
use mlx5_wire::opcode::{CqeOpcode, WqeOpcode};
use mlx5_wire::syndrome::Syndrome;

use super::SendQueue;
use crate::completion::Cqe;

/// Bytes of the operand of an atomic.
const ATOMIC_SIZE: u32 = 8;

/// A CQE of a send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// QP whose send queue it is of.
    pub qpn: u32,
    /// Index of the first block of the WQE that it names.
    pub wqe_counter: u16,
    /// Opcode of that WQE.
    pub opcode: WqeOpcode,
    /// How the WQE ended: bytes that a READ or atomic has brought, or why it failed.
    pub result: Result<u32, Failure>,
}

/// Why a WQE failed. Those behind it are flushed ([`Syndrome::WR_FLUSH`]), with a CQE for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Cause.
    pub syndrome: Syndrome,
    /// Cause in the device's own terms.
    pub vendor: u8,
}

impl Completion {
    /// Reads a CQE; returns `None` if it is not of a send queue, or brings data in its own bytes, which *exclusive*
    /// rules out ([the module](super)).
    #[inline(always)]
    pub fn read(cqe: Cqe<'_>) -> Option<Self> {
        let result = match cqe.opcode() {
            CqeOpcode::Requester if cqe.format() == CqeFormat::Plain => Ok(cqe.byte_count()),
            CqeOpcode::RequesterError => {
                Err(Failure { syndrome: cqe.syndrome(), vendor: cqe.vendor_err_synd() })
            }
            _ => return None,
        };
        let opcode = WqeOpcode::new(cqe.send_opcode());
        Some(Self { qpn: cqe.qpn(), wqe_counter: cqe.wqe_counter(), opcode, result })
    }
}

/// A WQE that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retired<T> {
    /// What it was posted with.
    pub data: T,
    /// Whether the CQE names this WQE. All others have succeeded.
    pub is_named: bool,
}

/// The WQEs that a CQE retires, oldest first; the last one is the one that it names. Dropping it retires the rest.
#[derive(Debug)]
pub struct Completed<'a, T: Copy> {
    queue: &'a mut SendQueue<T>,
    end: u32,
}

impl<T: Copy> SendQueue<T> {
    /// Retires the WQEs up to the one that starts at the block `wqe_counter`. Returns `None` if no WQE which is
    /// outstanding starts there: the CQE cannot be true, and nothing has changed.
    #[inline(always)]
    pub fn complete(&mut self, wqe_counter: u16) -> Option<Completed<'_, T>> {
        Some(Completed { end: self.end_of(wqe_counter)?, queue: self })
    }

    /// As [`complete`](Self::complete), at once: returns what the WQE that the CQE names was posted with.
    #[inline(always)]
    pub fn complete_named(&mut self, wqe_counter: u16) -> Option<T> {
        let end = self.end_of(wqe_counter)?;
        // SAFETY: `end_of` has found the record of a WQE that starts there.
        let data = unsafe { self.record(wqe_counter.into()).data.assume_init() };
        self.blocks.retire(end);
        Some(data)
    }

    /// Copies what a READ or an atomic has brought inside its CQE to the buffers of its WQE, which is outstanding. Returns
    /// `false` if the CQE has no payload or names no such WQE.
    ///
    /// # Safety
    /// `cqe` is of this queue. The addresses of the buffers are those where this process sees the memory.
    #[cold]
    pub unsafe fn scatter_inline(&mut self, cqe: Cqe<'_>) -> bool {
        let Some(payload) = cqe.inline_payload() else { return false };
        if self.end_of(cqe.wqe_counter()).is_none() {
            return false;
        }
        let (head, len) = match WqeOpcode::new(cqe.send_opcode()) {
            WqeOpcode::RDMA_READ => (2, cqe.byte_count()),
            WqeOpcode::ATOMIC_CS | WqeOpcode::ATOMIC_FA => (3, ATOMIC_SIZE),
            _ => return false,
        };
        // SAFETY: the WQE that the CQE names, with the units that its control segment counts and no inline segment.
        unsafe { self.blocks.scatter(cqe.wqe_counter().into(), head, payload, len as usize) };
        true
    }

    /// Returns the running count of blocks up to the end of the WQE that starts at the block `wqe_counter`: what
    /// [`retire`](Self::retire) takes. `None` if no WQE which is outstanding starts there.
    #[inline(always)]
    pub fn end_of(&mut self, wqe_counter: u16) -> Option<u32> {
        let retired = self.blocks.retired();
        let ahead = u32::from(wqe_counter.wrapping_sub(retired as u16));
        if ahead >= self.blocks.posted().wrapping_sub(retired) {
            return None;
        }
        let start = retired.wrapping_add(ahead);
        let blocks = self.record(start).blocks;
        if blocks == 0 {
            return None;
        }
        Some(start.wrapping_add(blocks))
    }

    /// Retires the oldest WQE that starts before `end`, which [`end_of`](Self::end_of) returned. `None` when all of them
    /// are retired.
    #[inline(always)]
    pub fn retire(&mut self, end: u32) -> Option<Retired<T>> {
        let start = self.blocks.retired();
        if start == end {
            return None;
        }
        let next = start.wrapping_add(self.record(start).blocks);
        self.blocks.retire(next);
        // SAFETY: between `retired` and `posted` stand WQEs, each with its record, and `start` is that of the oldest one.
        let data = unsafe { self.record(start).data.assume_init() };
        Some(Retired { data, is_named: next == end })
    }
}

impl<T: Copy> Iterator for Completed<'_, T> {
    type Item = Retired<T>;

    #[inline(always)]
    fn next(&mut self) -> Option<Retired<T>> {
        self.queue.retire(self.end)
    }
}

impl<T: Copy> Drop for Completed<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.queue.blocks.retire(self.end);
    }
}
