use super::*;
use crate::fabric::rng::Rng;

fn append(list: &mut TagList, next: u16, tag: u64, mask: u64) -> Result<u16, BadIndex> {
    list.append(next, tag, mask, ScatterList::default())
}

#[test]
fn an_append_uses_the_entry_that_the_one_before_announced() {
    let mut list = TagList::new(3);
    assert_eq!(append(&mut list, 2, 7, !0), Ok(0));
    assert_eq!(append(&mut list, 1, 7, !0), Ok(2));
    assert_eq!(append(&mut list, 3, 7, !0), Ok(1));
    assert_eq!(append(&mut list, 4, 7, !0), Err(BadIndex), "no such entry");
    assert_eq!(append(&mut list, 3, 7, !0), Err(BadIndex), "the entry itself");
    assert_eq!(append(&mut list, 0, 7, !0), Err(BadIndex), "an entry in use");
    assert_eq!(list.remove(0), Ok(true));
    assert_eq!(append(&mut list, 0, 7, !0), Ok(3));
    assert_eq!(list.remove(0), Err(BadIndex), "removed already");
    assert_eq!(list.remove(4), Err(BadIndex), "no such entry");
    assert_eq!([list.take(7), list.take(7), list.take(7), list.take(7)], [Some(2), Some(1), Some(3), None]);
}

#[test]
fn a_matched_entry_is_not_free_before_its_last_completion() {
    let mut list = TagList::new(1);
    assert_eq!(append(&mut list, 1, 7, !0), Ok(0));
    assert_eq!(list.take(7), Some(0));
    assert_eq!(list.remove(0), Ok(false));
    assert_eq!(append(&mut list, 0, 7, !0), Err(BadIndex));
    list.release(0);
    assert_eq!(append(&mut list, 0, 7, !0), Ok(1));
}

#[test]
fn tags_posted_out_of_phase_wait_for_software() {
    let mut list = TagList::new(8);
    assert_eq!(append(&mut list, 1, 1, !0), Ok(0));
    list.count_unexpected();
    assert_eq!(append(&mut list, 2, 2, !0), Ok(1));
    assert_eq!(list.find(2), None);
    assert_eq!(list.find(1), Some(0), "posted while the counters agreed");
    assert!(list.synchronize(0));
    assert_eq!(list.find(2), None);
    assert!(!list.synchronize(2), "more than there were");
    assert_eq!(list.find(2), None);
    assert!(list.synchronize(1));
    assert_eq!(list.find(2), Some(1));
}

#[test]
fn software_does_not_take_back_what_it_has_handled() {
    let mut list = TagList::new(8);
    (0..3).for_each(|_| list.count_unexpected());
    assert!(list.synchronize(2) && list.synchronize(2));
    assert!(!list.synchronize(1));
}

#[test]
fn an_entry_that_was_never_appended_cannot_be_removed() {
    let mut list = TagList::new(3);
    assert_eq!(list.remove(0), Err(BadIndex));
    assert_eq!(append(&mut list, 1, 7, !0), Ok(0));
    assert_eq!(list.take(7), Some(0));
    list.release(0);
    assert_eq!(list.remove(0), Ok(false), "software may not know of the message yet");
    assert_eq!(list.remove(2), Err(BadIndex));
}

#[test]
fn phases_wrap_at_16_bits() {
    let mut list = TagList::new(8);
    for count in 1..=70_000u32 {
        list.count_unexpected();
        assert!(list.synchronize(count as u16), "{count}");
    }
    assert!(append(&mut list, 1, 1, !0).is_ok());
    assert_eq!(list.take(1), Some(0));
}

/// The list as a program sees it: a plain vector walked in order, and counters without wrap.
#[derive(Default)]
struct Model {
    posted: Vec<(u16, u64, u64, bool)>,
    in_use: Vec<u16>,
    /// Entries whose message has come, and which were not appended since.
    ended: Vec<u16>,
    unexpected: u64,
    handled: u64,
    next: u16,
}

#[test]
fn a_plain_list_walked_in_order_gives_the_same_matches() {
    const TAGS: u16 = 15;
    let mut rng = Rng::new(4);
    let mut list = TagList::new(TAGS);
    let mut model = Model::default();
    let (mut matched, mut missed, mut full, mut held_back) = (0, 0, 0, 0);
    for _ in 0..1_000_000 {
        match rng.below(8) {
            0..=2 => {
                let used = |n: &u16| *n == model.next || model.in_use.contains(n);
                let free: Vec<u16> = (0..=TAGS).filter(|n| !used(n)).collect();
                if free.is_empty() {
                    full += 1;
                    continue;
                }
                let next = free[rng.below(free.len() as u64) as usize];
                let mask = [!0, 0b1100, 0][rng.below(3) as usize];
                let tag = rng.below(16);
                assert_eq!(append(&mut list, next, tag, mask), Ok(model.next));
                let enabled = model.unexpected == model.handled;
                model.posted.push((model.next, tag, mask, enabled));
                model.in_use.push(model.next);
                model.ended.retain(|n| *n != model.next);
                model.next = next;
            }
            3 => {
                let index = rng.below(u64::from(TAGS) + 1) as u16;
                let found = model.posted.iter().position(|entry| entry.0 == index);
                let known = model.in_use.contains(&index) || model.ended.contains(&index);
                let expected = if known { Ok(found.is_some()) } else { Err(BadIndex) };
                assert_eq!(list.remove(index), expected);
                if let Some(at) = found {
                    model.posted.remove(at);
                    model.in_use.retain(|n| *n != index);
                }
            }
            4..=5 => {
                let tag = rng.below(16);
                let hit = |(_, wanted, mask, enabled): &(u16, u64, u64, bool)| *enabled && wanted & mask == tag & mask;
                let expected = model.posted.iter().position(hit);
                held_back += u32::from(expected.is_none() && model.posted.iter().any(|e| e.1 & e.2 == tag & e.2));
                let expected = expected.map(|at| model.posted.remove(at).0);
                assert_eq!(list.find(tag), expected);
                assert_eq!(list.take(tag), expected);
                if expected.is_none() {
                    list.count_unexpected();
                    model.unexpected += 1;
                    missed += 1;
                } else {
                    matched += 1;
                }
            }
            6 => {
                let busy = |n: &&u16| !model.posted.iter().any(|entry| entry.0 == **n);
                let done = model.in_use.iter().find(busy).copied();
                if let Some(done) = done {
                    list.release(done);
                    model.in_use.retain(|n| *n != done);
                    model.ended.push(done);
                }
            }
            _ => {
                let outstanding = model.unexpected - model.handled;
                model.handled += rng.below(outstanding + 1);
                assert!(list.synchronize(model.handled as u16));
                if model.handled == model.unexpected {
                    model.posted.iter_mut().for_each(|entry| entry.3 = true);
                }
            }
        }
        assert_eq!(list.hw_phase(), model.unexpected as u16);
    }
    assert!(matched > 50_000 && missed > 50_000, "{matched} {missed}");
    assert!(full > 1000 && held_back > 1000, "{full} {held_back}");
}
