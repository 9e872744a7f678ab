//! One message at a time, from a queue pair to itself: the instructions between the program and the device.
//!
//! The device delivers each message between two counts. The medians are those of a program that polls while nothing
//! arrives; the means are those of rounds without such polls, so that all upkeep is in them.

mod bursts;
mod frames;
mod lines;
mod ours;
mod theirs;

use std::array;
use std::time::Duration;

use crate::report::Row;
use crate::step::{self, Steps};
use crate::world::World;

/// Bytes of a message, which are copied into the WQE.
const LEN: usize = 32;
/// Receives that are posted.
const RECEIVES: u32 = 255;
/// Unsignaled sends of which one has a CQE.
const UNSIGNALED: usize = 16;
/// Rounds that are counted, and those before.
const ROUNDS: usize = 128;
const WARM_UP: usize = 300;
/// Rounds whose cache lines are counted.
const LINE_ROUNDS: usize = 32;

/// An end of a queue pair that is connected to itself.
trait Single {
    /// Sends a message of [`LEN`] bytes.
    fn send(&mut self);
    /// Sends the same unsignaled. `is_last` says that this is the last of [`UNSIGNALED`] messages.
    fn send_unsignaled(&mut self, is_last: bool);
    /// Takes the completion of the send, if it has one of its own.
    fn sent(&mut self);
    /// Frees what unsignaled sends took, once for [`UNSIGNALED`] of them.
    fn sent_unsignaled(&mut self);
    /// Receives a message: [`step::mark`] is where the program has its address and its length. Gives it back.
    fn receive(&mut self);
    /// Looks for a message when there is none.
    fn poll_nothing(&mut self);
}

/// Names of the counts, in the order of [`Costs`].
const ROWS: [&str; LINES + 3] = [
    "critical, receive",
    "critical, send",
    "nothing has arrived",
    "receive, whole",
    "completion",
    "round",
    "critical, unsignaled send",
    "completion, unsignaled send",
    "round, unsignaled send",
    "cache lines, critical, receive",
    "cache lines, receive, whole",
    "cache lines, send, whole",
];

/// The first row of cache lines.
const LINES: usize = 9;

/// Instructions of each row, or its cache lines.
type Costs = [f64; LINES + 3];

fn deliver(world: &World) {
    // A device with many registers does not read all of them in one step.
    for _ in 0..4 {
        world.device.settle();
        world.device.advance(Duration::from_micros(100));
    }
}

/// The middle one.
fn median(mut counts: Vec<u64>) -> f64 {
    counts.sort_unstable();
    counts[counts.len() / 2] as f64
}

