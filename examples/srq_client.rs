//! Sends messages of all sizes to `srq_server`, over several connections.
//!
//! The client does not keep its messages: at the end it reports to the server over TCP how many
//! messages it sent on a connection, and their hash.
//!
//! ```text
//! srq_client --connections 2 --messages 100000 [ADDRESS]
//! ```

mod common;

use std::error::Error;
use std::io::Read;
use std::net::TcpStream;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::{Parser, value_parser};
use common::{Digest, MAX_MESSAGE};
use doorbell::{BufferPool, CqConfig, PoolConfig, QpConfig, QueuePair, Sender, SqId};
use fastrand::Rng;

/// Sends that are outstanding at most on each connection.
const SENDS: u32 = 64;

/// How long to wait for the server to listen, and for a send to complete.
const PATIENCE: Duration = Duration::from_secs(30);

/// Send messages to srq_server
#[derive(Parser)]
struct Args {
    /// Name of the RDMA device [default: the first]
    #[arg(long)]
    device: Option<String>,
    /// Entry of the GID table to use [default: LIDs on InfiniBand, a RoCE v2 address on Ethernet]
    #[arg(long)]
    gid_index: Option<u8>,
    /// Connections to open
    #[arg(long, default_value_t = 2, value_parser = value_parser!(u32).range(1..))]
    connections: u32,
    /// Messages to send, on all connections together
    #[arg(long, default_value_t = 100_000)]
    messages: u64,
    /// Start of the sequence of random sizes and contents
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Address of the server
    #[arg(default_value = "127.0.0.1:18515")]
    server: String,
}

struct Connection {
    queue: SqId,
    stream: TcpStream,
    digest: Digest,
    to_send: u64,
    /// Sends that are not over.
    outstanding: u32,
    /// Has to live until the server has everything.
    _qp: QueuePair,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("srq_client: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let context = match &args.device {
        Some(name) => doorbell::open(name)?,
        None => doorbell::devices()?[0].open()?,
    };
    let pd = context.alloc_pd()?;
    let pool = BufferPool::new(&pd, &PoolConfig::new(SENDS * args.connections, MAX_MESSAGE))?;
    let mut config = QpConfig::rc().max_send_wr(SENDS);
    if let Some(index) = args.gid_index {
        config = config.gid_index(index);
    }
    let mut sender = Sender::new(&pd, &CqConfig::for_sends(&config, args.connections))?;

    let mut connections = Vec::new();
    for i in 0..u64::from(args.connections) {
        let mut stream = connect(&args.server)?;
        let mut qp = QueuePair::builder(&config).send(&mut sender).build()?;
        qp.connect_over(&mut stream)?;
        let queue = qp.send_queue().ok_or("the queue pair has no send queue")?;
        let share = args.messages / u64::from(args.connections);
        let odd = u64::from(i < args.messages % u64::from(args.connections));
        let (digest, to_send) = (Digest::default(), share + odd);
        let connection = Connection { queue, stream, digest, to_send, outstanding: 0, _qp: qp };
        connections.push(connection);
    }

    send_all(&mut sender, &mut connections, &pool, &mut Rng::with_seed(args.seed))?;
    println!("sent {} messages on {} connections", args.messages, args.connections);
    for connection in &mut connections {
        connection.digest.report().write(&mut connection.stream)?;
    }
    // The server answers when it has received everything or given up waiting for it: the queue pairs
    // must live until then.
    for connection in &mut connections {
        let mut verdict = [0];
        connection.stream.read_exact(&mut verdict)?;
        if verdict != [1] {
            return Err("the server did not receive what was sent".into());
        }
    }
    Ok(())
}

/// The server may still be starting.
fn connect(server: &str) -> Result<TcpStream, Box<dyn Error>> {
    let began = Instant::now();
    loop {
        match TcpStream::connect(server) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) if began.elapsed() > PATIENCE => {
                return Err(format!("connection to {server}: {error}").into());
            }
            Err(_) => thread::sleep(Duration::from_millis(50)),
        }
    }
}

fn send_all(
    sender: &mut Sender,
    connections: &mut [Connection],
    pool: &BufferPool,
    random: &mut Rng,
) -> Result<(), Box<dyn Error>> {
    let mut progress = Instant::now();
    loop {
        let (mut idle, mut done) = (true, true);
        let mut batch = sender.poll();
        while let Some(completion) = batch.next() {
            let completion = completion?;
            // Its buffer goes back to the pool here.
            connections[completion.token as usize].outstanding -= 1;
            idle = false;
        }
        drop(batch);
        for (index, connection) in connections.iter_mut().enumerate() {
            let Connection { queue, digest, to_send, outstanding, .. } = connection;
            // The doorbell rings once for all messages that there is room for.
            let mut posting = sender.post_many(*queue)?;
            while *to_send > 0 && *outstanding < SENDS {
                let mut buffer = pool.take().expect("there are as many buffers as sends");
                buffer.set_len(random_len(random));
                random.fill(&mut buffer);
                digest.update([&buffer[..]]);
                posting.token(index as u64).send(buffer)?;
                *to_send -= 1;
                *outstanding += 1;
                idle = false;
            }
            done &= *to_send == 0 && *outstanding == 0;
        }
        if done {
            return Ok(());
        }
        if !idle {
            progress = Instant::now();
        } else if progress.elapsed() > PATIENCE {
            return Err(format!("no send has completed for {PATIENCE:?}").into());
        } else {
            thread::yield_now();
        }
    }
}

/// Returns a length from 0 to the longest. Each power of two is as frequent as the next.
fn random_len(random: &mut Rng) -> usize {
    let longest = MAX_MESSAGE as usize >> random.u32(..17);
    random.usize(..=longest)
}
