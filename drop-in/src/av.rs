//! The address vector of an address handle.

use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicUsize, Ordering};

use mlx5_wire::datagram::DatagramSegment;
use rdma_core_sys::{MLX5DV_OBJ_AH, ibv_ah, mlx5dv_ah, mlx5dv_obj};

use crate::context;

/// Bytes from an address handle of libmlx5 to the address vector in it; 0 before the first one was seen. It is a constant
/// of the libmlx5 of this process.
static OFFSET: AtomicUsize = AtomicUsize::new(0);

/// Returns where the address vector of `ah` is; `None` if libmlx5 does not say.
///
/// # Safety
/// `ah` is an address handle of libmlx5.
#[inline(always)]
pub(crate) unsafe fn of(ah: *mut ibv_ah) -> Option<NonNull<DatagramSegment>> {
    let offset = match OFFSET.load(Ordering::Relaxed) {
        // SAFETY: `ah` is an address handle of libmlx5.
        0 => unsafe { learn(ah) }?,
        offset => offset,
    };
    // SAFETY: `ah` is an address handle of libmlx5; each has its address vector there.
    NonNull::new(unsafe { ah.byte_add(offset).cast() })
}

/// Returns where the address vector of `ah` is, if that needs no question to libmlx5.
///
/// # Safety
/// As [`of`].
#[inline(always)]
pub(crate) unsafe fn known(ah: *mut ibv_ah) -> Option<NonNull<DatagramSegment>> {
    let offset = OFFSET.load(Ordering::Relaxed);
    // SAFETY: `ah` is an address handle of libmlx5; each has its address vector there.
    if offset == 0 { None } else { NonNull::new(unsafe { ah.byte_add(offset).cast() }) }
}

/// Sets the offset for address handles of a test.
#[cfg(test)]
pub(crate) fn assume(offset: usize) {
    OFFSET.store(offset, Ordering::Relaxed);
}

/// Learns the offset from libmlx5.
///
/// # Safety
/// As [`of`].
#[cold]
unsafe fn learn(ah: *mut ibv_ah) -> Option<usize> {
    let mut out = mlx5dv_ah { av: ptr::null_mut(), comp_mask: 0 };
    // SAFETY: the parts are pointers, which may be null.
    let mut obj: mlx5dv_obj = unsafe { core::mem::zeroed() };
    obj.ah.in_ = ah;
    obj.ah.out = &raw mut out;
    // SAFETY: `ah` is an address handle of libmlx5, and `out` is writable.
    let failed = unsafe {
        let init_obj = context::of((*ah).context).original.init_obj;
        init_obj(&raw mut obj, MLX5DV_OBJ_AH.into()) != 0
    };
    if failed || out.av.is_null() {
        return None;
    }
    let offset = (out.av as usize).checked_sub(ah as usize)?;
    OFFSET.store(offset, Ordering::Relaxed);
    Some(offset)
}
