//! Owners, references, and contexts that cannot be.

use mlx5_wire::firmware::command::{Multicast, Opcode, Request};
use mlx5_wire::firmware::cq::{CqContext, CreateCq, ModifyCq};
use mlx5_wire::firmware::eq::{QueueData, event};
use mlx5_wire::firmware::mkey::{CreateMkey, CreateUmem, MkeyContext, access_mode};
use mlx5_wire::firmware::qp::{CreateQp, QpContext, optional, rq_type, service};
use mlx5_wire::firmware::srq::{
    ArmSrq, CreateRmp, CreateXrcSrq, CreateXrq, ModifyRmp, QueryXrqReply, RmpContext, XrcSrqContext, XrqContext,
};
use mlx5_wire::firmware::wq::{WorkQueue, kind};

use super::{Driver, World, numbered, with_pages, world};
use crate::commands::limits::MAX_MCAST_MEMBERS;
use crate::commands::refusal::Refusal;

#[test]
fn objects_in_use_are_not_destroyed() {
    let World { mut driver, uar, pd, eq, cq } = world(0);
    let xrcd = driver.numbered(Opcode::ALLOC_XRCD, 0).unwrap();
    let context = XrcSrqContext {
        log_size: 4,
        log_stride: 2,
        xrcd,
        pd,
        cqn: cq.number,
        dbr_addr: driver.record(),
        ..XrcSrqContext::ZERO
    };
    let request = Request::new(Opcode::CREATE_XRC_SRQ);
    let pages = driver.host.take(1);
    let create = CreateXrcSrq { request, context };
    let xrc = driver.create(&with_pages(&create.to_bytes(), &pages)).unwrap();
    let (rmp, ..) = driver.rmp(pd, 4, 0);
    let qp = driver.qp(pd, uar, &cq, service::RC, Some(rmp)).number;
    let page = driver.host.take(1);
    let key = driver.mkey(pd, 0, 4096, &page) >> 8;
    let mut destroy = |opcode, number| driver.numbered(opcode, number).err();
    for (opcode, number) in [
        (Opcode::DEALLOC_UAR, uar),
        (Opcode::DEALLOC_PD, pd),
        (Opcode::DEALLOC_XRCD, xrcd),
        (Opcode::DESTROY_EQ, eq.number),
        (Opcode::DESTROY_CQ, cq.number),
        (Opcode::DESTROY_RMP, rmp),
    ] {
        assert_eq!(destroy(opcode, number), Some(Refusal::IN_USE), "{opcode:?}");
    }
    for (opcode, number) in [
        (Opcode::DESTROY_QP, qp),
        (Opcode::DESTROY_RMP, rmp),
        (Opcode::DESTROY_XRC_SRQ, xrc),
        (Opcode::DEALLOC_XRCD, xrcd),
        (Opcode::DESTROY_MKEY, key),
        (Opcode::DESTROY_CQ, cq.number),
        (Opcode::DESTROY_EQ, eq.number),
        (Opcode::DEALLOC_PD, pd),
        (Opcode::DEALLOC_UAR, uar),
    ] {
        assert_eq!(destroy(opcode, number), None, "{opcode:?}");
        assert_eq!(destroy(opcode, number), Some(Refusal::NO_OBJECT), "{opcode:?}");
    }
    assert_eq!(driver.function.objects(), 0);
}

