//! Plays the device: takes WQEs and writes CQEs.

use std::ptr::NonNull;

use mlx5_ring::{cq, rq, srq};
use mlx5_wire::be::{Be16, Be32};
use mlx5_wire::cqe::{self, Cqe64, CqeFormat};
use mlx5_wire::data::DataSegment;
use mlx5_wire::mini_cqe::{ChecksumMiniCqe, MINI_CQES_PER_ARRAY, array_of};
use mlx5_wire::next::NextSegment;
use mlx5_wire::opcode::CqeOpcode;
use std::mem::offset_of;
use std::sync::atomic::{Ordering, fence};

use crate::sum::Sum;
use crate::world::{Objects, Queue};

/// In which order receives complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The order of posting.
    Posted,
    /// Messages of [`PACKETS`] packets each complete, so many of which arrive at once, as from as many QPs on an SRQ. A
    /// message takes its WQE with its first packet, and completes with its last.
    AtOnce(u32),
}

/// Packets of a message.
pub const PACKETS: u32 = 4;

/// Form of the CQEs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// One CQE for each message.
    Plain,
    /// In compressed blocks, of the checksum format.
    Compressed,
    /// With a payload of 32 bytes in the CQE itself.
    Inline32,
    /// With a payload of 64 bytes before the CQE, in entries of 128 bytes.
    Inline64,
}

impl Form {
    /// How the CQE of a message names it.
    const fn format(self) -> CqeFormat {
        match self {
            Self::Plain | Self::Compressed => CqeFormat::Plain,
            Self::Inline32 => CqeFormat::Inline32,
            Self::Inline64 => CqeFormat::Inline64,
        }
    }
}

/// Messages of a compressed block, at most.
const BLOCK: usize = 16;

/// A WQE that was taken.
#[derive(Clone, Copy)]
struct Taken {
    /// The QP that took it, as an index of [`Adapter::titles`].
    qp: usize,
    wqe_counter: u16,
    addr: u64,
}

/// Completes the receives that a subject has posted.
pub trait Complete: Send {
    /// Completes the next `count` receives, and returns the sums of their addresses and lengths.
    ///
    /// # Panics
    /// When fewer are posted: then the subject does not do its work.
    fn complete(&mut self, count: u32, order: Order, form: Form) -> Sum;

    /// Returns how many WQEs were taken, and how many of them the next in memory did not follow.
    fn links(&self) -> [u32; 2] {
        [0; 2]
    }
}

/// The device's side of a queue.
struct Taking {
    queue: Queue,
    /// WQEs taken; with a receive queue the running index of the next.
    taken: u32,
    /// The slot that the last WQE of an SRQ led to.
    next: u32,
    /// WQEs of an SRQ that the next in memory did not follow.
    jumps: u32,
}

impl Taking {
    /// Returns the number of WQEs that software has posted and the device has not taken.
    fn outstanding(&self) -> u32 {
        let record = match &self.queue {
            Queue::Srq(srq::Layout { dbrec, .. }) | Queue::Rq(rq::Layout { dbrec, .. }) => dbrec,
        };
        // SAFETY: mapped for as long as the objects live.
        let posted = unsafe { record.read_volatile() }.get();
        u32::from((posted as u16).wrapping_sub(self.taken as u16))
    }

    /// Takes the next WQE for a message to `qp`.
    fn take(&mut self, qp: usize) -> Taken {
        assert!(self.outstanding() > 0, "receives are not posted");
        let (wqe, lead, wqe_counter) = match &self.queue {
            Queue::Srq(srq) => {
                let slot = self.next;
                // SAFETY: a slot of the SRQ; of its links only the device's own position follows.
                let wqe = unsafe { srq.buf.add(slot as usize * srq.stride as usize) };
                // SAFETY: inside the WQE, and aligned.
                self.next = unsafe {
                    let link = wqe.add(offset_of!(NextSegment, next_wqe_index));
                    link.cast::<Be16>().read_volatile().get().into()
                };
                self.jumps += u32::from(self.next != (slot + 1) % srq.slots());
                (wqe, NextSegment::SIZE, slot as u16)
            }
            Queue::Rq(rq) => {
                let slot = self.taken & (rq.wqe_cnt - 1);
                // SAFETY: a slot of the queue.
                let wqe = unsafe { rq.buf.add(slot as usize * rq.stride as usize) };
                (wqe, 0, self.taken as u16)
            }
        };
        self.taken = self.taken.wrapping_add(1);
        // SAFETY: each WQE has room for a segment.
        let segment = unsafe { wqe.add(lead).cast::<DataSegment>().read_volatile() };
        Taken { qp, wqe_counter, addr: segment.addr.get() }
    }
}

