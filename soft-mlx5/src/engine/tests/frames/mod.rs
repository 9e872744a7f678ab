//! Ethernet frames from a raw packet queue pair to receive queues of another device.

mod multi_packet;
mod plain;
mod rules;
mod sending;
mod sources;
mod striding;

use mlx5_wire::cqe::Cqe64;
use mlx5_wire::data::DataSegment;
use mlx5_wire::dbrec::RECEIVE;
use mlx5_wire::eth::EthSegment;
use mlx5_wire::frame::StridingWqe;

use super::program::*;
use crate::engine::NicConfig;
use crate::fabric::samples::Sample;
use crate::fabric::{LinkLayer, Switch};
use crate::objects::flow::{FIELDS, Rule, Target, at};
use crate::objects::*;

const GROUP: [u8; 4] = [239, 1, 2, 3];
/// Bytes of a buffer.
const ROOM: usize = 2048;

fn feed(text: &[u8]) -> Sample {
    Sample::udp(GROUP, 5001, text)
}

fn ethernet(switch: &Switch) -> NicConfig {
    let fabric = switch.clone().into();
    NicConfig { fabric, link_layer: LinkLayer::Ethernet, strict: true, ..NicConfig::default() }
}

/// Makes a raw packet queue pair in RTS.
fn raw_qp(device: &mut Device, cq: &Cq, attr: impl FnOnce(QpAttr) -> QpAttr) -> Qp {
    let made = device.qp_attr(Service::Raw, cq, cq);
    let qp = device.qp(attr(made));
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        device.set_state(&qp, state);
    }
    qp
}

/// A receive queue.
struct Queue {
    number: Wqn,
    attr: RwqAttr,
    ring: Memory,
    record: Memory,
    buffers: Memory,
    key: u32,
    posted: u16,
}

impl Queue {
    fn new(device: &mut Device, cq: &Cq, count: u32, more: impl FnOnce(RwqAttr) -> RwqAttr) -> Self {
        let attr = more(RwqAttr {
            pd: device.pd,
            cq: cq.number,
            ring: WqAttr { buf: 0, count, shift: 5 },
            dbrec: 0,
            user_index: 0x77,
            striding: None,
            offloads: RxOffloads::default(),
        });
        let ring = Memory::new((count as usize) << attr.ring.shift);
        let record = Memory::new(8);
        let room = attr.striding.map_or(ROOM, |s| 1 << (s.log_stride + s.log_strides));
        let buffers = Memory::new(room * count as usize);
        let key = device.register(&buffers, ALL_ACCESS);
        let attr = RwqAttr { ring: WqAttr { buf: ring.addr(), ..attr.ring }, dbrec: record.addr(), ..attr };
        let number = device.nic.create_wq(attr).unwrap();
        device.nic.modify_wq(number, WqState::Reset, WqState::Ready).unwrap();
        Self { number, attr, ring, record, buffers, key, posted: 0 }
    }

    fn room(&self) -> usize {
        self.buffers.len() / self.attr.ring.count as usize
    }

    /// Posts the next WQE with its own buffer.
    fn post(&mut self) -> u16 {
        let slot = usize::from(self.posted) & (self.attr.ring.count as usize - 1);
        let addr = self.buffers.addr() + (slot * self.room()) as u64;
        self.post_segment(DataSegment::new(addr, self.room() as u32, self.key))
    }

    fn post_many(&mut self, count: usize) {
        for _ in 0..count {
            self.post();
        }
    }

    fn post_segment(&mut self, segment: DataSegment) -> u16 {
        let index = self.posted;
        let slot = usize::from(index) & (self.attr.ring.count as usize - 1);
        let wqe = match self.attr.striding {
            Some(_) => StridingWqe::new(segment).to_bytes(),
            None => {
                let mut wqe = [0; 32];
                wqe[..16].copy_from_slice(&segment.to_bytes());
                wqe[16..].copy_from_slice(&DataSegment::TERMINATOR.to_bytes());
                wqe
            }
        };
        self.ring.set(slot << self.attr.ring.shift, &wqe);
        self.posted = index.wrapping_add(1);
        self.record.span().set_record(RECEIVE, u32::from(self.posted)).unwrap();
        index
    }

