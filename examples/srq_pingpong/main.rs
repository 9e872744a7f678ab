//! `ibv_srq_pingpong` of rdma-core on doorbell: the same options, the same exchange of addresses over TCP, the
//! same messages, so that either can be the peer of the other. The book goes through both line by line.
//!
//! ```text
//! srq_pingpong             start a server and wait for a connection
//! srq_pingpong HOST        connect to the server at HOST
//! ```

mod address;

use std::error::Error;
use std::os::fd::AsRawFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, value_parser};
use doorbell::{
    Buffer, BufferPool, Completions, CqConfig, DataPath, Mtu, PoolConfig, QpConfig, QueuePair, Receiver, Sender,
    SrqConfig, SrqId,
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Addresses that the two sides exchange, whether they have as many queue pairs or not.
const MAX_QP: usize = 256;

/// Bytes between two bytes that `--chk` checks.
const PAGE: usize = 4096;

/// Exchange messages with a peer over several connections that share a receive queue
#[derive(Parser)]
struct Args {
    /// Listen on or connect to this port
    #[arg(short, long, default_value_t = 18515)]
    port: u16,
    /// Name of the RDMA device [default: the first]
    #[arg(short = 'd', long)]
    ib_dev: Option<String>,
    /// Port of the device
    #[arg(short, long, default_value_t = 1)]
    ib_port: u8,
    /// Bytes of a message
    #[arg(short, long, default_value_t = 4096, value_parser = value_parser!(u32).range(1..))]
    size: u32,
    /// DataPath MTU: 256, 512, 1024, 2048 or 4096
    #[arg(short, long, default_value = "1024", value_parser = mtu)]
    mtu: Mtu,
    /// Queue pairs
    #[arg(short = 'q', long, default_value_t = 16, value_parser = value_parser!(u32).range(1..256))]
    num_qp: u32,
    /// Receives to keep posted
    #[arg(short, long, default_value_t = 500)]
    rx_depth: u32,
    /// Messages in each direction, on all queue pairs together
    #[arg(short = 'n', long, default_value_t = 1000)]
    iters: u64,
    /// Service level
    #[arg(short = 'l', long, default_value_t = 0)]
    sl: u8,
    /// Sleep until messages arrive [default: poll]
    #[arg(short, long)]
    events: bool,
    /// Use on-demand paging, which doorbell does not offer
    #[arg(short, long)]
    odp: bool,
    /// Entry of the port's GID table [default: LIDs on InfiniBand, a RoCE v2 address on Ethernet]
    #[arg(short, long)]
    gid_idx: Option<u8>,
    /// Validate what is received
    #[arg(short, long)]
    chk: bool,
    /// How the queues are driven: auto, direct or verbs (not an option of ibv_srq_pingpong)
    #[arg(long, default_value_t = DataPath::Auto)]
    path: DataPath,
    /// The server; without it this is the server
    host: Option<String>,
}

fn mtu(text: &str) -> std::result::Result<Mtu, String> {
    let all = [Mtu::Mtu256, Mtu::Mtu512, Mtu::Mtu1024, Mtu::Mtu2048, Mtu::Mtu4096];
    let found = all.into_iter().find(|mtu| mtu.bytes().to_string() == text);
    found.ok_or_else(|| "an MTU is 256, 512, 1024, 2048 or 4096".to_owned())
}

struct PingPong<'a> {
    args: &'a Args,
    // Dropped before the receiver: it disconnects.
    qps: Vec<QueuePair>,
    receiver: Receiver,
    sender: Sender,
    srq: SrqId,
    pool: BufferPool,
    posted: u32,
    /// By queue pair: the message that was received and not answered yet.
    answers: Vec<Option<Buffer>>,
    /// By queue pair: its send is not over.
    on_its_way: Vec<bool>,
    received: u64,
    sent: u64,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("srq_pingpong: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    if args.num_qp > args.rx_depth {
        return Err("there must be at least one receive per queue pair".into());
    }
    if args.odp {
        return Err("doorbell registers memory that stays in place: on-demand paging is not offered".into());
    }
    let mut side = PingPong::new(args)?;
    side.connect()?;
    if args.host.is_some() {
        side.begin()?;
    }
    let began = Instant::now();
    side.exchange()?;
    print_result(args, began.elapsed());
    Ok(())
}

impl<'a> PingPong<'a> {
    fn new(args: &'a Args) -> Result<Self> {
        let context = match &args.ib_dev {
            Some(name) => doorbell::open(name)?,
            None => doorbell::devices()?[0].open()?,
        };
        let pd = context.alloc_pd()?;
        // A buffer for each receive, and one for the message that each queue pair sends.
        let pool = BufferPool::new(&pd, &PoolConfig::new(args.rx_depth + args.num_qp, args.size))?;
        let cq_capacity = (args.rx_depth + args.num_qp).next_power_of_two();
        let config = CqConfig::new(cq_capacity).path(args.path);
        let mut receiver = Receiver::new(&pd, &config)?;
        let srq = receiver.create_srq(&SrqConfig::new(args.rx_depth))?;

        let mut config = QpConfig::rc().max_send_wr(1).port(args.ib_port).mtu(args.mtu);
        config = config.service_level(args.sl);
        if let Some(index) = args.gid_idx {
            config = config.gid_index(index);
        }
        let sending = CqConfig::new(4 * args.num_qp).path(args.path);
        let mut sender = Sender::new(&pd, &sending)?;
        let create = |_| QueuePair::builder(&config).receive(&mut receiver, srq).send(&mut sender).build();
        let qps = (0..args.num_qp).map(create);
        let qps = qps.collect::<doorbell::Result<Vec<_>>>()?;

        let answers = qps.iter().map(|_| None).collect();
        let (posted, received, sent) = (0, 0, 0);
        let on_its_way = vec![false; args.num_qp as usize];
        let mut side = Self { args, qps, receiver, sender, srq, pool, posted, answers, on_its_way, received, sent };
        side.post()?;
        Ok(side)
    }

