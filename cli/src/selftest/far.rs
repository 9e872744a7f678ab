//! The queue pairs that send to the queue pairs of a [`Pair`](super::pair::Pair): of this process, or of the peer.

use std::rc::Rc;

use doorbell::{
    AddressHandle, BufferPool, CqConfig, DataPath, NotSent, PoolConfig, Posting, ProtectionDomain, QpAddress, QpConfig,
    QueuePair, Receiver, RemoteRegion, RqConfig, Sender, WcStatus,
};

use super::lab::Lab;
use super::messages::{FarShape, Request, SeenCqe};
use super::peer::RemoteFar;
use super::rings::{SendTap, Tap};
use super::stop::{Stop, fail};

/// Queue key of datagrams.
pub const QKEY: u32 = 0x1234_5678;
/// Bytes of the longest message.
const LONGEST: u32 = 8192;
/// Requests of a queue that are not over.
pub const OUTSTANDING: u32 = 48;

/// Queue pairs of this process, each with a sender of its own.
pub struct LocalFar {
    queues: Vec<Queue>,
    _receiver: Receiver,
    datagrams: bool,
    pd: ProtectionDomain,
    /// Buffers of long messages, from the first one on.
    long: Option<BufferPool>,
}

struct Queue {
    qp: QueuePair,
    sender: Sender,
    to: Option<AddressHandle>,
    tap: Option<(Tap, SendTap)>,
}

/// The configuration of queue pairs on either side.
pub fn config(lab: &Lab, datagrams: bool) -> QpConfig {
    let config = if datagrams { QpConfig::ud(QKEY) } else { QpConfig::rc() };
    let config = config.port(lab.port).min_rnr_timer(1);
    match lab.gid_index {
        Some(index) => config.gid_index(index),
        None => config,
    }
}

impl LocalFar {
    /// Makes the queue pairs.
    pub fn new(lab: &Lab, shape: &FarShape) -> Result<Self, Stop> {
        let path = if shape.verbs { DataPath::Verbs } else { lab.path() };
        let mut receiver = Receiver::new(&lab.pd, &CqConfig::new(16 * shape.qps))?;
        let mut queues = Vec::new();
        for _ in 0..shape.qps {
            let sending = CqConfig::new(256).path(path);
            let mut sender = Sender::new(&lab.pd, &sending)?;
            let config = config(lab, shape.datagrams).max_send_wr(64).max_inline(64);
            let config = config.timeout(shape.timeout).retry_cnt(shape.retries);
            let config = config.rnr_retry(shape.rnr_retry);
            let qp = QueuePair::builder(&config).receive(&mut receiver, RqConfig::new(1)).send(&mut sender).build()?;
            // SAFETY: a live queue pair.
            let cq = unsafe { (*qp.as_raw()).send_cq };
            let watched = lab.direct && shape.watched;
            let tap = match watched {
                true => Some((Tap::new(cq, &lab.witness)?, SendTap::new(qp.as_raw(), &lab.witness)?)),
                false => None,
            };
            queues.push(Queue { qp, sender, to: None, tap });
        }
        let mut witness = lab.witness.borrow_mut();
        witness.made("queue pairs", shape.qps);
        witness.made("CQs", 1 + shape.qps);
        Ok(Self { queues, _receiver: receiver, datagrams: shape.datagrams, pd: lab.pd.clone(), long: None })
    }

    /// Returns the addresses of the queue pairs.
    pub fn addresses(&self) -> Result<Vec<QpAddress>, Stop> {
        Ok(self.queues.iter().map(|queue| queue.qp.address()).collect::<Result<_, _>>()?)
    }

    /// Connects each queue pair to its receiving queue pair.
    pub fn connect(&mut self, near: &[QpAddress]) -> Result<(), Stop> {
        for (queue, near) in self.queues.iter_mut().zip(near) {
            if self.datagrams {
                queue.qp.activate()?;
                queue.to = Some(queue.qp.address_handle(near, QKEY)?);
            } else {
                queue.qp.connect(near)?;
            }
        }
        Ok(())
    }

    /// Posts a request to a queue pair that has room.
    pub fn post(&mut self, qp: usize, request: &Request<'_>) -> Result<(), Stop> {
        let Some(queue) = self.queues.get_mut(qp) else { return fail("no such queue pair") };
        let at = queue.qp.send_queue().ok_or(NotSent::NoQueue)?;
        let mut posting = queue.sender.post_many(at)?;
        match request {
            Request::Send { bytes, imm, solicited } => {
                if *solicited {
                    posting.solicited();
                }
                posted(send(&mut posting, queue.to.as_ref(), bytes, *imm))
            }
            Request::Long(len) => {
                let pool = match &mut self.long {
                    Some(pool) => pool,
                    none => none.insert(BufferPool::new(&self.pd, &PoolConfig::new(OUTSTANDING, LONGEST))?),
                };
                let mut buffer = pool.take().ok_or("no buffer")?;
                buffer.set_len((*len).min(LONGEST) as usize);
                posted(posting.send(buffer))
            }
            Request::Write { address, key } => {
                posted(posting.write(b"nowhere.", &RemoteRegion::new(*address, 8, *key)))
            }
        }
    }

