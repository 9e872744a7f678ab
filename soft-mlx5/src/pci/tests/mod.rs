//! A driver in miniature: it knows the commands, and a host whose pages are scattered.

mod events;
mod frames;
mod lifecycle;
mod objects;
mod random;
mod refusals;
mod registers;
mod templates;
mod traffic;

use std::sync::{Arc, Mutex};

use mlx5_wire::firmware::command::{Created, Numbered, Opcode, Reply, Request};
use mlx5_wire::firmware::cq::{CqContext, CreateCq};
use mlx5_wire::firmware::eq::{CreateEq, EqContext, Eqe};
use mlx5_wire::firmware::mkey::{CreateMkey, MkeyContext, access_mode};
use mlx5_wire::firmware::qp::{AddressPath, CreateQp, ModifyQp, QpContext, optional, rq_type};
use mlx5_wire::firmware::srq::{CreateRmp, RmpContext};
use mlx5_wire::firmware::wq::WorkQueue;

use self::templates::PAGE;
pub use self::templates::with_pages;
use crate::base::test_memory::Pages;
use crate::commands::refusal::Refusal;
use crate::engine::NicConfig;
use crate::fabric::LinkLayer;
use crate::objects::memory::Space;
use crate::pci::{Access, Dma, Function, Interrupts, Piece};

/// A prime number, so that multiples of a step meet every page.
const PAGES: u64 = 1021;

/// Memory of a host: no two neighbouring pages lie together, and page 0 does not exist.
pub struct Host {
    pages: Pages,
    next: Mutex<u64>,
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Host")
    }
}

// SAFETY: the pages belong to the test as long as the host lives, and only copies reach them.
unsafe impl Dma for Host {
    fn translate(&self, address: u64, _: Access) -> Option<Piece> {
        let (page, within) = (address / PAGE, address % PAGE);
        let place = (page * 7 % PAGES) as usize;
        (1..PAGES).contains(&page).then(|| Piece { address: self.pages.addr(place) + within, len: PAGE - within })
    }
}

impl Host {
    fn new() -> Arc<Self> {
        Arc::new(Self { pages: Pages::new(PAGES as usize), next: Mutex::new(1) })
    }

    /// Takes pages that were not used.
    pub fn take(&self, count: u64) -> Vec<u64> {
        let mut next = self.next.lock().unwrap();
        let first = *next;
        *next += count;
        assert!(*next <= PAGES, "the host has no more pages");
        // From the last to the first: a list is not the memory from its first page on.
        (first..*next).rev().map(|page| page * PAGE).collect()
    }

    /// Copies out.
    pub fn read<const N: usize>(self: &Arc<Self>, address: u64) -> [u8; N] {
        let mut bytes = [0; N];
        Space::Host(self.clone()).read(address, &mut bytes).unwrap();
        bytes
    }

    /// Copies in.
    pub fn write(self: &Arc<Self>, address: u64, bytes: &[u8]) {
        // SAFETY: the memory is the test's.
        unsafe { Space::Host(self.clone()).write(address, bytes).unwrap() };
    }

    /// Returns a big-endian word.
    pub fn word(self: &Arc<Self>, address: u64) -> u32 {
        u32::from_be_bytes(self.read(address))
    }

    /// Sets a big-endian word.
    pub fn set_word(self: &Arc<Self>, address: u64, word: u32) {
        self.write(address, &word.to_be_bytes());
    }
}

/// Interrupts that were raised.
#[derive(Debug, Clone, Default)]
pub struct Raised(Arc<Mutex<Vec<u32>>>);

impl Interrupts for Raised {
    fn raise(&mut self, vector: u32) {
        self.0.lock().unwrap().push(vector);
    }
}

