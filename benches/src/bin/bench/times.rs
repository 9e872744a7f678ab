//! Nanoseconds per message.
//!
//! Doorbell and its reference run in a process each, because the drop-in serves all of its process. They take turns, so
//! that a disturbance of the machine affects both. A sample is the time of a thousand messages or more, because clocks
//! of virtual machines step by 10 ns.
//!
//! The time of a row depends on where the heap puts the objects, by up to a fifth: a load waits for an earlier store if
//! the lower 12 bits of both addresses agree. So each row runs in several pairs of processes, each with another heap.

use std::env;
use std::hint::black_box;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::mem;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;

use doorbell_benches::case::{self, Case};
use doorbell_benches::lines::{self, Lines};
use doorbell_benches::name::Name;
use doorbell_benches::report::{self, Row};
use doorbell_benches::rig::Rig;
use doorbell_benches::world::World;
use fastrand::Rng;

use crate::{Result, counts};

/// Pairs of processes.
const HEAPS: u64 = 7;
/// Samples of each process.
const SAMPLES: usize = 15;
/// Messages of a sample, at least.
const MESSAGES: u32 = 1000;

/// Times the cases whose names contain `filter`, and prints them.
pub(crate) fn run(filter: &str) -> Result<Vec<Row>> {
    let other_core = thread::available_parallelism().is_ok_and(|processors| processors.get() > 1);
    if !other_core {
        println!("times: not measured: lines in the cache of another core, for there is only one");
    }
    let mut rows = Vec::new();
    for (index, (case, lines)) in case::timed().into_iter().enumerate() {
        let skipped = (lines == Lines::OtherCore || case.needs_two_cores()) && !other_core;
        if skipped || !case.label().contains(filter) {
            continue;
        }
        rows.push(compare(index, &case, lines)?);
    }
    report::print(&rows);
    Ok(rows)
}

fn compare(index: usize, case: &Case, lines: Lines) -> Result<Row> {
    let mut samples = [Vec::new(), Vec::new()];
    for heap in 0..HEAPS {
        let start = |reference| Sampler::start(index, case, reference, heap);
        let mut samplers = [start(false)?, start(true)?];
        // The first samples warm up.
        for sample in 0..SAMPLES + 3 {
            for (sampler, samples) in samplers.iter_mut().zip(&mut samples) {
                let time = sampler.sample()?;
                if sample >= 3 {
                    samples.push(time);
                }
            }
        }
    }
    let [(doorbell, doorbell_spread), (reference, reference_spread)] = samples.map(middle);
    Ok(Row {
        op: case.timed_label(lines),
        unit: "ns/message",
        doorbell,
        reference,
        reference_name: case.reference.reference().into(),
        spread: Some([doorbell_spread, reference_spread]),
    })
}

/// The median, and half of the distance between the quartiles.
fn middle(mut samples: Vec<f64>) -> (f64, f64) {
    samples.sort_by(f64::total_cmp);
    let at = |quarter: usize| samples[samples.len() * quarter / 4];
    (at(2), (at(3) - at(1)) / 2.0)
}

/// A process that takes samples of one subject.
struct Sampler {
    process: Child,
    requests: Option<ChildStdin>,
    samples: BufReader<ChildStdout>,
}

impl Sampler {
    /// Starts the process for one of the timed cases: for the subject of doorbell, or for the reference.
    fn start(index: usize, case: &Case, reference: bool, heap: u64) -> Result<Self> {
        let mut command = Command::new(env::current_exe()?);
        command.args(["sampled", &index.to_string(), "--heap", &heap.to_string()]);
        command.args(reference.then_some("--reference"));
        if matches!(case.doorbell, Name::DropIn(_)) && !reference {
            command.env("LD_PRELOAD", counts::library()?).env("DOORBELL_DROP_IN", "all");
        }
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let requests = process.stdin.take();
        let samples = BufReader::new(process.stdout.take().ok_or("no pipe")?);
        Ok(Self { process, requests, samples })
    }

    fn sample(&mut self) -> Result<f64> {
        self.requests.as_mut().ok_or("no pipe")?.write_all(b"\n")?;
        let mut line = String::new();
        self.samples.read_line(&mut line)?;
        Ok(line.trim().parse().map_err(|_| "a process that takes samples failed")?)
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        // The process ends when its input does.
        self.requests = None;
        let _ = self.process.wait();
    }
}

/// Prints a sample for each line of the input, for [`Sampler`].
pub(crate) fn run_sampled(index: usize, reference: bool, heap: u64) {
    fragment_heap(heap);
    let (case, lines) = case::timed().swap_remove(index);
    let world = World::new();
    lines::pin(0);
    let name = if reference { case.reference } else { case.doorbell };
    let mut rig = Rig::new(&world, case.operation, name);
    for _ in io::stdin().lines() {
        // The other process has used the caches.
        rig.time(lines);
        println!("{}", sample(&mut rig, lines));
    }
}

/// Leaves free blocks between others in the heap, in sizes and order of this seed.
fn fragment_heap(seed: u64) {
    let mut random = Rng::with_seed(seed);
    let blocks: Vec<Vec<u8>> = (0..500).map(|_| Vec::with_capacity(random.usize(16..4096))).collect();
    for block in black_box(blocks) {
        if random.bool() {
            mem::forget(block);
        }
    }
}

/// Nanoseconds per message.
fn sample(rig: &mut Rig, lines: Lines) -> f64 {
    let (mut nanoseconds, mut messages) = (0, 0);
    while messages < MESSAGES.max(rig.count()) {
        nanoseconds += rig.time(lines).as_nanos();
        messages += rig.count();
    }
    nanoseconds as f64 / f64::from(messages)
}
