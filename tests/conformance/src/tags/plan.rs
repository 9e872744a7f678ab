//! The plan of a session of tag matching: the sizes of the list, and the operations on it.

use proptest::collection::vec;
use proptest::prelude::*;

use crate::plan::{Entry, Key, traffic};
use crate::sequence::{OPERATIONS, Plan, Settings, Traffic};
use crate::sizes::ARENA;

#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// Tags that the list holds.
    pub tags: u16,
    /// List operations that can be outstanding.
    pub max_ops: u32,
    /// Receives for messages that match nothing.
    pub slots: u32,
    pub qps: u32,
    pub settings: Settings,
    /// Few operations ask for a CQE.
    pub quiet: bool,
    /// Operations before the sequence starts, which bring the index of the command queue near its wrap.
    pub lead: u32,
    /// Unexpected messages before it, which bring their count near its wrap.
    pub unexpected: u32,
}

/// How far the count of unexpected messages that an operation carries lags, if it carries one.
pub type Lag = Option<u32>;

#[derive(Clone, Debug, PartialEq)]
pub enum ListOperation {
    Add {
        tag: u64,
        mask: u64,
        buffer: Entry,
        signaled: bool,
        lag: Lag,
    },
    /// Removes a receive that is not over, or whose last completions are to come.
    Del {
        index: u32,
        lag: Lag,
    },
    Sync {
        signaled: bool,
        lag: Lag,
    },
}

/// A message of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Send {
    pub kind: SendKind,
    pub tag: u64,
    pub context: u32,
    pub length: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendKind {
    Eager,
    NoTag,
    Rendezvous,
    /// A rendezvous that names memory which is not the sender's.
    Wild,
    /// Half of a header.
    Malformed,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// List operations posted in one call.
    List(Vec<ListOperation>),
    /// Receives for messages that match nothing, posted in one call.
    Receives {
        offsets: Vec<u32>,
    },
    Traffic(Traffic<Send>),
    Poll {
        budget: u32,
    },
}

/// Bytes of a receive for messages that match nothing: longer than any message.
pub const SLOT: u32 = 2048;
/// Longest payload.
const LONGEST: u32 = 1500;
/// Bytes of a tagged receive, except for small ones.
const ROOM: u32 = 1024;

const WRAP: u32 = 1 << 16;

fn lag() -> impl Strategy<Value = Lag> {
    prop_oneof![6 => Just(Some(0)), 2 => (1..4u32).prop_map(Some), 4 => Just(None)]
}

fn list_operation(quiet: bool) -> impl Strategy<Value = ListOperation> {
    let length = prop_oneof![2 => Just(0u32), 2 => 1..=64u32, 12 => ROOM..=SLOT];
    let key = prop_oneof![200 => Just(Key::Good), 1 => Just(Key::Unknown)];
    let buffer = (0..ARENA - SLOT, length, key).prop_map(|(offset, length, key)| Entry { offset, length, key });
    let mask = prop_oneof![4 => Just(u64::MAX), 1 => Just(0b10u64), 1 => Just(0u64)];
    let often = move || prop::bool::weighted(if quiet { 0.02 } else { 0.7 });
    // A remove is never silent.
    let dels = if quiet { 1 } else { 10 };
    prop_oneof![
        24 => (0..4u64, mask, buffer, often(), lag()).prop_map(|(tag, mask, buffer, signaled, lag)| {
            ListOperation::Add { tag: tag & mask, mask, buffer, signaled, lag }
        }),
        dels => (any::<u32>(), lag()).prop_map(|(index, lag)| ListOperation::Del { index, lag }),
        6 => (often(), lag()).prop_map(|(signaled, lag)| ListOperation::Sync { signaled, lag }),
    ]
}

fn send() -> impl Strategy<Value = Send> {
    let kind = prop_oneof![
        24 => Just(SendKind::Eager),
        4 => Just(SendKind::NoTag),
        8 => Just(SendKind::Rendezvous),
        1 => Just(SendKind::Wild),
        2 => Just(SendKind::Malformed),
    ];
    let length = prop_oneof![
        2 => Just(0u32),
        3 => 1..=64u32,
        4 => 65..=ROOM,
        1 => ROOM..=LONGEST,
    ];
    (kind, 0..4u64, any::<u32>(), length).prop_map(|(kind, tag, context, length)| Send { kind, tag, context, length })
}

fn operation(quiet: bool) -> impl Strategy<Value = Operation> {
    let budget = prop_oneof![3 => 1..=4u32, 3 => 5..=64u32, 2 => Just(1 << 16)];
    prop_oneof![
        36 => vec(list_operation(quiet), 1..=6).prop_map(Operation::List),
        12 => vec(0..ARENA - SLOT, 1..=12).prop_map(|offsets| Operation::Receives { offsets }),
        37 => traffic([24, 6, 4, 1, 2], vec(send(), 1..=4)).prop_map(Operation::Traffic),
        30 => budget.prop_map(|budget| Operation::Poll { budget }),
    ]
}

/// Sizes go round by the number of the session, so that each comes up often enough.
fn shape(number: u64) -> impl Strategy<Value = Shape> {
    let tags = [1, 2, 3, 7, 15, 31, 100][(number % 7) as usize];
    let (lead, unexpected, quiet) = (number % 8 == 1, number % 16 == 6, number % 4 == 3);
    let slots = prop_oneof![Just(63u32), Just(127)];
    (1..=64u32, slots, 1..=3u32, any::<[bool; 4]>(), 0..=12u32).prop_map(
        move |(max_ops, slots, qps, [large_cqe, scatter_to_cqe, small_mtu, lossy], back)| Shape {
            tags,
            max_ops,
            slots,
            qps,
            settings: Settings { large_cqe, scatter_to_cqe, small_mtu, lossy },
            quiet,
            lead: if lead { WRAP - back } else { 0 },
            unexpected: if unexpected { WRAP - back } else { 0 },
        },
    )
}

/// The session that is number `number` among those of tag matching.
pub fn plan(number: u64) -> impl Strategy<Value = Plan<Shape, Operation>> {
    shape(number).prop_flat_map(|shape| {
        vec(operation(shape.quiet), OPERATIONS).prop_map(move |operations| Plan { shape: shape.clone(), operations })
    })
}
