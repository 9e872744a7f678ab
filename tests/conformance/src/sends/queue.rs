//! A send queue as the device sees it: WQEs, doorbell record, register.

use std::ops::Range;

use mlx5_ring::sq::Layout;
use mlx5_wire::ctrl::{ControlSegment, SEND_WQE_BB, UNIT};
use mlx5_wire::dbrec;
use mlx5_wire::inline::InlineHeader;
use mlx5_wire::opcode::WqeOpcode;

use crate::difference::{Result, same, same_bytes};
use crate::memory::Region;
use crate::pair::same_record;
use crate::tally::{self, Tally};

/// Bytes of a half of a register, the most that BlueFlame copies.
const HALF: usize = 256;
/// Bytes of the doorbell, the first ones of a WQE.
const DOORBELL: usize = 8;

pub struct Queue {
    ring: Region,
    record: Region,
    register: Region,
    /// The ring when it was read last, and the register before a post.
    before: [Vec<u8>; 2],
    posted: u16,
}

impl Queue {
    pub fn new(layout: &Layout) -> Self {
        // SAFETY: memory of a queue that exists as long as its twin. The driver writes it and the device reads
        // it; neither runs while it is read here. A register without halves has eight bytes.
        let (ring, record, register) = unsafe {
            (
                Region::new(layout.buf, layout.wqe_cnt as usize * SEND_WQE_BB),
                Region::new(layout.dbrec.cast(), 8),
                Region::new(layout.register, if layout.register_size == 0 { DOORBELL } else { 2 * HALF }),
            )
        };
        let mut queue = Self { ring, record, register, before: Default::default(), posted: 0 };
        queue.ring.read(&mut queue.before[0]);
        queue
    }

    /// Reads the register before a post: the device clears a doorbell that it takes.
    pub fn look_at_register(&mut self) {
        self.register.read(&mut self.before[1]);
    }

    /// Reads the ring after a batch that was aborted.
    pub fn look_at_ring(&mut self) {
        self.ring.read(&mut self.before[0]);
    }

    /// Basic blocks.
    pub fn capacity(&self) -> u32 {
        (self.ring.len() / SEND_WQE_BB) as u32
    }

    fn producer(&self) -> u16 {
        self.record.word(4 * dbrec::SEND) as u16
    }

    /// The blocks from running index `index` on, straight.
    fn blocks(&self, index: u16, count: usize) -> Vec<u8> {
        let blocks = self.ring.len() / SEND_WQE_BB;
        let block = |block: usize| (usize::from(index) + block) % blocks * SEND_WQE_BB;
        (0..count).flat_map(|number| self.ring.bytes(block(number), SEND_WQE_BB)).collect()
    }

    /// The WQE at `index`, and how many blocks it has.
    fn wqe(&self, index: u16) -> (Vec<u8>, u16) {
        let first = self.blocks(index, 1);
        let ctrl = ControlSegment::from_bytes(first.first_chunk().expect("a unit"));
        let len = usize::from(ctrl.ds()).max(1) * UNIT;
        let blocks = len.div_ceil(SEND_WQE_BB);
        let mut bytes = self.blocks(index, blocks);
        bytes.truncate(len);
        (bytes, blocks as u16)
    }

    pub fn reset(&mut self) {
        self.posted = 0;
        self.ring.read(&mut self.before[0]);
    }
}

/// Compares the two queues after requests were posted to both, `is_built` with `ibv_wr_*`.
pub fn compare(theirs: &mut Queue, ours: &mut Queue, is_built: bool, tally: &mut Tally) -> Result<()> {
    let [record, our_record] = [&*theirs, &*ours].map(|queue| [0, 4].map(|at| queue.record.word(at)));
    same_record("send queue", &record, &our_record, tally)?;
    let (from, end) = (ours.posted, ours.producer());
    let (mut index, mut last) = (from, from);
    while index != end {
        let ((mut their_wqe, _), (mut our_wqe, blocks)) = (theirs.wqe(index), ours.wqe(index));
        let field = || format!("send queue: WQE {index:#x}");
        same(|| format!("{}: ds", field()), their_wqe.len() as u64, our_wqe.len() as u64)?;
        let mut masked = mask(&mut their_wqe) + mask(&mut our_wqe);
        if is_built {
            masked += mask_immediate(&mut their_wqe) + mask_immediate(&mut our_wqe);
        }
        same_bytes(field, &their_wqe, &our_wqe)?;
        tally.add(tally::EXACT, our_wqe.len() as u64);
        tally.add(tally::SEND_STALE, masked as u64 / 2);
        last = index;
        index = index.wrapping_add(blocks);
        if blocks > end.wrapping_sub(last) {
            return same(|| "send queue: end of the last WQE".into(), end.into(), index.into());
        }
    }
    let posted = end.wrapping_sub(from);
    unchanged(ours, from, posted)?;
    if posted > 0 {
        same_registers(theirs, ours, last, end, tally)?;
        tally.add(tally::SEND_WRAPS, u64::from(from.checked_add(posted).is_none()));
    }
    for queue in [theirs, ours] {
        queue.posted = end;
        queue.ring.read(&mut queue.before[0]);
    }
    Ok(())
}

