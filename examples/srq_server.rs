//! Receives from many connections through one shared receive queue, and checks the messages against the
//! reports of the senders.
//!
//! Start it, then one or more `srq_client`s until all its connections are taken:
//!
//! ```text
//! srq_server --connections 4 &
//! srq_client & srq_client
//! ```

mod common;
#[path = "common/device.rs"]
mod device;

use std::error::Error;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver as Channel};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Parser, value_parser};
use common::{Digest, MAX_MESSAGE, Report};
use device::describe;
use doorbell::{Buffer, BufferPool, CqConfig, DataPath, PoolConfig, QpConfig, QueuePair, Receiver, SrqConfig, SrqId};

/// Receives that are posted. One less than a power of two fits an SRQ best.
const RECEIVES: u32 = 511;

/// One of `SCATTERED` receives has two buffers: a small and a large one.
const SCATTERED: u32 = 4;
const SMALL: u32 = 4 * 1024;

/// One of `KEEP` messages is kept for a while, as by a program that works on it.
const KEEP: u64 = 16;
const KEPT: usize = 64;

/// How long nothing may arrive before the rest counts as lost.
const PATIENCE: Duration = Duration::from_secs(20);

/// Receive from srq_client through a shared receive queue
#[derive(Parser)]
struct Args {
    /// Name of the RDMA device [default: the first]
    #[arg(long)]
    device: Option<String>,
    /// Entry of the GID table to use [default: LIDs on InfiniBand, a RoCE v2 address on Ethernet]
    #[arg(long)]
    gid_index: Option<u8>,
    /// How the queues are driven: auto, direct or verbs
    #[arg(long, default_value_t = DataPath::Auto)]
    path: DataPath,
    /// Connections to wait for
    #[arg(long, default_value_t = 4, value_parser = value_parser!(u32).range(1..))]
    connections: u32,
    /// Where to listen
    #[arg(default_value = "0.0.0.0:18515")]
    listen: String,
}

