//! Queue pairs: creation, the commands of their states, and the context that a query returns.

use mlx5_wire::firmware::command::{Numbered, Opcode};
use mlx5_wire::firmware::qp::{
    CreateQp, ModifyQp, ModifyQpExtension, QpContext, QueryQpReply, optional, rq_type, service, state,
};

use super::Execution;
use super::capabilities::{self, GENERAL};
use super::memory::QueueMemory;
use super::objects::{Entry, Id, Kind};
use super::opcodes::{Command, Result, answer, created};
use super::refusal::Refusal;
use crate::engine::counting::Counted;
use crate::fabric::{LinkLayer, address};
use crate::objects::mkey::{REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE};
use crate::objects::{
    Access, AddressVector, Cqn, DcAttr, Grh, Pdn, QpAttr, QpModify, QpState, Qpn, RawAttr, Register, Service, Srqn,
    WqAttr,
};

/// Fields of the mask that a command may name, besides those that it always changes.
const ACCESS: u32 = optional::RRE | optional::RAE | optional::RWE;

/// Returns the service of the device for a service of the interface.
fn service_of(number: u8) -> Result<Service> {
    match number {
        // A queue pair for UMR is connected to itself, and its WQEs never leave it.
        service::RC | service::REG_UMR => Ok(Service::Rc),
        service::UC => Ok(Service::Uc),
        service::DCI => Ok(Service::Dc),
        service::UD | service::QP0 | service::QP1 => Ok(Service::Ud),
        _ => Err(Refusal::SERVICE),
    }
}

/// Returns what an initiator of dynamic connections is.
fn initiator(context: &QpContext) -> DcAttr {
    let streams = context.log_num_dci_stream_channels > 0;
    DcAttr::Initiator { streams_in_error: streams.then_some(1 << context.log_num_dci_errored_streams.min(31)) }
}

/// Returns the LID of the port with this MAC address, or 0.
fn lid_of_mac(mac: u64) -> u16 {
    let [_, _, mac @ ..] = mac.to_be_bytes();
    address::lid_of_mac(&mac).unwrap_or(0)
}

fn state_number(state: QpState) -> u8 {
    match state {
        QpState::Reset => state::RST,
        QpState::Init => state::INIT,
        QpState::Rtr => state::RTR,
        QpState::Rts => state::RTS,
        QpState::Sqe => state::SQER,
        QpState::Sqd => state::SQD,
        QpState::Err => state::ERR,
    }
}

fn access(context: &QpContext) -> Access {
    let rights = [(context.rwe, REMOTE_WRITE), (context.rre, REMOTE_READ), (context.rae, REMOTE_ATOMIC)];
    rights.iter().filter(|(given, _)| *given).map(|(_, right)| right).sum()
}

/// Returns the context after a change to Reset: attributes of the creation stay, and attributes that a state gave go.
pub fn in_reset(context: &QpContext) -> QpContext {
    QpContext {
        path: QpContext::ZERO.path,
        alternate_path: QpContext::ZERO.alternate_path,
        remote_qpn: 0,
        mtu: 0,
        q_key: 0,
        next_send_psn: 0,
        next_rcv_psn: 0,
        rre: false,
        rwe: false,
        rae: false,
        ..*context
    }
}

/// Sets the rights of peers in a context.
pub fn give_rights(access: Access, write: &mut bool, read: &mut bool, atomic: &mut bool) {
    let given = |right| access & right != 0;
    (*write, *read, *atomic) = (given(REMOTE_WRITE), given(REMOTE_READ), given(REMOTE_ATOMIC));
}

/// A command that changes the state.
struct Change {
    from: QpState,
    to: QpState,
    // Fields that the mask may name.
    optional: u32,
}

fn change_of(opcode: Opcode) -> Option<Change> {
    use QpState::{Init, Reset, Rtr, Rts, Sqe};
    let identity = ACCESS | optional::PKEY_INDEX | optional::Q_KEY;
    let sending = ACCESS | optional::Q_KEY | optional::RNR_TIMEOUT;
    let change = |from, to, optional| Some(Change { from, to, optional });
    match opcode {
        Opcode::RST2INIT_QP => change(Reset, Init, 0),
        Opcode::INIT2INIT_QP => change(Init, Init, identity),
        Opcode::INIT2RTR_QP => change(Init, Rtr, identity),
        Opcode::RTR2RTS_QP => change(Rtr, Rts, sending),
        Opcode::RTS2RTS_QP => change(Rts, Rts, sending),
        Opcode::SQERR2RTS_QP => change(Sqe, Rts, sending),
        _ => None,
    }
}

