//! Group C: messages arrive, whole and in order.

use doorbell::{Buffer, WcFlags};

use super::check::{Check, Needs};
use super::lab::Lab;
use super::layout::counter;
use super::messages::Request;
use super::pair::{Pair, Shape};
use super::rings::Wqes;
use super::stop::{Stop, fail, same};

pub const CHECKS: &[Check] = &[
    Check { id: "C10", name: "messages of a queue pair arrive in order", needs: Needs::Device, run: in_order },
    Check { id: "C11", name: "an SRQ whose buffers come back in any order", needs: Needs::Device, run: out_of_order },
    Check { id: "C12", name: "a receive queue goes round", needs: Needs::Rings, run: wraps },
    Check {
        id: "C13",
        name: "an empty queue stops its sender, a full one takes all",
        needs: Needs::Device,
        run: full_and_empty,
    },
    Check { id: "C14", name: "messages over several buffers, and of no bytes", needs: Needs::Device, run: scattered },
    Check { id: "C16", name: "datagrams, their source and header", needs: Needs::Device, run: datagrams },
    Check { id: "C17", name: "immediate data", needs: Needs::Device, run: immediate },
    Check { id: "C19", name: "an SRQ of ten queue pairs", needs: Needs::Device, run: of_many },
    Check { id: "C18", name: "recycling in order writes no WQE", needs: Needs::Rings, run: recycled },
];

/// Bytes that follow from a number.
pub fn payload(number: u32, len: usize) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9e37_79b9) | 1;
    let mut byte = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as u8
    };
    let mut bytes = number.to_be_bytes().to_vec();
    bytes.extend(std::iter::repeat_with(&mut byte).take(len.saturating_sub(4)));
    bytes.truncate(len);
    bytes
}

fn in_order(lab: &mut Lab) -> Result<String, Stop> {
    let mut pair = Pair::new(lab, &Shape::new(lab))?;
    let (mut count, burst) = (0, 16);
    for _ in lab.rounds(400) {
        let numbers = count..count + burst;
        count += burst;
        for number in numbers.clone() {
            pair.send(0, &payload(number, 4 + number as usize % 61), None)?;
        }
        let mut next = numbers.start;
        pair.receive(burst, |message| {
            let wanted = payload(next, 4 + next as usize % 61);
            same(format!("bytes of message {next}"), &wanted, &message?.to_vec())?;
            next += 1;
            Ok(())
        })?;
    }
    pair.all_sent(0)?;
    Ok(format!("{count} messages of 4 to 64 bytes"))
}

fn out_of_order(lab: &mut Lab) -> Result<String, Stop> {
    let shape = Shape { qps: 4, srq: true, receives: 31, buffers: 31, ..Shape::new(lab) };
    let mut pair = Pair::new(lab, &shape)?;
    let (mut held, mut next): (Vec<Buffer>, _) = (Vec::new(), [0u32; 4]);
    let mut sent = [0u32; 4];
    for _ in lab.rounds(4000) {
        let qp = lab.random(4) as usize;
        pair.send(qp, &payload(sent[qp], 40), None)?;
        sent[qp] += 1;
        let numbers: Vec<u32> = pair.near.iter().map(doorbell::QueuePair::qp_num).collect();
        pair.receive(1, |message| {
            let message = message?;
            let qp = numbers.iter().position(|number| *number == message.qp_num());
            let qp = qp.ok_or("a message of a queue pair that does not exist")?;
            same(
                format!("bytes of message {} of queue pair {qp}", next[qp]),
                &payload(next[qp], 40),
                &message.to_vec(),
            )?;
            next[qp] += 1;
            held.push(message.take()?);
            Ok(())
        })?;
        while held.len() > 20 {
            let any = lab.random(held.len() as u32) as usize;
            let buffer = held.swap_remove(any);
            pair.receiver.post(pair.queues[0], [buffer])?;
        }
    }
    same("messages of each queue pair", &sent, &next)?;
    Ok(format!("{} messages on 4 queue pairs, 20 buffers held", sent.iter().sum::<u32>()))
}

fn of_many(lab: &mut Lab) -> Result<String, Stop> {
    const QPS: usize = 10;
    let shape = Shape { qps: QPS as u32, srq: true, receives: 127, buffers: 127, buffer: 4096, ..Shape::new(lab) };
    let mut pair = Pair::new(lab, &shape)?;
    let numbers: Vec<u32> = pair.near.iter().map(doorbell::QueuePair::qp_num).collect();
    let (mut sent, mut next) = ([0u32; QPS], [0u32; QPS]);
    for _ in lab.rounds(400) {
        // Messages of all at once, one of them of many packets.
        for (qp, sent) in sent.iter_mut().enumerate() {
            pair.send(qp, &payload(*sent, 32), None)?;
            *sent += 1;
        }
        let long = lab.random(QPS as u32) as usize;
        pair.post(long, &Request::Long(4096))?;
        pair.receive(QPS as u32 + 1, |message| {
            let message = message?;
            let qp = numbers.iter().position(|number| *number == message.qp_num());
            let qp = qp.ok_or("a message of a queue pair that does not exist")?;
            if message.len() == 4096 && qp == long {
                return Ok(());
            }
            let wanted = payload(next[qp], 32);
            same(format!("bytes of message {} of queue pair {qp}", next[qp]), &wanted, &message.to_vec())?;
            next[qp] += 1;
            Ok(())
        })?;
        for qp in 0..QPS {
            pair.all_sent(qp)?;
        }
    }
    same("messages of each queue pair", &sent, &next)?;
    Ok(format!("{} messages, and long ones among them", next.iter().sum::<u32>()))
}

