//! Thread domains: the program promises to use what it makes in one from one thread at a time, so it needs no locks.

use core::ffi::c_int;
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rdma_core_sys::{ibv_context, ibv_parent_domain_init_attr, ibv_pd};

use crate::context::{self, Context};

/// Parent domains that have a thread domain.
#[derive(Default)]
pub(crate) struct Domains(Mutex<BTreeSet<usize>>);

impl Domains {
    fn lock(&self) -> MutexGuard<'_, BTreeSet<usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Context {
    /// Returns `true` if queues that are made in this domain have locks.
    pub(crate) fn is_shared_in(&self, pd: *mut ibv_pd) -> bool {
        self.is_shared && !self.domains.lock().contains(&(pd as usize))
    }
}

pub(crate) unsafe extern "C" fn alloc_parent_domain(
    ibv: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    // SAFETY: [verbs].
    unsafe {
        let context = context::of(ibv);
        let pd = (context.original.alloc_parent_domain)(ibv, attr);
        if !pd.is_null() && !(*attr).td.is_null() {
            context.domains.lock().insert(pd as usize);
        }
        pd
    }
}

pub(crate) unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: [verbs].
    unsafe {
        let context = context::of((*pd).context);
        // Another thread may get a domain with this address at once.
        let had_thread = context.domains.lock().remove(&(pd as usize));
        let error = (context.original.dealloc_pd)(pd);
        if error != 0 && had_thread {
            context.domains.lock().insert(pd as usize);
        }
        error
    }
}
