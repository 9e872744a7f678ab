//! Putting the library's functions in the place of libmlx5's, in the tables of a context that libibverbs publishes:
//! those of `struct ibv_context` for what posts and polls, and those of `struct verbs_context` for extended objects.

use core::ffi::c_int;
use core::mem::offset_of;
use std::sync::{Mutex, OnceLock, PoisonError};

use rdma_core_sys::{ibv_context, ibv_device, mlx5dv_obj, verbs_context};

use crate::context::{self, Context, real};
use crate::table::Table;
use crate::{create, log, poll, receive, send};

/// Returns `true` if doorbell drives all objects that are covered, as `doorbell run` asks for: else those that are
/// attached.
pub(crate) fn drives_all() -> bool {
    static ALL: OnceLock<bool> = OnceLock::new();
    *ALL.get_or_init(|| std::env::var_os("DOORBELL_DROP_IN").is_some_and(|value| value == "all"))
}

/// Returns the record of a context whose functions lead to this library from now on; `None` if it is not libmlx5's.
///
/// # Safety
/// `ibv` is a context of libibverbs that no code closes during `'a`.
pub(crate) unsafe fn install<'a>(ibv: *mut ibv_context) -> Option<&'a Context> {
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _installing = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: `ibv` is a context of libibverbs, of libmlx5 if it says so; all functions have the types of libibverbs
    // and libmlx5.
    unsafe {
        let ours: context::PollCq = poll::poll_cq;
        if (*ibv).ops.poll_cq.is_some_and(|poll_cq| poll_cq as usize == ours as usize) {
            return context::find(ibv);
        }
        // A context that had this address was closed past this library.
        context::remove(ibv);
        log::start();
        let is_mlx5 = real!(ibv, c"mlx5dv_is_supported" as fn(*mut ibv_device) -> bool)?;
        if !is_mlx5((*ibv).device) {
            return None;
        }
        let extended = &mut *ibv.byte_sub(offset_of!(verbs_context, context)).cast::<verbs_context>();
        let record = Context {
            ibv,
            ops: (*ibv).ops,
            create_cq_ex: extended.create_cq_ex,
            create_qp_ex: extended.create_qp_ex,
            create_srq_ex: extended.create_srq_ex,
            init_obj: real!(ibv, c"mlx5dv_init_obj" as fn(*mut mlx5dv_obj, u64) -> c_int)?,
            qps: Table::new(),
            cqs: Table::new(),
            srqs: Table::new(),
            deciding: Mutex::new(()),
        };
        if !context::insert(Box::new(record)) {
            log::warn(format_args!("the process has too many contexts: libmlx5 drives this one"));
            return None;
        }
        let public = &mut (*ibv).ops;
        public.poll_cq = Some(poll::poll_cq);
        public.req_notify_cq = Some(poll::req_notify_cq);
        public.post_send = Some(send::post_send);
        public.post_recv = Some(receive::post_recv);
        public.post_srq_recv = Some(receive::post_srq_recv);
        public.bind_mw = Some(send::bind_mw);
        extended.create_qp_ex = extended.create_qp_ex.and(Some(create::create_qp_ex));
        if drives_all() {
            extended.create_cq_ex = extended.create_cq_ex.and(Some(create::create_cq_ex));
            extended.create_srq_ex = extended.create_srq_ex.and(Some(create::create_srq_ex));
        }
        context::find(ibv)
    }
}
