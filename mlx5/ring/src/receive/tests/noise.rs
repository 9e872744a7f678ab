//! Whatever the device writes, no slot has two owners.

use std::vec::Vec;

use mlx5_wire::mini_cqe::MiniCqeFormat;

use crate::receive::{Completion, ReceiveRing, complete};
use crate::testing::{CqDevice, Kind, Random, Rig, Setup, State, cases, on, seed};

/// Fills the CQ with noise, of which much is software's and means something.
fn fill(cq: &CqDevice, consumer_index: u32, random: &mut Random) {
    for index in (0..cq.count).map(|i| consumer_index.wrapping_add(i)) {
        let mut bytes: Vec<u8> = (0..cq.size).map(|_| random.next() as u8).collect();
        let proper = cq.size - 64;
        if !random.once_in(3) {
            let owner = u8::from(index & cq.count != 0);
            let op_own = (random.below(5) as u8) << 4 | random.next() as u8 & 0xe | owner;
            bytes[proper + 60..].copy_from_slice(&[0, random.below(9) as u8, 0, op_own]);
            let length = random.pick(&[random.clone().below(cq.count + 2), random.clone().next()]);
            bytes[proper + 44..proper + 48].copy_from_slice(&length.to_be_bytes());
        }
        for (i, byte) in bytes.into_iter().enumerate() {
            // SAFETY: inside the entry.
            unsafe { cq.entry(index).add(i).write_volatile(byte) }
        }
    }
}

#[test]
fn noise_gives_no_slot_two_owners() {
    let mut random = Random::new(seed());
    for round in 0..cases(1000) {
        let cqe_size = 64 << (round & 1);
        let setup = Setup {
            queues: Vec::from([(random.pick(&[Kind::Ordered, Kind::Srq, Kind::Rq]), 8, 64)]),
            cqes: 8 << random.below(3),
            cqe_size,
            compression: (cqe_size == 64).then_some(MiniCqeFormat::Checksum),
            wrap: 0,
        };
        let mut rig = Rig::new(&setup);
        while rig.post(0) {}
        rig.end();
        let State { queues, cq, producer, .. } = &mut rig.state;
        let mut held = Vec::new();
        for _ in 0..8 {
            fill(producer, cq.consumer_index(), &mut random);
            for _ in 0..random.below(producer.count + 1) {
                let Some(cqe) = cq.next() else { break };
                // SAFETY: payload of 64 bytes or less goes to buffers that exist.
                let completion = on!(&mut queues[0].ring, ring => unsafe { complete(ring, cqe) });
                if let Completion::Message(slot) | Completion::Failed(slot) = completion {
                    assert!(!held.contains(&slot), "slot {slot} has two owners");
                    held.push(slot);
                }
                if !held.is_empty() && random.once_in(2) {
                    let slot = held.swap_remove(random.below(held.len() as u32) as usize);
                    // SAFETY: the slot is held.
                    on!(&mut queues[0].ring, ring => unsafe { ring.recycle(slot) });
                }
            }
            cq.purge(|cqe| cqe.wqe_counter() % 2 == 0);
        }
    }
}
