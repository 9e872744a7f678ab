//! A command queue as the device sees it: the WQEs of list operations, the doorbell record, the register.

use mlx5_wire::ctrl::SEND_WQE_BB;
use mlx5_wire::dbrec;
use mlx5_wire::tm::{SW_CNT_VALID, TmOpcode};
use soft_mlx5::Device;
use soft_mlx5::engine::inspect::Queues;

use crate::difference::{Result, same, same_bytes};
use crate::memory::Region;
use crate::pair::same_record;
use crate::tally::{self, Tally};

/// Bytes of a WQE that name the queue pair.
const QPN: std::ops::Range<usize> = 4..7;
/// Bytes of the doorbell, the first ones of a WQE.
const DOORBELL: usize = 8;
const UNIT: usize = 16;

/// Bytes of a WQE that libmlx5 does not write.
struct Stale {
    name: &'static str,
    from: usize,
    to: usize,
    /// Whether libmlx5 leaves them, by the opcode and whether the operation carries a count.
    left: fn(TmOpcode, bool) -> bool,
}

const STALE: [Stale; 3] = [
    Stale { name: "index of a SYNC", from: 18, to: 20, left: |op, _| op == TmOpcode::Nop },
    Stale { name: "sw_cnt without TM_SYNC", from: 22, to: 24, left: |_, counted| !counted },
    Stale { name: "tag and mask", from: 32, to: 48, left: |op, _| op != TmOpcode::Append },
];

pub struct CommandQueue {
    ring: Region,
    record: Region,
    pub number: u32,
    /// Basic blocks.
    pub blocks: u32,
    /// The ring when it was read last.
    before: Vec<u8>,
    posted: u16,
}

impl CommandQueue {
    pub fn of(queues: &Queues, number: u32) -> Self {
        let qp = queues.qps.iter().find(|qp| qp.number == number).expect("the QP exists");
        let (sq, dbrec) = (qp.attr.sq, qp.attr.dbrec);
        // SAFETY: memory of a queue that exists as long as its twin. The driver writes it and the device
        // reads it; neither runs while it is read here.
        let (ring, record) = unsafe { (Region::at(sq.buf, sq.count as usize * SEND_WQE_BB), Region::at(dbrec, 8)) };
        let before = ring.bytes(0, ring.len());
        Self { ring, record, number, blocks: sq.count, before, posted: 0 }
    }

    fn block(&self, index: u16) -> usize {
        (u32::from(index) & (self.blocks - 1)) as usize * SEND_WQE_BB
    }

    /// Running index of the next WQE, as the record has it.
    fn producer(&self) -> u16 {
        self.record.word(4 * dbrec::SEND) as u16
    }

    /// Whether the queue was never used.
    pub fn is_idle(&self) -> bool {
        let unused = self.record.bytes(0, 8).iter().all(|byte| *byte == 0);
        unused && self.ring.bytes(0, self.ring.len()) == self.before
    }
}

/// Compares the two queues after operations were posted to both.
pub fn compare(
    theirs: &mut CommandQueue,
    ours: &mut CommandQueue,
    devices: [&Device; 2],
    tally: &mut Tally,
) -> Result<()> {
    same(|| "command queue: basic blocks".into(), theirs.blocks.into(), ours.blocks.into())?;
    let [record, our_record] = [&*theirs, &*ours].map(|queue| [0, 4].map(|at| queue.record.word(at)));
    same_record("command queue", &record, &our_record, tally)?;
    let (from, count) = (ours.posted, ours.producer().wrapping_sub(ours.posted));
    for number in 0..count {
        same_wqe(theirs, ours, from.wrapping_add(number), tally)?;
    }
    for (queue, who) in [(&mut *theirs, "libmlx5"), (&mut *ours, "doorbell")] {
        // The other blocks are unchanged: the device may still read them.
        let mut expected = std::mem::take(&mut queue.before);
        queue.ring.read(&mut queue.before);
        for number in 0..count {
            let at = queue.block(from.wrapping_add(number));
            let new = &queue.before[at..at + SEND_WQE_BB];
            expected[at..at + SEND_WQE_BB].copy_from_slice(new);
        }
        if who == "libmlx5" {
            // The device may not read the block after the last one: libmlx5 clears words of it for a WQE
            // that it then refuses.
            let next = queue.block(from.wrapping_add(count)) + DOORBELL;
            let cleared = &queue.before[next..next + DOORBELL];
            expected[next..next + DOORBELL].copy_from_slice(cleared);
        }
        let name = || format!("command queue of {who}: WQEs that were there before");
        same_bytes(name, &expected, &queue.before)?;
        (queue.posted, _) = queue.posted.overflowing_add(count);
        if from.checked_add(count).is_none() && who == "doorbell" {
            tally.add(tally::TAG_WRAPS, 1);
        }
    }
    same_registers(theirs, ours, devices, count, tally)
}