#[test]
fn users_reach_their_own_objects_and_what_is_shared() {
    let World { mut driver, uar, pd, eq, cq } = world(0);
    let user = |driver: &mut Driver| driver.numbered(Opcode::CREATE_UCTX, 0).unwrap() as u16;
    let (a, b) = (user(&mut driver), user(&mut driver));
    assert_eq!(driver.numbered_by(b + 1, Opcode::ALLOC_PD, 0), Err(Refusal::NO_USER));
    let own_pd = driver.numbered_by(a, Opcode::ALLOC_PD, 0).unwrap();
    assert_eq!(driver.numbered_by(b, Opcode::DEALLOC_PD, own_pd), Err(Refusal::OWNER));
    assert_eq!(driver.numbered_by(a, Opcode::DEALLOC_PD, pd), Err(Refusal::OWNER));
    // The CQ of a user stands on the event queue and the UAR page of the driver.
    let (mut create, mut own) = driver.cq_command(6, eq.number, uar);
    create.request.uid = a;
    own.number = driver.create(&with_pages(&create.to_bytes(), &own.pages)).unwrap();
    let (mut create, pages) = driver.qp_command(own_pd, uar, &own);
    create.request.uid = a;
    let qp = driver.create(&with_pages(&create.to_bytes(), &pages)).unwrap();
    // Nothing of another user may stand in a context.
    for context in [
        QpContext { pd, ..create.context },
        QpContext { cqn_snd: cq.number, ..create.context },
        QpContext { cqn_rcv: cq.number, ..create.context },
    ] {
        let create = CreateQp { context, ..create };
        let refused = driver.create(&with_pages(&create.to_bytes(), &pages));
        assert_eq!(refused, Err(Refusal::OWNER));
    }
    // Only the driver has queue pairs of these services.
    for service in [service::QP1, service::REG_UMR] {
        let special = CreateQp { context: QpContext { service, ..create.context }, ..create };
        let refused = driver.create(&with_pages(&special.to_bytes(), &pages));
        assert_eq!(refused, Err(Refusal::SERVICE));
    }
    assert_eq!(driver.numbered(Opcode::DESTROY_UCTX, a.into()), Err(Refusal::IN_USE));
    driver.numbered_by(a, Opcode::DESTROY_QP, qp).unwrap();
    // The driver may end objects of users.
    driver.numbered(Opcode::DESTROY_CQ, own.number).unwrap();
    driver.numbered(Opcode::DEALLOC_PD, own_pd).unwrap();
    driver.numbered(Opcode::DESTROY_UCTX, a.into()).unwrap();
    assert_eq!(driver.numbered_by(a, Opcode::ALLOC_PD, 0), Err(Refusal::NO_USER));
}

#[test]
fn an_srq_for_tag_matching_has_its_cq_and_its_queue_pairs() {
    let World { mut driver, uar, pd, mut eq, cq } = world(1 << event::SRQ_LIMIT);
    let pages = driver.host.take(1);
    let queue = WorkQueue { pd, dbr_addr: driver.record(), log_stride: 5, log_size: 6, ..WorkQueue::ZERO };
    let good = XrqContext { topology: 1, offload: 1, cqn: cq.number, log_list_size: 7, queue, ..XrqContext::ZERO };
    let mut make = |context| {
        let create = CreateXrq { request: Request::new(Opcode::CREATE_XRQ), context };
        driver.create(&with_pages(&create.to_bytes(), &pages))
    };
    let striding = WorkQueue { kind: kind::CYCLIC_STRIDING, ..queue };
    for (context, refusal) in [
        (XrqContext { topology: 0, ..good }, Refusal::ATTRIBUTES),
        (XrqContext { offload: 0, ..good }, Refusal::ATTRIBUTES),
        (XrqContext { dc: true, ..good }, Refusal::ATTRIBUTES),
        (XrqContext { log_list_size: 0, ..good }, Refusal::QUEUE_SIZE),
        (XrqContext { log_list_size: 8, ..good }, Refusal::QUEUE_SIZE),
        (XrqContext { cqn: 0, ..good }, Refusal::NO_OBJECT),
        (XrqContext { queue: striding, ..good }, Refusal::WQ_KIND),
        (XrqContext { queue: WorkQueue { log_size: 8, ..queue }, ..good }, Refusal::PAGE_LIST),
    ] {
        assert_eq!(make(context), Err(refusal), "{context:?}");
    }
    let cyclic = WorkQueue { kind: kind::CYCLIC, ..queue };
    let [list, ring] = [good, XrqContext { queue: cyclic, ..good }].map(|context| make(context).unwrap());
    let qp = driver.qp(pd, uar, &cq, service::RC, Some(ring)).number;
    let arm = |opcode, op_mod, lwm| {
        let request = Request { op_mod, ..Request::new(opcode) };
        ArmSrq { request, srqn: list, lwm }.to_bytes()
    };
    let answer = driver.execute(&numbered(Opcode::QUERY_XRQ, list), QueryXrqReply::SIZE).unwrap();
    let context = QueryXrqReply::from_prefix(&answer).unwrap().context;
    assert_eq!((context.cqn, context.log_list_size, context.hw_phase), (cq.number, 7, 0));
    for command in [arm(Opcode::ARM_RQ, 2, 9), arm(Opcode::ARM_XRQ, 0, 9)] {
        driver.execute(&command, 16).unwrap();
        // Nothing is posted, so fewer WQEs are left at once.
        let eqe = driver.next_event(&mut eq).unwrap();
        assert_eq!((eqe.event, QueueData::from_bytes(&eqe.data).number), (event::SRQ_LIMIT, list));
    }
    assert_eq!(driver.execute(&arm(Opcode::ARM_RQ, 1, 9), 16).err(), Some(Refusal::NO_OBJECT), "an RMP");
    let mut destroy = |opcode, number| driver.numbered(opcode, number).err();
    assert_eq!(destroy(Opcode::DESTROY_XRQ, ring), Some(Refusal::IN_USE));
    assert_eq!(destroy(Opcode::DESTROY_QP, qp), None);
    assert_eq!(destroy(Opcode::DESTROY_XRQ, ring), None);
    assert_eq!(destroy(Opcode::DESTROY_CQ, cq.number), Some(Refusal::IN_USE));
    assert_eq!(destroy(Opcode::DESTROY_XRQ, list), None);
    assert_eq!(destroy(Opcode::DESTROY_CQ, cq.number), None);
}

