//! `ibv_post_recv` and `ibv_post_srq_recv`.

use core::ffi::c_int;
use core::mem::offset_of;
use core::ptr;
use core::slice;

use mlx5_ring::receive::PostError;
use mlx5_ring::sge::{self, Sge};
use mlx5_wire::data::DataSegment;
use rdma_core_sys::{ibv_qp, ibv_recv_wr, ibv_sge, ibv_srq};

use crate::complete::Receives;
use crate::context;
use crate::create;
use crate::decide;
use crate::find;
use crate::lock::{Guard, Lock};
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
    // SAFETY: `list` has `count` entries, and both types have one layout.
    unsafe {
        core::hint::assert_unchecked(!list.is_null());
        slice::from_raw_parts(list.cast(), count as usize)
    }
}

pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: [verbs], [record-lives].
    unsafe {
        let posted = find::qp(qp)
            .and_then(|qp| post(&qp.receive, |side| side.is_ready, &qp.receives, wr, bad_wr));
        if let Some(error) = posted {
            return error;
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
        let posted =
            find::srq(srq).and_then(|srq| post(&srq.side, |_| true, &srq.posts, wr, bad_wr));
        if let Some(error) = posted {
            return error;
        }
        post_srq_recv_slowly(srq, wr, bad_wr)
    }
}

/// Posts a list, and adds the number of requests that were posted to `count`; returns the errno, or `None` if another thread
/// uses the queue, or doorbell cannot post to it.
///
/// # Safety
/// [verbs]
#[inline(always)]
unsafe fn post<Q: Receives>(
    lock: &Lock<Option<ReceiveSide<Q>>>,
    is_ready: impl Fn(&ReceiveSide<Q>) -> bool,
    count: &Count,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> Option<c_int> {
    // SAFETY: [verbs] the list can be read, and its buffers belong to the device until the WQEs complete.
    unsafe {
        let one = wr.as_ref().filter(|one| one.next.is_null()).and_then(|one| single(one));
        let take = || lock.try_lock().filter(|side| side.as_ref().is_some_and(is_ready));
        // A list of one request needs no loop. It is read before the lock is taken, which loads do not pass.
        let Some((id, segment)) = one else { return Some(post_many(take()?, wr, bad_wr, count)) };
        let mut guard = take()?;
        let side = guard.as_mut()?;
        if side.queue.post_segment(id, segment).is_err() {
            return Some(post_many(guard, wr, bad_wr, count));
        }
        count.add(side.queue.ring_doorbell().into());
        Some(0)
    }
}

/// As [`post`], a list of any length.
///
/// # Safety
/// [verbs]
#[inline(never)]
unsafe fn post_many<Q: Receives>(
    mut guard: Guard<'_, Option<ReceiveSide<Q>>>,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
    count: &Count,
) -> c_int {
    let Some(side) = &mut *guard else { return libc::EINVAL };
    // SAFETY: [verbs] the list can be read, and its buffers belong to the device until the WQEs complete.
    let error = unsafe { post_list(&mut side.queue, wr, bad_wr) };
    count.add(side.queue.ring_doorbell().into());
    error
}

/// Returns `wr_id` and segment of a request of one SGE that is not empty, as most are; `None` for another one.
///
/// # Safety
/// [verbs]
#[inline(always)]
unsafe fn single(request: &ibv_recv_wr) -> Option<(u64, DataSegment)> {
    let sge = request.sg_list.cast::<Sge>();
    // SAFETY: [verbs] the list has `num_sge` entries.
    unsafe {
        if request.num_sge != 1 || (*sge).length == 0 {
            return None;
        }
        Some((request.wr_id, (&*sge).into()))
    }
}

/// Posts a list without the doorbell; returns the errno.
///
/// # Safety
/// [verbs]
// Not inlined: in a function that is given the queue alone the compiler keeps its fields in registers.
#[inline(never)]
unsafe fn post_list<Q: Receives>(
    queue: &mut Q,
    mut wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: [verbs] the list can be read, and its buffers belong to the device until the WQEs complete. Every WQE has room
    // for one segment.
    unsafe {
        queue.post_each(|segments, capacity| {
            let request = wr.as_ref()?;
            let (wr_id, segment) = single(request)?;
            sge::write_one(segments, capacity, segment);
            wr = request.next;
            Some(wr_id)
        });
    }
    if wr.is_null() {
        return 0;
    }
    // SAFETY: [verbs] the rest of the list can be read.
    unsafe { post_rest(queue, wr, bad_wr) }
}

/// As [`post_list`], requests of any number of SGEs.
///
/// # Safety
/// [verbs]
#[inline(never)]
unsafe fn post_rest<Q: Receives>(
    queue: &mut Q,
    mut wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: [verbs] the list can be read, and its buffers belong to the device until the WQEs complete. No more segments are
    // written than a WQE has room for.
    unsafe {
        queue.post_each(|segments, capacity| {
            let request = wr.as_ref()?;
            if !(1..=capacity as c_int).contains(&request.num_sge) {
                return None;
            }
            let list = sges(request.sg_list, request.num_sge);
            if !sge::scatter_all(segments, capacity, list) {
                return None;
            }
            wr = request.next;
            Some(request.wr_id)
        });
        while let Some(request) = wr.as_ref() {
            let list = sges(request.sg_list, request.num_sge);
            if let Err(why) = queue.post(request.wr_id, list) {
                *bad_wr = wr;
                return match why {
                    PostError::Full => libc::ENOMEM,
                    PostError::TooManySges if queue.free_slots() == 0 => Q::FULL_AND_TOO_MANY_SGES,
                    PostError::TooManySges => libc::EINVAL,
                };
            }
            wr = request.next;
        }
    }
    0
}

/// Posts to a queue pair that another thread uses, that is not ready, or that doorbell does not drive, or not yet.
///
/// # Safety
/// [verbs]
#[cold]
unsafe extern "C" fn post_recv_slowly(
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
                    return post_many(side, wr, bad_wr, &record.receives);
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
        LIBMLX5.add_list(wr, if error == 0 { ptr::null_mut() } else { *bad_wr }, |wr| (*wr).next);
        error
    }
}

/// Posts to an SRQ that another thread uses, or that doorbell does not drive, or not yet.
///
/// # Safety
/// [verbs]
#[cold]
unsafe extern "C" fn post_srq_recv_slowly(
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
                return post_many(side, wr, bad_wr, &record.posts);
            }
        }
        let error = (context.original.post_srq_recv)(srq, wr, bad_wr);
        LIBMLX5.add_list(wr, if error == 0 { ptr::null_mut() } else { *bad_wr }, |wr| (*wr).next);
        error
    }
}
