//! Queues and targets of frames: TISs, send queues, receive queues, their tables, TIRs.

use mlx5_wire::firmware::command::Request;
use mlx5_wire::firmware::fields::Value;
use mlx5_wire::firmware::transport::{
    CreateRq, CreateSq, CreateTir, CreateTis, ModifyQueue, ModifyTir, ModifyTis, QueryRqReply, QuerySqReply,
    QueryTisReply, RqContext, RqTable, SqContext, hash_field,
};
use mlx5_wire::firmware::wq::{WorkQueue, kind, state};

use super::capabilities::{GENERAL, GENERAL_ETHERNET};
use super::objects::{Entry, Id, Kind};
use super::opcodes::{Command, Result, answer, created};
use super::refusal::Refusal;
use super::srq::memory_of;
use super::{Execution, limits};
use crate::engine::counting::Counted;
use crate::fabric::LinkLayer;
use crate::objects::rss::{HashAttr, field};
use crate::objects::{
    Cqn, DcAttr, Loopback, Pdn, QpAttr, QpModify, QpState, Qpn, RawAttr, Register, RwqAttr, RxOffloads, Service,
    Striding, TirAttr, Tirn, WqAttr, WqState, Wqn,
};

const DIRECT: u8 = 0;
const INDIRECT: u8 = 1;
const TOEPLITZ: u8 = 2;
/// log2 of a basic block.
const LOG_BLOCK: u8 = 6;

/// Returns which own frames come back: bit 0 those to one address, bit 1 those to groups.
fn loopback_of(self_lb: u8) -> Loopback {
    Loopback { unicast: self_lb & 1 != 0, multicast: self_lb & 2 != 0 }
}

fn state_of(number: u8) -> Result<WqState> {
    match number {
        state::RST => Ok(WqState::Reset),
        state::RDY => Ok(WqState::Ready),
        state::ERR => Ok(WqState::Err),
        _ => Err(Refusal::WQ_STATE),
    }
}

fn number_of(state: WqState) -> u8 {
    match state {
        WqState::Reset => state::RST,
        WqState::Ready => state::RDY,
        WqState::Err => state::ERR,
    }
}

/// Returns the bytes of a ring whose WQEs have from `least` bytes on.
fn check_ring(queue: &WorkQueue, least: u8, most: u16) -> Result<u64> {
    let fits = (u32::from(least)..=u32::from(most).ilog2()).contains(&queue.log_stride.into());
    if !fits || queue.log_size > GENERAL.log_max_wq_sz {
        return Err(Refusal::QUEUE_SIZE);
    }
    if queue.signature || queue.kind != kind::CYCLIC {
        return Err(Refusal::WQ_KIND);
    }
    Ok(1 << (queue.log_size + queue.log_stride))
}

/// Fields of a hash: the bit of a TIR, and what it is over IPv4 or TCP, and over IPv6 or UDP.
const HASH_FIELDS: [(u32, [u64; 2]); 4] = [
    (hash_field::SOURCE_IP, [field::SRC_IPV4, field::SRC_IPV6]),
    (hash_field::DESTINATION_IP, [field::DST_IPV4, field::DST_IPV6]),
    (hash_field::SOURCE_PORT, [field::SRC_PORT_TCP, field::SRC_PORT_UDP]),
    (hash_field::DESTINATION_PORT, [field::DST_PORT_TCP, field::DST_PORT_UDP]),
];

fn hash_of(tir: &CreateTir) -> Option<HashAttr> {
    if tir.disp_type != INDIRECT || tir.rx_hash_fn != TOEPLITZ {
        return None;
    }
    let chosen = HASH_FIELDS.iter().filter(|(bit, _)| tir.hash_fields & bit != 0);
    let of_ip = hash_field::SOURCE_IP | hash_field::DESTINATION_IP;
    let fields = chosen.map(|(bit, fields)| fields[usize::from(if bit & of_ip != 0 { tir.ipv6 } else { tir.udp })]);
    Some(HashAttr { fields: fields.sum(), key: tir.key })
}

fn queue_context(ring: WqAttr, pd: Pdn, dbr_addr: u64) -> WorkQueue {
    WorkQueue {
        kind: kind::CYCLIC,
        pd: pd.0,
        dbr_addr,
        log_stride: ring.shift as u8,
        log_size: ring.count.trailing_zeros() as u8,
        ..WorkQueue::ZERO
    }
}

