//! The same operations on libmlx5 and on doorbell leave the same bytes and the same completions.
//!
//! Two soft-mlx5 devices in stepped mode have equal objects. One twin is driven through libibverbs and
//! the stock libmlx5, the other through doorbell. After each operation everything that a device may read
//! is compared, and everything that was received.
//!
//! The work is done by child processes: a breach of a rule of the device aborts the process, and the
//! parent still knows the number of the operation.

mod base;
mod case;
mod difference;
mod fault;
mod library;
mod memory;
mod opaque;
mod pair;
mod plan;
#[allow(dead_code, reason = "it is shared with the integration tests")]
#[path = "../../src/poison.rs"]
mod poison;
#[path = "../../../soft-mlx5/tests/common/qp_states.rs"]
mod qp_states;
mod queue;
mod reference;
mod sends;
mod sequence;
mod session;
mod shrink;
mod sizes;
mod subject;
mod supervise;
mod tags;
mod tally;
mod twin;
mod twins;
mod verbs;

use std::fs::File;
use std::os::fd::FromRawFd;
use std::os::unix::fs::FileExt;
use std::process::ExitCode;

use clap::Parser;

use fault::Fault;
use memory::Memory;
use sequence::OPERATIONS;
use session::Run;
use shrink::Failure;
use tally::Tally;

/// Compares doorbell with libmlx5 under random sequences of operations.
#[derive(Parser)]
struct Options {
    /// Operations in all.
    #[arg(short = 'n', long, default_value_t = 100_000)]
    operations: u64,
    /// Number of the first session. A session is made from its number alone.
    #[arg(long, default_value_t = 0, value_parser = number)]
    seed: u64,
    /// Runs the session of this number and nothing else, printing its operations.
    #[arg(long, value_parser = number)]
    replay: Option<u64>,
    /// Makes doorbell do something wrong, to see what is reported.
    #[arg(long)]
    inject: Option<Fault>,
    /// Sessions that this process runs for another one.
    #[arg(long, hide = true)]
    worker: Option<u64>,
}

fn number(text: &str) -> Result<u64, std::num::ParseIntError> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    if let Some(session) = options.replay {
        return replay(session, options.inject);
    }
    match options.worker {
        Some(sessions) => work(&options, sessions),
        None => supervise::run(options.seed, options.operations, options.inject),
    }
}

/// Runs sessions, and notes in the file at standard input how far it has come.
fn work(options: &Options, sessions: u64) -> ExitCode {
    // SAFETY: standard input belongs to this process, which reads nothing from it otherwise.
    let progress = unsafe { File::from_raw_fd(libc::STDIN_FILENO) };
    let memory = Memory::new();
    let mut tally = Tally::default();
    let mut left = options.operations;
    for session in options.seed..options.seed + sessions {
        let limit = left.min(OPERATIONS as u64);
        left -= limit;
        let mut note = |operation: u64| {
            let bytes = [session.to_le_bytes(), operation.to_le_bytes()].concat();
            // The parent can do without the note.
            let _ = progress.write_all_at(&bytes, 0);
        };
        let run = Run { tally: &mut tally, progress: &mut note, fault: options.inject };
        if let Err(failure) = shrink::session(session, limit as usize, memory, run) {
            report(session, &failure, options.inject);
            return ExitCode::FAILURE;
        }
    }
    print!("{}", tally.lines());
    if let Some(library) = library::library() {
        println!("library: {library}");
    }
    ExitCode::SUCCESS
}

fn report(session: u64, failure: &Failure, fault: Option<Fault>) {
    let Failure { operation, difference, shrunk, shrunk_difference } = failure;
    println!("conformance: DIFFERENCE: seed {session:#x}, operation {operation}");
    println!("{difference}");
    println!("  replay:   {}", supervise::replay_command(session, fault));
    println!("cut down to {} operations on {}:", shrunk.operations.len(), shrunk.shape);
    for (number, operation) in (1..).zip(&shrunk.operations) {
        println!("  {number}: {operation}");
    }
    println!("{shrunk_difference}");
}

fn replay(session: u64, fault: Option<Fault>) -> ExitCode {
    let shrink::Text { shape, operations } = shrink::text(session);
    println!("{shape}");
    let mut show = |number: u64| match number.checked_sub(1) {
        Some(index) => println!("{number}: {}", operations[index as usize]),
        None => println!("0: the lead"),
    };
    let run = Run { tally: &mut Tally::default(), progress: &mut show, fault };
    if let Err(failure) = shrink::session(session, OPERATIONS, Memory::new(), run) {
        report(session, &failure, fault);
        return ExitCode::FAILURE;
    }
    println!("conformance: session {session:#x}: 0 differences");
    ExitCode::SUCCESS
}
