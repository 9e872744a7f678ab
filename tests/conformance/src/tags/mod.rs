//! Tag matching: the list that libmlx5 changes through a command queue pair of its own, and doorbell through
//! one made with the public API.

mod added;
mod list;
mod plan;
mod post;
mod reference;
mod request;
mod subject;
mod told;
mod twin;

use std::collections::VecDeque;
use std::time::Duration;

use proptest::strategy::Strategy;
use rdma_core_sys as sys;
use soft_mlx5::Faults;

use crate::case::fields;
use crate::difference::{Difference, Result, same, same_bytes};
use crate::memory::Arena;
use crate::pair::{Pair, same_completions};
use crate::queue::{CompletionQueue, WorkQueue};
use crate::session::{self, Kind, Memory, Outcome, Plan, Run};
use crate::tally;

use added::Added;
use list::CommandQueue;
use plan::{Operation, Send, SendKind, Shape};
use subject::Subject;
use twin::Twin;

pub use twin::HEADERS;

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
    doorbell: Twin,
    libmlx5: Twin,
    shape: Shape,
    arena: Arena,
    base: u64,
    key: u32,
    /// The lead is over: the memory that messages are written to is compared, and operations are counted.
    payload: bool,
    /// The SRQ.
    pair: Pair,
    /// The queue that libmlx5 posts list operations to, and that of doorbell.
    commands: [CommandQueue; 2],
    /// Those that are not used: of the other twin each.
    idle: [CommandQueue; 2],
    cqs: [CompletionQueue; 2],
    next_id: u64,
    /// Receives in the list, and such as have completions to come.
    added: Vec<Added>,
    /// Their `wr_id`, and the count that each carries or the operation before it.
    synchronisations: VecDeque<(u64, u16)>,
    /// Unexpected messages that were handled, and what the last operation said of them.
    handled: u32,
    carried: u32,
    carried_now: u16,
    /// What the last append said, which is what libmlx5 goes by.
    carried_by_add: u32,
    /// List operations since the last one that a CQE was asked for.
    silent: u32,
    failed: Vec<bool>,
    run: Run<'a>,
}

impl<'a> session::Case<'a> for Case<'a> {
    type Operation = Operation;

    fn run(&mut self) -> &mut Run<'a> {
        &mut self.run
    }

    fn lead(&mut self) -> Result<()> {
        self.receives(&vec![0; FIRST as usize])?;
        self.operations_lead()?;
        self.unexpected_lead()?;
        self.payload = true;
        if self.shape.lossy {
            let faults = Faults { loss: 0.02, reordering: 0.05, ..Faults::default() };
            for twin in [&self.libmlx5, &self.doorbell] {
                twin.device.set_faults(faults);
            }
        }
        self.compare(true)
    }

    fn apply(&mut self, _: u64, operation: &Operation) -> Result<()> {
        let qps = self.shape.qps as usize;
        let qp = |number: &u32| *number as usize % qps;
        match operation {
            Operation::List(operations) => self.list(operations),
            Operation::Receives { offsets } => self.receives(offsets),
            Operation::Send { qp: number, sends, anew, run } => {
                if *anew && self.failed[qp(number)] {
                    self.reset(qp(number))?;
                }
                self.send(qp(number), sends)?;
                if *run { self.work() } else { Ok(()) }
            }
            Operation::Run => self.work(),
            Operation::Wait { milliseconds } => {
                let time = Duration::from_millis((*milliseconds).into());
                for twin in [&self.libmlx5, &self.doorbell] {
                    twin.device.advance(time);
                }
                self.work()
            }
            Operation::Poll { budget } => self.poll(*budget),
            Operation::Fail { qp: number } => {
                self.failed[qp(number)] = true;
                for twin in [&self.libmlx5, &self.doorbell] {
                    twin.fail(qp(number));
                }
                self.work()
            }
            Operation::Reset { qp: number } => self.reset(qp(number)),
        }
    }

    fn compare(&mut self, thorough: bool) -> Result<()> {
        let (theirs, ours) = (self.libmlx5.queues(), self.doorbell.queues());
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

    fn count(&mut self) {
        self.run.tally.add(tally::RECEIVES, self.pair.doorbell.total);
        let consumed = self.cqs[1].record()[0];
        self.run.tally.add(tally::CQ_LAPS, u64::from(consumed / self.cqs[1].count()));
        self.run.tally.add(tally::PHASE_WRAPS, u64::from(self.handled >> 16));
    }
}

