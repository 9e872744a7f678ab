//! Latency of single messages: half of the time that a message takes there and back, as a histogram. doorbell and
//! libmlx5 take turns, message by message, and are drawn in one picture.
//!
//! ```text
//! latency --local               both ends on this machine, in one thread
//! latency                       start a server and wait for a client
//! latency HOST --svg plot.svg   measure against the server at HOST
//! ```
//!
//! Each end is one thread on a processor of its own that polls, and allocates nothing while it measures. On a software
//! device it measures that device, not an adapter; there `--events` leaves the device a processor, and `-n 1000` is
//! enough.

#[path = "../common/device.rs"]
mod device;
mod plot;
mod side;

use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;
use std::{fs, mem};

use clap::{Parser, value_parser};
use doorbell::{Context, DataPath};
use hdrhistogram::Histogram;
use plot::Curve;
use side::Side;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Measure the latency of messages
#[derive(Parser)]
struct Args {
    /// The server; without it this is the server
    host: Option<String>,
    /// Both ends are this thread: no server
    #[arg(short, long, conflicts_with = "host")]
    local: bool,
    /// Listen on or connect to this port
    #[arg(short, long, default_value_t = 18515)]
    port: u16,
    /// Name of the RDMA device [default: the first]
    #[arg(long)]
    device: Option<String>,
    /// Measure one way to drive the queues: auto, direct or verbs [default: direct beside verbs, where both work]
    #[arg(long)]
    path: Option<DataPath>,
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
    /// Run on this processor [default: the last one; the server on the one before]
    #[arg(long)]
    cpu: Option<usize>,
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
    let context = device::open(args.device.as_deref())?;
    // A software device has started its thread by now.
    pin(args.cpu, args.host.is_none() && !args.local)?;
    let messages = args.warm_up.checked_add(args.iters).ok_or("too many messages")?;
    if args.local {
        let new = |&path| Side::new(&context, path, args.size, args.events);
        let paths = paths(args, &context);
        let mut near = paths.iter().map(new).collect::<Result<Vec<_>>>()?;
        let mut far = paths.iter().map(new).collect::<Result<Vec<_>>>()?;
        for (near, far) in near.iter_mut().zip(&mut far) {
            near.connect_to(far)?;
        }
        return measure(args, &context, &mut near, &mut far);
    }
    if let Some(host) = &args.host {
        let stream = TcpStream::connect((host.as_str(), args.port));
        let mut stream = stream.map_err(|e| format!("connection to {host}: {e}"))?;
        let paths = paths(args, &context);
        for word in [args.size, messages, paths.len() as u32] {
            stream.write_all(&word.to_be_bytes())?;
        }
        let mut sides = Vec::new();
        for path in paths {
            let mut side = Side::new(&context, path, args.size, args.events)?;
            side.connect_over(&mut stream)?;
            sides.push(side);
        }
        return measure(args, &context, &mut sides, &mut []);
    }
    let listener = TcpListener::bind(("0.0.0.0", args.port));
    let listener = listener.map_err(|e| format!("port {}: {e}", args.port))?;
    println!("waiting for a client on {}", listener.local_addr()?);
    let (mut stream, _) = listener.accept()?;
    let mut word = || -> Result<u32> {
        let mut bytes = [0; 4];
        stream.read_exact(&mut bytes)?;
        Ok(u32::from_be_bytes(bytes))
    };
    let (size, messages, ways) = (word()?, word()?, word()?);
    let own = paths(args, &context);
    let mut sides = Vec::new();
    for way in 0..ways as usize {
        let path = own[way % own.len()];
        let mut side = Side::new(&context, path, size, args.events)?;
        side.connect_over(&mut stream)?;
        sides.push(side);
    }
    for _ in 0..messages {
        for side in &mut sides {
            side.receive()?;
            side.send()?;
            side.finish_send()?;
        }
    }
    // The client says by leaving that it has the last answer.
    let _ = stream.read(&mut [0]);
    Ok(())
}

/// The ways that are measured.
fn paths(args: &Args, context: &Context) -> Vec<DataPath> {
    match (args.path, context.auto_path().0) {
        (Some(path), _) => vec![path],
        (None, DataPath::Direct) => vec![DataPath::Direct, DataPath::Verbs],
        (None, other) => vec![other],
    }
}

/// Keeps this thread on one of the processors that it may run on.
fn pin(cpu: Option<usize>, server: bool) -> Result<()> {
    // SAFETY: plain structures of the right size.
    unsafe {
        let mut allowed: libc::cpu_set_t = mem::zeroed();
        libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut allowed);
        let mut last = (0..libc::CPU_SETSIZE as usize).rev().filter(|&cpu| libc::CPU_ISSET(cpu, &allowed));
        let own = last.next().unwrap_or(0);
        let cpu = cpu.unwrap_or(if server { last.next().unwrap_or(own) } else { own });
        let mut one: libc::cpu_set_t = mem::zeroed();
        libc::CPU_SET(cpu.min(libc::CPU_SETSIZE as usize - 1), &mut one);
        match libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &one) {
            0 => Ok(()),
            _ => Err(format!("processor {cpu}: {}", std::io::Error::last_os_error()).into()),
        }
    }
}

/// Sends over each side in turn. The other ends answer here where they are of this thread.
fn measure(args: &Args, context: &Context, sides: &mut [Side], far: &mut [Side]) -> Result<()> {
    // From 1 ns to a minute, to three digits: recording allocates nothing.
    let mut histograms = vec![Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3)?; sides.len()];
    for message in 0..args.warm_up + args.iters {
        for (way, (side, histogram)) in sides.iter_mut().zip(&mut histograms).enumerate() {
            let began = Instant::now();
            side.send()?;
            if let Some(far) = far.get_mut(way) {
                far.receive()?;
                far.send()?;
            }
            side.receive()?;
            let half = began.elapsed().as_nanos() as u64 / 2;
            if message >= args.warm_up {
                histogram.record(half)?;
            }
            // The outstanding send is over: the answer came.
            side.finish_send()?;
            if let Some(far) = far.get_mut(way) {
                far.finish_send()?;
            }
        }
    }
    let title = format!("{} messages of {} bytes on {}", args.iters, args.size, device::describe(context));
    println!("{title}: half of there and back, in µs");
    let row = |name: &str, value: &dyn Fn(&Histogram<u64>) -> u64| {
        let micros = histograms.iter().map(|histogram| format!(" {:>10.3}", value(histogram) as f64 / 1000.0));
        println!("{name:<6}{}", micros.collect::<String>());
    };
    println!("path  {}", sides.iter().map(|side| format!(" {:>10}", side.path().to_string())).collect::<String>());
    row("min", &Histogram::min);
    // Only quantiles for which there are enough messages.
    for (name, quantile) in plot::quantiles(args.iters.into()) {
        row(name, &|histogram| histogram.value_at_quantile(quantile));
    }
    row("max", &Histogram::max);
    if let Some(file) = &args.svg {
        let library = if context.auto_path().0 == DataPath::Direct { "libmlx5" } else { "libibverbs" };
        let curve = |(side, histogram): (&Side, _)| Curve { name: side.name(library), histogram };
        let curves: Vec<_> = sides.iter().zip(&histograms).map(curve).collect();
        let svg = plot::svg(&curves, &title, "half of the round trip");
        fs::write(file, svg).map_err(|e| format!("{}: {e}", file.display()))?;
    }
    Ok(())
}
