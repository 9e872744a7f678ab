//! A minimal driver, for tests.

use std::collections::VecDeque;

use mlx5_wire::be::Be32;
use mlx5_wire::cqe::{Cqe64, ErrorCqe};
use mlx5_wire::ctrl::{CQ_UPDATE, ControlSegment};
use mlx5_wire::data::DataSegment;
use mlx5_wire::dbrec::{ARM, Arm, CONSUMER_INDEX, CONSUMER_INDEX_MASK, RECEIVE, SEND};
use mlx5_wire::next::NextSegment;
use mlx5_wire::opcode::{CqeOpcode, WqeOpcode};
use mlx5_wire::remote::RemoteAddressSegment;
use mlx5_wire::uar::{BLUE_FLAME, CQ_DOORBELL};

use crate::base::test_memory::Pages;
use crate::engine::{Nic, NicConfig};
use crate::objects::memory::Span;
use crate::objects::uar::{BF_HALF, PAGE_SIZE};
use crate::objects::*;

/// All rights that a memory region or a queue pair can give.
pub const ALL_ACCESS: Access = 0xf;

/// Zeroed memory that the device may touch.
pub struct Memory {
    pages: Pages,
    len: usize,
}

impl Memory {
    pub fn new(len: usize) -> Self {
        Self { pages: Pages::new(len.div_ceil(4096)), len: len.next_multiple_of(8) }
    }

    pub fn addr(&self) -> u64 {
        self.pages.addr(0)
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Takes the memory away from the program and the device.
    pub fn take_away(&self) {
        self.pages.protect(libc::PROT_NONE);
    }

    pub fn span(&self) -> Span {
        Span::new(self.addr(), self.len())
    }

    pub fn get(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.span().read(at, &mut bytes).unwrap();
        bytes
    }

    pub fn set(&self, at: usize, bytes: &[u8]) {
        self.span().write(at, bytes).unwrap();
    }
}

/// A device and the program's view of it.
pub struct Device {
    pub nic: Nic,
    pub now: u64,
    pub pd: Pdn,
    qps: u32,
}

/// CQs are armed at this page; queue pairs ring at the pages after it.
pub const CQ_PAGE: u32 = 0;

impl Device {
    pub fn new() -> Self {
        Self::with(NicConfig::default())
    }

    pub fn with(config: NicConfig) -> Self {
        // SAFETY: the tests keep the memory of every object alive as long as the device.
        let mut nic = unsafe { Nic::new(config) }.unwrap();
        let pd = nic.alloc_pd().unwrap();
        Self { nic, now: 0, pd, qps: 0 }
    }

    /// Steps until nothing is left to do at this time.
    pub fn settle(&mut self) {
        for _ in 0..1_000_000 {
            self.now += 100;
            if !self.nic.step(self.now) {
                return;
            }
        }
        panic!("the device does not come to rest");
    }

    /// Steps until nothing is left to do, however long it takes.
    pub fn finish(&mut self) {
        for _ in 0..1_000_000 {
            self.settle();
            let Some(deadline) = self.nic.next_deadline() else { return };
            self.now = self.now.max(deadline);
        }
        panic!("the device does not come to rest");
    }

    /// Lets time pass until `done`.
    pub fn run_until(&mut self, mut done: impl FnMut() -> bool) {
        while !done() {
            if !self.nic.step(self.now) {
                let deadline = self.nic.next_deadline().expect("something to wait for");
                self.now = self.now.max(deadline);
            }
        }
    }

    /// Does the same as [`Self::finish`], but at most for this long.
    pub fn finish_within(&mut self, ns: u64) {
        let end = self.now + ns;
        loop {
            self.settle();
            match self.nic.next_deadline() {
                Some(deadline) if deadline <= end => self.now = self.now.max(deadline),
                _ => return,
            }
        }
    }

    pub fn register(&mut self, memory: &Memory, access: Access) -> u32 {
        let va = memory.addr();
        let length = memory.len() as u64;
        let attr = MkeyAttr { pd: self.pd, va, iova: va, length, access };
        self.nic.create_mkey(attr).unwrap().0
    }

    pub fn cq(&mut self, count: u32) -> Cq {
        self.cq_of_size(count, 64)
    }

