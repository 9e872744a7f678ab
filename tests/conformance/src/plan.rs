//! The plan of a session: the queues that both twins get, and the operations on them.
//!
//! Every index in an operation is taken modulo the number of objects. So each part of a sequence is a
//! sequence too, and a failing sequence can be cut down.

use std::fmt::Debug;
use std::ops::RangeInclusive;

use proptest::collection::vec;
use proptest::prelude::*;

use crate::library;
use crate::opaque::Backing;
use crate::sequence::{OPERATIONS, Plan, Settings, Traffic};
use crate::sizes::{ARENA, BUFFER, LONGEST};

/// The layer of doorbell that is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// The ring itself, through `as_direct`: any SGEs, messages held over batches.
    Ring,
    /// `Receiver` with buffers of a pool.
    Safe,
    /// libibverbs, with the drop-in under it.
    DropIn,
}

/// The queues of a session.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    pub layer: Layer,
    /// How the memory of scatter lists is registered.
    pub backing: Backing,
    /// One SRQ for all QPs, or a receive queue for each.
    pub shared: bool,
    pub qps: u32,
    pub max_wr: u32,
    pub max_sge: u32,
    /// A buffer in every slot of the SRQ, also in the slot that stays unposted.
    pub spare: bool,
    pub settings: Settings,
    /// Messages received before the sequence starts, which bring the counters near their wrap.
    pub lead: u32,
}

/// Key of an entry of a scatter list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    Good,
    /// A key of no memory region.
    Unknown,
    /// The key of a region that the device must not write.
    ReadOnly,
}

/// An entry of a scatter list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub offset: u32,
    pub length: u32,
    pub key: Key,
}

/// How a message ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Give {
    /// The slot is posted again with its buffer.
    Recycle,
    /// The slot is given back empty.
    Take,
    /// The message is given back later.
    Hold,
}

/// A message of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Send {
    pub kind: SendKind,
    pub length: u32,
    pub solicited: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendKind {
    Plain,
    Immediate(u32),
    WriteImmediate(u32),
}

#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// Receives posted in one call, each with its scatter list.
    Post {
        queue: u32,
        lists: Vec<Vec<Entry>>,
    },
    /// Receives of one entry until the queue is full, and one more that must fail.
    Fill {
        queue: u32,
        length: u32,
    },
    Traffic(Traffic<Send>),
    Poll {
        budget: u32,
        give: Vec<Give>,
    },
    /// One of the held messages is given back.
    GiveBack {
        index: u32,
        recycle: bool,
    },
    /// An event is asked for when the next message arrives, or the next solicited one.
    Arm {
        solicited_only: bool,
    },
}

/// Sizes of receive queues and of SRQs: every power of two that the device has.
const SIZES: u64 = 16;

/// Counters of 16 bits wrap.
const WRAP: u32 = 1 << 16;

fn entry() -> impl Strategy<Value = Entry> {
    let length = prop_oneof![1 => Just(0u32), 3 => 1..=64u32, 30 => 900..=4096u32];
    let key = prop_oneof![
        240 => Just(Key::Good),
        1 => Just(Key::Unknown),
        1 => Just(Key::ReadOnly),
    ];
    (0..ARENA - 4096, length, key).prop_map(|(offset, length, key)| Entry { offset, length, key })
}

fn lists(max_sge: u32) -> impl Strategy<Value = Vec<Vec<Entry>>> {
    let fits = prop_oneof![1 => 0..=max_sge, 20 => 1..=max_sge].prop_flat_map(|count| vec(entry(), count as usize));
    // The stride has room for up to twice as many as were asked for.
    let may_not = vec(entry(), max_sge as usize + 1..=2 * max_sge as usize + 2);
    vec(prop_oneof![20 => fits, 1 => may_not], 1..=8)
}

fn send() -> impl Strategy<Value = Send> {
    let kind = prop_oneof![
        6 => Just(SendKind::Plain),
        2 => any::<u32>().prop_map(SendKind::Immediate),
        1 => any::<u32>().prop_map(SendKind::WriteImmediate),
    ];
    let length = prop_oneof![
        2 => Just(0u32),
        4 => 1..=32u32,
        3 => 33..=64u32,
        4 => 65..=250u32,
        2 => 251..=900u32,
        1 => 901..=LONGEST,
    ];
    (kind, length, any::<bool>()).prop_map(|(kind, length, solicited)| Send { kind, length, solicited })
}

