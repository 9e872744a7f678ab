//! Shared receive queue: its configuration and the control object.

use std::ptr;

use mlx5_ring::srq;
use rdma_core_sys::{self as sys, Mlx5dv};

use crate::attributes::DeviceAttr;
use crate::devx::Xrq;
use crate::error::{Error, Result};
use crate::memory::DeferredFree;
use crate::mlx5;
use crate::path::NotDirect;
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
///
/// # Receives that wait
/// An adapter fetches receives ahead, and is fastest if they follow each other in memory. With several queue pairs they
/// complete in another order. On the direct path, doorbell therefore posts them again in the order of memory: the
/// receive of a message that was handled waits while an older one is with the device, or for one batch if the buffer of
/// an older one was taken out. As many wait as a quarter of those that the device has, at most. So at least four fifths
/// of the receives that were posted are with the device or belong to messages that were not polled yet. None waits
/// after 4,096 polls in a row that found nothing, nor after [`arm`](crate::Completions::arm).
///
/// A peer that sends as many messages as receives were posted may therefore find none: it sends again later (RNR), or a
/// datagram is lost. If peers have credits, grant four fifths of the capacity, or set the
/// [patience](Self::patience) to 0.
#[derive(Clone, Debug)]
pub struct SrqConfig {
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) patience: u32,
}

impl SrqConfig {
    /// Describes an SRQ for `max_wr` outstanding receives of one buffer each. An mlx5 device rounds up to a power of
    /// two minus one: see [`Receiver::capacity`](crate::Receiver::capacity).
    pub const fn new(max_wr: u32) -> Self {
        Self { max_wr, max_sge: 1, patience: u32::MAX }
    }

    /// Sets how many receives may wait for an older one at most, see [above](Self#receives-that-wait).
    ///
    /// With 0 each receive is posted again when its batch ends, in the order of completion. The receives then follow
    /// each other in memory only while they complete in order. The [rings](crate::Receiver::as_direct) want 0.
    ///
    /// ```
    /// # let _device = doorbell_doc::device();
    /// # use doorbell::{BufferPool, CqConfig, PoolConfig, Receiver, SrqConfig};
    /// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// # let mut receiver = Receiver::new(&pd, &CqConfig::new(1024))?;
    /// // 511 credits, each of which is covered by a receive.
    /// let srq = receiver.create_srq(&SrqConfig::new(511).patience(0))?;
    /// let pool = BufferPool::new(&pd, &PoolConfig::new(511, 4096))?;
    /// assert_eq!(receiver.fill(srq, &pool)?, 511);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn patience(mut self, receives: u32) -> Self {
        self.patience = receives;
        self
    }

    /// Sets the number of buffers that one receive can have, 1 by default.
    pub const fn max_sge(mut self, max_sge: u32) -> Self {
        self.max_sge = max_sge;
        self
    }

    /// Checks the sizes against the limits of the device.
    pub(crate) fn check(&self, attr: &DeviceAttr) -> Result<()> {
        Error::check_range("max_wr of the SRQ", self.max_wr.into(), 1, attr.max_srq_wr.into())?;
        Error::check_range("max_sge of the SRQ", self.max_sge.into(), 1, attr.max_srq_sge.into())
    }
}

/// An SRQ of libibverbs or of a command. The ring posts to it on the direct path, `ibv_post_srq_recv` on the verbs
/// path.
pub(crate) struct Srq {
    handle: Handle,
    pd: ProtectionDomain,
    deferred: DeferredFree,
    destroys: bool,
}

/// An SRQ by its maker: libibverbs, or a command of the firmware.
enum Handle {
    Verbs(*mut sys::ibv_srq),
    Command(Xrq),
}

// SAFETY: the handle is shared for creating and destroying QPs only; one owner posts.
unsafe impl Send for Srq {}
// SAFETY: the reason for `Send` holds for shared references, too.
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
        Ok((Self::made(pd, Handle::Verbs(srq)), max_wr))
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
        Ok(Self::made(pd, Handle::Verbs(srq)))
    }

    /// Such an SRQ, made by a command of the firmware.
    pub(crate) fn create_tagged_by_command(
        pd: &ProtectionDomain,
        mlx5dv: &'static Mlx5dv,
        cq: *mut sys::ibv_cq,
        max_wr: u32,
        max_tags: u32,
    ) -> Result<Self> {
        Ok(Self::made(pd, Handle::Command(Xrq::create(pd, mlx5dv, cq, max_wr, max_tags)?)))
    }

    fn made(pd: &ProtectionDomain, handle: Handle) -> Self {
        Self { handle, pd: pd.clone(), deferred: DeferredFree::default(), destroys: true }
    }

    /// An SRQ that the caller made and will destroy.
    ///
    /// # Safety
    /// `srq` belongs to `pd` and lives for as long as the value.
    pub(crate) unsafe fn from_raw(pd: &ProtectionDomain, srq: *mut sys::ibv_srq) -> Self {
        Self { handle: Handle::Verbs(srq), pd: pd.clone(), deferred: DeferredFree::default(), destroys: false }
    }

    /// Returns the SRQ of libibverbs; null if a command made the SRQ.
    pub(crate) const fn as_raw(&self) -> *mut sys::ibv_srq {
        match self.handle {
            Handle::Verbs(srq) => srq,
            Handle::Command(_) => ptr::null_mut(),
        }
    }

    /// Returns the SRQ that a command made.
    pub(crate) const fn xrq(&self) -> Option<&Xrq> {
        match &self.handle {
            Handle::Verbs(_) => None,
            Handle::Command(xrq) => Some(xrq),
        }
    }

    /// Returns where the queue is.
    pub(crate) fn layout(&self, mlx5dv: &Mlx5dv) -> Result<srq::Layout, NotDirect> {
        match &self.handle {
            Handle::Verbs(srq) => mlx5::srq_layout(mlx5dv, *srq),
            Handle::Command(xrq) => Ok(xrq.layout()),
        }
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
        let destroyed = match &mut self.handle {
            Handle::Verbs(srq) => {
                // SAFETY: created by us, destroyed once, and every QP that uses it held this value.
                let errno = unsafe { sys::ibv_destroy_srq(*srq) };
                self.pd.context().destroyed("ibv_destroy_srq", errno)
            }
            Handle::Command(xrq) => xrq.destroy(),
        };
        if destroyed {
            self.deferred.release();
        }
    }
}
