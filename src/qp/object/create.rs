//! Making queue pairs, and taking over those of the caller.

use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex};

use rdma_core_sys as sys;

use super::command::CommandQp;
use super::{Handle, Parts, Qp, ReceiveSide, SendSide};
use crate::cq::Cq;
use crate::error::{Error, Result};
use crate::memory::DeferredFree;
use crate::path::NotDirect;
use crate::pd::ProtectionDomain;
use crate::qp::config::QpConfig;

/// Bytes that fit into one basic block of a WQE besides the control segment and the header of inline data.
const SMALL: u32 = 64 - 16 - 4;
/// Bytes that fit into one basic block beside a remote address, too: the most for a queue of one block.
const SMALL_WRITE: u32 = SMALL - 16;

/// Bytes that fit into the second basic block of a SEND to a DC target.
const SMALL_DC: u32 = 64 - 4;

impl Parts {
    fn new(pd: &ProtectionDomain, receive: ReceiveSide, send: SendSide) -> ManuallyDrop<Self> {
        let SendSide { cq: send_cq, register: _register, .. } = send;
        let ReceiveSide { cq: _recv_cq, srq, .. } = receive;
        ManuallyDrop::new(Self { pd: pd.clone(), send_cq, _register, _recv_cq, srq, deferred: DeferredFree::default() })
    }
}

impl ReceiveSide {
    /// Nothing is received.
    pub(crate) fn idle(cq: Arc<Cq>) -> Self {
        Self { cq, srq: None, own: (0, 0), mlx5dv: None }
    }

    pub(in crate::qp) fn is_idle(&self) -> bool {
        self.srq.is_none() && self.own == (0, 0)
    }
}

impl SendSide {
    /// No sender posts: nothing is sent, or the device does so on its own.
    pub(crate) fn idle(cq: Arc<Cq>) -> Self {
        Self { cq, register: None, mlx5dv: None, has_sender: false }
    }
}

