//! doorbell beside libmlx5 on the mlx5 device that is there: a ConnectX first, else soft-mlx5 with its thread. Two
//! queue pairs of one thread send to each other through the device; no root, no second machine.
//!
//! `cargo bench -p doorbell-benches --bench device`

mod ours;
mod place;
mod side;
mod special;
mod theirs;
#[path = "../turns.rs"]
mod turns;

use std::cell::RefCell;
use std::env;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, exit};
use std::rc::Rc;
use std::time::{Duration, Instant};

use criterion::Criterion;
use doorbell::DataPath;
use ours::Ours;
use place::Place;
use special::{FRAMES, Frames, Tags};
use theirs::Theirs;
use turns::{Row, Step};

/// Messages of a step that counts messages.
const STREAM: u32 = 128;

/// Runs this program again on soft-mlx5, which prints why no adapter was taken.
fn on_soft_mlx5(reasons: &str) -> ! {
    let program = env::current_exe().unwrap_or_else(|_| PathBuf::from("device"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_bench"));
    command.args(["on-soft-mlx5", "--"]).arg(program).args(env::args_os().skip(1));
    let error = command.env(NOT_TAKEN, reasons).exec();
    eprintln!("{}: {error}", env!("CARGO_BIN_EXE_bench"));
    exit(1)
}

/// Set when this program runs on soft-mlx5: why no adapter was taken.
const NOT_TAKEN: &str = "DOORBELL_BENCH_NOT_TAKEN";

struct Suite<'a> {
    criterion: Criterion,
    place: &'a Place,
    device: String,
    rows: Vec<Row>,
}

/// A subject that several rows share.
type Shared<T> = Rc<RefCell<T>>;

fn step<'a, T: 'a>(subject: &Shared<T>, mut step: impl FnMut(&mut T) -> Duration + 'a) -> Step<'a> {
    let subject = Rc::clone(subject);
    Box::new(move || step(&mut subject.borrow_mut()))
}

/// Makes a step for each of both libraries.
macro_rules! both {
    ($sides:ident, $step:expr) => {
        || vec![step(&$sides.0, $step), step(&$sides.1, $step)]
    };
}

/// Queue pairs of each end: without an SRQ, and on one.
const SHAPES: [Option<u32>; 4] = [None, Some(1), Some(3), Some(10)];

/// Makes the queue pairs of both libraries, of each shape.
fn sides(place: &Place) -> Result<Vec<(Ours, Theirs)>, String> {
    let sides = |srq_of| {
        let ours = Ours::new(place, srq_of).map_err(|error| error.to_string())?;
        let theirs = Theirs::new(place, srq_of).map_err(|error| format!("libmlx5: {error}"))?;
        Ok((ours, theirs))
    };
    SHAPES.into_iter().map(sides).collect()
}

/// Queue pairs of both libraries.
type Sides = (Shared<Ours>, Shared<Theirs>);

impl Suite<'_> {
    fn compare<'a>(&mut self, what: &str, messages: u64, against: &str, make: impl Fn() -> Vec<Step<'a>>) {
        let title = format!("{what}, {}", self.device);
        let names = ["doorbell".to_owned(), against.to_owned()];
        self.rows.extend(turns::compare(&mut self.criterion, &title, messages, &names, make));
    }

    fn messages(&mut self, sides: &Sides) {
        for len in [8, 64, 512, 4096] {
            let make = both!(sides, move |side| side::send_and_answer(side, len));
            self.compare(&format!("SEND of {len} bytes, half round trip"), 1, LIBMLX5, make);
        }
        for len in [8, 64, 512, 4096] {
            let mut last = 0;
            let make = both!(sides, move |side| side::write_and_answer(side, len, &mut last));
            self.compare(&format!("RDMA WRITE of {len} bytes, half round trip"), 1, LIBMLX5, make);
        }
        for len in [8, 64, 512, 4096] {
            let make = both!(sides, move |side| side::read(side, len));
            self.compare(&format!("RDMA READ of {len} bytes, to completion"), 1, LIBMLX5, make);
        }
        for batch in [1, 8, 32] {
            let make = both!(sides, move |side| side::stream(side, STREAM, batch));
            self.compare(&format!("SEND in batches of {batch}"), STREAM.into(), LIBMLX5, make);
        }
    }

    fn shared(&mut self, sides: &Sides) {
        let make = both!(sides, |side| side::send_and_answer(side, 64));
        self.compare("SEND of 64 bytes to an SRQ, half round trip", 1, LIBMLX5, make);
        let make = both!(sides, |side| side::stream(side, STREAM, 32));
        self.compare("SEND to an SRQ in batches of 32", STREAM.into(), LIBMLX5, make);
    }

    fn in_turn(&mut self, sides: &Sides, queue_pairs: u32) {
        let make = both!(sides, |side| side::stream_in_turn(side, STREAM));
        let what = format!("SEND of 4096 bytes from {queue_pairs} queue pairs to an SRQ");
        self.compare(&what, STREAM.into(), LIBMLX5, make);
    }

    fn tags(&mut self) {
        let tags = |path| Tags::new(self.place, path);
        let (direct, verbs) = match (tags(DataPath::Direct), tags(DataPath::Verbs)) {
            (Ok(direct), Ok(verbs)) => (direct, verbs),
            (Err(error), _) | (_, Err(error)) => return println!("tags: not measured: {error}"),
        };
        let matched = if direct.offload() { "by the device" } else { "by the library" };
        let tags = [direct, verbs].map(|tags| Rc::new(RefCell::new(tags)));
        let make = || tags.iter().map(|tags| step(tags, Tags::step)).collect();
        self.compare(&format!("SEND to a tag, matched {matched}"), 1, VERBS, make);
    }

    fn frames(&mut self) {
        // One rule for each receiver: two rules of one address would give each frame to both.
        let frames = |path, last| Frames::new(self.place, [2, 0, 0, 0, 9, last], path);
        let (direct, verbs) = match (frames(DataPath::Direct, 1), frames(DataPath::Verbs, 2)) {
            (Ok(direct), Ok(verbs)) => (direct, verbs),
            (Err(error), _) | (_, Err(error)) => return println!("frames: not measured: {error}"),
        };
        let frames = [direct, verbs].map(|frames| Rc::new(RefCell::new(frames)));
        let make = || frames.iter().map(|frames| step(frames, Frames::step)).collect();
        self.compare("frames in bursts of 32", FRAMES.into(), VERBS, make);
    }
}