#[test]
fn queues_in_umems() {
    let World { mut driver, uar, eq, .. } = world(0);
    let umem = |pages: u64, page_offset, uid| CreateUmem {
        request: Request { uid, ..Request::new(Opcode::CREATE_UMEM) },
        page_offset,
        pages,
        ..CreateUmem::ZERO
    };
    let pages = driver.host.take(3);
    let mut make = |umem: CreateUmem, pages: &[u64]| driver.create(&with_pages(&umem.to_bytes(), pages));
    assert_eq!(make(umem(0, 0, 0), &pages), Err(Refusal::PAGE_LIST));
    assert_eq!(make(umem(4, 0, 0), &pages), Err(Refusal::PAGE_LIST));
    assert_eq!(make(umem(u64::MAX, 0, 0), &pages), Err(Refusal::PAGE_LIST));
    assert_eq!(make(umem(3, 4096, 0), &pages), Err(Refusal::PAGE_LIST));
    let number = make(umem(3, 0x100, 0), &pages).unwrap();
    let (create, _) = driver.cq_command(6, eq.number, uar);
    let room = 3 * 4096 - 0x100;
    let in_umem = |offset, record| {
        let mut create = CreateCq { umem_valid: true, umem_id: number, umem_offset: offset, ..create };
        create.context.dbr_umem_valid = true;
        (create.context.dbr_umem_id, create.context.dbr_addr) = (number, record);
        create.to_bytes()
    };
    assert_eq!(driver.create(&in_umem(room - 4095, 0)), Err(Refusal::UMEM_RANGE));
    assert_eq!(driver.create(&in_umem(u64::MAX, 0)), Err(Refusal::UMEM_RANGE));
    assert_eq!(driver.create(&in_umem(0, room - 7)), Err(Refusal::RECORD));
    assert_eq!(driver.create(&in_umem(0, room)), Err(Refusal::UMEM_RANGE));
    let cq = driver.create(&in_umem(room - 4096, room - 8)).unwrap();
    // The device marked the record of the new CQ as never armed, at its place in the last page.
    assert_eq!(driver.host.word(pages[2] + 4096 - 4), u32::MAX);
    assert_eq!(driver.numbered(Opcode::DESTROY_UMEM, number), Err(Refusal::IN_USE));
    driver.numbered(Opcode::DESTROY_CQ, cq).unwrap();
    driver.numbered(Opcode::DESTROY_UMEM, number).unwrap();
}

