//! Work queues, and the queue pair that spreads frames over them by a hash.

use std::mem::ManuallyDrop;
use std::sync::Arc;

use mlx5_ring::frames::Shape;
use rdma_core_sys as sys;
use sys::Mlx5dv;

use super::config::FrameConfig;
use crate::cq::Cq;
use crate::error::{Error, Result};
use crate::memory::DeferredFree;
use crate::pd::ProtectionDomain;

/// A work queue: a receive queue without a queue pair.
pub(super) struct Wq {
    wq: *mut sys::ibv_wq,
    parts: ManuallyDrop<(ProtectionDomain, Arc<Cq>, DeferredFree)>,
}

// SAFETY: verbs calls on a work queue are thread-safe (ibverbs(7)); its receiver alone posts to it.
unsafe impl Send for Wq {}
// SAFETY: the reason for `Send` holds for shared references, too.
unsafe impl Sync for Wq {}

impl Wq {
    /// Makes a work queue that takes frames.
    pub(super) fn create(pd: &ProtectionDomain, config: &FrameConfig, cq: &Arc<Cq>, mlx5dv: &Mlx5dv) -> Result<Self> {
        let name = pd.context().name();
        let mut init = sys::ibv_wq_init_attr {
            wq_type: sys::IBV_WQT_RQ,
            max_wr: config.wqes,
            max_sge: 1,
            pd: pd.as_raw(),
            cq: cq.as_raw(),
            ..Default::default()
        };
        if config.vlan_stripping {
            init.comp_mask |= sys::IBV_WQ_INIT_ATTR_FLAGS;
            init.create_flags |= sys::IBV_WQ_FLAGS_CVLAN_STRIPPING;
        }
        let mut mlx5 = sys::mlx5dv_wq_init_attr::default();
        if let Shape::Striding(strides) = config.shape {
            mlx5.comp_mask = sys::MLX5DV_WQ_INIT_ATTR_MASK_STRIDING_RQ.into();
            mlx5.striding_rq_attrs = sys::mlx5dv_striding_rq_init_attr {
                single_stride_log_num_of_bytes: strides.size.ilog2(),
                single_wqe_log_num_of_strides: strides.count.ilog2(),
                two_byte_shift_en: 0,
            };
        }
        // SAFETY: live objects of one device and initialised structures.
        let wq = unsafe { (mlx5dv.create_wq)(pd.context().as_raw(), &mut init, &mut mlx5) };
        if wq.is_null() {
            return Err(Error::last_os("mlx5dv_create_wq", name));
        }
        let parts = (pd.clone(), Arc::clone(cq), DeferredFree::default());
        let this = Self { wq, parts: ManuallyDrop::new(parts) };
        let mut attr =
            sys::ibv_wq_attr { attr_mask: sys::IBV_WQ_ATTR_STATE, wq_state: sys::IBV_WQS_RDY, ..Default::default() };
        // SAFETY: a live work queue and an initialised structure.
        match unsafe { sys::ibv_modify_wq(this.wq, &mut attr) } {
            0 => Ok(this),
            errno => Err(Error::returned("ibv_modify_wq", name, errno)),
        }
    }

    pub(super) const fn as_raw(&self) -> *mut sys::ibv_wq {
        self.wq
    }

    /// Where buffers wait that the queue may still use.
    pub(super) fn deferred(&self) -> &DeferredFree {
        &self.parts.2
    }
}

impl Drop for Wq {
    fn drop(&mut self) {
        let (pd, _, deferred) = &mut *self.parts;
        // A forked child leaks these objects: they are its parent's.
        if !pd.context().owner().is_this_process() {
            return;
        }
        // SAFETY: created by us, destroyed once; the table that names it was destroyed before.
        let errno = unsafe { sys::ibv_destroy_wq(self.wq) };
        if !pd.context().destroyed("ibv_destroy_wq", errno) {
            return;
        }
        deferred.release();
        // SAFETY: dropped once.
        unsafe { ManuallyDrop::drop(&mut self.parts) }
    }
}