/// The device's side of a CQ and its queues.
pub struct Adapter {
    cq: cq::Layout,
    queues: Vec<Taking>,
    producer_index: u32,
    /// A CQE of each QP, as the device wrote it.
    titles: Vec<Cqe64>,
    /// Messages that have arrived. They come to the QPs in turn.
    arrived: usize,
    /// The packets that are missing, and the WQE of each message that arrives, where several do at once.
    under_way: Vec<Option<(u32, Taken)>>,
    /// CQEs written.
    written: usize,
    random: u64,
    wqes: Vec<Taken>,
}

// SAFETY: the memory of the queues stays, and the subject does not run while the adapter does.
unsafe impl Send for Adapter {}

impl Adapter {
    /// Goes on after the device of `objects`, which has delivered one message to each QP in turn. None of them was
    /// polled yet.
    pub fn new(objects: &Objects) -> Self {
        let taking = |&queue: &Queue| Taking { queue, taken: 0, next: 0, jumps: 0 };
        let mut adapter = Self {
            cq: objects.cq_layout,
            queues: objects.queues.iter().map(taking).collect(),
            producer_index: 0,
            titles: Vec::new(),
            arrived: 0,
            under_way: Vec::new(),
            written: 0,
            random: 0x9e37_79b9_7f4a_7c15,
            wqes: Vec::new(),
        };
        for (index, &qp) in objects.qps.iter().enumerate() {
            // SAFETY: inside the CQ, and the device is at rest.
            let bytes = unsafe { adapter.cqe(index as u32).cast::<[u8; Cqe64::SIZE]>().read() };
            let title = Cqe64::from_bytes(&bytes);
            assert_eq!(title.opcode(), CqeOpcode::ResponderSend, "message {index}");
            assert_eq!(title.format(), CqeFormat::Plain);
            // SAFETY: the QP is alive.
            assert_eq!(title.qpn(), unsafe { (*qp).qp_num });
            let queues = adapter.queues.len();
            let taken = adapter.queues[index % queues].take(index);
            assert_eq!(title.wqe_counter.get(), taken.wqe_counter);
            adapter.titles.push(title);
            adapter.producer_index += 1;
        }
        adapter
    }

    /// Takes the next WQE, for a message to the QP whose turn it is.
    fn take(&mut self) -> Taken {
        let (qp, queues) = (self.arrived % self.titles.len(), self.queues.len());
        self.arrived += 1;
        self.queues[qp % queues].take(qp)
    }

    /// Delivers a packet of one of `messages` that arrive at once. Returns the message that it completes.
    fn packet(&mut self, messages: u32) -> Option<Taken> {
        self.under_way.resize(messages as usize, None);
        self.random = self.random.wrapping_mul(6364136223846793005).wrapping_add(1);
        let message = (self.random >> 33) as usize % self.under_way.len();
        let (missing, taken) = self.under_way[message].take().unwrap_or_else(|| (PACKETS, self.take()));
        if missing == 1 {
            return Some(taken);
        }
        self.under_way[message] = Some((missing - 1, taken));
        None
    }

    fn cqe(&self, index: u32) -> NonNull<u8> {
        let size = self.cq.cqe_size as usize;
        let offset = (index & (self.cq.cqe_cnt - 1)) as usize * size + size - Cqe64::SIZE;
        // SAFETY: masked to the buffer.
        unsafe { self.cq.buf.add(offset) }
    }