#[test]
fn contexts_of_queue_pairs_that_are_refused() {
    let World { mut driver, uar, pd, cq, .. } = world(0);
    let (create, pages) = driver.qp_command(pd, uar, &cq);
    let good = create.context;
    let mut refused = |context, pages: &[u64]| {
        let create = CreateQp { context, ..create };
        driver.create(&with_pages(&create.to_bytes(), pages)).err()
    };
    let cases = [
        (QpContext { service: 3, ..good }, Refusal::SERVICE),
        (QpContext { rq_type: 2, ..good }, Refusal::RQ_TYPE),
        (QpContext { rq_type: rq_type::SRQ, srqn: 0x1000, ..good }, Refusal::NO_OBJECT),
        (QpContext { pd: pd + 1, ..good }, Refusal::NO_OBJECT),
        (QpContext { cqn_snd: 0, ..good }, Refusal::NO_OBJECT),
        (QpContext { uar_page: 0, ..good }, Refusal::NO_OBJECT),
        (QpContext { log_rq_stride: 6, ..good }, Refusal::QUEUE_SIZE),
        (QpContext { log_rq_size: 9, ..good }, Refusal::PAGE_LIST),
        (QpContext { dbr_addr: good.dbr_addr + 4, ..good }, Refusal::RECORD),
        (QpContext { dbr_umem_valid: true, ..good }, Refusal::NO_OBJECT),
    ];
    for (context, refusal) in cases {
        assert_eq!(refused(context, &pages[..5]), Some(refusal), "{context:?}");
    }
    assert_eq!(refused(good, &pages[..4]), Some(Refusal::PAGE_LIST));
    assert_eq!(refused(good, &pages), None);
}

#[test]
fn changes_of_queue_pairs_that_are_refused() {
    let World { mut driver, uar, pd, cq, .. } = world(0);
    let qp = driver.qp(pd, uar, &cq, service::RC, None).number;
    let mut path = QpContext::ZERO.path;
    path.port = 2;
    let mut modify = |opcode, mask, context| driver.modify(opcode, qp, mask, context).err();
    let bad_port = QpContext { path, ..QpContext::ZERO };
    assert_eq!(modify(Opcode::RST2INIT_QP, 0, bad_port), Some(Refusal::PORT));
    (path.port, path.pkey_index) = (1, 128);
    let bad_key = QpContext { path, ..QpContext::ZERO };
    assert_eq!(modify(Opcode::RST2INIT_QP, 0, bad_key), Some(Refusal::PKEY_INDEX));
    let zero = QpContext::ZERO;
    for opcode in [Opcode::INIT2RTR_QP, Opcode::RTR2RTS_QP, Opcode::RTS2RTS_QP] {
        assert_eq!(modify(opcode, 0, zero), Some(Refusal::QP_STATE));
    }
    assert_eq!(modify(Opcode::RST2INIT_QP, 0, zero), None);
    assert_eq!(modify(Opcode::RST2INIT_QP, 0, zero), Some(Refusal::QP_STATE));
    assert_eq!(modify(Opcode::INIT2INIT_QP, optional::PKEY_INDEX, bad_key), Some(Refusal::PKEY_INDEX));
    assert_eq!(modify(Opcode::INIT2INIT_QP, optional::RRE, zero), None);
    assert_eq!(modify(Opcode::INIT2RTR_QP, 0, zero), Some(Refusal::MTU));
    (path.grh, path.src_addr_index) = (true, 8);
    let bad_gid = QpContext { path, mtu: 3, ..zero };
    assert_eq!(modify(Opcode::INIT2RTR_QP, 0, bad_gid), Some(Refusal::GID_INDEX));
    assert_eq!(modify(Opcode::INIT2RTR_QP, 0, QpContext { mtu: 3, ..zero }), None);
    assert_eq!(modify(Opcode::RTR2RTS_QP, 0, zero), None);
    assert_eq!(modify(Opcode::RTS2RTS_QP, optional::RNR_TIMEOUT, zero), None);
    assert_eq!(modify(Opcode::SQERR2RTS_QP, 0, zero), Some(Refusal::QP_STATE));
    let unknown = driver.modify(Opcode::RST2INIT_QP, qp + 1, 0, zero);
    assert_eq!(unknown, Err(Refusal::NO_OBJECT));
}

