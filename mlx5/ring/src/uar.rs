//! UAR register of a send queue, rung with eight bytes.

use core::ptr::NonNull;

use mlx5_wire::be::Be64;

use crate::barrier;

/// A register of a UAR page, as `mlx5dv_init_obj` reports it in `struct mlx5dv_qp::bf`.
///
/// libmlx5 lets queues share registers, and its lock on them is not public. A BlueFlame write, of a whole
/// WQE, must not be mixed with that of another queue; a store of eight bytes is one transaction on the bus
/// and needs no lock. So nothing but eight bytes is ever written.
#[derive(Debug)]
pub struct Register {
    at: NonNull<u8>,
    /// Bytes from one half to the other; 0 for a register that has one.
    half: usize,
    /// The half that is written next is the second.
    second: bool,
}

impl Register {
    /// Takes the register at `at`, whose two halves are `half` bytes apart (`bf.size`); 0 when it has one.
    ///
    /// # Safety
    /// `at`, and with two halves also `at + half`, are aligned to eight bytes and stay writable for as long as
    /// the value exists, and take doorbells of this queue.
    pub const unsafe fn new(at: NonNull<u8>, half: u32) -> Self {
        Self { at, half: half as usize, second: false }
    }

    /// Rings with the first eight bytes of the control segment of the last WQE. The doorbell record has
    /// been written.
    #[inline(always)]
    pub fn ring(&mut self, ctrl: Be64) {
        let offset = if self.second { self.half } else { 0 };
        barrier::doorbell_record_before_uar();
        // SAFETY: one of the two halves, aligned by the contract of `new`; volatile because it is a register.
        unsafe { self.at.add(offset).cast::<Be64>().write_volatile(ctrl) }
        barrier::flush_uar();
        self.second = !self.second;
    }
}
