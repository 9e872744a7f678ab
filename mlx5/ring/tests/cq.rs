//! Completion queues: ownership over many laps, purging, and CQEs that cannot be true.

mod device;

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

use mlx5_ring::completion::Cqe;
use mlx5_ring::cq::LayoutError;
use mlx5_ring::receive::{Completion, Receiving};
use mlx5_ring::rq::ReceiveQueue;
use mlx5_ring::srq::SharedReceiveQueue;

use mlx5_wire::cqe::CqeFormat;
use mlx5_wire::mini_cqe::MiniCqeFormat;
use mlx5_wire::opcode::CqeOpcode;

use device::cq::{Entry, Producer, Told, op};
use device::random::{Random, seed, steps};
use device::subject::{Data, Subject};
use device::world::World;

type Rq = ReceiveQueue<Data>;
type Srq = SharedReceiveQueue<Data>;

#[test]
fn ownership_over_many_laps() {
    let mut random = Random::new(seed());
    for (count, size) in (0..5).flat_map(|i| [(1 << i, 64), (1 << i, 128)]) {
        let mut device = Producer::new(count, size);
        let mut cq = device.queue();
        let mut taken = 0;
        while taken < 40 * count {
            for _ in 0..random.below(device.room() + 1) {
                let ops = [op::SEND, op::REQUESTER, op::RESPONDER_ERROR, 0xb0, op::SOLICITED];
                let counter = device.state.producer as u16;
                let entry = Entry::new(ops[random.below(5) as usize], counter, 0);
                device.push(&entry, Told::Other);
            }
            let arrived = device.state.producer - taken;
            assert_eq!(cq.is_empty(), arrived == 0);
            let budget = random.below(count + 2);
            let mut completions = cq.completions();
            for _ in 0..budget.min(arrived) {
                let cqe = completions.next().expect("a CQE has arrived");
                assert_eq!(u32::from(cqe.wqe_counter()), taken & 0xffff);
                taken += 1;
            }
            if budget > arrived {
                assert!(completions.next().is_none(), "a CQE that the device owns");
            }
            drop(completions);
            assert_eq!(device.record.be32(0), taken);
        }
    }
}

#[test]
fn looking_ahead_takes_nothing() {
    for (count, size) in [(1, 64), (4, 128), (8, 64)] {
        let mut device = Producer::new(count, size);
        let mut cq = device.queue();
        for lap in 0..3 * count {
            let arrived = lap % count + 1;
            let first = device.state.producer;
            for counter in first..first + arrived {
                device.push(&Entry::new(op::SEND, counter as u16, 0), Told::Other);
            }
            for budget in 0..count + 2 {
                let mut seen = Vec::new();
                cq.look_ahead(budget, |cqe| seen.push(u32::from(cqe.wqe_counter())));
                let expected: Vec<_> = (first..first + arrived.min(budget)).collect();
                assert_eq!(seen, expected, "{arrived} of {count} arrived, budget {budget}");
            }
            assert_eq!((cq.consumer_index(), device.record.be32(0)), (first, first));
            let mut completions = cq.completions();
            (0..arrived).for_each(|_| assert!(completions.next().is_some()));
            assert!(completions.next().is_none());
        }
    }
}

#[test]
fn purging_any_subset() {
    for (count, size) in [(1, 64), (2, 128), (4, 64), (8, 128)] {
        for (start, arrived) in (0..2 * count).flat_map(|s| (0..=count).map(move |a| (s, a))) {
            for keep in 0u32..1 << arrived {
                let mut device = Producer::new(count, size);
                let mut cq = device.queue();
                for _ in 0..start {
                    device.push(&Entry::new(op::SEND, 0, 0), Told::Other);
                    assert!(cq.completions().next().is_some());
                }
                for i in 0..arrived {
                    device.push(&Entry::new(op::SEND, i as u16, 7 * i), Told::Other);
                }
                let removed = cq.purge(|cqe| keep >> cqe.wqe_counter() & 1 == 0);
                assert_eq!(removed, arrived - keep.count_ones());
                assert_eq!(device.record.be32(0), start + removed);
                let kept: Vec<u32> = (0..arrived).filter(|i| keep >> i & 1 != 0).collect();
                let mut completions = cq.completions();
                for i in kept {
                    let cqe = completions.next().expect("a kept CQE");
                    assert_eq!((u32::from(cqe.wqe_counter()), cqe.byte_count()), (i, 7 * i));
                }
                assert!(completions.next().is_none());
            }
        }
    }
}

