//! Frames through send queues, flow tables and receive queues, and the address table of RoCE.

use mlx5_wire::cqe::Cqe64;
use mlx5_wire::ctrl::{CQ_UPDATE, ControlSegment};
use mlx5_wire::data::DataSegment;
use mlx5_wire::eth::EthSegment;
use mlx5_wire::firmware::command::{Opcode, Request};
use mlx5_wire::firmware::flow::{
    CreateGroup, CreateTable, DeleteEntry, Destination, DestroyGroup, ModifyTable, OfTable, SetEntry, TableContext,
    action, destination,
};
use mlx5_wire::firmware::transport::{
    CreateRq, CreateSq, CreateTir, CreateTis, ModifyQueue, ModifyTir, QuerySqReply, RqContext, RqTable, SqContext,
};
use mlx5_wire::firmware::vport::{
    ModifyNicVport, NicVportContext, QueryNicVportReply, QueryRoceAddressReply, RoceAddress, SetRoceAddress, field,
};
use mlx5_wire::firmware::wq::{WorkQueue, kind, state};
use mlx5_wire::opcode::{CqeOpcode, WqeOpcode};

use super::{Cq, Driver, with_pages};
use crate::commands::refusal::Refusal;
use crate::engine::NicConfig;
use crate::fabric::{Fabric, LinkLayer, Switch};

const LOG_SIZE: u8 = 6;

struct World {
    driver: Driver,
    uar: u32,
    pd: u32,
    domain: u32,
    cq: Cq,
}

fn world(fabric: Fabric) -> World {
    let link_layer = LinkLayer::Ethernet;
    let config = NicConfig { link_layer, fabric, strict: true, ..NicConfig::default() };
    let mut driver = Driver::with(config);
    driver.start();
    let uar = driver.numbered(Opcode::ALLOC_UAR, 0).unwrap();
    let pd = driver.numbered(Opcode::ALLOC_PD, 0).unwrap();
    let domain = driver.numbered(Opcode::ALLOC_TRANSPORT_DOMAIN, 0).unwrap();
    let eq = driver.eq(6, 0, 0, uar);
    let cq = driver.cq(7, eq.number, uar);
    World { driver, uar, pd, domain, cq }
}

/// A queue of the driver.
struct Queue {
    number: u32,
    page: u64,
    record: u64,
    posted: u16,
}

impl World {
    fn queue(&mut self, log_stride: u8) -> (WorkQueue, u64) {
        let page = self.driver.host.take(1)[0];
        let queue = WorkQueue {
            kind: kind::CYCLIC,
            pd: self.pd,
            uar_page: self.uar,
            dbr_addr: self.driver.record(),
            log_stride,
            log_size: LOG_SIZE,
            ..WorkQueue::ZERO
        };
        (queue, page)
    }

    fn tis(&mut self) -> u32 {
        let request = Request::new(Opcode::CREATE_TIS);
        let tis = CreateTis { request, transport_domain: self.domain, ..CreateTis::ZERO };
        self.driver.create(&tis.to_bytes()).unwrap()
    }

    fn sq(&mut self) -> Queue {
        let tisn = self.tis();
        let (queue, page) = self.queue(6);
        let context = SqContext { cqn: self.cq.number, tis_count: 1, tisn, queue, ..SqContext::ZERO };
        let create = CreateSq { request: Request::new(Opcode::CREATE_SQ), context };
        let number = self.driver.create(&with_pages(&create.to_bytes(), &[page])).unwrap();
        self.modify(Opcode::MODIFY_SQ, number, state::RST, state::RDY).unwrap();
        Queue { number, page, record: queue.dbr_addr, posted: 0 }
    }

    fn rq(&mut self) -> Queue {
        let (queue, page) = self.queue(4);
        let context = RqContext { cqn: self.cq.number, queue, ..RqContext::ZERO };
        let create = CreateRq { request: Request::new(Opcode::CREATE_RQ), context };
        let number = self.driver.create(&with_pages(&create.to_bytes(), &[page])).unwrap();
        self.modify(Opcode::MODIFY_RQ, number, state::RST, state::RDY).unwrap();
        Queue { number, page, record: queue.dbr_addr, posted: 0 }
    }

