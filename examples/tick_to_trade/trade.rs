//! The trader.

use std::fs;
use std::path::Path;
use std::time::Instant;

use doorbell::frames::{Flow, FrameConfig, FrameReceiver};
use doorbell::{Clock, CqConfig, QpConfig, QueuePair, Sender, SqId, Timestamp, Timestamps};
use hdrhistogram::Histogram;

use crate::device::{self, describe};
use crate::plot::{self, Curve};
use crate::wire::{self, BYTES, GROUP, PRICES, Tick};
use crate::{Args, PATIENCE, Result, figures, stream};

/// Bytes of the longest frame.
const FRAME: u32 = 128;
/// Orders between two readings of the adapter's clock.
const CLOCK: u64 = 1024;

/// How orders leave.
enum Orders {
    /// A frame with room for an order.
    Frames(wire::Frame),
    Connection,
}

/// Times of orders, in nanoseconds.
struct Times {
    /// From the CQE of the price to the CQE of the order, by the adapter's clock.
    adapter: Histogram<u64>,
    /// From the price in the hand of the program to the return of the call that posts the order.
    program: Histogram<u64>,
}

pub fn run(args: &Args, rc: bool, svg: Option<&Path>) -> Result<()> {
    let pd = device::open(args.device.as_deref())?.alloc_pd()?;
    let cq = CqConfig::new(64).timestamps(Timestamps::Ticks).path(args.path);
    let mut sender = Sender::new(&pd, &cq)?;
    let config = FrameConfig::new().plain(1024, FRAME).cq(cq);
    let mut connection = None;
    let (mut frames, mut orders) = if rc {
        let config_of_orders = QpConfig::rc().max_send_wr(16).max_inline(BYTES as u32);
        connection = Some(QueuePair::builder(&config_of_orders).send(&mut sender).build()?);
        (FrameReceiver::new(&pd, &config)?, Orders::Connection)
    } else {
        let config = config.max_send_wr(16).max_inline(FRAME);
        (FrameReceiver::with_sender(&pd, &config, &mut sender)?, Orders::Frames(wire::orders()))
    };
    let _rule = frames.attach(&Flow::udp(GROUP, PRICES))?;

    let mut stream = stream::accept(args.port, "an exchange")?;
    stream::write_u64(&mut stream, rc.into())?;
    let queue = match &mut connection {
        Some(qp) => {
            qp.connect_over(&mut stream)?;
            qp.send_queue()
        }
        None => frames.send_queue(),
    };
    let queue = queue.ok_or("it was made with a send queue")?;

    let mut times = Times { adapter: histogram()?, program: histogram()? };
    let sent = trade(&mut frames, &mut sender, queue, &mut orders, &mut times)?;
    report(&frames, rc, &times, svg)?;
    stream::write_u64(&mut stream, sent)?;
    Ok(())
}

/// Answers prices until the exchange ends; returns how many orders were sent.
fn trade(
    frames: &mut FrameReceiver,
    sender: &mut Sender,
    queue: SqId,
    orders: &mut Orders,
    times: &mut Times,
) -> Result<u64> {
    let mut clock = frames.clock()?;
    let (mut sent, mut last, mut answered) = (0, Instant::now(), None);
    loop {
        let Some(frame) = frames.next() else {
            if last.elapsed() > PATIENCE {
                return Err(format!("no price came for {PATIENCE:?}").into());
            }
            // A software device needs a processor, too.
            std::thread::yield_now();
            continue;
        };
        let frame = frame?;
        let in_hand = Instant::now();
        let tick = Tick::from_frame(&frame).ok_or("a frame without a price")?;
        if tick == Tick::LAST {
            return Ok(sent);
        }
        last = in_hand;
        let Some(order) = tick.order() else { continue };
        let is_repeated = answered.replace(order.number) == Some(order.number);
        match orders {
            Orders::Frames(bytes) => {
                wire::put(bytes, order);
                sender.post(queue)?.send_frame(*bytes, true)?;
            }
            // A connection sends again by itself.
            Orders::Connection if is_repeated => continue,
            Orders::Connection => sender.send(queue, order.to_bytes())?,
        }
        if is_repeated {
            completion(sender)?;
            continue;
        }
        times.program.record((in_hand.elapsed().as_nanos() as u64).max(1))?;
        sent += 1;
        let received = frame.timestamp();
        let left = completion(sender)?;
        if let (Some(received), Some(left)) = (received, left) {
            times.adapter.record(between(&clock, received, left)?)?;
        }
        if sent % CLOCK == 0 {
            clock = frames.clock()?;
        }
    }
}

/// Waits until the order has left; returns when.
fn completion(sender: &mut Sender) -> Result<Option<Timestamp>> {
    let began = Instant::now();
    loop {
        if let Some(done) = sender.next() {
            return Ok(done?.timestamp());
        }
        if began.elapsed() > PATIENCE {
            return Err(format!("an order has not left after {PATIENCE:?}").into());
        }
        std::thread::yield_now();
    }
}

/// Returns the time between two timestamps, at least 1 ns.
fn between(clock: &Clock, from: Timestamp, to: Timestamp) -> Result<u64> {
    Ok(clock.nanoseconds(to)?.saturating_sub(clock.nanoseconds(from)?).max(1))
}

fn histogram() -> Result<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(1, 60_000_000_000, 3)?)
}

fn report(frames: &FrameReceiver, rc: bool, times: &Times, svg: Option<&Path>) -> Result<()> {
    let (device, path) = (describe(frames.pd().context()), frames.path());
    // The CQE of a datagram says that it has left, that of a request of a connection that the peer has it.
    let kind = if rc { "acknowledged by the exchange" } else { "as frames" };
    let title = format!("{} orders {kind} on {device}, path {path}", times.program.len());
    println!("{title}, in µs");
    let named = [("adapter to adapter", &times.adapter), ("in the program", &times.program)];
    let shown = named.into_iter().filter(|(_, times)| !times.is_empty());
    let curves: Vec<_> = shown.map(|(name, histogram)| Curve { name: name.to_owned(), histogram }).collect();
    if times.adapter.is_empty() {
        println!("the device has no timestamps: the times are those in the program");
    }
    for Curve { name, histogram } in &curves {
        println!("{name}: {}", figures(histogram));
    }
    if let (Some(file), false) = (svg, curves.is_empty()) {
        let svg = plot::svg(&curves, &title, "tick to trade");
        fs::write(file, svg).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    Ok(())
}
