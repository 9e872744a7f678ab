//! doorbell.

use doorbell::{
    Buffer, BufferPool, CqConfig, DataPath, MemoryRegion, PoolConfig, ProtectionDomain, QueuePair, ReceiveFrom,
    Receiver, RemoteAccess, RemoteRegion, Result, RqConfig, Sender, SqId, SrqConfig,
};

use crate::place::Place;
use crate::side::{INLINE, LONGEST, RECEIVES, Side, until};

struct End {
    receiver: Receiver,
    sender: Sender,
    qps: Vec<QueuePair>,
    queues: Vec<SqId>,
    /// Index of the queue that sends next.
    next: usize,
    memory: MemoryRegion,
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
    fn new(place: &Place, pd: &ProtectionDomain, srq_of: Option<u32>) -> Result<Self> {
        let count = srq_of.unwrap_or(1);
        let config =
            place.config().max_send_wr(RECEIVES).max_inline(INLINE as u32).remote_write(true).remote_read(true);
        let mut receiver = Receiver::new(pd, &CqConfig::new(RECEIVES).path(DataPath::Direct))?;
        let sends = CqConfig::for_sends(&config, count).path(DataPath::Direct);
        let mut sender = Sender::new(pd, &sends)?;
        let from: ReceiveFrom = match srq_of {
            Some(_) => receiver.create_srq(&SrqConfig::new(RECEIVES - 1))?.into(),
            None => RqConfig::new(RECEIVES).into(),
        };
        let make = |_| QueuePair::builder(&config).receive(&mut receiver, from).send(&mut sender).build();
        let qps = (0..count).map(make).collect::<Result<Vec<_>>>()?;
        let pool = BufferPool::new(pd, &PoolConfig::new(RECEIVES + 1, LONGEST as u32))?;
        match (from, qps[0].receive_queue()) {
            (ReceiveFrom::Srq(srq), _) => receiver.fill(srq, &pool)?,
            (_, Some(own)) => receiver.fill(own, &pool)?,
            _ => unreachable!("made with a receive queue"),
        };
        let queues = qps.iter().map(SqId::from).collect();
        let memory = MemoryRegion::with_access(pd, LONGEST, RemoteAccess::WRITE | RemoteAccess::READ)?;
        Ok(Self { receiver, sender, qps, queues, next: 0, memory, has_read: false })
    }

    /// Returns the queue whose turn it is.
    #[inline(always)]
    fn queue(&mut self) -> SqId {
        let queue = self.queues[self.next];
        self.next = if self.next + 1 == self.queues.len() { 0 } else { self.next + 1 };
        queue
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
    /// Makes both ends. Each receives from an SRQ of so many queue pairs, or from the queue of one.
    pub fn new(place: &Place, srq_of: Option<u32>) -> Result<Self> {
        let pd = place.context.alloc_pd()?;
        let mut ends = [End::new(place, &pd, srq_of)?, End::new(place, &pd, srq_of)?];
        let addresses = |end: &End| end.qps.iter().map(QueuePair::address).collect::<Result<Vec<_>>>();
        let addresses = [addresses(&ends[1])?, addresses(&ends[0])?];
        for (end, peers) in ends.iter_mut().zip(&addresses) {
            for (qp, peer) in end.qps.iter_mut().zip(peers) {
                qp.connect(peer)?;
            }
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
        let queue = self.ends[from].queue();
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
        let queue = self.ends[from].queue();
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
        let queue = self.ends[0].queue();
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
        if count == 1 {
            return self.send(0, len);
        }
        let queue = self.ends[0].queue();
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
