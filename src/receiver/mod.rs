//! Receiving: one completion queue and all the queues that complete on it.

mod batch;
mod config;
mod datagram;
mod direct;
mod drain;
mod facts;
mod failure;
mod forgotten;
mod found;
mod id;
mod many;
mod message;
mod parked;
mod post;
mod prefetch;
mod qps;
mod raw;
mod reclaim;
mod resident;
mod routes;
mod srq;
mod status;
mod through;
mod upkeep;
mod verbs;
mod wait;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rdma_core_sys::Mlx5dv;

use crate::channel::CompletionChannel;
use crate::clock::{Clock, TimestampClock};
use crate::context::Context;
use crate::cq::{Cq, CqInit, Timestamps};
use crate::error::{Error, Result};
use crate::events::Patience;
use crate::path::Path;
use crate::pd::ProtectionDomain;
use crate::qp::{Qp, QpConfig, QpEnd, QueuePair};
use crate::trace::told;

pub use batch::Batch;
pub use config::{Compression, ReceiverConfig, SrqConfig};
pub use datagram::{Datagram, GRH_SIZE, Sender};
pub use facts::Source;
pub use failure::{Cause, Failure};
pub use id::{QueueId, RqId, SrqId};
pub use message::Message;
pub use post::{PostError, PostFailure, ScatterError};
pub use raw::Direct as DirectQueues;
pub use resident::Resident;
pub use upkeep::{Refused, SharedPoster, Statistics};

pub(crate) use direct::{Array, Direct, DirectSrq, init_obj, layout_error, non_null};
pub(crate) use parked::Parked;
pub(crate) use resident::Books;
pub(crate) use routes::Routes;
pub(crate) use srq::Srq;
pub(crate) use status::wc_status;
pub(crate) use verbs::{Object, Verbs};

use direct::Ring;
use post::LeastBuffer;
use upkeep::Upkeep;

/// One completion queue and every receive queue that completes on it.
///
/// Polling frees slots and posting fills them: both change the same state, so one value owns both, and
/// moves between threads as a unit. Queues are named by typed indices into it.
///
/// | to | there is |
/// |---|---|
/// | make queues | [`create_srq`](Self::create_srq), [`create_qp`](Self::create_qp) |
/// | give buffers | [`fill`](Self::fill), [`post`](Self::post), [`post_scatter`](Self::post_scatter); by itself: [`keep_filled`](Self::keep_filled); from other threads: [`shared_poster`](Self::shared_poster) |
/// | take messages | [`poll`](Self::poll), [`poll_up_to`](Self::poll_up_to) |
/// | sleep | [`wait`](Self::wait); in a loop of one's own [`arm`](Self::arm) and [`channel`](Self::channel) |
/// | look after it | [`handle_event`](Self::handle_event), [`arm_srq_limit`](Self::arm_srq_limit), [`statistics`](Self::statistics) |
/// | end a connection | [`drain_qp`](Self::drain_qp), [`reset_qp`](Self::reset_qp), [`destroy_qp`](Self::destroy_qp); or just drop it |
/// | leave the safe layer | [`as_direct`](Self::as_direct), [`from_raw_cq`](Self::from_raw_cq) |
///
/// ```no_run
/// use doorbell::{BufferPool, QpConfig, Receiver, ReceiverConfig, SrqConfig};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
/// let pool = BufferPool::new(&pd, 512, 4096)?;
/// let mut receiver = Receiver::new(&pd, &ReceiverConfig::new().cq_capacity(512))?;
/// let srq = receiver.create_srq(&SrqConfig::new(511))?;
/// receiver.fill(srq, &pool)?;
/// let mut qp = receiver.create_qp(&QpConfig::rc().srq(srq))?;
/// qp.connect_over(&mut std::net::TcpStream::connect("server:18515")?)?;
/// loop {
///     let mut batch = receiver.poll();
///     while let Some(message) = batch.next() {
///         println!("{} bytes", message?.len());
///     }
/// }
/// # }
/// ```
pub struct Receiver {
    engine: Engine,
    books: Books,
    cq: Arc<Cq>,
    pd: ProtectionDomain,
    id: u32,
    /// Receives that can be outstanding on all queues together.
    committed: u64,
    /// Which buffers each queue takes, in the order of the queues.
    least_buffers: Vec<LeastBuffer>,
    upkeep: Option<Box<Upkeep>>,
    /// The device has said that the CQ is broken.
    cq_failed: bool,
}

