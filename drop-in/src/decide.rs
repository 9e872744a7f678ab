//! Which path a group of objects takes: decided by the first post, for all of them.

use core::mem::{MaybeUninit, zeroed};
use core::ptr::NonNull;
use core::sync::atomic::Ordering;
use std::collections::BTreeSet;

use mlx5_ring::arm::{CqDoorbell, Place};
use mlx5_ring::cq::{self, CompletionQueue};
use mlx5_ring::rq::{self, ReceiveQueue};
use mlx5_ring::slots::Slot;
use mlx5_ring::sq::{self, BlueFlame, Config, Record, SendQueue};
use mlx5_ring::srq::{self, SharedReceiveQueue};
use mlx5_wire::be::Be32;
use rdma_core_sys::{
    IBV_ATOMIC_NONE, IBV_QP_CAP, IBV_QP_STATE, IBV_QPS_RESET, MLX5DV_OBJ_CQ, MLX5DV_OBJ_QP,
    MLX5DV_OBJ_SRQ, ibv_context, ibv_cq, ibv_device_attr, ibv_qp_attr, ibv_qp_init_attr, mlx5dv_cq,
    mlx5dv_obj, mlx5dv_qp, mlx5dv_srq,
};

use crate::builder::{Draft, functions};
use crate::context::{self, Context};
use crate::extended;
use crate::find;
use crate::install::Scope;
use crate::log;
use crate::objects::{
    Cq, CqSide, NO_QP, Path, Qp, Request, RqSide, SendLimits, SendSide, Srq, SrqSide, Status,
};

const NOT_RINGS: &str = "a queue whose layout doorbell does not know";
const USED: &str = "it was used before";

/// Objects that are connected to each other, and undecided.
#[derive(Default)]
struct Group<'a> {
    qps: Vec<&'a Qp>,
    cqs: Vec<&'a Cq>,
    srqs: Vec<&'a Srq>,
    /// The addresses of all of them.
    known: BTreeSet<usize>,
    /// Why it stays with libmlx5.
    uncovered: Option<&'static str>,
}

fn address<T>(record: &T) -> usize {
    core::ptr::from_ref(record) as usize
}

impl<'a> Group<'a> {
    /// Notes an object that is connected to the group; returns `true` if it belongs to the group.
    fn meets(&mut self, status: &Status) -> bool {
        match status.path() {
            Path::Undecided => self.uncovered = self.uncovered.or(status.uncovered()),
            Path::Doorbell => return false,
            Path::Libmlx5 => {
                self.uncovered =
                    self.uncovered.or(Some("it shares a CQ or SRQ that libmlx5 drives"));
                return false;
            }
        }
        true
    }

    fn add_cq(&mut self, cq: &'a Cq) {
        if self.meets(&cq.status) && self.known.insert(address(cq)) {
            self.cqs.push(cq);
        }
    }

    fn add_srq(&mut self, srq: &'a Srq) {
        if self.meets(&srq.status) && self.known.insert(address(srq)) {
            self.srqs.push(srq);
        }
    }

    fn add_qp(&mut self, qp: &'a Qp) {
        if self.meets(&qp.status) && self.known.insert(address(qp)) {
            self.qps.push(qp);
            qp.cqs().into_iter().flatten().for_each(|cq| self.add_cq(cq));
            if let Some(srq) = qp.srq() {
                self.add_srq(srq);
            }
        }
    }

    fn touches(&self, qp: &Qp) -> bool {
        qp.cqs().into_iter().flatten().any(|cq| self.known.contains(&address(cq)))
            || qp.srq().is_some_and(|srq| self.known.contains(&address(srq)))
    }

    /// Adds all of `undecided` that is connected.
    fn complete(&mut self, undecided: &[*const Qp]) {
        loop {
            let before = self.qps.len();
            for qp in undecided {
                // SAFETY: [record-lives] a record leaves the list before it is freed.
                let qp = unsafe { &**qp };
                if self.touches(qp) {
                    self.add_qp(qp);
                }
            }
            if self.qps.len() == before {
                return;
            }
        }
    }
}

