//! Receives datagrams of a multicast group, with the times at which the adapter took them from the wire, and sends
//! them.
//!
//! ```text
//! multicast --messages 1000 &
//! multicast --send 1000 --gap 100
//! ```
//!
//! Each datagram has a number, so that the receiver knows how many it has missed: none is sent again.

use std::error::Error;
use std::net::IpAddr;
use std::process::ExitCode;
use std::time::Duration;
use std::{fs, thread};

use clap::Parser;
use doorbell::{
    BufferPool, Completions, CqConfig, DataPath, GRH_SIZE, MulticastGroup, PoolConfig, ProtectionDomain, QpConfig,
    QueuePair, Receiver, RqConfig, Sender, Timestamps,
};
use socket2::{Domain, InterfaceIndexOrAddress, Socket, Type};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Receives that are posted.
const RECEIVES: u32 = 1024;

/// Bytes of a datagram: its number, and nothing else that matters.
const PAYLOAD: usize = 64;

/// Receive from a multicast group, or send to it
#[derive(Parser)]
struct Args {
    /// Name of the RDMA device [default: the first]
    #[arg(long)]
    device: Option<String>,
    /// How the queues are driven: auto, direct or verbs
    #[arg(long, default_value_t = DataPath::Auto)]
    path: DataPath,
    /// The group
    #[arg(long, default_value = "ff0e::db")]
    group: IpAddr,
    /// Join over this network interface as an ordinary socket does too, for switches and the host to know
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// LID of the group, on InfiniBand: the subnet manager knows it
    #[arg(long, default_value_t = 0xc001)]
    mlid: u16,
    /// Queue key of the members
    #[arg(long, default_value_t = 0x00db)]
    qkey: u32,
    /// End after so many datagrams [default: receive for ever]
    #[arg(long)]
    messages: Option<u64>,
    /// Send so many datagrams instead
    #[arg(long)]
    send: Option<u64>,
    /// Microseconds between two datagrams that are sent
    #[arg(long, default_value_t = 10)]
    gap: u64,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let done = open(&args).and_then(|pd| match args.send {
        Some(count) => send(&pd, &args, count),
        None => receive(&pd, &args),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("multicast: {error}");
            ExitCode::FAILURE
        }
    }
}

fn open(args: &Args) -> Result<ProtectionDomain> {
    let context = match &args.device {
        Some(name) => doorbell::open(name)?,
        None => doorbell::devices()?[0].open()?,
    };
    Ok(context.alloc_pd()?)
}

/// A socket that is a member of the group for as long as it exists, and receives nothing.
fn ordinary_member(group: IpAddr, interface: &str) -> Result<Socket> {
    let index = fs::read_to_string(format!("/sys/class/net/{interface}/ifindex"))
        .map_err(|error| format!("network interface {interface}: {error}"))?;
    let index = index.trim().parse()?;
    let domain = Domain::for_address((group, 0).into());
    let socket = Socket::new(domain, Type::DGRAM, None)?;
    match group {
        IpAddr::V4(group) => {
            socket.join_multicast_v4_n(&group, &InterfaceIndexOrAddress::Index(index))?;
        }
        IpAddr::V6(group) => socket.join_multicast_v6(&group, index)?,
    }
    Ok(socket)
}

/// The group as the port of this queue pair names it.
fn group(args: &Args, qp: &QueuePair) -> Result<MulticastGroup> {
    let group = MulticastGroup::ip(args.group);
    // Ethernet has no LIDs.
    let lid = if qp.address()?.lid == 0 { 0 } else { args.mlid };
    Ok(MulticastGroup { lid, ..group })
}

fn receive(pd: &ProtectionDomain, args: &Args) -> Result<()> {
    let pool = BufferPool::new(pd, &PoolConfig::new(RECEIVES, (GRH_SIZE + PAYLOAD) as u32))?;
    let config = CqConfig::for_pool(&pool).path(args.path).timestamps(Timestamps::Ticks);
    let mut receiver = Receiver::new(pd, &config)?;
    let own = RqConfig::for_pool(&pool);
    let mut qp = QueuePair::builder(&QpConfig::ud(args.qkey)).receive(&mut receiver, own).build()?;
    let queue = qp.receive_queue().ok_or("a queue pair without SRQ has a queue of its own")?;
    receiver.fill(queue, &pool)?;
    qp.activate()?;
    let _member = args.interface.as_ref().map(|interface| ordinary_member(args.group, interface)).transpose()?;
    qp.join(&group(args, &qp)?)?;
    println!("joined {}, path {}", args.group, receiver.path());

    let mut seen = Seen::default();
    while args.messages != Some(seen.count) {
        // Until the next datagram there is nothing to do.
        receiver.wait(None)?;
        // The reading turns ticks into nanoseconds; on an mlx5 device it costs no system call.
        let clock = pd.context().clock().ok();
        let mut batch = receiver.poll();
        while let Some(message) = batch.next() {
            let message = message?;
            let time = match (message.timestamp(), clock) {
                (Some(timestamp), Some(clock)) => Some(clock.nanoseconds(timestamp)?),
                _ => None,
            };
            let datagram = message.datagram().ok_or("not a datagram")?;
            let Some(&number) = datagram.payload().first_chunk() else { continue };
            seen.datagram(u64::from_be_bytes(number), time);
            if args.messages == Some(seen.count) {
                break;
            }
        }
    }
    print!("{}", seen.summary());
    Ok(())
}

/// Statistics of the datagrams of the group.
#[derive(Default)]
struct Seen {
    count: u64,
    first: Option<u64>,
    last: u64,
    last_time: Option<u64>,
    /// Nanoseconds from one datagram to the next.
    gaps: Vec<u64>,
}

impl Seen {
    fn datagram(&mut self, number: u64, time: Option<u64>) {
        self.count += 1;
        self.first.get_or_insert(number);
        self.last = self.last.max(number);
        if let (Some(now), Some(before)) = (time, self.last_time) {
            self.gaps.push(now.saturating_sub(before));
        }
        self.last_time = time;
    }

    fn summary(&mut self) -> String {
        let first = self.first.unwrap_or_default();
        let sent = if self.count == 0 { 0 } else { self.last - first + 1 };
        let missed = sent.saturating_sub(self.count);
        let mut summary = format!("{} datagrams, {missed} missed\n", self.count);
        self.gaps.sort_unstable();
        match self.gaps[..] {
            [] | [_] => summary += "no timestamps: the device has no clock\n",
            [least, .., most] => {
                let median = self.gaps[self.gaps.len() / 2];
                summary += &format!("gaps in ns: least {least}, median {median}, most {most}\n");
            }
        }
        summary
    }
}

fn send(pd: &ProtectionDomain, args: &Args, count: u64) -> Result<()> {
    let config = QpConfig::ud(args.qkey).max_inline(PAYLOAD as u32);
    let mut sender = Sender::new(pd, &CqConfig::for_sends(&config, 1).path(args.path))?;
    let mut qp = QueuePair::builder(&config).send(&mut sender).build()?;
    let queue = qp.send_queue().ok_or("the queue pair has no send queue")?;
    qp.activate()?;
    let to = qp.multicast_handle(&group(args, &qp)?, args.qkey)?;
    let mut payload = [0; PAYLOAD];
    for number in 0..count {
        payload[..8].copy_from_slice(&number.to_be_bytes());
        sender.post(queue)?.send_to(&to, payload, None)?;
        sender.wait(None)?;
        if let Some(done) = sender.next() {
            done?;
        }
        thread::sleep(Duration::from_micros(args.gap));
    }
    println!("{count} datagrams sent to {}", args.group);
    Ok(())
}