/// The context and what the device is told about a change of it.
struct Changes<'a> {
    now: &'a mut QpContext,
    given: &'a QpContext,
    device: QpModify,
}

impl Changes<'_> {
    fn rights(&mut self, which: u32) {
        if which & optional::RRE != 0 {
            self.now.rre = self.given.rre;
        }
        if which & optional::RWE != 0 {
            self.now.rwe = self.given.rwe;
        }
        if which & optional::RAE != 0 {
            (self.now.rae, self.now.atomic_mode) = (self.given.rae, self.given.atomic_mode);
        }
        if which & ACCESS != 0 {
            self.device.access = Some(access(self.now));
        }
    }

    fn pkey(&mut self) -> Result {
        let index = self.given.path.pkey_index;
        if index >= capabilities::PKEYS {
            return Err(Refusal::PKEY_INDEX);
        }
        self.now.path.pkey_index = index;
        self.device.pkey_index = Some(index);
        Ok(())
    }

    fn q_key(&mut self) {
        self.now.q_key = self.given.q_key;
        self.device.qkey = Some(self.given.q_key);
    }

    fn rnr_timer(&mut self) {
        self.now.min_rnr_nak = self.given.min_rnr_nak;
        self.device.min_rnr_timer = Some(self.given.min_rnr_nak);
    }

    fn optional(&mut self, which: u32) -> Result {
        self.rights(which);
        if which & optional::PKEY_INDEX != 0 {
            self.pkey()?;
        }
        if which & optional::Q_KEY != 0 {
            self.q_key();
        }
        if which & optional::RNR_TIMEOUT != 0 {
            self.rnr_timer();
        }
        if which & optional::COUNTER_SET != 0 {
            self.now.counter_set_id = self.given.counter_set_id;
        }
        Ok(())
    }

    fn identity(&mut self) -> Result {
        if self.given.path.port > 1 {
            return Err(Refusal::PORT);
        }
        self.now.path.port = self.given.path.port;
        self.now.pm_state = self.given.pm_state;
        self.now.counter_set_id = self.given.counter_set_id;
        self.rights(ACCESS);
        self.q_key();
        self.pkey()
    }

    fn mtu(&mut self) -> Result {
        let mtu = self.given.mtu;
        if !(1..=5).contains(&mtu) {
            return Err(Refusal::MTU);
        }
        self.now.mtu = mtu;
        self.device.path_mtu = Some(128 << mtu);
        Ok(())
    }

    fn path(&mut self, layer: LinkLayer) -> Result {
        let (path, kept) = (self.given.path, self.now.path);
        let gids = match layer {
            LinkLayer::InfiniBand => capabilities::GIDS_INFINIBAND,
            LinkLayer::Ethernet => capabilities::GIDS_ETHERNET,
        };
        let global = path.grh || layer == LinkLayer::Ethernet;
        if global && u32::from(path.src_addr_index) >= gids {
            return Err(Refusal::GID_INDEX);
        }
        self.mtu()?;
        self.now.path = path;
        (self.now.path.pkey_index, self.now.path.port) = (kept.pkey_index, kept.port);
        self.now.log_msg_max = self.given.log_msg_max;
        self.now.remote_qpn = self.given.remote_qpn;
        self.now.next_rcv_psn = self.given.next_rcv_psn;
        self.device = QpModify {
            av: Some(AddressVector {
                dlid: match layer {
                    LinkLayer::Ethernet => lid_of_mac(path.rmac),
                    LinkLayer::InfiniBand => path.rlid,
                },
                sl: path.sl,
                src_path_bits: path.mlid,
                grh: global.then_some(Grh {
                    dgid: path.rgid,
                    sgid_index: path.src_addr_index,
                    flow_label: path.flow_label,
                    hop_limit: path.hop_limit,
                    traffic_class: path.tclass,
                }),
            }),
            dest_qpn: Some(self.given.remote_qpn),
            rq_psn: Some(self.given.next_rcv_psn),
            ..self.device
        };
        Ok(())
    }

    fn responder(&mut self) {
        self.now.log_rra_max = self.given.log_rra_max;
        self.device.max_dest_rd_atomic = Some(1 << self.given.log_rra_max.min(4));
        self.rnr_timer();
    }

    fn requester(&mut self) {
        let given = self.given;
        self.now.path.ack_timeout = given.path.ack_timeout;
        self.now.retry_count = given.retry_count;
        self.now.rnr_retry = given.rnr_retry;
        self.now.log_sra_max = given.log_sra_max;
        self.now.log_ack_req_freq = given.log_ack_req_freq;
        self.device = QpModify {
            timeout: Some(given.path.ack_timeout),
            retry_cnt: Some(given.retry_count),
            rnr_retry: Some(given.rnr_retry),
            max_rd_atomic: Some(1 << given.log_sra_max.min(4)),
            ..self.device
        };
    }

    fn send_psn(&mut self) {
        self.now.next_send_psn = self.given.next_send_psn;
        self.device.sq_psn = Some(self.given.next_send_psn);
    }
}

