//! Connections that break off in the middle of a message: the receive of the message comes back.

use doorbell::{
    BufferPool, Cause, PoolConfig, QpConfig, QpEnd, QueuePair, Receiver, RqConfig, SrqConfig, SrqId, WcStatus,
};
use doorbell_tests::cut::{self, Cut};
use doorbell_tests::peers::join;
use doorbell_tests::sending_qp::SendingQp;
use doorbell_tests::{device, message, receiving};

/// Slots of the SRQ, and entries of the CQ.
const SLOTS: u32 = 15;
/// More connections than slots.
const CONNECTIONS: u32 = 20;

/// A receiver with a CQ for as many completions as its SRQ has slots.
struct Cuts {
    receiver: Receiver,
    srq: SrqId,
    pool: BufferPool,
    far_receiver: Receiver,
    cut: Cut,
}

impl Cuts {
    fn new() -> Self {
        let (pd, mut receiver) = device::start(SLOTS);
        let srq = receiver.create_srq(&SrqConfig::new(SLOTS)).unwrap();
        let pool = BufferPool::new(&pd, &PoolConfig::new(SLOTS + 1, cut::LEN as u32)).unwrap();
        receiver.post(srq, std::iter::from_fn(|| pool.take()).take(SLOTS as usize)).unwrap();
        let far_receiver = device::receiver(&pd, 16);
        Self { receiver, srq, pool, far_receiver, cut: Cut::new(&pd) }
    }

    /// A connection; the second queue pair is the client's.
    fn connect(&mut self) -> (QueuePair, SendingQp) {
        let mut near = QueuePair::builder(&QpConfig::rc()).receive(&mut self.receiver, self.srq).build().unwrap();
        let far = QpConfig::rc().max_inline(64);
        let mut far = SendingQp::create(&mut self.far_receiver, &far, RqConfig::new(1)).unwrap();
        join(&mut near, &mut far);
        (near, far)
    }

    /// Cuts a new connection in the middle of a message.
    fn cut(&mut self) -> QueuePair {
        let (near, far) = self.connect();
        self.cut.send(&far, &near, &[]);
        self.far_receiver.destroy_qp(far.into_qp()).unwrap();
        near
    }

    /// Takes the receives that have come back flushed, which the SRQ has again; returns how many.
    fn take_flushed(&mut self) -> u32 {
        let mut batch = self.receiver.poll();
        let mut count = 0;
        while let Some(next) = batch.next() {
            let failure = next.expect_err("no message is whole");
            assert_eq!(failure.cause, Cause::Status(WcStatus::WR_FLUSH_ERR));
            count += 1;
        }
        count
    }

    /// A new client finds every slot of the SRQ.
    fn ends_whole(mut self) {
        assert_eq!(self.receiver.free_slots(self.srq), 0);
        let (near, mut far) = self.connect();
        let mut bytes = [0; 64];
        // As many as the queue holds, before the first one is polled.
        for number in 0..SLOTS.into() {
            message::write(&mut bytes, 0, number);
            far.send_inline(&bytes, None).unwrap();
        }
        (0..SLOTS).for_each(|_| assert_eq!(far.ended(), WcStatus::SUCCESS));
        let mut expected = 0;
        receiving::messages(&mut self.receiver, SLOTS as usize, |message| {
            assert_eq!(message::read(&message), (0, expected));
            expected += 1;
        });
        self.receiver.destroy_qp(near).unwrap();
        self.receiver.destroy_srq(self.srq).unwrap();
        assert_eq!(self.pool.available(), self.pool.count() as usize);
    }
}

#[test]
fn a_reset_or_the_end_of_a_queue_pair_gives_the_receive_of_a_half_message_back() {
    for reset in [true, false] {
        let mut cuts = Cuts::new();
        for round in 0..CONNECTIONS {
            let mut near = cuts.cut();
            if reset {
                assert_eq!(cuts.receiver.reset_qp(&mut near).unwrap(), QpEnd::Complete);
                assert_eq!(cuts.receiver.free_slots(cuts.srq), 0, "connection {round}");
            }
            cuts.receiver.destroy_qp(near).unwrap();
            assert_eq!(cuts.receiver.free_slots(cuts.srq), 0, "connection {round}");
        }
        cuts.ends_whole();
    }
}

/// A handle is dropped without the receiver.
#[test]
fn a_dropped_queue_pair_gives_the_receive_of_a_half_message_back() {
    let mut cuts = Cuts::new();
    for _ in 0..CONNECTIONS {
        drop(cuts.cut());
        let mut flushed = 0;
        receiving::wait("the receive of a half message", || {
            flushed += cuts.take_flushed();
            flushed == 1
        });
    }
    cuts.ends_whole();
}

/// All connections are cut before the receiver polls; some handles are dropped.
#[test]
fn the_receives_of_many_half_messages_come_back_together() {
    let mut cuts = Cuts::new();
    for _ in 0..3 {
        let ends: Vec<QueuePair> = (0..SLOTS).map(|_| cuts.cut()).collect();
        let mut dropped = 0;
        for (at, near) in ends.into_iter().enumerate() {
            if at % 2 == 0 {
                assert_eq!(cuts.receiver.destroy_qp(near).unwrap(), QpEnd::Complete);
            } else {
                drop(near);
                dropped += 1;
            }
        }
        let mut flushed = 0;
        receiving::wait("every receive", || {
            flushed += cuts.take_flushed();
            flushed == dropped
        });
    }
    cuts.ends_whole();
}
