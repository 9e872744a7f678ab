//! Many commands of chance: nothing panics, nothing grows, no object is lost.

use std::collections::BTreeSet;

use mlx5_wire::firmware::command::{Opcode, Request};
use mlx5_wire::firmware::cq::{CqContext, CreateCq};
use mlx5_wire::firmware::eq::{CreateEq, EqContext};
use mlx5_wire::firmware::flow::{CreateGroup, CreateTable, SetEntry, TableContext};
use mlx5_wire::firmware::mkey::{CreateMkey, CreateUmem, MkeyContext};
use mlx5_wire::firmware::qp::{CreateQp, ModifyQp, QpContext};
use mlx5_wire::firmware::srq::{CreateRmp, RmpContext};
use mlx5_wire::firmware::transport::{CreateRq, CreateSq, CreateTir, CreateTis, RqContext, SqContext};
use mlx5_wire::firmware::wq::{WorkQueue, kind};

use super::{Driver, PAGE, with_pages};
use crate::fabric::LinkLayer;
use crate::fabric::rng::Rng;
use crate::firmware::opcodes::ENTRIES;
use crate::nic::NicConfig;

/// Commands of a short run, for each link layer.
const COMMANDS: usize = 60_000;

fn below(random: &mut Rng, end: usize) -> usize {
    random.below(end as u64) as usize
}

// Contexts that are right if the driver has made one of each object that they name, whose numbers begin here.
const PD: u32 = 1;
const UAR: u32 = 0x10;
const EQ: u8 = 0x10;
const CQ: u32 = 0x400;
const RECORD: u64 = 0x5040;

fn templates() -> Vec<Vec<u8>> {
    let pages: Vec<u64> = (1..20).map(|page| page * PAGE).collect();
    let request = Request::new;
    let wq = WorkQueue {
        kind: kind::CYCLIC,
        pd: PD,
        uar_page: UAR,
        dbr_addr: RECORD,
        log_stride: 6,
        log_size: 4,
        ..WorkQueue::ZERO
    };
    let eq = EqContext { log_size: 6, uar_page: UAR, ..EqContext::ZERO };
    let cq = CqContext { log_size: 6, uar_page: UAR, eqn: EQ, dbr_addr: RECORD, ..CqContext::ZERO };
    let key = MkeyContext {
        local_write: true,
        access_mode: 1,
        qpn: 0xff_ffff,
        pd: PD,
        len: 4 * PAGE,
        log_page_size: 12,
        ..MkeyContext::ZERO
    };
    let qp = QpContext {
        pd: PD,
        uar_page: UAR,
        log_rq_size: 4,
        log_sq_size: 4,
        cqn_snd: CQ,
        cqn_rcv: CQ,
        dbr_addr: RECORD,
        mtu: 3,
        ..QpContext::ZERO
    };
    let list = WorkQueue { kind: kind::LINKED_LIST, ..wq };
    let rmp = RmpContext { queue: list, ..RmpContext::ZERO };
    let sq = SqContext { cqn: CQ, tis_count: 1, tisn: 1, queue: wq, ..SqContext::ZERO };
    let rq = RqContext { cqn: CQ, queue: wq, ..RqContext::ZERO };
    let table = TableContext { level: 1, log_size: 4, ..TableContext::ZERO };
    let mut all = vec![
        CreateEq { request: request(Opcode::CREATE_EQ), context: eq, event_mask: u64::MAX }.to_bytes().to_vec(),
        CreateCq { request: request(Opcode::CREATE_CQ), context: cq, ..CreateCq::ZERO }.to_bytes().to_vec(),
        CreateMkey { request: request(Opcode::CREATE_MKEY), context: key, translations_actual: 8, ..CreateMkey::ZERO }
            .to_bytes()
            .to_vec(),
        CreateQp { request: request(Opcode::CREATE_QP), context: qp, ..CreateQp::ZERO }.to_bytes().to_vec(),
        CreateRmp { request: request(Opcode::CREATE_RMP), context: rmp }.to_bytes().to_vec(),
        CreateUmem { request: request(Opcode::CREATE_UMEM), pages: 4, ..CreateUmem::ZERO }.to_bytes().to_vec(),
        CreateTis { request: request(Opcode::CREATE_TIS), transport_domain: 1, ..CreateTis::ZERO }.to_bytes().to_vec(),
        CreateSq { request: request(Opcode::CREATE_SQ), context: sq }.to_bytes().to_vec(),
        CreateRq { request: request(Opcode::CREATE_RQ), context: rq }.to_bytes().to_vec(),
        CreateTir { request: request(Opcode::CREATE_TIR), inline_rqn: 0x2000, transport_domain: 1, ..CreateTir::ZERO }
            .to_bytes()
            .to_vec(),
        CreateTable { request: request(Opcode::CREATE_FLOW_TABLE), context: table, ..CreateTable::ZERO }
            .to_bytes()
            .to_vec(),
        CreateGroup {
            request: request(Opcode::CREATE_FLOW_GROUP),
            table: 1,
            end: 15,
            criteria: 1,
            ..CreateGroup::ZERO
        }
        .to_bytes()
        .to_vec(),
        SetEntry { request: request(Opcode::SET_FLOW_TABLE_ENTRY), table: 1, group: 1, action: 4, ..SetEntry::ZERO }
            .to_bytes()
            .to_vec(),
    ];
    for opcode in
        [Opcode::RST2INIT_QP, Opcode::INIT2INIT_QP, Opcode::INIT2RTR_QP, Opcode::RTR2RTS_QP, Opcode::RTS2RTS_QP]
    {
        let modify = ModifyQp { request: request(opcode), qpn: 0x40, optional: 0, context: qp };
        all.push(modify.to_bytes().to_vec());
    }
    all.iter().map(|head| with_pages(head, &pages)).collect()
}

