//! UAR register of a send queue.

use core::ptr::NonNull;

use mlx5_wire::be::Be64;
use mlx5_wire::ctrl::SEND_WQE_BB;

use crate::barrier;

/// A register of a UAR page, as `mlx5dv_init_obj` reports it in `struct mlx5dv_qp::bf`.
///
/// A register has two halves that are written in turn. Each write is followed by a fence, so that two writes never
/// merge.
///
/// libmlx5 lets queues share registers, and its lock on them is not public. A store of eight bytes is one
/// transaction on the bus and needs no lock. A [copy](Self::copy) of a whole WQE (BlueFlame) must not be mixed
/// with that of another queue.
#[derive(Debug)]
pub struct Register {
    at: NonNull<u8>,
    /// Bytes from one half to the other; 0 for a register that has one.
    half: usize,
    /// Where the half that is written next begins.
    offset: usize,
}

impl Register {
    /// Takes the register at `at`, whose two halves are `half` bytes apart (`bf.size`); 0 when it has one.
    ///
    /// # Safety
    /// `at` is aligned to 64 bytes. Eight bytes there, with two halves `2 * half` bytes, stay writable for as long as
    /// the value exists, and take doorbells of this queue.
    pub const unsafe fn new(at: NonNull<u8>, half: u32) -> Self {
        Self { at, half: half as usize, offset: 0 }
    }

    /// Rings with the first eight bytes of the control segment of the last WQE. The doorbell record was written, and
    /// a fence stands after it.
    #[inline(always)]
    pub fn write(&mut self, ctrl: Be64) {
        // SAFETY: one of the halves, aligned by the contract of `new`; volatile because it is a register.
        self.in_turn(|half| unsafe { half.cast::<Be64>().write_volatile(ctrl) });
    }

    /// Rings with the basic blocks of a WQE, `first` and those in `others`, stale bytes after its end included. The
    /// doorbell record was written, and a fence stands after it.
    ///
    /// # Safety
    /// The blocks are aligned to 64 bytes and readable, no more of them than a half has room for, and no other queue
    /// has this register.
    #[inline(always)]
    pub unsafe fn copy(&mut self, first: NonNull<u8>, others: impl Iterator<Item = NonNull<u8>>) {
        // SAFETY: the caller's blocks are aligned and readable, and no more than a half has room for.
        self.in_turn(|mut to| unsafe {
            copy_block(first, to);
            for block in others {
                to = to.add(SEND_WQE_BB);
                copy_block(block, to);
            }
        });
    }

    /// Has the next write go to the half at this offset; returns that of the other half.
    #[inline(always)]
    pub const fn select_half(&mut self, offset: usize) -> usize {
        self.offset = offset & self.half;
        self.offset ^ self.half
    }

    /// Writes to one of the halves, and turns to the other one.
    #[inline(always)]
    fn in_turn(&mut self, write: impl FnOnce(NonNull<u8>)) {
        // SAFETY: the start of one of the halves.
        let half = unsafe { self.at.add(self.offset) };
        barrier::traced!(Event::Register(half));
        write(half);
        self.offset ^= self.half;
        barrier::flush_uar();
    }
}

/// Copies 64 bytes with four stores, which write combining makes one transaction of.
///
/// # Safety
/// Both are aligned to 64 bytes, `from` is readable and `to` is writable.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn copy_block(from: NonNull<u8>, to: NonNull<u8>) {
    use core::arch::x86_64::__m128i;
    let (from, to) = (from.cast::<__m128i>(), to.cast::<__m128i>());
    for part in 0..SEND_WQE_BB / size_of::<__m128i>() {
        // SAFETY: inside of the 64 bytes; volatile because one is a WQE and the other a register.
        unsafe { to.add(part).write_volatile(from.add(part).read_volatile()) }
    }
}

/// Copies 64 bytes with one store instruction.
///
/// # Safety
/// Both are aligned to 64 bytes, `from` is readable and `to` is writable.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
unsafe fn copy_block(from: NonNull<u8>, to: NonNull<u8>) {
    // SAFETY: the caller's 64 bytes are readable at `from` and writable at `to`.
    unsafe {
        core::arch::asm!(
            "ld1 {{v0.16b, v1.16b, v2.16b, v3.16b}}, [{from}]",
            "st1 {{v0.16b, v1.16b, v2.16b, v3.16b}}, [{to}]",
            from = in(reg) from.as_ptr(),
            to = in(reg) to.as_ptr(),
            out("v0") _, out("v1") _, out("v2") _, out("v3") _,
            options(nostack, preserves_flags)
        );
    }
}
