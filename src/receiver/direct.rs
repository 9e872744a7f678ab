//! The direct path: rings over the memory of verbs objects.

use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use mlx5_ring::arm::{self, CqDoorbell};
use mlx5_ring::bitmap;
use mlx5_ring::cq::{self, CompletionQueue};
use mlx5_ring::rq::{self, ReceiveQueue};
use mlx5_ring::slots;
use mlx5_ring::srq::{self, SharedReceiveQueue};
use rdma_core_sys as sys;
use sys::Mlx5dv;

use super::many;
use super::resident::Resident;
use super::routes::Routes;
use super::srq::Srq;
use crate::cq::{Cq, Form};
use crate::path::NotDirect;
use crate::qp::Qp;

/// Everything a receiver drives directly.
pub(crate) struct Direct {
    pub(crate) mlx5dv: &'static Mlx5dv,
    pub(crate) cq: CompletionQueue,
    pub(crate) doorbell: CqDoorbell,
    pub(crate) queues: Vec<Ring>,
    pub(crate) routes: Routes,
    /// What a batch leaves here between calls when there is not exactly one queue.
    pub(super) many: many::Standing,
}

/// A queue of the receiver. Boxed, so that the vector stays small and a queue does not move.
pub(crate) enum Ring {
    Srq(Box<DirectSrq>),
    Rq(Box<DirectRq>),
    /// Destroyed; its index is not used again.
    Gone,
}

pub(crate) struct DirectSrq {
    pub(crate) ring: SharedReceiveQueue<Resident>,
    pub(crate) object: Arc<Srq>,
    /// [`fill`](crate::Receiver::fill) has put a buffer into the spare slot: the queue goes on to hold one
    /// more than can be posted.
    pub(crate) keeps_spare: bool,
    _books: (Array<u8>, Array<MaybeUninit<Resident>>, Array<u64>),
}

impl DirectSrq {
    /// Whether a buffer waits in the spare slot.
    pub(crate) fn has_spare(&self) -> bool {
        self.ring.book().state(self.ring.head_slot()) == slots::LOADED
    }

    /// Receives that the queue takes now.
    pub(crate) fn vacant(&self) -> u32 {
        self.ring.vacant() + u32::from(self.keeps_spare && !self.has_spare())
    }
}

pub(crate) struct DirectRq {
    pub(crate) ring: ReceiveQueue<Resident>,
    pub(crate) object: Arc<Qp>,
    _books: (Array<u8>, Array<MaybeUninit<Resident>>),
}

/// Memory that a ring keeps its books in: reached through the pointer only, freed when dropped.
pub(crate) struct Array<T>(NonNull<[T]>);

// SAFETY: owned memory.
unsafe impl<T: Send> Send for Array<T> {}

impl<T: Clone> Array<T> {
    fn new(value: T, len: usize) -> Self {
        Self(NonNull::from(Box::leak(vec![value; len].into_boxed_slice())))
    }
}

impl<T> Array<T> {
    pub(crate) const fn start(&self) -> NonNull<T> {
        self.0.cast()
    }
}

impl<T> Array<MaybeUninit<T>> {
    pub(crate) fn uninit(len: usize) -> Self {
        Self(NonNull::from(Box::leak(Box::new_uninit_slice(len))))
    }
}

