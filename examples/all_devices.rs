//! Serves all RDMA devices of the host with the same code, each on the path that suits it: mlx5 devices
//! directly, all others through libibverbs.
//!
//! On each device a queue pair sends to another one of the same device, which receives from an SRQ.
//!
//! ```text
//! all_devices
//! ```

#[path = "common/device.rs"]
#[expect(dead_code, reason = "it opens each device")]
mod device;

use std::error::Error;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use doorbell::{BufferPool, CqConfig, Device, PoolConfig, QpConfig, QueuePair, Receiver, Sender, SqId, SrqConfig};

const MESSAGES: u64 = 1000;
const SENDS: u64 = 16;
const PATIENCE: Duration = Duration::from_secs(30);

/// One device at work.
struct Station {
    name: String,
    receiver: Receiver,
    sender: Sender,
    queue: SqId,
    /// Both ends of the connection.
    _ends: (QueuePair, QueuePair),
    sent: u64,
    /// Sends that are over.
    over: u64,
    received: u64,
}

impl Station {
    fn open(device: &Device) -> Result<Self, Box<dyn Error>> {
        let context = device.open()?;
        let pd = context.alloc_pd()?;
        let pool = BufferPool::new(&pd, &PoolConfig::new(64, 64))?;
        let mut receiver = Receiver::new(&pd, &CqConfig::for_pool(&pool))?;
        let srq = receiver.create_srq(&SrqConfig::for_pool(&pool))?;
        receiver.fill(srq, &pool)?;

        let mut end = QueuePair::builder(&QpConfig::rc()).receive(&mut receiver, srq).build()?;
        let config = QpConfig::rc().max_send_wr(SENDS as u32).max_inline(8);
        let mut sender = Sender::new(&pd, &CqConfig::for_sends(&config, 1))?;
        let mut from = QueuePair::builder(&config).send(&mut sender).build()?;
        let queue = from.send_queue().ok_or("the queue pair has no send queue")?;
        let (here, there) = (end.address()?, from.address()?);
        end.connect(&there)?;
        from.connect(&here)?;
        Ok(Self {
            name: device::describe(&context),
            receiver,
            sender,
            queue,
            _ends: (end, from),
            sent: 0,
            over: 0,
            received: 0,
        })
    }

    fn is_done(&self) -> bool {
        self.received == MESSAGES
    }

    /// Sends as many messages as there is room for, and takes the messages that have arrived.
    fn step(&mut self) -> Result<(), Box<dyn Error>> {
        let mut batch = self.sender.poll();
        while let Some(completion) = batch.next() {
            completion?;
            self.over += 1;
        }
        drop(batch);
        let mut posting = self.sender.post_many(self.queue)?;
        while self.sent < MESSAGES && self.sent - self.over < SENDS {
            posting.send(self.sent.to_be_bytes())?;
            self.sent += 1;
        }
        drop(posting);
        let mut batch = self.receiver.poll();
        while let Some(message) = batch.next() {
            let message = message?;
            if message[..] != self.received.to_be_bytes() {
                let number = self.received;
                return Err(format!("{}: message {number} is {message:?}", self.name).into());
            }
            self.received += 1;
        }
        Ok(())
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("all_devices: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let mut stations = doorbell::devices()?.iter().map(Station::open).collect::<Result<Vec<_>, _>>()?;
    let began = Instant::now();
    while !stations.iter().all(Station::is_done) {
        for station in &mut stations {
            station.step()?;
        }
        if began.elapsed() > PATIENCE {
            return Err(format!("not done after {PATIENCE:?}").into());
        }
        thread::yield_now();
    }
    for Station { name, receiver, received, .. } in &stations {
        println!("{name}: {received} messages, path {}", receiver.path());
    }
    Ok(())
}
