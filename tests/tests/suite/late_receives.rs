//! Receives that are posted to a queue pair after it has failed, on a driver that flushes them only when it learns of
//! the failure, as the driver of Soft-RoCE does.

use std::ffi::c_int;
use std::mem::transmute;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use doorbell::{Cause, WcStatus};
use doorbell_tests::world::Single;
use doorbell_tests::{device, receiving, skip};
use rdma_core_sys as sys;

type ModifyQp = unsafe extern "C" fn(*mut sys::ibv_qp, *mut sys::ibv_qp_attr, c_int) -> c_int;
type PostRecv = unsafe extern "C" fn(*mut sys::ibv_qp, *mut sys::ibv_recv_wr, *mut *mut sys::ibv_recv_wr) -> c_int;

/// The driver learned of the failure after the last receive was posted.
static TOLD: AtomicBool = AtomicBool::new(false);
static POST_RECV: Mutex<Option<PostRecv>> = Mutex::new(None);

/// Comes before the function of libibverbs, which does the work.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_qp(qp: *mut sys::ibv_qp, attr: *mut sys::ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: the arguments of the caller; the next function of this name has this type.
    unsafe {
        if mask & sys::IBV_QP_STATE as c_int != 0 && (*attr).qp_state == sys::IBV_QPS_ERR {
            TOLD.store(true, Ordering::Relaxed);
        }
        let next = libc::dlsym(libc::RTLD_NEXT, c"ibv_modify_qp".as_ptr());
        assert!(!next.is_null());
        transmute::<*mut libc::c_void, ModifyQp>(next)(qp, attr, mask)
    }
}

unsafe extern "C" fn post_recv(
    qp: *mut sys::ibv_qp,
    wr: *mut sys::ibv_recv_wr,
    bad: *mut *mut sys::ibv_recv_wr,
) -> c_int {
    TOLD.store(false, Ordering::Relaxed);
    let driver = POST_RECV.lock().unwrap().unwrap();
    // SAFETY: the arguments of the caller.
    unsafe { driver(qp, wr, bad) }
}

#[test]
fn the_driver_learns_of_the_failure_after_each_late_receive() {
    let context = device::open_unpoisoned();
    if device::drives_directly(&context) {
        skip!("receives are posted without the driver");
    }
    let mut w = Single::new(8, 64);
    let context = w.pd.context().as_raw();
    // SAFETY: an open context, which no other thread uses now.
    unsafe {
        *POST_RECV.lock().unwrap() = (*context).ops.post_recv;
        (*context).ops.post_recv = Some(post_recv);
    }
    w.near[0].to_error().unwrap();
    for _ in 0..3 {
        let buffers = [w.pool.take().unwrap(), w.pool.take().unwrap()];
        if let Err(error) = w.receiver.post(w.queue, buffers) {
            skip!("the driver refuses them: {error}");
        }
        assert!(TOLD.load(Ordering::Relaxed), "they would stay with the driver");
        for failure in receiving::failures(&mut w.receiver, 2) {
            assert_eq!(failure.cause, Cause::Status(WcStatus::WR_FLUSH_ERR));
        }
    }
}
