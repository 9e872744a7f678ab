//! Queue pairs that receive, and those that send to them, on the same port.

use std::cell::RefCell;
use std::rc::Rc;

use doorbell::rdma_core_sys as sys;
use doorbell::{
    BufferPool, Failure, Message, NotSent, Path, Posting, QpConfig, QueueId, QueuePair, Receiver,
    ReceiverConfig, SendError, Sender, SenderConfig, SrqConfig, SrqId, WcStatus,
};

use super::check::{Stop, fail};
use super::lab::{Lab, Patience};
use super::rings::Tap;
use super::witness::Witness;

/// What a pair should be like.
#[derive(Clone)]
pub struct Shape {
    /// Queue pairs on either side.
    pub qps: u32,
    /// Receives of each queue.
    pub receives: u32,
    /// Buffers of a receive.
    pub sges: u32,
    /// The queue pairs share one queue.
    pub srq: bool,
    /// Bytes of a buffer.
    pub buffer: u32,
    /// Buffers.
    pub buffers: u32,
    /// Entries of the CQ, or as many as receives.
    pub cq: Option<u32>,
    /// Who drives the queues.
    pub path: Path,
    /// Further wishes of the receiver.
    pub receiver: fn(ReceiverConfig) -> ReceiverConfig,
    /// Further wishes of the queue pairs that send.
    pub sender: fn(QpConfig) -> QpConfig,
    /// Further wishes of the queue pairs that receive.
    pub receives_with: fn(QpConfig) -> QpConfig,
    /// Post all buffers that fit.
    pub fill: bool,
    /// Datagrams.
    pub datagrams: bool,
}

impl Shape {
    /// One queue pair with 64 receives of 256 bytes.
    pub fn new(lab: &Lab) -> Self {
        Self {
            qps: 1,
            receives: 64,
            sges: 1,
            srq: false,
            buffer: 256,
            buffers: 64,
            cq: None,
            path: lab.path(),
            receiver: |config| config,
            sender: |config| config,
            receives_with: |config| config,
            fill: true,
            datagrams: false,
        }
    }
}

/// Queue pairs that receive, and those that send to them.
pub struct Pair {
    /// What receives.
    pub receiver: Receiver,
    /// The receive queue of each queue pair, or the one that they share.
    pub queues: Vec<QueueId>,
    /// The shared one.
    pub srq: Option<SrqId>,
    /// Receiving queue pairs.
    pub near: Vec<QueuePair>,
    /// Sending queue pairs.
    pub far: Vec<Far>,
    _far_receiver: Receiver,
    witness: Rc<RefCell<Witness>>,
    /// Buffers of the receives.
    pub pool: BufferPool,
    /// What watches the CQ of the receives.
    pub tap: Option<Tap>,
    /// What watches the CQ of each sending queue pair.
    pub far_taps: Vec<Option<Tap>>,
}

/// A queue pair that sends, with a sender of its own.
pub struct Far {
    /// The queue pair.
    pub qp: QueuePair,
    sender: Sender,
    /// Requests that are not over.
    outstanding: u32,
}

