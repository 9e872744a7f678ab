//! Instructions, loads and stores per message, counted by callgrind.
//!
//! The program runs itself under callgrind, which writes a profile whenever [`counted`] is entered or left.
//! So each second profile has one round of one subject and nothing else. Where both libraries are called through
//! function pointers, as by the program of a drop-in, only what is in their objects counts: not the loop of this
//! program.

use std::collections::BTreeMap;
use std::error::Error;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, mem, thread};

use clap::ValueEnum;
use doorbell_benches::case::{self, Case};
use doorbell_benches::name::Name;
use doorbell_benches::operation::Operation;
use doorbell_benches::report::{self, Row};
use doorbell_benches::rig::Rig;
use doorbell_benches::world::World;

use crate::Result;
use crate::baseline::{self, Cost};

/// The function that callgrind looks for.
const COUNTED: &str = "bench::counts::counted";

/// The cost of one message in one run.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// Cost of the program and of the libraries.
    all: Cost,
    /// Cost of the libraries alone.
    calls: Cost,
}

/// A process under callgrind, by the library whose operations it counts.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub(crate) enum Process {
    Doorbell,
    Libmlx5,
    /// A process that has preloaded the drop-in.
    DropIn,
}

impl Process {
    const fn of(name: Name) -> Self {
        match name {
            Name::DropIn(_) => Self::DropIn,
            _ if name.is_doorbell() => Self::Doorbell,
            _ => Self::Libmlx5,
        }
    }
}

#[inline(never)]
fn counted(round: &mut dyn FnMut()) {
    black_box(round)();
}

/// The operations whose names contain `filter`.
fn cases(filter: &str) -> impl Iterator<Item = Case> {
    case::counted().into_iter().filter(move |case| case.label().contains(filter))
}

/// The runs of a process, each once.
fn runs(filter: &str, process: Process) -> Vec<(Operation, Name)> {
    let mut runs = Vec::new();
    for Case { operation, doorbell, reference } in cases(filter) {
        for run in [(operation, doorbell), (operation, reference)] {
            if Process::of(run.1) == process && !runs.contains(&run) {
                runs.push(run);
            }
        }
    }
    runs
}

/// Does one counted round of each run under callgrind, after two rounds that bring it to a steady state. Prints
/// the number of messages.
pub(crate) fn run_counted(filter: &str, process: Process) {
    let world = World::new();
    for (operation, name) in runs(filter, process) {
        let mut rig = Rig::new(&world, operation, name);
        for _ in 0..2 {
            rig.round(|round| round());
        }
        rig.round(|round| counted(round));
        println!("{}", rig.count());
    }
}

/// Counts, prints the table and compares with the baseline.
pub(crate) fn run(out: &Path, baseline: Option<&Path>, filter: &str, save: bool) -> Result<Vec<Row>> {
    // Callgrind runs a program on one processor.
    let costs = thread::scope(|scope| {
        let start = |process| scope.spawn(move || count(out, filter, process).map_err(|error| error.to_string()));
        let mut costs = Vec::new();
        for count in [Process::Doorbell, Process::Libmlx5, Process::DropIn].map(start) {
            costs.extend(count.join().map_err(|_| "counting panicked")??);
        }
        Ok::<_, Box<dyn Error>>(costs)
    })?;
    let mut rows = Vec::new();
    let mut current = BTreeMap::new();
    for case in cases(filter) {
        let cost = |name| {
            let found = costs.iter().find(|(run, _)| *run == (case.operation, name));
            let (_, run) = found.ok_or("a run is missing")?;
            let is_called = matches!(case.doorbell, Name::DropIn(_));
            Ok::<_, &str>(if is_called { run.calls } else { run.all })
        };
        let doorbell = cost(case.doorbell)?;
        let reference = cost(case.reference)?;
        let row = |unit, doorbell, reference| Row {
            op: case.label(),
            unit,
            doorbell,
            reference,
            reference_name: case.reference.reference().into(),
        };
        rows.push(row("instructions/message", doorbell.instructions, reference.instructions));
        rows.push(row("loads/message", doorbell.loads, reference.loads));
        rows.push(row("stores/message", doorbell.stores, reference.stores));
        current.insert(case.label(), doorbell);
    }
    #[cfg(target_arch = "x86_64")]
    for row in doorbell_benches::single::rows(filter) {
        let cost = Cost { instructions: row.doorbell, loads: 0.0, stores: 0.0 };
        current.entry(row.op.clone()).or_insert(cost);
        rows.push(row);
    }
    rows.extend(doorbell_benches::adjacency::rows(filter));
    report::print(&rows);
    match baseline {
        Some(path) if save => baseline::save(&current, path)?,
        Some(path) => baseline::compare(&current, &rows, path)?,
        None => {}
    }
    Ok(rows)
}