fn wraps(lab: &mut Lab) -> Result<String, Stop> {
    let shape = Shape { receives: 16, buffers: 16, cq: Some(16), ..Shape::new(lab) };
    let mut pair = Pair::new(lab, &shape)?;
    let count = 16 * 3 + 5;
    for number in 0..count {
        pair.send(0, &payload(number, 20), None)?;
        pair.receive(1, |message| same(format!("message {number}"), &payload(number, 20), &message?.to_vec()))?;
    }
    let counters: Vec<usize> = pair.cqes().iter().map(counter).collect();
    same("wqe_counter of each CQE", &(0..count as usize).collect(), &counters)?;
    Ok(format!("{count} messages through 16 slots"))
}

fn full_and_empty(lab: &mut Lab) -> Result<String, Stop> {
    let shape = Shape { receives: 8, buffers: 12, cq: Some(8), ..Shape::new(lab) };
    let mut pair = Pair::new(lab, &shape)?;
    let mut number = 0;
    let mut next = 0;
    for _ in lab.rounds(50) {
        for _ in 0..12 {
            pair.send(0, &payload(number, 16), None)?;
            number += 1;
        }
        let mut buffers = Vec::new();
        pair.receive(8, |message| {
            let message = message?;
            same(format!("message {next}"), &payload(next, 16), &message.to_vec())?;
            next += 1;
            buffers.push(message.take()?);
            Ok(())
        })?;
        // Nothing is posted: the others wait with their sender.
        same(
            "messages without a receive",
            &0,
            &pair.poll(1, |message| {
                message?;
                Ok(())
            })?,
        )?;
        pair.receiver.post(pair.queues[0], buffers)?;
        pair.receive(4, |message| {
            same(format!("message {next}"), &payload(next, 16), &message?.to_vec())?;
            next += 1;
            Ok(())
        })?;
        pair.all_sent(0)?;
    }
    Ok(format!("{number} messages, of which each third waited"))
}

fn scattered(lab: &mut Lab) -> Result<String, Stop> {
    let lengths = [0, 1, 15, 16, 17, 31, 32, 33, 47, 48];
    for srq in [false, true] {
        let shape = Shape { sges: 3, srq, receives: 7, buffer: 16, buffers: 21, fill: false, ..Shape::new(lab) };
        let mut pair = Pair::new(lab, &shape)?;
        for (number, len) in lengths.into_iter().enumerate() {
            let buffers = (0..3).map_while(|_| pair.pool.take()).collect();
            pair.receiver.post_scatter(pair.queues[0], buffers)?;
            let bytes = payload(number as u32, len);
            pair.send(0, &bytes, None)?;
            pair.receive(1, |message| {
                let message = message?;
                let pieces: Vec<usize> = message.segments().map(<[u8]>::len).collect();
                same(format!("bytes of a message of {len}"), &bytes, &message.segments().flatten().copied().collect())?;
                let wanted: Vec<usize> =
                    (0..3).map(|piece| len.saturating_sub(16 * piece).min(16)).filter(|len| *len > 0).collect();
                same(format!("pieces of a message of {len}"), &wanted, &pieces)?;
                drop(message.into_buffers());
                Ok(())
            })?;
        }
    }
    Ok("0 to 48 bytes over three buffers of 16".into())
}

fn datagrams(lab: &mut Lab) -> Result<String, Stop> {
    let shape = Shape { datagrams: true, ..Shape::new(lab) };
    let mut pair = Pair::new(lab, &shape)?;
    let from = pair.senders[0];
    let mut with_header = 0;
    for number in 0..50 {
        let bytes = payload(number, 30);
        pair.send(0, &bytes, None)?;
        pair.sent(0)?;
        pair.receive(1, |message| {
            let message = message?;
            let Some(datagram) = message.datagram() else {
                return fail("a message that is no datagram");
            };
            same(format!("bytes of datagram {number}"), &payload(number, 30), &datagram.payload().to_vec())?;
            same("queue pair that it came from", &from, &datagram.source().qp_num)?;
            with_header += u32::from(message.flags().contains(WcFlags::GRH));
            Ok(())
        })?;
    }
    Ok(format!("50 datagrams, {with_header} with a GRH"))
}

fn immediate(lab: &mut Lab) -> Result<String, Stop> {
    let mut pair = Pair::new(lab, &Shape::new(lab))?;
    for number in 0..100u32 {
        let imm = (number % 3 != 0).then_some(number.wrapping_mul(0x0102_0408) | 1);
        pair.send(0, &number.to_be_bytes(), imm)?;
        pair.receive(1, |message| same(format!("immediate data of message {number}"), &imm, &message?.imm()))?;
    }
    Ok("100 messages, two thirds of them with immediate data".into())
}

fn recycled(lab: &mut Lab) -> Result<String, Stop> {
    for srq in [false, true] {
        let receives = if srq { 15 } else { 16 };
        let shape = Shape { srq, receives, buffers: 16, ..Shape::new(lab) };
        let mut pair = Pair::new(lab, &shape)?;
        let wqes = Wqes::of(pair.near_raw(0))?;
        let mut laps = Vec::new();
        for _ in 0..4 {
            for number in 0..16 {
                pair.send(0, &payload(number, 8), None)?;
                pair.take(1)?;
            }
            laps.push(wqes.memory.all());
        }
        if laps[1..].iter().any(|lap| *lap != laps[1]) {
            return fail(format!(
                "the WQEs of {} change though nothing but recycling happens",
                if srq { "an SRQ" } else { "a receive queue" }
            ));
        }
    }
    Ok("four laps of either kind".into())
}
