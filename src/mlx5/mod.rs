//! The queues of verbs objects as rings over their memory, from `mlx5dv_init_obj`.

mod storage;

use std::mem;
use std::ptr::NonNull;

use mlx5_ring::arm::{self, CqDoorbell};
use mlx5_ring::cq::{self, CompletionQueue};
use mlx5_ring::rq::{self, ReceiveQueue};
use mlx5_ring::slots::Slot;
use mlx5_ring::sq::{self, Record, SendQueue};
use mlx5_ring::srq;
use mlx5_wire::datagram::DatagramSegment;
use mlx5_wire::mini_cqe::MiniCqeFormat;
use rdma_core_sys as sys;
use sys::Mlx5dv;

use crate::path::NotDirect;

pub(crate) use storage::Storage;

/// A ring, and the memory in which it keeps what it knows of its slots: keep the two together.
pub(crate) type Ring<Q, S> = (Q, Storage<S>);

/// Takes over a CQ from which nothing was polled.
///
/// # Safety
/// No other code polls, arms or resizes the CQ while the values exist.
pub(crate) unsafe fn completion_queue(
    mlx5dv: &Mlx5dv,
    cq: *mut sys::ibv_cq,
    compression: Option<MiniCqeFormat>,
) -> Result<(CompletionQueue, CqDoorbell), NotDirect> {
    let mut out = sys::mlx5dv_cq::default();
    init_obj(mlx5dv, sys::MLX5DV_OBJ_CQ, |obj| {
        obj.cq.in_ = cq;
        obj.cq.out = &mut out;
    })?;
    let layout = cq::Layout {
        buf: non_null(out.buf.cast(), "CQ buffer")?,
        dbrec: non_null(out.dbrec.cast(), "CQ doorbell record")?,
        cqe_cnt: out.cqe_cnt,
        cqe_size: out.cqe_size,
    };
    let place = arm::Place { dbrec: layout.dbrec, uar: non_null(out.cq_uar.cast(), "CQ doorbell")?, cqn: out.cqn };
    // SAFETY: the layout is libmlx5's; no other code polls, arms or resizes the caller's CQ.
    let mut ring = unsafe { CompletionQueue::new(layout) }.map_err(layout_error)?;
    if let Some(format) = compression {
        ring = ring.with_compression(format).map_err(layout_error)?;
    }
    // SAFETY: as above; the page stays mapped as long as the context is open.
    Ok((ring, unsafe { CqDoorbell::new(place) }))
}

/// Returns the number of a protection domain.
pub(crate) fn pdn(mlx5dv: &Mlx5dv, pd: *mut sys::ibv_pd) -> Result<u32, NotDirect> {
    let mut out = sys::mlx5dv_pd { pdn: 0, comp_mask: 0 };
    init_obj(mlx5dv, sys::MLX5DV_OBJ_PD, |obj| {
        obj.pd.in_ = pd;
        obj.pd.out = &mut out;
    })?;
    Ok(out.pdn)
}

/// Returns the number of a CQ.
pub(crate) fn cqn(mlx5dv: &Mlx5dv, cq: *mut sys::ibv_cq) -> Result<u32, NotDirect> {
    let mut out = sys::mlx5dv_cq::default();
    init_obj(mlx5dv, sys::MLX5DV_OBJ_CQ, |obj| {
        obj.cq.in_ = cq;
        obj.cq.out = &mut out;
    })?;
    Ok(out.cqn)
}

/// Returns where an SRQ of libmlx5 is.
pub(crate) fn srq_layout(mlx5dv: &Mlx5dv, srq: *mut sys::ibv_srq) -> Result<srq::Layout, NotDirect> {
    let mut out = sys::mlx5dv_srq::default();
    init_obj(mlx5dv, sys::MLX5DV_OBJ_SRQ, |obj| {
        obj.srq.in_ = srq;
        obj.srq.out = &mut out;
    })?;
    Ok(srq::Layout {
        buf: non_null(out.buf.cast(), "SRQ buffer")?,
        dbrec: non_null(out.dbrec.cast(), "SRQ doorbell record")?,
        stride: out.stride,
        head: out.head,
        tail: out.tail,
    })
}

/// Takes over an SRQ to which nothing was posted, as the ring that `make` makes with the contract of
/// [`SharedReceiveQueue::new`](srq::SharedReceiveQueue::new).
///
/// # Safety
/// The layout is that of an SRQ that outlives the ring, and no other code posts to the SRQ while the ring exists.
pub(crate) unsafe fn shared_receive_queue<Q, D: Copy>(
    layout: srq::Layout,
    make: unsafe fn(srq::Layout, NonNull<Slot<D>>) -> Result<Q, srq::LayoutError>,
) -> Result<Ring<Q, Slot<D>>, NotDirect> {
    layout.check().map_err(layout_error)?;
    let slots = Storage::uninit(layout.slots() as usize);
    // SAFETY: the layout is that of the caller's SRQ, which keeps it mapped, and the slots live as long as the ring. No
    // other code posts to that SRQ.
    let ring = unsafe { make(layout, slots.start()) }.map_err(layout_error)?;
    Ok((ring, slots))
}

/// Takes over the receive queue of a queue pair to which nothing was posted.
///
/// # Safety
/// The queue pair outlives the ring, and no other code posts receives to it while the ring exists.
pub(crate) unsafe fn receive_queue<D: Copy>(
    mlx5dv: &Mlx5dv,
    qp: *mut sys::ibv_qp,
) -> Result<Ring<ReceiveQueue<D>, Slot<D>>, NotDirect> {
    let layout = receive_queue_layout(mlx5dv, qp)?;
    let slots = Storage::uninit(layout.wqe_cnt as usize);
    // SAFETY: as for the SRQ.
    let ring = unsafe { ReceiveQueue::new(layout, slots.start()) }.map_err(layout_error)?;
    Ok((ring, slots))
}