struct Connection {
    qp: QueuePair,
    stream: TcpStream,
    digest: Digest,
    /// Report of the sender, once it is done.
    reported: Option<Report>,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("srq_server: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<bool, Box<dyn Error>> {
    let context = device::open(args.device.as_deref())?;
    let device = describe(&context);
    let pd = context.alloc_pd()?;
    let large = BufferPool::new(&pd, &PoolConfig::new(RECEIVES + KEPT as u32, MAX_MESSAGE))?;
    let small = BufferPool::new(&pd, &PoolConfig::new(RECEIVES.div_ceil(SCATTERED), SMALL))?;

    let config = CqConfig::new(1024).path(args.path);
    let mut receiver = Receiver::new(&pd, &config)?;
    let srq = receiver.create_srq(&SrqConfig::new(RECEIVES).max_sge(2))?;
    for i in 0..RECEIVES {
        let large = large.take().ok_or("the pool is too small")?;
        if i % SCATTERED == 0 {
            let small = small.take().ok_or("the pool is too small")?;
            receiver.post_scatter(srq, vec![small, large])?;
        } else {
            receiver.post(srq, [large])?;
        }
    }

    let listener = TcpListener::bind(&args.listen).map_err(|e| format!("{}: {e}", args.listen))?;
    println!("{} receives posted on {device}, path {}", RECEIVES, receiver.path());
    println!("waiting for {} connections on {}", args.connections, listener.local_addr()?);
    let mut config = QpConfig::rc().max_send_wr(1);
    if let Some(index) = args.gid_index {
        config = config.gid_index(index);
    }
    let mut connections = Vec::new();
    for i in 1..=args.connections {
        let (mut stream, peer) = listener.accept()?;
        let mut qp = QueuePair::builder(&config).receive(&mut receiver, srq).build()?;
        qp.connect_over(&mut stream).map_err(|e| format!("{peer}: {e}"))?;
        println!("connection {i} from {peer} on QP {:#x}", qp.qp_num());
        connections.push(Connection { qp, stream, digest: Digest::default(), reported: None });
    }

    let reports = await_reports(&connections)?;
    let messages = receive(&mut receiver, srq, &mut connections, &reports)?;

    let (mut lost, mut corrupted) = (0, 0);
    for (i, connection) in connections.iter().enumerate() {
        let received = connection.digest.report();
        let Some(sent) = connection.reported else {
            return Err(format!("connection {} ended without a report", i + 1).into());
        };
        if received.messages != sent.messages {
            println!("connection {}: {} of {} messages", i + 1, received.messages, sent.messages);
            lost += sent.messages.abs_diff(received.messages);
        } else if received.hash != sent.hash {
            println!("connection {}: the hash is not that of the sender", i + 1);
            corrupted += 1;
        }
    }
    let ok = lost == 0 && corrupted == 0;
    for connection in &mut connections {
        connection.stream.write_all(&[u8::from(ok)])?;
    }
    // The clients print their last lines before the verdict.
    for connection in &mut connections {
        connection.stream.set_read_timeout(Some(PATIENCE))?;
        let _ = connection.stream.read(&mut [0]);
    }
    println!(
        "demo: {}: {messages} messages, path {}, device {device}, {lost} lost, {corrupted} corrupted",
        if ok { "ok" } else { "FAILED" },
        receiver.path(),
    );
    Ok(ok)
}

/// Reads the report of each connection in a thread of its own, which may wait.
fn await_reports(connections: &[Connection]) -> io::Result<Channel<(usize, io::Result<Report>)>> {
    let (sender, reports) = mpsc::channel();
    for (i, connection) in connections.iter().enumerate() {
        let (stream, sender) = (connection.stream.try_clone()?, sender.clone());
        thread::spawn(move || sender.send((i, Report::read(stream))));
    }
    Ok(reports)
}

/// Receives until all that was reported has come, or nothing comes any more.
fn receive(
    receiver: &mut Receiver,
    srq: SrqId,
    connections: &mut [Connection],
    reports: &Channel<(usize, io::Result<Report>)>,
) -> Result<u64, Box<dyn Error>> {
    let mut kept = Vec::new();
    let mut meter = Meter::new();
    let mut progress = Instant::now();
    loop {
        let before = meter.messages;
        let mut batch = receiver.poll();
        while let Some(message) = batch.next() {
            let message = message?;
            let connection = connections
                .iter_mut()
                .find(|connection| connection.qp.qp_num() == message.qp_num())
                .ok_or("a message of no connection")?;
            connection.digest.update(message.segments());
            meter.count(message.len());
            if meter.messages % KEEP == 0 {
                kept.push(message.into_buffers());
            }
            // A message that is dropped gives its buffers back to the queue.
        }
        drop(batch);
        while kept.len() > KEPT {
            // Not the oldest, and not the newest.
            let buffers = kept.swap_remove(meter.messages as usize % KEPT);
            post_again(receiver, srq, buffers)?;
        }

        while let Ok((i, report)) = reports.try_recv() {
            let report = report.map_err(|e| format!("connection {}: no report: {e}", i + 1))?;
            connections[i].reported = Some(report);
        }
        let complete = |connection: &Connection| {
            connection.reported.is_some_and(|sent| connection.digest.messages() >= sent.messages)
        };
        if meter.messages > before {
            progress = Instant::now();
        } else if connections.iter().all(complete) || progress.elapsed() > PATIENCE {
            break;
        } else {
            thread::yield_now();
        }
        meter.print_each_second();
    }
    meter.print_total();
    Ok(meter.messages)
}

fn post_again(receiver: &mut Receiver, srq: SrqId, buffers: Vec<Buffer>) -> Result<(), Box<dyn Error>> {
    if buffers.len() == 1 {
        receiver.post(srq, buffers)?;
    } else {
        receiver.post_scatter(srq, buffers)?;
    }
    Ok(())
}

/// Counts messages, and prints the rate.
struct Meter {
    began: Instant,
    messages: u64,
    bytes: u64,
    printed: Instant,
    printed_messages: u64,
}

impl Meter {
    fn new() -> Self {
        let now = Instant::now();
        Self { began: now, messages: 0, bytes: 0, printed: now, printed_messages: 0 }
    }

    fn count(&mut self, len: usize) {
        self.messages += 1;
        self.bytes += len as u64;
    }

    fn print_each_second(&mut self) {
        let elapsed = self.printed.elapsed();
        if elapsed >= Duration::from_secs(1) {
            let rate = (self.messages - self.printed_messages) as f64 / elapsed.as_secs_f64();
            println!("{} messages received, {rate:.0} messages/s", self.messages);
            (self.printed, self.printed_messages) = (Instant::now(), self.messages);
        }
    }

    fn print_total(&self) {
        let seconds = self.began.elapsed().as_secs_f64();
        println!(
            "{} messages, {:.1} MB in {seconds:.1} s: {:.0} messages/s",
            self.messages,
            self.bytes as f64 / 1e6,
            self.messages as f64 / seconds
        );
    }
}
