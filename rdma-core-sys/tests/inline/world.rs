//! A made-up context and made-up arguments.

use crate::recorder::{Outcome, WORDS, take};
use rdma_core_sys::*;
use std::ffi::c_int;
use std::mem::offset_of;

/// How much of the extended context there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// The context announces no extended context.
    None,
    /// The extended context begins one byte after the start of the entry.
    TooShort,
    /// The extended context begins with the entry.
    JustLongEnough,
    /// All of it exists.
    Full,
}

/// Memory large enough for any argument of a verb.
type Memory = Box<[u64; WORDS]>;

pub struct World {
    context: *mut verbs_context,
    /// Memory that objects and other pointers among the arguments point to.
    memory: Vec<*mut [u64; WORDS]>,
    initial: Vec<Memory>,
    fill: u64,
}

impl World {
    /// A world with an empty extended context, and memory filled with `fill`.
    pub fn new(fill: u64) -> Self {
        // SAFETY: zero is a value of every field.
        let context = unsafe { Box::new(core::mem::zeroed::<verbs_context>()) };
        Self { context: Box::into_raw(context), memory: Vec::new(), initial: Vec::new(), fill }
    }

    pub fn extended(&self) -> *mut verbs_context {
        self.context
    }

    pub fn context(&self) -> *mut ibv_context {
        // SAFETY: the structure lives as long as `self`.
        unsafe { &raw mut (*self.context).context }
    }

    /// Says how much of the extended context exists, as seen from the entry at `offset`.
    pub fn set_extent(&mut self, extent: Extent, offset: usize) {
        let whole = size_of::<verbs_context>();
        let (compat, sz) = match extent {
            Extent::None => (0, whole),
            Extent::TooShort => (VERBS_ABI_IS_EXTENDED, whole - offset - 1),
            Extent::JustLongEnough => (VERBS_ABI_IS_EXTENDED, whole - offset),
            Extent::Full => (VERBS_ABI_IS_EXTENDED, whole),
        };
        // SAFETY: the structure lives as long as `self`.
        unsafe {
            (*self.context).context.abi_compat = compat as *mut _;
            (*self.context).sz = sz;
        }
    }

    /// A piece of memory that is compared afterwards.
    pub fn scratch(&mut self) -> *mut u64 {
        let words = Box::new([self.fill; WORDS]);
        self.memory.push(Box::into_raw(words));
        let first = *self.memory.last().unwrap();
        self.remember();
        first.cast()
    }

    /// A made-up object: all that verbs read of one is its context, which comes first.
    pub fn object(&mut self) -> *mut u64 {
        let object = self.scratch();
        // SAFETY: freshly made.
        unsafe { object.cast::<*mut ibv_context>().write(self.context()) };
        self.remember();
        object
    }

    /// Keeps the contents of the memory, with which each call starts.
    pub fn remember(&mut self) {
        // SAFETY: the memory lives as long as `self`.
        self.initial = self.memory.iter().map(|&m| Box::new(unsafe { *m })).collect();
    }

    /// Makes a call and returns its effects. Each call starts with the same memory.
    pub fn observe(&mut self, call: impl FnOnce() -> u64) -> Outcome {
        for (memory, initial) in self.memory.iter().zip(&self.initial) {
            // SAFETY: the memory lives as long as `self`.
            unsafe { **memory = **initial };
        }
        take();
        // SAFETY: this thread's errno.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: as above.
        unsafe { *errno = 0 };
        let returned = call();
        // SAFETY: as above.
        let errno = unsafe { *errno };
        // SAFETY: the memory lives as long as `self`.
        let memory = self.memory.iter().flat_map(|&m| unsafe { *m }).collect();
        Outcome { calls: take(), returned, errno, memory }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // SAFETY: all were made by `Box::into_raw`, and the calls are over.
        unsafe {
            drop(Box::from_raw(self.context));
            self.memory.drain(..).for_each(|memory| drop(Box::from_raw(memory)));
        }
    }
}

/// Something that a verb takes. Numbers differ by their position.
pub trait Argument {
    fn make(world: &mut World, position: usize) -> Self;
}

macro_rules! objects {
    ($($name:ident: $($path:ident).+;)*) => {$(
        const _: () = assert!(offset_of!($name, $($path).+) == 0);
        impl Argument for *mut $name {
            fn make(world: &mut World, _: usize) -> Self {
                world.object().cast()
            }
        }
    )*};
}

objects! {
    ibv_pd: context;
    ibv_td: context;
    ibv_xrcd: context;
    ibv_cq: context;
    ibv_cq_ex: context;
    ibv_srq: context;
    ibv_qp: context;
    ibv_qp_ex: qp_base.context;
    ibv_rwq_ind_table: context;
    ibv_wq: context;
    ibv_mw: context;
}

/// The context of a flow does not come first.
impl Argument for *mut ibv_flow {
    fn make(world: &mut World, _: usize) -> Self {
        let flow = world.scratch().cast::<ibv_flow>();
        // SAFETY: freshly made, and larger.
        unsafe { (*flow).context = world.context() };
        world.remember();
        flow
    }
}

impl Argument for *mut ibv_context {
    fn make(world: &mut World, _: usize) -> Self {
        world.context()
    }
}

macro_rules! pointers {
    ($($type:ty)*) => {$(
        impl Argument for $type {
            fn make(world: &mut World, _: usize) -> Self {
                world.scratch().cast()
            }
        }
    )*};
}

pointers! {
    *const ibv_data_buf
    *const ibv_mw_bind_info
    *const ibv_query_device_ex_input
    *const ibv_sge
    *mut *mut ibv_ops_wr
    *mut *mut ibv_recv_wr
    *mut *mut ibv_send_wr
    *mut core::ffi::c_void
    *mut ibv_ah
    *mut ibv_cq_init_attr_ex
    *mut ibv_device_attr_ex
    *mut ibv_flow_attr
    *mut ibv_gid_entry
    *mut ibv_modify_cq_attr
    *mut ibv_ops_wr
    *mut ibv_parent_domain_init_attr
    *mut ibv_poll_cq_attr
    *mut ibv_port_attr
    *mut ibv_qp_init_attr_ex
    *mut ibv_qp_open_attr
    *mut ibv_qp_rate_limit_attr
    *mut ibv_recv_wr
    *mut ibv_rwq_ind_table_init_attr
    *mut ibv_send_wr
    *mut ibv_sge
    *mut ibv_srq_init_attr_ex
    *mut ibv_td_init_attr
    *mut ibv_values_ex
    *mut ibv_wc
    *mut ibv_wc_tm_info
    *mut ibv_wq_attr
    *mut ibv_xrcd_init_attr
    *mut u32
}

macro_rules! numbers {
    ($($type:ty)*) => {$(
        impl Argument for $type {
            fn make(_: &mut World, position: usize) -> Self {
                // Every byte differs, so that a narrowing or a swap shows.
                (0x1817_1615_1413_1211_u64.wrapping_mul(2 * position as u64 + 1)) as $type
            }
        }
    )*};
}

numbers! { u8 u32 u64 usize c_int }
