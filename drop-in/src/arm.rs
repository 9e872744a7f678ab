//! `ibv_req_notify_cq`, and what an event means for it.

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use rdma_core_sys::ibv_cq;

use crate::context;

pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: [verbs], [record-lives].
    unsafe {
        let context = context::of((*cq).context);
        // The lock keeps another thread from deciding for doorbell while libmlx5 arms.
        let mut arm = context.cq(cq).map(|record| (record, record.arm.lock()));
        if let Some((record, arm)) = &mut arm {
            if let Some(doorbell) = &mut arm.doorbell {
                doorbell.arm(record.consumer_index.load(Ordering::Relaxed), solicited_only != 0);
                return 0;
            }
        }
        (context.original.req_notify_cq)(cq, solicited_only)
    }
}

pub(crate) unsafe extern "C" fn cq_event(cq: *mut ibv_cq) {
    // SAFETY: [verbs], [record-lives].
    unsafe {
        let context = context::of((*cq).context);
        (context.original.cq_event)(cq);
        let Some(record) = context.cq(cq) else { return };
        let mut arm = record.arm.lock();
        match &mut arm.doorbell {
            Some(doorbell) => doorbell.event(),
            None => arm.events = (arm.events + 1) % 4,
        }
    }
}
