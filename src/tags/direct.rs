//! Matching by the device, driven directly.

use std::mem::{self, MaybeUninit};
use std::sync::Arc;

use mlx5_ring::receive::{self, Completion as Received, ReceiveRing};
use mlx5_ring::sq::BasicBlocks;
use mlx5_ring::tag_list::{self, Append, Completion, PostError, TagList};
use mlx5_wire::opcode::CqeOpcode;
use mlx5_wire::tmh::Tmh;
use rdma_core_sys::Mlx5dv;

use super::arrival::{Arrived, BATCH, Counts, Executed, ListHandle, Operation};
use super::config::TagMatchingConfig;
use super::hardware::Objects;
use super::ids::Key;
use crate::cq::{DirectCq, Poller};
use crate::error::Result;
use crate::memory::BufferPool;
use crate::mlx5::{Storage, layout_error};
use crate::pd::ProtectionDomain;
use crate::qp::{QpConfig, QueuePair};
use crate::receiver::{DirectSrq, SlotContext};
use crate::status::WcStatus;

pub(super) struct DirectTags {
    list: TagList<Key>,
    /// The queue pair of the list. Dropped before the SRQ, which it uses.
    command: QueuePair,
    srq: DirectSrq,
    pub(super) objects: Objects,
    _storage: (Storage<MaybeUninit<Entry>>, Storage<MaybeUninit<tag_list::Operation>>),
}

type Entry = tag_list::Entry<Key>;

impl DirectTags {
    pub(super) fn new(pd: &ProtectionDomain, config: &TagMatchingConfig, mlx5dv: &'static Mlx5dv) -> Result<Self> {
        let objects = Objects::create(pd, config, Some(mlx5dv))?;
        let not_direct = |error| pd.context().not_direct(error);
        // SAFETY: a fresh SRQ that no other code knows.
        let srq = unsafe { DirectSrq::new(mlx5dv, Arc::clone(&objects.srq)) }.map_err(not_direct)?;
        let operations = QpConfig::rc().max_send_wr(objects.operations);
        let (cq, shared) = (Arc::clone(&objects.cq.object), Arc::clone(&objects.srq));
        let command = QueuePair::create_for_list(pd, &operations, cq, shared)?;
        let layout = command.object().send_queue(mlx5dv).map_err(not_direct)?;
        let entries = Storage::uninit(usize::from(config.max_tags) + 1);
        let operations = Storage::uninit(layout.wqe_cnt as usize);
        let storage = tag_list::Storage { entries: entries.start(), operations: operations.start() };
        // SAFETY: a fresh queue pair of our own, which keeps its queue mapped and outlives the list.
        let queue = unsafe { BasicBlocks::new(layout) }.map_err(|e| not_direct(layout_error(e)))?;
        // SAFETY: as above, on an SRQ for as many tags; the arrays live as long as the list.
        let list = unsafe { TagList::new(queue, storage, config.max_tags) };
        Ok(Self { list, command, srq, objects, _storage: (entries, operations) })
    }

