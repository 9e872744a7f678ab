//! The rings of doorbell, through `as_direct`.

use doorbell::raw::SlotContext;
use mlx5_ring::completion::Cqe;
use mlx5_ring::cq::CompletionQueue;
use mlx5_ring::receive::{self, PostError, ReceiveRing};
use mlx5_ring::sge::Sge;
use mlx5_wire::opcode::CqeOpcode;
use rdma_core_sys as sys;

use super::{Completion, Receive, Subject, Wrapped, domain, status};
use crate::plan::{Entry, Give, Key, Shape};
use crate::queue::Wqe;
use crate::reference::Refusal;
use crate::twin::Twin;

/// Keys of the memory that scatter lists name.
#[derive(Clone, Copy, Debug)]
pub struct Keys {
    pub arena: u64,
    pub good: u32,
    pub read_only: u32,
}

impl Keys {
    pub fn prepare(&self, lists: &[Vec<Entry>], next_id: &mut u64) -> Vec<Receive> {
        let sge = |entry: &Entry| self.sge(entry);
        let receives = lists.iter().zip(*next_id..);
        let receives = receives.map(|(list, id)| (id, list.iter().map(sge).collect())).collect();
        *next_id += lists.len() as u64;
        receives
    }

    fn sge(&self, entry: &Entry) -> sys::ibv_sge {
        sys::ibv_sge {
            addr: self.arena + u64::from(entry.offset),
            length: entry.length,
            lkey: match entry.key {
                Key::Good => self.good,
                Key::Unknown => UNKNOWN_KEY,
                Key::ReadOnly => self.read_only,
            },
        }
    }
}

/// Key of no memory region.
pub const UNKNOWN_KEY: u32 = 0x00de_ad00;

pub struct Ring {
    wrapped: Wrapped,
    keys: Keys,
    /// Identifies receives: no two have the same.
    next_id: u64,
    /// Slot and data of each.
    held: Vec<(u32, u64)>,
}

/// Runs `$body` with the completion queue and the only queue.
macro_rules! with_queue {
    ($self:ident, |$cq:ident, $queue:ident| $body:expr) => {{
        let (srq, rq) = ($self.wrapped.srq, $self.wrapped.qps[0].receive_queue());
        // SAFETY: the ring stays where it is, and all receives are posted through it.
        let mut direct = unsafe { $self.wrapped.receiver.as_direct() }.expect("the direct path");
        match srq {
            Some(srq) => {
                let ($cq, $queue) = direct.srq(srq).expect("the SRQ exists");
                $body
            }
            None => {
                let ($cq, $queue) = direct.rq(rq.expect("a queue")).expect("the queue exists");
                $body
            }
        }
    }};
}

impl Ring {
    pub fn new(twin: &Twin, shape: &Shape, keys: Keys) -> Self {
        let pd = domain(twin);
        let wrapped = Wrapped::new(twin, &pd, shape);
        Self { wrapped, keys, next_id: 1, held: Vec::new() }
    }
}

pub fn sges((_, list): &Receive) -> Vec<Sge> {
    let sge = |sge: &sys::ibv_sge| Sge { addr: sge.addr, length: sge.length, lkey: sge.lkey };
    list.iter().map(sge).collect()
}

impl Subject for Ring {
    fn prepare(&mut self, lists: &[Vec<Entry>]) -> Vec<Receive> {
        self.keys.prepare(lists, &mut self.next_id)
    }

    fn post(&mut self, _: usize, receives: &[Receive]) -> (usize, Option<Refusal>) {
        let all: Vec<_> = receives.iter().map(sges).collect();
        with_queue!(self, |_cq, queue| {
            let mut posted = 0;
            let mut refusal = None;
            for ((id, _), sges) in receives.iter().zip(&all) {
                // SAFETY: the memory is read only while the device rests.
                refusal = match unsafe { queue.post(SlotContext::from_wr_id(*id), sges) } {
                    Ok(_) => None,
                    Err(PostError::Full) => Some(Refusal::Full),
                    Err(PostError::TooManySges) => Some(Refusal::TooManyEntries),
                };
                if refusal.is_some() {
                    break;
                }
                posted += 1;
            }
            queue.ring_doorbell();
            (posted, refusal)
        })
    }

    fn load_spare(&mut self, _: usize) -> Option<Receive> {
        let srq = self.wrapped.srq?;
        let entry = Entry { offset: 0, length: 512, key: Key::Good };
        let receive = self.prepare(&[vec![entry]]).pop()?;
        let sges = sges(&receive);
        // SAFETY: the memory is read only while the device rests.
        let loaded = unsafe {
            let mut direct = self.wrapped.receiver.as_direct().expect("the direct path");
            let (_, queue) = direct.srq(srq).expect("the SRQ exists");
            queue.load(SlotContext::from_wr_id(receive.0), &sges)
        };
        loaded.is_ok().then_some(receive)
    }