impl<'a> Case<'a> {
    fn new(shape: &Shape, memory: Memory, run: Run<'a>) -> Self {
        let Memory { arena, source, target, headers } = memory;
        // What ends a rendezvous arrives where other sessions write.
        let peers = [source, headers, target];
        let mut doorbell = Twin::new("twin_doorbell", shape, peers);
        let mut libmlx5 = Twin::new("twin_libmlx5", shape, peers);
        let key = libmlx5.register_arena(arena);
        assert_eq!(key, doorbell.register_arena(arena), "equal keys");
        let subject = Subject::new(&doorbell, shape, run.fault);
        let (theirs, ours) = (libmlx5.queues(), doorbell.queues());
        let slots = Some((shape.slots + 1).next_power_of_two());
        let srq = |queues| WorkQueue::of(queues, slots, &[]).pop().expect("the SRQ exists");
        let numbers = [&libmlx5, &doorbell].map(|twin| (twin.hidden, twin.number(twin.command)));
        Self {
            pair: Pair::new(srq(&theirs), srq(&ours)),
            commands: [
                CommandQueue::of(&theirs, numbers[0].0),
                CommandQueue::of(&ours, numbers[1].1),
            ],
            idle: [CommandQueue::of(&ours, numbers[1].0), CommandQueue::of(&theirs, numbers[0].1)],
            cqs: [CompletionQueue::of(&theirs), CompletionQueue::of(&ours)],
            subject,
            doorbell,
            libmlx5,
            shape: shape.clone(),
            arena: Arena::new(vec![arena, target]),
            base: arena.address(),
            key,
            payload: false,
            next_id: 1,
            added: Vec::new(),
            synchronisations: VecDeque::new(),
            handled: 0,
            carried: 0,
            carried_now: 0,
            carried_by_add: 0,
            silent: 0,
            failed: vec![false; shape.qps as usize],
            run,
        }
    }

    /// Brings the index of the command queue near its wrap.
    fn operations_lead(&mut self) -> Result<()> {
        let mut left = self.shape.lead;
        while left > 0 {
            let count = left.min(self.libmlx5.max_post).min(64);
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
            self.send(0, &vec![send; count as usize])?;
            // The two counts must not drift apart by half of their range.
            self.list(&[plan::ListOperation::Sync { signaled: true, lag: Some(0) }])?;
            self.work()?;
            self.poll(u32::MAX)?;
            self.receives(&vec![0; count as usize])?;
            left -= count;
        }
        Ok(())
    }

    /// Counts what the session does by itself, not what its lead does.
    fn tally(&mut self, name: &'static str, count: u64) {
        if self.payload {
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
        let receives: Vec<_> =
            offsets.iter().map(|offset| (self.id(), self.sge(*offset, plan::SLOT))).collect();
        let theirs = reference::receive(&self.libmlx5, &receives);
        let ours = self.subject.receive(&receives);
        same(|| "receives posted".into(), theirs as u64, ours as u64)?;
        let mut new = self.pair.doorbell.handed_over();
        for (wqe, (id, _)) in new.iter_mut().zip(&receives) {
            wqe.id = self.subject.id(wqe.slot);
            same(|| "wr_id of a WQE handed over".into(), *id, wqe.id)?;
        }
        self.pair.compare_new(0, new, self.run.tally)
    }

    fn send(&mut self, qp: usize, sends: &[Send]) -> Result<()> {
        // Both twins' peers read the same headers, which are written twice with the same bytes.
        let posted =
            [&mut self.libmlx5, &mut self.doorbell].map(|twin| twin.send(qp, sends) as u64);
        same(|| "sends that a peer took".into(), posted[0], posted[1])
    }

    /// Lets both devices work until there is nothing left to do.
    fn work(&mut self) -> Result<()> {
        self.on_both(|case| case.doorbell.work(), |case| case.libmlx5.work()).and_then(
            |(ours, theirs)| same(|| "steps of the device".into(), theirs as u64, ours as u64),
        )?;
        let (theirs, ours) = (self.libmlx5.poll_peers(), self.doorbell.poll_peers());
        for wc in theirs.iter().filter(|wc| wc.status != sys::IBV_WC_SUCCESS) {
            let failed = self.libmlx5.peer(wc.qp_num);
            self.failed[failed] = true;
        }
        same(|| "completions of peers".into(), theirs.len() as u64, ours.len() as u64)?;
        for (number, (theirs, ours)) in theirs.iter().zip(&ours).enumerate() {
            for ((name, theirs), (_, ours)) in fields(theirs).iter().zip(fields(ours)) {
                same(|| format!("completion {number} of peers: {name}"), *theirs, ours)?;
            }
        }
        Ok(())
    }

    /// Does something on both twins that writes to the memory of messages, and compares what is there.
    fn on_both<O, T>(
        &mut self,
        ours: impl FnOnce(&mut Self) -> O,
        theirs: impl FnOnce(&mut Self) -> T,
    ) -> Result<(O, T)> {
        if !self.payload {
            return Ok((ours(self), theirs(self)));
        }
        self.arena.remember();
        let ours = ours(self);
        self.arena.put_back();
        let theirs = theirs(self);
        match self.arena.compare() {
            Ok(bytes) => self.run.tally.add(tally::PAYLOAD, bytes as u64),
            Err((region, ours, theirs)) => {
                same_bytes(|| format!("message memory, region {region}"), &theirs, &ours)?;
            }
        }
        Ok((ours, theirs))
    }

    fn reset(&mut self, qp: usize) -> Result<()> {
        self.run.tally.add(tally::RESETS, 1);
        self.failed[qp] = false;
        for twin in [&self.libmlx5, &self.doorbell] {
            twin.reset(qp);
        }
        self.work()
    }
}
