//! doorbell.

use doorbell::{
    Buffer, BufferPool, CqConfig, Path, PoolConfig, ProtectionDomain, QueuePair, ReceiveFrom, Receiver, RemoteAccess,
    RemoteMemory, RemoteRegion, Result, RqConfig, Sender, SqId, SrqConfig,
};

use crate::place::Place;
use crate::side::{INLINE, LONGEST, RECEIVES, Side, until};

struct End {
    receiver: Receiver,
    sender: Sender,
    qp: QueuePair,
    queue: SqId,
    memory: RemoteMemory,
    has_read: bool,
}

/// Two ends with receivers and senders of the safe API.
pub struct Ours {
    ends: [End; 2],
    /// The memory of the other end, as each end names it.
    remote: [RemoteRegion; 2],
    pool: BufferPool,
    bytes: [u8; INLINE],
}

impl End {
    fn new(place: &Place, pd: &ProtectionDomain, shared: bool) -> Result<Self> {
        let mut receiver = Receiver::new(pd, &CqConfig::new(RECEIVES).path(Path::Direct))?;
        let mut sender = Sender::new(pd, &CqConfig::new(2 * RECEIVES).path(Path::Direct))?;
        let from: ReceiveFrom = match shared {
            true => receiver.create_srq(&SrqConfig::new(RECEIVES - 1))?.into(),
            false => RqConfig::new(RECEIVES).into(),
        };
        let config = place.config().sends(RECEIVES).max_inline(INLINE as u32).remote_write(true).remote_read(true);
        let qp = QueuePair::builder(&config).receive(&mut receiver, from).send(&mut sender).build()?;
        let pool = BufferPool::new(pd, &PoolConfig::new(RECEIVES + 1, LONGEST as u32))?;
        match (from, qp.receive_queue()) {
            (ReceiveFrom::Srq(srq), _) => receiver.fill(srq, &pool)?,
            (_, Some(own)) => receiver.fill(own, &pool)?,
            _ => unreachable!("made with a receive queue"),
        };
        let queue = (&qp).into();
        let memory = RemoteMemory::with_access(pd, LONGEST, RemoteAccess::WRITE | RemoteAccess::READ)?;
        Ok(Self { receiver, sender, qp, queue, memory, has_read: false })
    }

    fn reap(&mut self) {
        while let Some(done) = self.sender.next() {
            self.has_read |= done.expect("a request without failure").token == READ;
        }
    }
}

/// Token of reads.
const READ: u64 = 1;

impl Ours {
    /// Makes both ends; with `shared` they receive from SRQs.
    pub fn new(place: &Place, shared: bool) -> Result<Self> {
        let pd = place.context.alloc_pd()?;
        let mut ends = [End::new(place, &pd, shared)?, End::new(place, &pd, shared)?];
        let addresses = [ends[1].qp.address()?, ends[0].qp.address()?];
        for (end, peer) in ends.iter_mut().zip(&addresses) {
            end.qp.connect(peer)?;
        }
        let pool = BufferPool::new(&pd, &PoolConfig::new(2 * RECEIVES, LONGEST as u32))?;
        let remote = [ends[1].memory.region(), ends[0].memory.region()];
        Ok(Self { ends, remote, pool, bytes: [7; INLINE] })
    }

    fn buffer(&mut self, len: usize) -> Buffer {
        let mut taken = self.pool.take();
        until(|| {
            if taken.is_none() {
                self.reap();
                taken = self.pool.take();
            }
            taken.is_some()
        });
        let mut buffer = taken.expect("taken");
        buffer.set_len(len);
        buffer
    }
}

impl Side for Ours {
    #[inline(always)]
    fn send(&mut self, from: usize, len: usize) {
        let queue = self.ends[from].queue;
        if len <= INLINE {
            return self.ends[from].sender.send(queue, &self.bytes[..len]).expect("room");
        }
        let buffer = self.buffer(len);
        self.ends[from].sender.send(queue, buffer).expect("room");
    }

    #[inline(always)]
    fn receive(&mut self, at: usize, most: u32) -> u32 {
        if most == 1 {
            let message = self.ends[at].receiver.next();
            return message.map_or(0, |message| u32::from(!message.expect("no failure").is_empty()));
        }
        let mut batch = self.ends[at].receiver.poll_up_to(most);
        let mut received = 0;
        while let Some(message) = batch.next() {
            received += u32::from(!message.expect("no failure").is_empty());
        }
        received
    }

    #[inline(always)]
    fn write(&mut self, from: usize, len: usize, last: u8) {
        let to = self.remote[from].slice(0, len).expect("inside");
        let queue = self.ends[from].queue;
        if len <= INLINE {
            self.bytes[len - 1] = last;
            let request = self.ends[from].sender.post(queue).expect("a queue");
            return request.write(&self.bytes[..len], &to).expect("room");
        }
        let mut buffer = self.buffer(len);
        buffer[len - 1] = last;
        self.ends[from].sender.post(queue).expect("a queue").write(buffer, &to).expect("room");
    }

    #[inline(always)]
    fn last_byte(&self, at: usize, len: usize) -> u8 {
        // SAFETY: inside of the memory, which the device writes: read as it is.
        unsafe { self.ends[at].memory.as_ptr().add(len - 1).read_volatile() }
    }

    #[inline(always)]
    fn read(&mut self, len: usize) {
        let from = self.remote[0].slice(0, len).expect("inside");
        let buffer = self.buffer(len);
        let queue = self.ends[0].queue;
        self.ends[0].has_read = false;
        self.ends[0].sender.post(queue).expect("a queue").token(READ).read(buffer, &from).expect("room");
    }

    #[inline(always)]
    fn has_read(&mut self) -> bool {
        self.ends[0].reap();
        self.ends[0].has_read
    }

    #[inline(always)]
    fn burst(&mut self, count: u32, len: usize) {
        let queue = self.ends[0].queue;
        if count == 1 {
            return self.send(0, len);
        }
        let mut posting = self.ends[0].sender.post_many(queue).expect("a queue");
        for _ in 0..count {
            posting.send(&self.bytes[..len]).expect("room");
        }
    }

    #[inline(always)]
    fn reap(&mut self) {
        self.ends.iter_mut().for_each(End::reap);
    }
}
