//! A work queue as the device sees it: the doorbell record, and the WQEs that it covers.

use std::collections::VecDeque;

use mlx5_wire::data::DataSegment;
use mlx5_wire::next::NextSegment;
use soft_mlx5::engine::inspect::{self, Queues};

use crate::memory::Region;

/// A WQE that was handed over and has not completed.
#[derive(Clone, Debug)]
pub struct Wqe {
    pub id: u64,
    pub slot: u32,
    /// Its data segments, up to the one that ends the list.
    pub segments: Vec<u8>,
    /// On an SRQ, where its link leads.
    pub link: u32,
}

impl Wqe {
    /// Address, length and key of each entry.
    pub fn entries(&self) -> Vec<(u64, u32, u32)> {
        let segments = self.segments.chunks_exact(DataSegment::SIZE);
        segments
            .map(|bytes| DataSegment::from_bytes(bytes.try_into().expect("a segment")))
            .filter(|segment| !segment.is_terminator())
            .map(|segment| (segment.addr.get(), segment.byte_count.get(), segment.lkey.get()))
            .collect()
    }
}

/// A receive queue or an SRQ.
pub struct WorkQueue {
    pub memory: Region,
    record: Region,
    shared: bool,
    pub stride: usize,
    /// Slots that are used for WQEs. An SRQ's memory has more, which libmlx5 keeps back.
    pub slots: u32,
    /// Running count as the record has it.
    posted: u16,
    /// WQEs handed over since the queue exists.
    pub total: u64,
    /// How often the running count has begun again.
    pub wraps: u64,
    /// Where the next WQE is.
    next: u32,
    pub outstanding: VecDeque<Wqe>,
}

impl WorkQueue {
    /// The queues of a twin: its SRQ, or the receive queue of each QP under test.
    pub fn of(queues: &Queues, shared: Option<u32>, qp_nums: &[u32]) -> Vec<Self> {
        let qp = |number: &u32| {
            let found = queues.qps.iter().find(|qp| qp.number == *number).expect("the QP exists");
            let (rq, dbrec) = (found.attr.rq, found.attr.dbrec);
            Self::new(rq.buf, rq.count, 1 << rq.shift, rq.count, dbrec, false)
        };
        match shared {
            Some(slots) => {
                let attr = queues.srqs.first().expect("the SRQ exists").attr;
                let stride = 1 << attr.wqe_shift;
                vec![Self::new(attr.buf, attr.wqe_count, stride, slots, attr.dbrec, true)]
            }
            None => qp_nums.iter().map(qp).collect(),
        }
    }

    fn new(buf: u64, in_memory: u32, stride: usize, slots: u32, dbrec: u64, shared: bool) -> Self {
        // SAFETY: memory of a queue that exists as long as its twin. The driver writes it and the device
        // reads it; neither runs while it is read here.
        let (memory, record) = unsafe { (Region::at(buf, in_memory as usize * stride), Region::at(dbrec, 8)) };
        Self {
            memory,
            record,
            shared,
            stride,
            slots,
            posted: 0,
            total: 0,
            wraps: 0,
            next: 0,
            outstanding: VecDeque::new(),
        }
    }

    /// Segments that a WQE has room for.
    pub fn max_sge(&self) -> usize {
        (self.stride - self.lead()) / DataSegment::SIZE
    }

    /// WQEs that can be with the device at once.
    pub fn capacity(&self) -> u32 {
        self.slots - u32::from(self.shared)
    }

    fn lead(&self) -> usize {
        if self.shared { NextSegment::SIZE } else { 0 }
    }

    pub fn record_memory(&self) -> Region {
        self.record
    }

    /// The words of the doorbell record. An SRQ has one: libmlx5 does not write the other.
    pub fn record(&self) -> Vec<u32> {
        let words = if self.shared { 1 } else { 2 };
        (0..words).map(|word| self.record.word(4 * word)).collect()
    }

