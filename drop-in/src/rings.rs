//! The rings of objects of libmlx5, where `mlx5dv_init_obj` says that their memory is.

use core::mem::{MaybeUninit, zeroed};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32};

use mlx5_ring::arm::{CqDoorbell, Place};
use mlx5_ring::cq::{self, CompletionQueue};
use mlx5_ring::rq::{self, ReceiveQueue};
use mlx5_ring::slots::Slot;
use mlx5_ring::sq::{self, BlueFlame, Config, Record, SendQueue};
use mlx5_ring::srq::{self, SharedReceiveQueue};
use mlx5_wire::be::Be32;
use rdma_core_sys::{
    IBV_ATOMIC_NONE, IBV_QP_CAP, IBV_QP_STATE, IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RESET, IBV_QPS_RTR, MLX5DV_OBJ_CQ,
    MLX5DV_OBJ_QP, MLX5DV_OBJ_SRQ, ibv_context, ibv_cq, ibv_device_attr, ibv_qp, ibv_qp_attr, ibv_qp_init_attr,
    ibv_srq, mlx5dv_cq, mlx5dv_obj, mlx5dv_qp, mlx5dv_srq,
};

use crate::changes::Changes;
use crate::context::{Context, real};
use crate::lock::Lock;
use crate::objects::{CqSide, Request, RqSide, SendLimits, SendSide, Sends, SrqSide};

type Why = &'static str;

const NOT_RINGS: Why = "a queue whose layout doorbell does not know";
const USED: Why = "it was used before";

/// Asks libmlx5 for the memory of the object in the part of `obj` that `kind` names.
///
/// # Safety
/// The caller guarantees that the part of `obj` named by `kind` has an object of `context` and a place for the result.
unsafe fn init(context: &Context, obj: &mut mlx5dv_obj, kind: u32) -> Result<(), Why> {
    // SAFETY: that part has an object and a place for the result.
    match unsafe { (context.init_obj)(obj, kind.into()) } {
        0 => Ok(()),
        _ => Err("mlx5dv_init_obj fails"),
    }
}

/// Allocates memory for the slots or records of a queue.
fn memory<T>(count: u32, value: impl FnMut() -> T) -> Result<Box<[T]>, Why> {
    let mut memory = Vec::new();
    memory.try_reserve_exact(count as usize).map_err(|_| "there is no memory for its ring")?;
    memory.resize_with(count as usize, value);
    Ok(memory.into_boxed_slice())
}

fn pointer<T, U>(pointer: *mut T) -> Result<NonNull<U>, Why> {
    NonNull::new(pointer.cast()).ok_or(NOT_RINGS)
}

/// Fails if a queue was used, because libmlx5 alone knows its requests: `words` of its doorbell record are not 0.
///
/// # Safety
/// `dbrec` is the doorbell record of a queue that no code uses meanwhile.
unsafe fn check_unused(dbrec: NonNull<Be32>, words: usize) -> Result<(), Why> {
    // SAFETY: `dbrec` is a doorbell record, which has two words.
    let is_used = (0..words).any(|word| unsafe { dbrec.add(word).read_volatile() }.get() != 0);
    if is_used { Err(USED) } else { Ok(()) }
}