impl Far {
    /// Posts a request.
    fn post<P>(
        &mut self,
        request: impl FnOnce(&mut Posting<'_>) -> Result<(), SendError<P>>,
    ) -> Result<(), Stop> {
        let queue = self.qp.send_queue().ok_or(NotSent::NoQueue)?;
        let mut posting = self.sender.post(queue)?;
        request(&mut posting).map_err(|error| error.reason)?;
        self.outstanding += 1;
        Ok(())
    }
}

/// Queue key of datagrams.
pub const QKEY: u32 = 0x1234_5678;

impl Pair {
    /// Makes and connects all.
    pub fn new(lab: &Lab, shape: &Shape) -> Result<Self, Stop> {
        let queues = if shape.srq { 1 } else { shape.qps };
        let entries = shape.cq.unwrap_or(2 * (shape.receives * queues + shape.qps));
        let config = ReceiverConfig::new().cq_capacity(entries).path(shape.path);
        let mut receiver = Receiver::new(&lab.pd, &(shape.receiver)(config))?;
        let mut far_receiver =
            Receiver::new(&lab.pd, &ReceiverConfig::new().cq_capacity(16 * shape.qps))?;
        let srq = match shape.srq {
            true => Some(receiver.create_srq(&SrqConfig::new(shape.receives).max_sge(shape.sges))?),
            false => None,
        };
        let base = || {
            let config = if shape.datagrams { QpConfig::ud(QKEY) } else { QpConfig::rc() };
            // A retry takes 0.3 s at most.
            config.port(lab.port).timeout(12).retry_cnt(5).min_rnr_timer(1)
        };
        let (mut near, mut far, mut taps) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..shape.qps {
            let config = match srq {
                Some(srq) => base().srq(srq),
                None => base().receives(shape.receives, shape.sges),
            };
            let mut this = receiver.create_qp(&(shape.receives_with)(config.max_inline(32)))?;
            let config = base().receives(1, 1).sends(64).max_inline(64);
            let sending = SenderConfig::new().cq_capacity(256).path(shape.path);
            let mut sender = Sender::new(&lab.pd, &sending)?;
            let config = (shape.sender)(config);
            let mut that = far_receiver.create_qp_with_sender(&config, &mut sender)?;
            if shape.datagrams {
                this.activate()?;
                that.activate()?;
            } else {
                this.connect(&that.address()?)?;
                that.connect(&this.address()?)?;
            }
            // SAFETY: a live queue pair.
            let cq = unsafe { (*that.as_raw()).send_cq };
            taps.push(if lab.direct { Some(Tap::new(cq, &lab.witness)?) } else { None });
            near.push(this);
            far.push(Far { qp: that, sender, outstanding: 0 });
        }
        let queues: Vec<QueueId> = match srq {
            Some(srq) => vec![srq.into()],
            None => near.iter().filter_map(QueuePair::receive_queue).map(QueueId::from).collect(),
        };
        // SAFETY: a live queue pair.
        let cq = unsafe { (*near[0].as_raw()).recv_cq };
        let tap = if lab.direct { Some(Tap::new(cq, &lab.witness)?) } else { None };
        let pool = BufferPool::new(&lab.pd, shape.buffers, shape.buffer)?;
        let mut pair = Self {
            receiver,
            queues,
            srq,
            near,
            far,
            _far_receiver: far_receiver,
            pool,
            tap,
            far_taps: taps,
            witness: Rc::clone(&lab.witness),
        };
        if shape.fill {
            pair.fill()?;
        }
        Ok(pair)
    }

    /// Posts buffers to each queue, as many as there are and fit.
    pub fn fill(&mut self) -> Result<(), Stop> {
        for queue in &self.queues {
            self.receiver.fill(*queue, &self.pool)?;
        }
        Ok(())
    }

    /// The queue pair that receives, as libibverbs knows it.
    pub fn near_raw(&self, index: usize) -> *mut sys::ibv_qp {
        self.near[index].as_raw()
    }

