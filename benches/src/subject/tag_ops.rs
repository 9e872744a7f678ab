//! The tag list of stock libmlx5.

use std::ptr;

use rdma_core_sys::*;

use super::lists::Lists;
use super::{Subject, libmlx5, unexpected};
use crate::sum::Sum;
use crate::tags::Objects;
use crate::world::BUFFER;

/// `wr_id` of a buffer is the address of its work request.
struct TagOps {
    cq: *mut ibv_cq_ex,
    srq: *mut ibv_srq,
    start: u64,
    wrs: Box<[ibv_ops_wr]>,
    _sges: Box<[ibv_sge]>,
}

pub(super) fn make(objects: &Objects, batch: u32) -> Box<dyn Subject> {
    let lkey = objects.memory.lkey;
    let sge = |i| ibv_sge { addr: objects.buffer(i), length: BUFFER, lkey };
    let mut sges: Box<[_]> = (0..objects.shape.receives()).map(sge).collect();
    let wr = |sge: &mut ibv_sge| {
        let mut wr = ibv_ops_wr { opcode: IBV_WR_TAG_ADD, ..Default::default() };
        let add = &mut wr.tm.add;
        (add.tag, add.mask) = (sge.addr, u64::MAX);
        (add.sg_list, add.num_sge) = (sge, 1);
        wr
    };
    let mut wrs: Box<[_]> = sges.iter_mut().map(wr).collect();
    for wr in &mut wrs {
        wr.tm.add.recv_wr_id = ptr::from_mut(wr).expose_provenance() as u64;
    }
    let start = objects.memory.start;
    let mut ops = TagOps { cq: objects.cq, srq: objects.srq, start, wrs, _sges: sges };
    ops.prepare(batch);
    ops.post(batch);
    Box::new(ops)
}

impl Lists for TagOps {
    type Wr = ibv_ops_wr;

    #[inline(always)]
    fn wrs(&mut self) -> &mut [ibv_ops_wr] {
        &mut self.wrs
    }

    #[inline(always)]
    fn post_list(&self, first: *mut ibv_ops_wr) {
        // SAFETY: a live SRQ, a list of work requests that names memory that stays.
        if unsafe { ibv_post_srq_ops(self.srq, first, &mut ptr::null_mut()) } != 0 {
            unexpected();
        }
    }

    #[inline(always)]
    fn poll_batch(&mut self, batch: u32, mut each: impl FnMut(u64, u32)) -> u32 {
        let cq = self.cq;
        let mut polled = 0;
        // SAFETY: a live CQ that was made with the byte count among its fields.
        unsafe {
            if ibv_start_poll(cq, &mut ibv_poll_cq_attr::default()) != 0 {
                return 0;
            }
            loop {
                if (*cq).status != IBV_WC_SUCCESS {
                    unexpected();
                }
                match ibv_wc_read_opcode(cq) {
                    IBV_WC_TM_RECV if ibv_wc_read_wc_flags(cq) & IBV_WC_TM_DATA_VALID != 0 => {
                        each((*cq).wr_id, ibv_wc_read_byte_len(cq));
                        polled += 1;
                    }
                    // A message that matched nothing has neither flag.
                    IBV_WC_TM_RECV if ibv_wc_read_wc_flags(cq) & IBV_WC_TM_MATCH != 0 => {}
                    IBV_WC_TM_ADD => {}
                    _ => unexpected(),
                }
                if polled == batch || ibv_next_poll(cq) != 0 {
                    break;
                }
            }
            ibv_end_poll(cq);
        }
        polled
    }
}

impl Subject for TagOps {
    fn poll(&mut self, count: u32, batch: u32) -> Sum {
        self.poll_all(count, batch)
    }

    fn post(&mut self, batch: u32) {
        self.post_all(batch);
    }

    fn cycle(&mut self, count: u32, batch: u32) -> Sum {
        let mut sum = Sum::default();
        let mut left = count;
        while left > 0 {
            let (mut first, mut last) = (ptr::null_mut(), ptr::null_mut::<ibv_ops_wr>());
            left -= self.poll_batch(batch, |wr_id, len| {
                sum.add(wr_id, len.into());
                let wr: *mut ibv_ops_wr = ptr::with_exposed_provenance_mut(wr_id as usize);
                // SAFETY: both are work requests, which stay.
                unsafe {
                    (*wr).flags = 0;
                    if last.is_null() {
                        first = wr;
                    } else {
                        (*last).next = wr;
                    }
                }
                last = wr;
            });
            if !last.is_null() {
                // SAFETY: as above.
                unsafe {
                    (*last).next = ptr::null_mut();
                    (*last).flags = IBV_OPS_SIGNALED as i32;
                }
                self.post_list(first);
            }
        }
        sum
    }

    fn prepare(&mut self, batch: u32) {
        let (wrs, count) = (self.wrs.as_mut_ptr(), self.wrs.len());
        for (i, wr) in self.wrs.iter_mut().enumerate() {
            let ends = (i + 1) % batch as usize == 0 || i + 1 == count;
            wr.flags = if ends { IBV_OPS_SIGNALED as i32 } else { 0 };
            // SAFETY: not the last one, so there is one after it.
            wr.next = if ends { ptr::null_mut() } else { unsafe { wrs.add(i + 1) } };
        }
    }

    fn ids(&self, count: u32, addresses: u64) -> u64 {
        libmlx5::ids(&self.wrs, self.start, BUFFER, count, addresses)
    }
}
