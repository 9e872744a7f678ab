//! The tag list as doorbell drives it.
//!
//! A [`Receiver`] has the CQ and the SRQ, which are reached through `as_direct`. The list is the ring itself, on
//! the command queue pair of the twin.

use std::mem::MaybeUninit;
use std::ptr::NonNull;

use doorbell::raw::SlotContext;
use doorbell::{Context, CqConfig, DataPath, ProtectionDomain, Receiver, SrqConfig, SrqId};
use mlx5_ring::receive::{self, ReceiveRing};
use mlx5_ring::sge::Sge;
use mlx5_ring::sq::BasicBlocks;
use mlx5_ring::tag_list::{self, Append, Completion, Handle, PostError, TagList};
use mlx5_wire::dbrec;
use mlx5_wire::syndrome::Syndrome;
use mlx5_wire::tm::AppOp;

use super::plan::Shape;
use super::request::{Request, What};
use super::twin::Twin;
use crate::fault::{self, Fault};
use crate::memory::Region;
use crate::subject::{Receive, sges};
use crate::{poison, verbs};

/// A completion as the list reports it, and the other fields of the CQE.
#[derive(Debug)]
pub struct Reported {
    pub completion: Completion<u64>,
    pub app_op: AppOp,
    pub byte_count: u32,
    pub qp_num: u32,
    pub has_grh: bool,
    /// The receive of the SRQ that it completes.
    pub slot: Option<u64>,
    /// Syndrome and vendor syndrome of an error.
    pub failure: Option<(Syndrome, u8)>,
}

pub struct Subject {
    list: TagList<u64>,
    receiver: Receiver,
    srq: SrqId,
    fault: Option<Fault>,
    /// Doorbell record of the command queue.
    record: NonNull<u8>,
    _entries: Box<[MaybeUninit<tag_list::Entry<u64>>]>,
    _operations: Box<[MaybeUninit<tag_list::Operation>]>,
}

impl Subject {
    pub fn new(twin: &Twin, shape: &Shape, fault: Option<Fault>) -> Self {
        // SAFETY: the objects are fresh, no other code uses them, they are destroyed after the subject,
        // and they were made with these sizes.
        let (receiver, srq) = unsafe {
            let context = Context::from_raw(twin.base.context).expect("an open context");
            let pd = ProtectionDomain::from_raw(&context, twin.base.pd);
            let mut receiver = Receiver::from_raw_cq(&pd, twin.cq.cast(), &CqConfig::new(4096).path(DataPath::Direct))
                .expect("a fresh CQ");
            let srq = receiver.attach_srq(twin.srq, &SrqConfig::new(shape.slots).patience(0)).expect("a fresh SRQ");
            poison::post_and_poll(twin.base.context);
            poison::extended_cq(twin.cq);
            (receiver, srq)
        };
        let layout = verbs::send_queue(twin.command);
        let record = layout.dbrec.cast();
        let mut entries: Box<[_]> = Box::new_uninit_slice(usize::from(shape.tags) + 1);
        let mut operations: Box<[_]> = Box::new_uninit_slice(layout.wqe_cnt as usize);
        let storage = tag_list::Storage {
            entries: NonNull::from(&mut *entries).cast(),
            operations: NonNull::from(&mut *operations).cast(),
        };
        // SAFETY: the queue is fresh and its memory outlives the list, as the boxes do.
        let list = unsafe {
            let queue = BasicBlocks::new(layout).expect("a send queue of libmlx5");
            TagList::new(queue, storage, shape.tags)
        };
        Self { list, receiver, srq, fault, record, _entries: entries, _operations: operations }
    }

    /// Tags that can be added.
    pub fn free_entries(&self) -> usize {
        self.list.free_entries().into()
    }