/// Decides for the group of a queue pair.
#[cold]
pub(crate) fn for_qp(context: &Context, qp: &Qp) {
    decide(context, |group| group.add_qp(qp), || qp.status.path(), false);
}

/// Decides for the group of a CQ.
#[cold]
pub(crate) fn for_cq(context: &Context, cq: &Cq) {
    decide(context, |group| group.add_cq(cq), || cq.status.path(), false);
}

/// Leaves the group of a CQ to libmlx5.
#[cold]
pub(crate) fn against(context: &Context, cq: &Cq, why: &'static str) {
    cq.status.set_uncovered(why);
    for_cq(context, cq);
}

/// Decides for the group of an SRQ.
#[cold]
pub(crate) fn for_srq(context: &Context, srq: &Srq) {
    decide(context, |group| group.add_srq(srq), || srq.status.path(), false);
}

/// Decides for a queue pair that joins the group of its CQs and its SRQ. If it cannot, nothing is decided.
#[cold]
pub(crate) fn for_new_qp(context: &Context, qp: &Qp) {
    decide(context, |group| group.add_qp(qp), || qp.status.path(), true);
}

/// Decides for a group, which `seed` begins; with `is_new` only for doorbell.
fn decide<'a>(
    context: &'a Context,
    seed: impl FnOnce(&mut Group<'a>),
    path: impl Fn() -> Path,
    is_new: bool,
) {
    let mut undecided = context.undecided();
    // Another thread may have posted first.
    if path() != Path::Undecided {
        return;
    }
    let mut group = Group::default();
    if context.has_windows.load(Ordering::Relaxed) {
        group.uncovered = Some("the program uses memory windows");
    }
    seed(&mut group);
    group.complete(&undecided);
    let refused = match group.uncovered {
        Some(why) => Some(why),
        None => adopt(context, &group).err(),
    };
    if is_new && refused.is_some() {
        return;
    }
    let path = if refused.is_some() { Path::Libmlx5 } else { Path::Doorbell };
    let who = if refused.is_some() { "libmlx5" } else { "doorbell" };
    let why = refused.unwrap_or("all of its group is covered");
    for qp in &group.qps {
        log::say(format_args!("QP {:#x}: {who} ({why})", qp.qpn));
        if refused.is_some() {
            functions::restore(qp);
        }
        qp.status.set(path);
    }
    for srq in &group.srqs {
        // SAFETY: [record-lives] the SRQ of the record exists.
        log::say(format_args!("SRQ {}: {who} ({why})", unsafe { (*srq.ibv).handle }));
        srq.status.set(path);
    }
    for cq in &group.cqs {
        // SAFETY: [record-lives] the CQ of the record exists.
        log::say(format_args!("CQ {}: {who} ({why})", unsafe { (*cq.ibv).handle }));
        if refused.is_some() {
            extended::restore_cq(cq);
        } else {
            extended::take_over(cq);
        }
        cq.status.set(path);
    }
    // SAFETY: [record-lives] a record leaves the list before it is freed.
    undecided.retain(|qp| unsafe { &**qp }.status.path() == Path::Undecided);
}

