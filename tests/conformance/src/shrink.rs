//! Making sessions from their numbers, and cutting down one that fails.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::case::{self, Memory, Run};
use crate::difference::Difference;
use crate::plan::{self, Plan};
use crate::tally::Tally;

/// How long a failing session is cut down.
const PATIENCE: Duration = Duration::from_secs(6);

/// A session that fails.
pub struct Failure {
    /// Number of the operation, counted from 1; 0 is the lead.
    pub operation: u64,
    pub difference: Difference,
    /// What is left of the session.
    pub shrunk: Plan,
    pub shrunk_difference: Difference,
}

/// The session of this number, and how to make it smaller.
pub fn tree(session: u64) -> impl ValueTree<Value = Plan> {
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&session.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    plan::plan(session).new_tree(&mut runner).expect("no plan is rejected")
}

/// Runs a plan. A panic counts as a difference.
fn attempt(plan: &Plan, memory: Memory, run: Run<'_>) -> Result<(), (u64, Difference)> {
    catch_unwind(AssertUnwindSafe(|| case::run(plan, memory, run))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or(panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        let text = text.unwrap_or_default();
        Err((u64::MAX, Difference::new("panic", "none", text)))
    })
}

/// Runs the session of this number, its first `limit` operations.
pub fn session(
    session: u64,
    limit: usize,
    memory: Memory,
    tally: &mut Tally,
    progress: &mut dyn FnMut(u64),
    wrong_length: bool,
) -> Result<(), Box<Failure>> {
    let mut tree = tree(session);
    let mut plan = tree.current();
    plan.operations.truncate(limit);
    let mut last = 0;
    let mut noting = |operation| {
        last = operation;
        progress(operation);
    };
    let Err((operation, difference)) =
        attempt(&plan, memory, Run { tally, progress: &mut noting, wrong_length })
    else {
        return Ok(());
    };
    let operation = if operation == u64::MAX { last } else { operation };
    let fails = |plan: &Plan| {
        let run = Run { tally: &mut Tally::default(), progress: &mut |_| {}, wrong_length };
        attempt(plan, memory, run).err().map(|(_, difference)| difference)
    };
    let deadline = Instant::now() + PATIENCE;
    let plan = Plan { operations: plan.operations[..operation as usize].to_vec(), ..plan };
    let mut shrunk = (plan, difference.clone());
    let kept = cut(&mut shrunk, &fails, deadline);
    simplify(&mut tree, &kept, &mut shrunk, &fails, deadline);
    let (shrunk, shrunk_difference) = shrunk;
    Err(Box::new(Failure { operation, difference, shrunk, shrunk_difference }))
}

/// Leaves operations out, many at once and then fewer. Returns the indices of those that are left.
fn cut(
    shrunk: &mut (Plan, Difference),
    fails: &impl Fn(&Plan) -> Option<Difference>,
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

/// Makes what is left simpler: smaller numbers, shorter lists.
fn simplify(
    tree: &mut impl ValueTree<Value = Plan>,
    kept: &[usize],
    shrunk: &mut (Plan, Difference),
    fails: &impl Fn(&Plan) -> Option<Difference>,
    deadline: Instant,
) {
    let mut going = tree.simplify();
    while going && Instant::now() < deadline {
        let mut plan = tree.current();
        plan.operations = kept.iter().map(|index| plan.operations[*index].clone()).collect();
        if plan == shrunk.0 {
            // It was an operation that has been left out.
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