/// Frequencies of sends, runs, waits, failures and resets, and the messages.
pub fn traffic<S: Debug + Clone>(
    [send, run, wait, fail, reset]: [u32; 5],
    sends: impl Strategy<Value = Vec<S>>,
) -> impl Strategy<Value = Traffic<S>> {
    let often = || prop::bool::weighted(0.7);
    prop_oneof![
        send => (any::<u32>(), sends, often(), often())
            .prop_map(|(qp, sends, restart, run)| Traffic::Send { qp, sends, restart, run }),
        run => Just(Traffic::Run),
        wait => (1..=40u32).prop_map(|milliseconds| Traffic::Wait { milliseconds }),
        fail => any::<u32>().prop_map(|qp| Traffic::Fail { qp }),
        reset => any::<u32>().prop_map(|qp| Traffic::Reset { qp }),
    ]
}

fn give(shape: &Shape) -> BoxedStrategy<Vec<Give>> {
    let in_order = prop_oneof![
        Just(vec![Give::Recycle]),
        Just(vec![Give::Take]),
        vec(prop_oneof![Just(Give::Recycle), Just(Give::Take)], 1..6),
    ];
    // A receive of libibverbs is over with its completion.
    if shape.layer == Layer::DropIn {
        return Just(vec![Give::Take]).boxed();
    }
    // A safe message is lent: it cannot be held.
    if shape.layer == Layer::Safe {
        return in_order.boxed();
    }
    let any = vec(prop_oneof![Just(Give::Recycle), Just(Give::Take), Just(Give::Hold)], 1..6);
    prop_oneof![9 => in_order, 1 => any].boxed()
}

fn operation(shape: &Shape) -> impl Strategy<Value = Operation> + use<> {
    let budget = prop_oneof![3 => 1..=4u32, 3 => 5..=64u32, 1 => Just(1 << 16)];
    prop_oneof![
        24 => (any::<u32>(), lists(shape.max_sge))
            .prop_map(|(queue, lists)| Operation::Post { queue, lists }),
        2 => (any::<u32>(), 0..=BUFFER)
            .prop_map(|(queue, length)| Operation::Fill { queue, length }),
        44 => traffic([30, 4, 6, 1, 3], vec(send(), 1..=6)).prop_map(Operation::Traffic),
        30 => (budget, give(shape)).prop_map(|(budget, give)| Operation::Poll { budget, give }),
        3 => (any::<u32>(), any::<bool>())
            .prop_map(|(index, recycle)| Operation::GiveBack { index, recycle }),
        4 => any::<bool>().prop_map(|solicited_only| Operation::Arm { solicited_only }),
    ]
}

/// Shapes go round by the number of the session, so that each kind comes up often enough.
fn shape(session: u64) -> impl Strategy<Value = Shape> {
    let layer = match session % 2 {
        _ if library::is_dropped_in() => Layer::DropIn,
        0 => Layer::Ring,
        _ => Layer::Safe,
    };
    // Small queues are full and wrap most often; every size has its turn.
    let (turn, each_size) = (session / 2, session / 6);
    // Each buffer of a pool is compared after each step.
    let sizes = if layer == Layer::Safe { 7 } else { SIZES };
    let (log, shared) = if turn % 3 == 2 {
        ((each_size % sizes) as u32, (each_size + each_size / sizes) % 2 == 1)
    } else {
        ((turn % 5) as u32, turn / 5 % 3 != 0)
    };
    let lead = log >= 4 && (if shared { turn % 8 == 0 } else { turn % 6 < 2 });
    let qps: RangeInclusive<u32> = match (layer, shared) {
        // The ring layer drives one queue.
        (Layer::Ring, false) => 1..=1,
        _ => 1..=4,
    };
    // libmlx5 makes no receive queue of less than 64 bytes.
    let max_sge = if log == 0 { 4..=6 } else { 1..=6u32 };
    let backing = if layer == Layer::Safe { Backing::Ordinary } else { Backing::of_receives(turn / 3) };
    (qps, max_sge, any::<[bool; 5]>(), 0..=12u32).prop_map(
        move |(qps, max_sge, [large_cqe, scatter_to_cqe, spare, small_mtu, lossy], back)| Shape {
            layer,
            backing,
            shared,
            qps,
            // An SRQ has one slot that stays unposted.
            max_wr: if shared { (1 << log) - u32::from(log > 0) } else { 1 << log },
            max_sge,
            spare: spare && shared && layer != Layer::DropIn,
            settings: Settings { large_cqe, scatter_to_cqe: scatter_to_cqe && !backing.is_opaque(), small_mtu, lossy },
            lead: if lead { WRAP - back } else { 0 },
        },
    )
}

/// The session of this number.
pub fn plan(session: u64) -> impl Strategy<Value = Plan<Shape, Operation>> {
    shape(session).prop_flat_map(|shape| {
        vec(operation(&shape), OPERATIONS).prop_map(move |operations| Plan { shape: shape.clone(), operations })
    })
}
