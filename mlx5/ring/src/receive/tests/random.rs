//! Random steps with one or two queues, of all forms of WQEs and CQEs.

use std::vec::Vec;

use mlx5_wire::cqe::CqeFormat;
use mlx5_wire::mini_cqe::MiniCqeFormat;
use mlx5_wire::opcode::CqeOpcode::*;

use crate::receive::ReceiveRing;
use crate::testing::{CqeSpec, Give, Kind, Owner, Random, Rig, Setup, cases, on, seed};

/// A small queue: of up to 64 slots, and of any stride.
fn small(random: &mut Random) -> (Kind, u32, usize) {
    match random.pick(&[Kind::Ordered, Kind::Srq, Kind::Rq]) {
        kind @ (Kind::Ordered | Kind::Srq) => (kind, 2 << random.below(6), 32 << random.below(3)),
        Kind::Rq => (Kind::Rq, 1 << random.below(7), 16 << random.below(4)),
    }
}

/// A CQ with just as many entries as the queues have receives, or more.
fn setup(queues: Vec<(Kind, u32, usize)>, random: &mut Random) -> Setup {
    let receives = |&(kind, slots, _): &_| if kind == Kind::Rq { slots } else { slots - 1 };
    let exact = queues.iter().map(receives).sum::<u32>().next_power_of_two();
    let cqe_size = random.pick(&[64, 128]);
    let formats = [None, Some(MiniCqeFormat::Hash), Some(MiniCqeFormat::Checksum)];
    Setup {
        queues,
        cqes: exact << random.pick(&[0, 0, 1]),
        cqe_size,
        compression: if cqe_size == 64 { random.pick(&formats) } else { None },
        wrap: random.pick(&[16, 24, 32]),
    }
}

/// Returns a CQE, except for its counter and QP.
fn spec(rig: &Rig, random: &mut Random) -> CqeSpec {
    let ops = [ResponderSend, ResponderSend, ResponderSendImm, ResponderSendInv, ResponderWriteImm];
    let opcode = if random.once_in(12) { ResponderError } else { random.pick(&ops) };
    let mut spec = CqeSpec { byte_count: random.next(), ..CqeSpec::new(opcode, 0) };
    if opcode != ResponderError && random.once_in(3) {
        let wide = rig.producer.size == 128 && random.once_in(2);
        (spec.format, spec.byte_count) =
            if wide { (CqeFormat::Inline64, random.below(70)) } else { (CqeFormat::Inline32, random.below(35)) };
        spec.payload = random.next() as u8;
    }
    spec
}

/// Some messages arrive, for any queue and in any order.
fn arrive(rig: &mut Rig, random: &mut Random, compressed: bool) {
    let queue = random.below(rig.queues.len() as u32) as usize;
    let in_order = random.once_in(2);
    for _ in 0..=random.below(rig.queues[queue].device.slots) {
        let posted = rig.queues[queue].device.queue.len() as u32;
        if posted == 0 {
            return;
        }
        let position = if in_order { 0 } else { random.below(posted) as usize };
        let blocks = compressed && random.once_in(4);
        if !blocks || !rig.complete_block(queue, position, 2 + random.below(40) as usize) {
            let spec = spec(rig, random);
            rig.complete(queue, position, spec);
        }
    }
}

/// A batch, which ends, or is forgotten.
fn batch(rig: &mut Rig, random: &mut Random) {
    let keep = random.pick(&[0, 0, 1, 4]);
    let fates = random.pick(&[
        [Give::Recycle; 3],
        [Give::Release; 3],
        [Give::Recycle, Give::Release, Give::Rewrite],
        [Give::Recycle, Give::Recycle, Give::Rewrite],
    ]);
    let lends = random.once_in(2);
    for _ in 0..random.below(2 * rig.producer.count + 1) {
        if lends && rig.lend(random.once_in(8)) {
            continue;
        }
        if !rig.next() {
            break;
        }
        while rig.held.len() > random.below(keep + 1) as usize {
            let at = random.below(rig.held.len() as u32) as usize;
            let fate = random.pick(&fates);
            rig.give(at, fate);
        }
    }
    if !random.once_in(6) {
        rig.end();
    }
}

/// Takes so many steps, and checks after each or now and then.
fn run(setup: &Setup, random: &mut Random, steps: u32, check_each: u32) {
    let mut rig = Rig::new(setup);
    for step in 0..steps {
        let queue = random.below(rig.queues.len() as u32) as usize;
        match random.below(10) {
            0..3 => {
                for _ in 0..=random.below(rig.queues[queue].device.slots) {
                    rig.reshape(random.next() as u8 & 0x7b);
                    rig.post(queue);
                }
                if random.once_in(2) {
                    rig.load(queue);
                }
                if !random.once_in(4) {
                    rig.end();
                }
            }
            3..6 => arrive(&mut rig, random, setup.compression.is_some()),
            6 if check_each == 1 && rig.arrived.is_empty() && rig.producer.room() > rig.owed() => rig.strays(queue),
            7 if random.once_in(20) && !rig.queues[queue].device.is_srq() => rig.reset(queue),
            _ => batch(&mut rig, random),
        }
        if step % check_each == 0 {
            rig.check();
        }
    }
    // All that the device has arrives; everything is given back.
    loop {
        while !rig.held.is_empty() {
            rig.give(0, Give::Release);
        }
        rig.end();
        for queue in 0..rig.queues.len() {
            while !rig.queues[queue].device.queue.is_empty() {
                rig.complete(queue, 0, CqeSpec::new(ResponderSend, 0));
            }
        }
        while rig.next() {}
        if rig.held.is_empty() {
            break;
        }
    }
    rig.check();
    for queue in 0..rig.queues.len() {
        let free = on!(&rig.queues[queue].ring, ring => ring.free_slots());
        let waits = rig.owners.iter().filter(|(owner, _)| *owner == Owner::Queue(queue)).count();
        assert_eq!(free, rig.queues[queue].device.capacity(), "{waits} receives never arrive");
        rig.reset(queue);
    }
}

#[test]
fn random_steps() {
    let seed = seed();
    for case in 0..cases(2000) {
        let random = &mut Random::new(seed + u64::from(case));
        let queues = (0..1 + random.below(2)).map(|_| small(random)).collect();
        let setup = setup(queues, random);
        std::println!("case {case}: {setup:?}");
        run(&setup, random, 80, 1);
    }
}

/// Until the counters of 16 bits have wrapped by themselves, and with as many slots as a queue can have.
#[test]
fn long_runs_and_large_queues() {
    let random = &mut Random::new(seed());
    for (kind, slots, steps) in [
        (Kind::Ordered, 2, 40_000),
        (Kind::Rq, 1, 40_000),
        (Kind::Ordered, 256, 1000),
        (Kind::Srq, 256, 1000),
        (Kind::Rq, 256, 1000),
        (Kind::Ordered, 1 << 16, 16),
        (Kind::Rq, 1 << 15, 24),
    ] {
        let setup = Setup { wrap: 32, ..setup(Vec::from([(kind, slots, 32)]), random) };
        std::println!("{setup:?}");
        run(&setup, random, cases(steps), 16);
    }
}
