//! Matching by the device, through `ibv_post_srq_ops`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::{mem, ptr};

use rdma_core_sys as sys;

use super::arrival::{Arrived, BATCH, Counts, Executed, ListHandle, Operation};
use super::config::TagMatchingConfig;
use super::hardware::Objects;
use super::ids::Key;
use crate::cq::{Poller, Wc};
use crate::error::Result;
use crate::memory::BufferPool;
use crate::pd::ProtectionDomain;
use crate::receiver::{QueueObject, SlotContext, VerbsQueue};
use crate::status::WcStatus;

/// Bits of a `wr_id` that say what it names; a receive of the SRQ has none of them. The rest
/// is the key of the tagged receive.
const OPERATION: u64 = 1 << 63;
const TAGGED: u64 = 1 << 62;

pub(super) struct VerbsTags {
    queue: VerbsQueue,
    pub(super) objects: Objects,
    /// Counts that outstanding operations carry, in the order of posting.
    counts: VecDeque<u16>,
    wrs: Vec<sys::ibv_ops_wr>,
    sges: Vec<sys::ibv_sge>,
}

// SAFETY: the work requests point into the vectors beside them, only during a call.
unsafe impl Send for VerbsTags {}

/// A report of the device, before its buffer is looked up.
enum Reported {
    Arrived(Arrived),
    Slot { wr_id: u64, len: u32, counted: bool, qp_num: u32 },
    Failed { wr_id: u64, status: WcStatus, qp_num: u32 },
}

impl VerbsTags {
    pub(super) fn new(pd: &ProtectionDomain, config: &TagMatchingConfig) -> Result<Self> {
        let objects = Objects::create(pd, config, None)?;
        let object = QueueObject::Srq(Arc::clone(&objects.srq));
        Ok(Self {
            queue: VerbsQueue::new(object, 0, config.max_wr, 1),
            objects,
            counts: VecDeque::new(),
            wrs: Vec::new(),
            sges: Vec::new(),
        })
    }

    pub(super) fn poll(&mut self, arrived: &mut Vec<Arrived>) {
        while arrived.len() < BATCH {
            let Poller::Verbs(cq) = &mut self.objects.cq.poller else { return };
            let Some(&wc) = cq.next() else { return };
            let reported = self.read(&wc);
            arrived.extend(reported.and_then(|reported| self.look_up(reported)));
        }
    }

    /// Says what a completion reports.
    fn read(&mut self, wc: &Wc) -> Option<Reported> {
        let sys::ibv_wc { wr_id, status, opcode, byte_len: len, wc_flags, qp_num, .. } = wc.wc;
        let receive = Key::from_bits(wr_id);
        if wr_id & OPERATION != 0 {
            return self.executed(opcode, receive, status);
        }
        if wr_id & TAGGED == 0 {
            if status != sys::IBV_WC_SUCCESS {
                let status = WcStatus::from_raw(status);
                return Some(Reported::Failed { wr_id, status, qp_num });
            }
            let counted = opcode != sys::IBV_WC_TM_NO_TAG;
            return Some(Reported::Slot { wr_id, len, counted, qp_num });
        }
        let whole = wc_flags & sys::IBV_WC_TM_DATA_VALID != 0;
        let incomplete = status == sys::IBV_WC_TM_RNDV_INCOMPLETE;
        Some(Reported::Arrived(match wc.tag {
            Some(header) if !whole => Arrived::Matched { receive, header, incomplete },
            // Without headers it is the end of a match whose data does not come.
            _ if incomplete && (len as usize) < super::header::RENDEZVOUS => Arrived::Canceled { receive },
            header if incomplete => Arrived::Incomplete { receive, header, len, qp_num },
            _ if status != sys::IBV_WC_SUCCESS => Arrived::Canceled { receive },
            header => Arrived::Received { receive, header, len, qp_num },
        }))
    }

    /// A list operation was executed.
    fn executed(&mut self, opcode: sys::ibv_wc_opcode, receive: Key, status: sys::ibv_wc_status) -> Option<Reported> {
        let count = self.counts.pop_front()?;
        let phase = Executed { count, hw_phase: None };
        Some(Reported::Arrived(match (opcode, status) {
            (sys::IBV_WC_TM_ADD, sys::IBV_WC_SUCCESS) => Arrived::Appended { phase },
            (sys::IBV_WC_TM_DEL, sys::IBV_WC_SUCCESS | sys::IBV_WC_TM_ERR) => {
                Arrived::Removed { receive, found: status == sys::IBV_WC_SUCCESS, phase }
            }
            (sys::IBV_WC_TM_SYNC, sys::IBV_WC_SUCCESS) => Arrived::Synchronized { phase },
            _ => Arrived::Broken { status: WcStatus::from_raw(status) },
        }))
    }

