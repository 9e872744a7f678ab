//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

/// TCP port of `doorbell selftest --listen`.
const TCP_PORT: u16 = 18_515;

/// Tools for mlx5 (NVIDIA ConnectX) adapters: what is there, and what an error means.
///
/// The exit code is 0 when all is well, 1 when there is something to look at, 2 for wrong use.
#[derive(Debug, Parser)]
#[command(name = "doorbell", version)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show the RDMA devices of this machine, and the path that doorbell takes on each
    Info(InfoArgs),
    /// Explain CQEs, WQEs and error reports of mlx5 adapters in pasted text
    ///
    /// Reads what libmlx5, the kernel, UCX, NCCL, SPDK, perftest, DPDK or DOCA print, and bare hexadecimal bytes in any
    /// grouping, among other lines. For each it says what it is, field by field, what failed, where to look, and how
    /// sure that is. Exits with 1 if there is an error in the text.
    Decode(DecodeArgs),
    /// Find what keeps queue pairs from connecting, or messages from arriving
    ///
    /// Looks at limits, permissions, ports, MTU, GIDs, partitions and counters, sends a message from the port to itself
    /// through each GID, and looks at the counters again. Changes nothing on the machine.
    Doctor(DoctorArgs),
    /// Check that a device does what doorbell relies on
    ///
    /// Some fifty checks, each beside stock libmlx5 where that can be: layouts, receives, CQEs and their signatures,
    /// errors that are provoked, events, barriers, tag matching, speed. Needs no second machine and no root, and
    /// changes nothing but its own objects. Writes a report without names and addresses of the machine, which can be
    /// sent to others.
    Selftest(SelftestArgs),
    /// Run a verbs program on doorbell's data path
    ///
    /// Preloads the drop-in library: what the program posts and polls on mlx5 devices goes through doorbell's rings, as
    /// far as they cover the objects that it makes. DOORBELL_LOG=1 lists these objects, and counts posts and polls;
    /// DOORBELL_PATH=libmlx5 leaves all to libmlx5.
    Run(RunArgs),
    /// Print the completion script for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the manual page (troff)
    Man,
}

/// Arguments of `doorbell info`.
#[derive(Debug, Args)]
pub struct InfoArgs {
    /// Names of the devices [default: all]
    pub devices: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `doorbell doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Name of the device [default: all]
    pub device: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `doorbell selftest`.
#[derive(Debug, Args)]
pub struct SelftestArgs {
    /// Name of the device [default: the first]
    pub device: Option<String>,
    /// Send fewer messages
    #[arg(long)]
    pub quick: bool,
    /// Have another host send, on which doorbell selftest --listen runs
    #[arg(long, value_name = "HOST", conflicts_with = "listen")]
    pub peer: Option<String>,
    /// Send for doorbell selftest --peer of another host, once
    #[arg(long, conflicts_with_all = ["quick", "soak", "only", "report", "bundle", "json"])]
    pub listen: bool,
    /// TCP port between the two
    #[arg(long, value_name = "PORT", default_value_t = TCP_PORT)]
    pub tcp_port: u16,
    /// Index of the GID to use, see doorbell info [default: the best by its type]
    #[arg(long, value_name = "INDEX")]
    pub gid_index: Option<u8>,
    /// Look for stale and torn bytes (G39) for so long, such as 30m or 1h
    #[arg(long, value_name = "TIME", value_parser = duration, conflicts_with = "quick")]
    pub soak: Option<Duration>,
    /// Run only these checks, by their numbers
    #[arg(long, value_name = "B6,D20", value_delimiter = ',')]
    pub only: Vec<String>,
    /// File for the report [default: doorbell-selftest-BOARD-FIRMWARE.txt]
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Write what the device wrote to a file, for soft-mlx5 replay
    #[arg(long, value_name = "FILE")]
    pub bundle: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `doorbell run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// Reads a number of seconds, minutes or hours, as in `90s`, `30m` and `1h`.
fn duration(text: &str) -> Result<Duration, String> {
    let unit = match text.as_bytes().last() {
        Some(b's') => 1,
        Some(b'm') => 60,
        Some(b'h') => 3600,
        _ => 0,
    };
    let number = text.get(..text.len().saturating_sub(1)).and_then(|text| text.parse::<u32>().ok());
    match number {
        Some(number) if unit > 0 && number > 0 => Ok(Duration::from_secs(u64::from(number) * unit)),
        _ => Err("a number and s, m or h, such as 30m".into()),
    }
}

/// Arguments of `doorbell decode`.
#[derive(Debug, Args)]
pub struct DecodeArgs {
    /// File with the text [default: standard input]
    pub file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit() {
        assert_eq!(duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("1h"), Ok(Duration::from_secs(3600)));
        for text in ["", "5", "h", "0m", "-1m", "1d", "1\u{20ac}"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
