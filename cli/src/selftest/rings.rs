//! Reading the memory of queues that others write: CQs, and WQEs of receive queues.
//!
//! `mlx5dv_init_obj` says where the rings are; nothing is written to them here.

use std::cell::RefCell;
use std::mem;
use std::ptr::NonNull;
use std::rc::Rc;

use doorbell::raw::mlx5_ring::barrier;
use doorbell::raw::rdma_core_sys::{self as sys, Mlx5dv};
use mlx5_wire::cqe::{Cqe64, CqeFormat};
use mlx5_wire::mini_cqe::{MINI_CQES_PER_ARRAY, array_of};

use super::messages::SeenCqe;
use super::stop::Stop;
use super::witness::Witness;

fn init_obj(kind: u32, fill: impl FnOnce(&mut sys::mlx5dv_obj)) -> Result<(), Stop> {
    // SAFETY: a structure of pointers.
    let mut obj: sys::mlx5dv_obj = unsafe { mem::zeroed() };
    fill(&mut obj);
    // SAFETY: the pointers are null, or were filled in by the callers below with live objects of an mlx5 device.
    let errno = unsafe { (Mlx5dv::get()?.init_obj)(&mut obj, kind.into()) };
    if errno == 0 {
        return Ok(());
    }
    Err(Stop::Fail(format!("mlx5dv_init_obj: {}", std::io::Error::from_raw_os_error(errno))))
}

fn some(pointer: *mut libc::c_void) -> Result<NonNull<u8>, Stop> {
    NonNull::new(pointer.cast()).ok_or_else(|| Stop::Fail("mlx5dv_init_obj reports a null pointer".into()))
}

/// Memory of a queue. It is mapped as long as the object of the queue lives, which must outlive this value.
#[derive(Clone, Copy)]
pub struct Memory {
    start: NonNull<u8>,
    len: usize,
}

impl Memory {
    /// Copies `len` bytes from `at` on.
    pub fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= self.len, "inside of the queue");
        // SAFETY: inside of mapped memory, see above; volatile because the device writes it.
        (at..at + len).map(|at| unsafe { self.start.add(at).read_volatile() }).collect()
    }

    /// Copies all of it.
    pub fn all(&self) -> Vec<u8> {
        self.bytes(0, self.len)
    }
}

/// A receive queue, or an SRQ.
pub struct Wqes {
    /// The WQEs.
    pub memory: Memory,
    /// Doorbell record: the first of its words.
    record: Memory,
    /// Bytes from one WQE to the next.
    pub stride: usize,
    /// Slots that are used.
    pub slots: usize,
    /// The WQEs begin with a link.
    pub shared: bool,
}

impl Wqes {
    /// The queue that a live QP receives with.
    pub fn of(qp: *mut sys::ibv_qp) -> Result<Self, Stop> {
        // SAFETY: the callers' QPs are alive.
        let srq = unsafe { (*qp).srq };
        if srq.is_null() {
            // SAFETY: a structure of integers and pointers.
            let mut out: sys::mlx5dv_qp = unsafe { mem::zeroed() };
            init_obj(sys::MLX5DV_OBJ_QP, |obj| (obj.qp.in_, obj.qp.out) = (qp, &mut out))?;
            let (stride, slots) = (out.rq.stride as usize, out.rq.wqe_cnt as usize);
            let memory = Memory { start: some(out.rq.buf)?, len: stride * slots };
            let record = Memory { start: some(out.dbrec.cast())?, len: 4 };
            return Ok(Self { memory, record, stride, slots, shared: false });
        }
        let mut out = sys::mlx5dv_srq::default();
        init_obj(sys::MLX5DV_OBJ_SRQ, |obj| (obj.srq.in_, obj.srq.out) = (srq, &mut out))?;
        let (stride, slots) = (out.stride as usize, (out.tail as usize + 1).next_power_of_two());
        let memory = Memory { start: some(out.buf)?, len: stride * slots };
        let record = Memory { start: some(out.dbrec.cast())?, len: 4 };
        Ok(Self { memory, record, stride, slots, shared: true })
    }

    /// The counter in the doorbell record.
    pub fn record(&self) -> u32 {
        u32::from_be_bytes(*self.record.bytes(0, 4).first_chunk().expect("four bytes"))
    }

    /// The WQE in a slot.
    pub fn wqe(&self, slot: usize) -> Vec<u8> {
        self.memory.bytes(slot % self.slots * self.stride, self.stride)
    }

    /// Where the link of a slot leads.
    pub fn link(&self, slot: usize) -> usize {
        let wqe = self.wqe(slot);
        u16::from_be_bytes([wqe[2], wqe[3]]).into()
    }
}

/// Watches a CQ that other code polls. The tap must look before the other code takes the CQEs.
pub struct Tap {
    cqes: Memory,
    size: usize,
    log: u32,
    /// Number of the CQ.
    pub cqn: u32,
    next: u32,
    taken: u32,
    reported: usize,
    /// The CQEs that were seen, from index 0 on.
    pub seen: Vec<[u8; 64]>,
    witness: Rc<RefCell<Witness>>,
}

impl Tap {
    /// Watches a live CQ of which nothing was polled.
    pub fn new(cq: *mut sys::ibv_cq, witness: &Rc<RefCell<Witness>>) -> Result<Self, Stop> {
        let mut out = sys::mlx5dv_cq::default();
        init_obj(sys::MLX5DV_OBJ_CQ, |obj| (obj.cq.in_, obj.cq.out) = (cq, &mut out))?;
        let size = out.cqe_size as usize;
        let cqes = Memory { start: some(out.buf)?, len: size * out.cqe_cnt as usize };
        let log = out.cqe_cnt.trailing_zeros();
        let witness = Rc::clone(witness);
        let cqn = out.cqn;
        Ok(Self { cqes, size, log, cqn, next: 0, taken: 0, reported: 0, seen: Vec::new(), witness })
    }

