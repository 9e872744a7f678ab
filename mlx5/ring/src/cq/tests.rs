//! Completion queues: ownership over many laps, purging, and compressed blocks.

use std::vec::Vec;

use mlx5_wire::cqe::{CqeFormat, SOLICITED_EVENT};
use mlx5_wire::mini_cqe::MiniCqeFormat;
use mlx5_wire::opcode::CqeOpcode::{self, *};

use super::{CompletionQueue, LayoutError};
use crate::completion::Cqe;
use crate::testing::{Arena, CqDevice, CqeSpec, Random, seed};

impl CompletionQueue {
    /// As if `by` more CQEs, which is a multiple of two laps, had been taken.
    pub fn shift(&mut self, by: u32) {
        self.consumer_index = self.consumer_index.wrapping_add(by);
        self.published = self.published.wrapping_add(by);
    }
}

/// A batch: the consumer index is published when it ends.
struct Completions<'a>(&'a mut CompletionQueue);

impl Completions<'_> {
    fn next(&mut self) -> Option<Cqe<'_>> {
        self.0.next()
    }
}

impl Drop for Completions<'_> {
    fn drop(&mut self) {
        self.0.publish();
    }
}

/// Software's side, the device's side, and the memory between them.
fn pair(count: u32, size: usize) -> (CompletionQueue, CqDevice, Arena) {
    let mut arena = Arena::default();
    let device = CqDevice::new(&mut arena, count, size);
    (device.queue(), device, arena)
}

/// Lets `count` CQEs go through.
fn pass(cq: &mut CompletionQueue, device: &mut CqDevice, count: u32) {
    for index in 0..count {
        assert!(cq.next().is_none(), "a CQE that the device owns");
        device.write(&CqeSpec::new(Requester, index as u16));
        let mut completions = Completions(cq);
        assert_eq!(completions.next().map(|cqe| cqe.wqe_counter()), Some(index as u16));
    }
}

#[test]
fn ownership_over_many_laps() {
    let mut random = Random::new(seed());
    for (count, size) in (0..5).flat_map(|i| [(1 << i, 64), (1 << i, 128)]) {
        let (mut cq, mut device, _arena) = pair(count, size);
        let (mut taken, mut stop) = (0, 0);
        while taken < 40 * count {
            if random.once_in(2) {
                let ahead = random.below(count + 2);
                cq.stop_after(ahead);
                // The last CQE of a lap is never before the stop.
                stop = (taken + ahead).min(taken - taken % count + count - 1);
            }
            for _ in 0..random.below(device.room() + 1) {
                let ops = [ResponderSend, Requester, ResponderError, Unknown(11)];
                device.write(&CqeSpec::new(random.pick(&ops), device.producer_index as u16));
            }
            let arrived = device.producer_index - taken;
            assert_eq!(cq.is_empty(), arrived == 0);
            let budget = random.below(count + 2);
            let mut completions = Completions(&mut cq);
            for _ in 0..budget.min(arrived) {
                assert_eq!(completions.0.is_at_stop(), taken >= stop);
                let counter = if completions.0.is_at_stop() || random.once_in(2) {
                    completions.next().map(|cqe| cqe.wqe_counter())
                } else {
                    let counter = completions.0.peek().map(|cqe| cqe.wqe_counter());
                    // SAFETY: it is not at its stop.
                    unsafe { completions.0.advance_before_stop() }
                    counter
                };
                assert_eq!(counter.map(u32::from), Some(taken & 0xffff));
                taken += 1;
                if taken % count == 0 {
                    stop = taken;
                }
            }
            if budget > arrived {
                assert!(completions.next().is_none(), "a CQE that the device owns");
            }
            if random.once_in(4) {
                core::mem::forget(completions);
            } else {
                drop(completions);
                assert_eq!(device.record(), taken);
            }
        }
    }
}

#[test]
fn verifying_ahead_takes_nothing() {
    for (count, size) in [(1, 64), (4, 128), (8, 64)] {
        let (mut cq, mut device, _arena) = pair(count, size);
        for lap in 0..3 * count {
            let (arrived, first) = (lap % count + 1, device.producer_index);
            for counter in first..first + arrived {
                device.write(&CqeSpec::new(ResponderSend, counter as u16));
            }
            for budget in 0..count + 2 {
                let seen = cq.verify_ahead(budget, |_, _| {});
                assert_eq!(seen, arrived.min(budget), "{arrived} of {count}, budget {budget}");
            }
            assert_eq!((cq.consumer_index(), device.record()), (first, first));
            let mut completions = Completions(&mut cq);
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
                let (mut cq, mut device, _arena) = pair(count, size);
                pass(&mut cq, &mut device, start);
                for i in 0..arrived {
                    device.write(&CqeSpec { byte_count: 7 * i, ..CqeSpec::new(ResponderSend, i as u16) });
                }
                let removed = cq.purge(|cqe| keep >> cqe.wqe_counter() & 1 == 0);
                assert_eq!(removed, arrived - keep.count_ones());
                assert_eq!(device.record(), start + removed);
                let mut completions = Completions(&mut cq);
                for i in (0..arrived).filter(|i| keep >> i & 1 != 0) {
                    let cqe = completions.next().expect("a kept CQE");
                    assert_eq!((u32::from(cqe.wqe_counter()), cqe.byte_count()), (i, 7 * i));
                }
                assert!(completions.next().is_none());
            }
        }
    }
}