    pub fn cq_of_size(&mut self, count: u32, size: u32) -> Cq {
        let ring = Memory::new((count * size) as usize);
        ring.set(0, &vec![0xf0; ring.len()]);
        let record = Memory::new(8);
        let attr = CqAttr {
            buf: ring.addr(),
            dbrec: record.addr(),
            cqe_count: count,
            cqe_size: size,
            compression: None,
            collapsed: false,
            real_time: None,
            uar: CQ_PAGE,
            ignore_overrun: false,
            comp_vector: 0,
        };
        let number = self.nic.create_cq(attr).unwrap();
        Cq { number, ring, record, count, size: size as usize, index: 0 }
    }

    pub fn arm(&mut self, cq: &Cq, sequence: u32, solicited_only: bool) {
        let arm = Arm { sequence, solicited_only, consumer_index: cq.index };
        cq.record.span().set_record(ARM, arm.word().get()).unwrap();
        self.write_register(CQ_PAGE, CQ_DOORBELL as u32, arm.doorbell(cq.number.0).get());
    }

    pub fn write_register(&mut self, page: u32, offset: u32, value: u64) {
        let page = self.nic.uar_page(page).unwrap();
        let bytes = value.to_be_bytes();
        // SAFETY: the buffer is eight bytes, the file belongs to the device.
        let written = unsafe {
            let at = page.offset + u64::from(offset);
            libc::pwrite(page.fd, bytes.as_ptr().cast(), 8, at as libc::off_t)
        };
        assert_eq!(written, 8);
    }

    pub fn srq(&mut self, count: u32, shift: u32) -> Srq {
        self.srq_of_kind(count, shift, SrqKind::Basic, 0)
    }

    pub fn srq_of_kind(&mut self, count: u32, shift: u32, kind: SrqKind, user_index: u32) -> Srq {
        let ring = Memory::new((count as usize) << shift);
        let record = Memory::new(8);
        let attr = SrqAttr {
            pd: self.pd,
            kind,
            buf: ring.addr(),
            dbrec: record.addr(),
            wqe_count: count,
            wqe_shift: shift,
            user_index,
            limit: 0,
            cyclic: false,
        };
        let number = self.nic.create_srq(attr).unwrap();
        let free = (1..count as u16).collect();
        Srq { number, ring, record, shift, next: 0, free, posted: 0 }
    }

    pub fn qp_attr(&mut self, service: Service, send_cq: &Cq, recv_cq: &Cq) -> QpAttr {
        let n = self.qps;
        self.qps += 1;
        // Four registers in a page, one for each queue pair.
        let register = Register { page: CQ_PAGE + 1 + n / 4, offset: BLUE_FLAME as u32 + 512 * (n % 4) };
        assert!(register.offset as usize + 512 <= PAGE_SIZE);
        QpAttr {
            pd: self.pd,
            service,
            send_cq: send_cq.number,
            recv_cq: recv_cq.number,
            srq: None,
            rq: WqAttr { buf: 0, count: 64, shift: 6 },
            sq: WqAttr { buf: 0, count: 64, shift: 6 },
            dbrec: 0,
            register,
            user_index: 0x100 + n,
            signal_all: false,
            scatter_to_cqe_rq: false,
            scatter_to_cqe_sq: false,
            block_multicast_loopback: false,
            raw: RawAttr::default(),
            dc: DcAttr::None,
        }
    }

    pub fn qp(&mut self, mut attr: QpAttr) -> Qp {
        let rq = Memory::new((attr.rq.count as usize) << attr.rq.shift);
        let sq = Memory::new((attr.sq.count as usize) << 6);
        let record = Memory::new(8);
        (attr.rq.buf, attr.sq.buf, attr.dbrec) = (rq.addr(), sq.addr(), record.addr());
        let number = self.nic.create_qp(attr).unwrap();
        Qp { number, attr, rq, sq, record, received: 0, sent: 0, half: 0 }
    }

    pub fn modify(&mut self, qp: &Qp, change: QpModify) {
        self.nic.modify_qp(qp.number, &change).unwrap();
    }

    pub fn set_state(&mut self, qp: &Qp, state: QpState) {
        self.modify(qp, QpModify { state: Some(state), ..QpModify::default() });
    }

    pub fn state(&self, qp: &Qp) -> QpState {
        self.nic.query_qp(qp.number).unwrap().state
    }

    /// Takes a queue pair to RTS, connected to queue pair `peer` at port `dlid`.
    pub fn connect(&mut self, qp: &Qp, dlid: u16, peer: Qpn) {
        self.connect_with(qp, dlid, peer, Path::default());
    }