    // The states of both kinds of queue stand at the same place.
    fn modify(&mut self, opcode: Opcode, number: u32, from: u8, to: u8) -> Result<(), Refusal> {
        let request = Request::new(opcode);
        let head = ModifyQueue { request, state: from, number, ..ModifyQueue::ZERO };
        let context = SqContext { state: to, ..SqContext::ZERO };
        let input = [&head.to_bytes()[..], &context.to_bytes()].concat();
        self.driver.execute(&input, 16).map(drop)
    }

    fn post(&mut self, queue: &mut Queue, opcode: WqeOpcode, segments: &[u8]) {
        let ds = (1 + segments.len() / 16) as u8;
        let ctrl = ControlSegment::new(opcode.get(), queue.posted, queue.number, ds, CQ_UPDATE);
        let wqe = [&ctrl.to_bytes()[..], segments].concat();
        assert!(wqe.len() <= 64);
        let slot = u64::from(queue.posted) & ((1 << LOG_SIZE) - 1);
        self.driver.host.write(queue.page + 64 * slot, &wqe);
        queue.posted += 1;
        self.driver.host.set_word(queue.record + 4, queue.posted.into());
        self.driver.function.write_uar(self.uar, 0x800, &ctrl.to_bytes()[..8]);
    }

    fn send(&mut self, queue: &mut Queue, address: u64, len: u32, key: u32) {
        let ethernet = EthSegment::zeroed().to_bytes();
        let data = DataSegment::new(address, len, key).to_bytes();
        self.post(queue, WqeOpcode::SEND, &[&ethernet[..], &data].concat());
    }

    fn receive(&mut self, queue: &mut Queue, segment: DataSegment) {
        let slot = u64::from(queue.posted) & ((1 << LOG_SIZE) - 1);
        self.driver.host.write(queue.page + 16 * slot, &segment.to_bytes());
        queue.posted += 1;
        self.driver.host.set_word(queue.record, queue.posted.into());
    }

    fn tir(&mut self, rqn: u32) -> u32 {
        let tir = CreateTir {
            request: Request::new(Opcode::CREATE_TIR),
            inline_rqn: rqn,
            transport_domain: self.domain,
            ..CreateTir::ZERO
        };
        self.driver.create(&tir.to_bytes()).unwrap()
    }

    fn table(&mut self, level: u8, miss_table: Option<u32>) -> Result<u32, Refusal> {
        let context = TableContext {
            miss_action: miss_table.is_some().into(),
            level,
            log_size: 4,
            miss_table: miss_table.unwrap_or(0),
        };
        let request = Request::new(Opcode::CREATE_FLOW_TABLE);
        self.driver.create(&CreateTable { request, context, ..CreateTable::ZERO }.to_bytes())
    }

    fn group(&mut self, table: u32, mask: &[u8]) -> u32 {
        let mut group = CreateGroup {
            request: Request::new(Opcode::CREATE_FLOW_GROUP),
            table,
            end: 15,
            criteria: 1,
            ..CreateGroup::ZERO
        };
        group.mask[..mask.len()].copy_from_slice(mask);
        self.driver.create(&group.to_bytes()).unwrap()
    }

    fn entry(&mut self, table: u32, group: u32, index: u32, value: &[u8], to: Destination) -> Result<(), Refusal> {
        let mut entry = SetEntry {
            request: Request::new(Opcode::SET_FLOW_TABLE_ENTRY),
            table,
            index,
            group,
            tag: 7,
            action: action::FORWARD,
            destinations: 1,
            ..SetEntry::ZERO
        };
        entry.value[..value.len()].copy_from_slice(value);
        let input = [&entry.to_bytes()[..], &to.to_bytes()].concat();
        self.driver.execute(&input, 16).map(drop)
    }

    fn root(&mut self, table: u32) {
        let request = Request::new(Opcode::SET_FLOW_TABLE_ROOT);
        let root = OfTable { request, table, ..OfTable::ZERO };
        self.driver.execute(&root.to_bytes(), 16).unwrap();
    }

