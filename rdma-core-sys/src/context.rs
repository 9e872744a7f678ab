//! The extended context that surrounds every `ibv_context`, as `verbs_get_ctx` and
//! `verbs_get_ctx_op` of the header find it.

use crate::{ibv_context, verbs_context};
use core::ffi::c_int;
use core::mem::{offset_of, size_of};

/// The value of `ibv_context::abi_compat` that announces a `verbs_context` around the context.
pub const VERBS_ABI_IS_EXTENDED: usize = usize::MAX;

const CONTEXT: usize = offset_of!(verbs_context, context);

/// The extended context around `ctx`, or null if the library that made `ctx` knows none.
///
/// The structure grows at its front: only the last [`verbs_context::sz`] bytes of it exist.
///
/// # Safety
/// `ctx` points to a context that libibverbs opened.
#[inline]
pub unsafe fn verbs_get_ctx(ctx: *mut ibv_context) -> *mut verbs_context {
    // SAFETY: `ctx` points to a context that libibverbs opened.
    if unsafe { (*ctx).abi_compat } as usize != VERBS_ABI_IS_EXTENDED {
        return core::ptr::null_mut();
    }
    ctx.wrapping_byte_sub(CONTEXT).cast()
}

/// The entry of the extended context at `offset`, if the library has it and the provider set it.
///
/// The third argument only names the type: it is the accessor of the same entry.
///
/// # Safety
/// As for [`verbs_get_ctx`]; `offset` is that of the field which `_accessor` reads.
#[inline]
pub(crate) unsafe fn entry_at<F>(
    ctx: *mut ibv_context,
    offset: usize,
    _accessor: fn(&verbs_context) -> Option<F>,
) -> Option<F> {
    // SAFETY: `ctx` points to a context that libibverbs opened.
    if unsafe { verbs_get_ctx(ctx) }.is_null() {
        return None;
    }
    let sz = CONTEXT - offset_of!(verbs_context, sz);
    // SAFETY: every extended context ends with `sz` and the context itself. The address is
    // computed downwards from the context because the front of the structure may not exist.
    let sz = unsafe { ctx.cast::<u8>().sub(sz).cast::<usize>().read() };
    if sz < size_of::<verbs_context>() - offset {
        return None;
    }
    // SAFETY: the structure reaches back as far as the entry, as was just seen.
    unsafe { ctx.cast::<u8>().sub(CONTEXT - offset).cast::<Option<F>>().read() }
}

/// [`entry_at`] by name.
macro_rules! entry {
    ($ctx:expr, $name:ident) => {
        $crate::context::entry_at($ctx, core::mem::offset_of!($crate::verbs_context, $name), |extended| extended.$name)
    };
}
pub(crate) use entry;

/// Sets errno and returns null, for a verb that returns a pointer and that the provider lacks.
#[cold]
pub(crate) fn unsupported<T>() -> *mut T {
    // SAFETY: the address of this thread's errno is always valid.
    unsafe { *libc::__errno_location() = libc::EOPNOTSUPP };
    core::ptr::null_mut()
}

/// The errno of a verb that the provider lacks.
pub(crate) const UNSUPPORTED: c_int = libc::EOPNOTSUPP;