    pub fn connect_with(&mut self, qp: &Qp, dlid: u16, peer: Qpn, path: Path) {
        let none = QpModify::default();
        self.modify(
            qp,
            QpModify { state: Some(QpState::Init), access: Some(path.access), qkey: Some(path.qkey), ..none },
        );
        self.modify(
            qp,
            QpModify {
                state: Some(QpState::Rtr),
                av: Some(AddressVector { dlid, ..AddressVector::default() }),
                path_mtu: Some(path.mtu),
                dest_qpn: Some(peer.0),
                rq_psn: Some(path.rq_psn),
                max_dest_rd_atomic: Some(path.reads),
                min_rnr_timer: Some(path.rnr_timer),
                ..none
            },
        );
        self.modify(
            qp,
            QpModify {
                state: Some(QpState::Rts),
                sq_psn: Some(path.sq_psn),
                max_rd_atomic: Some(path.reads),
                timeout: Some(path.timeout),
                retry_cnt: Some(path.retry_cnt),
                rnr_retry: Some(path.rnr_retry),
                ..none
            },
        );
    }

    /// Makes two queue pairs of this device, connected to each other.
    pub fn pair(&mut self, attr: impl Fn(QpAttr) -> QpAttr, send: &Cq, recv: &Cq) -> (Qp, Qp) {
        self.pair_with(attr, send, recv, Path::default())
    }

    pub fn pair_with(&mut self, attr: impl Fn(QpAttr) -> QpAttr, send: &Cq, recv: &Cq, path: Path) -> (Qp, Qp) {
        let first = self.qp_attr(Service::Rc, send, recv);
        let first = self.qp(attr(first));
        let second = self.qp_attr(Service::Rc, send, recv);
        let second = self.qp(attr(second));
        let lid = self.nic.port().lid;
        self.connect_with(&first, lid, second.number, path);
        self.connect_with(&second, lid, first.number, path);
        (first, second)
    }

    /// Rings for all posted WQEs: record, then register.
    pub fn ring(&mut self, qp: &mut Qp, last: ControlSegment) {
        qp.record.span().set_record(SEND, u32::from(qp.sent)).unwrap();
        let mut value = [0; 8];
        value.copy_from_slice(&last.to_bytes()[..8]);
        let register = qp.attr.register;
        let offset = register.offset + qp.half;
        self.write_register(register.page, offset, u64::from_be_bytes(value));
        qp.half ^= BF_HALF;
    }

    /// Posts one WQE and rings for it.
    pub fn post(&mut self, qp: &mut Qp, work: &Work) -> u16 {
        let (index, ctrl) = qp.write(work);
        self.ring(qp, ctrl);
        index
    }

    pub fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.nic.next_event()).collect()
    }
}

/// Path of a connection.
#[derive(Clone, Copy)]
pub struct Path {
    pub access: Access,
    pub qkey: u32,
    pub mtu: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub reads: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub rnr_timer: u8,
}

impl Default for Path {
    fn default() -> Self {
        Self {
            access: ALL_ACCESS,
            qkey: 0x1111_1111,
            mtu: 1024,
            rq_psn: 0x1000,
            sq_psn: 0x1000,
            reads: 4,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            rnr_timer: 12,
        }
    }
}

/// A completion queue, polled as a driver does.
pub struct Cq {
    pub number: Cqn,
    pub ring: Memory,
    pub record: Memory,
    count: u32,
    size: usize,
    index: u32,
}

impl Cq {
    /// Writes the arm record, and not the register.
    pub fn write_arm(&self, sequence: u32) {
        let arm = Arm { sequence, solicited_only: false, consumer_index: self.index };
        self.record.span().set_record(ARM, arm.word().get()).unwrap();
    }

    fn at(&self) -> usize {
        (self.index & (self.count - 1)) as usize * self.size + self.size - 64
    }

    /// Returns the next CQE and the bytes before it, without taking it.
    pub fn peek(&self) -> Option<(Cqe64, Vec<u8>)> {
        let mut bytes = [0; 64];
        bytes.copy_from_slice(&self.ring.get(self.at(), 64));
        let cqe = Cqe64::from_bytes(&bytes);
        let ours = u32::from(cqe.owner()) == (self.index / self.count) & 1;
        let front = self.ring.get(self.at() + 64 - self.size, self.size - 64);
        (ours && cqe.opcode() != CqeOpcode::Invalid).then_some((cqe, front))
    }

    pub fn poll_both(&mut self) -> Option<(Cqe64, Vec<u8>)> {
        let found = self.peek()?;
        self.index = self.index.wrapping_add(1);
        let index = self.index & CONSUMER_INDEX_MASK;
        self.record.span().set_record(CONSUMER_INDEX, index).unwrap();
        Some(found)
    }