    /// Takes the completion of a request: its status and vendor syndrome.
    pub fn poll(&mut self, qp: usize) -> Option<(WcStatus, u32)> {
        let queue = self.queues.get_mut(qp)?;
        // The tap must look at a CQE before it is taken: afterwards the CQE may be overwritten.
        if queue.tap.as_mut().is_some_and(|(tap, _)| tap.look() == 0) {
            return None;
        }
        let done = match queue.sender.next()? {
            Ok(_) => (WcStatus::SUCCESS, 0),
            Err(failure) => (failure.status, failure.vendor_err),
        };
        if let Some((tap, wqes)) = &mut queue.tap {
            wqes.executed(tap.oldest());
            tap.take(1);
        }
        Some(done)
    }

    /// Returns the CQEs of a queue pair that were seen since the last call.
    pub fn news(&mut self, qp: usize) -> Vec<SeenCqe> {
        let tap = self.queues.get_mut(qp).and_then(|queue| queue.tap.as_mut());
        tap.map_or(Vec::new(), |(tap, _)| tap.news())
    }
}

fn send(posting: &mut Posting<'_>, to: Option<&AddressHandle>, bytes: &[u8], imm: Option<u32>) -> Result<(), NotSent> {
    match (to, imm) {
        (Some(to), imm) => posting.send_to(to, bytes, imm),
        (None, Some(imm)) => posting.send_with_imm(bytes, imm),
        (None, None) => posting.send(bytes),
    }
}

fn posted(done: Result<(), impl Into<NotSent>>) -> Result<(), Stop> {
    Ok(done.map_err(Into::into)?)
}

impl Drop for LocalFar {
    /// Looks at CQEs that came too late for the checks.
    fn drop(&mut self) {
        for (tap, _) in self.queues.iter_mut().filter_map(|queue| queue.tap.as_mut()) {
            tap.look();
        }
    }
}

/// The queue pairs that send.
pub enum Far {
    /// A far end in this process.
    Here(Box<LocalFar>),
    /// A far end at the peer.
    There(RemoteFar),
}

impl Far {
    /// Makes them: at the peer if there is one, unless they must be local.
    pub fn new(lab: &Lab, shape: &FarShape, local: bool) -> Result<Self, Stop> {
        match &lab.peer {
            Some(peer) if !local => Ok(Self::There(RemoteFar::new(Rc::clone(peer), Rc::clone(&lab.witness), shape)?)),
            _ => Ok(Self::Here(Box::new(LocalFar::new(lab, shape)?))),
        }
    }

    /// Returns the addresses of the queue pairs.
    pub fn addresses(&self) -> Result<Vec<QpAddress>, Stop> {
        match self {
            Self::Here(far) => far.addresses(),
            Self::There(far) => Ok(far.addresses.clone()),
        }
    }

    /// Connects each queue pair to its receiving queue pair.
    pub fn connect(&mut self, near: &[QpAddress]) -> Result<(), Stop> {
        match self {
            Self::Here(far) => far.connect(near),
            Self::There(far) => far.connect(near),
        }
    }

    /// Posts a request to a queue pair that has room.
    pub fn post(&mut self, qp: usize, request: &Request<'_>) -> Result<(), Stop> {
        match self {
            Self::Here(far) => far.post(qp, request),
            Self::There(far) => far.post(qp, request),
        }
    }

    /// Takes the completion of a request, if there is one.
    pub fn poll(&mut self, qp: usize) -> Result<Option<(WcStatus, u32)>, Stop> {
        match self {
            Self::Here(far) => Ok(far.poll(qp)),
            Self::There(far) => far.poll(qp),
        }
    }

    /// Returns the CQEs of a queue pair, the oldest first; `None` where nothing watches them.
    pub fn cqes(&self, qp: usize) -> Option<Vec<[u8; 64]>> {
        match self {
            Self::Here(far) => far.queues[qp].tap.as_ref().map(|(tap, _)| tap.seen.clone()),
            Self::There(far) => Some(far.seen[qp].clone()).filter(|seen| !seen.is_empty()),
        }
    }
}
