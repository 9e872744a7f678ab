//! Queue pairs that are reset and used again.

use doorbell::{Cause, DeviceEvent, Error, QpConfig, QpState, QueuePair, RqConfig, WcStatus};
use doorbell_tests::peers::known_state;
use doorbell_tests::world::{Shared, Single};
use doorbell_tests::{assert_matches, device, message, receiving};
use rdma_core_sys as sys;

#[test]
fn a_queue_pair_with_a_receive_queue_is_used_again() {
    let mut w = Single::new(16, 64);
    let mut next = 0;
    for round in 0..20 {
        w.fill();
        // In some rounds nothing arrives, in some the messages are not polled.
        let (sent, looked_at) = [(0, 0), (5, 5), (7, 3), (16, 0)][round % 4];
        w.peers.arrive(sent);
        receiving::messages(&mut w.receiver, looked_at, |message| {
            assert_eq!(message::read(&message), (0, next));
            next += 1;
        });
        next = w.peers.sent(0);

        w.receiver.reset_qp(&mut w.near[0]).unwrap();
        assert_eq!(w.near[0].state().unwrap(), QpState::Init);
        assert_eq!(w.pool.available(), w.pool.count() as usize, "round {round}");
        assert_eq!(w.receiver.free_slots(w.queue), w.receiver.capacity(w.queue));
        receiving::nothing(&mut w.receiver);

        w.reconnect(0);
    }
}

#[test]
fn a_reset_on_an_srq_recycles_any_number_of_unpolled_messages() {
    let mut w = Shared::new(255, 1, 64);
    let capacity = w.fill();
    w.peers.arrive(200);
    w.receiver.reset_qp(&mut w.near[0]).unwrap();
    assert_eq!(w.free_slots(), 0);
    w.reconnect(0);
    // Each receive is with the device again.
    w.peers.arrive(capacity);
    receiving::messages(&mut w.receiver, capacity, |_| ());
    let next = w.peers.sent(0);
    for number in next..next + 2 * capacity as u64 {
        w.peers.send(0, 40);
        receiving::messages(&mut w.receiver, 1, |message| {
            assert_eq!(message::read(&message), (0, number));
        });
    }
}

#[test]
fn a_reset_on_an_srq_drops_the_messages_of_that_queue_pair_only() {
    // The peers count on every receive.
    let mut w = Shared::without_patience(15, 1, 3, 64);
    let capacity = w.fill();
    let mut expected = [0; 3];
    for round in 0..30 {
        let victim = round % 3;
        for i in 0..capacity {
            w.peers.send(i % 3, 40);
        }
        w.peers.settle();
        w.receiver.reset_qp(&mut w.near[victim]).unwrap();
        expected[victim] = w.peers.sent(victim);

        let others = capacity - capacity.div_ceil(3) + usize::from(capacity % 3 <= victim && capacity % 3 > 0);
        receiving::messages(&mut w.receiver, others, |message| {
            let (from, number) = message::read(&message);
            assert_eq!(number, expected[from as usize]);
            expected[from as usize] += 1;
        });
        receiving::nothing(&mut w.receiver);
        let sent = [0, 1, 2].map(|from| w.peers.sent(from));
        assert_eq!(expected, sent, "round {round}");
        // The slots of dropped messages are with the device again.
        assert_eq!(w.free_slots(), 0);

        w.reconnect(victim);
    }
}

#[test]
fn a_queue_pair_that_failed_gives_its_buffers_back_and_works_after_a_reset() {
    let mut w = Single::new(16, 64);
    let posted = w.fill();
    w.near[0].to_error().unwrap();
    let failures = receiving::failures(&mut w.receiver, posted);
    assert_eq!(failures.len(), posted);
    for failure in &failures {
        assert_eq!(failure.cause, Cause::Status(WcStatus::WR_FLUSH_ERR));
        assert_eq!(failure.qp_num, w.near[0].qp_num());
        assert_eq!(failure.buffers.len(), 1);
    }
    drop(failures);
    assert_eq!(w.pool.available(), w.pool.count() as usize);
    assert_eq!(w.near[0].state().unwrap(), QpState::Error);

    w.receiver.reset_qp(&mut w.near[0]).unwrap();
    w.fill();
    w.reconnect(0);
    w.exchange(1);
}