    fn write_send(&mut self, taken: Taken, len: u32, form: Form) {
        let format = form.format();
        let mut bytes = self.titles[taken.qp].to_bytes();
        let payload = [self.written as u8; 64];
        match format {
            CqeFormat::Inline32 => bytes[..32].copy_from_slice(&payload[..32]),
            CqeFormat::Inline64 => {
                // SAFETY: entries are of 128 bytes then, and this one is still the device's.
                unsafe { self.cqe(self.producer_index).sub(64).cast().write(payload) }
            }
            CqeFormat::Plain | CqeFormat::Compressed => {}
        }
        let mut cqe = Cqe64::from_bytes(&bytes);
        cqe.byte_cnt = Be32::new(len);
        cqe.wqe_counter = Be16::new(taken.wqe_counter);
        self.write(cqe, CqeOpcode::ResponderSend, format);
        self.producer_index = self.producer_index.wrapping_add(1);
    }

    /// The mini CQEs, and the title after them.
    fn write_block(&mut self, first: Taken, lens: &[u32]) {
        let mut title = self.titles[first.qp];
        for (array, lens) in lens.chunks(MINI_CQES_PER_ARRAY).enumerate() {
            let mut bytes = [0; Cqe64::SIZE];
            for (mini, &len) in bytes.chunks_exact_mut(ChecksumMiniCqe::SIZE).zip(lens) {
                let checksum = ChecksumMiniCqe { byte_cnt: Be32::new(len), ..ChecksumMiniCqe::zeroed() };
                mini.copy_from_slice(&checksum.to_bytes());
            }
            let place = array_of((array * MINI_CQES_PER_ARRAY) as u32);
            let to = self.cqe(self.producer_index.wrapping_add(place));
            // SAFETY: inside the CQ; software reads it after the title only.
            unsafe { to.cast::<[u8; Cqe64::SIZE]>().write(bytes) }
        }
        title.byte_cnt = Be32::new(lens.len() as u32);
        title.wqe_counter = Be16::new(first.wqe_counter);
        self.write(title, CqeOpcode::ResponderSend, CqeFormat::Compressed);
        self.producer_index = self.producer_index.wrapping_add(lens.len() as u32);
    }

    /// Writes the CQE that comes next, its owner last.
    fn write(&self, mut cqe: Cqe64, opcode: CqeOpcode, format: CqeFormat) {
        let index = self.producer_index;
        let owner = (index & self.cq.cqe_cnt != 0) as u8;
        let op_own = cqe::op_own(opcode, format, false, owner);
        // The CQE belongs to the device until it is whole.
        cqe.op_own = op_own ^ cqe::OWNER;
        let to = self.cqe(index);
        // SAFETY: inside the CQ; software does not read it before its owner has changed.
        unsafe {
            to.cast::<[u8; Cqe64::SIZE]>().write(cqe.to_bytes());
            fence(Ordering::Release);
            to.add(offset_of!(Cqe64, op_own)).write_volatile(op_own);
        }
    }
}

impl Complete for Adapter {
    fn complete(&mut self, count: u32, order: Order, form: Form) -> Sum {
        self.wqes.clear();
        while (self.wqes.len() as u32) < count {
            let taken = match order {
                Order::Posted => Some(self.take()),
                Order::AtOnce(messages) => self.packet(messages),
            };
            self.wqes.extend(taken);
        }
        let wqes = std::mem::take(&mut self.wqes);
        let mut sum = Sum::default();
        let follow = |a: &Taken, b: &Taken| a.qp == b.qp && a.wqe_counter.wrapping_add(1) == b.wqe_counter;
        for run in wqes.chunk_by(follow) {
            let block = if form == Form::Compressed { BLOCK } else { 1 };
            for block in run.chunks(block) {
                let first = self.written;
                let len = |i: usize| match form.format() {
                    CqeFormat::Inline32 => 32,
                    CqeFormat::Inline64 => 64,
                    _ => 64 + (first + i) as u32 % 128,
                };
                let lens: Vec<_> = (0..block.len()).map(len).collect();
                for (taken, &len) in block.iter().zip(&lens) {
                    sum.add(taken.addr, len.into());
                }
                match lens.len() {
                    1 => self.write_send(block[0], lens[0], form),
                    _ => self.write_block(block[0], &lens),
                }
                self.written += lens.len();
            }
        }
        self.wqes = wqes;
        sum
    }

    fn links(&self) -> [u32; 2] {
        [self.queues.iter().map(|queue| queue.taken).sum(), self.queues.iter().map(|queue| queue.jumps).sum()]
    }
}