/// Takes over the queues of a group. Fails before anything has changed.
fn adopt(context: &Context, group: &Group<'_>) -> Result<(), &'static str> {
    let qps = group.qps.iter().map(|qp| qp_sides(context, qp)).collect::<Result<Vec<_>, _>>()?;
    let srqs = group.srqs.iter().map(|srq| srq_side(srq)).collect::<Result<Vec<_>, _>>()?;
    let cqs = group.cqs.iter().map(|cq| cq_side(cq)).collect::<Result<Vec<_>, _>>()?;
    for cq in &group.cqs {
        // libmlx5 notes in the CQ itself that it was asked.
        init_cq(cq.ibv)?;
    }
    for (cq, (side, mut doorbell)) in group.cqs.iter().zip(cqs) {
        let mut arm = cq.arm.lock();
        for _ in 0..arm.events {
            doorbell.event();
        }
        arm.doorbell = Some(doorbell);
        *cq.side.lock() = Some(side);
    }
    for (srq, side) in group.srqs.iter().zip(srqs) {
        *srq.side.lock() = Some(side);
        find::set_srq(srq);
    }
    for (qp, (send, receive)) in group.qps.iter().zip(qps) {
        let mut guard = qp.send_queue.lock();
        if send.is_some() {
            // A batch that finds the queue finds these functions.
            // SAFETY: [record-lives] doorbell drives the queue pair; `guard` holds the lock.
            unsafe { functions::take_over(qp) };
        }
        // A thread that polls finds the completers: they are there before anything is posted.
        // SAFETY: [polled] nothing but they complete from now on, with a `progress` that is new. The queue pair keeps the queues.
        unsafe {
            if let Some(side) = &send {
                let _ = qp.send_completer.completer.set(side.queue.completer());
            }
            if let Some(side) = &receive {
                let _ = qp.receive_completer.set(side.queue.completer());
            }
        }
        *guard = send;
        drop(guard);
        *qp.receive_queue.lock() = receive;
    }
    Ok(())
}

/// Asks libmlx5 for the memory of an object of `ibv`, whose functions were replaced.
fn init(ibv: *mut ibv_context, obj: &mut mlx5dv_obj, kind: u32) -> Result<(), &'static str> {
    // SAFETY: `ibv` has a record. The part of `obj` that `kind` names has an object and a place for the result.
    match unsafe { (context::of(ibv).original.init_obj)(obj, kind.into()) } {
        0 => Ok(()),
        _ => Err("mlx5dv_init_obj fails"),
    }
}

/// Allocates memory for the slots or records of a queue: the first post of a program that has no more memory must not end it.
fn memory<T>(count: u32, value: impl FnMut() -> T) -> Result<Box<[T]>, &'static str> {
    let mut memory = Vec::new();
    memory.try_reserve_exact(count as usize).map_err(|_| "there is no memory for its ring")?;
    memory.resize_with(count as usize, value);
    Ok(memory.into_boxed_slice())
}

fn pointer<T, U>(pointer: *mut T) -> Result<NonNull<U>, &'static str> {
    NonNull::new(pointer.cast()).ok_or(NOT_RINGS)
}

/// Fails if a queue was posted to, because libmlx5 alone knows its requests. `words` of its doorbell record count posts.
///
/// # Safety
/// `dbrec` is the doorbell record of a queue that no code uses meanwhile.
unsafe fn check_unused(dbrec: NonNull<Be32>, words: usize) -> Result<(), &'static str> {
    // SAFETY: `dbrec` is a doorbell record, which has two words.
    let is_used = (0..words).any(|word| unsafe { dbrec.add(word).read_volatile() }.get() != 0);
    if is_used { Err(USED) } else { Ok(()) }
}

/// Asks libmlx5 for the memory of a CQ. From then on it leaves the CQEs of queue pairs that are reset or destroyed.
fn init_cq(cq: *mut ibv_cq) -> Result<mlx5dv_cq, &'static str> {
    // SAFETY: both are integers and pointers, which may be 0.
    let (mut out, mut obj) = unsafe { (zeroed::<mlx5dv_cq>(), zeroed::<mlx5dv_obj>()) };
    (obj.cq.in_, obj.cq.out) = (cq, &raw mut out);
    // SAFETY: the CQ exists, or is a copy of one that does.
    init(unsafe { (*cq).context }, &mut obj, MLX5DV_OBJ_CQ)?;
    Ok(out)
}