/// Returns where the receive queue of a queue pair is.
pub(crate) fn receive_queue_layout(mlx5dv: &Mlx5dv, qp: *mut sys::ibv_qp) -> Result<rq::Layout, NotDirect> {
    let out = queue_pair(mlx5dv, qp)?;
    let layout = rq::Layout {
        buf: non_null(out.rq.buf.cast(), "receive queue buffer")?,
        dbrec: non_null(out.dbrec.cast(), "QP doorbell record")?,
        wqe_cnt: out.rq.wqe_cnt,
        stride: out.rq.stride,
    };
    layout.check().map_err(layout_error)?;
    Ok(layout)
}

/// Returns where a work queue is.
pub(crate) fn work_queue_layout(mlx5dv: &Mlx5dv, wq: *mut sys::ibv_wq) -> Result<rq::Layout, NotDirect> {
    let mut out = sys::mlx5dv_rwq::default();
    init_obj(mlx5dv, sys::MLX5DV_OBJ_RWQ, |obj| {
        obj.rwq.in_ = wq;
        obj.rwq.out = &mut out;
    })?;
    let layout = rq::Layout {
        buf: non_null(out.buf.cast(), "work queue buffer")?,
        dbrec: non_null(out.dbrec.cast(), "work queue doorbell record")?,
        wqe_cnt: out.wqe_cnt,
        stride: out.stride,
    };
    layout.check().map_err(layout_error)?;
    Ok(layout)
}

/// Takes over the send queue of a queue pair to which nothing was posted.
///
/// # Safety
/// The layout is that of a queue pair that outlives the ring. No other code posts sends to it while the ring exists,
/// and its register is as *register* says, see [`mlx5_ring::sq`].
pub(crate) unsafe fn send_ring<R: Copy>(
    layout: sq::Layout,
    config: sq::Config,
    max_unsignaled: u32,
) -> Result<Ring<SendQueue<R>, Record<R>>, NotDirect> {
    let records = Storage::uninit(layout.wqe_cnt as usize);
    // SAFETY: the layout is that of the caller's queue pair, the queue keeps it mapped, and the records live as long as
    // the ring. No other code posts to the caller's send queue, and its register is as *register* says. The queue pair
    // has no signatures and no scatter to CQE.
    let ring = unsafe { SendQueue::new(layout, config, records.start().cast()) };
    let ring = ring.map_err(layout_error)?.with_max_silent(max_unsignaled).signaling_last();
    Ok((ring, records))
}

/// Returns where the send queue of a queue pair is.
pub(crate) fn send_queue(mlx5dv: &Mlx5dv, qp: *mut sys::ibv_qp, qpn: u32) -> Result<sq::Layout, NotDirect> {
    let out = queue_pair(mlx5dv, qp)?;
    let layout = sq::Layout {
        buf: non_null(out.sq.buf.cast(), "send queue buffer")?,
        dbrec: non_null(out.dbrec.cast(), "QP doorbell record")?,
        wqe_cnt: out.sq.wqe_cnt,
        stride: out.sq.stride,
        register: non_null(out.bf.reg.cast(), "UAR register")?,
        register_size: out.bf.size,
        qpn,
    };
    layout.check().map_err(layout_error)?;
    Ok(layout)
}

/// Returns the address vector of a handle of an mlx5 device.
pub(crate) fn address_vector(mlx5dv: &Mlx5dv, ah: *mut sys::ibv_ah) -> Result<DatagramSegment, NotDirect> {
    let mut out = sys::mlx5dv_ah { av: std::ptr::null_mut(), comp_mask: 0 };
    init_obj(mlx5dv, sys::MLX5DV_OBJ_AH, |obj| {
        obj.ah.in_ = ah;
        obj.ah.out = &mut out;
    })?;
    let vector = non_null(out.av, "address vector")?;
    // SAFETY: the vector is part of the handle, which is alive, and has the size of the segment.
    Ok(DatagramSegment::from_bytes(&unsafe { vector.cast::<[u8; DatagramSegment::SIZE]>().read() }))
}

fn queue_pair(mlx5dv: &Mlx5dv, qp: *mut sys::ibv_qp) -> Result<sys::mlx5dv_qp, NotDirect> {
    // SAFETY: a structure of integers and pointers.
    let mut out: sys::mlx5dv_qp = unsafe { mem::zeroed() };
    init_obj(mlx5dv, sys::MLX5DV_OBJ_QP, |obj| {
        obj.qp.in_ = qp;
        obj.qp.out = &mut out;
    })?;
    Ok(out)
}

/// Calls `mlx5dv_init_obj(3)`; `fill` names a live object of an mlx5 device and a structure for the answer.
fn init_obj(mlx5dv: &Mlx5dv, kind: u32, fill: impl FnOnce(&mut sys::mlx5dv_obj)) -> Result<(), NotDirect> {
    // SAFETY: a structure of pointers.
    let mut obj: sys::mlx5dv_obj = unsafe { mem::zeroed() };
    fill(&mut obj);
    // SAFETY: the pointers in it are null or were filled in by the callers above, for the kind they ask for.
    let errno = unsafe { (mlx5dv.init_obj)(&mut obj, kind.into()) };
    if errno == 0 { Ok(()) } else { Err(NotDirect::InitObj(errno)) }
}

fn non_null<T>(pointer: *mut T, what: &str) -> Result<NonNull<T>, NotDirect> {
    NonNull::new(pointer).ok_or_else(|| NotDirect::Layout(format!("no {what}")))
}

pub(crate) fn layout_error(error: impl std::fmt::Debug) -> NotDirect {
    NotDirect::Layout(format!("{error:?}"))
}