/// What a mini CQE has beside the length, as the CQE that was made of it says.
fn extra(format: MiniCqeFormat, cqe: &Cqe<'_>) -> u32 {
    match format {
        MiniCqeFormat::Hash => cqe.rx_hash_result(),
        MiniCqeFormat::Checksum => cqe.check_sum().into(),
    }
}

#[test]
fn blocks_of_every_length_at_every_place() {
    for (count, format) in [(4, MiniCqeFormat::Checksum), (32, MiniCqeFormat::Hash)] {
        for (start, len) in (0..2 * count).flat_map(|s| (2..=count).map(move |n| (s, n))) {
            let mut device = Producer::new(count, 64);
            device.compression = Some(format);
            let mut cq = device.queue();
            for counter in 0..start {
                device.push(&Entry::new(op::REQUESTER, counter as u16, 0), Told::Other);
                assert!(cq.completions().next().is_some());
            }
            let counter = 0xfff0;
            let block: Vec<_> = (0..len).map(|i| (1000 + i, 0x7f00 + i, Told::Other)).collect();
            device.push_block(counter, block);
            let purged = cq.purge(|cqe| cqe.byte_count() % 5 == 0);
            let mut completions = cq.completions();
            for i in (0..len).filter(|i| i % 5 != 0) {
                let cqe = completions.next().expect("a CQE of the block");
                let wqe_counter = counter.wrapping_add(i as u16);
                assert_eq!(
                    (cqe.opcode(), cqe.format()),
                    (CqeOpcode::ResponderSend, CqeFormat::Plain)
                );
                assert_eq!(cqe.op_own() & op::SOLICITED, 0);
                assert_eq!((cqe.wqe_counter(), cqe.byte_count()), (wqe_counter, 1000 + i));
                assert_eq!((cqe.qpn(), extra(format, &cqe)), (0x120, 0x7f00 + i));
                assert_eq!(cqe.imm_inval_pkey(), start);
            }
            assert!(completions.next().is_none());
            drop(completions);
            assert_eq!(purged, len.div_ceil(5));
            assert_eq!(device.record.be32(0), start + len);
            // What the device skipped is not taken for new a lap or two later.
            for lap in 0..3 * count {
                assert!(cq.completions().next().is_none(), "{lap}");
                device.push(&Entry::new(op::REQUESTER, lap as u16, 0), Told::Other);
                let mut completions = cq.completions();
                assert_eq!(completions.next().map(|cqe| cqe.wqe_counter()), Some(lap as u16));
            }
        }
    }
}

#[test]
fn titles_that_cannot_be_true_are_stray() {
    let mut device = Producer::new(8, 64);
    let mut cq = device.queue();
    for (op, len) in
        [(op::SEND, 0), (op::SEND, 1), (op::SEND, 9), (op::SEND, u32::MAX), (op::NO_PACKET, 4)]
    {
        device.push(&Entry::new(op | op::COMPRESSED, 3, len), Told::Stray);
        let mut completions = cq.completions();
        assert_eq!(completions.next().unwrap().format(), CqeFormat::Compressed);
        assert!(!completions.expand(), "{op:#x} {len}");
        assert!(completions.next().is_none());
    }
    // Without compression there are no titles, and CQEs of 128 bytes are not compressed.
    device.compression = None;
    let mut device = Producer { compression: None, ..Producer::new(8, 64) };
    let mut cq = device.queue();
    device.push(&Entry::new(op::SEND | op::COMPRESSED, 3, 4), Told::Stray);
    let mut completions = cq.completions();
    assert!(completions.next().is_some() && !completions.expand());
    let wide = Producer::new(8, 128).queue().with_compression(MiniCqeFormat::Hash);
    assert_eq!(wide.err(), Some(LayoutError::CqeSize));
}