#[test]
fn keys_that_are_refused() {
    let World { mut driver, pd, .. } = world(0);
    let pages = driver.host.take(2);
    let good = MkeyContext {
        access_mode: access_mode::MTT,
        qpn: 0xff_ffff,
        pd,
        start: 0x1000,
        len: 0x2000,
        log_page_size: 12,
        ..MkeyContext::ZERO
    };
    let request = Request::new(Opcode::CREATE_MKEY);
    let mut refused = |context, translations_actual, pages: &[u64]| {
        let create = CreateMkey { request, context, translations_actual, ..CreateMkey::ZERO };
        driver.create(&with_pages(&create.to_bytes(), pages)).err()
    };
    assert_eq!(refused(good, 1, &pages), None);
    assert_eq!(refused(good, 0, &pages), Some(Refusal::PAGE_LIST));
    assert_eq!(refused(good, 1, &pages[..1]), Some(Refusal::PAGE_LIST));
    assert_eq!(refused(good, u32::MAX, &pages[..1]), Some(Refusal::PAGE_LIST));
    let cases = [
        (MkeyContext { start: 0x1001, ..good }, Refusal::PAGE_LIST),
        (MkeyContext { log_page_size: 11, ..good }, Refusal::PAGE_SIZE),
        (MkeyContext { log_page_size: 63, ..good }, Refusal::PAGE_SIZE),
        (MkeyContext { len: u64::MAX, ..good }, Refusal::KEY_RANGE),
        (MkeyContext { access_mode_high: 1, ..good }, Refusal::ACCESS_MODE),
        (MkeyContext { qpn: 5, ..good }, Refusal::ATTRIBUTES),
        (MkeyContext { pd: 0, ..good }, Refusal::NO_OBJECT),
    ];
    for (context, refusal) in cases {
        assert_eq!(refused(context, 1, &pages), Some(refusal), "{context:?}");
    }
    // The list of other keys is as long as the driver says.
    for access_mode in [access_mode::KLM, access_mode::KSM] {
        let list = MkeyContext { access_mode, ..good };
        assert_eq!(refused(list, 1, &pages), None);
        assert_eq!(refused(list, 2, &pages), Some(Refusal::PAGE_LIST));
        assert_eq!(refused(MkeyContext { free: true, umr_en: true, ..list }, 0, &[]), None);
    }
    // Without memory, or with all memory of the bus.
    let without = MkeyContext { free: true, ..good };
    assert_eq!(refused(without, 0, &[]), None);
    let all = MkeyContext { access_mode: access_mode::PHYSICAL, length64: true, ..good };
    assert_eq!(refused(all, 0, &[]), None);
}