#[inline(always)]
fn measure(world: &World, single: &mut impl Single) -> Costs {
    let mut rounds: [Vec<u64>; 3] = array::from_fn(|_| Vec::new());
    for _ in 0..WARM_UP {
        single.send();
        deliver(world);
        single.receive();
        single.sent();
    }
    for _ in 0..ROUNDS {
        // The first poll does what the message before has left to do.
        single.poll_nothing();
        let nothing = step::count(|| single.poll_nothing());
        let send = step::count(|| single.send());
        deliver(world);
        let receive = step::count(|| single.receive());
        single.sent();
        assert!(send.to_register > 0, "the register was not written");
        let counts = [receive.to_mark, send.to_register, nothing.all];
        rounds.iter_mut().zip(counts).for_each(|(all, count)| all.push(count));
    }
    let mut sums = [0; 3];
    for _ in 0..ROUNDS {
        let send = step::count(|| single.send());
        deliver(world);
        let receive = step::count(|| single.receive());
        let sent = step::count(|| single.sent());
        let all = |steps: [&Steps; 3]| steps.iter().map(|steps| steps.all).sum::<u64>();
        let counts = [receive.all, sent.all, all([&send, &receive, &sent])];
        sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    let [receive, send, nothing] = rounds.map(median);
    let [whole, completion, round] = sums.map(|sum| sum as f64 / ROUNDS as f64);
    let [unsignaled, freed, without] = measure_unsignaled(world, single);
    let [near, far, sent] = measure_lines(world, single);
    [receive, send, nothing, whole, completion, round, unsignaled, freed, without, near, far, sent]
}

/// Counts the cache lines of the last three rows: a median, and two means of rounds without idle polls.
#[inline(always)]
fn measure_lines(world: &World, single: &mut impl Single) -> [f64; 3] {
    let mut critical = Vec::new();
    let mut sums = [0; 2];
    for round in 0..2 * LINE_ROUNDS {
        let is_critical = round < LINE_ROUNDS;
        if is_critical {
            single.poll_nothing();
        }
        let send = lines::count(|| single.send());
        deliver(world);
        let receive = lines::count(|| single.receive());
        single.sent();
        if is_critical {
            critical.push(receive.to_mark as u64);
        } else {
            sums[0] += receive.all;
            sums[1] += send.all;
        }
    }
    let [whole, sent] = sums.map(|sum| sum as f64 / LINE_ROUNDS as f64);
    [median(critical), whole, sent]
}

/// Counts the last three rows. Every send before has completed.
#[inline(always)]
fn measure_unsignaled(world: &World, single: &mut impl Single) -> [f64; 3] {
    let (mut to_register, mut freed, mut round) = (Vec::new(), 0, 0);
    for number in 1..=ROUNDS {
        let is_last = number % UNSIGNALED == 0;
        let send = step::count(|| single.send_unsignaled(is_last));
        assert!(send.to_register > 0, "the register was not written");
        deliver(world);
        let receive = step::count(|| single.receive());
        let sent = if is_last { step::count(|| single.sent_unsignaled()).all } else { 0 };
        to_register.push(send.to_register);
        freed += sent;
        round += send.all + receive.all + sent;
    }
    [median(to_register), freed as f64 / ROUNDS as f64, round as f64 / ROUNDS as f64]
}

/// Counts, and compares doorbell with the faster way through libmlx5. The rows of the safe API come first.
pub fn rows(filter: &str) -> Vec<Row> {
    let world = World::new();
    let mut rows = messages(&world, filter);
    rows.extend(frames(world.ethernet(), filter));
    rows.extend(bursts(world.ethernet(), filter));
    rows
}

fn row(op: String, doorbell: f64, reference: f64, name: &str) -> Row {
    let unit = if op.contains("cache lines") { "lines/message" } else { "instructions/message" };
    Row { op, unit, doorbell, reference, reference_name: name.into() }
}

fn messages(world: &World, filter: &str) -> Vec<Row> {
    let label = |row: usize, of: &str| format!("one message: {}{of}", ROWS[row]);
    let subjects = ["", ", rings"];
    if !subjects.iter().any(|of| (0..ROWS.len()).any(|row| label(row, of).contains(filter))) {
        return Vec::new();
    }
    let ours = [ours::safe(world), ours::rings(world)];
    let theirs = [("ibv_poll_cq, ibv_post_send", false), ("ibv_start_poll, ibv_wr_*", true)];
    let theirs = theirs.map(|(name, extended)| (name, theirs::costs(world, extended)));
    let mut rows = Vec::new();
    for (of, costs) in subjects.iter().zip(ours) {
        for at in 0..ROWS.len() {
            let faster = theirs.iter().min_by(|a, b| a.1[at].total_cmp(&b.1[at]));
            let Some((name, reference)) = faster else { continue };
            rows.push(row(label(at, of), costs[at], reference[at], name));
        }
    }
    rows.retain(|row| row.op.contains(filter));
    rows
}

/// All rows of a frame of 64 bytes, and of one of 128 bytes what its length changes.
fn frames(world: &World, filter: &str) -> Vec<Row> {
    let label = |row: &str, bytes: usize| format!("one frame of {bytes} bytes: {row}");
    let tick_to_order = label("tick to order", 64);
    let of_128 = |row: usize| ROWS[row].starts_with("critical") && ROWS[row].ends_with("send");
    let all: Vec<_> = (0..ROWS.len())
        .map(|row| (row, 64))
        .chain((0..ROWS.len()).filter(|&row| of_128(row)).map(|row| (row, 128)))
        .filter(|&(row, bytes)| label(ROWS[row], bytes).contains(filter))
        .collect();
    if all.is_empty() && !tick_to_order.contains(filter) {
        return Vec::new();
    }
    let [short, long] = [
        [frames::safe::<64>(world), frames::libmlx5::<64>(world)],
        [frames::safe::<128>(world), frames::libmlx5::<128>(world)],
    ];
    let cost = |op, [ours, theirs]: [f64; 2]| row(op, ours, theirs, "ibv_poll_cq, ibv_wr_*");
    let costs = |(at, bytes)| {
        let ends = if bytes == 64 { &short } else { &long };
        cost(label(ROWS[at], bytes), ends.each_ref().map(|(costs, _)| costs[at]))
    };
    let mut rows: Vec<_> = all.into_iter().map(costs).collect();
    if tick_to_order.contains(filter) {
        rows.push(cost(tick_to_order, short.map(|(_, count)| count)));
    }
    rows
}

/// Bursts of frames with multi-packet WQEs, beside a WQE for each frame, of libmlx5 and of doorbell.
fn bursts(world: &World, filter: &str) -> Vec<Row> {
    let label = format!("burst of {} frames, multi-packet WQE", bursts::BURST);
    if !label.contains(filter) {
        return Vec::new();
    }
    let together = bursts::safe(world, bursts::Way::Together);
    let references = [("ibv_wr_*", bursts::libmlx5(world)), ("send_frame", bursts::safe(world, bursts::Way::Single))];
    references.map(|(name, reference)| row(label.clone(), together, reference, name)).into()
}
