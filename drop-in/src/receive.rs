//! `ibv_post_recv` and `ibv_post_srq_recv`.

use core::ffi::c_int;
use core::hint;
use core::mem::offset_of;
use core::slice;

use mlx5_ring::receive::PostError;
use mlx5_ring::sge::{self, Sge};
use rdma_core_sys::{ibv_qp, ibv_recv_wr, ibv_sge, ibv_srq};

use crate::complete::Receives;
use crate::context;
use crate::create;
use crate::decide;
use crate::find;
use crate::lock::{Guard, Lock};
use crate::log::{self, Count};
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
        hint::assert_unchecked(!list.is_null());
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
        let Some(record) = find::qp(qp) else {
            return match find::original_of_qp(qp) {
                Some(original) => (original.post_recv)(qp, wr, bad_wr),
                None => post_recv_slowly(qp, wr, bad_wr),
            };
        };
        let is_posted = post_one(&record.receive_queue, &record.receives_posted, wr);
        if is_posted { 0 } else { post_recv_list(qp, wr, bad_wr) }
    }
}

pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: [verbs], [record-lives].
    unsafe {
        let Some(record) = find::srq(srq) else {
            return match find::original_of_srq(srq) {
                Some(original) => (original.post_srq_recv)(srq, wr, bad_wr),
                None => post_srq_recv_slowly(srq, wr, bad_wr),
            };
        };
        let is_posted = post_one(&record.side, &record.posts, wr);
        if is_posted { 0 } else { post_srq_recv_list(srq, wr, bad_wr) }
    }
}

/// Posts a list of one request with one SGE, which needs no loop, and rings the doorbell. Returns `false` if nothing was posted:
/// the list is another one, the queue is full, not ready or in use by another thread, or doorbell does not drive it.
///
/// # Safety
/// [verbs]
#[inline(always)]
unsafe fn post_one<Q: Receives>(
    lock: &Lock<Option<ReceiveSide<Q>>>,
    count: &Count,
    wr: *const ibv_recv_wr,
) -> bool {
    // SAFETY: [verbs] the list can be read, and its buffers belong to the device until the WQEs complete. Every WQE has room
    // for one segment. The WQEs are not replaced.
    unsafe {
        // The compiler moves no load to before the lock, so the list is read first.
        let one = wr.as_ref().filter(|one| one.next.is_null()).and_then(|one| single(one));
        let Some((wr_id, sge)) = one else { return false };
        let Some(mut guard) = lock.try_lock() else { return false };
        if Q::IS_SHARED {
            // Its record was found in the SRQ, so doorbell drives it.
            hint::assert_unchecked(guard.as_ref().is_some_and(|side| side.is_ready));
        }
        let Some(side) = guard.as_mut().filter(|side| side.is_ready) else {
            return false;
        };
        let write = |segments, capacity| sge::scatter_fresh(segments, capacity, sge);
        if side.queue.post_with(wr_id, write).is_err() {
            return false;
        }
        side.queue.wqes_mut().ring_doorbell();
        count.add(1);
        true
    }
}

/// As [`post_recv`], a list of any length.
///
/// # Safety
/// [verbs]
#[inline(never)]
unsafe extern "C" fn post_recv_list(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: [verbs], [record-lives].
    unsafe {
        let posted = find::qp(qp)
            .and_then(|qp| post(qp.receive_queue.try_lock()?, &qp.receives_posted, wr, bad_wr));
        match posted {
            Some(error) => error,
            None => post_recv_slowly(qp, wr, bad_wr),
        }
    }
}

/// As [`post_srq_recv`], a list of any length.
///
/// # Safety
/// [verbs]
#[inline(never)]
unsafe extern "C" fn post_srq_recv_list(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: [verbs], [record-lives].
    unsafe {
        let posted =
            find::srq(srq).and_then(|srq| post(srq.side.try_lock()?, &srq.posts, wr, bad_wr));
        match posted {
            Some(error) => error,
            None => post_srq_recv_slowly(srq, wr, bad_wr),
        }
    }
}