#[test]
fn shared_receive_queues_that_are_refused() {
    let World { mut driver, pd, .. } = world(0);
    let (pages, dbr_addr) = (driver.host.take(2), driver.record());
    let good = WorkQueue { pd, dbr_addr, log_stride: 6, log_size: 7, ..WorkQueue::ZERO };
    let request = Request::new(Opcode::CREATE_RMP);
    let mut refused = |queue, basic_cyclic, pages: &[u64]| {
        let context = RmpContext { queue, basic_cyclic, ..RmpContext::ZERO };
        driver.create(&with_pages(&CreateRmp { request, context }.to_bytes(), pages)).err()
    };
    assert_eq!(refused(good, false, &pages), None);
    assert_eq!(refused(good, true, &pages), Some(Refusal::WQ_KIND));
    assert_eq!(refused(good, false, &pages[..1]), Some(Refusal::PAGE_LIST));
    for (queue, refusal) in [
        (WorkQueue { kind: kind::CYCLIC_STRIDING, ..good }, Refusal::WQ_KIND),
        (WorkQueue { signature: true, ..good }, Refusal::WQ_KIND),
        (WorkQueue { log_stride: 4, ..good }, Refusal::QUEUE_SIZE),
        (WorkQueue { log_stride: 10, ..good }, Refusal::QUEUE_SIZE),
        (WorkQueue { log_size: 16, ..good }, Refusal::QUEUE_SIZE),
        (WorkQueue { pd: 0, ..good }, Refusal::NO_OBJECT),
        (WorkQueue { page_offset: 1, ..good }, Refusal::PAGE_LIST),
    ] {
        assert_eq!(refused(queue, false, &pages), Some(refusal), "{queue:?}");
    }
    let (rmpn, ..) = driver.rmp(pd, 4, 0);
    let mut change = |bitmask| {
        let modify = ModifyRmp { request: Request::new(Opcode::MODIFY_RMP), rmpn, bitmask, ..ModifyRmp::ZERO };
        driver.execute(&modify.to_bytes(), 16).err()
    };
    assert_eq!([change(1), change(2)], [None, Some(Refusal::FIELDS)]);
}

#[test]
fn completion_queues_that_are_refused() {
    let World { mut driver, uar, eq, cq, .. } = world(0);
    let (good, own) = driver.cq_command(6, eq.number, uar);
    for (context, refusal) in [
        (CqContext { collapsed: true, compression: true, ..good.context }, Refusal::CQE_MODE),
        (CqContext { cqe_size: 2, ..good.context }, Refusal::CQE_SIZE),
        (CqContext { log_size: 23, ..good.context }, Refusal::QUEUE_SIZE),
        (CqContext { eqn: 0, ..good.context }, Refusal::NO_OBJECT),
    ] {
        let create = CreateCq { context, ..good };
        assert_eq!(driver.create(&with_pages(&create.to_bytes(), &own.pages)), Err(refusal), "{context:?}");
    }
    let mut moderate = |field_select| {
        let request = Request::new(Opcode::MODIFY_CQ);
        let modify = ModifyCq { request, cqn: cq.number, field_select, ..ModifyCq::ZERO };
        driver.execute(&modify.to_bytes(), 16).err()
    };
    assert_eq!([moderate(3), moderate(4)], [None, Some(Refusal::FIELDS)]);
}

#[test]
fn groups_have_members() {
    let World { mut driver, uar, pd, cq, .. } = world(0);
    let ud = driver.qp(pd, uar, &cq, service::UD, None).number;
    let rc = driver.qp(pd, uar, &cq, service::RC, None).number;
    let group = 0xff12_0000_0000_0000_0000_0000_0000_0001_u128.to_be_bytes();
    let mut run = |opcode, qpn, gid| {
        let command = Multicast { request: Request::new(opcode), qpn, gid };
        driver.execute(&command.to_bytes(), 16).err()
    };
    let (join, leave) = (Opcode::ATTACH_TO_MCG, Opcode::DETACH_FROM_MCG);
    assert_eq!(run(join, ud, group), None);
    assert_eq!(run(join, ud, [0; 16]), Some(Refusal::GROUP_ADDRESS));
    assert_eq!(run(join, rc, group), Some(Refusal::GROUP_ADDRESS));
    assert_eq!(run(join, 5, group), Some(Refusal::NO_OBJECT));
    assert_eq!(run(leave, rc, group), Some(Refusal::MEMBER));
    assert_eq!(run(leave, ud, group), None);
    assert_eq!(run(leave, ud, group), Some(Refusal::MEMBER));
    for number in 0..MAX_MCAST_MEMBERS as u128 {
        let group = u128::from_be_bytes(group) + number;
        assert_eq!(run(join, ud, group.to_be_bytes()), None);
    }
    assert_eq!(run(join, ud, [0xff; 16]), Some(Refusal::TOO_MANY));
    assert_eq!(run(leave, ud, group), None);
    assert_eq!(run(join, ud, [0xff; 16]), None);
}
