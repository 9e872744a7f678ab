//! Latency of messages between two processes: half of the time that a message takes there and back, as a
//! histogram.
//!
//! ```text
//! latency                       start a server and wait for a client
//! latency HOST --svg plot.svg   measure against the server at HOST
//! ```
//!
//! On a software device it measures that device, not an adapter; there `--events` leaves the device a
//! processor, and `-n 1000` is enough.

mod plot;

use std::error::Error;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, value_parser};
use doorbell::{
    Buffer, BufferPool, Completions, CqConfig, Path, PoolConfig, QpConfig, QueuePair, Receiver, RqConfig, Sender, SqId,
};
use hdrhistogram::Histogram;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const RECEIVES: u32 = 16;

/// How long no message may come.
const PATIENCE: Duration = Duration::from_secs(20);

/// Measure the latency of messages
#[derive(Parser)]
struct Args {
    /// The server; without it this is the server
    host: Option<String>,
    /// Listen on or connect to this port
    #[arg(short, long, default_value_t = 18515)]
    port: u16,
    /// Name of the RDMA device [default: the first]
    #[arg(long)]
    device: Option<String>,
    /// How the queues are driven: auto, direct or verbs
    #[arg(long, default_value_t = Path::Auto)]
    path: Path,
    /// Bytes of a message (of the client; the server does as it does)
    #[arg(short, long, default_value_t = 64, value_parser = value_parser!(u32).range(1..=1 << 20))]
    size: u32,
    /// Messages that are measured
    #[arg(short = 'n', long, default_value_t = 100_000)]
    iters: u32,
    /// Messages before, that are not
    #[arg(short, long, default_value_t = 1_000)]
    warm_up: u32,
    /// Sleep until messages arrive [default: poll]
    #[arg(short, long)]
    events: bool,
    /// Write a plot of the distribution
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("latency: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    match &args.host {
        Some(host) => {
            let stream = TcpStream::connect((host.as_str(), args.port));
            let mut stream = stream.map_err(|e| format!("connection to {host}: {e}"))?;
            let messages = args.warm_up.checked_add(args.iters).ok_or("too many messages")?;
            stream.write_all(&args.size.to_be_bytes())?;
            stream.write_all(&messages.to_be_bytes())?;
            measure(&mut Side::new(args, args.size, &mut stream)?, args)
        }
        None => {
            let listener = TcpListener::bind(("0.0.0.0", args.port));
            let listener = listener.map_err(|e| format!("port {}: {e}", args.port))?;
            println!("waiting for a client on {}", listener.local_addr()?);
            let (mut stream, _) = listener.accept()?;
            let mut word = || -> Result<u32> {
                let mut bytes = [0; 4];
                stream.read_exact(&mut bytes)?;
                Ok(u32::from_be_bytes(bytes))
            };
            let (size, messages) = (word()?, word()?);
            let mut side = Side::new(args, size, &mut stream)?;
            for _ in 0..messages {
                side.receive()?;
                side.send()?;
            }
            side.finish_send()?;
            // The client says by leaving that it has the last answer.
            let _ = stream.read(&mut [0]);
            Ok(())
        }
    }
}

fn measure(side: &mut Side, args: &Args) -> Result<()> {
    // From 1 ns to a minute, to three digits.
    let mut histogram = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3)?;
    for i in 0..args.warm_up + args.iters {
        let began = Instant::now();
        side.send()?;
        side.receive()?;
        let half = began.elapsed().as_nanos() as u64 / 2;
        if i >= args.warm_up {
            histogram.record(half)?;
        }
        // The outstanding send is over: the answer came.
        side.finish_send()?;
    }
    let title = format!(
        "{} messages of {} bytes on {}, path {}",
        args.iters,
        args.size,
        side.receiver.pd().context().name(),
        side.receiver.path()
    );
    println!("{title}: half of there and back, in µs");
    let micros = |nanos: u64| nanos as f64 / 1000.0;
    println!("min {:.3}", micros(histogram.min()));
    // Only quantiles for which there are enough messages.
    for (name, quantile) in plot::quantiles(histogram.len()) {
        println!("{name} {:.3}", micros(histogram.value_at_quantile(quantile)));
    }
    println!("max {:.3}", micros(histogram.max()));
    if let Some(file) = &args.svg {
        let svg = plot::svg(&histogram, &title, "half of the round trip");
        fs::write(file, svg).map_err(|e| format!("{}: {e}", file.display()))?;
    }
    Ok(())
}

/// One end of the connection.
struct Side {
    // Dropped first: it disconnects.
    _qp: QueuePair,
    receiver: Receiver,
    sender: Sender,
    queue: SqId,
    events: bool,
    size: usize,
    /// The buffer to send, while it is not on its way.
    buffer: Option<Buffer>,
}

impl Side {
    fn new(args: &Args, size: u32, stream: &mut TcpStream) -> Result<Self> {
        let context = match &args.device {
            Some(name) => doorbell::open(name)?,
            None => doorbell::devices()?[0].open()?,
        };
        let pd = context.alloc_pd()?;
        let pool = BufferPool::new(&pd, &PoolConfig::new(RECEIVES + 1, size))?;
        let mut buffer = pool.take().ok_or("the pool is too small")?;
        buffer.set_len(size as usize);

        let config = CqConfig::new(RECEIVES).path(args.path);
        let mut receiver = Receiver::new(&pd, &config)?;
        let mut sender = Sender::new(&pd, &CqConfig::new(16).path(args.path))?;
        let config = QpConfig::rc().sends(1);
        let mut qp =
            QueuePair::builder(&config).receive(&mut receiver, RqConfig::new(RECEIVES)).send(&mut sender).build()?;
        let queue = qp.send_queue().ok_or("the queue pair has no send queue")?;
        receiver.fill(qp.receive_queue().ok_or("the queue pair has no receive queue")?, &pool)?;
        qp.connect_over(stream)?;
        let (events, size) = (args.events, size as usize);
        Ok(Self { _qp: qp, receiver, sender, queue, events, size, buffer: Some(buffer) })
    }

    fn send(&mut self) -> Result<()> {
        self.finish_send()?;
        let buffer = self.buffer.take().ok_or("a send is outstanding")?;
        Ok(self.sender.post(self.queue)?.send(buffer)?)
    }

    /// Takes the completion of the send, and its buffer.
    fn finish_send(&mut self) -> Result<()> {
        while self.buffer.is_none() {
            if let Some(completion) = self.sender.poll_up_to(1).next() {
                let completion = completion?;
                self.buffer = completion.buffer;
            }
        }
        Ok(())
    }

    /// Receives one message, which gives its slot back.
    fn receive(&mut self) -> Result<()> {
        let began = Instant::now();
        loop {
            if self.events && !self.receiver.wait(PATIENCE)? {
                return Err(format!("nothing came for {PATIENCE:?}").into());
            }
            if let Some(message) = self.receiver.poll_up_to(1).next() {
                let len = message?.len();
                if len != self.size {
                    return Err(format!("a message of {len} bytes instead of {}", self.size).into());
                }
                return Ok(());
            }
            if began.elapsed() > PATIENCE {
                return Err(format!("nothing came for {PATIENCE:?}").into());
            }
        }
    }
}
