//! Random operations against a plain list walked in order.

use std::collections::BTreeSet;

use super::*;
use crate::base::rng::Rng;
use crate::objects::strict::Rule;

/// Expected result of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Eager(u16, usize),
    Long(u16, usize),
    Read(u16, usize),
    Unexpected,
    NoTag,
}

#[test]
fn every_message_goes_where_a_plain_list_says() {
    const TAGS: u16 = 31;
    const ROOM: usize = 2048;
    let mut rng = Rng::new(11);
    let mut world = World::new(&Shape { tags: TAGS, ..PLAIN });
    // Entry, tag, mask, whether it may match.
    let mut posted: Vec<(u16, u64, u64, bool)> = Vec::new();
    // Appended, and not removed since.
    let mut known = BTreeSet::new();
    let (mut unexpected, mut handled) = (0u32, 0u32);
    let mut fates = [0u32; 5];
    let (mut removed, mut late) = (0, 0);
    let data = pattern(5, ROOM);
    world.memory.set(SOURCE + (1 << 19), &data);
    let data_at = world.memory.addr() + (SOURCE + (1 << 19)) as u64;
    let fin = DataSegment::new(world.memory.addr() + SOURCE as u64 + (1 << 19) + 4096, 64, world.key);
    for round in 0..30_000u64 {
        match rng.below(10) {
            0..=3 if !world.free.is_empty() => {
                let at = usize::from(world.entry) * ROOM;
                let (tag, mask) = (rng.below(8), [ALL, 0b100, 0][rng.below(3) as usize]);
                let entry = world.append(tag, mask, at, ROOM as u32);
                let cqe = world.expect(AppOp::APPEND, entry);
                assert_eq!(result(&cqe).hw_phase_cnt.get(), unexpected as u16);
                posted.push((entry, tag, mask, unexpected == handled));
                known.insert(entry);
            }
            4 => {
                let entry = rng.below(u64::from(TAGS) + 1) as u16;
                if !known.contains(&entry) {
                    continue;
                }
                let found = posted.iter().position(|entry_of| entry_of.0 == entry);
                assert_eq!(world.remove(entry), found.is_some());
                if let Some(at) = found {
                    posted.remove(at);
                    known.remove(&entry);
                    world.free.push_back(entry);
                    removed += 1;
                } else {
                    late += 1;
                }
            }
            5 => {
                handled += rng.below(u64::from(unexpected - handled) + 1) as u32;
                world.synchronize(handled as u16);
                world.expect(AppOp::NOOP, 0);
                if handled == unexpected {
                    posted.iter_mut().for_each(|entry| entry.3 = true);
                }
            }
            _ => {
                let tag = rng.below(8);
                let kind = rng.below(8);
                let hit = posted.iter().position(|e| e.3 && (e.1 ^ tag) & e.2 == 0);
                let len = rng.below(if kind < 4 { 200 } else { 400 }) as usize;
                let bytes = match kind {
                    0 => message(TmhOpcode::NoTag, round as u32, tag, &pattern(round, len)),
                    1..=2 => {
                        world.sender.post_receive(&[fin]);
                        let rvh = read_me(data_at, world.key, len as u32);
                        message(TmhOpcode::Rendezvous, round as u32, tag, &rvh)
                    }
                    _ => message(TmhOpcode::Eager, round as u32, tag, &pattern(round, len)),
                };
                let taken = if kind == 0 { None } else { hit.map(|at| posted.remove(at).0) };
                let fate = match (taken, kind) {
                    (None, 0) => Fate::NoTag,
                    (None, _) => Fate::Unexpected,
                    (Some(entry), 1..=2) => Fate::Read(entry, len),
                    (Some(entry), _) if bytes.len() > MTU => Fate::Long(entry, len),
                    (Some(entry), _) => Fate::Eager(entry, len),
                };
                world.send(&bytes);
                world.device.finish();
                assert_eq!(world.send_cq.drain().len(), 1);
                let matched = check(&mut world, fate, &bytes, &data, round);
                fates[matched.0] += 1;
                unexpected += u32::from(fate == Fate::Unexpected);
                world.free.extend(matched.1);
                let reported = usize::from(matches!(fate, Fate::Read(..)));
                assert_eq!(world.fin_cq.drain().len(), reported);
                if kind == 1 || kind == 2 {
                    // A receive without a FIN is left for the next message.
                    world.sender.received -= u16::from(reported == 0);
                }
            }
        }
        world.cq.expect_nothing();
        while world.slots.len() < 40 {
            world.post_slot();
        }
    }
    assert!(fates.iter().all(|count| *count > 300), "{fates:?}");
    assert!(removed > 100 && late > 100, "{removed} {late}");
    for rule in [Rule::TagIndex, Rule::TagOperation, Rule::TagPhase, Rule::SrqSlotTwice] {
        assert_eq!(world.device.nic.violations(rule), 0, "{rule:?}");
    }
}

/// Checks the completions and bytes of a message; returns the kind of its fate and the entry that is
/// free again.
fn check(world: &mut World, fate: Fate, bytes: &[u8], data: &[u8], round: u64) -> (usize, Option<u16>) {
    const ROOM: usize = 2048;
    let (kind, entry, len, first) = match fate {
        Fate::NoTag => {
            assert_eq!(world.expect_slot(AppOp::NO_TAG), bytes);
            return (0, None);
        }
        Fate::Unexpected => {
            assert_eq!(world.expect_slot(AppOp::UNEXPECTED), bytes);
            return (1, None);
        }
        Fate::Eager(entry, len) => (2, entry, len, AppOp::CONSUMED_MSG),
        Fate::Long(entry, len) => (3, entry, len, AppOp::CONSUMED),
        Fate::Read(entry, len) => (4, entry, len, AppOp::CONSUMED),
    };
    let mut cqe = world.expect(first, entry);
    assert_eq!(cqe.to_bytes()[..16], bytes[..16]);
    if first == AppOp::CONSUMED {
        cqe = world.expect(AppOp::EXPECTED, entry);
    }
    assert_eq!(cqe.byte_cnt.get() as usize, len, "round {round}");
    let wanted = if kind == 4 { &data[..len] } else { &bytes[16..] };
    assert_eq!(world.tagged(usize::from(entry) * ROOM, len), wanted);
    (kind, Some(entry))
}
