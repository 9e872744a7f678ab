//! Serves many clients from one task: one SRQ for their requests, one sender for the replies, and a task of tokio for
//! each connection.
//!
//! - The task of a connection exchanges the addresses and waits until its client leaves, so that a slow client holds up
//!   nobody. The task that serves owns receiver and sender, and sleeps until anything happens.
//! - A reply goes out in the buffer that the request came in. The replies of one round to a client have one doorbell.
//!   When the send queue of a client is full, its replies are kept, and nothing more is received until there is room.
//! - A client that is killed costs its own connection.
//! - After Ctrl-C or SIGTERM the server takes no new clients, and asks its clients to end. It ends with the last one.
//!
//! ```text
//! tokio_server &
//! tokio_server --clients 50 --requests 1000 127.0.0.1:18515
//! kill %1
//! ```

mod client;
#[path = "../common/device.rs"]
mod device;
mod server;

use std::error::Error;
use std::process::ExitCode;

use clap::{Parser, value_parser};
use doorbell::DataPath;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Longest request, and longest reply.
const MESSAGE: usize = 64;

/// Requests that a client has outstanding at most.
const WINDOW: u32 = 8;

/// The server asks a client over TCP to end.
const STOP: u8 = 1;

/// Answer requests, or send them
#[derive(Parser)]
struct Args {
    /// Name of the RDMA device [default: the first]
    #[arg(long)]
    device: Option<String>,
    /// How the queues are driven: auto, direct or verbs
    #[arg(long, default_value_t = DataPath::Auto)]
    path: DataPath,
    /// Be so many clients, instead of the server
    #[arg(long, value_parser = value_parser!(u32).range(1..=1000))]
    clients: Option<u32>,
    /// Requests of each client [default: until the server ends]
    #[arg(long)]
    requests: Option<u64>,
    /// Where the server listens
    #[arg(default_value = "127.0.0.1:18515")]
    address: String,
}

/// One thread: the tasks take turns.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let args = Args::parse();
    let run = async {
        let context = device::open(args.device.as_deref())?;
        match args.clients {
            Some(clients) => client::run(&context, &args, clients).await,
            None => server::run(&context, &args).await,
        }
    };
    match run.await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tokio_server: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The reply to a request: its bytes from the last to the first.
fn answer(request: &mut [u8]) {
    request.reverse();
}