#[test]
fn unpolled_flushed_receives_do_not_survive_a_reset() {
    let mut w = Single::new(16, 64).filled();
    w.near[0].to_error().unwrap();
    // Some of the flushed receives are polled.
    drop(receiving::failures(&mut w.receiver, 1));
    w.receiver.reset_qp(&mut w.near[0]).unwrap();
    assert_eq!(w.pool.available(), w.pool.count() as usize);
    receiving::nothing(&mut w.receiver);
    assert_eq!(w.fill(), w.capacity());
}

#[test]
fn sends_that_a_reset_ended_give_their_buffers_back() {
    let mut w = Single::new(16, 64);
    // No receive is posted: the sends wait.
    w.peers.burst(5);
    w.peers.receiver.reset_qp(&mut w.peers.qps[0]).unwrap();
    for _ in 0..5 {
        let done = receiving::wait_for("the buffer of each send", || w.peers.qps[0].poll_send());
        assert_eq!(done.status, WcStatus::WR_FLUSH_ERR);
        assert_eq!(message::read(&done.into_buffer()).0, 0);
    }
    assert!(w.peers.qps[0].poll_send().is_none());
}

#[test]
fn a_queue_pair_of_another_receiver_is_refused_and_untouched() {
    let mut w = Single::new(16, 64).filled();
    let mut other = device::receiver(&w.pd, 64);
    assert_matches!(other.reset_qp(&mut w.near[0]).unwrap_err(), Error::Foreign { .. });
    w.exchange(1);
}

#[test]
fn a_destroyed_queue_pair_makes_room_on_the_cq() {
    let (_, mut receiver) = device::start(64);
    let config = QpConfig::rc();
    let more_than_half = RqConfig::new(receiver.cq_capacity() / 2 + 1);
    let create = |receiver: &mut _| QueuePair::builder(&config).receive(receiver, more_than_half).build();
    let first = create(&mut receiver).unwrap();
    assert_matches!(create(&mut receiver).unwrap_err(), Error::CqTooSmall { .. });
    receiver.destroy_qp(first).unwrap();
    create(&mut receiver).unwrap();
}

#[test]
fn an_event_of_before_a_reset_is_not_one_of_the_next_connection() {
    let mut w = Single::new(16, 64);
    let qp_num = w.near[0].qp_num();
    w.receiver.reset_qp(&mut w.near[0]).unwrap();
    w.reconnect(0);
    w.fill();
    for event in
        [DeviceEvent::QpFatal { qp_num }, DeviceEvent::QpRequestError { qp_num }, DeviceEvent::QpAccessError { qp_num }]
    {
        assert!(w.receiver.handle_event(&event).unwrap(), "{event:?}");
        assert_eq!(w.near[0].state().unwrap(), QpState::Rts, "{event:?}");
        w.exchange(1);
    }
}

#[test]
fn an_event_of_a_queue_pair_that_has_failed_is_taken_note_of() {
    let mut w = Single::new(16, 64);
    let qp_num = w.near[0].qp_num();
    // As the device does it: the library does not know.
    let mut attr = sys::ibv_qp_attr { qp_state: sys::IBV_QPS_ERR, ..Default::default() };
    // SAFETY: a live queue pair and an initialised structure.
    let errno = unsafe { sys::ibv_modify_qp(w.near[0].as_raw(), &mut attr, sys::IBV_QP_STATE as i32) };
    assert_eq!(errno, 0);
    assert!(w.receiver.handle_event(&DeviceEvent::QpFatal { qp_num }).unwrap());
    assert_eq!(known_state(&mut w.near[0]), QpState::Error);
}
