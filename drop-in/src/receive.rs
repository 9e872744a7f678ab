//! `ibv_post_recv` and `ibv_post_srq_recv`.

use core::ffi::c_int;
use core::mem::offset_of;
use core::slice;

use mlx5_ring::receive::{PostError, ReceiveRing};
use mlx5_ring::sge::Sge;
use mlx5_wire::data::DataSegment;
use rdma_core_sys::{ibv_qp, ibv_recv_wr, ibv_sge, ibv_srq};

use crate::context;
use crate::create;
use crate::decide;
use crate::log::LIBMLX5;
use crate::objects::Path;

const _: () = {
    assert!(size_of::<Sge>() == size_of::<ibv_sge>());
    assert!(offset_of!(Sge, addr) == offset_of!(ibv_sge, addr));
    assert!(offset_of!(Sge, length) == offset_of!(ibv_sge, length));
    assert!(offset_of!(Sge, lkey) == offset_of!(ibv_sge, lkey));
};

/// Returns the SGEs of a work request.
///
/// # Safety
/// `list` has `count` entries, which nobody changes meanwhile.
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
        if let Some(record) = context::of((*qp).context).qps.get((*qp).qp_num) {
            if let Some(side) = &mut *record.receive.lock() {
                let (posted, error) = if side.is_ready {
                    post(&mut side.queue, libc::ENOMEM, wr, bad_wr)
                } else {
                    *bad_wr = wr;
                    (0, libc::EINVAL)
                };
                record.receives.add(posted);
                return error;
            }
        }
        post_recv_undecided(qp, wr, bad_wr)
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
            if let Some(side) = &mut *record.side.lock() {
                let (posted, error) = post(&mut side.queue, libc::EINVAL, wr, bad_wr);
                record.posts.add(posted);
                return error;
            }
        }
        post_srq_recv_undecided(srq, wr, bad_wr)
    }
}

/// Posts a list; returns how many requests were posted, and the errno. `both` is that of a request that has too many SGEs
/// and finds the queue full.
///
/// # Safety
/// [verbs]
#[inline(always)]
unsafe fn post<Q: ReceiveRing<Data = u64>>(
    queue: &mut Q,
    both: c_int,
    mut wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> (u64, c_int) {
    let (mut posted, mut error) = (0, 0);
    // SAFETY: [verbs] a list; its buffers are the device's until they have completed.
    unsafe {
        while let Some(request) = wr.as_ref() {
            let list = sges(request.sg_list, request.num_sge);
            let result = match list {
                // Each WQE has room for one, and most requests have one.
                [one] if one.length != 0 => {
                    let segment = DataSegment::new(one.addr, one.length, one.lkey);
                    queue.post_segment(request.wr_id, segment)
                }
                _ => queue.post(request.wr_id, list),
            };
            match result {
                Ok(_) => posted += 1,
                Err(why) => {
                    *bad_wr = wr;
                    error = match why {
                        PostError::Full => libc::ENOMEM,
                        PostError::TooManySges if queue.free_slots() == 0 => both,
                        PostError::TooManySges => libc::EINVAL,
                    };
                    break;
                }
            }
            wr = request.next;
        }
    }
    queue.ring_doorbell();
    (posted, error)
}

/// Posts to a queue pair that doorbell does not drive, or not yet.
#[cold]
unsafe fn post_recv_undecided(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: [verbs], [record-lives].
    unsafe {
        let context = context::of((*qp).context);
        if let Some(record) = context.qps.get((*qp).qp_num) {
            if record.status.path() == Path::Undecided {
                decide::for_qp(context, record);
                if record.receive.lock().is_some() {
                    return post_recv(qp, wr, bad_wr);
                }
            }
        }
        if context.qps.get((*qp).qp_num).is_none() && !create::note_foreign_qp(context, qp) {
            *bad_wr = wr;
            return libc::EOPNOTSUPP;
        }
        let error = (context.original.post_recv)(qp, wr, bad_wr);
        count(error, wr, bad_wr);
        error
    }
}

/// Posts to an SRQ that doorbell does not drive, or not yet.
#[cold]
unsafe fn post_srq_recv_undecided(
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
                if record.side.lock().is_some() {
                    return post_srq_recv(srq, wr, bad_wr);
                }
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
