//! The twin that libibverbs and the stock libmlx5 drive.

use std::ptr;

use rdma_core_sys as sys;

use crate::twin::Objects;
use crate::verbs;

/// Why a receive was not posted, as both twins say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    Full,
    TooManyEntries,
    Other(i32),
}

/// Posts receives to queue `queue`, with one call. Returns how many were taken.
pub fn post(objects: &Objects, queue: usize, receives: &[(u64, Vec<sys::ibv_sge>)]) -> (usize, Option<Refusal>) {
    let mut sges: Vec<Vec<sys::ibv_sge>> = receives.iter().map(|(_, entries)| entries.clone()).collect();
    let mut wrs: Vec<_> = receives
        .iter()
        .zip(&mut sges)
        .map(|((id, _), entries)| sys::ibv_recv_wr {
            wr_id: *id,
            next: ptr::null_mut(),
            sg_list: entries.as_mut_ptr(),
            num_sge: entries.len() as i32,
        })
        .collect();
    // SAFETY: the queue is alive, the list can be read, and the memory that it names is read only while
    // the device rests.
    let post = |first, bad: &mut _| unsafe {
        if objects.srq.is_null() {
            sys::ibv_post_recv(objects.qps[queue], first, bad)
        } else {
            sys::ibv_post_srq_recv(objects.srq, first, bad)
        }
    };
    let (taken, errno) = verbs::post_list(&mut wrs, |wr| &mut wr.next, post);
    let refusal = match errno {
        0 => None,
        libc::ENOMEM => Some(Refusal::Full),
        libc::EINVAL => Some(Refusal::TooManyEntries),
        errno => Some(Refusal::Other(errno)),
    };
    (taken, refusal)
}

/// Takes the events that have come, and asks for the next one.
pub fn arm(objects: &Objects, solicited_only: bool) {
    verbs::take_events(objects.channel);
    // SAFETY: the CQ is alive.
    let errno = unsafe { sys::ibv_req_notify_cq(objects.cq, i32::from(solicited_only)) };
    verbs::done(errno, "ibv_req_notify_cq");
}

/// Takes a QP to RESET. libmlx5 then discards its CQEs in the CQ.
pub fn reset(objects: &Objects, qp: usize) {
    verbs::to(objects.qps[qp], &[sys::IBV_QPS_RESET, sys::IBV_QPS_INIT]);
}
