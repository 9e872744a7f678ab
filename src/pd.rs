//! Protection domain.

use std::fmt;
use std::sync::Arc;

use rdma_core_sys as sys;

use crate::context::Context;
use crate::error::{Error, Result};

/// A protection domain. Queues use only memory registered in their own domain. Clones share one domain. The domain is
/// freed when the last object made from it is dropped.
///
/// ```
/// # let _device = doorbell_doc::device();
/// use doorbell::{BufferPool, CqConfig, PoolConfig, Receiver};
///
/// // Buffers, receivers and queue pairs that are to meet are of one domain.
/// let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
/// let pool = BufferPool::new(&pd, &PoolConfig::new(16, 256))?;
/// let receiver = Receiver::new(&pd, &CqConfig::new(4096))?;
/// assert_eq!(receiver.pd().as_raw(), pool.pd().as_raw());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct ProtectionDomain {
    inner: Arc<Inner>,
    id: DomainId,
}

/// Identity of a domain: the address of the `ibv_pd`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DomainId(usize);

struct Inner {
    pd: *mut sys::ibv_pd,
    context: Context,
    frees: bool,
}

// SAFETY: verbs calls on a domain are thread-safe (ibverbs(7)).
unsafe impl Send for Inner {}
// SAFETY: the reason for `Send` holds for shared references, too.
unsafe impl Sync for Inner {}

impl Context {
    /// Allocates a protection domain (`ibv_alloc_pd(3)`).
    ///
    /// ```
    /// # use doorbell::PoolConfig;
    /// # let _device = doorbell_doc::device();
    /// let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// let pool = doorbell::BufferPool::new(&pd, &PoolConfig::new(16, 256))?;
    /// assert_eq!(pool.available(), 16);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Verbs`].
    pub fn alloc_pd(&self) -> Result<ProtectionDomain> {
        // SAFETY: an open context.
        let pd = unsafe { sys::ibv_alloc_pd(self.as_raw()) };
        if pd.is_null() {
            return Err(Error::last_os("ibv_alloc_pd", self.name()));
        }
        Ok(ProtectionDomain::of(Inner { pd, context: self.clone(), frees: true }))
    }
}

impl ProtectionDomain {
    /// Wraps a domain that the caller allocated and will free.
    ///
    /// # Safety
    /// `pd` belongs to `context` and stays allocated for as long as the value and everything made from
    /// it exist.
    pub unsafe fn from_raw(context: &Context, pd: *mut sys::ibv_pd) -> Self {
        Self::of(Inner { pd, context: context.clone(), frees: false })
    }

    fn of(inner: Inner) -> Self {
        let id = DomainId(inner.pd.addr());
        Self { inner: Arc::new(inner), id }
    }

    /// Returns the device of the domain.
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// Returns the handle of libibverbs.
    pub fn as_raw(&self) -> *mut sys::ibv_pd {
        self.inner.pd
    }

    #[inline(always)]
    pub(crate) const fn id(&self) -> DomainId {
        self.id
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.frees || !self.context.owner().is_this_process() {
            return;
        }
        // SAFETY: allocated by us, freed once, and everything made from it held this value.
        let errno = unsafe { sys::ibv_dealloc_pd(self.pd) };
        self.context.destroyed("ibv_dealloc_pd", errno);
    }
}

impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProtectionDomain").field("context", &self.inner.context).finish_non_exhaustive()
    }
}
