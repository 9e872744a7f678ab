//! Measures doorbell beside stock libmlx5: see `docs/performance.md`.

mod counts;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Measures doorbell beside stock libmlx5.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Counts instructions, loads and stores under callgrind.
    Counts {
        /// Where results go.
        #[arg(long, default_value = "target/bench")]
        out: PathBuf,
        /// Fails when a count has grown beyond that in this file, or is above its bound.
        #[arg(long)]
        baseline: Option<PathBuf>,
        /// Writes the counts to the baseline instead.
        #[arg(long, requires = "baseline")]
        save: bool,
    },
    /// What `counts` runs under callgrind.
    #[command(hide = true)]
    Counted,
}

fn main() -> ExitCode {
    match run(Args::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Counts { out, baseline, save } => {
            counts::run(&out, baseline.as_deref(), save).map(drop)
        }
        Command::Counted => {
            counts::run_counted();
            Ok(())
        }
    }
}