    /// Looks at what has arrived; returns the number of CQEs that were seen and are not taken.
    pub fn look(&mut self) -> u32 {
        // The device has room for as many CQEs as the CQ has entries.
        while self.next.wrapping_sub(self.taken) < 1 << self.log {
            let at = (self.next & ((1 << self.log) - 1)) as usize * self.size + self.size - 64;
            let op_own = self.cqes.bytes(at + 63, 1)[0];
            if op_own >> 4 == 15 || u32::from(op_own & 1) != self.next >> self.log & 1 {
                break;
            }
            barrier::owner_before_cqe();
            let bytes = *self.cqes.bytes(at, 64).first_chunk().expect("64 bytes");
            self.witness.borrow_mut().note(self.cqn, self.size, self.next, &bytes);
            self.seen.push(bytes);
            self.next = self.next.wrapping_add(1);
        }
        self.next.wrapping_sub(self.taken)
    }

    /// Returns the oldest CQE that was seen and not taken.
    ///
    /// # Panics
    /// When [`Self::look`] found none.
    pub fn oldest(&self) -> &[u8; 64] {
        &self.seen[self.taken as usize]
    }

    /// Returns the CQEs that were seen since the last call.
    pub fn news(&mut self) -> Vec<SeenCqe> {
        let (cqn, size, first) = (self.cqn, self.size, self.reported);
        self.reported = self.seen.len();
        let new = (first..).zip(&self.seen[first..]);
        new.map(|(index, bytes)| SeenCqe { cqn, size, index: index as u32, bytes: bytes.to_vec() }).collect()
    }

    /// Returns the compressed blocks among the CQEs of the first lap, none of which was taken: the index of each title,
    /// and the title with its arrays.
    pub fn blocks(&self) -> Vec<(u32, Vec<[u8; 64]>)> {
        let entries = 1u32 << self.log;
        let owned = |at: u32| {
            let op_own = self.cqes.bytes((at as usize + 1) * self.size - 1, 1)[0];
            op_own >> 4 != 15 && op_own & 1 == 0
        };
        let cqe = |at: u32| {
            let bytes = self.cqes.bytes((at as usize + 1) * self.size - 64, 64);
            *bytes.first_chunk::<64>().expect("64 bytes")
        };
        let (mut blocks, mut at) = (Vec::new(), 0);
        while at < entries && owned(at) {
            barrier::owner_before_cqe();
            let title = cqe(at);
            let count = Cqe64::from_bytes(&title).byte_cnt.get();
            if CqeFormat::from_op_own(title[63]) != CqeFormat::Compressed || count > entries - at {
                at += 1;
                continue;
            }
            let mut cqes = vec![title];
            cqes.extend((0..count).step_by(MINI_CQES_PER_ARRAY).map(|mini| cqe(at + array_of(mini))));
            blocks.push((at, cqes));
            at += count.max(2);
        }
        blocks
    }

    /// Notes that `count` CQEs were taken.
    pub fn take(&mut self, count: u32) {
        self.taken = self.taken.wrapping_add(count);
    }

    /// Reads the first `count` CQEs of the CQ again, none of which was taken. They are whole if the CQE after them was
    /// seen.
    pub fn again(&self, count: usize) -> Vec<[u8; 64]> {
        let cqe = |index: usize| self.cqes.bytes((index + 1) * self.size - 64, 64);
        (0..count).map(|index| *cqe(index).first_chunk().expect("64 bytes")).collect()
    }
}

impl Drop for Tap {
    /// The numbers of the queue pairs may come back with other user indices.
    fn drop(&mut self) {
        let mut witness = self.witness.borrow_mut();
        let numbers = self.seen.iter().map(|bytes| Cqe64::from_bytes(bytes).sop_drop_qpn.get() & 0xff_ffff);
        numbers.for_each(|number| witness.forget(number));
    }
}

/// Reads the WQEs of a send queue that other code fills.
pub struct SendTap {
    wqes: Memory,
    slots: u16,
    next: u16,
    witness: Rc<RefCell<Witness>>,
}

impl SendTap {
    /// Bytes of the blocks that WQEs consist of.
    const BLOCK: usize = 64;

    /// Reads the send queue of a live QP to which nothing was posted.
    pub fn new(qp: *mut sys::ibv_qp, witness: &Rc<RefCell<Witness>>) -> Result<Self, Stop> {
        // SAFETY: a structure of integers and pointers.
        let mut out: sys::mlx5dv_qp = unsafe { mem::zeroed() };
        init_obj(sys::MLX5DV_OBJ_QP, |obj| (obj.qp.in_, obj.qp.out) = (qp, &mut out))?;
        let wqes = Memory { start: some(out.sq.buf)?, len: out.sq.wqe_cnt as usize * Self::BLOCK };
        Ok(Self { wqes, slots: out.sq.wqe_cnt as u16, next: 0, witness: Rc::clone(witness) })
    }

    /// Notes the WQEs up to that of `cqe`, which has not been taken.
    pub fn executed(&mut self, cqe: &[u8; 64]) {
        let last = Cqe64::from_bytes(cqe).wqe_counter.get();
        // A CQE that names no WQE of the queue ends it.
        for _ in 0..self.slots {
            let wqe = self.wqes.bytes(usize::from(self.next % self.slots) * Self::BLOCK, 8);
            let (opcode, blocks) = (wqe[3], u16::from(wqe[7] & 0x3f).div_ceil(4));
            self.witness.borrow_mut().note_wqe(opcode, blocks);
            let is_last = self.next == last;
            self.next = self.next.wrapping_add(blocks.max(1));
            if is_last {
                break;
            }
        }
    }
}
