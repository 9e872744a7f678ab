//! Stock libmlx5.

use std::mem::size_of;
use std::ptr;

use rdma_core_sys::*;

use super::lists::Lists;
use super::{Subject, unexpected};
use crate::sum::Sum;
use crate::world::{BUFFER, Memory, Objects, Shape};

/// Queues that complete on one CQ, at most.
const MOST_QUEUES: usize = 32;

/// `wr_id` of a buffer is the address of its work request.
struct Libmlx5 {
    cq: *mut ibv_cq_ex,
    /// The SRQs, or none.
    srqs: Vec<*mut ibv_srq>,
    qps: Vec<*mut ibv_qp>,
    /// A work queue in the place of the QP's receive queue, or null.
    wq: *mut ibv_wq,
    shape: Shape,
    memory: Memory,
    /// Work requests of the first queue, and then of the second.
    wrs: Box<[ibv_recv_wr]>,
    _sges: Box<[ibv_sge]>,
    wcs: [ibv_wc; 64],
    next_poll: bool,
    /// Whether the program writes each SGE right before it posts it, as most programs do.
    writes_sges: bool,
}

pub(super) fn make(objects: &Objects, next_poll: bool, writes_sges: bool) -> Box<dyn Subject> {
    let Objects { shape, memory, .. } = *objects;
    assert!(shape.queues <= MOST_QUEUES as u32, "{} queues", shape.queues);
    let sge = |i| ibv_sge { addr: memory.start + u64::from(i) * u64::from(BUFFER), length: BUFFER, lkey: memory.lkey };
    let mut sges: Box<[_]> = (0..shape.queues * shape.receives()).map(sge).collect();
    let wr = |sge: &mut ibv_sge| ibv_recv_wr { sg_list: sge, num_sge: 1, ..Default::default() };
    let mut wrs: Box<[_]> = sges.iter_mut().map(wr).collect();
    for wr in &mut wrs {
        wr.wr_id = ptr::from_mut(wr).expose_provenance() as u64;
    }
    let mut libmlx5 = Libmlx5 {
        cq: objects.cq,
        srqs: objects.srqs.clone(),
        qps: objects.qps.clone(),
        wq: objects.wq,
        shape,
        memory,
        wrs,
        _sges: sges,
        wcs: [ibv_wc::default(); 64],
        next_poll,
        writes_sges,
    };
    libmlx5.prepare(1);
    for index in 0..libmlx5.wrs.len() {
        let wr = &raw mut libmlx5.wrs[index];
        libmlx5.post_to(index / shape.receives() as usize, wr);
    }
    Box::new(libmlx5)
}

impl Lists for Libmlx5 {
    type Wr = ibv_recv_wr;

    #[inline(always)]
    fn wrs(&mut self) -> &mut [ibv_recv_wr] {
        &mut self.wrs
    }

    #[inline(always)]
    fn post_list(&self, first: *mut ibv_recv_wr) {
        if self.writes_sges {
            self.write_sges(first);
        }
        let queue = match self.shape.queues {
            1 => 0,
            _ => queue_of(first, self.wrs.as_ptr(), self.shape),
        };
        self.post_to(queue, first);
    }

    #[inline(always)]
    fn poll_batch(&mut self, batch: u32, mut each: impl FnMut(u64, u32)) -> u32 {
        if self.next_poll {
            return self.next_poll_batch(batch, each);
        }
        // SAFETY: a live CQ, and room for 64 completions, which is the largest batch.
        let polled = unsafe { ibv_poll_cq(ibv_cq_ex_to_cq(self.cq), batch as i32, self.wcs.as_mut_ptr()) };
        for wc in &self.wcs[..polled as usize] {
            match wc.status {
                IBV_WC_SUCCESS => each(wc.wr_id, wc.byte_len),
                _ => unexpected(),
            }
        }
        polled as u32
    }
}

impl Libmlx5 {
    /// Stores the SGEs of a list again, field by field.
    #[inline(always)]
    fn write_sges(&self, mut wr: *mut ibv_recv_wr) {
        // SAFETY: a list of work requests that stay, each with its SGEs.
        unsafe {
            while let Some(request) = wr.as_ref() {
                write_sge(request.sg_list);
                wr = request.next;
            }
        }
    }

    #[inline(always)]
    fn post_to(&self, queue: usize, first: *mut ibv_recv_wr) {
        let mut bad = ptr::null_mut();
        // SAFETY: live objects, a list of work requests that names memory that stays.
        let errno = unsafe {
            match self.srqs.get(queue) {
                Some(&srq) => ibv_post_srq_recv(srq, first, &mut bad),
                None if !self.wq.is_null() => ibv_post_wq_recv(self.wq, first, &mut bad),
                None => ibv_post_recv(self.qps[queue], first, &mut bad),
            }
        };
        if errno != 0 {
            unexpected();
        }
    }

