//! Runs the operations of a plan on both twins and compares after each.

mod post;

use std::collections::HashMap;

use proptest::strategy::Strategy;
use rdma_core_sys as sys;

use crate::difference::{Result, same, same_bytes};
use crate::memory::{Memory, Region};
use crate::pair::{Pair, same_completions};
use crate::plan::{self, Entry, Give, Key, Layer, Operation, Send, SendKind, Shape};
use crate::queue::{CompletionQueue, WorkQueue};
use crate::sequence::Plan;
use crate::session::{self, Kind, Outcome, Run};
use crate::subject::{self, Completion, Receive, Subject};
use crate::twin::Twin;
use crate::twins::Twins;
use crate::verbs::{self, fields, same_fields};
use crate::{fault, library, reference, tally};

/// Operations between two comparisons of large queues as a whole.
const SELDOM: u64 = 64;

struct Case<'a> {
    // Before its twin.
    subject: Box<dyn Subject>,
    twins: Twins<Twin>,
    shape: Shape,
    queues: Vec<Pair>,
    cqs: [CompletionQueue; 2],
    receives: HashMap<u64, Receive>,
    operation: u64,
    run: Run<'a>,
}

/// Sessions of receive queues and SRQs.
pub struct Queues;

impl Kind for Queues {
    type Shape = Shape;
    type Operation = Operation;

    fn plan(number: u64) -> impl Strategy<Value = Plan<Shape, Operation>> {
        plan::plan(number)
    }

    fn run(plan: &Plan<Shape, Operation>, memory: Memory, run: Run<'_>) -> Outcome {
        session::drive(Case::new(&plan.shape, memory, run), &plan.operations)
    }
}

impl<'a> session::Case<'a> for Case<'a> {
    type Operation = Operation;
    type Twin = Twin;

    fn parts(&mut self) -> (&mut Twins<Twin>, &mut Run<'a>) {
        (&mut self.twins, &mut self.run)
    }

    /// Receives empty messages until the counters are near their wrap.
    fn lead(&mut self) -> Result<()> {
        let mut left = self.shape.lead;
        let entry = Entry { offset: 0, length: 64, key: Key::Good };
        let send = Send { kind: SendKind::WriteImmediate(0), length: 0, solicited: false };
        while left > 0 {
            let count = left.min(self.queues[0].doorbell.capacity()).min(256);
            let receives = self.subject.prepare(&vec![vec![entry]; count as usize]);
            self.post(0, &receives)?;
            self.twins.send(0, &vec![send; count as usize])?;
            self.work()?;
            self.poll(count, &[Give::Take])?;
            left -= count;
        }
        self.twins.begin(&self.shape.settings);
        self.compare(true)
    }

    fn apply(&mut self, number: u64, operation: &Operation) -> Result<()> {
        self.operation = number;
        let queues = self.queues.len();
        match operation {
            Operation::Post { queue, lists } => {
                let receives = self.subject.prepare(lists);
                self.post(*queue as usize % queues, &receives)
            }
            Operation::Fill { queue, length } => self.fill(*queue as usize % queues, *length),
            Operation::Traffic(traffic) => self.traffic(traffic),
            Operation::Poll { budget, give } => self.poll(*budget, give),
            Operation::GiveBack { index, recycle } => match self.subject.held() {
                0 => Ok(()),
                held => self.give_back(*index as usize % held, *recycle),
            },
            Operation::Arm { solicited_only } => self.arm(*solicited_only),
        }
    }

    fn compare(&mut self, thorough: bool) -> Result<()> {
        let (theirs, ours) = self.twins.queues();
        let whole = thorough || self.operation % SELDOM == 0;
        for (number, pair) in self.queues.iter().enumerate() {
            pair.compare(number, [&theirs, &ours], whole, self.run.tally)?;
        }
        let diverged = self.queues.iter().any(|pair| pair.diverged);
        let cqs = [&self.cqs[0], &self.cqs[1]];
        same_completions(cqs, [&theirs, &ours], self.run.tally, |cqe| {
            if diverged {
                cqe.wqe_counter = 0.into();
            }
        })
    }

    fn reset(&mut self, qp: usize) -> Result<()> {
        self.run.tally.add(tally::RESETS, 1);
        self.twins.renew(qp);
        let queue = if self.shape.shared { 0 } else { qp };
        if !self.shape.shared {
            // A message of a receive queue cannot be given back after a reset.
            while self.subject.held() > 0 {
                self.give_back(0, false)?;
            }
        }
        if self.shape.shared {
            // The subject waits for the last WQE, which the device reports when it works.
            for twin in [&self.twins.libmlx5, &self.twins.doorbell] {
                twin.base.fail(qp);
                twin.base.device.settle();
            }
        }
        let purged = self.completed_on(qp);
        self.subject.reset(qp);
        reference::reset(&self.twins.libmlx5.objects(), qp);
        self.run.tally.add(tally::PURGED, purged.len() as u64);
        if self.shape.shared {
            for id in &purged {
                self.complete(queue, *id)?;
            }
            if self.shape.layer != Layer::DropIn {
                self.post_again(queue, purged, true)?;
            }
        } else {
            let pair = &mut self.queues[queue];
            pair.libmlx5.reset();
            pair.doorbell.reset();
            pair.waiting.clear();
        }
        for twin in [&self.twins.libmlx5, &self.twins.doorbell] {
            twin.reset_peer(qp);
            twin.go_on(qp);
        }
        self.work()
    }

    fn count(&mut self) {
        let tally = &mut *self.run.tally;
        for pair in &self.queues {
            let (total, slots) = (pair.doorbell.total, u64::from(pair.doorbell.slots));
            let (laps, wraps) = if self.shape.shared {
                (tally::SRQ_LAPS, tally::SRQ_WRAPS)
            } else {
                (tally::RING_LAPS, tally::RING_WRAPS)
            };
            tally.add(tally::RECEIVES, total);
            tally.add(laps, total / slots);
            tally.add(wraps, pair.doorbell.wraps);
            tally.add(tally::SIZES, slots);
        }
        let consumed: u32 = self.cqs[1].record()[0];
        tally.add(tally::CQ_LAPS, u64::from(consumed / self.cqs[1].count()));
    }
}