fn duplicates<Q: Subject>() {
    let mut random = Random::new(seed());
    for cqe_size in [64, 128].repeat(8) {
        let mut world = World::<Q>::new(8, 64, 16, cqe_size);
        world.post(5, &mut random);
        world.complete(0, &mut random);
        world.poll(1, [0, 0, 1], &mut random);
        let slot = world.held.first().map(|held| held.slot());
        let Some(slot) = slot else { continue };
        let counter = world.model.device.counter(slot);
        let vacant = world.queue.vacant();
        let never = world.model.device.state.taken as u16 + 1;
        for (op, counter) in [
            (op::SEND, counter),
            (op::SEND_IMM | op::INLINE32, counter),
            (op::RESPONDER_ERROR, counter),
            (op::SEND, never),
            (op::RESPONDER_ERROR, never),
        ] {
            world.model.producer.push(&Entry::new(op, counter, 9), Told::Stray);
            let state = &mut world.model.producer.state;
            let (told, _) = (state.told.pop_front(), state.immediates.pop_front());
            assert_eq!(told, Some(Told::Stray));
            // SAFETY: the only queue on this CQ.
            let mut batch = unsafe { Receiving::new(&mut world.cq, &mut world.queue, 8) };
            assert!(matches!(batch.next(), Some(Completion::Stray(_))), "{op:#x} {counter}");
            assert!(batch.next().is_none());
            drop(batch);
            world.settle(world.cq.consumer_index());
            assert_eq!(world.queue.state(slot), mlx5_ring::slots::HELD);
            assert_eq!(world.queue.vacant(), vacant);
        }
        world.finish(&mut random);
    }
}

#[test]
fn duplicates_are_stray() {
    duplicates::<Rq>();
    duplicates::<Srq>();
}

/// The same, while the batch in which the receives came goes on.
fn duplicates_in_a_batch<Q: Subject>() {
    let mut random = Random::new(seed());
    let ops = [op::SEND_IMM, op::SEND | op::INLINE32, op::RESPONDER_ERROR, op::SEND];
    for (round, cqe_size) in [64, 128].repeat(40).into_iter().enumerate() {
        let mut world = World::<Q>::new(8, 64, 16, cqe_size);
        world.post(6, &mut random);
        let outstanding = &world.model.device.state.outstanding;
        let counters: Vec<_> = outstanding.iter().map(|&s| world.model.device.counter(s)).collect();
        let true_ones = counters.len().min(1 + round % 3);
        (0..true_ones).for_each(|_| world.complete(0, &mut random));
        for (i, &counter) in counters[..true_ones].iter().enumerate() {
            let op = ops[(round + i) % ops.len()];
            let entry = Entry { payload: vec![7; 32], ..Entry::new(op, counter, 9) };
            world.model.producer.push(&entry, Told::Stray);
        }
        world.poll(16, [0, 1, 0], &mut random);
        world.finish(&mut random);
    }
}

#[test]
fn duplicates_in_a_batch_are_stray() {
    duplicates_in_a_batch::<Rq>();
    duplicates_in_a_batch::<Srq>();
}

/// Formats that a CQ does not have, for a receive that is posted.
fn formats<Q: Subject>() {
    let mut random = Random::new(seed());
    let formats = [(64, op::INLINE64), (64, op::COMPRESSED), (128, op::COMPRESSED)];
    for ((cqe_size, format), each) in formats.into_iter().flat_map(|f| [(f, false), (f, true)]) {
        let mut world = World::<Q>::new(8, 64, 4, cqe_size);
        // The last one stands in the last CQE, with another half in front of it; the first one does not.
        for _ in 0..8 {
            while world.model.device.state.outstanding.is_empty() {
                world.post(3, &mut random);
            }
            let slot = world.model.device.state.outstanding[0];
            let counter = world.model.device.counter(slot);
            // Of one CQE no block is made.
            world.model.producer.push(&Entry::new(op::SEND | format, counter, 1), Told::Stray);
            if each {
                world.poll_each(1, [0, 1, 0], &mut random);
            } else {
                world.poll(1, [0, 1, 0], &mut random);
            }
            assert_eq!(Subject::posted(&world.queue, slot), Some(world.queue.data_of(slot)));
        }
        world.finish(&mut random);
    }
}