/// Returns the context of the send queue of a raw packet queue pair.
pub fn sq_context(attr: &QpAttr, tisn: u32) -> Vec<u8> {
    let queue = WorkQueue { uar_page: attr.register.page, ..queue_context(attr.sq, attr.pd, attr.dbrec) };
    let (user_index, cqn) = (attr.user_index, attr.send_cq.0);
    SqContext { user_index, cqn, tis_count: 1, tisn, queue, ..SqContext::ZERO }.to_bytes().to_vec()
}

/// Returns the context of a receive queue that the kernel made.
pub fn rq_context(attr: &RwqAttr) -> Vec<u8> {
    let queue = queue_context(attr.ring, attr.pd, attr.dbrec);
    let queue = match attr.striding {
        None => queue,
        // The context counts from 512 strides and from 64 bytes.
        Some(Striding { log_stride, log_strides, two_byte_shift }) => WorkQueue {
            kind: kind::CYCLIC_STRIDING,
            log_strides: (log_strides - limits::LOG_STRIDES.start()) as u8,
            log_stride_size: (log_stride - limits::LOG_STRIDE.start()) as u8,
            two_byte_shift,
            ..queue
        },
    };
    RqContext {
        scatter_fcs: attr.offloads.scatter_fcs,
        vlan_strip_disable: !attr.offloads.strip_vlan,
        user_index: attr.user_index,
        cqn: attr.cq.0,
        queue,
        ..RqContext::ZERO
    }
    .to_bytes()
    .to_vec()
}

/// Returns the context of a target that the kernel made: of a receive queue, or of a table of them.
pub fn tir_context(attr: &TirAttr, Id(kind, number): Id) -> Vec<u8> {
    let direct = kind == Kind::Rq;
    let Loopback { unicast, multicast } = attr.loopback;
    let tir = CreateTir {
        disp_type: if direct { DIRECT } else { INDIRECT },
        inline_rqn: if direct { number } else { 0 },
        indirect_table: if direct { 0 } else { number },
        self_lb: u8::from(unicast) | u8::from(multicast) << 1,
        transport_domain: attr.domain,
        ..CreateTir::ZERO
    };
    let Some(HashAttr { fields, key }) = attr.hash else { return tir.to_bytes().to_vec() };
    let has = |all: u64| fields & all != 0;
    let chosen = HASH_FIELDS.iter().filter(|(_, fields)| has(fields[0] | fields[1])).map(|(bit, _)| bit);
    let ipv6 = has(field::SRC_IPV6 | field::DST_IPV6);
    let udp = has(field::SRC_PORT_UDP | field::DST_PORT_UDP);
    CreateTir { rx_hash_fn: TOEPLITZ, key, ipv6, udp, hash_fields: chosen.sum(), ..tir }.to_bytes().to_vec()
}

/// Returns the queues in the list of a table.
fn list_of(command: &Command, table: &RqTable) -> Result<Vec<u32>> {
    let count = usize::from(table.actual_size);
    let most = 1 << GENERAL_ETHERNET.log_max_rqt_size;
    if !count.is_power_of_two() || count > most {
        return Err(Refusal::QUEUE_SIZE);
    }
    let list = command.after::<RqTable>();
    let list = list.get(..4 * count).ok_or(Refusal::INPUT_LENGTH)?;
    let number = |word: &[u8]| u32::from_be_bytes([0, word[1], word[2], word[3]]);
    Ok(list.chunks_exact(4).map(number).collect())
}

