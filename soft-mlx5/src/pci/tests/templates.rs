//! Commands that are right if the driver has made one of each object that they name: the numbers are those of the first
//! objects of a function. The fuzz targets use them, too.

use mlx5_wire::firmware::command::{Opcode, Request};
use mlx5_wire::firmware::cq::{CqContext, CreateCq};
use mlx5_wire::firmware::eq::{CreateEq, EqContext};
use mlx5_wire::firmware::flow::{CreateGroup, CreateTable, SetEntry, TableContext};
use mlx5_wire::firmware::mkey::{CreateMkey, CreateUmem, MkeyContext};
use mlx5_wire::firmware::qp::{CreateQp, ModifyQp, QpContext};
use mlx5_wire::firmware::srq::{CreateRmp, CreateXrq, RmpContext, XrqContext};
use mlx5_wire::firmware::transport::{CreateRq, CreateSq, CreateTir, CreateTis, RqContext, SqContext};
use mlx5_wire::firmware::wq::{WorkQueue, kind};

/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// Number of the first protection domain.
pub const PD: u32 = 1;
/// First UAR page.
pub const UAR: u32 = 0x10;
/// Number of the first event queue.
pub const EQ: u8 = 0x10;
/// Number of the first completion queue.
pub const CQ: u32 = 0x400;
/// Number of the first queue pair.
pub const QP: u32 = 0x40;
/// Address of the doorbell records.
pub const RECORD: u64 = 0x5040;

/// Returns a command of each kind that makes objects, and of each that moves a queue pair. A page list follows each.
pub fn templates() -> Vec<Vec<u8>> {
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
    let xrq = XrqContext { topology: 1, offload: 1, cqn: CQ, log_list_size: 7, queue: list, ..XrqContext::ZERO };
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
        CreateXrq { request: request(Opcode::CREATE_XRQ), context: xrq }.to_bytes().to_vec(),
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
        let modify = ModifyQp { request: request(opcode), qpn: QP, optional: 0, context: qp };
        all.push(modify.to_bytes().to_vec());
    }
    all.iter().map(|head| with_pages(head, &pages)).collect()
}

/// Bytes of a head followed by a page list.
pub fn with_pages(head: &[u8], pages: &[u64]) -> Vec<u8> {
    head.iter().copied().chain(pages.iter().flat_map(|page| page.to_be_bytes())).collect()
}
