//! Shared receive queue: its configuration and the control object.

use rdma_core_sys as sys;

use crate::error::{Error, Result};
use crate::memory::DeferredFree;
use crate::pd::ProtectionDomain;

/// Size of a shared receive queue.
///
/// ```
/// # let _device = doorbell_doc::device();
/// use doorbell::{CqConfig, Receiver, SrqConfig};
///
/// let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
/// let mut receiver = Receiver::new(&pd, &CqConfig::new(1024))?;
/// let srq = receiver.create_srq(&SrqConfig::new(1023).max_sge(2))?;
/// assert_eq!(receiver.capacity(srq), 1023);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct SrqConfig {
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
}

impl SrqConfig {
    /// Describes an SRQ for `max_wr` outstanding receives of one buffer each. An mlx5 device rounds up to a power of
    /// two minus one: see [`Receiver::capacity`](crate::Receiver::capacity).
    pub const fn new(max_wr: u32) -> Self {
        Self { max_wr, max_sge: 1 }
    }

    /// Sets the number of buffers that one receive can have, 1 by default.
    pub const fn max_sge(mut self, max_sge: u32) -> Self {
        self.max_sge = max_sge;
        self
    }

    /// Checks the sizes against the limits of the device.
    pub(crate) fn check(&self, attr: &sys::ibv_device_attr) -> Result<()> {
        let max_wr = attr.max_srq_wr.max(0) as u64;
        let max_sge = attr.max_srq_sge.max(0) as u64;
        Error::check_range("max_wr of the SRQ", self.max_wr.into(), 1, max_wr)?;
        Error::check_range("max_sge of the SRQ", self.max_sge.into(), 1, max_sge)
    }
}

/// An SRQ of libibverbs. The ring posts to it on the direct path, `ibv_post_srq_recv` on the verbs path.
pub(crate) struct Srq {
    srq: *mut sys::ibv_srq,
    pd: ProtectionDomain,
    deferred: DeferredFree,
    destroys: bool,
}

// SAFETY: the handle is shared for creating and destroying QPs only; one owner posts.
unsafe impl Send for Srq {}
// SAFETY: as above.
unsafe impl Sync for Srq {}

impl Srq {
    pub(crate) fn create(pd: &ProtectionDomain, config: &SrqConfig) -> Result<(Self, u32)> {
        let mut init = sys::ibv_srq_init_attr::default();
        init.attr.max_wr = config.max_wr;
        init.attr.max_sge = config.max_sge;
        // SAFETY: a live domain and an initialised structure.
        let srq = unsafe { sys::ibv_create_srq(pd.as_raw(), &mut init) };
        if srq.is_null() {
            return Err(Error::last_os("ibv_create_srq", pd.context().name()));
        }
        let max_wr = init.attr.max_wr;
        let this = Self { srq, pd: pd.clone(), deferred: DeferredFree::default(), destroys: true };
        Ok((this, max_wr))
    }

    /// An SRQ for tag matching (`ibv_create_srq_ex(3)`): `max_wr` receives for messages that match nothing, and
    /// a list of `max_tags`, for which `max_ops` operations may be outstanding. All complete on `cq`, which is alive
    /// and of the extended form.
    pub(crate) fn create_tagged(
        pd: &ProtectionDomain,
        cq: *mut sys::ibv_cq,
        max_wr: u32,
        max_tags: u32,
        max_ops: u32,
    ) -> Result<Self> {
        let mut init = sys::ibv_srq_init_attr_ex {
            comp_mask: sys::IBV_SRQ_INIT_ATTR_TYPE
                | sys::IBV_SRQ_INIT_ATTR_PD
                | sys::IBV_SRQ_INIT_ATTR_CQ
                | sys::IBV_SRQ_INIT_ATTR_TM,
            srq_type: sys::IBV_SRQT_TM,
            pd: pd.as_raw(),
            cq,
            tm_cap: sys::ibv_tm_cap { max_num_tags: max_tags, max_ops },
            ..Default::default()
        };
        (init.attr.max_wr, init.attr.max_sge) = (max_wr, 1);
        // SAFETY: a live domain and CQ, and an initialised structure.
        let srq = unsafe { sys::ibv_create_srq_ex(pd.context().as_raw(), &mut init) };
        if srq.is_null() {
            return Err(Error::last_os("ibv_create_srq_ex", pd.context().name()));
        }
        Ok(Self { srq, pd: pd.clone(), deferred: DeferredFree::default(), destroys: true })
    }

    /// An SRQ that the caller made and will destroy.
    ///
    /// # Safety
    /// `srq` belongs to `pd` and lives for as long as the value.
    pub(crate) unsafe fn from_raw(pd: &ProtectionDomain, srq: *mut sys::ibv_srq) -> Self {
        Self { srq, pd: pd.clone(), deferred: DeferredFree::default(), destroys: false }
    }

    pub(crate) const fn as_raw(&self) -> *mut sys::ibv_srq {
        self.srq
    }

    pub(crate) const fn deferred(&self) -> &DeferredFree {
        &self.deferred
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        if !self.pd.context().owner().is_this_process() {
            return;
        }
        if !self.destroys {
            self.deferred.abandon();
            return;
        }
        // SAFETY: created by us, destroyed once, and every QP that uses it held this value.
        let errno = unsafe { sys::ibv_destroy_srq(self.srq) };
        if self.pd.context().destroyed("ibv_destroy_srq", errno) {
            self.deferred.release();
        }
    }
}