impl Execution<'_> {
    fn context_of_qp(&self, number: u32, uid: u16) -> Result<QpContext> {
        let entry = self.state.objects.find(Id(Kind::Qp, number), uid)?;
        QpContext::from_prefix(&entry.context).ok_or(Refusal::NO_OBJECT)
    }

    fn keep_context_of_qp(&mut self, number: u32, context: &QpContext) -> Result {
        let entry = self.state.objects.find_mut(Id(Kind::Qp, number), 0)?;
        let bytes = entry.context.first_chunk_mut().ok_or(Refusal::NO_OBJECT)?;
        context.put(bytes);
        Ok(())
    }

    pub(super) fn create_qp(&mut self, command: &Command, output: &mut [u8]) -> Result {
        let create: CreateQp = command.parse()?;
        let (context, uid) = (create.context, command.uid());
        let device_service = service_of(context.service)?;
        let special = matches!(context.service, service::QP0 | service::QP1 | service::REG_UMR);
        if special && uid != 0 {
            return Err(Refusal::SERVICE);
        }
        let mut used = vec![Id(Kind::Cq, context.cqn_snd), Id(Kind::Cq, context.cqn_rcv)];
        let pd = if context.service == service::REG_UMR {
            Pdn::OF_DRIVER
        } else {
            used.push(Id(Kind::Pd, context.pd));
            Pdn(context.pd)
        };
        let (rq_count, srq) = match context.rq_type {
            // The driver names an SRQ that no initiator uses.
            _ if device_service == Service::Dc => (0, None),
            rq_type::OWN => (1u32 << context.log_rq_size, None),
            rq_type::SRQ => {
                let tagged = self.state.objects.get(Kind::Xrq, context.srqn).is_some();
                used.push(Id(if tagged { Kind::Xrq } else { Kind::Rmp }, context.srqn));
                (0, Some(Srqn(context.srqn)))
            }
            rq_type::NONE => (0, None),
            _ => return Err(Refusal::RQ_TYPE),
        };
        let rq_shift = u32::from(context.log_rq_stride) + 4;
        let too_long = 1u32 << rq_shift > GENERAL.max_wqe_sz_rq.into();
        if context.log_sq_size > GENERAL.log_max_qp_sz || rq_count > 0 && too_long {
            return Err(Refusal::QUEUE_SIZE);
        }
        let sq_count = if context.no_sq { 0 } else { 1u32 << context.log_sq_size };
        if sq_count > 0 {
            used.push(Id(Kind::Uar, context.uar_page));
        }
        let uses = used.into_iter().map(|id| self.state.objects.check_use(id, uid));
        let mut uses = uses.collect::<Result<Vec<_>>>()?;
        self.check_counters(context.counter_set_id, uid)?;
        let memory = QueueMemory {
            log_page_size: context.log_page_size,
            page_offset: context.page_offset,
            list: command.after::<CreateQp>(),
            umem_valid: create.umem_valid,
            umem: (create.umem_id, create.umem_offset),
            record: context.dbr_addr,
            record_umem_valid: context.dbr_umem_valid,
            record_umem: context.dbr_umem_id,
        };
        let rq_bytes = u64::from(rq_count) << rq_shift;
        let found = self.locate(&memory, rq_bytes + u64::from(sq_count) * 64, uid)?;
        uses.extend(found.uses);
        let attr = QpAttr {
            pd,
            service: device_service,
            send_cq: Cqn(context.cqn_snd),
            recv_cq: Cqn(context.cqn_rcv),
            srq,
            rq: WqAttr { buf: found.ring, count: rq_count, shift: rq_shift },
            sq: WqAttr { buf: found.ring + rq_bytes, count: sq_count, shift: 6 },
            dbrec: found.record,
            register: Register { page: context.uar_page, offset: Register::ANY },
            user_index: context.user_index,
            signal_all: false,
            scatter_to_cqe_rq: context.scatter_responder != 0,
            scatter_to_cqe_sq: context.scatter_requester != 0,
            block_multicast_loopback: false,
            raw: RawAttr::default(),
            dc: if device_service == Service::Dc { initiator(&context) } else { DcAttr::None },
        };
        let qp = self.nic.create_qp_in(attr, &found.spaces)?;
        self.count_in(Counted::Qp(qp.0), context.counter_set_id, uid)?;
        match context.service {
            service::QP0 => self.nic.bind_management(qp, 0),
            service::QP1 => self.nic.bind_management(qp, 1),
            _ => {}
        }
        let context = context.to_bytes().to_vec();
        self.state.objects.insert(Id(Kind::Qp, qp.0), Entry { uid, uses, context, ..Entry::default() });
        created(output, qp.0)
    }

    pub(super) fn modify_qp(&mut self, command: &Command, _: &mut [u8]) -> Result {
        let modify: ModifyQp = command.parse()?;
        let change = change_of(Opcode(command.request.opcode)).ok_or(Refusal::UNKNOWN_COMMAND)?;
        let qp = Qpn(modify.qpn);
        self.state.objects.find(Id(Kind::Qp, qp.0), command.uid())?;
        if self.nic.query_qp(qp)?.state != change.from {
            return Err(Refusal::QP_STATE);
        }
        if let Ok(ModifyQpExtension { extended: true, optional, stream, .. }) = command.parse() {
            if optional & optional::STREAM == 0 || change.from != QpState::Rts {
                return Err(Refusal::FIELDS);
            }
            return self.nic.reset_stream(qp, stream).map_err(|_| Refusal::STREAM);
        }
        let mut now = self.context_of_qp(modify.qpn, command.uid())?;
        let which = modify.optional & (change.optional | optional::COUNTER_SET);
        let service = service_of(now.service)?;
        let device = QpModify { state: Some(change.to), ..QpModify::default() };
        let mut changes = Changes { now: &mut now, given: &modify.context, device };
        match (change.from, change.to) {
            (QpState::Reset, QpState::Init) => changes.identity()?,
            // The path to a target stands in each WQE.
            (QpState::Init, QpState::Rtr) if service == Service::Dc => changes.mtu()?,
            (QpState::Init, QpState::Rtr) if service != Service::Ud => {
                changes.path(self.state.layer)?;
                if service == Service::Rc {
                    changes.responder();
                }
            }
            (QpState::Rtr, QpState::Rts) => {
                changes.send_psn();
                if service.is_reliable() {
                    changes.requester();
                }
            }
            _ => {}
        }
        changes.optional(which)?;
        let device = changes.device;
        self.check_counters(now.counter_set_id, command.uid())?;
        self.nic.modify_qp(qp, &device)?;
        self.count_in(Counted::Qp(qp.0), now.counter_set_id, command.uid())?;
        self.keep_context_of_qp(modify.qpn, &now)
    }

    /// Moves a queue pair to error or to Reset.
    pub(super) fn move_qp(&mut self, command: &Command, _: &mut [u8]) -> Result {
        let Numbered { number, .. } = command.parse()?;
        let context = self.context_of_qp(number, command.uid())?;
        let state = self.nic.query_qp(Qpn(number))?.state;
        let to = match Opcode(command.request.opcode) {
            Opcode::MOVE_QP_TO_RST => QpState::Reset,
            _ if state == QpState::Reset => return Err(Refusal::QP_STATE),
            _ => QpState::Err,
        };
        self.nic.modify_qp(Qpn(number), &QpModify { state: Some(to), ..QpModify::default() })?;
        if to == QpState::Reset {
            return self.keep_context_of_qp(number, &in_reset(&context));
        }
        Ok(())
    }

    pub(super) fn query_qp(&mut self, command: &Command, output: &mut [u8]) -> Result {
        let number = command.number()?;
        let context = self.context_of_qp(number, command.uid())?;
        let status = self.nic.query_qp(Qpn(number))?;
        answer(
            output,
            QueryQpReply {
                context: QpContext {
                    state: state_number(status.state),
                    next_rcv_psn: status.rq_psn,
                    next_send_psn: status.sq_psn,
                    ..context
                },
            },
        )
    }
}