/// Posts a list, rings the doorbell, and adds the number of requests that were posted to `count`. Returns the errno; `None` if
/// doorbell does not drive the queue.
///
/// # Safety
/// [verbs]
#[inline(always)]
unsafe fn post<Q: Receives>(
    mut guard: Guard<'_, Option<ReceiveSide<Q>>>,
    count: &Count,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> Option<c_int> {
    let side = guard.as_mut()?;
    // SAFETY: [verbs] the list can be read, and its buffers belong to the device until the WQEs complete; `bad_wr` is writable.
    unsafe {
        if !side.is_ready {
            *bad_wr = wr;
            return Some(libc::EINVAL);
        }
        let before = side.queue.posted();
        let error = post_list(&mut side.queue, wr, bad_wr);
        side.queue.ring_doorbell();
        count.add(side.queue.posted().wrapping_sub(before).into());
        Some(error)
    }
}

/// Returns `wr_id` and SGE of a request of one SGE that is not empty, as most are; `None` for another one.
///
/// # Safety
/// [verbs]
#[inline(always)]
unsafe fn single(request: &ibv_recv_wr) -> Option<(u64, &Sge)> {
    let sge = request.sg_list.cast::<Sge>();
    // SAFETY: [verbs] the list has `num_sge` entries.
    unsafe {
        if request.num_sge != 1 || (*sge).length == 0 {
            return None;
        }
        Some((request.wr_id, &*sge))
    }
}

/// Posts a list without the doorbell, with a loop for requests of one SGE; returns the errno.
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
            let (wr_id, sge) = single(request)?;
            sge::scatter_one(segments, capacity, sge);
            wr = request.next;
            Some(wr_id)
        });
    }
    // SAFETY: [verbs] the rest of the list can be read.
    if wr.is_null() { 0 } else { unsafe { post_several(queue, wr, bad_wr) } }
}

/// As [`post_list`], requests of several SGEs, too.
///
/// # Safety
/// [verbs]
#[inline(never)]
unsafe fn post_several<Q: Receives>(
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
        if wr.is_null() { 0 } else { post_any(queue, wr, bad_wr) }
    }
}

/// As [`post_list`], requests without SGEs and with empty ones, too.
///
/// # Safety
/// [verbs]
#[inline(never)]
unsafe fn post_any<Q: Receives>(
    queue: &mut Q,
    mut wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: [verbs] the list can be read, and its buffers belong to the device until the WQEs complete.
    unsafe {
        while let Some(request) = wr.as_ref() {
            let list = sges(request.sg_list, request.num_sge);
            if let Err(why) = queue.post(request.wr_id, list) {
                *bad_wr = wr;
                return match why {
                    PostError::Full => libc::ENOMEM,
                    PostError::TooManySges if !queue.has_room() => Q::FULL_AND_TOO_MANY_SGES,
                    PostError::TooManySges => libc::EINVAL,
                };
            }
            wr = request.next;
        }
    }
    0
}

/// Posts to a queue pair that another thread uses, or that doorbell does not drive, or not yet.
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
            if record.status.path() == Path::Doorbell {
                let posted = post(record.receive_queue.lock(), &record.receives_posted, wr, bad_wr);
                if let Some(error) = posted {
                    return error;
                }
            }
        }
        if record.is_none() && !create::note_foreign_qp(context, qp) {
            *bad_wr = wr;
            return libc::EOPNOTSUPP;
        }
        let error = (context.original.post_recv)(qp, wr, bad_wr);
        if log::is_on() {
            log::count_posts(wr, bad_wr, error, |wr| wr.next);
        }
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
        if let Some(record) = context.srq(srq) {
            if record.status.path() == Path::Undecided {
                decide::for_srq(context, record);
            }
            if record.status.path() == Path::Doorbell {
                let posted = post(record.side.lock(), &record.posts, wr, bad_wr);
                if let Some(error) = posted {
                    return error;
                }
            }
        }
        let error = (context.original.post_srq_recv)(srq, wr, bad_wr);
        if log::is_on() {
            log::count_posts(wr, bad_wr, error, |wr| wr.next);
        }
        error
    }
}
