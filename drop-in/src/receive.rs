//! `ibv_post_recv` and `ibv_post_srq_recv`.

use core::ffi::c_int;

use mlx5_ring::receive::{PostError, ReceiveRing};
use rdma_core_sys::{ibv_qp, ibv_recv_wr, ibv_srq};

use crate::log::{self, DOORBELL};
use crate::objects::{Path, ReceiveSide};
use crate::sge::sges;
use crate::{context, decide};

pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: [verbs], [record-lives].
    unsafe {
        if let Some(record) = context::qp(qp) {
            return match &mut *record.receive.lock() {
                Some(side) => side.post_list(wr, bad_wr, libc::ENOMEM),
                // It has no receive queue.
                None => refuse(wr, bad_wr),
            };
        }
        let Some(post_recv) = context::of((*qp).context).ops.post_recv else { return refuse(wr, bad_wr) };
        let error = post_recv(qp, wr, bad_wr);
        log::count_posts(wr, bad_wr, error, |wr| wr.next);
        error
    }
}

pub(crate) unsafe extern "C" fn post_srq_recv(
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
            if let Some(side) = &mut *record.side.lock() {
                return side.post_list(wr, bad_wr, libc::EINVAL);
            }
        }
        let Some(post_srq_recv) = context.ops.post_srq_recv else { return refuse(wr, bad_wr) };
        let error = post_srq_recv(srq, wr, bad_wr);
        log::count_posts(wr, bad_wr, error, |wr| wr.next);
        error
    }
}

/// # Safety
/// `bad_wr` is writable.
#[cold]
unsafe fn refuse(wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: `bad_wr` is writable.
    unsafe { *bad_wr = wr };
    libc::EINVAL
}

impl<Q: ReceiveRing<Data = u64>> ReceiveSide<Q> {
    /// Posts a list, and rings the doorbell. Returns the errno, which is `full_and_too_many` for a request that has too
    /// many SGEs and finds the queue full.
    ///
    /// # Safety
    /// [verbs]
    #[inline(always)]
    unsafe fn post_list(
        &mut self,
        mut wr: *mut ibv_recv_wr,
        bad_wr: *mut *mut ibv_recv_wr,
        full_and_too_many: c_int,
    ) -> c_int {
        let (before, mut error) = (self.queue.posted(), 0);
        // SAFETY: [verbs] the list can be read, and its buffers belong to the device until the WQEs complete; `bad_wr`
        // is writable.
        unsafe {
            if !self.is_ready {
                return refuse(wr, bad_wr);
            }
            while let Some(request) = wr.as_ref() {
                let list = sges(request.sg_list, request.num_sge);
                let posted = match *list {
                    [sge] if sge.length != 0 => self.queue.post_segment(request.wr_id, sge.into()),
                    _ => self.queue.post(request.wr_id, list),
                };
                if let Err(why) = posted {
                    *bad_wr = wr;
                    error = match why {
                        PostError::Full => libc::ENOMEM,
                        PostError::TooManySges if !self.queue.has_room() => full_and_too_many,
                        PostError::TooManySges => libc::EINVAL,
                    };
                    break;
                }
                wr = request.next;
            }
        }
        self.queue.ring_doorbell();
        DOORBELL.add_posts(self.queue.posted().wrapping_sub(before));
        error
    }
}
