//! Counts what doorbell and stock libmlx5 do for a message: see `docs/benchmarks.md`.

mod baseline;
mod counts;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use doorbell_benches::report;
use soft_mlx5::runner::{Runner, exit_code};

use crate::counts::Process;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Counts what doorbell and stock libmlx5 do for a message.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Counts instructions, loads and stores: under callgrind, and single messages step by step.
    Counts {
        /// Where results go.
        #[arg(long, default_value = "target/bench")]
        out: PathBuf,
        /// Fails when a count has grown beyond that in this file, or is above that of libmlx5.
        #[arg(long)]
        baseline: Option<PathBuf>,
        /// Only operations whose names contain this.
        #[arg(long, default_value = "", conflicts_with = "baseline")]
        filter: String,
        /// Writes the counts to the baseline instead.
        #[arg(long, requires = "baseline")]
        save: bool,
    },
    /// Runs under callgrind, for `counts`.
    #[command(hide = true)]
    Counted {
        /// As of `counts`.
        #[arg(long, default_value = "")]
        filter: String,
        /// The process that this is.
        #[arg(long)]
        process: Process,
    },
    /// Runs a command on soft-mlx5, for the device suite.
    #[command(hide = true)]
    OnSoftMlx5 {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<String>,
    },
}

fn main() -> ExitCode {
    match run(Args::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Counts { out, baseline, filter, save } => {
            let rows = counts::run(&out, baseline.as_deref(), &filter, save)?;
            report::write_json(&rows, &out.join("counts.rows"))?;
        }
        Command::Counted { filter, process } => counts::run_counted(&filter, process),
        Command::OnSoftMlx5 { command } => {
            let mut runner = Runner::new(command);
            // Frames need an Ethernet port.
            runner.set("link", "roce".as_ref())?;
            let status = runner.run()?;
            return Ok(ExitCode::from(exit_code(status)));
        }
    }
    Ok(ExitCode::SUCCESS)
}