impl Raised {
    /// Takes all interrupts since the last call.
    pub fn take(&self) -> Vec<u32> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

/// A driver and its function.
pub struct Driver {
    pub function: Function,
    pub host: Arc<Host>,
    pub raised: Raised,
    pub now: u64,
}

/// An event queue of the driver.
pub struct Eq {
    pub number: u32,
    pub pages: Vec<u64>,
    pub log_size: u8,
    pub taken: u32,
}

/// A completion queue of the driver.
pub struct Cq {
    pub number: u32,
    pub pages: Vec<u64>,
    pub record: u64,
    pub log_size: u8,
    pub taken: u32,
}

/// A queue pair of the driver, with 16-byte receive WQEs behind which the send queue begins.
pub struct Qp {
    pub number: u32,
    pub pages: Vec<u64>,
    pub record: u64,
    pub sent: u16,
    pub received: u16,
}

/// log2 of the receive WQEs and of the basic blocks of the queue pairs of the driver.
pub const LOG_RQ: u8 = 6;
pub const LOG_SQ: u8 = 8;

/// A driver with an event queue and a CQ.
struct World {
    driver: Driver,
    uar: u32,
    pd: u32,
    eq: Eq,
    cq: Cq,
}

/// Starts an InfiniBand function, whose event queue reports `events`.
fn world(events: u64) -> World {
    world_of(Driver::started(LinkLayer::InfiniBand), events)
}

/// Makes them on a function that was started.
fn world_of(mut driver: Driver, events: u64) -> World {
    let uar = driver.numbered(Opcode::ALLOC_UAR, 0).unwrap();
    let pd = driver.numbered(Opcode::ALLOC_PD, 0).unwrap();
    let eq = driver.eq(6, events, 0, uar);
    let cq = driver.cq(7, eq.number, uar);
    World { driver, uar, pd, eq, cq }
}

impl Driver {
    /// Powers a function up.
    pub fn new(link_layer: LinkLayer) -> Self {
        Self::with(NicConfig { link_layer, strict: true, ..NicConfig::default() })
    }

    /// Does the same with this configuration.
    pub fn with(config: NicConfig) -> Self {
        let (host, raised) = (Host::new(), Raised::default());
        let function = Function::new(config, host.clone(), Box::new(raised.clone())).unwrap();
        Self { function, host, raised, now: 0 }
    }

    /// Does the same and starts the function, as drivers do.
    pub fn started(link_layer: LinkLayer) -> Self {
        let mut driver = Self::new(link_layer);
        driver.start();
        driver
    }

    /// Starts the function.
    pub fn start(&mut self) {
        for (opcode, number) in [(Opcode::ENABLE_HCA, 0), (Opcode::SET_ISSI, 1)] {
            self.numbered(opcode, number).unwrap();
        }
        self.numbered(Opcode::INIT_HCA, 0).unwrap();
    }

    /// Executes a command; returns the whole answer.
    pub fn execute(&mut self, input: &[u8], output: usize) -> Result<Vec<u8>, Refusal> {
        let mut answer = vec![0xee; output];
        self.function.execute(input, &mut answer);
        let head = Reply::from_prefix(&answer).unwrap();
        if head.status == 0 {
            return Ok(answer);
        }
        let refusal = *Function::explain(head.syndrome).unwrap();
        assert_eq!(head.status, refusal.status as u8);
        assert!(answer[Reply::SIZE..].iter().all(|byte| *byte == 0));
        Err(refusal)
    }

    /// Executes a command about a number; returns the number in the answer.
    pub fn numbered(&mut self, opcode: Opcode, number: u32) -> Result<u32, Refusal> {
        self.numbered_by(0, opcode, number)
    }

    /// Does the same for a user.
    pub fn numbered_by(&mut self, uid: u16, opcode: Opcode, number: u32) -> Result<u32, Refusal> {
        let request = Request { uid, ..Request::new(opcode) };
        let input = Numbered { request, number, ..Numbered::ZERO };
        self.create(&input.to_bytes())
    }

    /// Executes a command that makes an object; returns its number.
    pub fn create(&mut self, input: &[u8]) -> Result<u32, Refusal> {
        let answer = self.execute(input, Created::SIZE)?;
        Ok(Created::from_prefix(&answer).unwrap().number)
    }

    /// Takes an eight-byte record out of a page of its own.
    pub fn record(&mut self) -> u64 {
        self.host.take(1)[0] + 0x40
    }

