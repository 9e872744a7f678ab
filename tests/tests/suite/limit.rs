//! The limit of an SRQ whose pool runs empty.

use doorbell::DeviceEvent;
use doorbell_tests::world::Shared;
use doorbell_tests::{assert_matches, receiving};

#[test]
fn a_limit_that_was_reached_while_the_pool_was_empty_is_armed_by_the_next_refill() {
    let mut w = Shared::new(15, 1, 64);
    let mut events = w.pd.context().events().unwrap();
    let mut held: Vec<_> = std::iter::from_fn(|| w.pool.take()).collect();
    held.truncate(15);
    w.receiver.keep_filled(w.queue, &w.pool).unwrap();
    w.receiver.refill();
    w.receiver.arm_srq_limit(w.queue, 8).unwrap();
    for _ in 0..3 {
        w.peers.burst(10);
        let taken = w.take(10);
        let event = events.next_within(receiving::PATIENCE).unwrap().expect("the limit is reached");
        assert_matches!(event, DeviceEvent::SrqLimitReached { .. });
        assert_eq!(w.pool.available(), 0);
        assert!(w.receiver.handle_event(&event).unwrap());
        drop(taken);
        w.receiver.refill();
        assert_eq!(w.free_slots(), 0);
    }
    drop(held);
}