enum Engine {
    Direct(Direct),
    Verbs(Verbs),
}

impl Receiver {
    /// Makes a CQ, and decides how it and its queues are driven.
    ///
    /// ```
    /// # let _device = doorbell_doc::device();
    /// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// use doorbell::{Path, Receiver, ReceiverConfig};
    ///
    /// let receiver = Receiver::new(&pd, &ReceiverConfig::new().path(Path::Direct))?;
    /// assert_eq!(receiver.path(), Path::Direct);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotDirect`] when [`Path::Direct`] is asked for and impossible, [`Error::OutOfRange`],
    /// [`Error::Verbs`].
    pub fn new(pd: &ProtectionDomain, config: &ReceiverConfig) -> Result<Self> {
        let context = pd.context();
        let mlx5dv = context.choose(config.path)?;
        let cq = Arc::new(Self::create_cq(context, config, mlx5dv)?);
        told!(device = context.name(), entries = cq.capacity(), "completion queue created");
        // SAFETY: a fresh CQ that nobody else knows.
        let mut receiver = unsafe { Self::with_cq(pd, cq, mlx5dv) }?;
        receiver.prefetch_lines(config.prefetch);
        Ok(receiver)
    }

    fn create_cq(
        context: &Context,
        config: &ReceiverConfig,
        mlx5dv: Option<&'static Mlx5dv>,
    ) -> Result<Cq> {
        let refused = |when| Err(Error::Unsupported { operation: "CQE compression", when });
        let init = CqInit {
            entries: config.cq_capacity,
            channel: Some(CompletionChannel::create(context)?),
            comp_vector: config.comp_vector,
        };
        match (config.compression, mlx5dv) {
            (None, _) => match config.timestamps {
                Some(form) => Cq::create_with_timestamps(context, init, form),
                None => Cq::create(context, init),
            },
            (Some(_), _) if config.timestamps.is_some() => {
                refused("together with timestamps: the CQEs of a block have one in common")
            }
            (Some(_), None) => refused("on the verbs path: libmlx5 does not read compressed CQEs"),
            (Some(compression), Some(mlx5dv)) => {
                let format = compression.format();
                if !context.compresses(mlx5dv, format)? {
                    return refused("on this device, which does not have the format");
                }
                Cq::create_compressed(context, init, format, mlx5dv)
            }
        }
    }

