use super::*;

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