impl Qp {
    /// A queue pair in the RESET state.
    pub(in crate::qp) fn create(
        pd: &ProtectionDomain,
        config: &QpConfig,
        receive: ReceiveSide,
        send: SendSide,
    ) -> Result<Self> {
        let context = pd.context();
        config.check(context.attr())?;
        config.check_receives(receive.own, receive.srq.is_some(), context.attr())?;
        if let Some(xrq) = receive.srq.as_ref().and_then(|srq| srq.xrq()) {
            let qp = CommandQp::create(config, xrq, send.cq.as_raw(), receive.cq.as_raw())?;
            let cap = sys::ibv_qp_cap {
                max_send_wr: config.max_send_wr,
                max_send_sge: config.max_send_sge,
                max_inline_data: config.max_inline.unwrap_or(0),
                ..Default::default()
            };
            return Ok(Self::made(Handle::Command(qp), cap, pd, receive, send));
        }
        let mut init = sys::ibv_qp_init_attr_ex {
            send_cq: send.cq.as_raw(),
            recv_cq: receive.cq.as_raw(),
            srq: receive.srq.as_ref().map_or(ptr::null_mut(), |srq| srq.as_raw()),
            qp_type: config.qp_type,
            comp_mask: sys::IBV_QP_INIT_ATTR_PD,
            pd: send.register.as_ref().map_or(pd.as_raw(), |register| register.as_raw()),
            ..Default::default()
        };
        if send.mlx5dv.is_some() {
            // Otherwise libmlx5 makes room for memory windows in each WQE: four times the memory.
            init.comp_mask |= sys::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
            init.send_ops_flags = operations(config.qp_type).into();
            if config.memory_windows {
                init.send_ops_flags |= u64::from(sys::IBV_QP_EX_WITH_BIND_MW | sys::IBV_QP_EX_WITH_LOCAL_INV);
            }
        }
        (init.cap.max_recv_wr, init.cap.max_recv_sge) = receive.own;
        init.cap.max_send_wr = config.max_send_wr;
        init.cap.max_send_sge = config.max_send_sge;
        init.cap.max_inline_data = config.max_inline.unwrap_or(if send.mlx5dv.is_some() { 0 } else { SMALL });

        let raw_packets = config.qp_type == sys::IBV_QPT_RAW_PACKET;
        if config.vlan_stripping {
            init.comp_mask |= sys::IBV_QP_INIT_ATTR_CREATE_FLAGS;
            init.create_flags |= sys::IBV_QP_CREATE_CVLAN_STRIPPING;
        }
        // Frames are never scattered to the CQE.
        let mlx5dv = receive.mlx5dv.or(send.mlx5dv).filter(|_| !raw_packets);
        let make = |init: &mut sys::ibv_qp_init_attr_ex| match mlx5dv {
            Some(mlx5dv) => {
                let mut mlx5 = sys::mlx5dv_qp_init_attr {
                    comp_mask: sys::MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS.into(),
                    // Payload inside a CQE stands where source QP and SLID would be, and must be copied to where it
                    // was to be received. The device can do that itself.
                    create_flags: sys::MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE,
                    ..Default::default()
                };
                if config.is_dc() {
                    mlx5.comp_mask |= u64::from(sys::MLX5DV_QP_INIT_ATTR_MASK_DC);
                    mlx5.dc_init_attr.dc_type = sys::MLX5DV_DCTYPE_DCI;
                }
                // SAFETY: live objects of one device and initialised structures.
                let qp = unsafe { (mlx5dv.create_qp)(context.as_raw(), init, &mut mlx5) };
                (qp, "mlx5dv_create_qp")
            }
            None => {
                // SAFETY: as above.
                let qp = unsafe { sys::ibv_create_qp_ex(context.as_raw(), init) };
                (qp, "ibv_create_qp")
            }
        };
        let (mut qp, operation) = make(&mut init);
        if qp.is_null() && config.max_inline.is_none() && init.cap.max_inline_data > 0 {
            // The device has no room for so much, and the program did not ask for it.
            init.cap.max_inline_data = 0;
            (qp, _) = make(&mut init);
        }
        if qp.is_null() {
            let error = if raw_packets { Error::raw_packet } else { Error::last_os };
            return Err(error(operation, context.name()));
        }
        if send.mlx5dv.is_some() && config.max_inline.is_none() {
            // libmlx5 leaves room for the segments of an atomic operation, which the WQE of a SEND does not have.
            let free = match init.cap.max_send_wr > 1 {
                true if config.is_dc() => SMALL_DC,
                true => SMALL,
                // A DC request of two basic blocks has as much room behind its target as others behind their control
                // segment.
                false if config.is_dc() => SMALL,
                false => SMALL_WRITE,
            };
            init.cap.max_inline_data = init.cap.max_inline_data.max(free);
        }
        let this = Self::made(Handle::Verbs(qp), init.cap, pd, receive, send);
        this.enter_events();
        Ok(this)
    }

    /// A DC target in the RESET state, which takes requests with this access key and receives from the SRQ that
    /// `receive` names.
    pub(in crate::qp) fn create_target(pd: &ProtectionDomain, receive: ReceiveSide, key: u64) -> Result<Self> {
        let context = pd.context();
        let no_dc = || context.not_direct(NotDirect::Layout("no SRQ that libmlx5 drives".to_owned()));
        let (Some(mlx5dv), Some(srq)) = (receive.mlx5dv, &receive.srq) else { return Err(no_dc()) };
        let mut init = sys::ibv_qp_init_attr_ex {
            // It never sends, and each queue pair of a driver names a CQ for that.
            send_cq: receive.cq.as_raw(),
            recv_cq: receive.cq.as_raw(),
            srq: srq.as_raw(),
            qp_type: sys::IBV_QPT_DRIVER,
            comp_mask: sys::IBV_QP_INIT_ATTR_PD,
            pd: pd.as_raw(),
            ..Default::default()
        };
        let masks = sys::MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS | sys::MLX5DV_QP_INIT_ATTR_MASK_DC;
        let mut mlx5 = sys::mlx5dv_qp_init_attr {
            comp_mask: masks.into(),
            create_flags: sys::MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE,
            dc_init_attr: sys::mlx5dv_dc_init_attr {
                dc_type: sys::MLX5DV_DCTYPE_DCT,
                __bindgen_anon_1: sys::mlx5dv_dc_init_attr__bindgen_ty_1 { dct_access_key: key },
            },
            ..Default::default()
        };
        // SAFETY: live objects of one device and initialised structures.
        let qp = unsafe { (mlx5dv.create_qp)(context.as_raw(), &mut init, &mut mlx5) };
        if qp.is_null() {
            return Err(Error::last_os("mlx5dv_create_qp", context.name()));
        }
        let send = SendSide::idle(Arc::clone(&receive.cq));
        Ok(Self::made(Handle::Verbs(qp), init.cap, pd, receive, send))
    }