/// A queue pair that spreads frames over work queues.
pub(crate) struct HashQp {
    qp: *mut sys::ibv_qp,
    table: *mut sys::ibv_rwq_ind_table,
    parts: ManuallyDrop<(ProtectionDomain, Vec<Arc<Wq>>)>,
}

// SAFETY: nothing is posted to it, and verbs calls on it are thread-safe (ibverbs(7)).
unsafe impl Send for HashQp {}
// SAFETY: the reason for `Send` holds for shared references, too.
unsafe impl Sync for HashQp {}

/// Key of the Toeplitz function: with a period of 16 bits, both directions of a connection have the same hash.
const KEY: [u8; 40] = {
    let mut key = [0x6d; 40];
    let mut i = 1;
    while i < key.len() {
        key[i] = 0x5a;
        i += 2;
    }
    key
};

/// Fields of a UDP datagram that are hashed.
const UDP: u32 = sys::IBV_RX_HASH_SRC_IPV4
    | sys::IBV_RX_HASH_DST_IPV4
    | sys::IBV_RX_HASH_SRC_PORT_UDP
    | sys::IBV_RX_HASH_DST_PORT_UDP;

impl HashQp {
    /// Creates a queue pair over these work queues, the number of which is a power of two.
    pub(super) fn create(pd: &ProtectionDomain, wqs: Vec<Arc<Wq>>) -> Result<Self> {
        let context = pd.context();
        let mut raw: Vec<_> = wqs.iter().map(|wq| wq.as_raw()).collect();
        let mut init = sys::ibv_rwq_ind_table_init_attr {
            log_ind_tbl_size: raw.len().ilog2(),
            ind_tbl: raw.as_mut_ptr(),
            comp_mask: 0,
        };
        // SAFETY: an open context; the array has as many live work queues as the logarithm says.
        let table = unsafe { sys::ibv_create_rwq_ind_table(context.as_raw(), &mut init) };
        if table.is_null() {
            return Err(Error::last_os("ibv_create_rwq_ind_table", context.name()));
        }
        let mut key = KEY;
        let mut init = sys::ibv_qp_init_attr_ex {
            qp_type: sys::IBV_QPT_RAW_PACKET,
            comp_mask: sys::IBV_QP_INIT_ATTR_PD | sys::IBV_QP_INIT_ATTR_IND_TABLE | sys::IBV_QP_INIT_ATTR_RX_HASH,
            pd: pd.as_raw(),
            rwq_ind_tbl: table,
            ..Default::default()
        };
        init.rx_hash_conf = sys::ibv_rx_hash_conf {
            rx_hash_function: sys::IBV_RX_HASH_FUNC_TOEPLITZ as u8,
            rx_hash_key_len: key.len() as u8,
            rx_hash_key: key.as_mut_ptr(),
            // Without a choice there is nothing to hash.
            rx_hash_fields_mask: if wqs.len() == 1 { 0 } else { UDP.into() },
        };
        // SAFETY: live objects of one device and an initialised structure.
        let qp = unsafe { sys::ibv_create_qp_ex(context.as_raw(), &mut init) };
        if qp.is_null() {
            let error = Error::raw_packet("ibv_create_qp_ex", context.name());
            // SAFETY: made above, and nothing uses it.
            let errno = unsafe { sys::ibv_destroy_rwq_ind_table(table) };
            context.destroyed("ibv_destroy_rwq_ind_table", errno);
            return Err(error);
        }
        Ok(Self { qp, table, parts: ManuallyDrop::new((pd.clone(), wqs)) })
    }

    pub(super) const fn as_raw(&self) -> *mut sys::ibv_qp {
        self.qp
    }
}

impl Drop for HashQp {
    fn drop(&mut self) {
        let context = self.parts.0.context();
        if !context.owner().is_this_process() {
            return;
        }
        // SAFETY: created by us, destroyed once, in this order; rules that lead here held this value.
        let gone = unsafe {
            context.destroyed("ibv_destroy_qp", sys::ibv_destroy_qp(self.qp))
                && context.destroyed("ibv_destroy_rwq_ind_table", sys::ibv_destroy_rwq_ind_table(self.table))
        };
        if gone {
            // SAFETY: dropped once.
            unsafe { ManuallyDrop::drop(&mut self.parts) }
        }
    }
}
