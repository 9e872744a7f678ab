//! Messages that are taken one at a time: what is given back to the device, and when.

use std::time::Duration;

use doorbell::{
    BufferPool, Completions, CqConfig, DataPath, DeviceEvent, DeviceEvents, PoolConfig, QueuePair, Receiver, RqConfig,
    WcStatus,
};
use doorbell_stepped_tests::sending_qp::SendingQp;
use doorbell_stepped_tests::{Stepped, on_each_path, open};
use fastrand::Rng;
use soft_mlx5::Device;

on_each_path! {
    a_program_that_takes_one_message_and_polls_no_more
    a_program_with_two_queues_takes_one_message_and_polls_no_more
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
/// Bytes of a message that the device does not put into the CQE.
const LONG: usize = 64;

/// A connection with a full queue, on a CQ without room for more.
fn full(path: DataPath) -> Stepped {
    Stepped::with(CqConfig::new(RECEIVES).path(path), RECEIVES)
}

/// Sends the messages 0, 1 and so on, as long as the device has receives for them; returns how many it had.
fn fill(s: &mut Stepped) -> u32 {
    send_from::<1>(0, &mut s.far, &s.device)
}

/// Sends the messages `first` and so on, of `BYTES` bytes each, as long as the device has receives for them; returns
/// how many it had.
fn send_from<const BYTES: usize>(first: u8, far: &mut SendingQp, device: &Device) -> u32 {
    // A message without a receive is repeated, and arrives later.
    for number in first..=u8::MAX {
        far.send_inline(&[number; BYTES], None).unwrap();
        device.settle();
        let Some(done) = far.poll_send() else { return (number - first).into() };
        assert_eq!(done.status, WcStatus::SUCCESS);
    }
    unreachable!("a device with receives without end")
}

fn expect_no_overrun(events: &mut DeviceEvents) {
    while let Some(event) = events.try_next().unwrap() {
        assert!(!matches!(event, DeviceEvent::CqError { .. }), "{event:?}");
    }
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

fn a_program_that_takes_one_message_and_polls_no_more(path: DataPath) {
    let Stepped { receiver, near, far, pool, device, .. } = full(path);
    take_one_and_end(receiver, vec![(near, far, RECEIVES)], &pool, &device);
}

/// Together both queues have as many receives as the CQ has entries.
fn a_program_with_two_queues_takes_one_message_and_polls_no_more(path: DataPath) {
    let config = CqConfig::new(RECEIVES).path(path);
    let mut s = Stepped::empty(open(Device::builder().stepped()), &config, RECEIVES - 1, true);
    // A queue of WQEs with a single SGE has four receives at least.
    let (other, other_far) = s.connect(RqConfig::new(1).max_sge(4));
    let rq = other.receive_queue().unwrap();
    let pool = BufferPool::new(&s.pd, &PoolConfig::new(RECEIVES + 1, 64)).unwrap();
    let Stepped { mut receiver, near, far, queue, device, .. } = s;
    receiver.fill(queue, &pool).unwrap();
    receiver.fill(rq, &pool).unwrap();
    let connections = vec![(near, far, RECEIVES - 1), (other, other_far, 1)];
    for (queue, &(.., receives)) in [queue, rq.into()].into_iter().zip(&connections) {
        assert_eq!(receiver.capacity(queue), receives);
        assert_eq!(receiver.free_slots(queue), 0);
    }
    assert_eq!(receiver.cq_capacity(), RECEIVES);
    take_one_and_end(receiver, connections, &pool, &device);
}

/// Takes one message of the first connection, and polls no more: all receives but one stay with the device. Then ends
/// the program. Each connection has as many receives as the number beside it, and no other buffers are in use.
fn take_one_and_end(
    mut receiver: Receiver,
    mut connections: Vec<(QueuePair, SendingQp, u32)>,
    pool: &BufferPool,
    device: &Device,
) {
    let mut events = receiver.pd().context().events().unwrap();
    let far = &mut connections[0].1;
    far.send_inline(&[1; LONG], None).unwrap();
    device.settle();
    assert_eq!(receiver.next().expect("it has arrived").unwrap()[..], [1; LONG]);
    assert_eq!(far.poll_send().unwrap().status, WcStatus::SUCCESS);
    let mut arrived = 1;
    for (_, far, receives) in &mut connections {
        // The receive of the message that was taken is not given back.
        let first = arrived + 1;
        arrived += send_from::<LONG>(first as u8, far, device);
        let taken = u32::from(first == 2);
        assert_eq!(arrived + 1 - first, *receives - taken);
    }
    expect_no_overrun(&mut events);
    let in_use: u32 = connections.iter().map(|&(.., receives)| receives).sum();
    assert_eq!(arrived, in_use);
    assert!(pool.available() <= (pool.count() - in_use) as usize);

    drop((receiver, connections));
    device.settle();
    assert_eq!(pool.available(), pool.count() as usize);
    // The device has written the messages, each to a buffer of its own. A new buffer has zeros.
    let mut buffers: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
    buffers.iter_mut().for_each(|buffer| buffer.set_len(1));
    let mut messages: Vec<_> = buffers.iter().map(|buffer| u32::from(buffer[0])).filter(|&byte| byte != 0).collect();
    messages.sort_unstable();
    assert_eq!(messages, Vec::from_iter(1..=arrived));
}

fn what_was_taken_is_given_back_before_arming(path: DataPath) {
    let mut s = full(path);
    take(&mut s, DUE - 1);
    assert!(s.receiver.arm().unwrap(), "the others have arrived");
    assert_eq!(given(&mut s), DUE - 1);
}

fn what_was_taken_is_given_back_before_sleeping(path: DataPath) {
    let mut s = full(path);
    take(&mut s, DUE - 1);
    assert!(s.receiver.has_completions());
    assert_eq!(given(&mut s), DUE - 1);
}

fn what_was_taken_is_given_back_when_nothing_has_arrived(path: DataPath) {
    let mut s = full(path);
    // The first call does the work that is due.
    assert!(s.receiver.next().is_none());
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

fn what_was_taken_is_given_back_after_a_quarter_of_the_queue(path: DataPath) {
    let mut s = full(path);
    take(&mut s, DUE);
    assert_eq!(given(&mut s), 0);
    assert_eq!(s.receiver.next().expect("it has arrived").unwrap()[..], [DUE as u8]);
    assert_eq!(given(&mut s), DUE);
}

/// All orders of arriving and taking of which a generator thinks. The device reports a CQ that overruns.
fn a_full_queue_and_a_cq_of_its_size(path: DataPath) {
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
        expect_no_overrun(&mut events);
    }
}
