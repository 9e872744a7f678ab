//! Tick to trade: an exchange sends prices as multicast datagrams, a trader answers some of them with an order, and
//! measures the time between the two by the adapter's clock.
//!
//! ```text
//! tick_to_trade trade --svg trade.svg     wait for an exchange, and trade with it
//! tick_to_trade trade --rc                the same, with orders over a connection (RC) instead of UDP datagrams
//! tick_to_trade exchange 127.0.0.1        send prices to the trader there, and check its orders
//! ```
//!
//! Beside the frames the two talk over TCP: the trader says how it sends orders, and at the end how many. The exchange
//! waits for the order that it expects before it sends the next price, so each is measured alone. If the order does not
//! come, it sends the price again, and the trader sends an order again that left as a datagram.

#[path = "../common/device.rs"]
mod device;
mod exchange;
#[path = "../latency/plot.rs"]
mod plot;
#[path = "../common/stream.rs"]
mod stream;
mod trade;
mod wire;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use doorbell::DataPath;
use hdrhistogram::Histogram;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// How long each side waits for the other.
const PATIENCE: Duration = Duration::from_secs(30);

/// Answer prices with orders, and measure the time between them
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
    /// Answer prices with orders
    Trade {
        /// Send orders over a reliable connection instead of UDP datagrams
        #[arg(long)]
        rc: bool,
        /// Write a plot of the times
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
    },
    /// Send prices, and check the orders
    Exchange {
        /// Host of the trader
        host: String,
        /// Prices to send
        #[arg(short = 'n', long, default_value_t = 20_000)]
        ticks: u64,
    },
}

/// Returns quantiles and the maximum of times in nanoseconds, in µs.
fn figures(times: &Histogram<u64>) -> String {
    let quantiles = plot::quantiles(times.len()).map(|(name, quantile)| (name, times.value_at_quantile(quantile)));
    let figures = quantiles.chain([("max", times.max())]);
    figures.map(|(name, nanos)| format!("{name} {:.3}", nanos as f64 / 1000.0)).collect::<Vec<_>>().join(", ")
}

fn main() -> ExitCode {
    let args = Args::parse();
    let done = match &args.role {
        Role::Trade { rc, svg } => trade::run(&args, *rc, svg.as_deref()),
        Role::Exchange { host, ticks } => exchange::run(&args, host, *ticks),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tick_to_trade: {error}");
            ExitCode::FAILURE
        }
    }
}
