//! doorbell beside libmlx5 on the mlx5 device that is there: a ConnectX first, else soft-mlx5 with its thread. Two
//! queue pairs of one thread send to each other through the device; no root, no second machine.
//!
//! `cargo bench -p doorbell-benches --bench device`

mod ours;
mod side;
mod special;
mod theirs;
#[path = "../turns.rs"]
mod turns;

use std::cell::RefCell;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, exit};
use std::rc::Rc;
use std::time::{Duration, Instant};
use std::{env, fs};

use criterion::Criterion;
use doorbell::{Context, Path};
use ours::Ours;
use special::{FRAMES, Frames, Tags};
use theirs::Theirs;
use turns::{Row, Step};

/// Messages of a step that counts messages.
const STREAM: u32 = 128;

/// The first device whose rings doorbell drives and whose port is up.
fn device() -> Option<Context> {
    let contexts = doorbell::devices().ok()?;
    let mut contexts = contexts.iter().filter_map(|device| device.open().ok());
    contexts.find(|context| {
        let is_up = context.query_port(1).is_ok_and(|port| port.state == doorbell::raw::rdma_core_sys::IBV_PORT_ACTIVE);
        is_up && context.auto_path().0 == Path::Direct
    })
}

/// Name and kind of the device, and its firmware.
fn describe(context: &Context) -> String {
    let folder = context.sysfs_path();
    let description = fs::read_to_string(folder.join("node_desc")).unwrap_or_default();
    if description.starts_with("soft-mlx5") {
        return format!("{} (soft-mlx5)", context.name());
    }
    let pci = fs::read_link(folder.join("device")).unwrap_or_default();
    let pci = pci.file_name().map_or("no PCI device".into(), |pci| pci.to_string_lossy().into_owned());
    format!("{} ({pci}, firmware {})", context.name(), context.firmware())
}

/// Runs this program again on soft-mlx5.
fn on_soft_mlx5() -> ! {
    let program = env::current_exe().unwrap_or_else(|_| PathBuf::from("device"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_bench"));
    command.args(["on-soft-mlx5", "--"]).arg(program).args(env::args_os().skip(1));
    let error = command.env(AGAIN, "1").exec();
    eprintln!("{}: {error}", env!("CARGO_BIN_EXE_bench"));
    exit(1)
}

/// Set when this program runs on soft-mlx5.
const AGAIN: &str = "DOORBELL_BENCH_AGAIN";

struct Suite<'a> {
    criterion: Criterion,
    context: &'a Context,
    device: String,
    rows: Vec<Row>,
}

/// A subject that is made when a filter has let one of its rows through, and shared by these rows.
type Lazy<T> = Rc<RefCell<Option<T>>>;

fn step<'a, T: 'a>(
    side: &Lazy<T>,
    make: impl FnOnce() -> T,
    mut step: impl FnMut(&mut T) -> Duration + 'a,
) -> Step<'a> {
    side.borrow_mut().get_or_insert_with(make);
    let side = Rc::clone(side);
    Box::new(move || step(side.borrow_mut().as_mut().expect("made above")))
}

/// The same step of both libraries.
macro_rules! both {
    ($suite:ident, $sides:expr, $shared:literal, $step:expr) => {{
        let context = $suite.context;
        let (ours, theirs) = $sides;
        move || {
            vec![
                step(ours, || Ours::new(context, $shared).expect("queue pairs of doorbell"), $step),
                step(theirs, || Theirs::new(context, $shared), $step),
            ]
        }
    }};
}

