//! The exchange.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use doorbell::frames::{Flow, FrameConfig, FrameReceiver};
use doorbell::{BufferPool, CqConfig, PoolConfig, ProtectionDomain, QpConfig, QueuePair, Receiver, RqConfig, Sender};
use hdrhistogram::Histogram;

use crate::wire::{self, EXCHANGE, Tick};
use crate::{Args, PATIENCE, Result, device, figures, stream};

/// Bytes of the longest frame.
const FRAME: u32 = 128;
/// How long after a price that is not answered the next one comes.
const PAUSE: Duration = Duration::from_micros(20);
/// How long after a price it is sent again, while its order is missing.
const REPEAT: Duration = Duration::from_millis(5);

/// Where orders come from.
enum Orders {
    Frames,
    Connection(Box<(Receiver, QueuePair)>),
}

struct Exchange {
    frames: FrameReceiver,
    sender: Sender,
    /// A frame with a price.
    tick: wire::Frame,
    orders: Orders,
    /// From a price to its order, in nanoseconds.
    times: Histogram<u64>,
    /// Prices that were sent again.
    repeated: u64,
}

pub fn run(args: &Args, host: &str, ticks: u64) -> Result<()> {
    let pd = device::open(args.device.as_deref())?.alloc_pd()?;
    let cq = CqConfig::new(64).path(args.path);
    let mut sender = Sender::new(&pd, &cq)?;
    let config = FrameConfig::new().plain(64, FRAME).max_send_wr(16).max_inline(FRAME).cq(cq);
    let frames = FrameReceiver::with_sender(&pd, &config, &mut sender)?;
    let _rule = frames.attach(&Flow::mac(EXCHANGE.0))?;
    let mut stream = stream::connect(host, args.port)?;
    let orders = match stream::read_u64(&mut stream)? {
        0 => Orders::Frames,
        _ => Orders::Connection(Box::new(accept(&pd, &mut stream, args)?)),
    };
    let times = Histogram::new_with_bounds(1, 60_000_000_000, 3)?;
    let mut exchange = Exchange { frames, sender, tick: wire::prices(), orders, times, repeated: 0 };

    let mut random = fastrand::Rng::with_seed(1);
    let (mut expected, mut right) = (0, 0);
    for number in 0..ticks {
        let tick = Tick { number, price: random.u64(0..100) };
        exchange.send(tick)?;
        match tick.order() {
            Some(order) => {
                expected += 1;
                right += u64::from(exchange.wait_for_order(tick)? == order);
            }
            None => pause(),
        }
    }
    let sent = exchange.end(&mut stream)?;
    println!("price to order: {}, {} prices sent again", figures(&exchange.times), exchange.repeated);
    let counts = format!("{ticks} prices, {expected} orders expected, {right} right, {} false", sent - right);
    if right != expected || sent != expected {
        println!("demo-trade: FAILED: {counts}");
        return Err("the orders are not those that the prices ask for".into());
    }
    println!("demo-trade: ok: {counts}");
    Ok(())
}

/// Creates a queue pair that receives orders, and connects it.
fn accept(pd: &ProtectionDomain, stream: &mut TcpStream, args: &Args) -> Result<(Receiver, QueuePair)> {
    let mut receiver = Receiver::new(pd, &CqConfig::new(64).path(args.path))?;
    let mut qp = QueuePair::builder(&QpConfig::rc()).receive(&mut receiver, RqConfig::new(16)).build()?;
    let pool = BufferPool::new(pd, &PoolConfig::new(32, wire::BYTES as u32))?;
    receiver.fill(qp.receive_queue().ok_or("it was made with a receive queue")?, &pool)?;
    qp.connect_over(stream)?;
    Ok((receiver, qp))
}

impl Exchange {
    fn send(&mut self, tick: Tick) -> Result<()> {
        let queue = self.frames.send_queue().ok_or("it was made with a sender")?;
        wire::put(&mut self.tick, tick);
        while self.sender.is_busy(queue) {
            while let Some(done) = self.sender.next() {
                done?;
            }
        }
        self.sender.post(queue)?.send_frame(self.tick, true)?;
        Ok(())
    }

    /// Waits for the order of a price that was sent just now. Either of the two may be lost on the way.
    fn wait_for_order(&mut self, tick: Tick) -> Result<Tick> {
        let began = Instant::now();
        let mut last = began;
        loop {
            let order = match &mut self.orders {
                Orders::Frames => match self.frames.next() {
                    Some(frame) => Tick::from_frame(&frame?),
                    None => None,
                },
                Orders::Connection(own) => match own.0.next() {
                    Some(message) => Tick::from_bytes(&message?),
                    None => None,
                },
            };
            // An order that was sent again may come after the next price.
            if let Some(order) = order.filter(|order| order.number >= tick.number) {
                self.times.record((began.elapsed().as_nanos() as u64).max(1))?;
                return Ok(order);
            }
            if began.elapsed() > PATIENCE {
                return Err(format!("no order came for {PATIENCE:?}").into());
            }
            if last.elapsed() > REPEAT {
                self.send(tick)?;
                self.repeated += 1;
                last = Instant::now();
            }
            // A software device needs a processor, too.
            std::thread::yield_now();
        }
    }

    /// Says that the session is over until the trader has heard it; returns how many orders it has sent.
    fn end(&mut self, stream: &mut TcpStream) -> Result<u64> {
        stream.set_read_timeout(Some(Duration::from_millis(100)))?;
        let began = Instant::now();
        loop {
            self.send(Tick::LAST)?;
            match stream::read_u64(stream) {
                Ok(sent) => return Ok(sent),
                Err(_) if began.elapsed() < PATIENCE => {}
                Err(error) => return Err(format!("the trader does not end: {error}").into()),
            }
        }
    }
}

fn pause() {
    let began = Instant::now();
    while began.elapsed() < PAUSE {
        std::thread::yield_now();
    }
}