    pub(super) fn poll(&mut self, arrived: &mut Vec<Arrived>) {
        let Poller::Direct(DirectCq { cq, .. }) = &mut self.objects.cq.poller else { return };
        let size = cq.stride();
        while arrived.len() < BATCH {
            let Some(cqe) = cq.next() else { break };
            let qp_num = cqe.qpn();
            // SAFETY: from the CQ of the list, once and in order; what is appended are buffers of ours.
            let completion = unsafe { self.list.complete(cqe, size) };
            let phase = |count, hw_phase| Executed { count, hw_phase };
            let key = |list: &TagList<Key>, handle| list.data(handle).unwrap_or(Key::NONE);
            arrived.push(match completion {
                Completion::Appended { hw_phase, phase: count, .. } => {
                    Arrived::Appended { phase: phase(count, Some(hw_phase)) }
                }
                Completion::Removed { data, hw_phase, phase: count, .. } => {
                    let phase = phase(count, Some(hw_phase));
                    Arrived::Removed { receive: data, found: true, phase }
                }
                Completion::TooLate { handle, hw_phase, phase: count } => {
                    let receive = key(&self.list, handle);
                    let phase = phase(count, Some(hw_phase));
                    Arrived::Removed { receive, found: false, phase }
                }
                Completion::Synchronized { count } => Arrived::Synchronized { phase: phase(count, None) },
                Completion::Matched { handle, header } => {
                    Arrived::Matched { receive: key(&self.list, handle), header: facts(&header), incomplete: false }
                }
                Completion::Received { data, header, byte_count, .. } => {
                    Arrived::Received { receive: data, header: Some(facts(&header)), len: byte_count, qp_num }
                }
                Completion::Incomplete { data, header, byte_count, .. } => {
                    Arrived::Incomplete { receive: data, header: Some(facts(&header)), len: byte_count, qp_num }
                }
                Completion::Canceled { data, .. } => Arrived::Canceled { receive: data },
                completion => {
                    if completion == Completion::Other
                        && cqe.opcode() == CqeOpcode::RequesterError
                        && qp_num == self.command.qp_num()
                    {
                        let status = WcStatus::from_raw(cqe.syndrome().status());
                        arrived.push(Arrived::Broken { status });
                        continue;
                    }
                    // SAFETY: a CQE of the CQ that the SRQ completes on; its WQEs are buffers of ours.
                    let received = unsafe { receive::complete(&mut self.srq.ring, cqe) };
                    let (slot, failed) = match received {
                        Received::Message(slot) => (slot, false),
                        Received::Failed(slot) => (slot, true),
                        Received::NotAReceive | Received::Stray => continue,
                    };
                    // SAFETY: completed just now, so it is held; given back once.
                    let context = unsafe { self.srq.ring.data(slot) };
                    // SAFETY: as above.
                    unsafe { self.srq.ring.release(slot) };
                    let len = if failed { 0 } else { cqe.byte_count() };
                    let mut taken = None;
                    // SAFETY: [slot-owns], given back just now.
                    unsafe { context.into_buffers(len, |buffer| taken = Some(buffer)) };
                    match taken {
                        Some(_) if failed => {
                            let status = WcStatus::from_raw(cqe.syndrome().status());
                            Arrived::Failed { status, qp_num }
                        }
                        Some(buffer) => {
                            let counted = completion == Completion::Unexpected;
                            Arrived::Message { buffer, counted, qp_num }
                        }
                        None => continue,
                    }
                }
            });
        }
        cq.publish();
    }

    pub(super) fn post(
        &mut self,
        operations: &[Operation],
        counts: Counts,
        mut each: impl FnMut(Key, ListHandle),
    ) -> (usize, Result<(), i32>) {
        let mut posting = self.list.posting();
        for (posted, operation) in operations.iter().enumerate() {
            let result = match *operation {
                Operation::Append { receive, tag, mask, sge } => {
                    let append = Append { data: receive, tag, mask, buffer: Some(sge), signaled: true };
                    // SAFETY: a buffer of ours, which the receive owns until it is over.
                    unsafe { posting.append(append, Some(counts.now)) }
                        .map(|handle| each(receive, ListHandle::Direct(handle)))
                }
                Operation::Remove { handle: ListHandle::Direct(handle), .. } => {
                    posting.remove(handle, Some(counts.before))
                }
                Operation::Remove { .. } => Ok(()),
                Operation::Synchronize => posting.synchronize(Some(counts.now), true),
            };
            match result {
                // The receive is over or matched, as its completion will show.
                Ok(()) | Err(PostError::Gone | PostError::Matched | PostError::Removing) => {}
                Err(PostError::ListFull | PostError::QueueFull) => {
                    return (posted, Err(libc::ENOMEM));
                }
            }
        }
        (operations.len(), Ok(()))
    }

    pub(super) fn refill(&mut self, pool: &BufferPool) -> u32 {
        let mut posted = 0;
        while self.srq.ring.free_slots() > 0 {
            let Some(buffer) = pool.take() else { break };
            let (context, segment) = (SlotContext::of(&buffer), buffer.receive_segment());
            // A slot is free.
            // SAFETY: a buffer of ours, owned by the queue from now on.
            let _ = unsafe { self.srq.ring.post_segment(context, segment) };
            mem::forget(buffer);
            posted += 1;
        }
        self.srq.ring.ring_doorbell();
        posted
    }

    pub(super) fn posted(&self) -> u32 {
        self.srq.ring.slots().count() - 1 - self.srq.ring.free_slots()
    }
}

impl Drop for DirectTags {
    /// Queue pairs may live on: what is posted stays with the SRQ until it is destroyed.
    fn drop(&mut self) {
        let DirectSrq { ring, object, .. } = &mut self.srq;
        // SAFETY: [slot-owns], taken back just now.
        ring.drain(|context| unsafe {
            context.into_buffers(0, |buffer| object.deferred().keep(buffer));
        });
    }
}

fn facts(header: &Tmh) -> (u64, u32) {
    (header.tag.get(), header.app_ctx.get())
}