    /// # Safety
    /// Nothing was polled from the CQ, and nobody else polls, arms or resizes it.
    unsafe fn with_cq(
        pd: &ProtectionDomain,
        cq: Arc<Cq>,
        mlx5dv: Option<&'static Mlx5dv>,
    ) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let engine = match mlx5dv {
            // SAFETY: the caller's contract.
            Some(mlx5dv) => Engine::Direct(
                unsafe { Direct::new(mlx5dv, &cq) }.map_err(|e| pd.context().not_direct(e))?,
            ),
            None => Engine::Verbs(Verbs::new(Arc::clone(&cq))),
        };
        Ok(Self {
            engine,
            books: Books::new(pd.clone(), TimestampClock::of(&cq)),
            cq,
            pd: pd.clone(),
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            committed: 0,
            least_buffers: Vec::new(),
            upkeep: None,
            cq_failed: false,
        })
    }

    /// How the queues are driven: [`Path::Direct`] or [`Path::Verbs`].
    pub const fn path(&self) -> Path {
        match self.engine {
            Engine::Direct(_) => Path::Direct,
            Engine::Verbs(_) => Path::Verbs,
        }
    }

    /// The clock of the [timestamps](crate::Message::timestamp) of this receiver: a reading of the device's clock,
    /// or, when they are in [real time](ReceiverConfig::real_time_timestamps), one that no reading is needed for.
    ///
    /// # Errors
    /// Those of [`Context::clock`].
    pub fn clock(&self) -> Result<Clock> {
        match self.cq.with_timestamps() {
            Some((_, Timestamps::RealTime)) => Ok(Clock::REAL_TIME),
            _ => self.pd.context().clock(),
        }
    }

    /// The protection domain.
    pub const fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// Entries of the CQ.
    pub fn cq_capacity(&self) -> u32 {
        self.cq.capacity()
    }

    /// Changes the size of the CQ to at least `entries` (`ibv_resize_cq(3)`), on the verbs path.
    ///
    /// ```
    /// # use doorbell::{Receiver, ReceiverConfig};
    /// # let _device = doorbell_doc::device();
    /// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// use doorbell::{Error, Path};
    ///
    /// let config = ReceiverConfig::new().cq_capacity(100);
    /// let mut receiver = Receiver::new(&pd, &config.clone().path(Path::Verbs))?;
    /// receiver.resize_cq(1000)?;
    /// assert!(receiver.cq_capacity() >= 1000);
    /// let refused = Receiver::new(&pd, &config.path(Path::Direct))?.resize_cq(1000);
    /// assert!(matches!(refused, Err(Error::Unsupported { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`] on the direct path, where libmlx5 would free the memory that is polled: make
    /// the CQ large enough, or another receiver. [`Error::CqTooSmall`] when the queues need more,
    /// [`Error::OutOfRange`], [`Error::Verbs`].
    pub fn resize_cq(&mut self, entries: u32) -> Result<()> {
        if let Engine::Direct(_) = self.engine {
            return Err(Error::Unsupported {
                operation: "resize_cq",
                when: "on the direct path: choose the size with ReceiverConfig::cq_capacity",
            });
        }
        let context = self.pd.context();
        let max = context.attr().max_cqe.max(0) as u64;
        Error::check_range("entries", entries.into(), 1, max)?;
        if u64::from(entries) < self.committed {
            return Err(Error::CqTooSmall { capacity: entries.into(), needed: self.committed });
        }
        // SAFETY: a live CQ, which this thread alone polls.
        let errno = unsafe { rdma_core_sys::ibv_resize_cq(self.cq.as_raw(), entries as i32) };
        match errno {
            0 => Ok(()),
            _ => Err(Error::returned("ibv_resize_cq", context.name(), errno)),
        }
    }

    /// Makes a shared receive queue.
    ///
    /// ```
    /// # use doorbell::{QpConfig, Receiver, ReceiverConfig, SrqConfig};
    /// # let _device = doorbell_doc::device();
    /// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// let mut receiver = Receiver::new(&pd, &ReceiverConfig::new().cq_capacity(1024))?;
    /// let srq = receiver.create_srq(&SrqConfig::new(511))?;
    /// // One CQ holds what can complete on it, and no more is promised.
    /// let refused = receiver.create_srq(&SrqConfig::new(2047)).unwrap_err();
    /// println!("{refused}");
    /// receiver.destroy_srq(srq)?;
    /// receiver.create_srq(&SrqConfig::new(1023))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::CqTooSmall`], [`Error::OutOfRange`], [`Error::NotDirect`], [`Error::Verbs`].
    pub fn create_srq(&mut self, config: &SrqConfig) -> Result<SrqId> {
        self.check_cq()?;
        self.check_room(config.max_wr.into())?;
        let srq = Arc::new(Srq::create(&self.pd, config)?);
        // SAFETY: a fresh SRQ that nobody else knows.
        unsafe { self.add_srq(srq, config.max_wr, config.max_sge) }
    }

    /// # Safety
    /// Nothing was posted to the SRQ, and nobody else posts to it.
    unsafe fn add_srq(&mut self, srq: Arc<Srq>, max_wr: u32, max_sge: u32) -> Result<SrqId> {
        let (index, capacity) = match &mut self.engine {
            Engine::Direct(direct) => {
                // SAFETY: the caller's contract.
                let queue =
                    unsafe { direct.srq(srq) }.map_err(|e| self.pd.context().not_direct(e))?;
                let capacity = queue.ring.slots() - 1;
                direct.queues.push(Ring::Srq(Box::new(queue)));
                (direct.queues.len() as u32 - 1, capacity)
            }
            Engine::Verbs(verbs) => (verbs.add(Object::Srq(srq), max_wr, max_sge), max_wr),
        };
        let id = QueueId { receiver: self.id, index };
        self.commit(id, capacity)?;
        told!(
            device = self.pd.context().name(),
            max_wr,
            capacity,
            max_sge,
            "shared receive queue created"
        );
        Ok(SrqId(id))
    }

    /// Makes a queue pair that completes its receives on this receiver, in state INIT: receives can be
    /// posted before it is connected.
    ///
    /// ```
    /// # use doorbell::{QpConfig, Receiver, ReceiverConfig, SrqConfig};
    /// # let _device = doorbell_doc::device();
    /// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// let mut receiver = Receiver::new(&pd, &ReceiverConfig::new())?;
    /// // Two connections that share their receives, and one with receives of its own.
    /// let srq = receiver.create_srq(&SrqConfig::new(511))?;
    /// let one = receiver.create_qp(&QpConfig::rc().srq(srq))?;
    /// let two = receiver.create_qp(&QpConfig::rc().srq(srq))?;
    /// let three = receiver.create_qp(&QpConfig::rc().receives(128, 1))?;
    /// assert_eq!(one.receive_queue(), None);
    /// let queue = three.receive_queue().expect("a queue of its own");
    /// assert_eq!(receiver.capacity(queue), 128);
    /// # drop((one, two));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Foreign`] for an SRQ of another receiver, [`Error::NoRoomForHeader`] for datagrams into an SRQ whose
    /// posted buffers have no room for their header, and those of [`create_srq`](Self::create_srq).
    pub fn create_qp(&mut self, config: &QpConfig) -> Result<QueuePair> {
        self.check_cq()?;
        self.end_dropped();
        let srq = match config.shared() {
            Some(id) => Some(self.srq_object(id)?),
            None => {
                self.check_room(config.max_recv_wr().into())?;
                None
            }
        };
        let mlx5dv = match &self.engine {
            Engine::Direct(direct) => Some(direct.mlx5dv),
            Engine::Verbs(_) => None,
        };
        let mut qp = QueuePair::create(&self.pd, config, Arc::clone(&self.cq), srq, mlx5dv)?;
        told!(
            device = self.pd.context().name(),
            qp_num = qp.qp_num(),
            shared = config.shared().is_some(),
            sends = config.max_send_wr,
            "queue pair created"
        );
        if let Some(id) = config.shared() {
            self.expect_datagrams(id.0, config)?;
        }
        self.enter(&qp.object());
        match config.shared() {
            Some(id) => self.route(qp.qp_num(), id.0.index),
            None => {
                // SAFETY: a fresh QP that nobody else knows.
                let id = unsafe {
                    self.add_rq(qp.object(), config.max_recv_wr(), config.max_recv_sge())
                }?;
                self.expect_datagrams(id.0, config)?;
                qp.set_receive_queue(id);
            }
        }
        Ok(qp)
    }

    /// Takes note of a new QP. What the CQ holds of a dropped one that had its number is not the new one's.
    fn enter(&mut self, qp: &Arc<Qp>) {
        let number = qp.qp_num();
        if !self.books.qps.insert(qp) {
            return;
        }
        match &mut self.engine {
            Engine::Direct(direct) => {
                if let Some(index) = direct.routes.find(number) {
                    self.forget(number, index as usize);
                }
            }
            Engine::Verbs(verbs) => verbs.purge(number, &mut self.books),
        }
    }

    /// Has a queue refuse buffers that are too small for datagrams from now on, when a queue pair like `config` takes
    /// them from it.
    fn expect_datagrams(&mut self, id: QueueId, config: &QpConfig) -> Result<()> {
        if config.qp_type != rdma_core_sys::IBV_QPT_UD {
            return Ok(());
        }
        let is_empty = self.outstanding(id) == 0;
        self.least_buffers[id.index as usize].for_datagrams(is_empty)
    }

    /// # Safety
    /// Nothing was posted to the receive queue, and nobody else posts to it.
    unsafe fn add_rq(&mut self, qp: Arc<Qp>, max_wr: u32, max_sge: u32) -> Result<RqId> {
        let qp_num = qp.qp_num();
        let (index, capacity) = match &mut self.engine {
            Engine::Direct(direct) => {
                // SAFETY: the caller's contract.
                let queue =
                    unsafe { direct.rq(qp) }.map_err(|e| self.pd.context().not_direct(e))?;
                let capacity = queue.ring.slots();
                direct.queues.push(Ring::Rq(Box::new(queue)));
                (direct.queues.len() as u32 - 1, capacity)
            }
            Engine::Verbs(verbs) => (verbs.add(Object::Rq(qp), max_wr, max_sge), max_wr),
        };
        let id = QueueId { receiver: self.id, index };
        self.commit(id, capacity)?;
        self.route(qp_num, index);
        told!(qp_num, max_wr, capacity, max_sge, "receive queue created");
        Ok(RqId(id))
    }

    fn check_cq(&self) -> Result<()> {
        if self.cq_failed { Err(Error::CqFailed) } else { Ok(()) }
    }

    fn check_room(&self, receives: u64) -> Result<()> {
        let (needed, capacity) = (self.committed + receives, u64::from(self.cq.capacity()));
        if needed > capacity {
            return Err(Error::CqTooSmall { capacity, needed });
        }
        Ok(())
    }

    /// Counts a new queue of `capacity`, or takes it out again when the CQ cannot hold its completions.
    fn commit(&mut self, id: QueueId, capacity: u32) -> Result<()> {
        // It is the newest one.
        self.least_buffers.push(LeastBuffer::EMPTY);
        if let Err(error) = self.check_room(capacity.into()) {
            self.discard(id.index as usize);
            return Err(error);
        }
        self.committed += u64::from(capacity);
        Ok(())
    }

    /// Ends the QPs whose handles were dropped and whose receives have all come back.
    fn end_dropped(&mut self) {
        self.recover();
        let over: Vec<_> = self
            .queues()
            .filter(|&id| self.outstanding(id) == 0)
            .filter_map(|id| {
                let qp = self.qp_of(id)?;
                (Arc::strong_count(qp) == 1).then(|| (id, qp.qp_num()))
            })
            .collect();
        for (id, qp_num) in over {
            self.end_rq(id, qp_num);
        }
        // Those on SRQs have been in ERROR since then. On the direct path what has come back stays on the CQ, to be
        // polled.
        for qp in self.books.qps.take_dropped() {
            // One that cannot be taken to ERROR is destroyed all the same.
            if let Ok(end) = qp.stop_receiving(Patience::Progress) {
                self.note_end(end);
            }
            if let Engine::Verbs(verbs) = &mut self.engine {
                verbs.fetch_all();
            }
        }
        if !self.has_arrived() {
            self.books.qps.take_departed().into_iter().for_each(|number| self.unroute(number));
        }
    }

    /// Counts a QP whose receives may be lost to their SRQ.
    fn note_end(&mut self, end: QpEnd) {
        if end == QpEnd::LastWqeMissing {
            self.count_missing_last_wqe();
        }
    }

    /// Gives up the receive queue of a QP.
    fn end_rq(&mut self, id: QueueId, qp_num: u32) {
        self.committed -= u64::from(self.capacity(id));
        self.discard(id.index as usize);
        self.unroute(qp_num);
        self.books.qps.remove(qp_num);
    }

    fn discard(&mut self, index: usize) {
        match &mut self.engine {
            Engine::Direct(direct) => direct.queues[index] = Ring::Gone,
            Engine::Verbs(verbs) => verbs.queues[index].end(),
        }
        self.post_all_returned();
    }

    fn route(&mut self, qp_num: u32, index: u32) {
        if let Engine::Direct(direct) = &mut self.engine {
            direct.routes.insert(qp_num, index);
        }
    }

    fn unroute(&mut self, qp_num: u32) {
        if let Engine::Direct(direct) = &mut self.engine {
            direct.routes.remove(qp_num);
        }
    }

    /// The index of a queue of this receiver that exists.
    fn check(&self, id: QueueId) -> Option<usize> {
        let index = id.index as usize;
        let exists = id.receiver == self.id
            && match &self.engine {
                Engine::Direct(direct) => {
                    !matches!(direct.queues.get(index), None | Some(Ring::Gone))
                }
                Engine::Verbs(verbs) => {
                    verbs.queues.get(index).is_some_and(|q| !matches!(q.object, Object::Gone))
                }
            };
        exists.then_some(index)
    }

    fn srq_object(&self, id: SrqId) -> Result<Arc<Srq>> {
        let foreign = Error::Foreign { what: "the SRQ", domain: "receiver" };
        let Some(index) = self.check(id.0) else {
            return Err(if id.0.receiver == self.id {
                Error::Gone { what: "SRQ" }
            } else {
                foreign
            });
        };
        match &self.engine {
            Engine::Direct(direct) => match &direct.queues[index] {
                Ring::Srq(srq) => Ok(Arc::clone(&srq.object)),
                _ => Err(foreign),
            },
            Engine::Verbs(verbs) => match &verbs.queues[index].object {
                Object::Srq(srq) => Ok(Arc::clone(srq)),
                _ => Err(foreign),
            },
        }
    }

    /// Receives that can be outstanding on a queue, 0 for one that does not exist.
    ///
    /// ```
    /// # use doorbell::{QpConfig, Receiver, ReceiverConfig, SrqConfig};
    /// # let _device = doorbell_doc::device();
    /// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// # let mut receiver = Receiver::new(&pd, &ReceiverConfig::new())?;
    /// # let srq = receiver.create_srq(&SrqConfig::new(511))?;
    /// # let pool = doorbell::BufferPool::new(&pd, 1, 64)?;
    /// let all = receiver.capacity(srq);
    /// assert_eq!(receiver.vacant(srq), all);
    /// receiver.post(srq, pool.take())?;
    /// assert_eq!(receiver.vacant(srq), all - 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn capacity(&self, queue: impl Into<QueueId>) -> u32 {
        let Some(index) = self.check(queue.into()) else {
            return 0;
        };
        match &self.engine {
            Engine::Direct(direct) => match &direct.queues[index] {
                Ring::Srq(srq) => srq.ring.slots() - 1,
                Ring::Rq(rq) => rq.ring.slots(),
                Ring::Gone => 0,
            },
            Engine::Verbs(verbs) => verbs.queues[index].capacity(),
        }
    }

    /// Receives that can be posted to a queue now, at most its [`capacity`](Self::capacity).
    pub fn vacant(&self, queue: impl Into<QueueId>) -> u32 {
        let queue = queue.into();
        let Some(index) = self.check(queue) else {
            return 0;
        };
        let vacant = match &self.engine {
            Engine::Direct(direct) => match &direct.queues[index] {
                Ring::Srq(srq) => srq.vacant(),
                Ring::Rq(rq) => rq.ring.vacant(),
                Ring::Gone => 0,
            },
            Engine::Verbs(verbs) => verbs.queues[index].vacant(),
        };
        // A queue without receives also has room in the spare slot that `fill` keeps.
        vacant.min(self.capacity(queue))
    }

    fn max_sge(&self, queue: QueueId) -> Option<usize> {
        let index = self.check(queue)?;
        match &self.engine {
            Engine::Direct(direct) => match &direct.queues[index] {
                Ring::Srq(srq) => Some(srq.ring.max_sge() as usize),
                Ring::Rq(rq) => Some(rq.ring.max_sge() as usize),
                Ring::Gone => None,
            },
            Engine::Verbs(verbs) => Some(verbs.queues[index].max_sge() as usize),
        }
    }

    /// Brings a QP back to state INIT, as if it were new: it can be connected again. Completions that
    /// have not been polled are dropped. Receives posted to a receive queue of its own come back to
    /// their pools. Those of an SRQ stay posted there, and what the QP had taken from it, in the middle of a message,
    /// is posted again: the device is waited for until it has given that back.
    ///
    /// ```
    /// # let doorbell_doc::World { mut receiver, mut qp, mut peer, mut peer_receiver, device: _device, .. } =
    /// #     doorbell_doc::World::new();
    /// // The connection has ended; the next one takes the same queue pair.
    /// receiver.reset_qp(&mut qp)?;
    /// peer_receiver.reset_qp(&mut peer)?;
    /// qp.connect(&peer.address()?)?;
    /// peer.connect(&qp.address()?)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Foreign`] for a QP of another receiver; [`Error::Verbs`].
    pub fn reset_qp(&mut self, qp: &mut QueuePair) -> Result<QpEnd> {
        let end = self.let_go(qp)?;
        qp.modify_to_init()?;
        Ok(end)
    }

    /// Destroys a QP. Completions that have not been polled are dropped. Receives posted to a receive
    /// queue of its own come back to their pools. Those of an SRQ stay posted there, and what the QP had taken from it,
    /// in the middle of a message, is posted again: the device is waited for until it has given that back.
    ///
    /// A QP may also just be dropped, which waits for nothing. What it had taken from its SRQ, and what is posted to a
    /// receive queue of its own, comes back flushed from [`poll`](Self::poll), behind the messages that have arrived;
    /// the next [`create_qp`](Self::create_qp) or [`destroy_srq`](Self::destroy_srq) then destroys it. A receive queue
    /// of its own has its room on the CQ until all of it has come back.
    ///
    /// ```
    /// # let doorbell_doc::World { mut receiver, qp, srq, pool, device: _device, .. } =
    /// #     doorbell_doc::World::new();
    /// receiver.destroy_qp(qp)?;
    /// // No queue pair is left on the SRQ, whose receives come back now.
    /// receiver.destroy_srq(srq)?;
    /// assert_eq!(pool.available(), pool.count() as usize);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Foreign`] for a QP of another receiver; [`Error::Verbs`] when it cannot be taken to RESET, and
    /// then everything that the device may still use stays allocated. When the driver refuses to destroy it,
    /// all that is leaked with a warning.
    pub fn destroy_qp(&mut self, mut qp: QueuePair) -> Result<QpEnd> {
        let end = self.let_go(&mut qp)?;
        match qp.receive_queue() {
            Some(id) => self.end_rq(id.0, qp.qp_num()),
            None => {
                self.unroute(qp.qp_num());
                self.books.qps.remove(qp.qp_num());
            }
        }
        Ok(end)
    }

    /// Destroys an SRQ. Its receives come back to their pools, and its room on the CQ is free again.
    /// Completions that have not been polled are dropped.
    ///
    /// # Errors
    /// [`Error::InUse`] while there is a QP on it, [`Error::Gone`] and [`Error::Foreign`] when it is not an
    /// SRQ of this receiver. When the driver refuses, everything that the device may still use is leaked
    /// with a warning.
    pub fn destroy_srq(&mut self, id: SrqId) -> Result<()> {
        self.end_dropped();
        let object = self.srq_object(id)?;
        // The receiver has one, and this is the other.
        if Arc::strong_count(&object) > 2 {
            return Err(Error::InUse { what: "SRQ", users: "queue pairs" });
        }
        self.recover();
        let capacity = self.capacity(id);
        let index = id.0.index as usize;
        let books = &mut self.books;
        match &mut self.engine {
            Engine::Direct(direct) => {
                let (routes, only) = (&direct.routes, direct.queues.len() == 1);
                direct.cq.purge(|cqe| only || routes.find(cqe.qpn()) == Some(id.0.index));
                if let Ring::Srq(srq) = &mut direct.queues[index] {
                    srq.ring.drain(|resident| books.park(&resident, object.parked()));
                }
            }
            Engine::Verbs(verbs) => {
                verbs.fetch_all();
                verbs.polled.forget(id.0.index);
                verbs.queues[index].drain(|resident| books.park(&resident, object.parked()));
            }
        }
        self.discard(index);
        self.committed -= u64::from(capacity);
        Ok(())
    }

    /// Takes a QP to RESET, in which the device has let go of all its receives, and forgets what the CQ
    /// holds of it.
    fn let_go(&mut self, qp: &mut QueuePair) -> Result<QpEnd> {
        let queue = self.queue_of(qp)?;
        let mut end = QpEnd::Complete;
        let direct = matches!(self.engine, Engine::Direct(_));
        // RESET alone takes back what is posted to a queue of the QP's own. What it has taken from an SRQ completes in
        // ERROR only.
        if !direct || qp.receive_queue().is_none() {
            end = qp.stop_receiving(Patience::Progress)?;
            self.note_end(end);
        }
        if let Engine::Verbs(verbs) = &mut self.engine {
            // The driver drops the completions of a QP in RESET without telling whose slots they name: take them out
            // before.
            verbs.fetch_all();
        }
        // A doorbell that is rung behind the reset would hand over what is taken back.
        self.recover();
        qp.modify_to_reset()?;
        self.forget(qp.qp_num(), queue);
        Ok(end)
    }

    /// The queue that a QP of this receiver completes.
    fn queue_of(&self, qp: &QueuePair) -> Result<usize> {
        let id = qp.receive_queue().map(|id| id.0).or(qp.shared().map(|id| id.0));
        id.and_then(|id| self.check(id))
            .ok_or(Error::Foreign { what: "the QP", domain: "receiver" })
    }

    /// Drops what the CQ holds of a QP that the device has let go, and takes back the receives posted to
    /// a queue of its own.
    fn forget(&mut self, qp_num: u32, index: usize) {
        self.recover();
        let books = &mut self.books;
        match &mut self.engine {
            Engine::Direct(direct) => match &mut direct.queues[index] {
                Ring::Srq(srq) => {
                    // Messages that have arrived give their slots back to the SRQ, which lives on.
                    let mut completed = Vec::new();
                    direct.cq.purge(|cqe| {
                        let of_qp = cqe.qpn() == qp_num;
                        if of_qp {
                            completed.push(cqe.wqe_counter());
                        }
                        of_qp
                    });
                    // In the order of arrival.
                    for wqe_counter in completed.into_iter().rev() {
                        if let Some(slot) = srq.ring.complete(wqe_counter) {
                            // SAFETY: completed just now; its buffer is nobody else's.
                            unsafe { srq.ring.recycle(slot) };
                        }
                    }
                    srq.ring.ring();
                }
                Ring::Rq(rq) => {
                    direct.cq.purge(|cqe| cqe.qpn() == qp_num);
                    rq.ring.reset(|resident| books.leave(resident, 0, drop));
                }
                Ring::Gone => {}
            },
            Engine::Verbs(verbs) => {
                verbs.purge(qp_num, books);
                let queue = &mut verbs.queues[index];
                if !queue.is_shared() {
                    queue.drain(|resident| books.leave(resident, 0, drop));
                }
            }
        }
    }
}

impl Drop for Receiver {
    /// The QPs may live on, and with them the queues: what is posted stays theirs, until they are
    /// destroyed.
    fn drop(&mut self) {
        let books = &self.books;
        match &mut self.engine {
            Engine::Direct(direct) => {
                for queue in &mut direct.queues {
                    match queue {
                        Ring::Srq(srq) => {
                            let parked = srq.object.parked();
                            srq.ring.drain(|resident| books.park(&resident, parked));
                        }
                        Ring::Rq(rq) => {
                            let parked = rq.object.parked();
                            rq.ring.reset(|resident| books.park(&resident, parked));
                        }
                        Ring::Gone => {}
                    }
                }
            }
            Engine::Verbs(verbs) => {
                for queue in &mut verbs.queues {
                    match queue.object.clone() {
                        Object::Srq(srq) => queue.drain(|r| books.park(&r, srq.parked())),
                        Object::Rq(qp) => queue.drain(|r| books.park(&r, qp.parked())),
                        Object::Gone => {}
                    }
                }
            }
        }
    }
}

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver")
            .field("path", &self.path())
            .field("device", &self.pd.context().name())
            .field("cq_capacity", &self.cq_capacity())
            .finish_non_exhaustive()
    }
}
