//! The pace of an adapter.

use mlx5_wire::opcode::CqeOpcode::{Requester, RequesterError};

use super::program::*;
use crate::base::faults::Faults;
use crate::engine::{NicConfig, Timing};
use crate::objects::{Event, Qpn, Service};

const RETRIES: u8 = 0x15;
// An ACK timeout of code 16.
const CODE_16_NS: u64 = 4096 << 16;

fn adapter() -> Device {
    Device::with(NicConfig { timing: Timing::Adapter, ..NicConfig::default() })
}

fn setup() -> Setup {
    Setup::with(adapter(), 256, |device, send, recv| device.pair(|attr| attr, send, recv))
}

#[test]
fn no_retry_comes_before_268_milliseconds() {
    let mut device = adapter();
    let (mut send, recv) = (device.cq(16), device.cq(16));
    let attr = device.qp_attr(Service::Rc, &send, &recv);
    let mut qp = device.qp(attr);
    let lid = device.nic.port().lid;
    device.connect_with(&qp, lid, Qpn(0x3fff), Path { timeout: 10, retry_cnt: 3, ..Path::default() });
    let start = device.now;
    device.post(&mut qp, &Work::send().inline(b"anybody?"));
    device.run_until(|| send.peek().is_some());
    send.expect_error(RequesterError, &qp, 0, RETRIES);
    let waited = device.now - start;
    assert!((4 * CODE_16_NS..16 * CODE_16_NS).contains(&waited), "{waited}");
}

#[test]
fn a_lost_acknowledgement_costs_one_such_timeout() {
    let mut s = setup();
    s.device.nic.set_faults(Faults { loss: 1.0, ..Faults::default() });
    s.receive(64);
    let index = s.device.post(&mut s.a, &Work::send().inline(b"lost"));
    s.device.finish_within(1_000_000);
    s.device.nic.set_faults(Faults::default());
    s.device.finish_within(CODE_16_NS - 3_000_000);
    s.send.expect_nothing();
    s.device.finish();
    s.send.expect(Requester, &s.a, index);
}

#[test]
fn completions_come_late_and_together() {
    let mut s = setup();
    for _ in 0..8 {
        s.receive(64);
    }
    // Messages that are not acknowledged yet have left their CQEs at the receiver.
    for _ in 0..8 {
        s.device.post(&mut s.a, &Work::send().inline(b"x"));
        s.device.nic.step(s.device.now);
        s.device.now += 10;
    }
    s.device.settle();
    assert!(s.recv.peek().is_none() && s.send.peek().is_none());
    s.device.run_until(|| s.recv.peek().is_some());
    assert_eq!(s.recv.drain().len(), 8);
    s.device.finish();
    let indices = s.send.drain().iter().map(|cqe| cqe.wqe_counter.get()).collect::<Vec<_>>();
    assert!(indices.iter().copied().eq(0..8), "{indices:?}");
}

#[test]
fn one_acknowledgement_covers_several_messages() {
    let count = |timing| {
        let device = Device::with(NicConfig { timing, ..NicConfig::default() });
        let mut s = Setup::with(device, 256, |device, send, recv| device.pair(|attr| attr, send, recv));
        for _ in 0..8 {
            s.receive(64);
            s.device.post(&mut s.a, &Work::send().inline(b"x"));
            s.device.settle();
        }
        s.device.finish();
        assert_eq!(s.send.drain().len(), 8);
        s.device.nic.counters().port.xmit_packets
    };
    assert_eq!(count(Timing::Model), 16);
    assert_eq!(count(Timing::Adapter), 9);
}

#[test]
fn a_queue_pair_that_ends_leaves_no_completion_behind() {
    let mut s = setup();
    s.receive(64);
    s.device.post(&mut s.a, &Work::send().inline(b"x"));
    s.device.settle();
    assert!(s.recv.peek().is_none());
    s.device.nic.destroy_qp(s.b.number).unwrap();
    assert_eq!(s.recv.drain().len(), 1);
}

#[test]
fn an_arm_takes_effect_late_and_is_not_lost() {
    let mut s = setup();
    s.receive(64);
    s.device.post(&mut s.a, &Work::send().inline(b"x"));
    s.device.run_until(|| s.recv.peek().is_some());
    s.device.arm(&s.recv, 0, false);
    s.device.settle();
    assert_eq!(s.device.events(), []);
    s.device.finish();
    assert_eq!(s.device.events(), [Event::Completion(s.recv.number)]);
}