    pub fn poll(&mut self) -> Option<Cqe64> {
        Some(self.poll_both()?.0)
    }

    /// Resizes the CQ; [`Self::copy_old`] must follow. Returns the new buffer.
    pub fn resize(&mut self, device: &mut Device, count: u32) -> Memory {
        let ring = Memory::new(count as usize * self.size);
        ring.set(0, &vec![0xf0; ring.len()]);
        device.nic.resize_cq(self.number, ring.addr(), count).unwrap();
        ring
    }

    /// Moves the CQEs that were not taken to the new buffer, each one place further, as libmlx5 does.
    pub fn copy_old(&mut self, new: Memory) {
        let count = (new.len() / self.size) as u32;
        let mut index = self.index;
        loop {
            let at = (index & (self.count - 1)) as usize * self.size;
            let mut cqe = self.ring.get(at, self.size);
            let op_own = cqe.last_mut().unwrap();
            assert_eq!(u32::from(*op_own & 1), (index / self.count) & 1, "no resize CQE");
            if CqeOpcode::from_bits(*op_own >> 4) == CqeOpcode::ResizeCq {
                break;
            }
            index += 1;
            *op_own = *op_own & !1 | ((index / count) & 1) as u8;
            new.set((index & (count - 1)) as usize * self.size, &cqe);
        }
        (self.ring, self.count) = (new, count);
        self.index += 1;
    }

    pub fn drain(&mut self) -> Vec<Cqe64> {
        std::iter::from_fn(|| self.poll()).collect()
    }

    /// Takes the next completion, which must be this one.
    #[track_caller]
    pub fn expect(&mut self, opcode: CqeOpcode, qp: &Qp, counter: u16) -> Cqe64 {
        let cqe = self.poll().expect("a completion");
        assert_eq!(cqe.opcode(), opcode, "{:?}", error(&cqe));
        assert_eq!((cqe.qpn(), cqe.wqe_counter.get()), (qp.number.0, counter));
        assert_eq!(cqe.srqn_uidx.get(), qp.attr.user_index);
        cqe
    }

    /// Takes the next completion, which must be an error with this syndrome.
    #[track_caller]
    pub fn expect_error(&mut self, opcode: CqeOpcode, qp: &Qp, counter: u16, syndrome: u8) {
        let cqe = self.poll().expect("a completion");
        assert_eq!(cqe.opcode(), opcode);
        assert_eq!((cqe.qpn(), cqe.wqe_counter.get()), (qp.number.0, counter));
        assert_eq!(error(&cqe).syndrome, syndrome);
    }

    #[track_caller]
    pub fn expect_nothing(&mut self) {
        assert!(self.poll().is_none());
    }
}

pub fn error(cqe: &Cqe64) -> ErrorCqe {
    ErrorCqe::from_bytes(&cqe.to_bytes())
}

/// A send WQE to build.
#[derive(Clone)]
pub struct Work {
    pub opcode: WqeOpcode,
    pub flags: u8,
    pub imm: u32,
    pub stream: u16,
    pub segments: Vec<u8>,
}

impl Work {
    pub fn new(opcode: WqeOpcode) -> Self {
        Self { opcode, flags: CQ_UPDATE, imm: 0, stream: 0, segments: Vec::new() }
    }

    pub fn send() -> Self {
        Self::new(WqeOpcode::SEND)
    }

    pub fn flags(mut self, flags: u8) -> Self {
        self.flags = flags;
        self
    }

    pub fn imm(mut self, imm: u32) -> Self {
        self.imm = imm;
        self
    }

    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self.segments.extend_from_slice(bytes);
        self
    }

    pub fn remote(self, raddr: u64, rkey: u32) -> Self {
        let segment = RemoteAddressSegment { raddr: raddr.into(), rkey: rkey.into(), ..RemoteAddressSegment::zeroed() };
        self.bytes(&segment.to_bytes())
    }

    pub fn data(self, addr: u64, len: u32, lkey: u32) -> Self {
        self.bytes(&DataSegment::new(addr, len, lkey).to_bytes())
    }

    pub fn inline(mut self, bytes: &[u8]) -> Self {
        let header = 1 << 31 | bytes.len() as u32;
        self.segments.extend_from_slice(&header.to_be_bytes());
        self.segments.extend_from_slice(bytes);
        self.segments.resize(self.segments.len().next_multiple_of(16), 0xee);
        self
    }
}

