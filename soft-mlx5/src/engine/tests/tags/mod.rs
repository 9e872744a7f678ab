//! Tag matching: list operations, messages, rendezvous.

mod eager;
mod misuse;
mod random;
mod rendezvous;

use std::collections::VecDeque;

use mlx5_wire::be::Be32;
use mlx5_wire::cqe::{APP_TAG_MATCHING, Cqe64, CqeFormat};
use mlx5_wire::data::DataSegment;
use mlx5_wire::opcode::{CqeOpcode, WqeOpcode};
use mlx5_wire::tm::{AppOp, CQE_REQUEST, SW_CNT_VALID, TagMatchingResult, TagMatchingSegment, TmOpcode};
use mlx5_wire::tmh::{Rvh, Tmh, TmhOpcode};

use super::program::*;
use crate::objects::*;

const USER_INDEX: u32 = 0x7777;
const MTU: usize = 256;
/// Slots of the SRQ: the first 32 KiB of the memory, then the tagged buffers, then the messages to send.
const SLOTS: usize = 64;
const SLOT: usize = 512;
const TAGGED: usize = SLOTS * SLOT;
const SOURCE: usize = TAGGED + (1 << 20);
const ALL: u64 = u64::MAX;

struct World {
    device: Device,
    /// CQs of the SRQ and of the sender.
    cq: Cq,
    send_cq: Cq,
    fin_cq: Cq,
    srq: Srq,
    commands: Qp,
    sender: Qp,
    receiver: Qp,
    memory: Memory,
    key: u32,
    /// The entry that the next append uses, and then the entries after it.
    entry: u16,
    free: VecDeque<u16>,
    source: usize,
    slots: Vec<u16>,
}

struct Shape {
    tags: u16,
    cqe_size: u32,
    own_send_queue: bool,
    posted: usize,
}

const PLAIN: Shape = Shape { tags: 7, cqe_size: 64, own_send_queue: false, posted: 40 };

impl World {
    fn new(shape: &Shape) -> Self {
        let mut device = Device::new();
        let cq = device.cq_of_size(1024, shape.cqe_size);
        let (send_cq, fin_cq) = (device.cq(1024), device.cq(1024));
        let max_tags = shape.tags.into();
        let kind = SrqKind::TagMatching { cq: cq.number, max_tags, max_ops: 64 };
        let srq = device.srq_of_kind(SLOTS as u32, 5, kind, USER_INDEX);
        let with_srq = |attr| QpAttr { srq: Some(srq.number), ..attr };
        let commands = device.qp_attr(Service::Rc, &cq, &cq);
        let commands = device.qp(with_srq(commands));
        let sender = device.qp_attr(Service::Rc, &send_cq, &fin_cq);
        let sender = device.qp(sender);
        let mut receiver = device.qp_attr(Service::Rc, &fin_cq, &fin_cq);
        if !shape.own_send_queue {
            receiver.sq.count = 0;
        }
        receiver.scatter_to_cqe_rq = true;
        let receiver = device.qp(with_srq(receiver));
        let lid = device.nic.port().lid;
        let path = Path { mtu: MTU as u32, rnr_timer: 1, ..Path::default() };
        for (qp, peer) in [(&commands, &commands), (&sender, &receiver), (&receiver, &sender)] {
            device.connect_with(qp, lid, peer.number, path);
        }
        let memory = Memory::new(SOURCE + (1 << 20));
        let key = device.register(&memory, ALL_ACCESS);
        let free = (1..=shape.tags).collect();
        let (entry, source, slots) = (0, 0, Vec::new());
        let mut world = Self {
            device,
            cq,
            send_cq,
            fin_cq,
            srq,
            commands,
            sender,
            receiver,
            memory,
            key,
            entry,
            free,
            source,
            slots,
        };
        for _ in 0..shape.posted {
            world.post_slot();
        }
        world
    }

    fn post_slot(&mut self) {
        let slot = self.srq.next_slot();
        let at = self.memory.addr() + u64::from(slot) * SLOT as u64;
        let segment = DataSegment::new(at, SLOT as u32, self.key);
        assert_eq!(self.srq.post(&[segment]), Some(slot));
        self.slots.push(slot);
    }

    fn operate(&mut self, segment: TagMatchingSegment, data: Option<DataSegment>) {
        let mut work = Work::new(WqeOpcode::TAG_MATCHING).flags(0).bytes(&segment.to_bytes());
        if let Some(data) = data {
            work = work.bytes(&data.to_bytes());
        }
        self.device.post(&mut self.commands, &work);
        self.device.settle();
    }

