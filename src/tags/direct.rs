//! Matching by the device, driven directly.

use std::mem::MaybeUninit;
use std::sync::Arc;

use mlx5_ring::receive::{self, Outcome};
use mlx5_ring::sge::Sge;
use mlx5_ring::sq::{self, BasicBlocks};
use mlx5_ring::tag_list::{self, Append, Completion, PostError, TagList};
use mlx5_wire::opcode::CqeOpcode;
use mlx5_wire::tmh::Tmh;
use rdma_core_sys as sys;
use sys::Mlx5dv;

use super::config::TagMatchingConfig;
use super::engine::{Arrived, BATCH, Counts, Executed, ListHandle, Operation};
use super::hardware::Objects;
use super::receives::Key;
use crate::error::Result;
use crate::memory::{BufferPool, RecvBuffer};
use crate::path::NotDirect;
use crate::pd::ProtectionDomain;
use crate::qp::{QpConfig, QueuePair};
use crate::receiver::{
    Array, Books, Direct, DirectSrq, Srq, init_obj, layout_error, non_null, wc_status,
};
use crate::status::WcStatus;

pub(super) struct DirectTags {
    list: TagList<Key>,
    /// What the list posts to. Before the SRQ, which it uses.
    command: QueuePair,
    srq: DirectSrq,
    direct: Direct,
    books: Books,
    objects: Objects,
    _storage: (Array<MaybeUninit<Entry>>, Array<MaybeUninit<tag_list::Operation>>),
}

type Entry = tag_list::Entry<Key>;

impl DirectTags {
    pub(super) fn new(
        pd: &ProtectionDomain,
        config: &TagMatchingConfig,
        mlx5dv: &'static Mlx5dv,
    ) -> Result<Self> {
        let objects = Objects::create(pd, config)?;
        let not_direct = |error| pd.context().not_direct(error);
        // SAFETY: fresh objects that nobody else knows.
        let direct = unsafe { Direct::new(mlx5dv, &objects.cq) }.map_err(not_direct)?;
        // SAFETY: as above.
        let srq = unsafe { direct.srq(Arc::clone(&objects.srq)) }.map_err(not_direct)?;
        let operations = QpConfig::rc().sends(objects.operations).foreign_srq();
        let (cq, shared) = (Arc::clone(&objects.cq), Arc::clone(&objects.srq));
        let command = QueuePair::create_for_list(pd, &operations, cq, shared)?;
        let layout = layout(mlx5dv, &command).map_err(not_direct)?;
        let entries = Array::uninit(usize::from(config.max_tags) + 1);
        let operations = Array::uninit(layout.wqe_cnt as usize);
        let storage =
            tag_list::Storage { entries: entries.start(), operations: operations.start() };
        // SAFETY: a fresh queue pair of our own, which keeps its queue mapped and outlives the list.
        let queue = unsafe { BasicBlocks::new(layout) }.map_err(|e| not_direct(layout_error(e)))?;
        // SAFETY: as above, on an SRQ for as many tags; the arrays live as long as the list.
        let list = unsafe { TagList::new(queue, storage, config.max_tags) };
        let books = Books::new(pd.clone(), None);
        let _storage = (entries, operations);
        Ok(Self { list, command, srq, direct, books, objects, _storage })
    }

