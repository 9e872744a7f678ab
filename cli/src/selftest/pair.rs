//! Queue pairs that receive, and those that send to them: from the same port, or from the peer.

use std::cell::RefCell;
use std::rc::Rc;

use doorbell::raw::rdma_core_sys as sys;
use doorbell::{
    BufferPool, CqConfig, DataPath, Failure, Message, PoolConfig, QpConfig, QueueId, QueuePair, ReceiveFrom, Receiver,
    RqConfig, SrqConfig, SrqId, WcStatus,
};

use super::far::{Far, OUTSTANDING, config};
use super::lab::{Lab, Patience};
use super::messages::{FarShape, Request};
use super::rings::Tap;
use super::stop::{Stop, fail};
use super::witness::Witness;

/// Shape of a pair.
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
    /// The path that drives the queues.
    pub path: DataPath,
    /// Further wishes of the receiver.
    pub receiver: fn(CqConfig) -> CqConfig,
    /// Code of the time that senders wait for an acknowledgement, and their retries.
    pub timeout: (u8, u8),
    /// Retries of senders where no receive is posted; 7 is without end.
    pub rnr_retry: u8,
    /// Further wishes of the queue pairs that receive.
    pub receives_with: fn(QpConfig) -> QpConfig,
    /// Post all buffers that fit.
    pub fill: bool,
    /// Datagrams.
    pub datagrams: bool,
    /// The senders are on this host, also where there is a peer.
    pub local: bool,
    /// A tap reads all CQEs before they are taken.
    pub watched: bool,
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
            // A retry takes 0.3 s at most.
            timeout: (12, 5),
            rnr_retry: 7,
            receives_with: |config| config,
            fill: true,
            datagrams: false,
            local: false,
            watched: true,
        }
    }
}

/// Queue pairs that receive, and those that send to them.
pub struct Pair {
    /// The receiver.
    pub receiver: Receiver,
    /// The receive queue of each queue pair, or the one that they share.
    pub queues: Vec<QueueId>,
    /// The shared one.
    pub srq: Option<SrqId>,
    /// Receiving queue pairs.
    pub near: Vec<QueuePair>,
    far: Far,
    /// Requests of each sending queue pair that are not over.
    outstanding: Vec<u32>,
    /// Numbers of the sending queue pairs.
    pub senders: Vec<u32>,
    witness: Rc<RefCell<Witness>>,
    /// Buffers of the receives.
    pub pool: BufferPool,
    /// The tap on the CQ of the receives.
    pub tap: Option<Tap>,
}

