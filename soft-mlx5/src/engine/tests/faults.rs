//! Nothing is lost, doubled or damaged on a link that loses, doubles and reorders.

use mlx5_wire::data::DataSegment;
use mlx5_wire::opcode::{CqeOpcode, WqeOpcode};

use super::program::*;
use crate::base::faults::Faults;
use crate::base::rng::Rng;
use crate::engine::NicConfig;
use crate::fabric::{Fabric, Switch};
use crate::objects::*;

const SLOT: usize = 4096;
const SLOTS: usize = 32;

/// Two devices that exchange messages of random size and kind, both ways at once.
struct Traffic {
    devices: [Device; 2],
    sides: [Side; 2],
    rng: Rng,
}

struct Side {
    qp: Qp,
    send: Cq,
    recv: Cq,
    // Received messages, messages to send, and memory for the peer's RDMA.
    memory: Memory,
    key: u32,
    posted: u64,
    arrived: u64,
    completed: u64,
}

fn message(side: usize, number: u64) -> Vec<u8> {
    let seed = (side as u64) << 32 | number;
    let len = Rng::new(seed).below(SLOT as u64 + 1) as usize;
    pattern(seed, len)
}

impl Traffic {
    fn new(faults: Faults, seed: u64, path: Path) -> Self {
        let fabric = Fabric::Switch(Switch::new());
        let config = || NicConfig { fabric: fabric.clone(), faults, seed, ..NicConfig::default() };
        let mut devices = [Device::with(config()), Device::with(config())];
        let sides = [0, 1].map(|i| {
            let device = &mut devices[i];
            let (send, recv) = (device.cq(128), device.cq(128));
            let attr = device.qp_attr(Service::Rc, &send, &recv);
            let attr = QpAttr { rq: WqAttr { count: SLOTS as u32, ..attr.rq }, ..attr };
            let mut qp = device.qp(attr);
            let memory = Memory::new(2 * SLOTS * SLOT);
            let key = device.register(&memory, ALL_ACCESS);
            for slot in 0..SLOTS {
                let at = memory.addr() + (slot * SLOT) as u64;
                qp.post_receive(&[DataSegment::new(at, SLOT as u32, key)]);
            }
            Side { qp, send, recv, memory, key, posted: 0, arrived: 0, completed: 0 }
        });
        for i in 0..2 {
            let (dlid, peer) = (2 - i as u16, sides[1 - i].qp.number);
            let path = if i == 0 { path } else { Path { rq_psn: path.sq_psn, sq_psn: path.rq_psn, ..path } };
            devices[i].connect_with(&sides[i].qp, dlid, peer, path);
        }
        Self { devices, sides, rng: Rng::new(seed) }
    }

    fn post(&mut self, i: usize) {
        let side = &mut self.sides[i];
        if side.posted - side.completed >= 16 {
            return;
        }
        let bytes = message(i, side.posted);
        let at = SLOTS * SLOT + (side.posted % 16) as usize * SLOT;
        side.memory.set(at, &bytes);
        let mut work = Work::new(WqeOpcode::SEND_IMM).imm(side.posted as u32);
        // One length segment of 0 would mean 2 GiB.
        if !bytes.is_empty() {
            work = work.data(side.memory.addr() + at as u64, bytes.len() as u32, side.key);
        }
        self.devices[i].post(&mut side.qp, &work);
        side.posted += 1;
    }

    fn poll(&mut self, i: usize) {
        let side = &mut self.sides[i];
        while let Some(cqe) = side.send.poll() {
            assert_eq!(cqe.opcode(), CqeOpcode::Requester, "{:?}", error(&cqe));
            side.completed += 1;
        }
        while let Some(cqe) = side.recv.poll() {
            assert_eq!(cqe.opcode(), CqeOpcode::ResponderSendImm, "{:?}", error(&cqe));
            assert_eq!(cqe.imm_inval_pkey.get(), side.arrived as u32, "in order, exactly once");
            let slot = usize::from(cqe.wqe_counter.get()) % SLOTS;
            let bytes = side.memory.get(slot * SLOT, cqe.byte_cnt.get() as usize);
            assert_eq!(bytes, message(1 - i, side.arrived));
            side.arrived += 1;
            let at = side.memory.addr() + (slot * SLOT) as u64;
            side.qp.post_receive(&[DataSegment::new(at, SLOT as u32, side.key)]);
        }
    }

