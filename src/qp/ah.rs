//! Address handles, the control objects.

use mlx5_wire::datagram::DatagramSegment;
use rdma_core_sys as sys;

use crate::error::{Error, Result};
use crate::mlx5;
use crate::pd::{DomainId, ProtectionDomain};

/// An address handle of libibverbs.
pub(super) struct Ah {
    ah: *mut sys::ibv_ah,
    pd: ProtectionDomain,
}

// SAFETY: verbs calls on an address handle are thread-safe (ibverbs(7)).
unsafe impl Send for Ah {}
// SAFETY: the reason for `Send` holds for shared references, too.
unsafe impl Sync for Ah {}

impl Ah {
    /// Resolves a path; on Ethernet the kernel finds the MAC address of the peer.
    pub(super) fn create(pd: &ProtectionDomain, attr: &mut sys::ibv_ah_attr) -> Result<Self> {
        // SAFETY: a live domain and an initialised structure.
        let ah = unsafe { sys::ibv_create_ah(pd.as_raw(), attr) };
        if ah.is_null() {
            return Err(Error::last_os("ibv_create_ah", pd.context().name()));
        }
        Ok(Self { ah, pd: pd.clone() })
    }

    pub(super) const fn as_raw(&self) -> *mut sys::ibv_ah {
        self.ah
    }

    pub(super) fn domain(&self) -> DomainId {
        self.pd.id()
    }

    /// Returns the address vector of an mlx5 device, or zeros.
    pub(super) fn segment(&self) -> Result<DatagramSegment> {
        let context = self.pd.context();
        let vector = context.mlx5dv().map(|mlx5dv| mlx5::address_vector(mlx5dv, self.ah));
        let vector = vector.transpose().map_err(|error| context.not_direct(error))?;
        Ok(vector.unwrap_or(DatagramSegment::zeroed()))
    }
}

impl Drop for Ah {
    fn drop(&mut self) {
        if !self.pd.context().owner().is_this_process() {
            return;
        }
        // SAFETY: created by us, destroyed once, and each send to it that is outstanding holds it.
        let errno = unsafe { sys::ibv_destroy_ah(self.ah) };
        self.pd.context().destroyed("ibv_destroy_ah", errno);
    }
}
