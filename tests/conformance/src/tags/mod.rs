//! Tag matching: libmlx5 changes the list through a command queue pair of its own, doorbell through a queue pair
//! made with the public API.

mod added;
mod list;
mod plan;
mod post;
mod reference;
mod reported;
mod request;
mod subject;
mod twin;

use std::collections::VecDeque;

use proptest::strategy::Strategy;
use rdma_core_sys as sys;

use crate::difference::{Difference, Result, same};
use crate::memory::Memory;
use crate::pair::{Pair, same_completions};
use crate::queue::{CompletionQueue, WorkQueue};
use crate::sequence::Plan;
use crate::session::{self, Case as _, Kind, Outcome, Run};
use crate::tally;
use crate::twins::Twins;

use added::Added;
use list::CommandQueue;
use plan::{Operation, Send, SendKind, Shape};
use subject::Subject;
use twin::Twin;

/// Receives that an adapter wants to see posted before it takes messages, and a few more.
const FIRST: u32 = 40;

/// Sessions of tag matching.
pub struct Tags;

impl Kind for Tags {
    type Shape = Shape;
    type Operation = Operation;

    fn plan(number: u64) -> impl Strategy<Value = Plan<Shape, Operation>> {
        plan::plan(number)
    }

    fn run(plan: &Plan<Shape, Operation>, memory: Memory, run: Run<'_>) -> Outcome {
        session::drive(Case::new(&plan.shape, memory, run), &plan.operations)
    }
}

struct Case<'a> {
    // Before its twin.
    subject: Subject,
    twins: Twins<Twin>,
    shape: Shape,
    /// Where the memory of receives starts, and its key.
    base: u64,
    key: u32,
    /// The SRQ.
    pair: Pair,
    /// The queue that libmlx5 posts list operations to, and that of doorbell.
    commands: [CommandQueue; 2],
    /// The unused command queue of each twin.
    idle: [CommandQueue; 2],
    cqs: [CompletionQueue; 2],
    next_id: u64,
    /// Receives in the list, and removed receives with completions to come.
    added: Vec<Added>,
    /// Their `wr_id`, and the count that each carries or the operation before it.
    synchronisations: VecDeque<(u64, u16)>,
    /// Unexpected messages that were handled, and the count in the last operation.
    handled: u32,
    carried: u32,
    carried_now: u16,
    /// The count in the last append, which libmlx5 uses.
    carried_by_add: u32,
    /// List operations since the last one that a CQE was asked for.
    silent: u32,
    run: Run<'a>,
}

impl<'a> session::Case<'a> for Case<'a> {
    type Operation = Operation;
    type Twin = Twin;

    fn parts(&mut self) -> (&mut Twins<Twin>, &mut Run<'a>) {
        (&mut self.twins, &mut self.run)
    }

    fn lead(&mut self) -> Result<()> {
        self.receives(&vec![0; FIRST as usize])?;
        self.operations_lead()?;
        self.unexpected_lead()?;
        self.twins.begin(&self.shape.settings);
        self.compare(true)
    }

    fn apply(&mut self, _: u64, operation: &Operation) -> Result<()> {
        match operation {
            Operation::List(operations) => self.list(operations),
            Operation::Receives { offsets } => self.receives(offsets),
            Operation::Traffic(traffic) => self.traffic(traffic),
            Operation::Poll { budget } => self.poll(*budget),
        }
    }

    fn compare(&mut self, thorough: bool) -> Result<()> {
        let (theirs, ours) = self.twins.queues();
        self.pair.compare(0, [&theirs, &ours], true, self.run.tally)?;
        let diverged = self.pair.diverged;
        let cqs = [&self.cqs[0], &self.cqs[1]];
        let commands = [self.commands[0].number, self.commands[1].number];
        same_completions(cqs, [&theirs, &ours], self.run.tally, |cqe| {
            if diverged {
                cqe.wqe_counter = 0.into();
            }
            let qpn = cqe.sop_drop_qpn.get();
            if commands.contains(&(qpn & 0xff_ffff)) {
                cqe.sop_drop_qpn = (qpn & !0xff_ffff).into();
            }
        })?;
        if thorough {
            for (queue, who) in self.idle.iter().zip(["doorbell", "libmlx5"]) {
                if !queue.is_idle() {
                    let field = format!("the other command queue of {who}");
                    return Err(Difference::new(field, "not used", "used"));
                }
            }
        }
        Ok(())
    }

    fn reset(&mut self, qp: usize) -> Result<()> {
        self.run.tally.add(tally::RESETS, 1);
        self.twins.renew(qp);
        for twin in [&self.twins.libmlx5, &self.twins.doorbell] {
            twin.reset(qp);
        }
        self.work()
    }

    fn count(&mut self) {
        self.run.tally.add(tally::RECEIVES, self.pair.doorbell.total);
        let consumed = self.cqs[1].record()[0];
        self.run.tally.add(tally::CQ_LAPS, u64::from(consumed / self.cqs[1].count()));
        self.run.tally.add(tally::PHASE_WRAPS, u64::from(self.handled >> 16));
    }
}