const LIBMLX5: &str = "libmlx5 (ibv_post_send, ibv_poll_cq)";
const VERBS: &str = "the verbs path (libmlx5)";

fn main() {
    let began = Instant::now();
    let not_taken = env::var(NOT_TAKEN).ok();
    let (place, sides) = match (Place::find(sides), &not_taken) {
        (Ok(found), _) => found,
        (Err(reasons), None) => {
            println!("{reasons}\ndevice: this runs on soft-mlx5, which has no timing of its own");
            on_soft_mlx5(&reasons);
        }
        (Err(reasons), Some(_)) => {
            eprintln!("{reasons}");
            exit(1);
        }
    };
    let device = place.describe();
    println!("device: {device}");
    pin();
    let criterion = turns::criterion(20, Duration::from_millis(1000));
    let mut suite = Suite { criterion, place: &place, device, rows: Vec::new() };
    for (srq_of, (ours, theirs)) in SHAPES.into_iter().zip(sides) {
        let sides = (Rc::new(RefCell::new(ours)), Rc::new(RefCell::new(theirs)));
        match srq_of {
            None => suite.messages(&sides),
            Some(1) => suite.shared(&sides),
            Some(queue_pairs) => suite.in_turn(&sides, queue_pairs),
        }
    }
    suite.tags();
    suite.frames();
    suite.criterion.final_summary();
    turns::finish("device", &suite.device, &suite.rows, began);
    if let Some(reasons) = not_taken {
        println!("{reasons}");
    }
}

/// Pins this thread to the last processor that it may run on. A thread of the device was started before.
fn pin() {
    // SAFETY: plain structures of the right size.
    unsafe {
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut allowed);
        let last = (0..libc::CPU_SETSIZE as usize).rev().find(|&cpu| libc::CPU_ISSET(cpu, &allowed));
        let mut one: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(last.unwrap_or(0), &mut one);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &one);
    }
}
