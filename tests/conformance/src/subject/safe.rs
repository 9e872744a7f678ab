//! `Receiver` with buffers of a pool.

use doorbell::{Buffer, BufferPool, Cause, PoolConfig, PostFailure, ProtectionDomain, QueueId};
use rdma_core_sys as sys;

use super::{Completion, Receive, Subject, Wrapped, domain};
use crate::memory::Region;
use crate::plan::{Entry, Give, Shape};
use crate::queue::Wqe;
use crate::reference::Refusal;
use crate::sizes::BUFFER;
use crate::twin::Twin;

/// Buffers that messages were taken in stay with the program for this many messages.
const KEPT: usize = 4;

pub struct Safe {
    wrapped: Wrapped,
    pool: BufferPool,
    spare: Option<BufferPool>,
    key: u32,
    spare_key: u32,
    prepared: Vec<Vec<Buffer>>,
    taken: Vec<Buffer>,
}

/// The domain and the pools, which register memory in the same order on both twins.
pub struct Pools {
    pd: ProtectionDomain,
    pool: BufferPool,
    spare: Option<BufferPool>,
}

impl Pools {
    pub fn new(twin: &Twin, shape: &Shape) -> Self {
        let pd = domain(twin);
        let make = |count| BufferPool::new(&pd, &PoolConfig::new(count, BUFFER)).expect("memory can be registered");
        let pool = make(shape.buffers());
        let spare = shape.spare.then(|| make(1));
        Self { pd, pool, spare }
    }

    /// The memory of each pool.
    pub fn memory(&self) -> Vec<Region> {
        let region = |pool: &BufferPool| {
            let mut buffers: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
            let first = buffers.iter_mut().map(address).min().expect("a pool has buffers");
            // SAFETY: the pool keeps its memory as long as the queues exist; a message is not borrowed while its
            // bytes are read here.
            unsafe { Region::at(first, (pool.count() * BUFFER) as usize) }
        };
        [&self.pool].into_iter().chain(&self.spare).map(region).collect()
    }
}

/// Where a buffer starts.
fn address(buffer: &mut Buffer) -> u64 {
    let len = buffer.len();
    buffer.set_len(buffer.capacity());
    let address = buffer.as_ptr().expose_provenance() as u64;
    buffer.set_len(len);
    address
}

impl Safe {
    /// `keys` are those of the pools.
    pub fn new(twin: &Twin, shape: &Shape, pools: Pools, keys: &[u32]) -> Self {
        let Pools { pd, pool, spare } = pools;
        let wrapped = Wrapped::new(twin, &pd, shape);
        let (key, spare_key) = (keys[0], keys.get(1).copied().unwrap_or_default());
        Self { wrapped, pool, spare, key, spare_key, prepared: Vec::new(), taken: Vec::new() }
    }

    fn queue(&self, index: usize) -> QueueId {
        match self.wrapped.srq {
            Some(srq) => srq.into(),
            None => self.wrapped.qps[index].receive_queue().expect("a queue of its own").into(),
        }
    }

    fn sge(&self, buffer: &mut Buffer) -> sys::ibv_sge {
        let length = buffer.capacity() as u32;
        sys::ibv_sge { addr: address(buffer), length, lkey: self.key }
    }
}

fn refusal(failure: PostFailure) -> Refusal {
    match failure {
        PostFailure::Full => Refusal::Full,
        PostFailure::TooManyBuffers { .. } => Refusal::TooManyEntries,
        other => panic!("{other}"),
    }
}

impl Subject for Safe {
    fn prepare(&mut self, lists: &[Vec<Entry>]) -> Vec<Receive> {
        self.prepared.clear();
        let mut receives = Vec::new();
        for list in lists {
            let buffers = (0..list.len().max(1)).map_while(|_| self.pool.take());
            let mut buffers: Vec<_> = buffers.collect();
            if buffers.len() < list.len().max(1) {
                break;
            }
            let sges: Vec<_> = buffers.iter_mut().map(|buffer| self.sge(buffer)).collect();
            receives.push((sges[0].addr, sges));
            self.prepared.push(buffers);
        }
        receives
    }