    pub(super) fn poll(&mut self, arrived: &mut Vec<Arrived>) {
        let size = self.direct.cq.stride();
        let mut completions = self.direct.cq.completions();
        while arrived.len() < BATCH {
            let Some(cqe) = completions.next() else { break };
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
                Completion::Synchronized { count } => {
                    Arrived::Synchronized { phase: phase(count, None) }
                }
                Completion::Matched { handle, header } => Arrived::Matched {
                    receive: key(&self.list, handle),
                    header: facts(&header),
                    incomplete: false,
                },
                Completion::Received { data, header, byte_count, .. } => Arrived::Received {
                    receive: data,
                    header: Some(facts(&header)),
                    len: byte_count,
                    qp_num,
                },
                Completion::Incomplete { data, header, byte_count, .. } => Arrived::Incomplete {
                    receive: data,
                    header: Some(facts(&header)),
                    len: byte_count,
                    qp_num,
                },
                Completion::Canceled { data, .. } => Arrived::Canceled { receive: data },
                completion => {
                    if completion == Completion::Other
                        && cqe.opcode() == CqeOpcode::RequesterError
                        && qp_num == self.command.qp_num()
                    {
                        let status = WcStatus::from_raw(wc_status(cqe.syndrome()));
                        arrived.push(Arrived::Broken { status });
                        continue;
                    }
                    // SAFETY: a CQE of the CQ that the SRQ completes on; its WQEs are buffers of ours.
                    let outcome = unsafe { receive::complete(&mut self.srq.ring, cqe, size) };
                    let (slot, failed) = match outcome {
                        Outcome::Message(slot) => (slot, false),
                        Outcome::Failed(slot) => (slot, true),
                        Outcome::Other | Outcome::Stray => continue,
                    };
                    // SAFETY: it was posted, and has completed just now.
                    let resident = unsafe { self.srq.ring.book().data(slot) };
                    // SAFETY: as above; not given back yet.
                    unsafe { self.srq.ring.release(slot) };
                    let len = if failed { 0 } else { cqe.byte_count() };
                    let mut taken = None;
                    self.books.leave(resident, len, |buffer| taken = Some(buffer));
                    match taken {
                        Some(_) if failed => {
                            let status = WcStatus::from_raw(wc_status(cqe.syndrome()));
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
                    let append =
                        Append { data: receive, tag, mask, buffer: Some(sge), signaled: true };
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
                // It is over or matched, as its completion will tell.
                Ok(()) | Err(PostError::Gone | PostError::Matched | PostError::Removing) => {}
                Err(PostError::ListFull | PostError::QueueFull) => {
                    return (posted, Err(libc::ENOMEM));
                }
            }
        }
        (operations.len(), Ok(()))
    }

    pub(super) fn refill(&mut self, pool: &BufferPool) -> u32 {
        let Self { srq, books, .. } = self;
        let mut posting = srq.ring.posting();
        let mut posted = 0;
        while let Some(buffer) = pool.take() {
            let Ok((resident, sge)) = books.enter(buffer) else { break };
            // SAFETY: a buffer of ours, owned by the queue from now on.
            if unsafe { posting.post(resident, &[sge]) }.is_err() {
                books.leave(resident, 0, drop);
                break;
            }
            posted += 1;
        }
        posted
    }

    pub(super) fn posted(&self) -> u32 {
        self.srq.ring.slots() - 1 - self.srq.ring.vacant()
    }

    pub(super) fn create_qp(&self, pd: &ProtectionDomain, config: &QpConfig) -> Result<QueuePair> {
        self.objects.create_qp(pd, config, Some(self.direct.mlx5dv))
    }

    pub(super) fn cq_capacity(&self) -> u32 {
        self.objects.cq.capacity()
    }

    pub(super) const fn object(&self) -> &Arc<Srq> {
        &self.objects.srq
    }
}

impl Drop for DirectTags {
    /// Queue pairs may live on: what is posted stays with the SRQ until it is destroyed.
    fn drop(&mut self) {
        let Self { books, srq, .. } = self;
        let parked = srq.object.parked();
        srq.ring.drain(|resident| books.park(&resident, parked));
    }
}

fn facts(header: &Tmh) -> (u64, u32) {
    (header.tag.get(), header.app_ctx.get())
}

/// The buffer of a receive as the device is to see it.
pub(super) fn sge(buffer: &RecvBuffer) -> Sge {
    // Headers of a rendezvous that software must finish go into the buffer. The bytes behind a smaller
    // one, up to the next cache line, belong to it alone.
    let length = (buffer.capacity() as u32).max(super::header::RENDEZVOUS as u32);
    let addr = buffer.addr().as_ptr().expose_provenance() as u64;
    Sge { addr, length, lkey: buffer.pool().lkey() }
}

fn layout(mlx5dv: &Mlx5dv, qp: &QueuePair) -> Result<sq::Layout, NotDirect> {
    // SAFETY: structures of integers and pointers.
    let mut out: sys::mlx5dv_qp = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let mut obj: sys::mlx5dv_obj = unsafe { std::mem::zeroed() };
    obj.qp.in_ = qp.as_raw();
    obj.qp.out = &mut out;
    // SAFETY: a live QP of an mlx5 device, and a writable structure.
    init_obj(unsafe { (mlx5dv.init_obj)(&mut obj, sys::MLX5DV_OBJ_QP.into()) })?;
    let layout = sq::Layout {
        buf: non_null(out.sq.buf.cast(), "send queue buffer")?,
        dbrec: non_null(out.dbrec.cast(), "QP doorbell record")?,
        wqe_cnt: out.sq.wqe_cnt,
        stride: out.sq.stride,
        register: non_null(out.bf.reg.cast(), "UAR register")?,
        register_size: out.bf.size,
        qpn: qp.qp_num(),
    };
    layout.check().map_err(layout_error)?;
    Ok(layout)
}
