//! The plan of a session of sends: the queues, and the requests that are posted to them.

use proptest::collection::vec;
use proptest::prelude::*;

use crate::library;
use crate::opaque::Backing;
use crate::plan::{Entry, Key, traffic};
use crate::sequence::{OPERATIONS, Plan, Settings, Traffic};
use crate::sizes::LONGEST;

#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// Datagrams, or connections.
    pub datagrams: bool,
    /// Connections bind memory windows.
    pub windows: bool,
    /// How the memory of requests and of the peers is registered.
    pub backing: Backing,
    pub qps: u32,
    pub max_wr: u32,
    pub max_sge: u32,
    pub max_inline: u32,
    pub settings: Settings,
    /// `MLX5_SHUT_UP_BF` and `MLX5_POST_SEND_PREFER_BF`.
    pub shut_up_bf: bool,
    pub prefer_bf: bool,
    /// Few requests ask for a CQE.
    pub quiet: bool,
    /// Blocks that are posted before the sequence starts, which bring the index near its wrap.
    pub lead: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Send,
    SendImmediate(u32),
    SendInvalidate(u32),
    Write,
    WriteImmediate(u32),
    Read,
    FetchAdd(u64),
    CompareSwap(u64, u64),
    /// Binds a window of type 2, or invalidates its key if it may be bound.
    Window,
    /// Binds a window of type 1.
    WindowType1,
    /// Unbinds it.
    UnbindType1,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    pub kind: Kind,
    pub pieces: Vec<Entry>,
    /// Where the peer's memory is, and whether its key is good.
    pub at: u32,
    pub good_key: bool,
    pub inline: bool,
    pub signaled: bool,
    pub solicited: bool,
    pub fence: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// Requests posted in one call.
    Post {
        qp: u32,
        restart: bool,
        requests: Vec<Request>,
    },
    Traffic(Traffic<()>),
    Poll {
        budget: u32,
    },
}

/// Bytes of a piece at most.
const PIECE: u32 = 700;
/// Places in the memory of the peer and in that of results.
const PLACES: u32 = 64;

/// Where pieces end at most.
pub const END: u32 = LONGEST;

const WRAP: u32 = 1 << 16;

fn kind(datagrams: bool, windows: bool) -> BoxedStrategy<Kind> {
    let send = prop_oneof![
        3 => Just(Kind::Send),
        2 => any::<u32>().prop_map(Kind::SendImmediate),
    ];
    if datagrams {
        return send.boxed();
    }
    let often = if windows { 1 } else { 0 };
    prop_oneof![
        80 * often => Just(Kind::Window),
        20 * often => Just(Kind::WindowType1),
        10 * often => Just(Kind::UnbindType1),
        80 => send,
        2 => any::<u32>().prop_map(Kind::SendInvalidate),
        60 => Just(Kind::Write),
        20 => any::<u32>().prop_map(Kind::WriteImmediate),
        50 => Just(Kind::Read),
        20 => any::<u64>().prop_map(Kind::FetchAdd),
        // The number to compare with sometimes equals the one in memory.
        20 => (0..3u64, any::<u64>()).prop_map(|(compare, swap)| Kind::CompareSwap(compare, swap % 3)),
    ]
    .boxed()
}

fn request(shape: &Shape) -> impl Strategy<Value = Request> + use<> {
    let length = prop_oneof![1 => Just(0u32), 4 => 1..=64u32, 4 => 65..=PIECE];
    let key = prop_oneof![300 => Just(Key::Good), 1 => Just(Key::Unknown)];
    let piece = (0..LONGEST - PIECE, length, key).prop_map(|(offset, length, key)| Entry { offset, length, key });
    let pieces = vec(piece, 0..=shape.max_sge as usize);
    let often = if shape.quiet { 0.05 } else { 0.5 };
    let flags = (any::<bool>(), prop::bool::weighted(often), any::<bool>(), any::<bool>());
    (kind(shape.datagrams, shape.windows), pieces, 0..PLACES, prop::bool::weighted(0.995), flags).prop_map(
        |(kind, pieces, at, good_key, (inline, signaled, solicited, fence))| Request {
            kind,
            pieces,
            at: 8 * at,
            good_key,
            inline,
            signaled,
            solicited,
            fence,
        },
    )
}

fn operation(shape: &Shape) -> impl Strategy<Value = Operation> + use<> {
    let budget = prop_oneof![3 => 1..=4u32, 3 => 5..=64u32, 2 => Just(1 << 16)];
    let requests = prop_oneof![
        1 => vec(request(shape), 1..=1),
        1 => vec(request(shape), 2..=8),
    ];
    let often = prop::bool::weighted(0.7);
    prop_oneof![
        40 => (any::<u32>(), often, requests)
            .prop_map(|(qp, restart, requests)| Operation::Post { qp, restart, requests }),
        30 => traffic([0, 24, 6, 1, 2], Just(Vec::new())).prop_map(Operation::Traffic),
        30 => budget.prop_map(|budget| Operation::Poll { budget }),
    ]
}

/// Sizes go round by the number of the session, so that each comes up often enough.
fn shape(number: u64) -> impl Strategy<Value = Shape> {
    let max_wr = [1, 2, 3, 5, 8, 16, 64][(number % 7) as usize];
    let (datagrams, lead, quiet) = (number % 4 == 3, number % 8 == 1, number % 3 == 2);
    let backing = Backing::of_sends(number);
    // A dma-buf and memory of the adapter give no IBV_ACCESS_MW_BIND.
    let has_windows = matches!(backing, Backing::Ordinary | Backing::Translated);
    let windows = has_windows && !datagrams && number % 5 < 2;
    let inline = prop_oneof![Just(0u32), Just(12), 13..=250u32, Just(400)];
    let bf = (any::<bool>(), prop::bool::weighted(0.2), prop::bool::weighted(0.7));
    (1..=2u32, 1..=4u32, inline, any::<[bool; 4]>(), 0..=12u32, bf).prop_map(
        move |(qps, max_sge, max_inline, [large_cqe, scatter_to_cqe, small_mtu, lossy], back, bf)| {
            let (_, shut_up_bf, prefer_bf) = bf;
            // The drop-in copies no WQEs to registers.
            let shut_up_bf = shut_up_bf || library::is_dropped_in();
            Shape {
                datagrams,
                windows,
                backing,
                qps,
                max_wr,
                max_sge,
                max_inline,
                settings: Settings {
                    large_cqe,
                    scatter_to_cqe: scatter_to_cqe && !backing.is_opaque(),
                    small_mtu,
                    lossy: lossy && !datagrams,
                },
                shut_up_bf,
                prefer_bf,
                quiet,
                lead: if lead { WRAP - back } else { 0 },
            }
        },
    )
}

/// The session that is number `number` among those of sends.
pub fn plan(number: u64) -> impl Strategy<Value = Plan<Shape, Operation>> {
    shape(number).prop_flat_map(|shape| {
        vec(operation(&shape), OPERATIONS).prop_map(move |operations| Plan { shape: shape.clone(), operations })
    })
}
