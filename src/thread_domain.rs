//! The UAR register that a sender rings.

use std::sync::Arc;

use rdma_core_sys as sys;

use crate::pd::ProtectionDomain;
use crate::trace::trace_event;

/// A thread domain and the parent domain that joins it to a protection domain: libmlx5 gives it a register of its own,
/// which all queue pairs made on the parent domain have, and no others.
pub(crate) struct ThreadDomain {
    parent: *mut sys::ibv_pd,
    td: *mut sys::ibv_td,
    pd: ProtectionDomain,
}

// SAFETY: the handles are used to create queue pairs, and to free them; verbs calls are thread-safe (ibverbs(7)).
unsafe impl Send for ThreadDomain {}
// SAFETY: the reason for `Send` holds for shared references, too.
unsafe impl Sync for ThreadDomain {}

impl ThreadDomain {
    /// Makes a thread domain; `None` where the device has no register left, or its driver none to give.
    pub(crate) fn create(pd: &ProtectionDomain) -> Option<Arc<Self>> {
        let context = pd.context();
        // SAFETY: an open context and initialised structures that name live objects.
        unsafe {
            let td = sys::ibv_alloc_td(context.as_raw(), &mut sys::ibv_td_init_attr::default());
            if td.is_null() {
                trace_event!(device = context.name(), "no register of the sender's own");
                return None;
            }
            let mut attr = sys::ibv_parent_domain_init_attr { pd: pd.as_raw(), td, ..Default::default() };
            let parent = sys::ibv_alloc_parent_domain(context.as_raw(), &mut attr);
            if parent.is_null() {
                context.destroyed("ibv_dealloc_td", sys::ibv_dealloc_td(td));
                return None;
            }
            Some(Arc::new(Self { parent, td, pd: pd.clone() }))
        }
    }

    /// Returns the domain to create queue pairs on.
    pub(crate) const fn as_raw(&self) -> *mut sys::ibv_pd {
        self.parent
    }
}

impl Drop for ThreadDomain {
    fn drop(&mut self) {
        let context = self.pd.context();
        if !context.owner().is_this_process() {
            return;
        }
        // SAFETY: made by us, freed once, the parent domain first; each queue pair on it held this value.
        unsafe {
            let errno = sys::ibv_dealloc_pd(self.parent);
            if context.destroyed("ibv_dealloc_pd", errno) {
                context.destroyed("ibv_dealloc_td", sys::ibv_dealloc_td(self.td));
            }
        }
    }
}