    /// Makes an event queue.
    pub fn eq(&mut self, log_size: u8, event_mask: u64, interrupt: u8, uar_page: u32) -> Eq {
        let pages = self.host.take((64u64 << log_size).div_ceil(PAGE));
        let context = EqContext { log_size, uar_page, interrupt, ..EqContext::ZERO };
        let create = CreateEq { request: Request::new(Opcode::CREATE_EQ), context, event_mask };
        let number = self.create(&with_pages(&create.to_bytes(), &pages)).unwrap();
        for entry in 0..1u64 << log_size {
            self.host.write(pages[(entry / 64) as usize] + entry % 64 * 64 + 63, &[1]);
        }
        Eq { number, pages, log_size, taken: 0 }
    }

    /// Takes the next entry of an event queue.
    pub fn next_event(&mut self, eq: &mut Eq) -> Option<Eqe> {
        let slot = u64::from(eq.taken & ((1 << eq.log_size) - 1));
        let at = eq.pages[(slot / 64) as usize] + slot % 64 * 64;
        let eqe = Eqe::from_bytes(&self.host.read(at));
        let lap = eq.taken >> eq.log_size & 1 != 0;
        (eqe.owner == lap).then(|| {
            eq.taken += 1;
            eqe
        })
    }

    /// Context and pages of a completion queue.
    pub fn cq_command(&mut self, log_size: u8, eqn: u32, uar_page: u32) -> (CreateCq, Cq) {
        let pages = self.host.take((64u64 << log_size).div_ceil(PAGE));
        let record = self.record();
        let context = CqContext { log_size, uar_page, eqn: eqn as u8, dbr_addr: record, ..CqContext::ZERO };
        let request = Request::new(Opcode::CREATE_CQ);
        let create = CreateCq { request, context, ..CreateCq::ZERO };
        (create, Cq { number: 0, pages, record, log_size, taken: 0 })
    }

    /// Makes a completion queue.
    pub fn cq(&mut self, log_size: u8, eqn: u32, uar_page: u32) -> Cq {
        let (create, mut cq) = self.cq_command(log_size, eqn, uar_page);
        for slot in 0..1u64 << log_size {
            self.host.write(cq.pages[(slot / 64) as usize] + slot % 64 * 64 + 63, &[0xf1]);
        }
        cq.number = self.create(&with_pages(&create.to_bytes(), &cq.pages)).unwrap();
        cq
    }

    /// Takes the next CQE.
    pub fn poll(&mut self, cq: &mut Cq) -> Option<[u8; 64]> {
        let slot = u64::from(cq.taken & ((1 << cq.log_size) - 1));
        let cqe: [u8; 64] = self.host.read(cq.pages[(slot / 64) as usize] + slot % 64 * 64);
        let lap = (cq.taken >> cq.log_size & 1) as u8;
        if cqe[63] >> 4 == 0xf || cqe[63] & 1 != lap {
            return None;
        }
        cq.taken += 1;
        self.host.set_word(cq.record, cq.taken & 0xff_ffff);
        Some(cqe)
    }

    /// Makes a key for a buffer of pages, which begins at `start` for programs.
    pub fn mkey(&mut self, pd: u32, start: u64, len: u64, pages: &[u64]) -> u32 {
        let context = MkeyContext {
            local_write: true,
            local_read: true,
            remote_write: true,
            remote_read: true,
            access_mode: access_mode::MTT,
            qpn: 0xff_ffff,
            variant: 0x5a,
            pd,
            start,
            len,
            log_page_size: 12,
            ..MkeyContext::ZERO
        };
        let create = CreateMkey {
            request: Request::new(Opcode::CREATE_MKEY),
            context,
            translations_actual: pages.len().div_ceil(2) as u32,
            ..CreateMkey::ZERO
        };
        self.create(&with_pages(&create.to_bytes(), pages)).unwrap() << 8 | 0x5a
    }

