//! Market data: a publisher sends one sequence of updates twice, on an A and a B feed; a subscriber takes whichever
//! copy comes first, and finds what is missing.
//!
//! ```text
//! market_data subscribe --svg latency.svg    wait for a publisher, and receive from it
//! market_data publish 127.0.0.1              send a feed to the subscriber there
//! market_data publish 127.0.0.1 --capture f  send the updates of a capture file
//! ```
//!
//! The updates are UDP multicast in Ethernet frames. Beside them the two talk over TCP: the subscriber says how far it
//! is, so that the publisher does not overrun it, and the publisher says at the end how many frames it sent, and which
//! it left out on purpose. Every other gap is a frame that was lost on the way.

mod capture;
#[path = "../common/device.rs"]
mod device;
mod feed;
#[path = "../latency/plot.rs"]
mod plot;
mod publish;
#[path = "../common/stream.rs"]
mod stream;
mod subscribe;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use doorbell::DataPath;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Send or receive market data on two feeds
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    role: Role,
    /// Name of the RDMA device [default: the first]
    #[arg(long, global = true)]
    device: Option<String>,
    /// How the queues are driven: auto, direct or verbs
    #[arg(long, global = true, default_value_t = DataPath::Auto)]
    path: DataPath,
    /// TCP port by which the two find each other
    #[arg(short, long, global = true, default_value_t = 18515)]
    port: u16,
}

#[derive(Subcommand)]
enum Role {
    /// Receive both feeds, and say what was missing
    Subscribe(subscribe::Options),
    /// Send both feeds
    Publish {
        /// Host of the subscriber
        host: String,
        /// Frames to send, on both feeds together
        #[arg(short = 'n', long, default_value_t = 1_000_000)]
        frames: u64,
        /// Leave out one frame of so many, on purpose; 0 for none
        #[arg(long, default_value_t = 1000)]
        drop_one_in: u64,
        /// Start of the sequence of random sizes and gaps
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Send the updates of this capture file (pcap, pcapng) instead, as fast as the subscriber takes them
        #[arg(long, value_name = "FILE", conflicts_with_all = ["frames", "drop_one_in", "seed"])]
        capture: Option<PathBuf>,
    },
}

fn main() -> ExitCode {
    let args = Args::parse();
    let done = match &args.role {
        Role::Subscribe(options) => subscribe::run(&args, options),
        Role::Publish { host, capture: Some(file), .. } => {
            publish::Source::of_capture(file).and_then(|source| publish::run(&args, host, source))
        }
        Role::Publish { host, frames, drop_one_in, seed, capture: None } => {
            publish::run(&args, host, publish::Source::of_feed(*frames, *drop_one_in, *seed))
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("market_data: {error}");
            ExitCode::FAILURE
        }
    }
}
