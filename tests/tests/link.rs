//! The link goes down while receives are posted: everything ends, nothing hangs, every buffer comes back.
//!
//! `DOORBELL_LINK` names the network interface under the device. It is the only test of its binary, because
//! no other one could run meanwhile.
//!
//! Needs: link

use std::process::Command;
use std::time::{Duration, Instant};

use doorbell::{Cause, DeviceEvent, DeviceEvents, WcStatus};
use doorbell_tests::peers::join;
use doorbell_tests::world::Shared;
use doorbell_tests::{receiving, skip};

/// The time that 6 retries after 67 ms each may take on a slow machine, where the device's timers are not exact either.
const BOUND: Duration = Duration::from_secs(15);

/// The interface, which is up again when the value is dropped.
struct Link(String);

impl Link {
    fn set(&self, state: &str) {
        let status = Command::new("ip").args(["link", "set", &self.0, state]).status();
        assert!(status.expect("there is a program `ip`").success(), "{} {state}", self.0);
    }
}

/// Reads events until the one that is waited for.
fn expect(events: &mut DeviceEvents, wanted: DeviceEvent) {
    let began = Instant::now();
    while let Some(event) = events.next_within(BOUND.saturating_sub(began.elapsed())).unwrap() {
        if event == wanted {
            return;
        }
    }
    panic!("no {wanted:?} in {BOUND:?}");
}

impl Drop for Link {
    fn drop(&mut self) {
        self.set("up");
    }
}

#[test]
fn sends_fail_in_time_and_buffers_come_back_when_the_link_goes_down() {
    let Ok(link) = std::env::var("DOORBELL_LINK").map(Link) else {
        skip!("DOORBELL_LINK does not name an interface that may be taken down");
    };
    let mut w = Shared::new(31, 1, 64).filled();
    w.peers.send(0, 64);
    receiving::messages(&mut w.receiver, 1, |message| assert_eq!(message.len(), 64));
    w.peers.settle();

    let mut events = w.pd.context().events().unwrap();
    link.set("down");
    expect(&mut events, DeviceEvent::PortError { port: 1 });
    let began = Instant::now();
    w.peers.send(0, 64);
    let status = w.peers.qps[0].ended();
    assert!(!status.is_success(), "{status}");
    assert!(began.elapsed() < BOUND, "{:?}", began.elapsed());
    // An SRQ outlives its queue pairs: its receives stay posted, and come back when it is destroyed.
    let mut batch = w.receiver.poll();
    while let Some(message) = batch.next() {
        let failure = message.expect_err("nothing can arrive");
        assert!(matches!(failure.cause, Cause::Status(WcStatus::WR_FLUSH_ERR)), "{failure}");
    }
    drop(batch);

    drop(link);
    expect(&mut events, DeviceEvent::PortActive { port: 1 });
    w.receiver.reset_qp(&mut w.near[0]).unwrap();
    w.peers.reset(0);
    while w.peers.qps[0].poll_send().is_some() {}
    join(&mut w.near[0], &mut w.peers.qps[0]);
    w.peers.send(0, 64);
    receiving::messages(&mut w.receiver, 1, |message| assert_eq!(message.len(), 64));

    let Shared { mut receiver, queue: srq, pool, near, peers, .. } = w;
    drop(peers);
    for qp in near {
        receiver.destroy_qp(qp).unwrap();
    }
    receiver.destroy_srq(srq).unwrap();
    assert_eq!(pool.available(), pool.count() as usize);
}
