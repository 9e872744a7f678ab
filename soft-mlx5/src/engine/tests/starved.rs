//! Devices that get the processor so seldom that a timer of a queue pair expires in each step.

use std::iter;

use mlx5_wire::opcode::{CqeOpcode, WqeOpcode};

use super::program::*;
use crate::base::rng::Rng;
use crate::engine::NicConfig;
use crate::fabric::{Fabric, Switch};
use crate::objects::*;

const QPS: usize = 8;
const MESSAGES: u16 = 32;
const LENGTH: u32 = 65_536;
/// Exponent of the shortest time-out that the device takes as it is.
const TIMEOUT: u8 = 10;
const TIMEOUT_NS: u64 = 4096 << TIMEOUT;

struct End {
    device: Device,
    send: Cq,
    qps: Vec<Qp>,
    memory: Memory,
    key: u32,
    done: usize,
}

impl End {
    fn new(fabric: Fabric) -> Self {
        let mut device = Device::with(NicConfig { fabric, ..NicConfig::default() });
        let (send, recv) = (device.cq(1024), device.cq(16));
        let make = || {
            let attr = device.qp_attr(Service::Rc, &send, &recv);
            device.qp(attr)
        };
        let qps = iter::repeat_with(make).take(QPS).collect();
        let memory = Memory::new(2 * LENGTH as usize);
        let key = device.register(&memory, ALL_ACCESS);
        Self { device, send, qps, memory, key, done: 0 }
    }

    fn connect(&mut self, peer: &mut Self) {
        let path = Path { timeout: TIMEOUT, ..Path::default() };
        let dlid = peer.device.nic.port().lid;
        for (ours, theirs) in self.qps.iter().zip(&peer.qps) {
            self.device.connect_with(ours, dlid, theirs.number, path);
        }
    }

    fn post_all(&mut self, peer: &Self, opcode: WqeOpcode) {
        let work = Work::new(opcode).remote(peer.memory.addr() + u64::from(LENGTH), peer.key);
        let work = work.data(self.memory.addr(), LENGTH, self.key);
        for qp in &mut self.qps {
            for _ in 0..MESSAGES {
                self.device.post(qp, &work);
            }
        }
    }

    /// Works for one step, after the timers of all queue pairs have expired.
    fn step_late(&mut self, now: u64) {
        self.device.nic.step(now);
        while let Some(cqe) = self.send.poll() {
            assert_eq!(cqe.opcode(), CqeOpcode::Requester, "{:?} after {} messages", error(&cqe), self.done);
            self.done += 1;
        }
    }
}

/// Runs `opcode` on all queue pairs of both devices at once, in steps that are further apart than a time-out.
fn run(fabric: &Fabric, opcode: WqeOpcode, seed: u64) {
    let (mut a, mut b) = (End::new(fabric.clone()), End::new(fabric.clone()));
    a.connect(&mut b);
    b.connect(&mut a);
    a.post_all(&b, opcode);
    b.post_all(&a, opcode);
    let all = QPS * usize::from(MESSAGES);
    let (mut rng, mut now, mut steps) = (Rng::new(seed), 0, 0);
    while a.done + b.done < 2 * all {
        now += TIMEOUT_NS + rng.next_u64() % TIMEOUT_NS;
        // A device may get several steps in a row.
        let turn = if rng.next_u64() & 1 == 0 { &mut a } else { &mut b };
        turn.step_late(now);
        steps += 1;
        assert!(steps < 1_000_000, "{} and {} of {all} messages", a.done, b.done);
    }
}

#[test]
fn no_queue_pair_is_given_up_on_a_machine_without_free_processors() {
    for seed in 0..4 {
        for opcode in [WqeOpcode::RDMA_WRITE, WqeOpcode::RDMA_READ] {
            let name = format!("unit-{}-starved-{seed}", std::process::id());
            run(&Fabric::Named(name), opcode, seed);
            run(&Fabric::Switch(Switch::new()), opcode, seed);
        }
    }
}
