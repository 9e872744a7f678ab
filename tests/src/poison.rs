//! Direct means direct: entries of a context that the direct path must not call abort.
//!
//! Receives and sends are posted and polled by doorbell itself. A test that sends with verbs does so through libibverbs
//! on other CQs: a CQ can be polled through libibverbs only if something was sent on it.

use std::ffi::c_int;
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

use rdma_core_sys as sys;

type PollCq = unsafe extern "C" fn(*mut sys::ibv_cq, c_int, *mut sys::ibv_wc) -> c_int;
type ReqNotifyCq = unsafe extern "C" fn(*mut sys::ibv_cq, c_int) -> c_int;
type PostSend = unsafe extern "C" fn(*mut sys::ibv_qp, *mut sys::ibv_send_wr, *mut *mut sys::ibv_send_wr) -> c_int;

/// The driver's entries that are still called.
struct Driver {
    poll_cq: PollCq,
    req_notify_cq: ReqNotifyCq,
    post_send: PostSend,
}

/// One driver, because a test has one device; each of its contexts has the same entries.
static DRIVER: OnceLock<Driver> = OnceLock::new();

/// Whether sends go past the driver.
static SENDS_FORBIDDEN: AtomicBool = AtomicBool::new(false);
/// CQs of sends.
static SEND_CQS: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// Replaces the entries of `context` for posting receives, posting tag operations, polling and arming.
///
/// # Safety
/// `context` is open, and no other thread uses it meanwhile.
pub unsafe fn post_and_poll(context: *mut sys::ibv_context) {
    // SAFETY: the context is open, and no other thread uses it.
    unsafe {
        let ops = &mut (*context).ops;
        let driver = DRIVER.get_or_init(|| Driver {
            poll_cq: ops.poll_cq.expect("a driver can poll"),
            req_notify_cq: ops.req_notify_cq.expect("a driver can arm"),
            post_send: ops.post_send.expect("a driver can send"),
        });
        let same = ops.poll_cq.is_some_and(|entry| std::ptr::fn_addr_eq(entry, driver.poll_cq));
        assert!(same, "one driver per process");
        ops.poll_cq = Some(poll_cq);
        ops.post_send = Some(post_send);
        ops.post_recv = Some(post_recv);
        ops.post_srq_recv = Some(post_srq_recv);
        ops.req_notify_cq = Some(req_notify_cq);
        let extended = sys::verbs_get_ctx(context);
        if !extended.is_null() && (*extended).sz >= size_of::<sys::verbs_context>() {
            (*extended).post_srq_ops = Some(post_srq_ops);
        }
    }
}

/// From now on nothing may be sent through the driver, either.
pub fn sends() {
    SENDS_FORBIDDEN.store(true, Ordering::Relaxed);
}

/// Replaces the entries through which an extended CQ is polled.
///
/// # Safety
/// `cq` is alive, and no other thread uses it meanwhile.
pub unsafe fn extended_cq(cq: *mut sys::ibv_cq_ex) {
    // SAFETY: the CQ is alive, and no other thread uses it.
    unsafe {
        (*cq).start_poll = Some(start_poll);
        (*cq).next_poll = Some(next_poll);
        (*cq).end_poll = Some(end_poll);
    }
}

/// Ends the process: the panic of a callback could be caught by a test.
fn forbidden(entry: &str) -> ! {
    eprintln!("the direct path called {entry} of the driver");
    process::abort()
}

fn send_cqs() -> MutexGuard<'static, Vec<usize>> {
    SEND_CQS.lock().unwrap_or_else(|_| process::abort())
}

/// The driver, for an entry that is called for a CQ of sends.
fn driver_of_sends(cq: *mut sys::ibv_cq, entry: &str) -> &'static Driver {
    if !send_cqs().contains(&(cq as usize)) {
        forbidden(entry);
    }
    DRIVER.get().unwrap_or_else(|| process::abort())
}

unsafe extern "C" fn post_send(
    qp: *mut sys::ibv_qp,
    wr: *mut sys::ibv_send_wr,
    bad_wr: *mut *mut sys::ibv_send_wr,
) -> c_int {
    if SENDS_FORBIDDEN.load(Ordering::Relaxed) {
        forbidden("post_send");
    }
    // SAFETY: `ibv_post_send(3)` requires a live QP.
    let (send_cq, recv_cq) = unsafe { ((*qp).send_cq, (*qp).recv_cq) };
    if send_cq == recv_cq {
        eprintln!("a CQ that is polled directly is also the CQ of sends");
        process::abort();
    }
    let mut cqs = send_cqs();
    if !cqs.contains(&(send_cq as usize)) {
        cqs.push(send_cq as usize);
    }
    drop(cqs);
    // SAFETY: the arguments of the caller.
    unsafe { (driver_of_sends(send_cq, "post_send").post_send)(qp, wr, bad_wr) }
}

unsafe extern "C" fn poll_cq(cq: *mut sys::ibv_cq, entries: c_int, wc: *mut sys::ibv_wc) -> c_int {
    // SAFETY: the arguments of the caller.
    unsafe { (driver_of_sends(cq, "poll_cq").poll_cq)(cq, entries, wc) }
}

unsafe extern "C" fn req_notify_cq(cq: *mut sys::ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the arguments of the caller.
    unsafe { (driver_of_sends(cq, "req_notify_cq").req_notify_cq)(cq, solicited_only) }
}

macro_rules! forbid {
    ($($entry:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        $(unsafe extern "C" fn $entry($(_: $argument),*) $(-> $result)? {
            forbidden(stringify!($entry))
        })*
    };
}

forbid! {
    post_recv(*mut sys::ibv_qp, *mut sys::ibv_recv_wr, *mut *mut sys::ibv_recv_wr) -> c_int;
    post_srq_recv(*mut sys::ibv_srq, *mut sys::ibv_recv_wr, *mut *mut sys::ibv_recv_wr) -> c_int;
    post_srq_ops(*mut sys::ibv_srq, *mut sys::ibv_ops_wr, *mut *mut sys::ibv_ops_wr) -> c_int;
    start_poll(*mut sys::ibv_cq_ex, *mut sys::ibv_poll_cq_attr) -> c_int;
    next_poll(*mut sys::ibv_cq_ex) -> c_int;
    end_poll(*mut sys::ibv_cq_ex);
}