    /// The WQE in a slot.
    pub fn wqe(&self, slot: u32) -> Wqe {
        let bytes = self.memory.bytes(slot as usize * self.stride, self.stride);
        let (lead, all) = bytes.split_at(self.lead());
        let link = match lead {
            [_, _, upper, lower, ..] => u32::from(u16::from_be_bytes([*upper, *lower])),
            _ => (slot + 1) % self.slots,
        };
        let last = all
            .chunks_exact(DataSegment::SIZE)
            .position(|bytes| DataSegment::from_bytes(bytes.try_into().expect("a segment")).is_terminator());
        let len = last.map_or(all.len(), |last| (last + 1) * DataSegment::SIZE);
        Wqe { id: 0, slot, segments: all[..len].to_vec(), link }
    }

    /// WQEs that the record covers since the last look, in the order in which a device takes them.
    pub fn handed_over(&mut self) -> Vec<Wqe> {
        let count = (self.record.word(0) as u16).wrapping_sub(self.posted);
        let wraps;
        (self.posted, wraps) = self.posted.overflowing_add(count);
        self.wraps += u64::from(wraps);
        self.total += u64::from(count);
        let mut wqes = Vec::new();
        for _ in 0..count {
            let wqe = self.wqe(self.next);
            // A link that leads outside is found when it is compared.
            self.next = wqe.link % self.slots;
            wqes.push(wqe);
        }
        wqes
    }

    /// Takes a WQE that has completed out; whether it was the oldest.
    pub fn complete(&mut self, id: u64) -> Option<bool> {
        let position = self.outstanding.iter().position(|wqe| wqe.id == id)?;
        self.outstanding.remove(position);
        Some(position == 0)
    }

    /// The WQE in a slot, if the device may read it.
    pub fn outstanding_in(&self, slot: u32) -> Option<&Wqe> {
        self.outstanding.iter().find(|wqe| wqe.slot == slot)
    }

    /// The QP was reset, and its counters with it. Returns the WQEs that the device had.
    pub fn reset(&mut self) -> Vec<Wqe> {
        (self.posted, self.next) = (0, 0);
        self.outstanding.drain(..).collect()
    }
}

/// The CQ under test.
pub struct CompletionQueue {
    memory: Region,
    record: Region,
    number: u32,
    count: u32,
    size: usize,
}

impl CompletionQueue {
    /// The one on which receives of a QP complete.
    pub fn of(queues: &Queues, qp_num: u32) -> Self {
        let qp = queues.qps.iter().find(|qp| qp.number == qp_num).expect("the QP exists");
        Self::numbered(queues, qp.attr.recv_cq.0)
    }

    /// The one on which sends of a QP complete.
    pub fn of_sends(queues: &Queues, qp_num: u32) -> Self {
        let qp = queues.qps.iter().find(|qp| qp.number == qp_num).expect("the QP exists");
        Self::numbered(queues, qp.attr.send_cq.0)
    }

    fn numbered(queues: &Queues, number: u32) -> Self {
        let on = |cq: &&inspect::CompletionQueue| cq.number == number;
        let cq = queues.cqs.iter().find(on).expect("the CQ exists");
        let (count, size) = (cq.attr.cqe_count, cq.attr.cqe_size as usize);
        // SAFETY: as for work queues.
        let (memory, record) =
            unsafe { (Region::at(cq.attr.buf, count as usize * size), Region::at(cq.attr.dbrec, 8)) };
        Self { memory, record, number: cq.number, count, size }
    }

    pub fn number(&self) -> u32 {
        self.number
    }

    /// Number of entries.
    pub fn count(&self) -> u32 {
        self.count
    }

    pub fn record_memory(&self) -> Region {
        self.record
    }

    /// Consumer index and arm word.
    pub fn record(&self) -> [u32; 2] {
        [self.record.word(0), self.record.word(4)]
    }

    /// The entries that were written and not taken, oldest first.
    pub fn live(&self, queues: &Queues) -> Vec<Vec<u8>> {
        let cq = queues.cqs.iter().find(|cq| cq.number == self.number).expect("the CQ exists");
        let consumed = self.record.word(0);
        let count = cq.produced.wrapping_sub(consumed) & 0xff_ffff;
        let entry = |index: u32| consumed.wrapping_add(index) & (self.count - 1);
        (0..count).map(|index| self.memory.bytes(entry(index) as usize * self.size, self.size)).collect()
    }
}