impl<T> Drop for Array<T> {
    fn drop(&mut self) {
        // SAFETY: leaked by `new`, freed once.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl Direct {
    /// Takes over a CQ from which nothing was polled.
    ///
    /// # Safety
    /// Nobody else polls, arms or resizes the CQ while the value exists.
    pub(crate) unsafe fn new(mlx5dv: &'static Mlx5dv, cq: &Cq) -> Result<Self, NotDirect> {
        // SAFETY: structures of integers and pointers.
        let mut out: sys::mlx5dv_cq = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let mut obj: sys::mlx5dv_obj = unsafe { std::mem::zeroed() };
        obj.cq.in_ = cq.as_raw();
        obj.cq.out = &mut out;
        // SAFETY: a live CQ of an mlx5 device, and a writable structure.
        init_obj(unsafe { (mlx5dv.init_obj)(&mut obj, sys::MLX5DV_OBJ_CQ.into()) })?;
        let layout = cq::Layout {
            buf: non_null(out.buf.cast(), "CQ buffer")?,
            dbrec: non_null(out.dbrec.cast(), "CQ doorbell record")?,
            cqe_cnt: out.cqe_cnt,
            cqe_size: out.cqe_size,
        };
        let place = arm::Place {
            dbrec: layout.dbrec,
            uar: non_null(out.cq_uar.cast(), "CQ doorbell")?,
            cqn: out.cqn,
        };
        // SAFETY: the layout is libmlx5's; the caller's contract for the rest.
        let mut ring = unsafe { CompletionQueue::new(layout) }.map_err(layout_error)?;
        if let Form::Compressed(format) = cq.form() {
            ring = ring.with_compression(format).map_err(layout_error)?;
        }
        // SAFETY: as above; the page stays mapped as long as the context is open.
        let doorbell = unsafe { CqDoorbell::new(place) };
        Ok(Self {
            mlx5dv,
            cq: ring,
            doorbell,
            queues: Vec::new(),
            routes: Routes::default(),
            many: many::Standing::default(),
        })
    }

    /// Takes over an SRQ to which nothing was posted.
    ///
    /// # Safety
    /// Nobody else posts to the SRQ while the value exists.
    pub(crate) unsafe fn srq(&self, object: Arc<Srq>) -> Result<DirectSrq, NotDirect> {
        // SAFETY: structures of integers and pointers.
        let mut out: sys::mlx5dv_srq = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let mut obj: sys::mlx5dv_obj = unsafe { std::mem::zeroed() };
        obj.srq.in_ = object.as_raw();
        obj.srq.out = &mut out;
        // SAFETY: a live SRQ of an mlx5 device, and a writable structure.
        init_obj(unsafe { (self.mlx5dv.init_obj)(&mut obj, sys::MLX5DV_OBJ_SRQ.into()) })?;
        let layout = srq::Layout {
            buf: non_null(out.buf.cast(), "SRQ buffer")?,
            dbrec: non_null(out.dbrec.cast(), "SRQ doorbell record")?,
            stride: out.stride,
            head: out.head,
            tail: out.tail,
        };
        layout.check().map_err(layout_error)?;
        let slots = layout.slots();
        let states = Array::new(0, slots as usize);
        let data = Array::new(MaybeUninit::uninit(), slots as usize);
        let words = Array::new(0, bitmap::words(slots));
        let storage =
            srq::Storage { states: states.start(), data: data.start(), bitmap: words.start() };
        // SAFETY: the layout is libmlx5's, the object keeps it mapped, and the arrays live as long as the
        // ring.
        let ring = unsafe { SharedReceiveQueue::new(layout, storage) }.map_err(layout_error)?;
        Ok(DirectSrq { ring, object, keeps_spare: false, _books: (states, data, words) })
    }

    /// Takes over the receive queue of a QP to which nothing was posted.
    ///
    /// # Safety
    /// Nobody else posts receives to the QP while the value exists.
    pub(crate) unsafe fn rq(&self, object: Arc<Qp>) -> Result<DirectRq, NotDirect> {
        // SAFETY: structures of integers and pointers.
        let mut out: sys::mlx5dv_qp = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let mut obj: sys::mlx5dv_obj = unsafe { std::mem::zeroed() };
        obj.qp.in_ = object.as_raw();
        obj.qp.out = &mut out;
        // SAFETY: a live QP of an mlx5 device, and a writable structure.
        init_obj(unsafe { (self.mlx5dv.init_obj)(&mut obj, sys::MLX5DV_OBJ_QP.into()) })?;
        let layout = rq::Layout {
            buf: non_null(out.rq.buf.cast(), "receive queue buffer")?,
            dbrec: non_null(out.dbrec.cast(), "QP doorbell record")?,
            wqe_cnt: out.rq.wqe_cnt,
            stride: out.rq.stride,
        };
        layout.check().map_err(layout_error)?;
        let states = Array::new(0, layout.wqe_cnt as usize);
        let data = Array::new(MaybeUninit::uninit(), layout.wqe_cnt as usize);
        let storage = rq::Storage { states: states.start(), data: data.start() };
        // SAFETY: as for the SRQ.
        let ring = unsafe { ReceiveQueue::new(layout, storage) }.map_err(layout_error)?;
        Ok(DirectRq { ring, object, _books: (states, data) })
    }
}

pub(crate) fn init_obj(errno: i32) -> Result<(), NotDirect> {
    if errno == 0 { Ok(()) } else { Err(NotDirect::InitObj(errno)) }
}

pub(crate) fn non_null<T>(pointer: *mut T, what: &str) -> Result<NonNull<T>, NotDirect> {
    debug_assert_ne!(ptr::null_mut(), pointer, "{what}");
    NonNull::new(pointer).ok_or_else(|| NotDirect::Layout(format!("no {what}")))
}

pub(crate) fn layout_error(error: impl std::fmt::Debug) -> NotDirect {
    NotDirect::Layout(format!("{error:?}"))
}