impl<'a> Case<'a> {
    fn new(shape: &Shape, memory: Memory, run: Run<'a>) -> Self {
        let Memory { arena, source, target, headers, .. } = memory;
        // The FINs of rendezvous arrive in `target`, where other sessions write.
        let peers = [source, headers, target];
        let mut doorbell = Twin::new("twin_doorbell", shape, peers);
        let mut libmlx5 = Twin::new("twin_libmlx5", shape, peers);
        let [key, ours] =
            [&mut libmlx5, &mut doorbell].map(|twin| twin.base.register_arena(arena, sys::IBV_ACCESS_LOCAL_WRITE));
        assert_eq!(key, ours, "equal keys");
        let subject = Subject::new(&doorbell, shape, run.fault);
        let (theirs, ours) = (libmlx5.base.queues(), doorbell.base.queues());
        let slots = Some((shape.slots + 1).next_power_of_two());
        let srq = |queues| WorkQueue::of(queues, slots, &[]).pop().expect("the SRQ exists");
        let numbers = [&libmlx5, &doorbell].map(|twin| (twin.hidden, twin.base.number(twin.command)));
        Self {
            pair: Pair::new(srq(&theirs), srq(&ours)),
            commands: [CommandQueue::of(&theirs, numbers[0].0), CommandQueue::of(&ours, numbers[1].1)],
            idle: [CommandQueue::of(&ours, numbers[1].0), CommandQueue::of(&theirs, numbers[0].1)],
            cqs: [
                CompletionQueue::of(&theirs, libmlx5.base.number(libmlx5.command)),
                CompletionQueue::of(&ours, doorbell.base.number(doorbell.command)),
            ],
            subject,
            twins: Twins::new(libmlx5, doorbell, vec![arena, target]),
            shape: shape.clone(),
            base: arena.address(),
            key,
            next_id: 1,
            added: Vec::new(),
            synchronisations: VecDeque::new(),
            handled: 0,
            carried: 0,
            carried_now: 0,
            carried_by_add: 0,
            silent: 0,
            run,
        }
    }

    /// Brings the index of the command queue near its wrap.
    fn operations_lead(&mut self) -> Result<()> {
        let mut left = self.shape.lead;
        while left > 0 {
            let count = left.min(self.twins.libmlx5.max_post).min(64);
            let operation = plan::ListOperation::Sync { signaled: true, lag: None };
            self.list(&vec![operation; count as usize])?;
            self.work()?;
            self.poll(u32::MAX)?;
            left -= count;
        }
        Ok(())
    }

    /// Brings the count of unexpected messages near its wrap.
    fn unexpected_lead(&mut self) -> Result<()> {
        let send = Send { kind: SendKind::Eager, tag: 0, context: 0, length: 0 };
        let mut left = self.shape.unexpected;
        while left > 0 {
            let count = left.min(FIRST);
            self.twins.send(0, &vec![send; count as usize])?;
            // The two counts must not drift apart by half of their range.
            self.list(&[plan::ListOperation::Sync { signaled: true, lag: Some(0) }])?;
            self.work()?;
            self.poll(u32::MAX)?;
            self.receives(&vec![0; count as usize])?;
            left -= count;
        }
        Ok(())
    }

    /// Counts the work of the session, without its lead.
    fn tally(&mut self, name: &'static str, count: u64) {
        if self.twins.payload {
            self.run.tally.add(name, count);
        }
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }

    fn sge(&self, offset: u32, length: u32) -> sys::ibv_sge {
        sys::ibv_sge { addr: self.base + u64::from(offset), length, lkey: self.key }
    }

    /// Receives for messages that match nothing.
    fn receives(&mut self, offsets: &[u32]) -> Result<()> {
        let receives: Vec<_> = offsets.iter().map(|at| (self.id(), vec![self.sge(*at, plan::SLOT)])).collect();
        let (theirs, _) = crate::reference::post(&self.twins.libmlx5.objects(), 0, &receives);
        let ours = self.subject.receive(&receives);
        same(|| "receives posted".into(), theirs as u64, ours as u64)?;
        let mut new = self.pair.doorbell.handed_over();
        for (wqe, (id, _)) in new.iter_mut().zip(&receives) {
            wqe.id = self.subject.id(wqe.slot);
            same(|| "wr_id of a WQE handed over".into(), *id, wqe.id)?;
        }
        self.pair.compare_new(0, new, self.run.tally)
    }
}
