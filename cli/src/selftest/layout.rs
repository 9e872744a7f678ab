//! Group B: memory that doorbell writes, compared with memory that libmlx5 writes on the same device.

use doorbell::DataPath;
use mlx5_wire::data::DataSegment;

use super::check::{Check, Needs};
use super::lab::Lab;
use super::messages::Request;
use super::pair::{Pair, Shape};
use super::rings::Wqes;
use super::stop::{Stop, fail, same};
use super::witness::{hex, plain};

pub const CHECKS: &[Check] = &[
    Check { id: "B6", name: "WQEs of receives equal those of libmlx5", needs: Needs::Rings, run: wqes },
    Check { id: "B7", name: "doorbell records equal, and cover what they count", needs: Needs::Rings, run: records },
    Check { id: "B8", name: "the device follows the links of an SRQ", needs: Needs::Rings, run: links },
    Check { id: "B9", name: "indices in CQEs equal those of libmlx5's queue", needs: Needs::Rings, run: indices },
];

/// Makes two equal queues: one driven by doorbell, one by libmlx5.
fn twins(lab: &Lab, shape: &Shape) -> Result<[(Pair, Wqes); 2], Stop> {
    let twin = |path| {
        let pair = Pair::new(lab, &Shape { path, ..shape.clone() })?;
        let wqes = Wqes::of(pair.near_raw(0))?;
        Ok::<_, Stop>((pair, wqes))
    };
    Ok([twin(DataPath::Direct)?, twin(DataPath::Verbs)?])
}

/// The bytes of a WQE up to the end of its list.
fn used(wqes: &Wqes, slot: usize) -> Vec<u8> {
    let wqe = wqes.wqe(slot);
    let (lead, segments) = wqe.split_at(if wqes.shared { 16 } else { 0 });
    let mut used = lead.to_vec();
    for bytes in segments.chunks_exact(DataSegment::SIZE) {
        used.extend_from_slice(bytes);
        if DataSegment::from_bytes(bytes.try_into().expect("a segment")).is_terminator() {
            break;
        }
    }
    used
}

/// A WQE with the offset of each buffer in its pool instead of its address, and without keys.
fn relative(wqes: &Wqes, slot: usize, base: u64) -> Vec<u8> {
    let wqe = wqes.wqe(slot);
    let (link, segments) = wqe.split_at(if wqes.shared { 16 } else { 0 });
    let mut relative = if wqes.shared { link[2..4].to_vec() } else { Vec::new() };
    for bytes in segments.chunks_exact(DataSegment::SIZE) {
        let segment = DataSegment::from_bytes(bytes.try_into().expect("a segment"));
        if segment.is_terminator() {
            relative.extend_from_slice(bytes);
            break;
        }
        relative.extend_from_slice(&segment.byte_count.get().to_be_bytes());
        relative.extend_from_slice(&segment.addr.get().wrapping_sub(base).to_be_bytes());
    }
    relative
}

/// The lowest address that a segment has.
fn base(wqes: &Wqes, posted: usize) -> u64 {
    let lead = if wqes.shared { 16 } else { 0 };
    let segments = (0..posted).flat_map(|slot| wqes.wqe(slot)[lead..].to_vec());
    let segments: Vec<u8> = segments.collect();
    let segments = segments.chunks_exact(DataSegment::SIZE);
    let segments = segments.map(|bytes| DataSegment::from_bytes(bytes.try_into().expect("a segment")));
    segments.filter(|segment| segment.lkey.get() > 0x100).map(|segment| segment.addr.get()).min().unwrap_or(0)
}

fn wqes(lab: &mut Lab) -> Result<String, Stop> {
    let mut compared = 0;
    for (srq, sges) in [(false, 1), (false, 3), (true, 1), (true, 2)] {
        let fill = sges == 1;
        let shape = Shape { srq, sges, receives: 31, buffers: 31 * sges, fill, ..Shape::new(lab) };
        let mut twins = twins(lab, &shape)?;
        let mut posted = 31;
        for (pair, _) in &mut twins {
            if !fill {
                // Lists of all lengths.
                posted = 0;
                while let Some(first) = pair.pool.take() {
                    let more = (1..=posted % sges).map_while(|_| pair.pool.take());
                    let list = [first].into_iter().chain(more).collect();
                    let Ok(()) = pair.receiver.post_scatter(pair.queues[0], list) else { break };
                    posted += 1;
                }
            }
        }
        let [(_, ours), (_, theirs)] = &twins;
        let kind = if srq { "srq" } else { "rq" };
        for slot in 0..posted as usize {
            let [our, their] = [ours, theirs].map(|wqes| plain(&used(wqes, slot)));
            lab.witness.borrow_mut().wqes.push(format!("wqe {kind} {slot:#x} {our} {their}"));
        }
        let bases = [ours, theirs].map(|wqes| base(wqes, posted as usize));
        for slot in 0..posted as usize {
            let (our, their) = (relative(ours, slot, bases[0]), relative(theirs, slot, bases[1]));
            if our != their {
                return fail(format!(
                    "slot {slot} of {} of {sges} segments: doorbell {}, libmlx5 {}",
                    if srq { "an SRQ" } else { "a receive queue" },
                    hex(&ours.wqe(slot)),
                    hex(&theirs.wqe(slot))
                ));
            }
            compared += our.len();
        }
        // The device finds the buffers, too.
        for (pair, _) in &mut twins {
            pair.send(0, b"found", None)?;
            pair.receive(1, |message| {
                let message = message?;
                let piece = message.segments().next().unwrap_or_default().to_vec();
                same("a message into the first WQE", &b"found".to_vec(), &piece)
            })?;
        }
    }
    Ok(format!("{compared} bytes, {} of them addresses within pools", compared / 3 * 2))
}