/// Runs this program under callgrind.
fn count(out: &Path, filter: &str, process: Process) -> Result<Vec<((Operation, Name), Run)>> {
    let runs = runs(filter, process);
    if runs.is_empty() {
        return Ok(Vec::new());
    }
    fs::create_dir_all(out)?;
    let value = process.to_possible_value().ok_or("no process is hidden")?;
    let profile = out.join(format!("callgrind.{}", value.get_name()));
    let numbered = |n: usize| PathBuf::from(format!("{}.{n}", profile.display()));
    let mut command = Command::new("valgrind");
    if process == Process::DropIn {
        command.env("LD_PRELOAD", library()?).env("DOORBELL_DROP_IN", "all");
    }
    let output = command
        .args(["--tool=callgrind", "--cache-sim=yes", "--dump-line=no", "--quiet"])
        .arg(format!("--dump-before={COUNTED}"))
        .arg(format!("--dump-after={COUNTED}"))
        .arg(format!("--callgrind-out-file={}", profile.display()))
        .arg(env::current_exe()?)
        .args(["counted", "--filter", filter, "--process", value.get_name()])
        .output()
        .map_err(|error| format!("valgrind cannot be run ({error}): install it"))?;
    if !output.status.success() {
        let printed = String::from_utf8_lossy(&output.stderr);
        return Err(format!("callgrind failed ({}): {printed}", output.status).into());
    }
    let stdout = String::from_utf8(output.stdout)?;
    let mut costs = Vec::new();
    for (i, (run, messages)) in runs.into_iter().zip(stdout.lines()).enumerate() {
        let (before, after) = (numbered(2 * i + 1), numbered(2 * i + 2));
        let messages = messages.parse()?;
        costs.push((run, read_profile(&fs::read_to_string(&after)?, messages)?));
        fs::remove_file(before)?;
        fs::remove_file(after)?;
    }
    Ok(costs)
}

/// The drop-in, where cargo puts it.
pub(crate) fn library() -> Result<PathBuf> {
    let program = env::current_exe()?;
    let folder = program.parent().ok_or("a program without a folder")?;
    let library = folder.join("deps/libdoorbell_drop_in.so");
    if !library.exists() {
        return Err(format!("{} is not there", library.display()).into());
    }
    Ok(library)
}

/// Adds up the costs of a profile of `messages` messages.
///
/// A line of costs has a position, and then as many events as are not 0 at the end. Such a line after `calls=` has what
/// the called function cost, which stands again with that function.
fn read_profile(profile: &str, messages: f64) -> Result<Run> {
    if !profile.contains("\nevents: Ir Dr Dw ") {
        return Err("the profile has other events than expected".into());
    }
    let program = env::current_exe()?;
    let mut names = BTreeMap::new();
    let (mut all, mut calls) = ([0.0; 3], [0.0; 3]);
    let (mut is_called, mut follows_call) = (false, false);
    for line in profile.lines() {
        if let Some(object) = line.strip_prefix("ob=").or_else(|| line.strip_prefix("cob=")) {
            // The name of an object stands beside its number once.
            let (number, name) = object.split_once(' ').unwrap_or((object, ""));
            let name = *names.entry(number).or_insert(name);
            if line.starts_with("ob=") {
                is_called = Path::new(name) != program;
            }
        } else if line.starts_with("calls=") {
            follows_call = true;
        } else if line.starts_with(|first: char| "+-*0123456789".contains(first)) && !mem::take(&mut follows_call) {
            for (i, events) in line.split(' ').skip(1).take(3).enumerate() {
                let events: f64 = events.parse()?;
                all[i] += events;
                calls[i] += if is_called { events } else { 0.0 };
            }
        }
    }
    let total = profile.lines().find_map(|line| line.strip_prefix("totals: ")?.split(' ').next());
    if total.ok_or("the profile has no totals")?.parse() != Ok(all[0]) {
        return Err("the lines of the profile do not add up to its totals".into());
    }
    let cost = |[instructions, loads, stores]: [f64; 3]| Cost {
        instructions: instructions / messages,
        loads: loads / messages,
        stores: stores / messages,
    };
    Ok(Run { all: cost(all), calls: cost(calls) })
}