/// Compares the WQE at `index`, byte by byte as far as the device reads it.
fn same_wqe(theirs: &CommandQueue, ours: &CommandQueue, index: u16, tally: &mut Tally) -> Result<()> {
    let at = ours.block(index);
    let mut wqes = [theirs, ours].map(|queue| queue.ring.bytes(at, SEND_WQE_BB));
    let field = |what: &str| format!("list operation {index:#x}: {what}");
    for (wqe, queue) in wqes.iter_mut().zip([theirs, ours]) {
        let qpn = &queue.number.to_be_bytes()[1..];
        same_bytes(|| field("QP number"), qpn, &wqe[QPN])?;
        wqe[QPN].fill(0);
        tally.add(tally::COMMAND_QPN, QPN.len() as u64);
    }
    let [theirs_now, ours_now] = &mut wqes;
    same(|| field("ds"), theirs_now[7].into(), ours_now[7].into())?;
    let len = (usize::from(ours_now[7]) * UNIT).min(SEND_WQE_BB);
    let (operation, counted) = (TmOpcode::from_byte(ours_now[16]), ours_now[17] & SW_CNT_VALID != 0);
    for Stale { name, from, to, left } in STALE {
        if left(operation, counted) {
            let stood = &theirs.before[at + from..at + to];
            same_bytes(|| field(&format!("{name}, before and after")), stood, &theirs_now[from..to])?;
            let zeros = vec![0; to - from];
            same_bytes(|| field(name), &zeros, &ours_now[from..to])?;
            theirs_now[from..to].fill(0);
            tally.add(tally::STALE, (to - from) as u64);
        }
    }
    same_bytes(|| field("WQE"), &theirs_now[..len], &ours_now[..len])?;
    tally.add(tally::EXACT, len as u64);
    Ok(())
}

/// Compares the writes to the registers: the doorbell of eight bytes, in the same half.
fn same_registers(
    theirs: &CommandQueue,
    ours: &CommandQueue,
    devices: [&Device; 2],
    count: u16,
    tally: &mut Tally,
) -> Result<()> {
    let read = |queue: &CommandQueue, device: &Device| device.register(queue.number).expect("the QP has a register");
    let registers = [read(theirs, devices[0]), read(ours, devices[1])];
    if count == 1 {
        // libmlx5 may copy a single WQE to the register: it must be the same bytes.
        let at = theirs.block(ours.posted.wrapping_sub(1));
        let wqe = theirs.ring.bytes(at, SEND_WQE_BB);
        let rung = registers[0].iter().find(|half| half[..DOORBELL] == wqe[..DOORBELL]);
        let behind = rung.map_or(&[][..], |half| &half[DOORBELL..]);
        if behind.iter().any(|byte| *byte != 0) {
            same_bytes(|| "BlueFlame write of libmlx5".into(), &wqe[DOORBELL..], behind)?;
            tally.add(tally::BLUE_FLAME, behind.len() as u64);
        }
    }
    for half in 0..2 {
        let mut rung = registers.map(|register| register[half]);
        for (bytes, queue) in rung.iter_mut().zip([theirs, ours]) {
            if bytes[..DOORBELL] != [0; DOORBELL] {
                let qpn = &queue.number.to_be_bytes()[1..];
                same_bytes(|| format!("UAR, half {half}: QP number"), qpn, &bytes[QPN])?;
                bytes[QPN].fill(0);
            }
        }
        let name = || format!("UAR of the command queue, half {half}");
        same_bytes(name, &rung[0][..DOORBELL], &rung[1][..DOORBELL])?;
        same_bytes(
            || format!("UAR of doorbell, half {half}: behind the doorbell"),
            &[0; SEND_WQE_BB - DOORBELL],
            &rung[1][DOORBELL..],
        )?;
        tally.add(tally::EXACT, DOORBELL as u64);
    }
    tally.add(tally::REGISTERS, u64::from(count > 0));
    Ok(())
}