/// As [`init_cq`], of a copy of the CQ, because the CQ may stay with libmlx5, which notes in it that it was asked. `None` if the
/// kernel does not copy it.
fn init_copy(cq: *mut ibv_cq) -> Option<Result<mlx5dv_cq, &'static str>> {
    /// More words than a CQ of libmlx5 has.
    const WORDS: usize = 512;
    let mut copy = [0_u64; WORDS];
    let size = size_of_val(&copy);
    let to = libc::iovec { iov_base: copy.as_mut_ptr().cast(), iov_len: size };
    let from = libc::iovec { iov_base: cq.cast(), iov_len: size };
    // SAFETY: the kernel reads memory after the CQ, too, as far as there is any, and writes to `copy`.
    let copied = unsafe { libc::process_vm_readv(libc::getpid(), &to, 1, &from, 1, 0) };
    (copied > 0).then(|| init_cq(copy.as_mut_ptr().cast()))
}

/// Returns where a CQ is that doorbell drives.
pub(crate) fn cq_layout(cq: *mut ibv_cq) -> Result<(cq::Layout, Place), &'static str> {
    layout_of(init_cq(cq)?)
}

fn layout_of(out: mlx5dv_cq) -> Result<(cq::Layout, Place), &'static str> {
    let dbrec: NonNull<Be32> = pointer(out.dbrec)?;
    let layout =
        cq::Layout { buf: pointer(out.buf)?, dbrec, cqe_cnt: out.cqe_cnt, cqe_size: out.cqe_size };
    let place = Place { dbrec, uar: pointer(out.cq_uar)?, cqn: out.cqn };
    Ok((layout, place))
}

fn cq_side(cq: &Cq) -> Result<(CqSide, CqDoorbell), &'static str> {
    // SAFETY: [record-lives] the CQ and its context exist.
    let context = unsafe { context::of((*cq.ibv).context) };
    let (layout, place) = layout_of(match init_copy(cq.ibv) {
        Some(out) => out?,
        // Each of its objects is known since its creation, so none was used before.
        None if context.scope == Scope::All => init_cq(cq.ibv)?,
        None => return Err("the kernel refuses process_vm_readv"),
    })?;
    let resized = cq.resized.load(Ordering::Relaxed);
    // A poll that finds nothing publishes the index, too. The second word arms the CQ.
    // SAFETY: `dbrec` is the doorbell record of a CQ that is not polled meanwhile.
    if ![0, resized].contains(&unsafe { layout.dbrec.read_volatile() }.get()) {
        return Err(USED);
    }
    // SAFETY: nothing was posted to the group, so nothing was polled. From now on libmlx5 neither polls nor arms the CQ: all
    // calls come to this library.
    let (ring, doorbell) = unsafe { (CompletionQueue::new(layout), CqDoorbell::new(place)) };
    let mut ring = ring.map_err(|_| NOT_RINGS)?;
    for _ in 0..resized {
        // SAFETY: libmlx5 neither polls nor arms the CQ; the device has written one CQE for each time.
        unsafe { ring.resized(layout, &[]) }.map_err(|_| NOT_RINGS)?;
    }
    cq.consumer_index.store(ring.consumer_index(), Ordering::Relaxed);
    let side = CqSide {
        ring,
        qps: &context.qps,
        last: NonNull::dangling(),
        last_qpn: NO_QP,
        current: None,
    };
    Ok((side, doorbell))
}

fn srq_side(record: &Srq) -> Result<SrqSide, &'static str> {
    // SAFETY: both are integers and pointers, which may be 0.
    let (mut out, mut obj) = unsafe { (zeroed::<mlx5dv_srq>(), zeroed::<mlx5dv_obj>()) };
    (obj.srq.in_, obj.srq.out) = (record.ibv, &raw mut out);
    // SAFETY: [record-lives] the SRQ exists.
    init(unsafe { (*record.ibv).context }, &mut obj, MLX5DV_OBJ_SRQ)?;
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
    // SAFETY: nothing was posted to the SRQ, and all posts come to this library. There is a slot for each WQE, and they stay.
    let queue = unsafe { SharedReceiveQueue::new(layout, NonNull::from(&mut *slots).cast()) };
    Ok(SrqSide { queue: queue.map_err(|_| NOT_RINGS)?, is_ready: true, _slots: slots })
}