fn records(lab: &mut Lab) -> Result<String, Stop> {
    for srq in [false, true] {
        let shape = Shape { srq, receives: 15, buffers: 15, fill: false, ..Shape::new(lab) };
        let mut twins = twins(lab, &shape)?;
        let mut total = 0;
        for step in [1, 4, 10] {
            total += step;
            let mut found = [0; 2];
            for ((pair, wqes), found) in twins.iter_mut().zip(&mut found) {
                let buffers: Vec<_> = (0..step).map_while(|_| pair.pool.take()).collect();
                pair.receiver.post(pair.queues[0], buffers)?;
                *found = wqes.record();
            }
            same("record of doorbell's queue", &total, &found[0])?;
            same("record of libmlx5's queue", &total, &found[1])?;
        }
        for (pair, _) in &mut twins {
            for number in 0..15 {
                pair.send(0, &[number], None)?;
            }
            // As many as were posted, to the last.
            pair.arrived(15)?;
        }
    }
    Ok("1, 5 and 15 receives of either kind".into())
}

fn links(lab: &mut Lab) -> Result<String, Stop> {
    let shape = Shape { qps: 2, srq: true, receives: 7, buffer: 8192, buffers: 7, ..Shape::new(lab) };
    let mut pair = Pair::new(lab, &shape)?;
    let wqes = Wqes::of(pair.near_raw(0))?;
    let (mut turned, mut checked) = (0, 0);
    for round in lab.rounds(400) {
        // A long message and a short one: the short one, which came second, may end first.
        pair.post(0, &Request::Long(8192))?;
        pair.send(1, &[round as u8], None)?;
        let mut lengths = Vec::new();
        pair.receive(2, |message| {
            lengths.push(message?.len());
            Ok(())
        })?;
        turned += u32::from(lengths == [1, 8192]);
        // Alone, messages complete in the order of the list.
        let before = pair.cqes().len();
        for number in 0..3 {
            pair.send(1, &[number], None)?;
        }
        pair.arrived(3)?;
        let counters: Vec<usize> = pair.cqes()[before..].iter().map(counter).collect();
        for two in counters.windows(2) {
            same(format!("slot after {:#x}, which links to the next", two[0]), &wqes.link(two[0]), &two[1])?;
            checked += 1;
        }
        pair.take(3)?;
        pair.all_sent(0)?;
        pair.all_sent(1)?;
    }
    let fresh = (0..3).all(|slot| wqes.link(slot) == slot + 1);
    Ok(format!(
        "{checked} links; {turned} messages ended out of order{}",
        if fresh { ", all links are those of a new queue" } else { "" }
    ))
}

/// `wqe_counter` of a CQE.
pub fn counter(cqe: &[u8; 64]) -> usize {
    u16::from_be_bytes([cqe[60], cqe[61]]).into()
}

fn indices(lab: &mut Lab) -> Result<String, Stop> {
    let shape = Shape { receives: 8, buffers: 8, ..Shape::new(lab) };
    let mut twins = twins(lab, &shape)?;
    let count = 30;
    for (pair, _) in &mut twins {
        for number in 0..count {
            pair.send(0, &[number as u8], None)?;
            pair.take(1)?;
        }
    }
    let [ours, theirs] = twins.map(|(pair, _)| pair.cqes().iter().map(counter).collect::<Vec<_>>());
    same("wqe_counter of each CQE, doorbell and libmlx5", &theirs, &ours)?;
    same("wqe_counter of the last CQE", &(count - 1), &ours[count - 1])?;
    Ok(format!("{count} CQEs of a queue of 8"))
}
