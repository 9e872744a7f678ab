//! The SGEs of a work request, as the rings take them.

use core::ffi::c_int;
use core::mem::offset_of;
use core::slice;

use mlx5_ring::sge::Sge;
use rdma_core_sys::ibv_sge;

const _: () = {
    assert!(size_of::<Sge>() == size_of::<ibv_sge>());
    assert!(offset_of!(Sge, addr) == offset_of!(ibv_sge, addr));
    assert!(offset_of!(Sge, length) == offset_of!(ibv_sge, length));
    assert!(offset_of!(Sge, lkey) == offset_of!(ibv_sge, lkey));
};

/// Returns the SGEs of a work request.
///
/// # Safety
/// `list` has `count` entries, which no code changes meanwhile.
#[inline(always)]
pub(crate) unsafe fn sges<'a>(list: *const ibv_sge, count: c_int) -> &'a [Sge] {
    if count <= 0 {
        return &[];
    }
    // SAFETY: `list` has `count` entries, and both types have one layout.
    unsafe { slice::from_raw_parts(list.cast(), count as usize) }
}