type QpSides = (Option<SendSide>, Option<RqSide>);

fn qp_sides(context: &Context, qp: &Qp) -> Result<QpSides, &'static str> {
    // SAFETY: both are integers and pointers, which may be 0.
    let (mut out, mut obj) = unsafe { (zeroed::<mlx5dv_qp>(), zeroed::<mlx5dv_obj>()) };
    (obj.qp.in_, obj.qp.out) = (qp.ibv, &raw mut out);
    // SAFETY: [record-lives] the queue pair exists.
    init(unsafe { (*qp.ibv).context }, &mut obj, MLX5DV_OBJ_QP)?;
    // SAFETY: the doorbell record is that of the queue pair, which no code uses.
    unsafe { check_unused(pointer(out.dbrec)?, 2) }?;
    // SAFETY: both are integers and pointers, which may be 0.
    let (mut attr, mut made) = unsafe { (zeroed::<ibv_qp_attr>(), zeroed::<ibv_qp_init_attr>()) };
    let mask = (IBV_QP_STATE | IBV_QP_CAP) as i32;
    // SAFETY: [record-lives] the queue pair exists; both results are writable.
    if unsafe { (context.original.query_qp)(qp.ibv, &mut attr, mask, &mut made) } != 0 {
        return Err("ibv_query_qp fails");
    }
    let state = attr.qp_state;
    let receive = if out.rq.wqe_cnt == 0 || qp.srq.is_some() {
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
        // SAFETY: nothing was posted to the queue pair, and all posts come to this library. There is a slot for each WQE, and
        // they stay.
        let queue = unsafe { ReceiveQueue::new(layout, NonNull::from(&mut *slots).cast()) };
        Some(RqSide {
            queue: queue.map_err(|_| NOT_RINGS)?,
            is_ready: state != IBV_QPS_RESET,
            _slots: slots,
        })
    };
    if out.sq.wqe_cnt == 0 {
        return Ok((None, receive));
    }
    let layout = sq::Layout {
        buf: pointer(out.sq.buf)?,
        dbrec: pointer(out.dbrec)?,
        wqe_cnt: out.sq.wqe_cnt,
        stride: out.sq.stride,
        register: pointer(out.bf.reg)?,
        register_size: out.bf.size,
        qpn: qp.qpn,
    };
    layout.check().map_err(|_| NOT_RINGS)?;
    // libmlx5 may let other queues share the register, under a lock that it keeps to itself.
    let config = Config { max_wqe_blocks: layout.wqe_cnt, blue_flame: BlueFlame::Never };
    let mut records = memory(layout.wqe_cnt, MaybeUninit::<Record<Request>>::uninit)?;
    let storage = NonNull::from(&mut *records).cast();
    // SAFETY: [exclusive] nothing was posted to the queue pair, and all posts come to this library; there is a record for
    // each block, and they stay. `scatter_inline` copies data that comes in CQEs. [register] no WQE is copied to it.
    let queue = unsafe { SendQueue::new(layout, config, storage) }.map_err(|_| NOT_RINGS)?;
    let limits = SendLimits {
        requests: made.cap.max_send_wr,
        sges: made.cap.max_send_sge,
        // libmlx5 44 says -4 for datagrams without SGEs.
        inline: i32::max(made.cap.max_inline_data as i32, 0) as u32,
    };
    let send = SendSide {
        queue: queue.without_asking(),
        limits,
        has_atomics: has_atomics(context),
        posted: 0,
        retired: 0,
        draft: Draft::new(limits.inline),
        _records: records,
    };
    Ok((Some(send), receive))
}

fn has_atomics(context: &Context) -> bool {
    // SAFETY: the attributes are integers, which may be 0; libibverbs has set the function, and the context is open.
    unsafe {
        let mut attr = zeroed::<ibv_device_attr>();
        let query = (*context.ibv).ops._compat_query_device;
        query.is_some_and(|query| query(context.ibv, &mut attr) == 0)
            && attr.atomic_cap != IBV_ATOMIC_NONE
    }
}