    fn cqe(&mut self) -> Option<Cqe64> {
        self.driver.poll(&mut self.cq).map(|cqe| Cqe64::from_bytes(&cqe))
    }
}

// Destination, source, type and 46 bytes of a frame.
fn frame(to: [u8; 6], from: [u8; 6]) -> Vec<u8> {
    [&to[..], &from, &[0x88, 0xb5], &[0x5a; 46]].concat()
}

// Value and mask of the destination address, which stands after source and type.
fn destination_of(mac: [u8; 6]) -> Vec<u8> {
    [&[0; 8][..], &mac].concat()
}

#[test]
fn own_frames_come_back_where_a_target_says_so() {
    let mut world = world(Switch::new().into());
    let mac = world.driver.function.port().mac;
    let buffer = world.driver.host.take(1);
    let key = world.driver.mkey(world.pd, 0, 4096, &buffer);
    let (mut sq, mut rq) = (world.sq(), world.rq());
    let tirn = world.tir(rq.number);
    let table = world.table(1, None).unwrap();
    let group = world.group(table, &destination_of([0xff; 6]));
    let to = Destination { kind: destination::TIR, number: tirn };
    world.entry(table, group, 0, &destination_of(mac), to).unwrap();
    world.root(table);
    world.driver.host.write(buffer[0], &frame(mac, mac));
    for slot in 0..4 {
        world.receive(&mut rq, DataSegment::new(1024 + 256 * slot, 256, key));
    }
    let mut arrives = |change: Option<(bool, u8)>| {
        if let Some((changes_self_lb, self_lb)) = change {
            let request = Request::new(Opcode::MODIFY_TIR);
            let modify = ModifyTir { request, tirn, changes_self_lb, self_lb };
            world.driver.execute(&modify.to_bytes(), 16).unwrap();
        }
        world.send(&mut sq, 0, 60, key);
        world.driver.settle();
        let cqes = std::iter::from_fn(|| world.cqe()).map(|cqe| cqe.opcode());
        cqes.filter(|opcode| *opcode == CqeOpcode::ResponderSend).count()
    };
    assert_eq!(arrives(None), 0);
    assert_eq!(arrives(Some((false, 1))), 0);
    assert_eq!(arrives(Some((true, 2))), 0, "frames to groups only");
    assert_eq!(arrives(Some((true, 1))), 1);
    assert_eq!(arrives(Some((true, 0))), 0);
}

#[test]
fn two_drivers_exchange_frames() {
    let switch = Switch::new();
    let mut worlds = [world(switch.clone().into()), world(switch.into())];
    let macs = worlds.each_ref().map(|world| world.driver.function.port().mac);
    let [a, b] = &mut worlds;
    let buffer = a.driver.host.take(1);
    let key = a.driver.mkey(a.pd, 0, 4096, &buffer);
    let mut sq = a.sq();
    // The driver of Linux wakes its poll loop with a NOP.
    a.post(&mut sq, WqeOpcode::NOP, &[]);
    a.driver.settle();
    assert_eq!(a.cqe().unwrap().opcode(), CqeOpcode::Requester);

    let room = b.driver.host.take(1);
    let room_key = b.driver.mkey(b.pd, 0, 4096, &room);
    let mut rq = b.rq();
    for slot in 0..4 {
        b.receive(&mut rq, DataSegment::new(256 * slot, 256, room_key));
    }
    // A root without entries leads to a table that knows the address of the port.
    let tir = b.tir(rq.number);
    let second = b.table(2, None).unwrap();
    let first = b.table(1, Some(second)).unwrap();
    let group = b.group(second, &destination_of([0xff; 6]));
    let to = Destination { kind: destination::TIR, number: tir };
    b.entry(second, group, 3, &destination_of(macs[1]), to).unwrap();
    b.root(first);

    let sent = [frame(macs[1], macs[0]), frame([2; 6], macs[0]), frame(macs[1], macs[0])];
    for bytes in &sent {
        a.driver.host.write(buffer[0], bytes);
        a.send(&mut sq, 0, bytes.len() as u32, key);
        a.driver.settle();
        assert_eq!(a.cqe().unwrap().opcode(), CqeOpcode::Requester);
        b.driver.settle();
    }
    for slot in 0..2 {
        let cqe = b.cqe().unwrap();
        assert_eq!((cqe.opcode(), cqe.byte_cnt.get()), (CqeOpcode::ResponderSend, 60));
        assert_eq!(b.driver.host.read::<60>(room[0] + 256 * slot)[..], sent[0]);
    }
    assert!(b.cqe().is_none(), "a frame for another address leads nowhere");
    // Frames for a port without tables go nowhere, either.
    let delete = DeleteEntry { request: Request::new(Opcode::DELETE_FLOW_TABLE_ENTRY), table: second, index: 3 };
    b.driver.execute(&delete.to_bytes(), 16).unwrap();
    a.send(&mut sq, 0, 60, key);
    a.driver.settle();
    b.driver.settle();
    assert!(b.cqe().is_none());
    // The receive queue flushes what is left.
    b.modify(Opcode::MODIFY_RQ, rq.number, state::RDY, state::ERR).unwrap();
    b.driver.settle();
    let flushed = std::iter::from_fn(|| b.cqe()).count();
    assert_eq!(flushed, 2);
}