    /// Returns the first bytes of a buffer.
    fn received(&self, index: u16, len: usize) -> Vec<u8> {
        let slot = usize::from(index) & (self.attr.ring.count as usize - 1);
        self.buffers.get(slot * self.room(), len)
    }
}

/// A sender and a receiver on one fabric.
struct Pair {
    out: Device,
    sender: Qp,
    send_cq: Cq,
    memory: Memory,
    key: u32,
    device: Device,
    cq: Cq,
}

impl Pair {
    fn new() -> Self {
        Self::with(|config| config)
    }

    fn with(more: impl FnOnce(NicConfig) -> NicConfig) -> Self {
        Self::between(|config| config, more)
    }

    /// Makes the device that sends and the one that receives with these configurations.
    fn between(sending: impl FnOnce(NicConfig) -> NicConfig, more: impl FnOnce(NicConfig) -> NicConfig) -> Self {
        let switch = Switch::new();
        let mut out = Device::with(sending(ethernet(&switch)));
        let mut device = Device::with(more(ethernet(&switch)));
        let send_cq = out.cq(64);
        let sender = raw_qp(&mut out, &send_cq, |attr| attr);
        let memory = Memory::new(16384);
        let key = out.register(&memory, ALL_ACCESS);
        let cq = device.cq(64);
        Self { out, sender, send_cq, memory, key, device, cq }
    }

    fn queue(&mut self, count: u32, more: impl FnOnce(RwqAttr) -> RwqAttr) -> Queue {
        Queue::new(&mut self.device, &self.cq, count, more)
    }

    /// Makes a queue with `count` WQEs, and leads all frames to it.
    fn takes_all(&mut self, count: u32) -> Queue {
        let mut queue = self.queue(count, |attr| attr);
        let tir = self.tir(&[queue.number], None);
        let all = Rule { mask: [0; FIELDS], ..rule(Target::Tir(tir), None) };
        self.device.nic.create_flow(&[all]).unwrap();
        queue.post_many(count as usize);
        queue
    }

    /// Leads frames to the group to these queues.
    fn lead(&mut self, queues: &[Wqn], tag: Option<u32>) -> (Tirn, u32) {
        let tir = self.tir(queues, None);
        let flow = self.device.nic.create_flow(&[rule(Target::Tir(tir), tag)]).unwrap();
        (tir, flow)
    }

    fn tir(&mut self, queues: &[Wqn], hash: Option<HashAttr>) -> Tirn {
        let (loopback, queues) = (Loopback::default(), queues.to_vec());
        self.device.nic.create_tir(TirAttr { domain: 1, loopback, hash, queues }).unwrap()
    }

    fn send(&mut self, frame: &[u8]) {
        let data = DataSegment::new(self.memory.addr(), frame.len() as u32, self.key);
        self.memory.set(0, frame);
        let work = Work::send().bytes(&EthSegment::zeroed().to_bytes()).bytes(&data.to_bytes());
        self.out.post(&mut self.sender, &work);
        self.settle();
        assert_eq!(self.send_cq.drain().len(), 1);
    }

    fn settle(&mut self) {
        self.out.settle();
        self.device.settle();
    }

    /// Sends a frame and expects it to arrive; returns its CQE.
    fn arrives(&mut self, frame: &[u8]) -> Cqe64 {
        self.send(frame);
        let cqe = self.cq.poll().expect("a completion");
        self.cq.expect_nothing();
        cqe
    }
}

/// Makes a rule for the group.
fn rule(target: Target, tag: Option<u32>) -> Rule {
    let (mut mask, mut value) = ([0; FIELDS], [0; FIELDS]);
    let place = at::DESTINATION_IP + 12;
    mask[place..place + 4].fill(0xff);
    value[place..place + 4].copy_from_slice(&GROUP);
    Rule { level: 32, mask, value, tag, target, continues: false }
}