    /// Appends an entry whose buffer is `len` bytes at `at` of the tagged ones; returns its index.
    fn append(&mut self, tag: u64, mask: u64, at: usize, len: u32) -> u16 {
        let next = self.free.pop_front().expect("a free entry");
        let addr = self.memory.addr() + (TAGGED + at) as u64;
        let data = DataSegment::new(addr, len, self.key);
        let data = if len == 0 { DataSegment::TERMINATOR } else { data };
        self.operate(operation(TmOpcode::Append, CQE_REQUEST, next, 0, (tag, mask)), Some(data));
        std::mem::replace(&mut self.entry, next)
    }

    /// Does the same as [`Self::append`], and takes the completion.
    fn appended(&mut self, tag: u64, mask: u64, at: usize, len: u32) -> u16 {
        let entry = self.append(tag, mask, at, len);
        self.expect(AppOp::APPEND, entry);
        entry
    }

    fn remove(&mut self, entry: u16) -> bool {
        self.operate(operation(TmOpcode::Remove, CQE_REQUEST, entry, 0, (0, 0)), None);
        let cqe = self.expect(AppOp::REMOVE, entry);
        result(&cqe).success.get() == 0x8000_0000
    }

    fn synchronize(&mut self, count: u16) {
        let flags = CQE_REQUEST | SW_CNT_VALID;
        self.operate(operation(TmOpcode::Nop, flags, 0, count, (0, 0)), None);
    }

    /// Sends these bytes without waiting for a completion.
    fn send(&mut self, bytes: &[u8]) {
        let at = SOURCE + self.source;
        self.source = (self.source + bytes.len()) % (1 << 18);
        self.memory.set(at, bytes);
        let addr = self.memory.addr() + at as u64;
        let mut work = Work::send();
        if !bytes.is_empty() {
            work = work.data(addr, bytes.len() as u32, self.key);
        }
        self.device.post(&mut self.sender, &work);
    }

    fn send_tagged(&mut self, tag: u64, payload: &[u8]) {
        self.send(&message(TmhOpcode::Eager, 0x1234, tag, payload));
        self.device.finish();
    }

    #[track_caller]
    fn expect(&mut self, op: AppOp, entry: u16) -> Cqe64 {
        let cqe = self.cq.poll().expect("a completion");
        assert_eq!((cqe.app, AppOp::new(cqe.app_op)), (APP_TAG_MATCHING, op));
        assert_eq!(cqe.srqn_uidx.get(), USER_INDEX);
        let list = [AppOp::APPEND, AppOp::REMOVE, AppOp::NOOP].contains(&op);
        let no_packet = list || op == AppOp::CONSUMED;
        assert_eq!(cqe.opcode() == CqeOpcode::NoPacket, no_packet, "{op:?}");
        let qp = if list { self.commands.number.0 } else { self.receiver.number.0 };
        assert_eq!(cqe.qpn(), qp);
        assert_eq!(cqe.app_info.get(), entry);
        cqe
    }

    /// Takes the completion of a message in an SRQ slot; returns its bytes.
    #[track_caller]
    fn expect_slot(&mut self, op: AppOp) -> Vec<u8> {
        let cqe = self.expect(op, 0);
        let slot = cqe.wqe_counter.get();
        self.slots.retain(|posted| *posted != slot);
        self.srq.give_back(slot);
        let len = cqe.byte_cnt.get() as usize;
        if cqe.format() == CqeFormat::Inline32 {
            return cqe.to_bytes()[..len].to_vec();
        }
        self.memory.get(usize::from(slot) * SLOT, len)
    }

    fn tagged(&self, at: usize, len: usize) -> Vec<u8> {
        self.memory.get(TAGGED + at, len)
    }
}

fn operation(op: TmOpcode, flags: u8, index: u16, count: u16, (tag, mask): (u64, u64)) -> TagMatchingSegment {
    TagMatchingSegment {
        opcode: op.byte(),
        flags,
        index: index.into(),
        sw_cnt: count.into(),
        append_tag: tag.into(),
        append_mask: mask.into(),
        ..TagMatchingSegment::zeroed()
    }
}

fn message(op: TmhOpcode, context: u32, tag: u64, payload: &[u8]) -> Vec<u8> {
    let tmh = Tmh { opcode: op.byte(), app_ctx: Be32::new(context), tag: tag.into(), ..Tmh::zeroed() };
    [&tmh.to_bytes()[..], payload].concat()
}

fn read_me(va: u64, rkey: u32, len: u32) -> Vec<u8> {
    Rvh { va: va.into(), rkey: rkey.into(), len: len.into() }.to_bytes().to_vec()
}

fn result(cqe: &Cqe64) -> TagMatchingResult {
    TagMatchingResult::from_bytes(cqe.to_bytes().first_chunk().unwrap())
}

fn header(cqe: &Cqe64) -> Tmh {
    Tmh::from_bytes(cqe.to_bytes().first_chunk().unwrap())
}
