//! `ibv_post_send`.

use core::ffi::c_int;
use core::hint;
use core::slice;
use core::sync::atomic::Ordering;

use mlx5_ring::sge::Sge;
use mlx5_ring::sq::{Flags, PostError};
use rdma_core_sys::{
    IBV_SEND_FENCE, IBV_SEND_INLINE, IBV_SEND_SIGNALED, IBV_SEND_SOLICITED, ibv_qp, ibv_send_wr,
};

use crate::context;
use crate::create;
use crate::decide;
use crate::find;
use crate::lock::Guard;
use crate::log;
use crate::objects::{Path, Qp, SendSide, Transport};

mod any;
mod common;

pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: [verbs], [record-lives]; `guard` holds the lock of the send queue of `record`.
    unsafe {
        let Some(record) = find::qp(qp) else {
            return match find::original_of_qp(qp) {
                Some(original) => (original.post_send)(qp, wr, bad_wr),
                None => post_undecided(qp, wr, bad_wr),
            };
        };
        match record.send_queue.try_lock() {
            Some(guard) => post_locked(guard, record, wr, bad_wr),
            None => post_contended(record, wr, bad_wr),
        }
    }
}

/// Posts to a queue pair that another thread uses.
///
/// # Safety
/// [verbs]; `record` is that of the queue pair.
#[cold]
unsafe extern "C" fn post_contended(
    record: &Qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: [verbs]; the guard holds the lock of the send queue of `record`.
    unsafe { post_locked(record.send_queue.lock(), record, wr, bad_wr) }
}

/// Posts to a queue pair whose send queue is locked.
///
/// # Safety
/// [verbs]; `record` is that of the queue pair, and `guard` holds the lock of its send queue.
#[inline(always)]
unsafe fn post_locked(
    mut guard: Guard<'_, Option<SendSide>>,
    record: &Qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: [verbs], [record-lives]; `side` is the send queue of `record`, whose transport chooses the function.
    unsafe {
        let Some(side) = &mut *guard else {
            drop(guard);
            return post_undecided(record.ibv, wr, bad_wr);
        };
        let is_inline = !wr.is_null() && (*wr).send_flags & IBV_SEND_INLINE != 0;
        if record.transport != Transport::Ud {
            if is_inline {
                side.post::<false, true>(record, wr, bad_wr)
            } else {
                side.post::<false, false>(record, wr, bad_wr)
            }
        } else if is_inline {
            side.post::<true, true>(record, wr, bad_wr)
        } else {
            side.post::<true, false>(record, wr, bad_wr)
        }
    }
}

/// Posts to a queue pair that doorbell does not drive, or not yet.
///
/// # Safety
/// [verbs]
#[cold]
unsafe extern "C" fn post_undecided(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: [verbs], [record-lives].
    unsafe {
        let context = context::of((*qp).context);
        let record = context.qps.get((*qp).qp_num);
        if let Some(record) = record {
            if record.status.path() == Path::Undecided {
                decide::for_qp(context, record);
            }
            if record.status.path() == Path::Doorbell && record.send_queue.lock().is_some() {
                return post_contended(record, wr, bad_wr);
            }
        }
        if record.is_none() && !create::note_foreign_qp(context, qp) {
            *bad_wr = wr;
            return libc::EOPNOTSUPP;
        }
        let error = (context.original.post_send)(qp, wr, bad_wr);
        if log::is_on() {
            log::count_posts(wr, bad_wr, error, |wr| wr.next);
        }
        error
    }
}

impl SendSide {
    /// Returns the number of requests that can be posted to `qp`, whose send queue this is.
    #[inline(always)]
    fn room(&mut self, qp: &Qp) -> u32 {
        self.look(&qp.send_completer);
        let outstanding = self.posted.wrapping_sub(self.retired);
        // As libmlx5: before RTS all are refused as if the queue was full.
        let most = if qp.can_send.load(Ordering::Relaxed) { self.limits.requests } else { 0 };
        most.saturating_sub(outstanding)
    }
}

/// Returns the flags of a request.
#[inline(always)]
pub(crate) fn flags_of(send_flags: u32, signal_all: bool) -> Flags {
    let flags = FLAGS[send_flags as usize % FLAGS.len()];
    if signal_all { flags | Flags::SIGNALED } else { flags }
}

/// By the lower three bits of `send_flags`.
const FLAGS: [Flags; 8] = {
    assert!(IBV_SEND_FENCE == 1 && IBV_SEND_SIGNALED == 2 && IBV_SEND_SOLICITED == 4);
    let [none, fence, signaled, solicited] =
        [Flags::NONE, Flags::FENCE, Flags::SIGNALED, Flags::SOLICITED];
    [
        none,
        fence,
        signaled,
        signaled.with(fence),
        solicited,
        solicited.with(fence),
        solicited.with(signaled),
        solicited.with(signaled).with(fence),
    ]
};

/// Returns the number of inline bytes; `u32::MAX` if there are more.
#[inline(always)]
fn len_of(list: &[Sge]) -> u32 {
    list.iter().fold(0_u32, |len, sge| len.saturating_add(sge.length))
}

/// Returns inline data.
///
/// # Safety
/// The memory of `sge` can be read during `'a`.
#[inline(always)]
unsafe fn bytes<'a>(sge: &Sge) -> &'a [u8] {
    if sge.length == 0 {
        return &[];
    }
    // SAFETY: the memory of `sge` can be read.
    unsafe {
        hint::assert_unchecked(sge.addr != 0);
        slice::from_raw_parts(sge.addr as *const u8, sge.length as usize)
    }
}

/// Returns where an atomic writes the eight bytes that it brings, whatever its only SGE says; libmlx5 leaves an empty one out.
pub(crate) fn result_of_atomic(list: &[Sge]) -> Result<Sge, c_int> {
    match list {
        [sge] if sge.length != 0 => Ok(Sge { length: 8, ..*sge }),
        _ => Err(libc::EINVAL),
    }
}

/// Returns the errno of libmlx5.
#[cold]
pub(crate) fn errno(why: PostError) -> c_int {
    match why {
        PostError::Full | PostError::TooLong | PostError::InlineTooLong => libc::ENOMEM,
        PostError::SgeTooLong => libc::EINVAL,
    }
}