    fn look_up(&mut self, reported: Reported) -> Option<Arrived> {
        let (wr_id, len) = match reported {
            Reported::Arrived(arrived) => return Some(arrived),
            Reported::Slot { wr_id, len, .. } => (wr_id, len),
            Reported::Failed { wr_id, .. } => (wr_id, 0),
        };
        let (slot, context) = self.queue.complete(wr_id)?;
        self.queue.release(slot);
        let mut taken = None;
        // SAFETY: [slot-owns], given back just now.
        unsafe { context.into_buffers(len, |buffer| taken = Some(buffer)) };
        let buffer = taken?;
        Some(match reported {
            Reported::Slot { counted, qp_num, .. } => Arrived::Message { buffer, counted, qp_num },
            Reported::Failed { status, qp_num, .. } => Arrived::Failed { status, qp_num },
            Reported::Arrived(arrived) => arrived,
        })
    }

    pub(super) fn post(
        &mut self,
        operations: &[Operation],
        counts: Counts,
        mut each: impl FnMut(Key, ListHandle),
    ) -> (usize, Result<(), i32>) {
        self.wrs.clear();
        self.sges.clear();
        for operation in operations {
            let flags = sys::IBV_OPS_SIGNALED | sys::IBV_OPS_TM_SYNC;
            let mut wr = sys::ibv_ops_wr { flags: flags as i32, ..Default::default() };
            wr.tm.unexpected_cnt = if operation.is_remove() { counts.before } else { counts.now }.into();
            let mut sge = sys::ibv_sge::default();
            match *operation {
                Operation::Append { receive, tag, mask, sge: to } => {
                    (wr.opcode, wr.wr_id) = (sys::IBV_WR_TAG_ADD, OPERATION | receive.to_bits());
                    wr.tm.add.recv_wr_id = TAGGED | receive.to_bits();
                    (wr.tm.add.tag, wr.tm.add.mask, wr.tm.add.num_sge) = (tag, mask, 1);
                    sge = sys::ibv_sge { addr: to.addr, length: to.length, lkey: to.lkey };
                }
                Operation::Remove { receive, handle } => {
                    (wr.opcode, wr.wr_id) = (sys::IBV_WR_TAG_DEL, OPERATION | receive.to_bits());
                    let ListHandle::Verbs(handle) = handle else { continue };
                    wr.tm.handle = handle;
                }
                Operation::Synchronize => {
                    (wr.opcode, wr.wr_id) = (sys::IBV_WR_TAG_SYNC, OPERATION | Key::NONE.to_bits());
                }
            }
            self.wrs.push(wr);
            self.sges.push(sge);
        }
        if self.wrs.is_empty() {
            return (operations.len(), Ok(()));
        }
        let (start, sges) = (self.wrs.as_mut_ptr(), self.sges.as_mut_ptr());
        for (i, wr) in self.wrs.iter_mut().enumerate() {
            wr.tm.add.sg_list = sges.wrapping_add(i);
            wr.next = if i + 1 < self.sges.len() { start.wrapping_add(i + 1) } else { ptr::null_mut() };
        }
        let mut bad = ptr::null_mut();
        // SAFETY: a live SRQ; list and SGEs are in vectors that do not change during the call; the buffers are
        // ours, owned by their receives until these are over.
        let errno = unsafe { sys::ibv_post_srq_ops(self.objects.srq.as_raw(), start, &mut bad) };
        let posted = if errno == 0 {
            self.wrs.len()
        } else {
            let offset = (bad as usize).wrapping_sub(start as usize) / size_of::<sys::ibv_ops_wr>();
            if bad.is_null() { 0 } else { offset.min(self.wrs.len()) }
        };
        for wr in &self.wrs[..posted] {
            self.counts.push_back(wr.tm.unexpected_cnt as u16);
            if wr.opcode == sys::IBV_WR_TAG_ADD {
                each(Key::from_bits(wr.wr_id), ListHandle::Verbs(wr.tm.handle));
            }
        }
        (posted, if errno == 0 { Ok(()) } else { Err(errno) })
    }

    pub(super) fn refill(&mut self, pool: &BufferPool) -> u32 {
        while self.queue.free_slots() > 0 {
            let Some(buffer) = pool.take() else { break };
            // A slot is free.
            let _ = self.queue.post(SlotContext::of(&buffer));
            mem::forget(buffer);
        }
        // SAFETY: [slot-owns], of a receive that was not posted.
        let (posted, _) = self.queue.post_chain(|context| unsafe { context.into_buffers(0, drop) });
        posted as u32
    }

    pub(super) fn posted(&self) -> u32 {
        self.queue.capacity() - self.queue.free_slots()
    }
}

impl Drop for VerbsTags {
    /// Queue pairs may live on: what is posted stays with the SRQ until it is destroyed.
    fn drop(&mut self) {
        let Self { queue, objects, .. } = self;
        // SAFETY: [slot-owns], taken back just now.
        queue.take_back(|context| unsafe {
            context.into_buffers(0, |buffer| objects.srq.deferred().keep(buffer));
        });
    }
}
