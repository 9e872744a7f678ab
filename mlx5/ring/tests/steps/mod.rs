//! Random steps.

use proptest::prelude::*;

use crate::device::random::{Random, steps};
use crate::device::subject::Subject;
use crate::device::world::World;

#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub slots: u32,
    pub stride: usize,
    pub cqes: u32,
    pub cqe_size: usize,
}

#[derive(Clone, Copy, Debug)]
pub enum Step {
    Post(u32),
    Load,
    /// The device completes the oldest outstanding WQEs.
    CompleteOldest(u32),
    /// The device completes any outstanding WQE.
    CompleteAny(u32),
    /// The device completes WQEs from any outstanding one on as a compressed block.
    Compress(u32, u32),
    Intrude,
    Poll(u32, [u32; 3]),
    PollEach(u32, [u32; 3]),
    PollCursor(u32, [u32; 2]),
}

/// How often a message is recycled, taken and held.
fn weights() -> impl Strategy<Value = [u32; 3]> {
    prop_oneof![
        3 => Just([1, 0, 0]),
        2 => Just([0, 1, 0]),
        1 => Just([0, 0, 1]),
        2 => Just([4, 4, 1]),
        1 => Just([1, 1, 4]),
    ]
}

/// The same of a cursor, which holds none.
fn two_weights() -> impl Strategy<Value = [u32; 2]> {
    prop_oneof![3 => Just([1, 0]), 2 => Just([0, 1]), 2 => Just([1, 1])]
}

pub fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (1u32..70).prop_map(Step::Post),
        3 => (1u32..4).prop_map(Step::Post),
        2 => Just(Step::Load),
        4 => (1u32..40).prop_map(Step::CompleteOldest),
        4 => any::<u32>().prop_map(Step::CompleteAny),
        3 => (any::<u32>(), 2u32..70).prop_map(|(index, count)| Step::Compress(index, count)),
        1 => Just(Step::Intrude),
        6 => (0u32..20, weights()).prop_map(|(budget, weights)| Step::Poll(budget, weights)),
        2 => (1u32..9, weights()).prop_map(|(budget, weights)| Step::PollEach(budget, weights)),
        5 => (0u32..20, two_weights()).prop_map(|(budget, weights)| Step::PollCursor(budget, weights)),
    ]
}

pub fn run<Q: Subject>(setup: Setup, seed: u64, steps: &[Step]) {
    let Setup { slots, stride, cqes, cqe_size } = setup;
    let mut random = Random::new(seed);
    let mut world = World::<Q>::new(slots, stride, cqes, cqe_size);
    for step in steps {
        apply(&mut world, *step, &mut random);
    }
    world.finish(&mut random);
}

fn apply<Q: Subject>(world: &mut World<Q>, step: Step, random: &mut Random) {
    match step {
        Step::Post(count) => world.post(count, random),
        Step::Load => world.load(random),
        Step::CompleteOldest(count) => (0..count).for_each(|_| world.complete(0, random)),
        Step::CompleteAny(index) => world.complete(index, random),
        Step::Compress(index, count) => {
            world.compress(index, count, random);
        }
        Step::Intrude => world.intrude(random),
        Step::Poll(budget, weights) => {
            world.poll(budget, weights, random);
        }
        Step::PollEach(budget, weights) => world.poll_each(budget, weights, random),
        Step::PollCursor(budget, weights) => world.poll_cursor(budget, weights, random),
    }
}

/// Runs until `messages` have been received, in phases of different order and fate.
pub fn long_run<Q: Subject>(setup: Setup, messages: u32, random: &mut Random) {
    let Setup { slots, stride, cqes, cqe_size } = setup;
    let mut world = World::<Q>::new(slots, stride, cqes, cqe_size);
    let goal = steps(messages);
    let mut received = 0;
    while received < goal {
        let weights = [[1, 0, 0], [0, 1, 0], [6, 6, 1], [1, 1, 4]][random.below(4) as usize];
        let disorder = [0, 1, 8][random.below(3) as usize];
        for _ in 0..16 {
            world.post(1 + random.below(slots), random);
            if random.once_in(2) {
                world.load(random);
            }
            if random.once_in(3) {
                world.compress(random.next(), 2 + random.below(cqes + 1), random);
            }
            for _ in 0..1 + random.below(cqes) {
                let any = random.below(8) < disorder;
                let index = if any { random.next() } else { 0 };
                world.complete(index, random);
            }
            received += world.poll(1 + random.below(2 * cqes), weights, random);
            if let [recycled, taken, 0] = weights {
                world.poll_cursor(random.below(cqes), [recycled, taken], random);
            }
            world.poll(0, [4, 4, 1], random);
        }
        // A receive queue stands still as long as the slot at its head is held.
        world.give_all_back(random);
    }
    world.finish(random);
}
