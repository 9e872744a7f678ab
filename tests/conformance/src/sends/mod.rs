//! Sends: `ibv_post_send` and `ibv_poll_cq` on one twin, the ring of doorbell on the other, or the same functions of
//! the drop-in.

mod build;
mod plan;
mod post;
mod queue;
mod request;
mod subject;
mod twin;

use std::collections::VecDeque;

use proptest::strategy::Strategy;
use rdma_core_sys as sys;

use crate::difference::{Difference, Result, same};
use crate::memory::Memory;
use crate::pair::same_completions;
use crate::queue::CompletionQueue;
use crate::sequence::Plan;
use crate::session::{self, Kind, Outcome, Run};
use crate::subject::status;
use crate::twins::Twins;
use crate::verbs::{self, fields, same_fields};
use crate::{library, tally};

use plan::{Operation, Shape};
use queue::Queue;
use request::Request;
use subject::Subject;
use twin::Twin;

/// Sessions of sends.
pub struct Sends;

impl Kind for Sends {
    type Shape = Shape;
    type Operation = Operation;

    fn plan(number: u64) -> impl Strategy<Value = Plan<Shape, Operation>> {
        plan::plan(number)
    }

    fn run(plan: &Plan<Shape, Operation>, memory: Memory, run: Run<'_>) -> Outcome {
        session::drive(Case::new(&plan.shape, memory, run), &plan.operations)
    }
}

/// A queue pair under test, as the session knows it.
struct Sender {
    queues: [Queue; 2],
    /// Requests that no CQE has retired.
    outstanding: VecDeque<Request>,
    /// Blocks and requests since the last one that asked for a CQE.
    silent: [u32; 2],
    /// Keys of the windows of types 1 and 2, if there are any.
    keys: [u32; 2],
    /// Whether that of type 2 may be bound: what is free can be invalidated, too.
    is_bound: bool,
}

struct Case<'a> {
    // Before its twin.
    /// The ring; none with the drop-in.
    subject: Option<Subject>,
    twins: Twins<Twin>,
    shape: Shape,
    memory: Memory,
    senders: Vec<Sender>,
    cqs: [CompletionQueue; 2],
    next_id: u64,
    run: Run<'a>,
}

impl<'a> session::Case<'a> for Case<'a> {
    type Operation = Operation;
    type Twin = Twin;

    fn parts(&mut self) -> (&mut Twins<Twin>, &mut Run<'a>) {
        (&mut self.twins, &mut self.run)
    }

    fn lead(&mut self) -> Result<()> {
        self.blocks_lead()?;
        self.twins.begin(&self.shape.settings);
        self.compare(true)
    }

    fn apply(&mut self, _: u64, operation: &Operation) -> Result<()> {
        match operation {
            Operation::Post { qp, restart, requests } => {
                let qp = *qp as usize % self.senders.len();
                if *restart && self.twins.has_failed(qp) {
                    self.reset(qp)?;
                }
                self.post(qp, requests)
            }
            Operation::Traffic(traffic) => self.traffic(traffic),
            Operation::Poll { budget } => self.poll(*budget),
        }
    }

    fn compare(&mut self, _: bool) -> Result<()> {
        let (theirs, ours) = self.twins.queues();
        let cqs = [&self.cqs[0], &self.cqs[1]];
        same_completions(cqs, [&theirs, &ours], self.run.tally, |_| {})
    }

    fn reset(&mut self, qp: usize) -> Result<()> {
        self.run.tally.add(tally::SEND_RESETS, 1);
        self.twins.renew(qp);
        self.twins.libmlx5.reset(qp);
        self.twins.doorbell.reset(qp);
        let back = self.subject.as_mut().map(|subject| subject.reset(qp));
        let sender = &mut self.senders[qp];
        let expected: Vec<_> = sender.outstanding.drain(..).map(|request| request.id).collect();
        if let Some(back) = back.filter(|back| *back != expected) {
            let texts = (format!("{expected:?}"), format!("{back:?}"));
            return Err(Difference::new("requests that a reset gives back", texts.0, texts.1));
        }
        (sender.silent, sender.is_bound) = ([0; 2], true);
        for queue in &mut sender.queues {
            queue.reset();
        }
        self.work()
    }

    fn count(&mut self) {
        let consumed = self.cqs[1].record()[0];
        self.run.tally.add(tally::CQ_LAPS, u64::from(consumed / self.cqs[1].count()));
    }
}

impl<'a> Case<'a> {
    fn new(shape: &Shape, memory: Memory, run: Run<'a>) -> Self {
        // Atomics find small numbers.
        memory.target.write(&vec![0; memory.target.len()]);
        let doorbell = Twin::new("twin_doorbell", shape, &memory);
        let libmlx5 = library::make(|| Twin::new("twin_libmlx5", shape, &memory));
        let written = doorbell.written.into_iter().zip(libmlx5.written).map(|(ours, theirs)| [ours, theirs]);
        let written = written.chain([[memory.headers; 2]]).collect();
        assert_eq!(libmlx5.keys, doorbell.keys, "equal keys");
        let keys = |twin: &Twin| (0..shape.qps as usize).map(|qp| keys_of(twin, qp)).collect::<Vec<_>>();
        assert_eq!(keys(&libmlx5), keys(&doorbell), "equal keys of windows");
        let subject = (!library::is_dropped_in()).then(|| Subject::new(&doorbell, shape, run.fault));
        let (theirs, ours) = (libmlx5.base.queues(), doorbell.base.queues());
        let cqs = [
            CompletionQueue::of_sends(&theirs, libmlx5.base.qp_num(0)),
            CompletionQueue::of_sends(&ours, doorbell.base.qp_num(0)),
        ];
        let queue = |twin: &Twin, qp: usize| Queue::new(&verbs::send_queue(twin.base.qps[qp]));
        let senders = (0..shape.qps as usize)
            .map(|qp| Sender {
                queues: [queue(&libmlx5, qp), queue(&doorbell, qp)],
                outstanding: VecDeque::new(),
                silent: [0; 2],
                keys: keys_of(&doorbell, qp),
                is_bound: false,
            })
            .collect();
        Self {
            subject,
            twins: Twins::with_regions(libmlx5, doorbell, written),
            shape: shape.clone(),
            memory,
            senders,
            cqs,
            next_id: 1,
            run,
        }
    }

