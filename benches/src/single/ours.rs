//! The safe API of doorbell, and its rings.

use std::hint::black_box;

use doorbell::raw::{SlotContext, WorkRequest};
use doorbell::{
    BufferPool, CqConfig, DataPath, PoolConfig, QpConfig, QueuePair, Receiver, Sender, SqId, SrqConfig, SrqId,
};
use mlx5_ring::completion::CqeKind;
use mlx5_ring::cq::CompletionQueue;
use mlx5_ring::ordered::OrderedReceiveQueue;
use mlx5_ring::receive::ReceiveRing;
use mlx5_ring::sge::Sge;
use mlx5_ring::sq::{Completion, Flags, Immediate, Payload, SendQueue};

use super::{Costs, LEN, RECEIVES, Single, UNSIGNALED, measure};
use crate::step;
use crate::world::{BUFFER, World};

struct Safe {
    receiver: Receiver,
    sender: Sender,
    queue: SqId,
    srq: SrqId,
    _qp: QueuePair,
}

impl Safe {
    fn new(world: &World, size: &SrqConfig) -> Self {
        let cq = |capacity| CqConfig::new(capacity).path(DataPath::Direct);
        let mut receiver = Receiver::new(&world.pd, &cq(RECEIVES)).expect("a receiver");
        let mut sender = Sender::new(&world.pd, &cq(256)).expect("a sender");
        let srq = receiver.create_srq(size).expect("an SRQ");
        let config = QpConfig::rc().max_send_wr(64).max_inline(LEN as u32).max_unsignaled(UNSIGNALED as u32 - 1);
        let qp = QueuePair::builder(&config).receive(&mut receiver, srq).send(&mut sender).build();
        let mut qp = qp.expect("a queue pair");
        let itself = qp.address().expect("an address");
        qp.connect(&itself).expect("connected");
        // SAFETY: a live queue pair, whose register stays mapped as long as it lives.
        unsafe {
            let layout = world.sq_layout(qp.as_raw());
            step::watch(layout.register.cast(), layout.register_size);
        }
        let queue = qp.send_queue().expect("made with a sender");
        Self { receiver, sender, queue, srq, _qp: qp }
    }
}

impl Single for Safe {
    #[inline(always)]
    fn send(&mut self) {
        self.sender.send(self.queue, black_box(&[7; LEN])).expect("room");
    }

    #[inline(always)]
    fn send_unsignaled(&mut self, _is_last: bool) {
        let request = self.sender.post(self.queue).expect("connected");
        request.unsignaled().send(black_box(&[7; LEN])).expect("room");
    }

    #[inline(always)]
    fn sent(&mut self) {
        if let Some(done) = self.sender.next() {
            black_box(done.expect("no failure").token);
        }
    }

    #[inline(always)]
    fn sent_unsignaled(&mut self) {
        assert!(self.sender.next().is_none());
    }

    #[inline(always)]
    fn receive(&mut self) {
        let message = self.receiver.next().expect("a message").expect("no failure");
        black_box((message.as_ptr(), message.len()));
        step::mark();
    }

    #[inline(always)]
    fn poll_nothing(&mut self) {
        assert!(self.receiver.next().is_none());
    }
}

pub(super) fn safe(world: &World) -> Costs {
    let mut safe = Safe::new(world, &SrqConfig::new(RECEIVES));
    let pool = BufferPool::new(&world.pd, &PoolConfig::new(RECEIVES + 1, BUFFER)).expect("a pool");
    safe.receiver.fill(safe.srq, &pool).expect("room");
    measure(world, &mut safe)
}

struct Rings<'a> {
    cq: &'a mut CompletionQueue,
    srq: &'a mut OrderedReceiveQueue<SlotContext>,
    /// Receives since the last upkeep.
    lent: u32,
    send_cq: &'a mut CompletionQueue,
    sends: &'a mut SendQueue<WorkRequest>,
}