    fn poll(&mut self, budget: u32, give: &[Give]) -> Vec<Completion> {
        with_queue!(self, |cq, queue| poll(cq, queue, budget, give, &mut self.held))
    }

    fn held(&self) -> usize {
        self.held.len()
    }

    fn give_back(&mut self, index: usize, recycle: bool) -> (usize, u64) {
        let (slot, id) = self.held.remove(index);
        with_queue!(self, |_cq, queue| {
            // SAFETY: the slot has completed, is given back once, and its QP was not reset since.
            unsafe {
                if recycle {
                    queue.recycle(slot);
                } else {
                    queue.release(slot);
                }
            }
            queue.ring_doorbell();
        });
        (0, id)
    }

    fn arm(&mut self, solicited_only: bool) {
        self.wrapped.arm(solicited_only);
    }

    fn reset(&mut self, qp: usize) {
        self.wrapped.reset(qp);
    }

    fn id(&mut self, _: usize, wqe: &Wqe) -> u64 {
        with_queue!(self, |_cq, queue| queue.slots().posted(wqe.slot).map_or(0, |data| data.wr_id()))
    }
}

fn poll<Q: ReceiveRing<Data = SlotContext>>(
    cq: &mut CompletionQueue,
    queue: &mut Q,
    budget: u32,
    give: &[Give],
    held: &mut Vec<(u32, u64)>,
) -> Vec<Completion> {
    let mut completions = Vec::new();
    while (completions.len() as u32) < budget {
        let Some(cqe) = cq.next() else { break };
        // SAFETY: every receive on the CQ belongs to the queue; its memory is read only while the device rests.
        let completion = match unsafe { receive::complete(queue, cqe) } {
            receive::Completion::Message(slot) => {
                // SAFETY: the slot is held.
                let id = unsafe { queue.data(slot) }.wr_id();
                let given = give[completions.len() % give.len()];
                match given {
                    // SAFETY: the slot is held, and no code uses its memory.
                    Give::Recycle => unsafe { queue.recycle(slot) },
                    // SAFETY: the slot is held.
                    Give::Take => unsafe { queue.release(slot) },
                    Give::Hold => held.push((slot, id)),
                }
                Completion { fields: of_message(&cqe, id), given, data: None }
            }
            receive::Completion::Failed(slot) => {
                // SAFETY: the slot is held.
                let id = unsafe { queue.data(slot) }.wr_id();
                // SAFETY: as above.
                unsafe { queue.release(slot) }
                let fields = vec![
                    ("wr_id", id),
                    ("status", status(cqe.syndrome()).into()),
                    ("vendor_err", cqe.vendor_err_synd().into()),
                    ("qp_num", cqe.qpn().into()),
                ];
                Completion { fields, given: Give::Take, data: None }
            }
            receive::Completion::NotAReceive | receive::Completion::Stray => {
                Completion { fields: vec![("stray", 1)], given: Give::Take, data: None }
            }
        };
        completions.push(completion);
    }
    cq.publish();
    queue.ring_doorbell();
    completions
}

/// The fields of a CQE, in the terms of `struct ibv_wc`.
fn of_message(cqe: &Cqe<'_>, wr_id: u64) -> Vec<(&'static str, u64)> {
    let all = cqe.to_cqe64();
    let flags_rqpn = all.flags_rqpn.get();
    let (opcode, flags) = match cqe.opcode() {
        CqeOpcode::ResponderWriteImm => (sys::IBV_WC_RECV_RDMA_WITH_IMM, sys::IBV_WC_WITH_IMM),
        CqeOpcode::ResponderSendImm => (sys::IBV_WC_RECV, sys::IBV_WC_WITH_IMM),
        CqeOpcode::ResponderSendInv => (sys::IBV_WC_RECV, sys::IBV_WC_WITH_INV),
        _ => (sys::IBV_WC_RECV, 0),
    };
    let grh = if flags_rqpn >> 28 & 3 != 0 { sys::IBV_WC_GRH } else { 0 };
    let mut fields = vec![
        ("wr_id", wr_id),
        ("status", sys::IBV_WC_SUCCESS.into()),
        ("opcode", opcode.into()),
        ("byte_len", cqe.byte_count().into()),
        ("qp_num", cqe.qpn().into()),
        ("src_qp", (flags_rqpn & 0xff_ffff).into()),
        ("wc_flags", (flags | grh).into()),
        ("pkey_index", (cqe.imm_inval_pkey() & 0xffff).into()),
        ("slid", all.slid.get().into()),
        ("sl", (flags_rqpn >> 24 & 0xf).into()),
        ("dlid_path_bits", (all.ml_path & 0x7f).into()),
    ];
    if flags != 0 {
        fields.push(("imm_data", cqe.imm_inval_pkey().into()));
    }
    fields
}