#[test]
fn tables_lead_upwards_and_stay_while_they_are_used() {
    let mut world = world(Fabric::Private);
    let rq = world.rq();
    let tir = world.tir(rq.number);
    let low = world.table(1, None).unwrap();
    let high = world.table(127, None).unwrap();
    assert_eq!(world.table(127, Some(high)), Err(Refusal::LEVEL));
    assert_eq!(world.table(128, None), Err(Refusal::TABLE));
    let modify = |world: &mut World, table, miss_table| {
        let request = Request::new(Opcode::MODIFY_FLOW_TABLE);
        let context = TableContext { miss_action: 1, miss_table, ..TableContext::ZERO };
        let modify = ModifyTable { request, field_select: 1, table, context, ..ModifyTable::ZERO };
        world.driver.execute(&modify.to_bytes(), 16).err()
    };
    assert_eq!(modify(&mut world, high, low), Some(Refusal::LEVEL));
    assert_eq!(modify(&mut world, low, low), Some(Refusal::LEVEL));
    assert_eq!(modify(&mut world, low, high), None);
    let group = world.group(low, &[]);
    let to_table = |number| Destination { kind: destination::TABLE, number };
    let to_tir = Destination { kind: destination::TIR, number: tir };
    assert_eq!(world.entry(low, group, 0, &[], to_table(low)), Err(Refusal::LEVEL));
    assert_eq!(world.entry(low, group, 16, &[], to_tir), Err(Refusal::TABLE));
    assert_eq!(world.entry(high, group, 0, &[], to_tir), Err(Refusal::TABLE));
    let unknown = Destination { number: tir + 1, ..to_tir };
    assert_eq!(world.entry(low, group, 0, &[], unknown), Err(Refusal::NO_OBJECT));
    assert_eq!(world.entry(low, group, 0, &[], to_table(high)), Ok(()));
    assert_eq!(world.entry(low, group, 0, &[], to_tir), Err(Refusal::TABLE), "the place is taken");
    assert_eq!(world.entry(low, group, 1, &[], to_tir), Ok(()));

    let mut destroy = |opcode, table, group, index| {
        let request = Request::new(opcode);
        let input = match opcode {
            Opcode::DESTROY_FLOW_GROUP => DestroyGroup { request, table, group }.to_bytes().to_vec(),
            Opcode::DELETE_FLOW_TABLE_ENTRY => DeleteEntry { request, table, index }.to_bytes().to_vec(),
            _ => OfTable { request, table, ..OfTable::ZERO }.to_bytes().to_vec(),
        };
        world.driver.execute(&input, 16).err()
    };
    let (table, of_group, entry) =
        (Opcode::DESTROY_FLOW_TABLE, Opcode::DESTROY_FLOW_GROUP, Opcode::DELETE_FLOW_TABLE_ENTRY);
    assert_eq!(destroy(table, high, 0, 0), Some(Refusal::IN_USE));
    assert_eq!(destroy(table, low, 0, 0), Some(Refusal::IN_USE));
    assert_eq!(destroy(of_group, low, group, 0), Some(Refusal::IN_USE));
    for index in 0..2 {
        assert_eq!(destroy(entry, low, 0, index), None);
        assert_eq!(destroy(entry, low, 0, index), Some(Refusal::NO_OBJECT));
    }
    assert_eq!(destroy(of_group, low, group, 0), None);
    assert_eq!(destroy(table, low, 0, 0), None);
    assert_eq!(destroy(table, high, 0, 0), None);
    let rest = [
        (Opcode::DESTROY_RQ, rq.number, Some(Refusal::IN_USE)),
        (Opcode::DESTROY_TIR, tir, None),
        (Opcode::DESTROY_RQ, rq.number, None),
    ];
    for (opcode, number, refusal) in rest {
        assert_eq!(world.driver.numbered(opcode, number).err(), refusal);
    }
}