    /// Posts list operations with one doorbell; each result has the handle of an append.
    pub fn post(&mut self, requests: &[Request]) -> Vec<Result<Option<Handle>, PostError>> {
        let mut posting = self.list.posting();
        let wrong = u64::from(self.fault == Some(Fault::Mask));
        let post = |request: &Request| {
            let count = request.count.map(|count| count as u16);
            match request.what {
                What::Add { tag, mask, buffer: sge } => {
                    let buffer = Sge { addr: sge.addr, length: sge.length, lkey: sge.lkey };
                    let append = Append {
                        data: request.id,
                        tag,
                        mask: mask ^ wrong,
                        buffer: Some(buffer),
                        signaled: request.signaled,
                    };
                    // SAFETY: the memory is read only while the device rests.
                    unsafe { posting.append(append, count) }.map(Some)
                }
                What::Del { handle, .. } => posting.remove(handle, count).map(|()| None),
                What::Sync => posting.synchronize(count, request.signaled).map(|()| None),
            }
        };
        let posted = requests.iter().map(post).collect();
        drop(posting);
        if self.fault == Some(Fault::CommandRecord) {
            // SAFETY: the record has two words, and nothing else reads it now.
            fault::flip(unsafe { Region::new(self.record, 8) }, dbrec::SEND, 1);
        }
        posted
    }

    /// Posts receives for messages that match nothing; returns how many were taken.
    pub fn receive(&mut self, receives: &[Receive]) -> usize {
        // SAFETY: the ring stays where it is, and all receives are posted through it.
        let mut direct = unsafe { self.receiver.as_direct() }.expect("the direct path");
        let (_, srq) = direct.srq(self.srq).expect("the SRQ exists");
        let post = |receive: &&Receive| {
            let context = SlotContext::from_wr_id(receive.0);
            // SAFETY: the memory is read only while the device rests.
            unsafe { srq.post(context, &sges(receive)) }.is_ok()
        };
        let posted = receives.iter().take_while(post).count();
        srq.ring_doorbell();
        posted
    }

    /// The number that doorbell has noted for a slot of the SRQ.
    pub fn id(&mut self, slot: u32) -> u64 {
        // SAFETY: the ring stays where it is.
        let mut direct = unsafe { self.receiver.as_direct() }.expect("the direct path");
        let (_, srq) = direct.srq(self.srq).expect("the SRQ exists");
        srq.slots().posted(slot).map_or(0, |data| data.wr_id())
    }

    /// Takes at most `budget` completions.
    pub fn poll(&mut self, budget: u32) -> Vec<Reported> {
        let mut reported = Vec::new();
        // SAFETY: the rings stay where they are, and all receives are completed here.
        let mut direct = unsafe { self.receiver.as_direct() }.expect("the direct path");
        let (cq, srq) = direct.srq(self.srq).expect("the SRQ exists");
        let size = cq.stride();
        while (reported.len() as u32) < budget {
            let Some(cqe) = cq.next() else { break };
            // SAFETY: from the CQ of the list, once and in order; the memory of receives is read only while
            // the device rests.
            let completion = unsafe { self.list.complete(cqe, size) };
            let ours = matches!(completion, Completion::Unexpected | Completion::NoTag | Completion::Other);
            // SAFETY: as above; each slot is given back once.
            let (slot, failed) = match unsafe { ours.then(|| receive::complete(srq, cqe)) } {
                Some(receive::Completion::Message(slot)) => (Some(slot), false),
                Some(receive::Completion::Failed(slot)) => (Some(slot), true),
                Some(receive::Completion::NotAReceive | receive::Completion::Stray) | None => (None, false),
            };
            let slot = slot.map(|slot| {
                // SAFETY: the slot is held.
                let id = unsafe { srq.data(slot) }.wr_id();
                // SAFETY: as above.
                unsafe { srq.release(slot) };
                id
            });
            reported.push(Reported {
                completion,
                app_op: cqe.app_op(),
                byte_count: cqe.byte_count(),
                qp_num: cqe.qpn(),
                has_grh: cqe.has_grh(),
                slot,
                failure: failed.then(|| (cqe.syndrome(), cqe.vendor_err_synd())),
            });
        }
        cq.publish();
        reported
    }
}