    fn run(&mut self, messages: u64) {
        while self.sides.iter().any(|side| side.completed < messages) {
            let mut progress = false;
            for i in 0..2 {
                if self.sides[i].posted < messages && self.rng.chance(0.5) {
                    self.post(i);
                }
                let now = self.devices[i].now.max(self.devices[1 - i].now) + 500;
                self.devices[i].now = now;
                progress |= self.devices[i].nic.step(now);
                self.poll(i);
            }
            let waiting = |side: &Side| side.posted == messages || side.posted - side.completed >= 16;
            if !progress && self.sides.iter().all(waiting) {
                let deadlines = self.devices.iter().filter_map(|device| device.nic.next_deadline());
                let next = deadlines.min().expect("something to wait for");
                self.devices[0].now = self.devices[0].now.max(next);
            }
        }
        assert!(self.sides.iter().all(|side| side.arrived == messages));
    }
}

fn path() -> Path {
    Path { mtu: 256, timeout: 8, ..Path::default() }
}

#[test]
fn a_good_link() {
    let mut traffic = Traffic::new(Faults::default(), 1, path());
    traffic.run(3000);
    assert_eq!(traffic.devices[0].nic.drops(), Default::default());
}

#[test]
fn one_packet_in_five_is_lost() {
    let mut traffic = Traffic::new(Faults { loss: 0.2, ..Faults::default() }, 1, path());
    traffic.run(3000);
    assert!(traffic.devices.iter().all(|device| device.nic.drops().injected > 3000));
}

#[test]
fn packets_are_doubled() {
    Traffic::new(Faults { duplication: 0.3, ..Faults::default() }, 3, path()).run(3000);
}

#[test]
fn packets_overtake_each_other() {
    Traffic::new(Faults { reordering: 0.1, ..Faults::default() }, 4, path()).run(3000);
}

#[test]
fn packets_are_lost_doubled_and_reordered() {
    let faults = Faults { loss: 0.05, duplication: 0.05, reordering: 0.05, ..Faults::default() };
    Traffic::new(faults, 5, path()).run(3000);
}

#[test]
fn packet_sequence_numbers_wrap() {
    let faults = Faults { loss: 0.1, ..Faults::default() };
    let start = 0xff_ffff - 500;
    let path = Path { sq_psn: start, rq_psn: start + 7, ..path() };
    let mut traffic = Traffic::new(faults, 6, path);
    traffic.run(1000);
    let status = traffic.devices[0].nic.query_qp(traffic.sides[0].qp.number).unwrap();
    assert!(status.sq_psn < start && status.rq_psn < start, "{status:?}");
}

#[test]
fn a_link_that_goes_down_and_up_again() {
    let mut traffic = Traffic::new(Faults::default(), 7, path());
    traffic.run(100);
    traffic.devices[1].nic.set_link(false);
    traffic.post(0);
    let now = traffic.devices[0].now + 1_000_000;
    traffic.devices[0].nic.step(now);
    traffic.devices[1].nic.set_link(true);
    traffic.run(200);
    assert_eq!(traffic.devices[1].events().into_iter().filter(|e| matches!(e, Event::Port { .. })).count(), 2);
}

#[test]
fn rdma_on_a_bad_link() {
    let faults = Faults { loss: 0.1, duplication: 0.05, reordering: 0.05, ..Faults::default() };
    let mut device = Device::with(NicConfig { faults, seed: 8, ..NicConfig::default() });
    let (mut send, mut recv) = (device.cq(256), device.cq(256));
    let path = Path { mtu: 256, ..Path::default() };
    let (mut a, mut b) = device.pair_with(|attr| attr, &send, &recv, path);
    let (local, remote) = (Memory::new(1 << 16), Memory::new(1 << 16));
    let (lkey, rkey) = (device.register(&local, ALL_ACCESS), device.register(&remote, ALL_ACCESS));
    for round in 0..300 {
        let len = 1 + (round * 97) % 20_000u32;
        local.set(0, &pattern(round.into(), len as usize));
        b.post_receive(&[]);
        let write = Work::new(WqeOpcode::RDMA_WRITE_IMM).imm(round);
        let write = write.remote(remote.addr() + 32, rkey).data(local.addr(), len, lkey);
        device.post(&mut a, &write);
        let read = Work::new(WqeOpcode::RDMA_READ).remote(remote.addr() + 32, rkey);
        device.post(&mut a, &read.data(local.addr() + 32768, len, lkey));
        device.finish();
        for _ in 0..2 {
            let cqe = send.poll().unwrap();
            assert_eq!(cqe.opcode(), CqeOpcode::Requester, "{:?}", error(&cqe));
        }
        let cqe = recv.poll().unwrap();
        assert_eq!((cqe.imm_inval_pkey.get(), cqe.byte_cnt.get()), (round, len));
        recv.expect_nothing();
        let bytes = pattern(round.into(), len as usize);
        assert_eq!(remote.get(32, len as usize), bytes);
        assert_eq!(local.get(32768, len as usize), bytes);
    }
}
