//! Messages that are taken one at a time: what is given back to the device, and when.

use std::time::Duration;

use doorbell::{AsyncEvent, Completions, CqConfig, Path, WcStatus};
use doorbell_stepped_tests::{Stepped, on_each_path};
use fastrand::Rng;

on_each_path! {
    a_program_that_takes_one_message_and_polls_no_more
    what_was_taken_is_given_back_before_arming
    what_was_taken_is_given_back_before_sleeping
    what_was_taken_is_given_back_when_nothing_has_arrived
    a_full_queue_and_a_cq_of_its_size
}
// Through verbs each call gives back what was taken before.
on_each_path!(direct_only, Direct, what_was_taken_is_given_back_after_a_quarter_of_the_queue);

/// Receives of the queue, and entries of its CQ.
const RECEIVES: u32 = 16;
/// Messages after which their receives are given back, if messages arrive all the time.
const DUE: u32 = RECEIVES / 4;

/// A connection with a full queue, on a CQ without room for more.
fn full(path: Path) -> Stepped {
    Stepped::with(CqConfig::new(RECEIVES).path(path), RECEIVES)
}

/// Sends messages, as long as the device has receives for them; returns how many it had.
fn fill(s: &mut Stepped) -> u32 {
    // A message without a receive is repeated, and arrives later.
    for number in 0_u8.. {
        s.far.send_inline(&[number], None).unwrap();
        s.device.settle();
        let Some(done) = s.far.poll_send() else { return number.into() };
        assert_eq!(done.status, WcStatus::SUCCESS);
    }
    unreachable!("a device with receives without end")
}

/// Sends messages for all receives and one more, and takes so many of them.
fn take(s: &mut Stepped, count: u32) {
    assert_eq!(fill(s), RECEIVES);
    for number in 0..count as u8 {
        assert_eq!(s.receiver.next().expect("it has arrived").unwrap()[..], [number]);
    }
}

/// Returns how many receives the device has got since it had none, and had a message for one.
fn given(s: &mut Stepped) -> u32 {
    // The message waits for a receive, and then for its time.
    s.device.advance(Duration::from_secs(1));
    s.device.settle();
    match s.far.poll_send() {
        Some(done) => assert_eq!(done.status, WcStatus::SUCCESS),
        None => return 0,
    }
    1 + fill(s)
}

fn a_program_that_takes_one_message_and_polls_no_more(path: Path) {
    let mut s = full(path);
    s.send_bytes(b"one");
    s.device.settle();
    assert_eq!(s.receiver.next().expect("it has arrived").unwrap()[..], *b"one");
    assert_eq!(s.far.poll_send().unwrap().status, WcStatus::SUCCESS);
    assert_eq!(fill(&mut s), RECEIVES - 1);
    let Stepped { receiver, near, far, pool, device, .. } = s;
    let count = pool.count() as usize;
    assert_eq!(pool.available(), count - RECEIVES as usize);
    drop((receiver, near, far));
    device.settle();
    assert_eq!(pool.available(), count);
}

fn what_was_taken_is_given_back_before_arming(path: Path) {
    let mut s = full(path);
    take(&mut s, DUE - 1);
    assert!(s.receiver.arm().unwrap(), "the others have arrived");
    assert_eq!(given(&mut s), DUE - 1);
}

fn what_was_taken_is_given_back_before_sleeping(path: Path) {
    let mut s = full(path);
    take(&mut s, DUE - 1);
    assert!(s.receiver.has_completions());
    assert_eq!(given(&mut s), DUE - 1);
}

fn what_was_taken_is_given_back_when_nothing_has_arrived(path: Path) {
    let mut s = full(path);
    // Fewer than are due while messages arrive.
    for number in 1..DUE as u8 {
        s.send_bytes(&[number]);
        s.device.settle();
    }
    for number in 1..DUE as u8 {
        assert_eq!(s.receiver.next().expect("it has arrived").unwrap()[..], [number]);
    }
    assert!(s.receiver.next().is_none());
    while s.far.poll_send().is_some() {}
    assert_eq!(fill(&mut s), RECEIVES);
}

fn what_was_taken_is_given_back_after_a_quarter_of_the_queue(path: Path) {
    let mut s = full(path);
    take(&mut s, DUE);
    assert_eq!(given(&mut s), 0);
    assert_eq!(s.receiver.next().expect("it has arrived").unwrap()[..], [DUE as u8]);
    assert_eq!(given(&mut s), DUE);
}

/// All orders of arriving and taking of which a generator thinks. The device reports a CQ that overruns.
fn a_full_queue_and_a_cq_of_its_size(path: Path) {
    for receives in [4, 8, 16, 64] {
        let mut s = Stepped::with(CqConfig::new(receives).path(path), receives);
        let mut events = s.pd.context().events().unwrap();
        let mut random = Rng::with_seed(receives.into());
        let (mut sent, mut taken) = (0_u64, 0_u64);
        while taken < 1000 {
            for _ in 0..random.u32(0..=receives) {
                // Else a message is repeated, and the time of this test is that of the peer.
                if sent - taken < u64::from(receives) {
                    s.far.send_inline(&[sent as u8], None).unwrap();
                    sent += 1;
                }
            }
            s.device.settle();
            while let Some(done) = s.far.poll_send() {
                assert_eq!(done.status, WcStatus::SUCCESS);
            }
            for _ in 0..random.u32(0..=receives + 1) {
                s.device.settle();
                let Some(message) = s.receiver.next() else { break };
                assert_eq!(message.unwrap()[..], [taken as u8]);
                taken += 1;
            }
            s.device.advance(Duration::from_millis(700));
        }
        while let Some(event) = events.try_next().unwrap() {
            assert!(!matches!(event, AsyncEvent::CqError { .. }), "{event:?}");
        }
    }
}