    /// Takes messages and posts the buffer of each to its queue again, with one list for each queue.
    #[inline(always)]
    fn cycle_all<const QUEUES: usize>(&mut self, count: u32, batch: u32) -> Sum {
        let mut sum = Sum::default();
        let (wrs, shape) = (self.wrs.as_ptr(), self.shape);
        let second = wrs.addr() as u64 + (u64::from(shape.receives()) * size_of::<ibv_recv_wr>() as u64);
        let mut left = count;
        while left > 0 {
            let mut first = [ptr::null_mut::<ibv_recv_wr>(); QUEUES];
            let mut last = first.each_mut().map(|first| &raw mut *first);
            left -= self.poll_batch(batch, |wr_id, len| {
                sum.add(wr_id, len.into());
                let wr: *mut ibv_recv_wr = ptr::with_exposed_provenance_mut(wr_id as usize);
                let queue = match QUEUES {
                    1 => 0,
                    2 => usize::from(wr_id >= second),
                    _ => queue_of(wr, wrs, shape),
                };
                // SAFETY: `last` points into `first` or into a work request; `wr` is a work request; all of them stay.
                unsafe {
                    last[queue].write(wr);
                    last[queue] = &raw mut (*wr).next;
                }
            });
            for (queue, last) in last.into_iter().enumerate() {
                // SAFETY: as above.
                unsafe { last.write(ptr::null_mut()) }
                if !first[queue].is_null() {
                    self.post_to(queue, first[queue]);
                }
            }
        }
        sum
    }

    #[inline(always)]
    fn next_poll_batch(&mut self, batch: u32, mut each: impl FnMut(u64, u32)) -> u32 {
        let mut polled = 0;
        // SAFETY: a live CQ that was made with the byte count among its fields.
        unsafe {
            if ibv_start_poll(self.cq, &mut ibv_poll_cq_attr::default()) != 0 {
                return 0;
            }
            loop {
                match (*self.cq).status {
                    IBV_WC_SUCCESS => each((*self.cq).wr_id, ibv_wc_read_byte_len(self.cq)),
                    _ => unexpected(),
                }
                polled += 1;
                if polled == batch || ibv_next_poll(self.cq) != 0 {
                    break;
                }
            }
            ibv_end_poll(self.cq);
        }
        polled
    }
}

/// Stores an SGE again, field by field.
///
/// # Safety
/// `sge` can be written.
#[inline(always)]
pub(super) unsafe fn write_sge(sge: *mut ibv_sge) {
    // SAFETY: the fields can be written.
    unsafe {
        let ibv_sge { addr, length, lkey } = *sge;
        (&raw mut (*sge).addr).write_volatile(addr);
        (&raw mut (*sge).length).write_volatile(length);
        (&raw mut (*sge).lkey).write_volatile(lkey);
    }
}

/// Returns the queue of a work request, one of those from `wrs` on.
#[inline(always)]
fn queue_of(wr: *const ibv_recv_wr, wrs: *const ibv_recv_wr, shape: Shape) -> usize {
    (wr.addr() - wrs.addr()) / size_of::<ibv_recv_wr>() / shape.receives() as usize
}

impl Subject for Libmlx5 {
    fn poll(&mut self, count: u32, batch: u32) -> Sum {
        self.poll_all(count, batch)
    }

    fn post(&mut self, batch: u32) {
        self.post_all(batch);
    }

    fn cycle(&mut self, count: u32, batch: u32) -> Sum {
        match self.shape.queues {
            1 => self.cycle_all::<1>(count, batch),
            2 => self.cycle_all::<2>(count, batch),
            _ => self.cycle_all::<MOST_QUEUES>(count, batch),
        }
    }

    fn find_nothing(&mut self, count: u32, batch: u32) {
        for _ in 0..count {
            self.poll_batch(batch, |_, _| unexpected());
        }
    }

    fn prepare(&mut self, batch: u32) {
        let (wrs, count) = (self.wrs.as_mut_ptr(), self.wrs.len());
        for (i, wr) in self.wrs.iter_mut().enumerate() {
            let ends = (i + 1) % batch as usize == 0 || i + 1 == count;
            // SAFETY: not the last one, so there is one after it.
            wr.next = if ends { ptr::null_mut() } else { unsafe { wrs.add(i + 1) } };
        }
    }

    fn ids(&self, count: u32, addresses: u64) -> u64 {
        ids(&self.wrs, self.memory.start, BUFFER, count, addresses)
    }
}

/// The sum of the addresses of `count` work requests. Each has `bytes` bytes of the memory at `start`. The addresses
/// of the memory sum up to `addresses`.
pub(super) fn ids<T>(wrs: &[T], start: u64, bytes: u32, count: u32, addresses: u64) -> u64 {
    let count = u64::from(count);
    let offset = addresses.wrapping_sub(count.wrapping_mul(start));
    let index = offset / u64::from(bytes);
    let first = wrs.as_ptr().expose_provenance() as u64;
    count.wrapping_mul(first).wrapping_add(index * size_of::<T>() as u64)
}