/// A queue pair.
pub struct Qp {
    pub number: Qpn,
    pub attr: QpAttr,
    pub rq: Memory,
    pub sq: Memory,
    pub record: Memory,
    pub received: u16,
    pub sent: u16,
    half: u32,
}

impl Qp {
    /// Writes a WQE without a doorbell.
    pub fn write(&mut self, work: &Work) -> (u16, ControlSegment) {
        let index = self.sent;
        let ds = 1 + work.segments.len() / 16;
        let opcode = work.opcode.get();
        let mut ctrl = ControlSegment::new(opcode, index, self.number.0, ds as u8, work.flags);
        ctrl.imm = Be32::new(work.imm);
        ctrl.dci_stream_channel_id = work.stream.to_be_bytes();
        let bytes = [&ctrl.to_bytes()[..], &work.segments].concat();
        let start = (u32::from(index) & (self.attr.sq.count - 1)) as usize * 64;
        for (i, chunk) in bytes.chunks(16).enumerate() {
            self.sq.set((start + 16 * i) % self.sq.len(), chunk);
        }
        self.sent = index.wrapping_add(ds.div_ceil(4) as u16);
        (index, ctrl)
    }

    /// Posts a receive; returns its running index.
    pub fn post_receive(&mut self, segments: &[DataSegment]) -> u16 {
        let index = self.received;
        let stride = 1 << self.attr.rq.shift;
        let at = (u32::from(index) & (self.attr.rq.count - 1)) as usize * stride;
        for i in 0..stride / 16 {
            let segment = segments.get(i).unwrap_or(&DataSegment::TERMINATOR);
            self.rq.set(at + 16 * i, &segment.to_bytes());
        }
        self.received = index.wrapping_add(1);
        self.record.span().set_record(RECEIVE, u32::from(self.received)).unwrap();
        index
    }
}

/// A shared receive queue; slots are used again in the order in which they come back.
pub struct Srq {
    pub number: Srqn,
    pub ring: Memory,
    pub record: Memory,
    shift: u32,
    // The slot to which the WQE posted last links: it stays unposted.
    next: u16,
    free: VecDeque<u16>,
    posted: u16,
}

impl Srq {
    /// Posts a receive; returns `None` if all usable slots are taken.
    pub fn post(&mut self, segments: &[DataSegment]) -> Option<u16> {
        let slot = self.next;
        self.next = self.free.pop_front()?;
        let stride = 1 << self.shift;
        let at = usize::from(slot) * stride;
        self.ring.set(at, &NextSegment::new(self.next).to_bytes());
        for i in 0..stride / 16 - 1 {
            let segment = segments.get(i).unwrap_or(&DataSegment::TERMINATOR);
            self.ring.set(at + 16 * (i + 1), &segment.to_bytes());
        }
        self.posted = self.posted.wrapping_add(1);
        self.record.span().set_record(RECEIVE, u32::from(self.posted)).unwrap();
        Some(slot)
    }

    /// Returns the slot that the next post fills.
    pub fn next_slot(&self) -> u16 {
        self.next
    }

    pub fn give_back(&mut self, slot: u16) {
        self.free.push_back(slot);
    }
}

/// Returns bytes that differ from message to message.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = crate::base::rng::Rng::new(seed);
    let words = std::iter::repeat_with(|| rng.next_u64().to_le_bytes());
    words.flatten().take(len).collect()
}

/// Two queue pairs of a device that are connected to each other, and memory of which all is registered.
pub struct Setup {
    pub device: Device,
    pub send: Cq,
    pub recv: Cq,
    pub a: Qp,
    pub b: Qp,
    pub memory: Memory,
    pub key: u32,
}

impl Setup {
    pub fn new(path: Path) -> Self {
        Self::with(Device::new(), 256, |device, send, recv| device.pair_with(|attr| attr, send, recv, path))
    }

    /// Makes a setup on `device`, with CQs of `entries` entries, and queue pairs that `pair` makes.
    pub fn with(mut device: Device, entries: u32, pair: impl FnOnce(&mut Device, &Cq, &Cq) -> (Qp, Qp)) -> Self {
        let (send, recv) = (device.cq(entries), device.cq(entries));
        let (a, b) = pair(&mut device, &send, &recv);
        let memory = Memory::new(65536);
        let key = device.register(&memory, ALL_ACCESS);
        Self { device, send, recv, a, b, memory, key }
    }

    /// Posts a receive of `len` bytes at the start of the memory.
    pub fn receive(&mut self, len: u32) -> u16 {
        self.b.post_receive(&[DataSegment::new(self.memory.addr(), len, self.key)])
    }
}
