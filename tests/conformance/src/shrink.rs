//! Making sessions from their numbers, and cutting down one that fails.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::case::Queues;
use crate::difference::Difference;
use crate::library;
use crate::memory::Memory;
use crate::sends::Sends;
use crate::sequence::Plan;
use crate::session::{Kind, Outcome, PlanOf, Run};
use crate::tags::Tags;
use crate::tally::Tally;

/// Longest time for leaving operations out of a failing session. It takes a second on an idle machine.
const CUT: Duration = Duration::from_secs(30);
/// Longest time for making the rest simpler. It usually runs out.
const SIMPLIFY: Duration = Duration::from_secs(1);

/// The plan of a session, as text.
pub struct Text {
    pub shape: String,
    pub operations: Vec<String>,
}

impl Text {
    fn of<K: Kind>(plan: &PlanOf<K>) -> Self {
        let operations = plan.operations.iter().map(|operation| format!("{operation:?}"));
        Self { shape: format!("{:?}", plan.shape), operations: operations.collect() }
    }
}

/// A session that fails.
pub struct Failure {
    /// Number of the operation, counted from 1; 0 is the lead.
    pub operation: u64,
    pub difference: Difference,
    /// The session, cut down.
    pub shrunk: Text,
    pub shrunk_difference: Difference,
}

/// The last of each `ROUND` sessions tests sends. One in `TAGS` of the others tests tag matching.
const ROUND: u64 = 11;
const TAGS: u64 = 5;

/// Calls a function for the kind of session `$session`, with its number among those of its kind.
macro_rules! of_kind {
    ($session:ident, $function:ident($($argument:expr),*)) => {
        match ($session / ROUND, $session % ROUND) {
            (number, 10) => $function::<Sends>(number, $session $(, $argument)*),
            (round, turn) => {
                let session = (ROUND - 1) * round + turn;
                match (session / TAGS, session % TAGS) {
                    (number, 4) if !library::is_dropped_in() => $function::<Tags>(number, $session $(, $argument)*),
                    _ => $function::<Queues>(session - session / TAGS, $session $(, $argument)*),
                }
            }
        }
    };
}

/// The session of this number, as text.
pub fn text(session: u64) -> Text {
    of_kind!(session, text_of())
}

fn text_of<K: Kind>(number: u64, session: u64) -> Text {
    Text::of::<K>(&tree::<K>(number, session).current())
}

/// The session of this number, and how to make it smaller.
fn tree<K: Kind>(number: u64, session: u64) -> impl ValueTree<Value = PlanOf<K>> {
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&session.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    K::plan(number).new_tree(&mut runner).expect("no plan is rejected")
}

/// Runs a plan. A panic counts as a difference.
fn attempt<K: Kind>(plan: &PlanOf<K>, memory: Memory, run: Run<'_>) -> Outcome {
    catch_unwind(AssertUnwindSafe(|| K::run(plan, memory, run))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or(panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        let text = text.unwrap_or_default();
        Err((u64::MAX, Difference::new("panic", "none", text)))
    })
}

/// Runs the session of this number, its first `limit` operations.
pub fn session(session: u64, limit: usize, memory: Memory, run: Run<'_>) -> Result<(), Box<Failure>> {
    of_kind!(session, session_of(limit, memory, run))
}

fn session_of<K: Kind>(
    number: u64,
    session: u64,
    limit: usize,
    memory: Memory,
    run: Run<'_>,
) -> Result<(), Box<Failure>> {
    let Run { tally, progress, fault } = run;
    let mut tree = tree::<K>(number, session);
    let mut plan = tree.current();
    plan.operations.truncate(limit);
    let mut last = 0;
    let mut noting = |operation| {
        last = operation;
        progress(operation);
    };
    let run = Run { tally, progress: &mut noting, fault };
    let Err((operation, difference)) = attempt::<K>(&plan, memory, run) else {
        return Ok(());
    };
    let operation = if operation == u64::MAX { last } else { operation };
    let fails = |plan: &PlanOf<K>| {
        let run = Run { tally: &mut Tally::default(), progress: &mut |_| {}, fault };
        attempt::<K>(plan, memory, run).err().map(|(_, difference)| difference)
    };
    let plan = Plan { operations: plan.operations[..operation as usize].to_vec(), ..plan };
    let mut shrunk = (plan, difference.clone());
    let kept = cut::<K>(&mut shrunk, &fails, Instant::now() + CUT);
    simplify::<K>(&mut tree, &kept, &mut shrunk, &fails, Instant::now() + SIMPLIFY);
    let (shrunk, shrunk_difference) = shrunk;
    let shrunk = Text::of::<K>(&shrunk);
    Err(Box::new(Failure { operation, difference, shrunk, shrunk_difference }))
}

/// Leaves operations out, many at once and then fewer. Returns the indices of those that are left.
fn cut<K: Kind>(
    shrunk: &mut (PlanOf<K>, Difference),
    fails: &impl Fn(&PlanOf<K>) -> Option<Difference>,
    deadline: Instant,
) -> Vec<usize> {
    let all = shrunk.0.clone();
    let mut kept: Vec<usize> = (0..all.operations.len()).collect();
    let mut chunk = kept.len().div_ceil(2);
    while chunk > 0 {
        let mut from = 0;
        while from < kept.len() && Instant::now() < deadline {
            let to = (from + chunk).min(kept.len());
            let mut fewer = kept.clone();
            fewer.drain(from..to);
            let operations = fewer.iter().map(|index| all.operations[*index].clone()).collect();
            let plan = Plan { shape: all.shape.clone(), operations };
            match fails(&plan) {
                Some(difference) => (kept, *shrunk) = (fewer, (plan, difference)),
                None => from = to,
            }
        }
        chunk = if chunk > 1 { chunk.div_ceil(2) } else { 0 };
    }
    kept
}

/// Makes the rest simpler: smaller numbers, shorter lists.
fn simplify<K: Kind>(
    tree: &mut impl ValueTree<Value = PlanOf<K>>,
    kept: &[usize],
    shrunk: &mut (PlanOf<K>, Difference),
    fails: &impl Fn(&PlanOf<K>) -> Option<Difference>,
    deadline: Instant,
) {
    let mut going = tree.simplify();
    while going && Instant::now() < deadline {
        let mut plan = tree.current();
        plan.operations = kept.iter().map(|index| plan.operations[*index].clone()).collect();
        if plan == shrunk.0 {
            // The change was to an operation that has been left out.
            going = tree.simplify();
            continue;
        }
        going = match fails(&plan) {
            Some(difference) => {
                *shrunk = (plan, difference);
                tree.simplify()
            }
            None => tree.complicate(),
        };
    }
}