#[test]
fn formats_that_a_cq_does_not_have_are_stray() {
    formats::<Rq>();
    formats::<Srq>();
}

/// No slot is handed out while it is held, whatever the CQEs say.
fn garbage<Q: Subject>() {
    let mut random = Random::new(seed());
    for round in 0..steps(400) {
        let size = 64 << (round & 1);
        let mut world = World::<Q>::new(8, 32, 8, size);
        world.post(8, &mut random);
        for _ in 0..20 {
            for _ in 0..random.below(world.model.producer.room() + 1) {
                // Inline data would go to addresses of buffers that exist, so it may come too.
                let mut entry = Entry::new(random.next() as u8, random.next() as u16, 0);
                if !random.once_in(4) {
                    entry.counter &= 15;
                }
                entry.bytes = random.next();
                let room = world.model.producer.room();
                let mut block = 1;
                if room == 0 {
                    break;
                } else if entry.op & op::COMPRESSED == op::COMPRESSED {
                    // The title of a block of whatever stands there, or of one that cannot be.
                    entry.bytes = if random.once_in(4) {
                        9 + random.below(9)
                    } else {
                        random.below(room + 1)
                    };
                    let opcode = entry.op >> 4;
                    if size == 64 && (1..=4).contains(&opcode) && (2..=room).contains(&entry.bytes)
                    {
                        block = entry.bytes;
                    }
                }
                entry.payload = if entry.op & 12 == 4 { vec![1; 32] } else { vec![1; 64] };
                let producer = &mut world.model.producer;
                producer.push(&entry, Told::Other);
                producer.state.producer = producer.state.producer.wrapping_add(block - 1);
            }
            let World { queue, cq, held, .. } = &mut world;
            // SAFETY: the only queue; messages are given back once.
            let mut batch = unsafe { Receiving::new(cq, queue, random.below(9)) };
            while let Some(completion) = batch.next() {
                if let Completion::Message(message) | Completion::Failed(message) = completion {
                    let twice = held.iter().any(|held| held.slot() == message.slot());
                    assert!(!twice, "slot {} has two owners", message.slot());
                    held.push(device::world::Held::Message(message));
                }
                if random.once_in(3) && !held.is_empty() {
                    let at = random.below(held.len() as u32) as usize;
                    let device::world::Held::Message(message) = held.swap_remove(at) else {
                        unreachable!()
                    };
                    // SAFETY: as above.
                    unsafe {
                        if random.once_in(2) {
                            batch.recycle(message);
                        } else {
                            batch.take(message);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn garbage_gives_no_slot_two_owners() {
    garbage::<Rq>();
    garbage::<Srq>();
}

/// Whatever stands in the whole queue, with owner bits that make much of it software's.
fn noise<Q: Subject>() {
    let mut random = Random::new(seed());
    for round in 0..steps(600) {
        let (count, size) = (1 << random.below(6), 64 << (round & 1));
        let mut world = World::<Q>::new(8, 32, count, size);
        world.post(8, &mut random);
        let mut held: Vec<u32> = Vec::new();
        for _ in 0..6 {
            let index = world.cq.consumer_index();
            for slot in 0..count {
                let lap = (index & !(count - 1)) + if slot < index % count { count } else { 0 };
                let bytes: Vec<u8> = (0..size).map(|_| random.next() as u8).collect();
                let at = slot as usize * size;
                world.model.producer.cqes.write(at, &bytes);
                // A counter of a posted WQE, an opcode that means something, and the owner of this lap.
                if !random.once_in(3) {
                    let op_own = (random.below(5) as u8) << 4 | random.next() as u8 & 0xe;
                    let cqe = &[0, random.below(9) as u8, 0, op_own | (lap / count % 2) as u8];
                    world.model.producer.cqes.write(at + size - 4, cqe);
                    let length =
                        if random.once_in(2) { random.below(count + 2) } else { random.next() };
                    world.model.producer.cqes.write(at + size - 20, &length.to_be_bytes());
                }
            }
            let World { queue, cq, .. } = &mut world;
            // SAFETY: the only queue; messages are given back once.
            let mut batch = unsafe { Receiving::new(cq, queue, random.below(2 * count + 2)) };
            while let Some(completion) = batch.next() {
                if let Completion::Message(message) | Completion::Failed(message) = completion {
                    assert!(!held.contains(&message.slot()), "slot {} twice", message.slot());
                    if random.once_in(2) {
                        held.push(message.slot());
                    } else {
                        // SAFETY: as above.
                        unsafe { batch.recycle(message) };
                    }
                }
            }
            drop(batch);
            let mut completions = cq.completions();
            for _ in 0..random.below(count + 1) {
                if completions.next().is_some_and(|cqe| cqe.format() == CqeFormat::Compressed) {
                    completions.expand();
                }
            }
            drop(completions);
            cq.purge(|cqe| cqe.wqe_counter() % 2 == 0);
        }
    }
}

#[test]
fn noise_gives_no_slot_two_owners() {
    noise::<Rq>();
    noise::<Srq>();
}

fn panics<Q: Subject>() {
    let mut random = Random::new(1);
    for written in 0..5 {
        let mut world = World::<Q>::new(8, 64, 8, 64);
        let World { queue, model, .. } = &mut world;
        let mut batch = Vec::new();
        for id in 0..5 {
            batch.push((id, model.buffers.shape(id, 1, 7)));
        }
        let result = catch_unwind(AssertUnwindSafe(|| {
            queue.post(&batch, |_, posted| {
                if posted > written {
                    panic!("in the middle of a batch");
                }
            });
        }));
        assert!(result.is_err());
        assert_eq!(model.device.record.be32(0), written + 1);
        for (id, _) in batch.iter().take(written as usize + 1) {
            let owner = model.buffers.owner(*id);
            model.buffers.set_owner(*id, &[owner], device::buffers::Owner::Ring);
        }
        world.settle(0);
        world.finish(&mut random);
    }
}

#[test]
fn a_panic_rings_for_what_was_written() {
    panics::<Rq>();
    panics::<Srq>();
}

fn forgotten<Q: Subject>() {
    let mut random = Random::new(seed());
    let mut world = World::<Q>::new(8, 64, 8, 64);
    let lost = (0..2).map(|id| (id, world.model.buffers.shape(id, 1, 7))).collect::<Vec<_>>();
    world.queue.post_and_forget(&lost);
    assert_eq!(world.model.device.record.be32(0), 0, "the doorbell rang");
    // Some have too many SGEs.
    while world.model.device.state.outstanding.len() < 3 {
        world.post(1, &mut random);
    }
    for _ in 0..3 {
        world.complete(0, &mut random);
    }
    let World { queue, cq, .. } = &mut world;
    // SAFETY: messages of a forgotten batch are not given back.
    let mut batch = unsafe { Receiving::new(cq, queue, 8) };
    assert!(batch.next().is_some());
    assert!(batch.next().is_some());
    mem::forget(batch);
    // `take` checks that no slot is handed over while the device has it.
    for _ in 0..50 {
        let World { queue, cq, model, .. } = &mut world;
        // SAFETY: as above.
        drop(unsafe { Receiving::new(cq, queue, 0) });
        let mut batch = Vec::new();
        if let Some(id) = model.buffers.free(0) {
            model.buffers.set_owner(
                id,
                &[device::buffers::Owner::Test],
                device::buffers::Owner::Ring,
            );
            batch.push((id, model.buffers.shape(id, 1, 7)));
        }
        queue.post(&batch, |_, _| {});
        model.device.take(&mut model.buffers);
        model.device.check_all();
    }
}

#[test]
fn what_is_forgotten_has_one_owner() {
    forgotten::<Rq>();
    forgotten::<Srq>();
}