    /// Context and pages of a queue pair.
    pub fn qp_command(&mut self, pd: u32, uar_page: u32, cq: &Cq) -> (CreateQp, Vec<u64>) {
        let bytes = (16u64 << LOG_RQ) + (64u64 << LOG_SQ);
        let pages = self.host.take(bytes.div_ceil(PAGE));
        let context = QpContext {
            pd,
            uar_page,
            log_rq_size: LOG_RQ,
            log_sq_size: LOG_SQ,
            cqn_snd: cq.number,
            cqn_rcv: cq.number,
            dbr_addr: self.record(),
            ..QpContext::ZERO
        };
        let request = Request::new(Opcode::CREATE_QP);
        (CreateQp { request, context, ..CreateQp::ZERO }, pages)
    }

    /// Makes a queue pair of a service, with an SRQ or without.
    pub fn qp(&mut self, pd: u32, uar: u32, cq: &Cq, service: u8, srqn: Option<u32>) -> Qp {
        let (mut create, pages) = self.qp_command(pd, uar, cq);
        create.context.service = service;
        if let Some(srqn) = srqn {
            (create.context.rq_type, create.context.srqn) = (rq_type::SRQ, srqn);
        }
        let number = self.create(&with_pages(&create.to_bytes(), &pages)).unwrap();
        Qp { number, pages, record: create.context.dbr_addr, sent: 0, received: 0 }
    }

    /// Executes a command that changes a queue pair.
    pub fn modify(&mut self, opcode: Opcode, qpn: u32, optional: u32, context: QpContext) -> Result<(), Refusal> {
        let request = Request::new(opcode);
        let modify = ModifyQp { request, qpn, optional, context };
        self.execute(&modify.to_bytes(), Created::SIZE).map(drop)
    }

    /// Takes a queue pair to RTS, connected to another one of this function.
    pub fn connect(&mut self, qp: &Qp, to: u32) {
        self.connect_with_reads(qp, to, [0, 0]);
    }

    /// Does the same with log2 of the READs that it may send at a time, and that it takes.
    pub fn connect_with_reads(&mut self, qp: &Qp, to: u32, [log_sra_max, log_rra_max]: [u8; 2]) {
        let lid = self.function.port().lid;
        let path = AddressPath { port: 1, ..AddressPath::ZERO };
        let init = QpContext { rwe: true, rre: true, path, q_key: 0x1111, ..QpContext::ZERO };
        self.modify(Opcode::RST2INIT_QP, qp.number, 0, init).unwrap();
        let path = AddressPath { rlid: lid, ..AddressPath::ZERO };
        let rtr = QpContext { mtu: 3, remote_qpn: to, path, min_rnr_nak: 1, log_rra_max, ..QpContext::ZERO };
        self.modify(Opcode::INIT2RTR_QP, qp.number, optional::RAE, rtr).unwrap();
        let path = AddressPath { ack_timeout: 14, ..AddressPath::ZERO };
        let rts = QpContext { retry_count: 7, rnr_retry: 7, path, log_sra_max, ..QpContext::ZERO };
        self.modify(Opcode::RTR2RTS_QP, qp.number, 0, rts).unwrap();
    }

    /// Makes an RMP of 64-byte WQEs; returns its number, its pages and its record.
    pub fn rmp(&mut self, pd: u32, log_size: u8, lwm: u16) -> (u32, Vec<u64>, u64) {
        let pages = self.host.take((64u64 << log_size).div_ceil(PAGE));
        let dbr_addr = self.record();
        let queue = WorkQueue { pd, dbr_addr, log_stride: 6, log_size, lwm, ..WorkQueue::ZERO };
        let context = RmpContext { state: 1, queue, ..RmpContext::ZERO };
        let create = CreateRmp { request: Request::new(Opcode::CREATE_RMP), context };
        let number = self.create(&with_pages(&create.to_bytes(), &pages)).unwrap();
        (number, pages, dbr_addr)
    }

    /// Lets the function work until it has nothing to do.
    pub fn settle(&mut self) {
        for _ in 0..10_000 {
            self.now += 1000;
            if !self.function.step(self.now) {
                return;
            }
        }
        panic!("the function does not come to rest");
    }
}

/// A command that has nothing but a number.
pub fn numbered(opcode: Opcode, number: u32) -> [u8; 16] {
    let request = Request::new(opcode);
    Numbered { request, number, parameter: 0 }.to_bytes()
}
