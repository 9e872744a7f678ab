//! The send queues of a sender: adding, closing and finding them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use mlx5_ring::sq::{self, Immediate};
use mlx5_wire::ctrl::UNITS_PER_BB;
use mlx5_wire::eth::{MULTI_PACKET_FRAMES, MULTI_PACKET_HEAD};
use rdma_core_sys as sys;

use super::Sender;
use super::blue_flame::blue_flame;
use super::operation::{Operation, Transport};
use super::queue::{DirectSq, Entry, Limits, SendRing, Silent};
use super::request::Gathered;
use super::settling::Windows;
use super::verbs::VerbsSq;
use crate::cq::CqConfig;
use crate::error::{Error, Result};
use crate::ids::SqId;
use crate::pd::ProtectionDomain;
use crate::qp::{QpConfig, QueuePair, SendSide};

/// Units of the segments in front of the payload: control and datagram, or control, remote address and operands.
const HEAD_UNITS: u32 = 4;
/// The same of a DC initiator: control and target, remote address and operands.
const DC_HEAD_UNITS: u32 = 6;

/// Units of the bind of a memory window.
const BIND_UNITS: u32 = 12;

/// Basic blocks of the longest multi-packet WQE of frames.
const MULTI_PACKET_BLOCKS: u32 = (MULTI_PACKET_HEAD + MULTI_PACKET_FRAMES as u32).div_ceil(UNITS_PER_BB);

/// Generation number of the next queue: see [`SqId`].
static NEXT_NUMBER: AtomicU32 = AtomicU32::new(0);

impl CqConfig {
    /// Describes the CQ of a [`Sender`] for `queue_pairs` queue pairs of this configuration, with an entry for each
    /// request that can be outstanding. The direct path rounds queues up to basic blocks and powers of two; the verbs
    /// path may need fewer entries. For frames see [`for_frame_sends`](Self::for_frame_sends).
    ///
    /// ```
    /// # let _device = doorbell_doc::device();
    /// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// use doorbell::{CqConfig, QpConfig, QueuePair, Sender};
    ///
    /// let config = QpConfig::rc().max_send_wr(100).max_inline(200);
    /// let mut sender = Sender::new(&pd, &CqConfig::for_sends(&config, 3))?;
    /// let mut qps = Vec::new();
    /// for _ in 0..3 {
    ///     qps.push(QueuePair::builder(&config).send(&mut sender).build()?);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn for_sends(config: &QpConfig, queue_pairs: u32) -> Self {
        Self::new(config.send_blocks().saturating_mul(queue_pairs))
    }
}

impl Sender {
    /// Returns the CQ and the register for the send queue of a queue pair that is about to be created.
    pub(crate) fn send_side(&mut self, pd: &ProtectionDomain) -> Result<SendSide> {
        if !self.pd.is_same(pd) {
            return Err(Error::Foreign { what: "the sender", domain: "protection domain" });
        }
        self.close_departed();
        Ok(SendSide {
            cq: Arc::clone(&self.cq.object),
            register: self.register.clone(),
            mlx5dv: self.mlx5dv(),
            has_sender: true,
        })
    }

    /// Returns the CQ for a queue pair whose send queue nothing is posted to.
    pub(crate) fn idle_side(&self) -> SendSide {
        SendSide::idle(Arc::clone(&self.cq.object))
    }