/// Returns the field that a mini CQE has beside the length, from the CQE that was made of the mini CQE.
fn extra(format: MiniCqeFormat, cqe: &Cqe<'_>) -> u32 {
    match format {
        MiniCqeFormat::Hash => cqe.rx_hash_result(),
        MiniCqeFormat::Checksum => u32::from(cqe.check_sum()) << 16,
    }
}

#[test]
fn blocks_of_every_length_at_every_place() {
    for (count, format) in [(4, MiniCqeFormat::Checksum), (32, MiniCqeFormat::Hash)] {
        for (start, len) in (0..2 * count).flat_map(|s| (2..=count).map(move |n| (s, n))) {
            let (cq, mut device, _arena) = pair(count, 64);
            let mut cq = cq.with_compression(format).unwrap();
            pass(&mut cq, &mut device, start);
            let counter = 0xfff0;
            let mini = |i| (u64::from(0x7f00 + i) << 48 | u64::from(1000 + i)).to_be_bytes();
            let minis: Vec<_> = (0..len).map(mini).collect();
            device.write_block(&CqeSpec::new(ResponderSend, counter), &minis);
            let purged = if start % 2 == 0 { cq.purge(|cqe| cqe.byte_count() % 5 == 0) } else { 0 };
            let mut completions = Completions(&mut cq);
            for i in (0..len).filter(|i| start % 2 == 1 || i % 5 != 0) {
                let cqe = completions.next().expect("a CQE of the block");
                assert_eq!((cqe.opcode(), cqe.format()), (ResponderSend, CqeFormat::Plain));
                assert_eq!(cqe.op_own() & SOLICITED_EVENT, 0);
                assert_eq!(cqe.wqe_counter(), counter.wrapping_add(i as u16));
                assert_eq!((cqe.byte_count(), extra(format, &cqe)), (1000 + i, (0x7f00 + i) << 16));
                assert_eq!((cqe.qpn(), cqe.imm_inval_pkey()), (0x77, !start));
            }
            assert!(completions.next().is_none());
            drop(completions);
            assert_eq!(purged, if start % 2 == 0 { len.div_ceil(5) } else { 0 });
            assert_eq!(device.record(), start + len);
            // The entries that the device skipped are not taken for new CQEs a lap or two later.
            pass(&mut cq, &mut device, 3 * count);
        }
    }
}

#[test]
fn titles_that_cannot_be_true_are_no_blocks() {
    let title = |opcode: CqeOpcode, byte_count| {
        let format = CqeFormat::Compressed;
        CqeSpec { format, byte_count, ..CqeSpec::new(opcode, 3) }
    };
    let (plain, mut device, _arena) = pair(8, 64);
    let mut cq = plain.clone().with_compression(MiniCqeFormat::Hash).unwrap();
    let mut impossible = |cq: &mut CompletionQueue, spec: CqeSpec| {
        device.write(&spec);
        let mut completions = Completions(cq);
        assert_eq!(completions.next().unwrap().format(), CqeFormat::Compressed, "{spec:?}");
        assert!(completions.next().is_none());
    };
    for (opcode, len) in
        [(ResponderSend, 0), (ResponderSend, 1), (ResponderSend, 9), (ResponderSend, u32::MAX), (NoPacket, 4)]
    {
        impossible(&mut cq, title(opcode, len));
    }
    // A block is not longer than the part of the ring that was not given back.
    let (cq, mut device, _arena) = pair(8, 64);
    let mut cq = cq.with_compression(MiniCqeFormat::Hash).unwrap();
    for spec in [CqeSpec::new(Requester, 0), title(ResponderSend, 8)] {
        device.write(&spec);
        assert_eq!(cq.next().map(|cqe| cqe.format()), Some(spec.format));
    }
    // Without compression there are no titles, and CQEs of 128 bytes are not compressed.
    let (mut cq, mut device, _arena) = pair(8, 64);
    device.write(&title(ResponderSend, 4));
    assert_eq!(cq.next().map(|cqe| cqe.format()), Some(CqeFormat::Compressed));
    let (wide, _, _arena) = pair(8, 128);
    assert_eq!(wide.with_compression(MiniCqeFormat::Hash).err(), Some(LayoutError::CqeSize));
}