#[test]
fn a_table_of_queues_changes_under_its_target() {
    let mut world = world(Fabric::Private);
    let [a, b] = [world.rq().number, world.rq().number];
    let table = |opcode, rqtn, queues: &[u32]| {
        let request = Request::new(opcode);
        let actual_size = queues.len() as u16;
        let head = RqTable { request, rqtn, actual_size, ..RqTable::ZERO }.to_bytes();
        let list = queues.iter().flat_map(|queue| queue.to_be_bytes());
        head.into_iter().chain(list).collect::<Vec<u8>>()
    };
    let create = |queues: &[u32]| table(Opcode::CREATE_RQT, 0, queues);
    assert_eq!(world.driver.create(&create(&[a, b, a])), Err(Refusal::QUEUE_SIZE));
    assert_eq!(world.driver.create(&create(&[])), Err(Refusal::QUEUE_SIZE));
    assert_eq!(world.driver.create(&create(&[a, b + 1])), Err(Refusal::NO_OBJECT));
    let rqt = world.driver.create(&create(&[a, a])).unwrap();
    let tir = CreateTir {
        request: Request::new(Opcode::CREATE_TIR),
        disp_type: 1,
        indirect_table: rqt,
        rx_hash_fn: 2,
        hash_fields: 3,
        transport_domain: world.domain,
        ..CreateTir::ZERO
    };
    let tir = world.driver.create(&tir.to_bytes()).unwrap();
    world.driver.execute(&table(Opcode::MODIFY_RQT, rqt, &[b, b, b, b]), 16).unwrap();
    let mut destroy = |opcode, number| world.driver.numbered(opcode, number).err();
    assert_eq!(destroy(Opcode::DESTROY_RQ, a), None, "no table names it any more");
    assert_eq!(destroy(Opcode::DESTROY_RQ, b), Some(Refusal::IN_USE));
    assert_eq!(destroy(Opcode::DESTROY_RQT, rqt), Some(Refusal::IN_USE));
    assert_eq!(destroy(Opcode::DESTROY_TIR, tir), None);
    assert_eq!(destroy(Opcode::DESTROY_RQT, rqt), None);
    assert_eq!(destroy(Opcode::DESTROY_RQ, b), None);
}

