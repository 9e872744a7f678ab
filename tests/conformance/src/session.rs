//! Kinds of sessions. Each session is made from a number, and has a shape and operations.

use std::fmt::Debug;

use proptest::strategy::Strategy;

use crate::difference::{self, Difference};
use crate::fault::Fault;
use crate::memory::Memory;
use crate::sequence::{Plan, Traffic};
use crate::tally::{self, Tally};
use crate::twins::{Twin, Twins};

/// The plan of a kind of session.
pub type PlanOf<K> = Plan<<K as Kind>::Shape, <K as Kind>::Operation>;

/// How a session ends: the error has the number of the operation, counted from 1; 0 is the lead.
pub type Outcome = Result<(), (u64, Difference)>;

/// A kind of sessions.
pub trait Kind {
    type Shape: Clone + Debug + PartialEq;
    type Operation: Clone + Debug + PartialEq;

    /// The session that is number `number` among those of this kind.
    fn plan(number: u64) -> impl Strategy<Value = PlanOf<Self>>
    where
        Self: Sized;

    /// Runs a session on twins of its own.
    fn run(plan: &PlanOf<Self>, memory: Memory, run: Run<'_>) -> Outcome
    where
        Self: Sized;
}

/// Arguments of a session besides its plan.
pub struct Run<'a> {
    pub tally: &'a mut Tally,
    /// Called with the number of each operation before it starts; the lead is number 0.
    pub progress: &'a mut dyn FnMut(u64),
    /// A fault of the subject, to see that it is noticed.
    pub fault: Option<Fault>,
}

/// Two twins in the middle of a session.
pub trait Case<'a> {
    type Operation;
    type Twin: Twin;
    fn parts(&mut self) -> (&mut Twins<Self::Twin>, &mut Run<'a>);
    /// Runs the lead, before the first operation.
    fn lead(&mut self) -> difference::Result<()>;
    fn apply(&mut self, number: u64, operation: &Self::Operation) -> difference::Result<()>;
    /// Compares the memory that the devices may read; with `thorough` also large queues.
    fn compare(&mut self, thorough: bool) -> difference::Result<()>;
    /// Takes a QP and its peer through RESET, on both twins.
    fn reset(&mut self, qp: usize) -> difference::Result<()>;
    /// Adds the laps of the counters to the tally.
    fn count(&mut self);

    /// Lets both devices work until there is nothing left to do.
    fn work(&mut self) -> difference::Result<()> {
        let (twins, run) = self.parts();
        twins.work(run.tally)
    }

    fn traffic(&mut self, traffic: &Traffic<<Self::Twin as Twin>::Send>) -> difference::Result<()> {
        let twins = self.parts().0;
        let qps = twins.qps();
        let qp = |number: &u32| *number as usize % qps;
        match traffic {
            Traffic::Send { qp: number, sends, restart, run } => {
                let qp = qp(number);
                if *restart && twins.has_failed(qp) {
                    self.reset(qp)?;
                }
                self.parts().0.send(qp, sends)?;
                if *run { self.work() } else { Ok(()) }
            }
            Traffic::Run => self.work(),
            Traffic::Wait { milliseconds } => {
                twins.wait(*milliseconds);
                self.work()
            }
            Traffic::Fail { qp: number } => {
                twins.fail(qp(number));
                self.work()
            }
            Traffic::Reset { qp: number } => self.reset(qp(number)),
        }
    }
}

/// Runs the operations of a session, comparing after each.
pub fn drive<'a, C: Case<'a>>(mut case: C, operations: &[C::Operation]) -> Outcome {
    case.parts().1.tally.add(tally::SESSIONS, 1);
    (case.parts().1.progress)(0);
    case.lead().map_err(|difference| (0, difference))?;
    for (number, operation) in (1..).zip(operations) {
        (case.parts().1.progress)(number);
        let outcome = case.apply(number, operation).and_then(|()| case.compare(false));
        outcome.map_err(|difference| (number, difference))?;
        case.parts().1.tally.add(tally::OPERATIONS, 1);
    }
    case.compare(true).map_err(|difference| (operations.len() as u64, difference))?;
    case.count();
    Ok(())
}