    /// Takes at most `budget` completions from both.
    fn poll(&mut self, budget: u32) -> Result<()> {
        let theirs = verbs::poll(self.twins.libmlx5.cq, budget);
        let Some(subject) = &mut self.subject else { return self.poll_drop_in(&theirs, budget) };
        let ours = subject.poll(budget);
        same(|| "completions of sends".into(), theirs.len() as u64, ours.len() as u64)?;
        for (wc, reported) in theirs.iter().zip(ours) {
            let Some(reported) = reported else {
                return Err(Difference::new("CQE of a send queue", "a completion", "stray"));
            };
            self.completed(wc, &reported)?;
        }
        Ok(())
    }

    /// Takes as many from the drop-in, and compares all that they say.
    fn poll_drop_in(&mut self, theirs: &[sys::ibv_wc], budget: u32) -> Result<()> {
        let ours = verbs::poll(self.twins.doorbell.cq, budget);
        same(|| "completions of sends".into(), theirs.len() as u64, ours.len() as u64)?;
        for (theirs, ours) in theirs.iter().zip(&ours) {
            let field = |name: &str| format!("completion of wr_id {:#x}: {name}", theirs.wr_id);
            same_fields(field, &fields(theirs), &fields(ours))?;
            let numbers = 0..self.senders.len();
            let qp = numbers.into_iter().find(|qp| self.twins.libmlx5.base.qp_num(*qp) == theirs.qp_num);
            let qp = qp.ok_or_else(|| Difference::new("qp_num", "one of ours", theirs.qp_num))?;
            let over = self.over(qp, theirs.wr_id)?;
            self.count_completion(qp, theirs.status, over.len());
        }
        Ok(())
    }

    /// Returns the requests that the completion of this one retires.
    fn over(&mut self, qp: usize, wr_id: u64) -> Result<Vec<Request>> {
        let sender = &mut self.senders[qp];
        let upto = sender.outstanding.iter().position(|request| request.id == wr_id);
        let Some(upto) = upto else {
            return Err(Difference::new("wr_id of a completion", wr_id, "not outstanding"));
        };
        Ok(sender.outstanding.drain(..=upto).collect())
    }

    fn count_completion(&mut self, qp: usize, status: sys::ibv_wc_status, over: usize) {
        let tally = &mut *self.run.tally;
        match status {
            sys::IBV_WC_SUCCESS => {
                tally.add(tally::SEND_DONE, 1);
                tally.add(tally::SEND_DONE_SILENT, over as u64 - 1);
            }
            sys::IBV_WC_WR_FLUSH_ERR => {
                tally.add(tally::SEND_FLUSHED, 1);
                self.twins.note_failure(qp);
            }
            _ => {
                tally.add(tally::SEND_FAILED, 1);
                self.twins.note_failure(qp);
            }
        }
    }

    /// Compares a completion with that of libibverbs.
    fn completed(&mut self, wc: &sys::ibv_wc, reported: &subject::Reported) -> Result<()> {
        let over = self.over(reported.qp, wc.wr_id)?;
        let ids: Vec<_> = over.iter().map(|request| request.id).collect();
        if ids != reported.retired {
            let texts = (format!("{ids:?}"), format!("{:?}", reported.retired));
            return Err(Difference::new("requests that a CQE retires", texts.0, texts.1));
        }
        let named = over.last().expect("the named one");
        let field = |name: &str| format!("completion of wr_id {:#x}: {name}", wc.wr_id);
        same(|| field("qp_num"), wc.qp_num.into(), reported.completion.qpn.into())?;
        match reported.completion.result {
            Ok(bytes) => {
                same(|| field("status"), wc.status.into(), sys::IBV_WC_SUCCESS.into())?;
                same(|| field("opcode"), wc.opcode.into(), named.wc_opcode().into())?;
                let brings = matches!(named.kind, plan::Kind::Read);
                if brings {
                    same(|| field("byte_len"), wc.byte_len.into(), bytes.into())?;
                }
            }
            Err(failure) => {
                let ours = status(failure.syndrome);
                same(|| field("status"), wc.status.into(), ours.into())?;
                same(|| field("vendor_err"), wc.vendor_err.into(), failure.vendor.into())?;
            }
        }
        self.count_completion(reported.qp, wc.status, over.len());
        Ok(())
    }
}

/// Returns the keys of the windows of a queue pair; 0 if it has none.
fn keys_of(twin: &Twin, qp: usize) -> [u32; 2] {
    // SAFETY: windows live as long as their twin.
    twin.windows.get(qp).map_or([0; 2], |of| of.windows.map(|window| unsafe { (*window).rkey }))
}