    /// Posts a request, when there is room.
    pub fn post<P>(
        &mut self,
        qp: usize,
        request: impl FnOnce(&mut Posting<'_>) -> Result<(), SendError<P>>,
    ) -> Result<(), Stop> {
        while self.far[qp].outstanding >= 48 {
            self.sent(qp)?;
        }
        self.far[qp].post(request)
    }

    /// Sends inline bytes.
    pub fn send(&mut self, qp: usize, bytes: &[u8], imm: Option<u32>) -> Result<(), Stop> {
        self.post(qp, |posting| match imm {
            Some(imm) => posting.send_with_imm(bytes, imm),
            None => posting.send(bytes),
        })
    }

    /// Waits until a send has completed; it must have succeeded.
    pub fn sent(&mut self, qp: usize) -> Result<(), Stop> {
        match self.completed(qp)? {
            (WcStatus::SUCCESS, _) => Ok(()),
            (status, vendor) => {
                fail(format!("a send completed with {status} (vendor {vendor:#04x})"))
            }
        }
    }

    /// Waits until all sends of a queue pair have succeeded.
    pub fn all_sent(&mut self, qp: usize) -> Result<(), Stop> {
        while self.far[qp].outstanding > 0 {
            self.sent(qp)?;
        }
        Ok(())
    }

    /// Waits for the completion of a send: its status and vendor syndrome.
    pub fn completed(&mut self, qp: usize) -> Result<(WcStatus, u32), Stop> {
        let patience = Patience::new();
        loop {
            if let Some(done) = self.poll_send(qp) {
                return Ok(done);
            }
            patience.wait(|| "a send that has no completion".into())?;
        }
    }

    fn poll_send(&mut self, qp: usize) -> Option<(WcStatus, u32)> {
        if let Some(tap) = &mut self.far_taps[qp] {
            if tap.look() == 0 {
                return None;
            }
        }
        let far = &mut self.far[qp];
        let done = far.sender.poll_up_to(1).next().map(|done| (done.status, done.vendor_err))?;
        far.outstanding -= 1;
        if let Some(tap) = &mut self.far_taps[qp] {
            tap.take(1);
        }
        Some(done)
    }

    /// Takes what has arrived, at most `budget` completions; returns how many.
    pub fn poll(
        &mut self,
        budget: u32,
        mut each: impl FnMut(Result<Message<'_, '_>, Failure>) -> Result<(), Stop>,
    ) -> Result<u32, Stop> {
        let budget = self.tap.as_mut().map_or(budget, |tap| tap.look().min(budget));
        if budget == 0 {
            return Ok(0);
        }
        let mut batch = self.receiver.poll_up_to(budget);
        let (mut count, mut done) = (0, Ok(()));
        while let Some(next) = batch.next() {
            count += 1;
            done = done.and_then(|()| each(next));
        }
        drop(batch);
        if let Some(tap) = &mut self.tap {
            tap.take(count);
        }
        done.map(|()| count)
    }

    /// Takes exactly `count` completions.
    pub fn receive(
        &mut self,
        count: u32,
        mut each: impl FnMut(Result<Message<'_, '_>, Failure>) -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        let (mut left, mut patience) = (count, Patience::new());
        while left > 0 {
            let taken = self.poll(left, &mut each)?;
            left -= taken;
            if taken > 0 {
                patience.renew();
                continue;
            }
            patience.wait(|| {
                let failed = (0..self.far.len()).find_map(|qp| self.failed_send(qp));
                let why = failed.map_or(String::new(), |why| format!(" ({why})"));
                format!("{left} of {count} messages have not arrived{why}")
            })?;
        }
        Ok(())
    }

    /// Takes exactly `count` messages, whatever they say.
    pub fn take(&mut self, count: u32) -> Result<(), Stop> {
        self.receive(count, |message| {
            message?;
            Ok(())
        })
    }

    fn failed_send(&mut self, qp: usize) -> Option<String> {
        while let Some((status, vendor)) = self.poll_send(qp) {
            if !status.is_success() {
                return Some(format!("a send completed with {status}, vendor {vendor:#04x}"));
            }
        }
        None
    }

    /// Waits until the CQ of the receives holds `count` CQEs that were not taken, and takes none.
    pub fn arrived(&mut self, count: u32) -> Result<(), Stop> {
        let patience = Patience::new();
        while let Some(tap) = &mut self.tap {
            let seen = tap.look();
            if seen >= count {
                return Ok(());
            }
            patience.wait(|| format!("{seen} of {count} CQEs have arrived"))?;
        }
        Err(Stop::Cannot("the device is not mlx5".into()))
    }

    /// The CQEs that the receives have brought, the oldest first.
    pub fn cqes(&self) -> Vec<[u8; 64]> {
        self.tap.iter().flat_map(|tap| tap.seen.clone()).collect()
    }
}

impl Drop for Pair {
    /// What comes too late for the checks is seen still.
    fn drop(&mut self) {
        let taps = self.far_taps.iter_mut().flatten().chain(&mut self.tap);
        taps.for_each(|tap| _ = tap.look());
        let mut witness = self.witness.borrow_mut();
        self.near
            .iter()
            .chain(self.far.iter().map(|far| &far.qp))
            .for_each(|qp| witness.forget(qp.qp_num()));
    }
}