impl Single for Rings<'_> {
    #[inline(always)]
    fn send(&mut self) {
        let bytes = black_box([7; LEN]);
        let pieces: [&[u8]; 1] = [&bytes];
        let (payload, request) = (Payload::inline(&pieces), WorkRequest::from_wr_id(7));
        // SAFETY: the bytes are copied, and the queue pair is connected.
        let sent = unsafe { self.sends.posting_singly().send(payload, Immediate::None, Flags::SIGNALED, request) };
        sent.expect("room");
    }

    #[inline(always)]
    fn send_unsignaled(&mut self, _is_last: bool) {
        let bytes = black_box([7; LEN]);
        let pieces: [&[u8]; 1] = [&bytes];
        let (payload, request) = (Payload::inline(&pieces), WorkRequest::from_wr_id(7));
        // SAFETY: the bytes are copied, and the queue pair is connected.
        let sent = unsafe { self.sends.posting_singly().send(payload, Immediate::None, Flags::NONE, request) };
        sent.expect("room");
    }

    #[inline(always)]
    fn sent_unsignaled(&mut self) {
        let done = self.send_cq.next().and_then(Completion::read).expect("a CQE");
        done.result.expect("no failure");
        // Dropping it frees them all.
        drop(self.sends.complete(done.wqe_counter).expect("a request"));
        self.send_cq.publish();
    }

    #[inline(always)]
    fn sent(&mut self) {
        let Some(done) = self.send_cq.next().and_then(Completion::read) else { return };
        done.result.expect("no failure");
        let over = self.sends.complete(done.wqe_counter).expect("a request");
        over.for_each(|request| {
            black_box(request.wr_id());
        });
        self.send_cq.publish();
    }

    #[inline(always)]
    fn receive(&mut self) {
        let cqe = self.cq.peek().filter(|cqe| cqe.kind() == CqeKind::Send).expect("a message");
        let slot = self.srq.posted_slot(cqe.wqe_counter()).expect("a slot");
        // SAFETY: the slot is posted.
        let data = unsafe { self.srq.data(slot) };
        black_box((data.wr_id(), cqe.byte_count()));
        step::mark();
        self.cq.advance();
        // SAFETY: the slot was returned above, and no code uses its memory, which stays.
        unsafe { self.srq.lend(slot) };
        self.lent += 1;
        if self.lent == UPKEEP {
            self.lent = 0;
            self.cq.publish();
            self.srq.give_back();
            self.srq.ring_doorbell();
        }
    }

    #[inline(always)]
    fn poll_nothing(&mut self) {
        assert!(self.cq.peek().is_none());
    }
}

/// Messages after which their receives are given back, as [`Receiver::next`] does it.
const UPKEEP: u32 = 16;

pub(super) fn rings(world: &World) -> Costs {
    let Safe { mut receiver, mut sender, queue, srq, _qp } = Safe::new(world, &SrqConfig::new(RECEIVES));
    let memory = world.memory(RECEIVES + 1);
    // SAFETY: only the rings are used from here on.
    let sends = unsafe { sender.as_direct(queue) };
    let (send_cq, sends) = sends.expect("a queue").expect("the direct path");
    // SAFETY: as above.
    let mut direct = unsafe { receiver.as_direct() }.expect("the direct path");
    let (cq, srq) = direct.ordered_srq(srq).expect("an SRQ");
    for index in 0..=RECEIVES {
        let addr = memory.start + u64::from(index) * u64::from(BUFFER);
        let (data, sges) = (SlotContext::from_wr_id(addr), [Sge { addr, length: BUFFER, lkey: memory.lkey }]);
        // SAFETY: memory that stays, which nothing else uses.
        let posted = unsafe { if srq.has_room() { srq.post(data, &sges).map(drop) } else { srq.load(data, &sges) } };
        posted.expect("room");
    }
    srq.ring_doorbell();
    measure(world, &mut Rings { cq, srq, lent: 0, send_cq, sends })
}
