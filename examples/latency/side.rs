//! One end of a connection, and one message at a time on it.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use doorbell::{
    Buffer, BufferPool, Completions, Context, CqConfig, DataPath, PoolConfig, QpConfig, QueuePair, Receiver, RqConfig,
    Sender, SqId,
};

use crate::Result;

const RECEIVES: u32 = 16;
/// Messages up to this long are copied into the send queue. No buffer has to come back, then.
const INLINE: usize = 64;

/// How long no message may come.
const PATIENCE: Duration = Duration::from_secs(20);

/// One end of the connection.
pub struct Side {
    // Dropped first: it disconnects.
    qp: QueuePair,
    receiver: Receiver,
    sender: Sender,
    queue: SqId,
    events: bool,
    size: usize,
    bytes: [u8; INLINE],
    /// The buffer of a message that is not copied, while it is not on its way.
    buffer: Option<Buffer>,
}

impl Side {
    pub fn new(context: &Context, path: DataPath, size: u32, events: bool) -> Result<Self> {
        let pd = context.alloc_pd()?;
        let pool = BufferPool::new(&pd, &PoolConfig::new(RECEIVES + 1, size))?;
        let mut buffer = pool.take().ok_or("the pool is too small")?;
        buffer.set_len(size as usize);

        let mut receiver = Receiver::new(&pd, &CqConfig::new(RECEIVES).path(path))?;
        let config = QpConfig::rc().max_send_wr(64).max_inline(INLINE as u32);
        let mut sender = Sender::new(&pd, &CqConfig::for_sends(&config, 1).path(path))?;
        let qp =
            QueuePair::builder(&config).receive(&mut receiver, RqConfig::new(RECEIVES)).send(&mut sender).build()?;
        let queue = qp.send_queue().ok_or("the queue pair has no send queue")?;
        receiver.fill(qp.receive_queue().ok_or("the queue pair has no receive queue")?, &pool)?;
        let (size, bytes) = (size as usize, [7; INLINE]);
        Ok(Self { qp, receiver, sender, queue, events, size, bytes, buffer: Some(buffer) })
    }

    pub fn connect_over(&mut self, stream: &mut TcpStream) -> Result<()> {
        Ok(self.qp.connect_over(stream)?)
    }

    /// Connects two ends of this process.
    pub fn connect_to(&mut self, far: &mut Self) -> Result<()> {
        let (near, far_address) = (self.qp.address()?, far.qp.address()?);
        self.qp.connect(&far_address)?;
        Ok(far.qp.connect(&near)?)
    }

    pub fn path(&self) -> DataPath {
        self.receiver.path()
    }

    /// Names what drives the queues; `library` is the one that the verbs path calls.
    pub fn name(&self, library: &str) -> String {
        match self.path() {
            DataPath::Direct => "doorbell, direct path".into(),
            path => format!("{library}, through the {path} path"),
        }
    }

    /// Sends a message: its doorbell has rung when this returns.
    pub fn send(&mut self) -> Result<()> {
        if self.size <= INLINE {
            // The answer says that the message arrived: no completion is needed.
            let request = self.sender.post(self.queue)?.unsignaled();
            return Ok(request.send(&self.bytes[..self.size])?);
        }
        let buffer = self.buffer.take().ok_or("a send is outstanding")?;
        Ok(self.sender.send(self.queue, buffer)?)
    }

    /// Frees the slots of sends, and waits for the buffer of the last one.
    pub fn finish_send(&mut self) -> Result<()> {
        loop {
            while let Some(completion) = self.sender.next() {
                self.buffer = completion?.buffer.or_else(|| self.buffer.take());
            }
            if self.buffer.is_some() {
                return Ok(());
            }
        }
    }

    /// Receives one message, which gives its slot back.
    pub fn receive(&mut self) -> Result<()> {
        let mut began = None;
        loop {
            if self.events && !self.receiver.wait(PATIENCE)? {
                return Err(format!("nothing came for {PATIENCE:?}").into());
            }
            // The clock is for a peer that died: reading it after each empty poll would delay the message.
            for _ in 0..1000 {
                if let Some(message) = self.receiver.next() {
                    let len = message?.len();
                    if len != self.size {
                        return Err(format!("a message of {len} bytes instead of {}", self.size).into());
                    }
                    return Ok(());
                }
                if self.events {
                    break;
                }
            }
            if began.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                return Err(format!("nothing came for {PATIENCE:?}").into());
            }
        }
    }
}
