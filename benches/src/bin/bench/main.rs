//! Measures doorbell beside stock libmlx5: see `docs/benchmarks.md`.

mod bounds;
mod cost;
mod counts;
mod times;

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, ExitCode};

use clap::{Parser, Subcommand};
use doorbell_benches::{case, markdown, report};

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
        /// Only operations whose names contain this.
        #[arg(long, default_value = "", conflicts_with = "baseline")]
        filter: String,
        /// Writes the counts to the baseline instead.
        #[arg(long, requires = "baseline")]
        save: bool,
    },
    /// Takes times.
    Times {
        /// Only operations whose names contain this.
        #[arg(long, default_value = "")]
        filter: String,
    },
    /// Counts, takes times, and writes `bench.json`.
    All {
        /// Where `bench.json` goes.
        #[arg(long, default_value = "target")]
        out: PathBuf,
        /// Puts the table of times into `benchmarks.md` of this directory.
        #[arg(long)]
        docs: Option<PathBuf>,
    },
    /// Runs under callgrind, for `counts`.
    #[command(hide = true)]
    Counted {
        /// As of `counts`.
        #[arg(long, default_value = "")]
        filter: String,
        /// Counts what needs the drop-in, which is preloaded, and not the rest.
        #[arg(long)]
        drop_in: bool,
    },
    /// Runs for each subject, for `times`.
    #[command(hide = true)]
    Sampled {
        /// Which of the timed cases.
        index: usize,
        /// Takes the time of the reference.
        #[arg(long)]
        reference: bool,
        /// Which heap the objects come from.
        #[arg(long)]
        heap: u64,
    },
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
        Command::Counts { out, baseline, filter, save } => {
            counts::run(&out, baseline.as_deref(), &filter, save).map(drop)
        }
        Command::Times { filter } => times::run(&filter).map(drop),
        Command::All { out, docs } => all(&out, docs.as_deref()),
        Command::Counted { filter, drop_in } => {
            counts::run_counted(&filter, drop_in);
            Ok(())
        }
        Command::Sampled { index, reference, heap } => {
            times::run_sampled(index, reference, heap);
            Ok(())
        }
    }
}

fn all(out: &Path, docs: Option<&Path>) -> Result<()> {
    let directory = out.join("bench");
    let measured = format!("{}, {}", today()?, machine());
    println!("measured: {measured}");
    let counted = counts::run(&directory, None, "", false)?;
    println!();
    let timed = times::run("")?;
    if let Some(docs) = docs {
        let page = docs.join("benchmarks.md");
        markdown::insert(&page, "machine", &measured)?;
        markdown::insert(&page, "times", &markdown::times(&timed, &case::documented()))?;
    }
    let rows = [counted, timed].concat();
    let json = out.join("bench.json");
    report::write_json(&rows, &json)?;
    println!("\nbench: {}", json.display());
    println!("bench: not measured: an adapter, for this ran on memory that no adapter touched");
    Ok(())
}

fn today() -> Result<String> {
    let output = process::Command::new("date").args(["-u", "+%F"]).output()?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// Processor and kernel.
fn machine() -> String {
    let line = |path: &str, key: &str| {
        let text = fs::read_to_string(path).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with(key)).unwrap_or_default();
        line.rsplit(": ").next().unwrap_or_default().to_owned()
    };
    let processors = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let hypervisor = line("/proc/cpuinfo", "flags").contains(" hypervisor");
    let kind = if hypervisor { "virtual machine" } else { "bare metal" };
    let model = line("/proc/cpuinfo", "model name");
    // Without the suffix of its builder.
    let kernel = kernel.trim().split('-').next().unwrap_or_default();
    format!("{model}, {processors} processors, {kind}, Linux {kernel}")
}