impl Pair {
    /// Makes and connects all.
    pub fn new(lab: &Lab, shape: &Shape) -> Result<Self, Stop> {
        let queues = if shape.srq { 1 } else { shape.qps };
        let entries = shape.cq.unwrap_or(2 * (shape.receives * queues + shape.qps));
        let receiving = CqConfig::new(entries).path(shape.path);
        let mut receiver = Receiver::new(&lab.pd, &(shape.receiver)(receiving))?;
        let srq = match shape.srq {
            true => Some(receiver.create_srq(&SrqConfig::new(shape.receives).max_sge(shape.sges))?),
            false => None,
        };
        let mut near = Vec::new();
        for _ in 0..shape.qps {
            let base = config(lab, shape.datagrams).max_inline(32);
            let from = match srq {
                Some(srq) => ReceiveFrom::Srq(srq),
                None => RqConfig::new(shape.receives).max_sge(shape.sges).into(),
            };
            near.push(QueuePair::builder(&(shape.receives_with)(base)).receive(&mut receiver, from).build()?);
        }
        let (timeout, retries) = shape.timeout;
        let far = FarShape {
            qps: shape.qps,
            datagrams: shape.datagrams,
            verbs: shape.path == DataPath::Verbs,
            watched: shape.watched,
            timeout,
            retries,
            rnr_retry: shape.rnr_retry,
        };
        let mut far = Far::new(lab, &far, shape.local)?;
        let addresses = far.addresses()?;
        for (qp, address) in near.iter_mut().zip(&addresses) {
            if shape.datagrams { qp.activate()? } else { qp.connect(address)? }
        }
        far.connect(&near.iter().map(QueuePair::address).collect::<Result<Vec<_>, _>>()?)?;
        let queues: Vec<QueueId> = match srq {
            Some(srq) => vec![srq.into()],
            None => near.iter().filter_map(QueuePair::receive_queue).map(QueueId::from).collect(),
        };
        // SAFETY: a live queue pair.
        let cq = unsafe { (*near[0].as_raw()).recv_cq };
        let watched = lab.direct && shape.watched;
        let tap = if watched { Some(Tap::new(cq, &lab.witness)?) } else { None };
        let pool = BufferPool::new(&lab.pd, &PoolConfig::new(shape.buffers, shape.buffer))?;
        let mut pair = Self {
            receiver,
            queues,
            srq,
            near,
            far,
            outstanding: vec![0; addresses.len()],
            senders: addresses.iter().map(|address| address.qpn).collect(),
            pool,
            tap,
            witness: Rc::clone(&lab.witness),
        };
        if shape.fill {
            pair.fill()?;
        }
        let mut witness = lab.witness.borrow_mut();
        witness.made("queue pairs", shape.qps);
        witness.made("CQs", 1);
        witness.made("SRQs", shape.srq.into());
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
    pub fn post(&mut self, qp: usize, request: &Request<'_>) -> Result<(), Stop> {
        while self.outstanding[qp] >= OUTSTANDING {
            self.sent(qp)?;
        }
        self.far.post(qp, request)?;
        self.outstanding[qp] += 1;
        Ok(())
    }

    /// Sends inline bytes.
    pub fn send(&mut self, qp: usize, bytes: &[u8], imm: Option<u32>) -> Result<(), Stop> {
        self.post(qp, &Request::Send { bytes: bytes.into(), imm, solicited: false })
    }

    /// Waits until a send has completed; it must have succeeded.
    pub fn sent(&mut self, qp: usize) -> Result<(), Stop> {
        match self.completed(qp)? {
            (WcStatus::SUCCESS, _) => Ok(()),
            (status, vendor) => fail(format!("a send completed with {status} (vendor {vendor:#04x})")),
        }
    }

    /// Waits until all sends of a queue pair have succeeded.
    pub fn all_sent(&mut self, qp: usize) -> Result<(), Stop> {
        while self.outstanding[qp] > 0 {
            self.sent(qp)?;
        }
        Ok(())
    }

    /// Waits for the completion of a send: its status and vendor syndrome.
    pub fn completed(&mut self, qp: usize) -> Result<(WcStatus, u32), Stop> {
        self.completed_within(qp, &Patience::new())
    }

    /// Waits so long for the completion of a send: its status and vendor syndrome.
    pub fn completed_within(&mut self, qp: usize, patience: &Patience) -> Result<(WcStatus, u32), Stop> {
        loop {
            if let Some(done) = self.poll_send(qp)? {
                return Ok(done);
            }
            patience.wait(|| "a send that has no completion".into())?;
        }
    }

    fn poll_send(&mut self, qp: usize) -> Result<Option<(WcStatus, u32)>, Stop> {
        let done = self.far.poll(qp)?;
        self.outstanding[qp] -= u32::from(done.is_some());
        Ok(done)
    }

    /// Takes what has arrived, at most `budget` completions; returns how many.
    pub fn poll(
        &mut self,
        budget: u32,
        mut each: impl FnMut(Result<Message<'_>, Failure>) -> Result<(), Stop>,
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
        mut each: impl FnMut(Result<Message<'_>, Failure>) -> Result<(), Stop>,
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
                let failed = (0..self.senders.len()).find_map(|qp| self.failed_send(qp));
                let why = failed.map_or(String::new(), |why| format!(" ({why})"));
                format!("{left} of {count} messages have not arrived{why}")
            })?;
        }
        Ok(())
    }

    /// Takes exactly `count` messages, with any content.
    pub fn take(&mut self, count: u32) -> Result<(), Stop> {
        self.receive(count, |message| {
            message?;
            Ok(())
        })
    }

    fn failed_send(&mut self, qp: usize) -> Option<String> {
        loop {
            match self.poll_send(qp) {
                Ok(None) => return None,
                Ok(Some((WcStatus::SUCCESS, _))) => {}
                Ok(Some((status, vendor))) => {
                    return Some(format!("a send completed with {status}, vendor {vendor:#04x}"));
                }
                Err(Stop::Fail(why) | Stop::Cannot(why)) => return Some(why),
            }
        }
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

    /// The CQEs that the sends of a queue pair have brought, if they are watched.
    pub fn sent_cqes(&self, qp: usize) -> Option<Vec<[u8; 64]>> {
        self.far.cqes(qp)
    }
}

impl Drop for Pair {
    /// Looks at CQEs that came too late for the checks.
    fn drop(&mut self) {
        if let Some(tap) = &mut self.tap {
            tap.look();
        }
        // Queue pairs of a peer have no tap here.
        let mut witness = self.witness.borrow_mut();
        self.senders.iter().for_each(|number| witness.forget(*number));
    }
}