/// Clears the bytes that libmlx5 does not write and the device does not read: the padding of inline bytes, the second
/// operand of a fetch and add, and fields of a key that do not change. Returns their number.
fn mask(wqe: &mut [u8]) -> usize {
    let ctrl = ControlSegment::from_bytes(wqe.first_chunk().expect("a control segment"));
    if ctrl.opcode() == WqeOpcode::UMR {
        return mask_context(wqe);
    }
    if ctrl.opcode() == WqeOpcode::ATOMIC_FA && wqe.len() >= 3 * UNIT {
        wqe[2 * UNIT + 8..3 * UNIT].fill(0);
        return 8;
    }
    // The inline segment, if there is one, is the last. It begins at a unit, after one to four other units.
    for at in (UNIT..wqe.len()).step_by(UNIT).take(4) {
        let header = InlineHeader::from_bytes(wqe[at..].first_chunk().expect("a unit"));
        let Some(count) = header.count() else { continue };
        let end = at + InlineHeader::SIZE + count as usize;
        if end <= wqe.len() && end.next_multiple_of(UNIT) == wqe.len() {
            wqe[end..].fill(0);
            return wqe.len() - end;
        }
    }
    0
}

/// Clears all of the context of a key but what a bind or an invalidation writes: free, rights, queue pair and variant,
/// start, length; of an invalidation the first and the third.
fn mask_context(wqe: &mut [u8]) -> usize {
    const CONTEXT: usize = 64;
    let is_bind = wqe.len() > 2 * CONTEXT;
    let written: &[Range<usize>] = if is_bind { &[0..1, 2..3, 4..8, 16..32] } else { &[0..1, 4..8] };
    let mut masked = 0;
    for at in (0..CONTEXT).filter(|at| !written.iter().any(|range| range.contains(at))) {
        wqe[CONTEXT + at] = 0;
        masked += 1;
    }
    masked
}

/// Clears the immediate data of a request that has none: `ibv_wr_*` of libmlx5 does not write this field.
fn mask_immediate(wqe: &mut [u8]) -> usize {
    let ctrl = ControlSegment::from_bytes(wqe.first_chunk().expect("a control segment"));
    let has_immediate = [WqeOpcode::SEND_IMM, WqeOpcode::SEND_INVAL, WqeOpcode::RDMA_WRITE_IMM, WqeOpcode::UMR]
        .contains(&ctrl.opcode());
    if has_immediate {
        return 0;
    }
    wqe[12..UNIT].fill(0);
    4
}

/// Checks that doorbell has written only to the blocks that it posted.
fn unchanged(ours: &Queue, from: u16, posted: u16) -> Result<()> {
    let mut expected = ours.before[0].clone();
    let mut now = Vec::new();
    ours.ring.read(&mut now);
    let blocks = expected.len() / SEND_WQE_BB;
    for number in 0..usize::from(posted) {
        let at = (usize::from(from) + number) % blocks * SEND_WQE_BB;
        expected[at..at + SEND_WQE_BB].copy_from_slice(&now[at..at + SEND_WQE_BB]);
    }
    same_bytes(|| "send queue of doorbell: blocks that were not posted".into(), &expected, &now)
}

/// How a register was rung.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rung {
    half: usize,
    /// Bytes: 8, or whole blocks.
    bytes: usize,
}

impl Queue {
    /// Finds how the register was rung for the WQE from `last` to `end`; `None` when no doorbell explains it.
    fn rung(&self, last: u16, end: u16) -> Option<Rung> {
        let mut now = Vec::new();
        self.register.read(&mut now);
        let wqe = self.blocks(last, usize::from(end.wrapping_sub(last)));
        let ways = [0, HALF].into_iter().flat_map(|half| [DOORBELL, wqe.len()].map(|bytes| (half, bytes)));
        ways.filter(|(half, bytes)| *bytes <= HALF && half + bytes <= now.len())
            .find(|(half, bytes)| {
                let mut expected = self.before[1].clone();
                expected[*half..half + bytes].copy_from_slice(&wqe[..*bytes]);
                expected == now
            })
            .map(|(half, bytes)| Rung { half, bytes })
    }
}

fn same_registers(theirs: &Queue, ours: &Queue, last: u16, end: u16, tally: &mut Tally) -> Result<()> {
    let rung = [theirs, ours].map(|queue| queue.rung(last, end));
    for (name, value) in
        [("half", (|rung: Rung| rung.half as u64) as fn(Rung) -> u64), ("bytes", |rung| rung.bytes as u64)]
    {
        let [theirs, ours] = rung.map(|rung| rung.map_or(u64::MAX, value));
        same(|| format!("UAR of the send queue: {name} written"), theirs, ours)?;
    }
    let bytes = rung[1].map_or(0, |rung| rung.bytes as u64);
    tally.add(tally::EXACT, bytes);
    tally.add(tally::REGISTERS, 1);
    tally.add(tally::SEND_COPIED, u64::from(bytes > DOORBELL as u64));
    same(|| "UAR of the send queue: explained".into(), 1, u64::from(rung[1].is_some()))
}