/// Makes the ring of a CQ. From then on libmlx5 leaves its CQEs alone when a queue pair is reset or destroyed.
///
/// # Safety
/// `cq` is a CQ of `context` that no code polls from now on, but by the ring.
pub(crate) unsafe fn cq(context: &Context, cq: *mut ibv_cq) -> Result<(CqSide, CqDoorbell), Why> {
    // SAFETY: both are integers and pointers, which may be 0.
    let (mut out, mut obj) = unsafe { (zeroed::<mlx5dv_cq>(), zeroed::<mlx5dv_obj>()) };
    (obj.cq.in_, obj.cq.out) = (cq, &raw mut out);
    // SAFETY: `cq` is a CQ of `context`.
    unsafe { init(context, &mut obj, MLX5DV_OBJ_CQ) }?;
    let dbrec: NonNull<Be32> = pointer(out.dbrec)?;
    let layout = cq::Layout { buf: pointer(out.buf)?, dbrec, cqe_cnt: out.cqe_cnt, cqe_size: out.cqe_size };
    let place = Place { dbrec, uar: pointer(out.cq_uar)?, cqn: out.cqn };
    // SAFETY: no code uses the CQ but this library; the second word arms it, which the program may have done.
    unsafe {
        check_unused(dbrec, 1)?;
        let ring = CompletionQueue::new(layout).map_err(|_| NOT_RINGS)?;
        Ok((CqSide { ring, current: None }, CqDoorbell::new(place)))
    }
}

/// Makes the ring of an SRQ.
///
/// # Safety
/// `srq` is an SRQ of `context` to which no code posts from now on, but by the ring.
pub(crate) unsafe fn srq(context: &Context, srq: *mut ibv_srq) -> Result<SrqSide, Why> {
    // SAFETY: both are integers and pointers, which may be 0.
    let (mut out, mut obj) = unsafe { (zeroed::<mlx5dv_srq>(), zeroed::<mlx5dv_obj>()) };
    (obj.srq.in_, obj.srq.out) = (srq, &raw mut out);
    // SAFETY: `srq` is an SRQ of `context`.
    unsafe { init(context, &mut obj, MLX5DV_OBJ_SRQ) }?;
    let layout = srq::Layout {
        buf: pointer(out.buf)?,
        dbrec: pointer(out.dbrec)?,
        stride: out.stride,
        head: out.head,
        tail: out.tail,
    };
    layout.check().map_err(|_| NOT_RINGS)?;
    // SAFETY: `dbrec` is the doorbell record of the SRQ, which no code uses.
    unsafe { check_unused(layout.dbrec, 1) }?;
    let mut slots = memory(layout.slots(), || Slot::FREE)?;
    // SAFETY: all posts come to this library. There is a slot for each WQE, and they stay.
    let queue = unsafe { SharedReceiveQueue::new(layout, NonNull::from(&mut *slots).cast()) };
    Ok(SrqSide { queue: queue.map_err(|_| NOT_RINGS)?, is_ready: true, _slots: slots })
}

/// The rings of a queue pair.
pub(crate) struct QpSides {
    pub(crate) send: Option<Sends>,
    pub(crate) receive: Option<RqSide>,
    pub(crate) signal_all: bool,
}

