//! Connections inside one process: queue pairs of the receiver under test, and their far ends.

use doorbell::{
    BufferPool, Error, NotSent, PoolConfig, ProtectionDomain, QpConfig, QpState, QueuePair, ReceiveFrom, Receiver,
    RqConfig,
};

use crate::sending_qp::SendingQp;
use crate::{device, message, receiving};

/// The far ends of connections, for sending to the receiver under test.
pub struct Peers {
    /// Queue pairs of the far ends. Declared before `receiver`, which they refer to.
    pub qps: Vec<SendingQp>,
    /// The receiver of the far ends, to which nothing is sent.
    pub receiver: Receiver,
    pool: BufferPool,
    /// Messages sent by each.
    sent: Vec<u64>,
}

/// Sends that may be outstanding on one far end.
pub const SENDS: u32 = 64;

impl Peers {
    /// `count` queue pairs of `receiver` made as `near` and `from` say, each connected to a far end that
    /// sends messages of up to `max_len` bytes.
    pub fn connect(
        pd: &ProtectionDomain,
        receiver: &mut Receiver,
        near: &QpConfig,
        from: impl Into<ReceiveFrom>,
        count: u32,
        max_len: u32,
    ) -> (Vec<QueuePair>, Self) {
        let mut peers = Self {
            qps: Vec::new(),
            receiver: device::receiver(pd, 64 * count),
            pool: BufferPool::new(pd, &PoolConfig::new(SENDS * count, max_len)).unwrap(),
            sent: vec![0; count as usize],
        };
        let from = from.into();
        let far = QpConfig::rc().max_send_wr(SENDS).max_inline(64);
        let near = (0..count)
            .map(|_| {
                let mut near = QueuePair::builder(near).receive(receiver, from).build().unwrap();
                let own = RqConfig::new(1);
                let mut far = SendingQp::create(&mut peers.receiver, &far, own).unwrap();
                join(&mut near, &mut far);
                peers.qps.push(far);
                near
            })
            .collect();
        (near, peers)
    }

    /// Sends the next message of a far end, `len` bytes long, and returns its number; `None` if it must
    /// wait for earlier messages.
    pub fn try_send(&mut self, from: usize, len: usize) -> Option<u64> {
        self.reap(from);
        if self.qps[from].sends_outstanding() == SENDS as usize {
            return None;
        }
        let mut buffer = self.pool.take().expect("there are as many buffers as sends");
        let number = self.sent[from];
        buffer.set_len(len);
        message::write(&mut buffer, from as u32, number);
        match self.qps[from].send(buffer, None) {
            Ok(()) => self.sent[from] += 1,
            Err(error) if matches!(error.reason, NotSent::Full { .. }) => return None,
            Err(error) => panic!("{error}"),
        }
        Some(number)
    }

    /// Sends the next message of a far end, and gives its number.
    pub fn send(&mut self, from: usize, len: usize) -> u64 {
        receiving::wait_for("room in a send queue", || self.try_send(from, len))
    }

    /// Sends the next `count` messages of the first far end, 40 bytes long.
    pub fn burst(&mut self, count: usize) {
        for _ in 0..count {
            self.send(0, 40);
        }
    }

    /// Sends the next `count` messages of the first far end, and waits until all have arrived.
    pub fn arrive(&mut self, count: usize) {
        self.burst(count);
        self.settle();
    }

    /// A far end sends `count` messages to `receiver`. Each arrives whole before the next.
    pub fn exchange(&mut self, receiver: &mut Receiver, from: usize, count: usize) {
        for _ in 0..count {
            let number = self.send(from, 40);
            receiving::messages(receiver, 1, |message| {
                assert_eq!(message::read(&message), (from as u32, number));
            });
        }
    }

    /// Resets a far end.
    pub fn reset(&mut self, at: usize) {
        self.qps[at].reset(&mut self.receiver).unwrap();
    }

    /// Messages that a far end has sent.
    pub fn sent(&self, from: usize) -> u64 {
        self.sent[from]
    }

    /// Takes the completions of a far end's sends.
    pub fn reap(&mut self, from: usize) {
        while let Some(done) = self.qps[from].poll_send() {
            assert!(done.status.is_success(), "send of far end {from}: {}", done.status);
        }
    }

    /// Waits until every send has completed.
    pub fn settle(&mut self) {
        receiving::wait("sends", || {
            (0..self.qps.len()).for_each(|from| self.reap(from));
            self.qps.iter().all(|qp| qp.sends_outstanding() == 0)
        });
    }
}

/// The state that the library knows a queue pair to be in, without asking the device; not INIT.
pub fn known_state(qp: &mut QueuePair) -> QpState {
    let itself = qp.address().unwrap();
    match qp.connect(&itself) {
        Err(Error::WrongState { state, .. }) => state,
        other => panic!("{other:?}"),
    }
}

/// Connects two queue pairs to each other.
pub fn join(one: &mut QueuePair, other: &mut QueuePair) {
    let (here, there) = (one.address().unwrap(), other.address().unwrap());
    one.connect(&there).unwrap();
    other.connect(&here).unwrap();
}