    fn post(&mut self, queue: usize, receives: &[Receive]) -> (usize, Option<Refusal>) {
        let queue = self.queue(queue);
        let prepared: Vec<_> = self.prepared.drain(..).take(receives.len()).collect();
        let count = prepared.len();
        if prepared.iter().all(|buffers| buffers.len() == 1) {
            return match self.wrapped.receiver.post(queue, prepared.into_iter().flatten()) {
                Ok(posted) => (posted, None),
                Err(error) => (error.posted, Some(refusal(error.reason))),
            };
        }
        for (posted, buffers) in prepared.into_iter().enumerate() {
            if let Err(error) = self.wrapped.receiver.post_scatter(queue, buffers) {
                return (posted, Some(refusal(error.reason)));
            }
        }
        (count, None)
    }

    fn load_spare(&mut self, queue: usize) -> Option<Receive> {
        let queue = self.queue(queue);
        let pool = self.spare.as_ref()?;
        let mut buffer = pool.take()?;
        let sge = sys::ibv_sge { lkey: self.spare_key, ..self.sge(&mut buffer) };
        drop(buffer);
        self.wrapped.receiver.fill(queue, pool).unwrap();
        // Unless there is one in that slot already.
        (pool.available() == 0).then(|| (sge.addr, vec![sge]))
    }

    fn poll(&mut self, budget: u32, give: &[Give]) -> Vec<Completion> {
        let mut completions = Vec::new();
        let mut batch = self.wrapped.receiver.poll_up_to(budget);
        while let Some(found) = batch.next() {
            let given = give[completions.len() % give.len()];
            let completion = match found {
                Ok(message) => {
                    let opcode = match message.written() {
                        Some(_) => sys::IBV_WC_RECV_RDMA_WITH_IMM,
                        None => sys::IBV_WC_RECV,
                    };
                    let byte_len = message.written().unwrap_or(message.len() as u32);
                    let mut fields = vec![
                        ("status", sys::IBV_WC_SUCCESS.into()),
                        ("opcode", opcode.into()),
                        ("with_imm", message.imm().is_some().into()),
                        ("byte_len", byte_len.into()),
                        ("qp_num", message.qp_num().into()),
                    ];
                    fields.extend(message.imm().map(|imm| ("imm_data", imm.into())));
                    let data: Vec<u8> = message.segments().flatten().copied().collect();
                    if !message.is_scattered() {
                        fields.push(("wr_id", message.as_ptr() as u64));
                    }
                    if given == Give::Take {
                        let mut buffers = message.into_buffers();
                        fields.retain(|(name, _)| *name != "wr_id");
                        fields.push(("wr_id", address(&mut buffers[0])));
                        self.taken.append(&mut buffers);
                    }
                    Completion { fields, given, data: Some(data) }
                }
                Err(mut failure) => {
                    let Cause::Status(status) = failure.cause else { panic!("{failure}") };
                    let mut fields = vec![
                        ("status", status.as_raw().into()),
                        ("vendor_err", failure.vendor_err.into()),
                        ("qp_num", failure.qp_num.into()),
                    ];
                    let mut given = Give::Recycle;
                    if let Some(first) = failure.buffers.first_mut() {
                        fields.push(("wr_id", address(first)));
                        given = Give::Take;
                    }
                    Completion { fields, given, data: None }
                }
            };
            completions.push(completion);
        }
        drop(batch);
        let surplus = self.taken.len().saturating_sub(KEPT);
        self.taken.drain(..surplus);
        completions
    }

    fn held(&self) -> usize {
        0
    }

    fn give_back(&mut self, _: usize, _: bool) -> (usize, u64) {
        unreachable!("a message of this layer is lent")
    }

    fn arm(&mut self, solicited_only: bool) {
        self.wrapped.arm(solicited_only);
    }

    fn reset(&mut self, qp: usize) {
        self.wrapped.reset(qp);
    }

    fn id(&mut self, _: usize, wqe: &Wqe) -> u64 {
        wqe.entries()[0].0
    }
}