    /// Adds the send queue of a new queue pair.
    ///
    /// # Safety
    /// Nothing was posted to the queue, and no other code posts to it. The queue pair was made with the
    /// [`send_side`](Self::send_side) of this sender.
    pub(crate) unsafe fn enter(&mut self, qp: &mut QueuePair, config: &QpConfig) -> Result<SqId> {
        let object = qp.object();
        let free = self.queues.iter().position(Option::is_none).unwrap_or(self.queues.len());
        let cap = *object.cap();
        let multi_packet = match self.mlx5dv() {
            Some(mlx5dv) if config.multi_packet => self.pd.context().sends_multi_packet(mlx5dv)?,
            _ => false,
        };
        let ring = match self.mlx5dv() {
            Some(mlx5dv) => {
                let bytes = cap.max_inline_data as usize;
                let inline = mlx5_wire::inline::InlineHeader::units(bytes) as u32;
                let head = if config.is_dc() { DC_HEAD_UNITS } else { HEAD_UNITS };
                let units = head + inline.max(config.max_send_sge);
                let units = units.max(if config.memory_windows { BIND_UNITS } else { 0 });
                let blocks = units.div_ceil(UNITS_PER_BB);
                // At most half of the queue, so that it holds as many WQEs without a CQE as without these.
                let blocks =
                    blocks.max(if multi_packet { MULTI_PACKET_BLOCKS.min(config.send_blocks() / 2) } else { 0 });
                // A queue pair that the program made has a register that others may have.
                let register = self.register.as_ref().filter(|_| object.is_made_here());
                let sq = sq::Config { max_wqe_blocks: blocks, blue_flame: blue_flame(register) };
                // SAFETY: nothing was posted to the caller's queue, and no other code posts to it; a register that is
                // copied to is the sender's alone, which rings one queue at a time.
                let direct = unsafe { DirectSq::new(mlx5dv, Arc::clone(&object), sq, config.max_unsignaled) };
                let direct = direct.map_err(|error| self.pd.context().not_direct(error))?;
                // The CQ of the program has room for the requests that it asked for, and libmlx5 makes a larger ring.
                SendRing::Direct(match object.is_made_here() {
                    true => direct,
                    false => direct.with_max_outstanding(config.max_send_wr),
                })
            }
            None => {
                let limit = config.max_send_wr;
                SendRing::Verbs(VerbsSq::new(Arc::clone(&object), free as u32, limit))
            }
        };
        let capacity = u64::from(ring.capacity());
        let setting =
            "cqe (CqConfig::for_sends computes it), or with tag matching a larger TagMatchingConfig::send_cqe";
        self.cq.check_room(self.committed, capacity, setting)?;
        self.committed += capacity;
        let id = SqId { index: free as u32, number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed) };
        let bytes = qp.max_msg_size() as usize;
        let transport = match object.qp_type() {
            sys::IBV_QPT_UD => Transport::Datagrams,
            sys::IBV_QPT_RAW_PACKET => Transport::Frames,
            sys::IBV_QPT_UC => Transport::Unreliable,
            sys::IBV_QPT_DRIVER => Transport::Dynamic,
            _ => Transport::Reliable,
        };
        let inline = bytes.min(cap.max_inline_data as usize);
        let has_sends = Operation::Send(Immediate::None).is_of(transport);
        let copied = if has_sends { inline + 1 } else { 0 };
        let copied_frame = if transport == Transport::Frames { inline + 1 } else { 0 };
        let copied_to_target = if transport == Transport::Dynamic { inline + 1 } else { 0 };
        let buffers = config.max_send_sge as usize;
        let limits = Limits { bytes, inline, copied, copied_frame, copied_to_target, buffers, transport };
        self.routes.insert(object.qp_num(), id.index);
        let (gathered, silent) = (Gathered::default(), Silent::default());
        let (has_windows, windows) = (config.memory_windows && transport == Transport::Reliable, Windows::default());
        let (unsent, full) = (Vec::new(), None);
        let entry =
            Entry { ring, qp: object, gathered, limits, silent, id, has_windows, windows, unsent, full, multi_packet };
        match self.queues.get_mut(free) {
            Some(place) => *place = Some(Box::new(entry)),
            None => self.queues.push(Some(Box::new(entry))),
        }
        qp.set_send_queue(id);
        Ok(id)
    }

    /// Closes the queues of queue pairs that were dropped, once they have no outstanding request.
    pub(crate) fn close_departed(&mut self) {
        self.free_returned();
        self.has_departing = false;
        for index in 0..self.queues.len() {
            let departed = |entry: &&Entry| !entry.qp.has_handle();
            match self.queues[index].as_deref().filter(departed) {
                Some(entry) if entry.ring.is_empty() => self.close(index),
                Some(_) => self.has_departing = true,
                None => {}
            }
        }
    }

    fn close(&mut self, index: usize) {
        let Some(entry) = self.queues[index].take() else { return };
        self.committed -= u64::from(entry.ring.capacity());
        // A newer queue pair of the same number has taken the route.
        if self.routes.find(entry.qp.qp_num()) == Some(&(index as u32)) {
            self.routes.remove(entry.qp.qp_num());
        }
    }

    /// Returns how many requests can be outstanding on a queue, each of one basic block of 64 bytes on the direct
    /// path, or 0 if the queue does not exist.
    pub fn capacity(&self, queue: impl Into<SqId>) -> u32 {
        self.find(queue.into()).map_or(0, |entry| entry.ring.capacity())
    }

    /// Returns `true` while requests of the queue are outstanding or were not polled, and after a reset of the queue
    /// pair until the sender is polled. [Unsignaled](crate::Request::unsignaled) requests do not count.
    pub fn is_busy(&self, queue: impl Into<SqId>) -> bool {
        self.find(queue.into()).is_some_and(|entry| entry.ring.awaits_completion() || entry.qp.sends_ended())
    }

    pub(super) fn find(&self, id: SqId) -> Option<&Entry> {
        let entry = self.queues.get(id.index as usize)?.as_deref()?;
        (entry.id == id).then_some(entry)
    }
}