impl Execution<'_> {
    pub(super) fn check_ethernet(&self) -> Result {
        if self.state.layer == LinkLayer::Ethernet { Ok(()) } else { Err(Refusal::LINK_LAYER) }
    }

    pub(super) fn create_tis(&mut self, command: &Command, output: &mut [u8]) -> Result {
        self.check_ethernet()?;
        let tis: CreateTis = command.parse()?;
        let uid = command.uid();
        let uses = self.check_domain(tis.transport_domain, uid)?;
        let context = tis.to_bytes().to_vec();
        let entry = Entry { uid, uses, context, ..Entry::default() };
        created(output, self.state.objects.insert_new(Kind::Tis, entry)?)
    }

    /// Returns a transport domain as its users refer to it. Domain 0 is there without an object.
    fn check_domain(&self, domain: u32, uid: u16) -> Result<Vec<Id>> {
        let domain = (domain != 0).then_some(Id(Kind::TransportDomain, domain));
        domain.into_iter().map(|id| self.state.objects.check_use(id, uid)).collect()
    }

    /// Changes the priority of a TIS, which the device does not look at.
    pub(super) fn modify_tis(&mut self, command: &Command, _: &mut [u8]) -> Result {
        const PRIORITY: u64 = 1 << 0;
        let modify: ModifyTis = command.parse()?;
        let entry = self.state.objects.find_mut(Id(Kind::Tis, modify.tisn), command.uid())?;
        let bytes = entry.context.first_chunk_mut().ok_or(Refusal::NO_OBJECT)?;
        if modify.bitmask & PRIORITY != 0 {
            CreateTis { priority: modify.priority, ..CreateTis::from_bytes(bytes) }.put(bytes);
        }
        Ok(())
    }

    pub(super) fn query_tis(&mut self, command: &Command, output: &mut [u8]) -> Result {
        let entry = self.state.objects.find(Id(Kind::Tis, command.number()?), command.uid())?;
        let tis = CreateTis::from_prefix(&entry.context).ok_or(Refusal::NO_OBJECT)?;
        let CreateTis { priority, transport_domain, pd, .. } = tis;
        answer(output, QueryTisReply { priority, transport_domain, pd })
    }

    /// Returns the context of a TIR, which stands where the creation has it.
    pub(super) fn query_tir(&mut self, command: &Command, output: &mut [u8]) -> Result {
        let entry = self.state.objects.find(Id(Kind::Tir, command.number()?), command.uid())?;
        let tir = CreateTir::from_prefix(&entry.context).ok_or(Refusal::NO_OBJECT)?;
        answer(output, CreateTir { request: Request::ZERO, ..tir })
    }

    pub(super) fn create_sq(&mut self, command: &Command, output: &mut [u8]) -> Result {
        self.check_ethernet()?;
        let CreateSq { context, .. } = command.parse()?;
        let (queue, uid) = (context.queue, command.uid());
        let len = check_ring(&queue, LOG_BLOCK, 1 << LOG_BLOCK)?;
        // A queue for the driver's own NOPs has no TIS.
        let tis = (context.tis_count > 0).then_some(Id(Kind::Tis, context.tisn));
        let used = [Id(Kind::Cq, context.cqn), Id(Kind::Pd, queue.pd), Id(Kind::Uar, queue.uar_page)];
        let uses = used.into_iter().chain(tis).map(|id| self.state.objects.check_use(id, uid));
        let mut uses = uses.collect::<Result<Vec<_>>>()?;
        let found = self.locate(&memory_of(&queue, command.after::<CreateSq>()), len, uid)?;
        uses.extend(found.uses);
        let tis = tis.map(|tis| self.state.objects.find(tis, 0)).transpose()?;
        let tis = tis.and_then(|tis| CreateTis::from_prefix(&tis.context));
        let domain = tis.map_or(0, |tis| tis.transport_domain);
        let attr = QpAttr {
            pd: Pdn(queue.pd),
            service: Service::Raw,
            send_cq: Cqn(context.cqn),
            recv_cq: Cqn(context.cqn),
            srq: None,
            rq: WqAttr::default(),
            sq: WqAttr { buf: found.ring, count: 1 << queue.log_size, shift: LOG_BLOCK.into() },
            dbrec: found.record,
            register: Register { page: queue.uar_page, offset: Register::ANY },
            user_index: context.user_index,
            signal_all: false,
            scatter_to_cqe_rq: false,
            scatter_to_cqe_sq: false,
            block_multicast_loopback: false,
            raw: RawAttr { domain, ..RawAttr::default() },
            dc: DcAttr::None,
        };
        let sq = self.nic.create_qp_in(attr, &found.spaces)?;
        let context = context.to_bytes().to_vec();
        self.state.objects.insert(Id(Kind::Sq, sq.0), Entry { uid, uses, context, ..Entry::default() });
        created(output, sq.0)
    }

    fn state_of_sq(&self, number: u32) -> Result<WqState> {
        Ok(match self.nic.query_qp(Qpn(number))?.state {
            QpState::Reset => WqState::Reset,
            QpState::Err | QpState::Sqe => WqState::Err,
            _ => WqState::Ready,
        })
    }

    pub(super) fn modify_sq(&mut self, command: &Command, _: &mut [u8]) -> Result {
        let modify: ModifyQueue = command.parse()?;
        let given = command.after::<ModifyQueue>();
        let given = given.get(..SqContext::SIZE).ok_or(Refusal::INPUT_LENGTH)?;
        let to = state_of(SqContext::read(given, 0, 0).state)?;
        self.state.objects.find(Id(Kind::Sq, modify.number), command.uid())?;
        let from = self.state_of_sq(modify.number)?;
        if from != state_of(modify.state)? {
            return Err(Refusal::WQ_STATE);
        }
        let states: &[QpState] = match (from, to) {
            (WqState::Reset, WqState::Ready) => &[QpState::Init, QpState::Rtr, QpState::Rts],
            (_, WqState::Reset) => &[QpState::Reset],
            (WqState::Ready, WqState::Err) => &[QpState::Err],
            _ if from == to => &[],
            _ => return Err(Refusal::WQ_STATE),
        };
        for state in states {
            let change = QpModify { state: Some(*state), ..QpModify::default() };
            self.nic.modify_qp(Qpn(modify.number), &change)?;
        }
        Ok(())
    }

    pub(super) fn query_sq(&mut self, command: &Command, output: &mut [u8]) -> Result {
        let number = command.number()?;
        let entry = self.state.objects.find(Id(Kind::Sq, number), command.uid())?;
        let context = SqContext::from_prefix(&entry.context).ok_or(Refusal::NO_OBJECT)?;
        let state = number_of(self.state_of_sq(number)?);
        answer(output, QuerySqReply { context: SqContext { state, ..context } })
    }

    pub(super) fn create_rq(&mut self, command: &Command, output: &mut [u8]) -> Result {
        const OWN_QUEUE: u8 = 0;
        const LOG_SEGMENT: u8 = 4;
        self.check_ethernet()?;
        let CreateRq { context, .. } = command.parse()?;
        let (queue, uid) = (context.queue, command.uid());
        if context.mem_rq_type != OWN_QUEUE {
            return Err(Refusal::WQ_KIND);
        }
        let len = check_ring(&queue, LOG_SEGMENT, GENERAL.max_wqe_sz_rq)?;
        // A queue that only drops frames has no domain: nobody posts to it.
        let pd = (queue.pd != 0).then_some(Id(Kind::Pd, queue.pd));
        let used = [Id(Kind::Cq, context.cqn)].into_iter().chain(pd);
        let uses = used.map(|id| self.state.objects.check_use(id, uid));
        let mut uses = uses.collect::<Result<Vec<_>>>()?;
        let found = self.locate(&memory_of(&queue, command.after::<CreateRq>()), len, uid)?;
        uses.extend(found.uses);
        let attr = RwqAttr {
            pd: Pdn(queue.pd),
            cq: Cqn(context.cqn),
            ring: WqAttr { buf: found.ring, count: 1 << queue.log_size, shift: queue.log_stride.into() },
            dbrec: found.record,
            user_index: context.user_index,
            striding: None,
            offloads: RxOffloads { strip_vlan: !context.vlan_strip_disable, scatter_fcs: context.scatter_fcs },
        };
        self.check_counters(context.counter_set_id, uid)?;
        let rq = self.nic.create_wq_in(attr, &found.spaces)?;
        self.count_in(Counted::Wq(rq.0), context.counter_set_id, uid)?;
        let context = context.to_bytes().to_vec();
        self.state.objects.insert(Id(Kind::Rq, rq.0), Entry { uid, uses, context, ..Entry::default() });
        created(output, rq.0)
    }

    pub(super) fn modify_rq(&mut self, command: &Command, _: &mut [u8]) -> Result {
        const VLAN_STRIPPING: u64 = 1 << 1;
        const COUNTER_SET: u64 = 1 << 3;
        let modify: ModifyQueue = command.parse()?;
        let given = command.after::<ModifyQueue>();
        let given = given.get(..RqContext::SIZE).ok_or(Refusal::INPUT_LENGTH)?;
        let given = RqContext::read(given, 0, 0);
        let number = modify.number;
        self.state.objects.find(Id(Kind::Rq, number), command.uid())?;
        let (from, to) = (state_of(modify.state)?, state_of(given.state)?);
        let counters = (modify.bitmask & COUNTER_SET != 0).then_some(given.counter_set_id);
        counters.map(|set| self.check_counters(set, command.uid())).transpose()?;
        self.nic.modify_wq(Wqn(number), from, to).map_err(|_| Refusal::WQ_STATE)?;
        if modify.bitmask & VLAN_STRIPPING != 0 {
            self.nic.set_vlan_stripping(Wqn(number), !given.vlan_strip_disable)?;
        }
        if let Some(counter_set_id) = counters {
            self.count_in(Counted::Wq(number), counter_set_id, command.uid())?;
            let entry = self.state.objects.find_mut(Id(Kind::Rq, number), 0)?;
            let bytes = entry.context.first_chunk_mut().ok_or(Refusal::NO_OBJECT)?;
            RqContext { counter_set_id, ..RqContext::from_bytes(bytes) }.put(bytes);
        }
        Ok(())
    }

    pub(super) fn query_rq(&mut self, command: &Command, output: &mut [u8]) -> Result {
        let number = command.number()?;
        let entry = self.state.objects.find(Id(Kind::Rq, number), command.uid())?;
        let context = RqContext::from_prefix(&entry.context).ok_or(Refusal::NO_OBJECT)?;
        let state = number_of(self.nic.wq_state(Wqn(number))?);
        let vlan_strip_disable = !self.nic.strips_vlan(Wqn(number))?;
        answer(output, QueryRqReply { context: RqContext { state, vlan_strip_disable, ..context } })
    }

    fn check_queues(&self, queues: &[u32], uid: u16) -> Result<Vec<Id>> {
        queues.iter().map(|rqn| self.state.objects.check_use(Id(Kind::Rq, *rqn), uid)).collect()
    }

    pub(super) fn create_rqt(&mut self, command: &Command, output: &mut [u8]) -> Result {
        self.check_ethernet()?;
        let queues = list_of(command, &command.parse()?)?;
        let uid = command.uid();
        let uses = self.check_queues(&queues, uid)?;
        created(output, self.state.objects.insert_new(Kind::Rqt, Entry { uid, uses, ..Entry::default() })?)
    }

    /// Returns a table and its queues, which stand where the creation has them.
    pub(super) fn query_rqt(&mut self, command: &Command, output: &mut [u8]) -> Result {
        let entry = self.state.objects.find(Id(Kind::Rqt, command.number()?), command.uid())?;
        let queues = entry.uses.iter().filter(|Id(kind, _)| *kind == Kind::Rq);
        let numbers: Vec<u8> = queues.flat_map(|Id(_, rqn)| rqn.to_be_bytes()).collect();
        let list = output.get_mut(RqTable::SIZE..).and_then(|list| list.get_mut(..numbers.len()));
        list.ok_or(Refusal::OUTPUT_LENGTH)?.copy_from_slice(&numbers);
        let size = (numbers.len() / size_of::<u32>()) as u16;
        answer(output, RqTable { max_size: size, actual_size: size, ..RqTable::ZERO })
    }

    pub(super) fn modify_rqt(&mut self, command: &Command, _: &mut [u8]) -> Result {
        let table: RqTable = command.parse()?;
        let (id, uid) = (Id(Kind::Rqt, table.rqtn), command.uid());
        self.state.objects.find(id, uid)?;
        let queues = list_of(command, &table)?;
        let uses = self.check_queues(&queues, uid)?;
        self.state.objects.set_uses(id, uses);
        for tirn in self.state.objects.users_of(id, Kind::Tir) {
            self.nic.set_tir_queues(Tirn(tirn), queues.iter().copied().map(Wqn).collect())?;
        }
        Ok(())
    }

    /// Changes which frames come back. Changes of the hash do not count: the table of queues decides.
    pub(super) fn modify_tir(&mut self, command: &Command, _: &mut [u8]) -> Result {
        let ModifyTir { tirn, changes_self_lb, self_lb, .. } = command.parse()?;
        self.state.objects.find(Id(Kind::Tir, tirn), command.uid())?;
        if changes_self_lb {
            self.nic.set_loopback(Tirn(tirn), loopback_of(self_lb))?;
            let entry = self.state.objects.find_mut(Id(Kind::Tir, tirn), 0)?;
            let bytes = entry.context.first_chunk_mut().ok_or(Refusal::NO_OBJECT)?;
            CreateTir { self_lb, ..CreateTir::from_bytes(bytes) }.put(bytes);
        }
        Ok(())
    }

    pub(super) fn create_tir(&mut self, command: &Command, output: &mut [u8]) -> Result {
        self.check_ethernet()?;
        let tir: CreateTir = command.parse()?;
        let uid = command.uid();
        let target = match tir.disp_type {
            DIRECT => Id(Kind::Rq, tir.inline_rqn),
            INDIRECT => Id(Kind::Rqt, tir.indirect_table),
            _ => return Err(Refusal::ATTRIBUTES),
        };
        let mut uses = self.check_domain(tir.transport_domain, uid)?;
        uses.push(self.state.objects.check_use(target, uid)?);
        let queues = match target {
            Id(Kind::Rq, rqn) => vec![Wqn(rqn)],
            id => self.state.objects.find(id, 0)?.uses.iter().map(|Id(_, rqn)| Wqn(*rqn)).collect(),
        };
        let (domain, loopback) = (tir.transport_domain, loopback_of(tir.self_lb));
        let attr = TirAttr { domain, loopback, hash: hash_of(&tir), queues };
        let tirn = self.nic.create_tir(attr)?;
        let context = tir.to_bytes().to_vec();
        self.state.objects.insert(Id(Kind::Tir, tirn.0), Entry { uid, uses, context, ..Entry::default() });
        created(output, tirn.0)
    }
}