impl<'a> Case<'a> {
    fn new(shape: &Shape, memory: Memory, run: Run<'a>) -> Self {
        let Memory { source, target, .. } = memory;
        let mut doorbell = Twin::new("twin_doorbell", shape, source, target);
        let mut libmlx5;
        let mut regions;
        let subject: Box<dyn Subject> = match shape.layer {
            Layer::Ring | Layer::DropIn => {
                libmlx5 = library::make(|| Twin::new("twin_libmlx5", shape, source, target));
                let [(theirs, their_keys), (ours, our_keys)] = [&mut libmlx5, &mut doorbell].map(|twin| {
                    let (pd, access) = (twin.base.pd, [sys::IBV_ACCESS_LOCAL_WRITE, 0]);
                    twin.base.register_as(pd, shape.backing, &memory, memory.arena, access)
                });
                assert_eq!((their_keys, theirs.address), (our_keys, ours.address), "equal keys and addresses");
                regions = vec![[ours.region, theirs.region]];
                let [good, read_only] = our_keys;
                let keys = subject::Keys { arena: ours.address, good, read_only };
                if shape.layer == Layer::DropIn {
                    Box::new(subject::DropIn::new(doorbell.objects(), keys))
                } else {
                    Box::new(subject::Ring::new(&doorbell, shape, keys))
                }
            }
            Layer::Safe => {
                let pools = subject::Pools::new(&doorbell, shape);
                libmlx5 = library::make(|| Twin::new("twin_libmlx5", shape, source, target));
                let access = sys::IBV_ACCESS_LOCAL_WRITE;
                let pooled = pools.memory();
                let keys: Vec<_> = pooled.iter().map(|region| libmlx5.base.register_arena(*region, access)).collect();
                regions = pooled.into_iter().map(|region| [region; 2]).collect();
                Box::new(subject::Safe::new(&doorbell, shape, pools, &keys))
            }
        };
        regions.push([target; 2]);
        let (theirs, ours) = (libmlx5.base.queues(), doorbell.base.queues());
        let slots = shape.shared.then(|| (shape.max_wr + 1).next_power_of_two());
        let numbers: Vec<_> = (0..shape.qps as usize).map(|qp| libmlx5.base.qp_num(qp)).collect();
        let cqs = [&theirs, &ours].map(|queues| CompletionQueue::of(queues, numbers[0]));
        let queues = WorkQueue::of(&theirs, slots, &numbers)
            .into_iter()
            .zip(WorkQueue::of(&ours, slots, &numbers))
            .map(|(libmlx5, doorbell)| Pair::new(libmlx5, doorbell));
        Self {
            queues: queues.collect(),
            cqs,
            subject,
            twins: Twins::with_regions(libmlx5, doorbell, regions),
            shape: shape.clone(),
            receives: HashMap::new(),
            operation: 0,
            run,
        }
    }

    /// The queue that a QP takes receives from.
    fn queue_of(&self, qp_num: u32) -> usize {
        if self.shape.shared {
            return 0;
        }
        let numbers = 0..self.shape.qps as usize;
        numbers.into_iter().find(|qp| self.twins.libmlx5.base.qp_num(*qp) == qp_num).unwrap_or(0)
    }