    /// Posts receives until as many are posted as there should be.
    fn post(&mut self) -> Result<()> {
        let missing = (self.args.rx_depth - self.posted) as usize;
        let buffers = std::iter::from_fn(|| self.pool.take()).take(missing);
        let posted = self.receiver.post(self.srq, buffers).map_err(|error| error.to_string())?;
        self.posted += posted as u32;
        Ok(())
    }

    fn connect(&mut self) -> Result<()> {
        let here = self.qps.iter().map(QueuePair::address).collect::<doorbell::Result<Vec<_>>>()?;
        here.iter().for_each(|address| address::print("local address: ", address));
        let qps = &mut self.qps;
        let mut connect =
            |there: &[doorbell::QpAddress]| there.iter().zip(&mut *qps).try_for_each(|(there, qp)| qp.connect(there));
        let there = match &self.args.host {
            Some(host) => address::call(host, self.args.port, &here, &mut connect)?,
            None => address::serve(self.args.port, &here, &mut connect)?,
        };
        there.iter().for_each(|address| address::print("remote address:", address));
        Ok(())
    }

    /// The client sends first, on every queue pair.
    fn begin(&mut self) -> Result<()> {
        for qp in 0..self.qps.len() {
            let mut buffer = self.pool.take().ok_or("the pool is too small")?;
            buffer.set_len(self.args.size as usize);
            for (i, byte) in buffer.iter_mut().enumerate() {
                *byte = pattern(i);
            }
            self.send(qp, buffer)?;
        }
        Ok(())
    }

    fn send(&mut self, qp: usize, buffer: Buffer) -> Result<()> {
        let queue = self.qps[qp].send_queue().ok_or("the queue pair has no send queue")?;
        self.sender.post(queue)?.token(qp as u64).send(buffer)?;
        self.on_its_way[qp] = true;
        Ok(())
    }

    /// Answers each message with itself until all messages have gone each way.
    fn exchange(&mut self) -> Result<()> {
        let iters = self.args.iters;
        while self.received < iters || self.sent < iters {
            if self.args.events {
                self.sleep()?;
            }
            let mut batch = self.receiver.poll();
            while let Some(message) = batch.next() {
                let message = message?;
                let qp = self.qps.iter().position(|qp| qp.qp_num() == message.qp_num());
                let qp = qp.ok_or("a message of no queue pair")?;
                if self.args.chk {
                    check(&message, self.args)?;
                }
                self.received += 1;
                self.posted -= 1;
                self.answers[qp] = Some(message.take()?);
            }
            drop(batch);

            let mut batch = self.sender.poll();
            while let Some(completion) = batch.next() {
                let completion = completion?;
                // Its buffer goes back to the pool.
                self.sent += 1;
                self.on_its_way[completion.token as usize] = false;
            }
            drop(batch);
            for qp in 0..self.qps.len() {
                if self.sent < iters && !self.on_its_way[qp] {
                    if let Some(mut answer) = self.answers[qp].take() {
                        answer.set_len(self.args.size as usize);
                        self.send(qp, answer)?;
                    }
                }
            }
            if self.posted <= self.args.num_qp {
                self.post()?;
            }
        }
        Ok(())
    }

    /// Sleeps until a message arrives or a send is over.
    fn sleep(&mut self) -> Result<()> {
        if self.receiver.arm()? || self.sender.arm()? {
            return Ok(());
        }
        let channels = [self.receiver.channel(), self.sender.channel()];
        let mut fds = channels.map(|channel| libc::pollfd {
            fd: channel.map_or(-1, AsRawFd::as_raw_fd),
            events: libc::POLLIN,
            revents: 0,
        });
        // SAFETY: as many structures as the array holds. A signal is as good as a wake-up.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, -1) };
        Ok(())
    }
}

/// A byte of the client's messages: zero at the start of each page, where `ibv_srq_pingpong -c` expects it.
fn pattern(i: usize) -> u8 {
    (i % PAGE % 251) as u8
}

/// Checks a message. The server may have a client of either kind; the client gets the bytes that it sent.
fn check(message: &[u8], args: &Args) -> Result<()> {
    let step = if args.host.is_some() { 1 } else { PAGE };
    for (i, &byte) in message.iter().enumerate().step_by(step) {
        if byte != pattern(i) {
            return Err(format!("invalid data in page {}", i / PAGE).into());
        }
    }
    Ok(())
}

fn print_result(args: &Args, elapsed: Duration) {
    let (bytes, seconds) = (u64::from(args.size) * args.iters * 2, elapsed.as_secs_f64());
    let megabits = bytes as f64 * 8.0 / seconds / 1e6;
    println!("{bytes} bytes in {seconds:.2} seconds = {megabits:.2} Mbit/sec");
    let micros = seconds * 1e6 / args.iters as f64;
    println!("{} iters in {seconds:.2} seconds = {micros:.2} usec/iter", args.iters);
}