fn value(random: &mut Rng) -> u32 {
    match below(random, 8) {
        0 => random.next_u64() as u32,
        1 => below(random, 0x50) as u32,
        2 => CQ + below(random, 8) as u32,
        3 => PAGE as u32 * below(random, 1100) as u32,
        4 => (below(random, 32) as u32) << (8 * below(random, 4)),
        5 => 1 << below(random, 32),
        _ => 0,
    }
}

// A command that is right but for a few words.
fn nearly_right(random: &mut Rng, templates: &[Vec<u8>]) -> Vec<u8> {
    let mut input = templates[below(random, templates.len())].clone();
    for _ in 0..below(random, 2) * below(random, 4) {
        // Words of the context are hit more often than those of the list.
        let all = input.len() / 4;
        let words = if below(random, 4) == 0 { all } else { all.min(0x44) };
        let at = 4 * (2 + below(random, words - 2));
        let word = value(random);
        input[at..at + 4].copy_from_slice(&word.to_be_bytes());
    }
    if input[0] == 5 && below(random, 2) == 0 {
        // Another queue pair.
        input[11] = 0x40 + below(random, 64) as u8;
    }
    input
}

// A command whose fields are small numbers: these name objects more often than not.
fn command(random: &mut Rng) -> Vec<u8> {
    let entry = &ENTRIES[below(random, ENTRIES.len())];
    let len = entry.input + 8 * below(random, 12);
    let mut input = vec![0; len];
    for word in input.chunks_exact_mut(4) {
        if below(random, 2) == 0 {
            word.copy_from_slice(&value(random).to_be_bytes());
        }
    }
    let uid = if below(random, 4) == 0 { below(random, 4) as u16 } else { 0 };
    let op_mod = if below(random, 4) == 0 { below(random, 4) as u16 } else { 1 };
    let request = Request { opcode: entry.opcode.0, uid, op_mod };
    request.put(input.first_chunk_mut().unwrap());
    input.truncate(len - below(random, 3) * (below(random, 8) / 7));
    input
}

// Commands that end the function end the run of luck, too: they are rare.
fn ends(input: &[u8]) -> bool {
    let request = Request::from_prefix(input).unwrap_or(Request::ZERO);
    matches!(Opcode(request.opcode), Opcode::TEARDOWN_HCA | Opcode::DISABLE_HCA)
}

fn run(commands: usize, seed: u64, link_layer: LinkLayer) {
    let mut driver = Driver::with(NicConfig { link_layer, ..NicConfig::default() });
    driver.start();
    let mut random = Rng::new(seed);
    let templates = templates();
    let mut made = BTreeSet::new();
    let mut most = 0;
    for count in 0..commands {
        let whole = below(&mut random, 2) == 0;
        let input = if whole { nearly_right(&mut random, &templates) } else { command(&mut random) };
        if ends(&input) && below(&mut random, 1000) != 0 {
            continue;
        }
        let mut output = vec![0; [0, 8, 16, 16, 16, 0x110, 0x1010][below(&mut random, 7)]];
        driver.function.execute(&input, &mut output);
        if output.first() == Some(&0) {
            made.extend(Request::from_prefix(&input).map(|request| request.opcode));
        }
        if below(&mut random, 16) == 0 {
            let offset = 8 * below(&mut random, 512);
            let (page, doorbell) = (0x10 + below(&mut random, 2) as u32, random.next_u64());
            driver.function.write_uar(page, offset, &doorbell.to_be_bytes());
        }
        if below(&mut random, 64) == 0 {
            driver.function.step(count as u64 * 1000);
        }
        if count % 1000 == 0 {
            assert!(driver.function.objects.is_consistent());
            driver.start_again();
        }
        most = most.max(driver.function.objects.len());
    }
    assert!(most > 100, "the commands make {most} objects at most");
    let creates = ["CREATE_CQ", "CREATE_QP", "CREATE_MKEY", "CREATE_RMP", "RTR2RTS_QP"];
    let frames = ["CREATE_SQ", "CREATE_RQ", "CREATE_TIR", "SET_FLOW_TABLE_ENTRY"];
    let ethernet = link_layer == LinkLayer::Ethernet;
    for name in creates.iter().chain(frames.iter().filter(|_| ethernet)) {
        let done = made.iter().any(|opcode| Opcode(*opcode).name() == Some(name));
        assert!(done, "no {name} was right");
    }
    driver.start_again();
    driver.numbered(Opcode::TEARDOWN_HCA, 0).unwrap();
    assert_eq!(driver.function.objects.len(), 0);
    assert!(!driver.function.has_queue_pairs());
}

#[test]
fn commands_of_chance() {
    run(COMMANDS, 1, LinkLayer::InfiniBand);
    run(COMMANDS, 2, LinkLayer::Ethernet);
}

#[test]
#[ignore = "takes minutes: a million commands"]
fn many_commands_of_chance() {
    for seed in 0..10 {
        run(50_000, seed, LinkLayer::InfiniBand);
        run(50_000, seed, LinkLayer::Ethernet);
    }
}

impl Driver {
    /// Starts the function, unless it runs.
    fn start_again(&mut self) {
        let _ = self.numbered(Opcode::ENABLE_HCA, 0);
        let _ = self.numbered(Opcode::INIT_HCA, 0);
    }
}