    fn poll(&mut self, budget: u32, give: &[Give]) -> Result<()> {
        let fault = self.run.fault;
        let (ours, theirs) = self.twins.on_both(
            self.run.tally,
            |_| fault::poll(fault, &mut *self.subject, budget, give),
            |libmlx5| verbs::poll(libmlx5.cq, budget),
        )?;
        same(|| "completions".into(), theirs.len() as u64, ours.len() as u64)?;

        let mut candidates = vec![Vec::new(); self.queues.len()];
        for (number, (wc, completion)) in theirs.iter().zip(&ours).enumerate() {
            self.compare_completion(number, wc, completion)?;
            let queue = self.queue_of(wc.qp_num);
            self.complete(queue, wc.wr_id)?;
            let name = match completion.given {
                Give::Recycle => {
                    candidates[queue].push(wc.wr_id);
                    tally::RECYCLED
                }
                Give::Take => tally::TAKEN,
                Give::Hold => {
                    self.queues[queue].diverged |= self.shape.shared;
                    tally::HELD
                }
            };
            self.run.tally.add(name, 1);
        }
        let in_order = self.subject.held() == 0;
        for (queue, recycled) in candidates.into_iter().enumerate() {
            self.post_again(queue, recycled, in_order)?;
        }
        Ok(())
    }

    fn complete(&mut self, queue: usize, id: u64) -> Result<()> {
        self.queues[queue].complete(id, self.shape.shared, self.run.tally)
    }

    /// Asks for an event, and compares the writes to the register. The arm word of the record is compared with the
    /// queues.
    fn arm(&mut self, solicited_only: bool) -> Result<()> {
        let record = self.cqs[1].record_memory();
        fault::arm(self.run.fault, &mut *self.subject, solicited_only, record);
        let Twins { libmlx5, doorbell, .. } = &self.twins;
        reference::arm(&libmlx5.objects(), solicited_only);
        let rung = [(libmlx5, 0), (doorbell, 1)].map(|(twin, number)| {
            let doorbell = twin.base.device.cq_doorbell(self.cqs[number].number());
            doorbell.expect("the CQ exists")
        });
        self.run.tally.add(tally::ARMED, 1);
        self.run.tally.add(tally::REGISTERS, 1);
        self.run.tally.add(tally::EXACT, 8);
        same_bytes(|| "UAR: doorbell of the CQ".into(), &rung[0], &rung[1])
    }

    fn compare_completion(&mut self, number: usize, wc: &sys::ibv_wc, completion: &Completion) -> Result<()> {
        let name = |name: &str| format!("completion {number}: {name}");
        same_fields(name, &fields(wc), &completion.fields)?;
        if wc.status != sys::IBV_WC_SUCCESS {
            self.run.tally.add(tally::ERRORS, 1);
            return Ok(());
        }
        self.run.tally.add(tally::MESSAGES, 1);
        if self.twins.payload && wc.opcode == sys::IBV_WC_RECV && wc.byte_len > 0 {
            self.shape.backing.count(self.run.tally, tally::OPAQUE_MESSAGES);
        }
        let Some(data) = &completion.data else { return Ok(()) };
        let mut left = data.len();
        let mut expected = Vec::new();
        for sge in &self.receives[&wc.wr_id].1 {
            let len = left.min(sge.length as usize);
            // SAFETY: the buffer of a receive that has completed: it is not written now.
            expected.extend(unsafe { Region::at(sge.addr, len) }.bytes(0, len));
            left -= len;
        }
        same_bytes(|| format!("completion {number}: bytes of the message"), &expected, data)
    }

    fn give_back(&mut self, index: usize, recycle: bool) -> Result<()> {
        let (queue, id) = self.subject.give_back(index, recycle);
        self.post_again(queue, if recycle { vec![id] } else { Vec::new() }, false)
    }

    /// Receives that have completed on a QP and were not polled, newest first: both libraries free their slots in this
    /// order.
    fn completed_on(&self, qp: usize) -> Vec<u64> {
        use mlx5_wire::cqe::Cqe64;
        if !self.shape.shared {
            return Vec::new();
        }
        let view = &self.queues[0].libmlx5;
        let live = self.cqs[0].live(&self.twins.libmlx5.base.queues());
        let number = self.twins.libmlx5.base.qp_num(qp);
        let cqes = live.iter().map(|entry| {
            let cqe = &entry[entry.len() - Cqe64::SIZE..];
            Cqe64::from_bytes(cqe.try_into().expect("a CQE"))
        });
        cqes.filter(|cqe| cqe.sop_drop_qpn.get() & 0xff_ffff == number)
            .filter_map(|cqe| view.outstanding_in(cqe.wqe_counter.get().into()))
            .map(|wqe| wqe.id)
            .rev()
            .collect()
    }
}