#[test]
fn states_of_send_and_receive_queues() {
    let mut world = world(Fabric::Private);
    let (sq, rq) = (world.sq(), world.rq());
    let state_of = |world: &mut World| {
        let request = Request::new(Opcode::QUERY_SQ);
        let query = mlx5_wire::firmware::command::Numbered { request, number: sq.number, parameter: 0 };
        let answer = world.driver.execute(&query.to_bytes(), QuerySqReply::SIZE).unwrap();
        QuerySqReply::from_prefix(&answer).unwrap().context.state
    };
    assert_eq!(state_of(&mut world), state::RDY);
    for (opcode, number) in [(Opcode::MODIFY_SQ, sq.number), (Opcode::MODIFY_RQ, rq.number)] {
        let mut modify = |from, to| world.modify(opcode, number, from, to);
        assert_eq!(modify(state::RST, state::RDY), Err(Refusal::WQ_STATE));
        assert_eq!(modify(state::RDY, 2), Err(Refusal::WQ_STATE));
        assert_eq!(modify(state::RDY, state::RDY), Ok(()));
        assert_eq!(modify(state::RDY, state::ERR), Ok(()));
        assert_eq!(modify(state::ERR, state::RDY), Err(Refusal::WQ_STATE));
        assert_eq!(modify(state::ERR, state::RST), Ok(()));
        assert_eq!(modify(state::RST, state::RDY), Ok(()));
    }
    assert_eq!(state_of(&mut world), state::RDY);
    let striding = WorkQueue { kind: kind::CYCLIC_STRIDING, ..world.queue(4).0 };
    let context = RqContext { cqn: world.cq.number, queue: striding, ..RqContext::ZERO };
    let create = CreateRq { request: Request::new(Opcode::CREATE_RQ), context };
    let refused = world.driver.create(&with_pages(&create.to_bytes(), &[0x1000]));
    assert_eq!(refused, Err(Refusal::WQ_KIND));
}

#[test]
fn the_port_of_ethernet() {
    let World { mut driver, .. } = world(Fabric::Private);
    let query = |driver: &mut Driver| {
        let mut input = [0; 16];
        Request::new(Opcode::QUERY_NIC_VPORT_CONTEXT).put(input.first_chunk_mut().unwrap());
        let answer = driver.execute(&input, 0x110).unwrap();
        QueryNicVportReply::from_prefix(&answer).unwrap().context
    };
    let context = query(&mut driver);
    let [a, b, c, d, e, f] = driver.function.port().mac;
    assert_eq!(context.mac, u64::from_be_bytes([0, 0, a, b, c, d, e, f]));
    assert_ne!(context.node_guid, 0, "librdmacm takes no node without GUID");
    assert_eq!((context.mtu, context.roce_en), (1500, false));
    let change = ModifyNicVport {
        request: Request::new(Opcode::MODIFY_NIC_VPORT_CONTEXT),
        field_select: field::ROCE | field::MTU,
        context: NicVportContext { roce_en: true, mtu: 9000, ..NicVportContext::ZERO },
    };
    driver.execute(&change.to_bytes(), 16).unwrap();
    let changed = query(&mut driver);
    assert_eq!((changed.mtu, changed.roce_en, changed.mac), (9000, true, context.mac));
    let unknown = ModifyNicVport { field_select: 1 << 20, ..change };
    assert_eq!(driver.execute(&unknown.to_bytes(), 16).err(), Some(Refusal::FIELDS));
}

#[test]
fn addresses_of_roce() {
    let World { mut driver, .. } = world(Fabric::Private);
    let address = RoceAddress {
        gid: 0xffff_c000_0201_u128.to_be_bytes(),
        mac: 0x02db_0000_0001,
        version: 2,
        ..RoceAddress::ZERO
    };
    let set = |index| {
        let request = Request::new(Opcode::SET_ROCE_ADDRESS);
        SetRoceAddress { request, index, address }.to_bytes()
    };
    driver.execute(&set(254), 16).unwrap();
    assert_eq!(driver.execute(&set(255), 16).err(), Some(Refusal::GID_INDEX));
    let mut input = [0; 16];
    Request::new(Opcode::QUERY_ROCE_ADDRESS).put(input.first_chunk_mut().unwrap());
    input[9] = 254;
    let answer = driver.execute(&input, 0x30).unwrap();
    assert_eq!(QueryRoceAddressReply::from_prefix(&answer).unwrap().address, address);
    // The other link layer has no such table.
    let mut other = Driver::started(LinkLayer::InfiniBand);
    assert_eq!(other.execute(&set(0), 16).err(), Some(Refusal::LINK_LAYER));
}
