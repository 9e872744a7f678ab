//! Verbs objects as a C program makes them.

use std::ffi::c_int;
use std::ptr;

use doorbell::ProtectionDomain;
use rdma_core_sys as sys;

/// A CQ, a QP on it that sends on another CQ, and perhaps an SRQ.
pub struct Made {
    /// The CQ of receives.
    pub recv_cq: *mut sys::ibv_cq,
    /// The CQ of sends.
    pub send_cq: *mut sys::ibv_cq,
    /// Null without one.
    pub srq: *mut sys::ibv_srq,
    /// The queue pair, which has not left RESET.
    pub qp: *mut sys::ibv_qp,
}

/// A CQ without anything special.
pub fn plain_cq(pd: &ProtectionDomain) -> *mut sys::ibv_cq {
    let context = pd.context().as_raw();
    // SAFETY: an open context.
    unsafe { sys::ibv_create_cq(context, 256, ptr::null_mut(), ptr::null_mut(), 0) }
}

/// Returns attributes of a queue pair as the driver knows them.
///
/// # Safety
/// The queue pair is alive.
pub unsafe fn query(qp: *mut sys::ibv_qp, mask: sys::ibv_qp_attr_mask) -> sys::ibv_qp_attr {
    let (mut attr, mut init) = (sys::ibv_qp_attr::default(), sys::ibv_qp_init_attr::default());
    // SAFETY: a live queue pair, as the caller says, and writable structures.
    assert_eq!(unsafe { sys::ibv_query_qp(qp, &mut attr, mask as i32, &mut init) }, 0);
    attr
}

/// Stands for an entry that posts.
///
/// # Safety
/// As for the entry.
pub unsafe extern "C" fn no_memory<Q, W>(_: *mut Q, first: *mut W, bad: *mut *mut W) -> c_int {
    // SAFETY: as for the entry: `bad` can be written.
    unsafe { *bad = first };
    libc::ENOMEM
}

impl Made {
    /// Makes the others on a CQ, with `receives` receives of up to `sges` buffers.
    pub fn on(
        pd: &ProtectionDomain,
        recv_cq: *mut sys::ibv_cq,
        qp_type: sys::ibv_qp_type,
        (receives, sges): (u32, u32),
        shared: bool,
    ) -> Self {
        let send_cq = plain_cq(pd);
        assert!(!recv_cq.is_null() && !send_cq.is_null(), "{}", std::io::Error::last_os_error());
        let mut srq = ptr::null_mut();
        let mut init = sys::ibv_qp_init_attr { send_cq, recv_cq, qp_type, ..Default::default() };
        (init.cap.max_send_wr, init.cap.max_send_sge) = (16, 1);
        // SAFETY: a domain, CQs of its context, initialised structures; destroyed below.
        unsafe {
            if shared {
                let mut attr = sys::ibv_srq_init_attr::default();
                (attr.attr.max_wr, attr.attr.max_sge) = (receives, sges);
                srq = sys::ibv_create_srq(pd.as_raw(), &mut attr);
                assert!(!srq.is_null());
                init.srq = srq;
            } else {
                (init.cap.max_recv_wr, init.cap.max_recv_sge) = (receives, sges);
            }
            let qp = sys::ibv_create_qp(pd.as_raw(), &mut init);
            assert!(!qp.is_null());
            Self { recv_cq, send_cq, srq, qp }
        }
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        // SAFETY: made by `on`, destroyed once, after everything that wraps it.
        unsafe {
            assert_eq!(sys::ibv_destroy_qp(self.qp), 0);
            if !self.srq.is_null() {
                assert_eq!(sys::ibv_destroy_srq(self.srq), 0);
            }
            assert_eq!(sys::ibv_destroy_cq(self.recv_cq), 0);
            assert_eq!(sys::ibv_destroy_cq(self.send_cq), 0);
        }
    }
}