/// Makes the rings of a queue pair: that of its sends, and that of its receives if it has no SRQ.
///
/// # Safety
/// `qp` is a queue pair of `context` to which no code posts from now on, but by the rings.
pub(crate) unsafe fn qp(context: &Context, qp: *mut ibv_qp) -> Result<QpSides, Why> {
    // SAFETY: all are integers and pointers, which may be 0. `qp` is a queue pair of `context`, and the results are
    // writable.
    let (out, attr, made) = unsafe {
        let (mut out, mut obj) = (zeroed::<mlx5dv_qp>(), zeroed::<mlx5dv_obj>());
        (obj.qp.in_, obj.qp.out) = (qp, &raw mut out);
        init(context, &mut obj, MLX5DV_OBJ_QP)?;
        check_unused(pointer(out.dbrec)?, 2)?;
        let (mut attr, mut made) = (zeroed::<ibv_qp_attr>(), zeroed::<ibv_qp_init_attr>());
        let mask = (IBV_QP_STATE | IBV_QP_CAP) as i32;
        let query =
            real!(context.ibv, c"ibv_query_qp" as fn(*mut ibv_qp, *mut ibv_qp_attr, i32, *mut ibv_qp_init_attr) -> i32);
        if query.is_none_or(|query| query(qp, &mut attr, mask, &mut made) != 0) {
            return Err("ibv_query_qp fails");
        }
        (out, attr, made)
    };
    if attr.qp_state == IBV_QPS_ERR {
        return Err("it is in the error state: nothing tells whether it could send before");
    }
    // SAFETY: `qp` is a queue pair.
    let (qpn, has_srq) = unsafe { ((*qp).qp_num, !(*qp).srq.is_null()) };
    let receive = if out.rq.wqe_cnt == 0 || has_srq {
        None
    } else {
        let layout = rq::Layout {
            buf: pointer(out.rq.buf)?,
            dbrec: pointer(out.dbrec)?,
            wqe_cnt: out.rq.wqe_cnt,
            stride: out.rq.stride,
        };
        layout.check().map_err(|_| NOT_RINGS)?;
        let mut slots = memory(layout.wqe_cnt, || Slot::FREE)?;
        // SAFETY: all posts come to this library. There is a slot for each WQE, and they stay.
        let queue = unsafe { ReceiveQueue::new(layout, NonNull::from(&mut *slots).cast()) };
        let is_ready = attr.qp_state != IBV_QPS_RESET;
        Some(RqSide { queue: queue.map_err(|_| NOT_RINGS)?, is_ready, _slots: slots })
    };
    let signal_all = made.sq_sig_all != 0;
    if out.sq.wqe_cnt == 0 {
        return Ok(QpSides { send: None, receive, signal_all });
    }
    let layout = sq::Layout {
        buf: pointer(out.sq.buf)?,
        dbrec: pointer(out.dbrec)?,
        wqe_cnt: out.sq.wqe_cnt,
        stride: out.sq.stride,
        register: pointer(out.bf.reg)?,
        register_size: out.bf.size,
        qpn,
    };
    layout.check().map_err(|_| NOT_RINGS)?;
    // libmlx5 may let other queues share the register, under a lock that it keeps to itself.
    let config = Config { max_wqe_blocks: layout.wqe_cnt, blue_flame: BlueFlame::Never };
    let mut records = memory(layout.wqe_cnt, MaybeUninit::<Record<Request>>::uninit)?;
    let storage = NonNull::from(&mut *records).cast();
    // SAFETY: [exclusive] all posts come to this library; there is a record for each block, and they stay.
    // `scatter_inline` copies data that comes in CQEs. [register] no WQE is copied to it.
    let queue = unsafe { SendQueue::new(layout, config, storage) }.map_err(|_| NOT_RINGS)?;
    let limits = SendLimits {
        requests: made.cap.max_send_wr,
        sges: made.cap.max_send_sge,
        // libmlx5 44 says -4 for datagrams without SGEs.
        inline: i32::max(made.cap.max_inline_data as i32, 0) as u32,
        has_atomics: has_atomics(context.ibv),
    };
    let queue = queue.without_asking();
    let (progress, batch) = (queue.progress(), queue.batch());
    let side = SendSide {
        queue,
        limits,
        can_send: ![IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR].contains(&attr.qp_state),
        posted: 0,
        full_at: 0,
        is_fenced: false,
        batch,
        built: 0,
        is_built_fenced: false,
        error: 0,
        _records: records,
    };
    let send = Sends {
        side: Lock::new(side),
        is_building: AtomicBool::new(false),
        progress,
        retired: AtomicU32::new(0),
        changes: Changes::new(memory(2 * layout.wqe_cnt, || AtomicU8::new(0))?),
    };
    Ok(QpSides { send: Some(send), receive, signal_all })
}

fn has_atomics(ibv: *mut ibv_context) -> bool {
    // SAFETY: the attributes are integers, which may be 0; the context is open.
    unsafe {
        let mut attr = zeroed::<ibv_device_attr>();
        let query = real!(ibv, c"ibv_query_device" as fn(*mut ibv_context, *mut ibv_device_attr) -> i32);
        query.is_some_and(|query| query(ibv, &mut attr) == 0) && attr.atomic_cap != IBV_ATOMIC_NONE
    }
}