    /// A queue pair that was made just now.
    fn made(handle: Handle, cap: sys::ibv_qp_cap, pd: &ProtectionDomain, receive: ReceiveSide, send: SendSide) -> Self {
        let has_sender = AtomicBool::new(send.has_sender);
        let parts = Parts::new(pd, receive, send);
        Self {
            handle,
            state: AtomicU32::new(sys::IBV_QPS_RESET),
            receives: AtomicBool::new(false),
            has_handle: AtomicBool::new(true),
            has_sender,
            sends_ended: AtomicBool::new(false),
            first_failure: AtomicU32::new(sys::IBV_WC_SUCCESS),
            cap,
            parts,
            groups: Mutex::default(),
            destroys: true,
        }
    }

    /// A queue pair that the caller made and will destroy. Also returns its attributes.
    ///
    /// # Safety
    /// `qp` belongs to `pd`, receives and sends as these say, and lives for as long as the value.
    pub(in crate::qp) unsafe fn from_raw(
        pd: &ProtectionDomain,
        qp: *mut sys::ibv_qp,
        receive: ReceiveSide,
        send: SendSide,
    ) -> Result<(Self, sys::ibv_qp_attr)> {
        let has_sender = AtomicBool::new(send.has_sender);
        let parts = Parts::new(pd, receive, send);
        let mut this = Self {
            handle: Handle::Verbs(qp),
            state: AtomicU32::new(sys::IBV_QPS_UNKNOWN),
            receives: AtomicBool::new(true),
            has_handle: AtomicBool::new(true),
            has_sender,
            sends_ended: AtomicBool::new(false),
            first_failure: AtomicU32::new(sys::IBV_WC_SUCCESS),
            cap: Default::default(),
            parts,
            groups: Mutex::default(),
            destroys: false,
        };
        let mask = sys::IBV_QP_STATE | sys::IBV_QP_CAP | sys::IBV_QP_PORT | sys::IBV_QP_SQ_PSN;
        let (attr, init) = this.query(mask)?;
        this.cap = init.cap;
        this.enter_events();
        Ok((this, attr))
    }
}

/// The operations of a sender on a queue pair of this transport.
const fn operations(qp_type: sys::ibv_qp_type) -> sys::ibv_qp_create_send_ops_flags {
    let datagrams = sys::IBV_QP_EX_WITH_SEND | sys::IBV_QP_EX_WITH_SEND_WITH_IMM;
    let unreliable = datagrams
        | sys::IBV_QP_EX_WITH_SEND_WITH_INV
        | sys::IBV_QP_EX_WITH_RDMA_WRITE
        | sys::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    match qp_type {
        sys::IBV_QPT_UD => datagrams,
        sys::IBV_QPT_RAW_PACKET => sys::IBV_QP_EX_WITH_SEND,
        sys::IBV_QPT_UC => unreliable,
        _ => {
            unreliable
                | sys::IBV_QP_EX_WITH_RDMA_READ
                | sys::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
                | sys::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
        }
    }
}
