//! `ibv_post_recv` and `ibv_post_srq_recv`.

use core::ffi::c_int;
use core::mem::offset_of;
use core::slice;

use mlx5_ring::receive::PostError;
use mlx5_ring::sge::Sge;
use rdma_core_sys::{ibv_qp, ibv_recv_wr, ibv_sge, ibv_srq};

use crate::complete::Receives;
use crate::context;
use crate::create;
use crate::decide;
use crate::find;
use crate::lock::Guard;
use crate::log::{Count, LIBMLX5};
use crate::objects::{Path, ReceiveSide};

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
    // SAFETY: the caller's contract; both types have one layout.
    unsafe { slice::from_raw_parts(list.cast(), count as usize) }
}

pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: [verbs], [record-lives].
    unsafe {
        if let Some(record) = find::qp(qp) {
            if let Some(side) = record.receive.try_lock() {
                if side.as_ref().is_some_and(|side| side.is_ready) {
                    return post(side, &record.receives, wr, bad_wr);
                }
            }
        }
        post_recv_slowly(qp, wr, bad_wr)
    }
}

pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: [verbs], [record-lives].
    unsafe {
        if let Some(record) = context::of((*srq).context).srqs.get((*srq).handle) {
            if let Some(side) = record.side.try_lock() {
                if side.is_some() {
                    return post(side, &record.posts, wr, bad_wr);
                }
            }
        }
        post_srq_recv_slowly(srq, wr, bad_wr)
    }
}

/// Posts a list, and adds the number of requests that were posted to `count`; returns the errno.
///
/// # Safety
/// [verbs]
#[inline(always)]
unsafe fn post<Q: Receives>(
    mut guard: Guard<'_, Option<ReceiveSide<Q>>>,
    count: &Count,
    mut wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    let Some(side) = &mut *guard else { return libc::EINVAL };
    // SAFETY: [verbs] a list; its buffers are the device's until they have completed.
    unsafe {
        // Most lists are of requests of one SGE, for which each WQE has room.
        while let Some(request) = wr.as_ref() {
            let sge = request.sg_list.cast::<Sge>();
            if request.num_sge != 1
                || (*sge).length == 0
                || side.queue.post_segment(request.wr_id, (&*sge).into()).is_err()
            {
                return post_rest(guard, count, wr, bad_wr);
            }
            wr = request.next;
        }
    }
    count.add(side.queue.ring_doorbell().into());
    0
}

/// Posts the rest of a list, of requests of any number of SGEs.
///
/// # Safety
/// [verbs]
#[inline(never)]
unsafe fn post_rest<Q: Receives>(
    mut guard: Guard<'_, Option<ReceiveSide<Q>>>,
    count: &Count,
    mut wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    let Some(ReceiveSide { queue, .. }) = &mut *guard else { return libc::EINVAL };
    let mut error = 0;
    // SAFETY: [verbs] as in `post`.
    unsafe {
        while let Some(request) = wr.as_ref() {
            let list = sges(request.sg_list, request.num_sge);
            if let Err(why) = queue.post(request.wr_id, list) {
                *bad_wr = wr;
                error = match why {
                    PostError::Full => libc::ENOMEM,
                    PostError::TooManySges if queue.free_slots() == 0 => Q::FULL_AND_TOO_MANY_SGES,
                    PostError::TooManySges => libc::EINVAL,
                };
                break;
            }
            wr = request.next;
        }
    }
    count.add(queue.ring_doorbell().into());
    error
}

/// Posts to a queue pair that another thread uses, that is not ready, or that doorbell does not drive, or not yet.
#[cold]
unsafe fn post_recv_slowly(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: [verbs], [record-lives].
    unsafe {
        let context = context::of((*qp).context);
        let record = context.qps.get((*qp).qp_num);
        if let Some(record) = record {
            if record.status.path() == Path::Undecided {
                decide::for_qp(context, record);
            }
            let side = record.receive.lock();
            match &*side {
                Some(ready) if ready.is_ready => {
                    return post_rest(side, &record.receives, wr, bad_wr);
                }
                Some(_) => {
                    *bad_wr = wr;
                    return libc::EINVAL;
                }
                None => {}
            }
        }
        if record.is_none() && !create::note_foreign_qp(context, qp) {
            *bad_wr = wr;
            return libc::EOPNOTSUPP;
        }
        let error = (context.original.post_recv)(qp, wr, bad_wr);
        count(error, wr, bad_wr);
        error
    }
}

/// Posts to an SRQ that another thread uses, or that doorbell does not drive, or not yet.
#[cold]
unsafe fn post_srq_recv_slowly(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: [verbs], [record-lives].
    unsafe {
        let context = context::of((*srq).context);
        if let Some(record) = context.srqs.get((*srq).handle) {
            if record.status.path() == Path::Undecided {
                decide::for_srq(context, record);
            }
            let side = record.side.lock();
            if side.is_some() {
                return post_rest(side, &record.posts, wr, bad_wr);
            }
        }
        let error = (context.original.post_srq_recv)(srq, wr, bad_wr);
        count(error, wr, bad_wr);
        error
    }
}

/// Counts what libmlx5 has posted.
unsafe fn count(error: c_int, mut wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) {
    // SAFETY: [verbs].
    unsafe {
        let end = if error == 0 { core::ptr::null_mut() } else { *bad_wr };
        let mut posted = 0;
        while wr != end {
            posted += 1;
            wr = (*wr).next;
        }
        LIBMLX5.add_posts(posted);
    }
}