impl Suite<'_> {
    fn compare<'a>(&mut self, what: &str, messages: u64, against: &str, make: impl Fn() -> Vec<Step<'a>>) {
        let title = format!("{what}, {}", self.device);
        let names = ["doorbell".to_owned(), against.to_owned()];
        self.rows.extend(turns::compare(&mut self.criterion, &title, messages, &names, make));
    }

    fn messages(&mut self) {
        let (ours, theirs) = (Lazy::default(), Lazy::default());
        let sides = (&ours, &theirs);
        for len in [8, 64, 512, 4096] {
            let make = both!(self, sides, false, move |side| side::send_and_answer(side, len));
            self.compare(&format!("SEND of {len} bytes, half round trip"), 1, LIBMLX5, make);
        }
        for len in [8, 64, 512, 4096] {
            let mut last = 0;
            let make = both!(self, sides, false, move |side| side::write_and_answer(side, len, &mut last));
            self.compare(&format!("RDMA WRITE of {len} bytes, half round trip"), 1, LIBMLX5, make);
        }
        for len in [8, 64, 512, 4096] {
            let make = both!(self, sides, false, move |side| side::read(side, len));
            self.compare(&format!("RDMA READ of {len} bytes, to completion"), 1, LIBMLX5, make);
        }
        for batch in [1, 8, 32] {
            let make = both!(self, sides, false, move |side| side::stream(side, STREAM, batch));
            self.compare(&format!("SEND in batches of {batch}"), STREAM.into(), LIBMLX5, make);
        }
    }

    fn shared(&mut self) {
        let (ours, theirs) = (Lazy::default(), Lazy::default());
        let sides = (&ours, &theirs);
        let make = both!(self, sides, true, |side| side::send_and_answer(side, 64));
        self.compare("SEND of 64 bytes to an SRQ, half round trip", 1, LIBMLX5, make);
        let make = both!(self, sides, true, |side| side::stream(side, STREAM, 32));
        self.compare("SEND to an SRQ in batches of 32", STREAM.into(), LIBMLX5, make);
    }

    fn tags(&mut self) {
        let context = self.context;
        let paths = [Path::Direct, Path::Verbs];
        let by_device = match Tags::new(context, Path::Direct) {
            Ok(tags) => tags.offload(),
            Err(error) => return println!("tags: not measured: {error}"),
        };
        let make = || {
            let tags = |path| Tags::new(context, path).expect("a list of tags");
            paths.map(tags).into_iter().map(|mut tags| Box::new(move || tags.step()) as Step).collect()
        };
        let matched = if by_device { "by the device" } else { "by the library" };
        self.compare(&format!("SEND to a tag, matched {matched}"), 1, VERBS, make);
    }

    fn frames(&mut self) {
        let name = self.context.name().to_owned();
        // One rule for each receiver: two rules of one address would give each frame to both.
        let frames = |path, last| Frames::new(&name, [2, 0, 0, 0, 9, last], path);
        if let Err(error) = frames(Path::Direct, 1) {
            return println!("frames: not measured: {error}");
        }
        let make = || {
            let made = [(Path::Direct, 2), (Path::Verbs, 3)].map(|(path, last)| frames(path, last));
            let steps = made.into_iter().map(|made| {
                let mut made = made.expect("frames");
                Box::new(move || made.step()) as Step
            });
            steps.collect()
        };
        self.compare("frames in bursts of 32", FRAMES.into(), VERBS, make);
    }
}

const LIBMLX5: &str = "libmlx5 (ibv_post_send, ibv_poll_cq)";
const VERBS: &str = "the verbs path (libmlx5)";

fn main() {
    let began = Instant::now();
    let Some(context) = device() else {
        if env::var_os(AGAIN).is_some() {
            eprintln!("device: soft-mlx5 has no device whose port is up");
            exit(1);
        }
        println!(
            "device: there is no mlx5 device whose port is up: this runs on soft-mlx5, which has no timing of its own"
        );
        on_soft_mlx5();
    };
    let device = describe(&context);
    println!("device: {device}");
    pin();
    let criterion = turns::criterion(20, Duration::from_millis(1000));
    let mut suite = Suite { criterion, context: &context, device, rows: Vec::new() };
    suite.messages();
    suite.shared();
    suite.tags();
    suite.frames();
    suite.criterion.final_summary();
    turns::finish("device", &suite.device, &suite.rows, began);
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
