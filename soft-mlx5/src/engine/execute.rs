//! Execution of the send queue: WQEs are started in order and sent packet by packet.

use mlx5_wire::ctrl::ControlSegment;
use mlx5_wire::opcode::WqeOpcode;

use super::core::{Core, Turn};
use super::dc::initiator;
use super::{frames, requester, tm, transmit, umr};
use crate::base::defect::Defect;
use crate::fabric::psn;
use crate::objects::completion::Failure;
use crate::objects::memory::Unmapped;
use crate::objects::qp::Qp;
use crate::objects::requester::Request;
use crate::objects::sq::blocks;
use crate::objects::strict::Rule;
use crate::objects::wqe::{Flags, Kind, SendWqe, Trailer, WqeError};
use crate::objects::{QpState, Service};

/// The WQE read last, so that a message of many packets is not read for each of them.
#[derive(Default)]
struct Loaded {
    wqe: SendWqe,
    index: Option<u16>,
}

/// Reason why transmission pauses.
enum Pause {
    /// Until something happens.
    Waiting,
    /// Until the link has room.
    Blocked,
    /// For ever: the program took the memory of the queue away.
    Lost,
}

impl From<Unmapped> for Pause {
    fn from(_: Unmapped) -> Self {
        Self::Lost
    }
}

/// Sends what the queue pair may send, at most `budget` packets.
pub fn run(qp: &mut Qp, core: &mut Core, budget: &mut u32) -> Turn {
    let mut loaded = Loaded::default();
    let mut turn = Turn::More;
    while *budget > 0 {
        if let Err(pause) = advance(qp, core, &mut loaded) {
            turn = match pause {
                Pause::Waiting => Turn::Idle,
                Pause::Blocked => Turn::Blocked,
                Pause::Lost => {
                    qp.lose_memory(core);
                    Turn::Idle
                }
            };
            break;
        }
        *budget -= 1;
    }
    requester::complete_front(qp, core);
    requester::ensure_timer(qp, core);
    turn
}

/// Does one step of transmission: sends a packet, or starts a WQE.
fn advance(qp: &mut Qp, core: &mut Core, loaded: &mut Loaded) -> Result<(), Pause> {
    if qp.requester.is_backing_off() {
        return Err(Pause::Waiting);
    }
    let Some((request, packet)) = qp.requester.current() else {
        return start(qp, core, loaded);
    };
    let at = psn::add(request.first_psn, packet);
    if request.failure.is_some() || !qp.requester.is_in_window(at) {
        return Err(Pause::Waiting);
    }
    // A datagram has a route of its own, and is lost if that route is full.
    let way = qp.route.as_ref().filter(|_| qp.attr.service != Service::Ud);
    let full = match qp.attr.service {
        Service::Raw => !core.link.has_room_for_ethernet(core.now),
        _ => way.is_some_and(|route| !core.link.has_room(route.dlid)),
    };
    if full {
        return Err(Pause::Blocked);
    }
    if loaded.index != Some(request.index) {
        reload(qp, core, loaded, &request)?;
    }
    core.progress = true;
    if let Err(error) = transmit::packet(qp, core, &loaded.wqe, &request, packet) {
        qp.requester.refuse(failure_of(error));
        return Err(Pause::Waiting);
    }
    let end = if request.kind.is_read_like() { request.packets } else { packet + 1 };
    let psn = qp.requester.sent(&request, end);
    if !qp.attr.service.is_reliable() {
        // No answer follows: a sent packet is complete.
        qp.requester.acknowledged_up_to(psn);
        requester::complete_front(qp, core);
    }
    Ok(())
}

fn load(qp: &Qp, core: &Core, index: u16, ctrl: ControlSegment, wqe: &mut SendWqe) -> Result<(), Unmapped> {
    qp.sq.load(index, ctrl, wqe)?;
    core.defects.send(wqe, qp.sq.before_end(index));
    Ok(())
}

/// Reads the WQE of a request that was started before.
fn reload(qp: &mut Qp, core: &mut Core, loaded: &mut Loaded, request: &Request) -> Result<(), Pause> {
    let ctrl = qp.sq.ctrl(request.index)?;
    load(qp, core, request.index, ctrl, &mut loaded.wqe)?;
    loaded.index = Some(request.index);
    if loaded.wqe.digest() == request.digest {
        return Ok(());
    }
    let bytes = ctrl.to_bytes();
    core.strict.violation(Rule::SendChanged, qp.object(), request.index.into(), &bytes);
    qp.requester.refuse(Failure::LOCAL_QP_OP);
    Err(Pause::Waiting)
}

fn failure_of(error: WqeError) -> Failure {
    match error {
        WqeError::Malformed => Failure::LOCAL_QP_OP,
        WqeError::Length => Failure::LOCAL_LENGTH,
        WqeError::Protection => Failure::LOCAL_PROT,
    }
}

/// Starts the next WQE, if there is one and it may start.
fn start(qp: &mut Qp, core: &mut Core, loaded: &mut Loaded) -> Result<(), Pause> {
    if qp.state != QpState::Rts {
        return Err(Pause::Waiting);
    }
    let ready = qp.sq.ready(qp.object(), &mut core.strict)?;
    if ready == 0 {
        return Err(Pause::Waiting);
    }
    let index = qp.sq.next();
    let ctrl = qp.sq.ctrl(index)?;
    let flags = Flags(ctrl.fm_ce_se);
    let list_operation = ctrl.opcode() == WqeOpcode::TAG_MATCHING;
    if list_operation && !qp.requester.is_idle() {
        return Err(Pause::Waiting);
    }
    let operation = Kind::of(ctrl.opcode(), qp.attr.service);
    let kind = operation.map_or(Kind::Nop, |(kind, _)| kind);
    // A change of a key waits for what uses keys, but not for answers: READs and atomics wait for the fence of the
    // WQE. A lost packet that is sent again still finds its key.
    if kind == Kind::Umr && !qp.requester.has_only_reads() {
        return Err(Pause::Waiting);
    }
    let read_like = operation.is_some_and(|(kind, _)| kind.is_read_like());
    let heeded = if core.defects.is(Defect::Fence) { Flags(0) } else { flags };
    if !qp.requester.may_start(heeded, read_like) {
        return Err(Pause::Waiting);
    }
    let len = blocks(ctrl.ds());
    let fits = len > 0 && len <= ready;
    let stream = u16::from_be_bytes(ctrl.dci_stream_channel_id);
    let stream_failed = initiator::is_failed(qp, stream);
    if qp.attr.service == Service::Dc && fits && !matches!(kind, Kind::Nop | Kind::Umr) && !stream_failed {
        load(qp, core, index, ctrl, &mut loaded.wqe)?;
        loaded.index = None;
        // Requests that needed no answer are complete.
        requester::complete_front(qp, core);
        if !initiator::turn_to_target(qp, core, &loaded.wqe) {
            return Err(Pause::Waiting);
        }
    }
    core.progress = true;
    if core.faults.is_fatal() {
        qp.fail_fatally(core);
        return Err(Pause::Waiting);
    }
    if core.trace.is_on() {
        load(qp, core, index, ctrl, &mut loaded.wqe)?;
        loaded.index = None;
        core.trace.send(qp.attr.service, &loaded.wqe);
    }
    let rules =
        [(fits, Rule::SendSize), (ctrl.qpn() == qp.number, Rule::SendQpn), (ctrl.index() == index, Rule::SendIndex)];
    for (_, rule) in rules.into_iter().filter(|(kept, _)| !kept) {
        core.strict.violation(rule, qp.object(), index.into(), &ctrl.to_bytes());
    }
    if list_operation && fits && ctrl.qpn() == qp.number {
        load(qp, core, index, ctrl, &mut loaded.wqe)?;
        loaded.index = None;
        if tm::operation::execute(qp, core, &loaded.wqe).is_ok() {
            qp.sq.advance(len);
            return Ok(());
        }
    }
    let trailer = operation.map_or(Trailer::None, |(_, trailer)| trailer);
    if ctrl.opcode() == WqeOpcode::SET_PSV {
        core.strict.violation(Rule::Signature, qp.object(), index.into(), &ctrl.to_bytes());
    }
    let measured = if fits && ctrl.qpn() == qp.number && operation.is_some() {
        load(qp, core, index, ctrl, &mut loaded.wqe)?;
        loaded.index = Some(index);
        match kind {
            Kind::Umr => umr::execute(qp, core, &loaded.wqe).map(|()| (0, 0)),
            _ => measure(qp, core, &loaded.wqe, kind).map_err(failure_of),
        }
    } else {
        Err(Failure::LOCAL_QP_OP)
    };
    let measured = if stream_failed { Err(Failure::FLUSH) } else { measured };
    let measured = if core.faults.send_fails() { measured.and(Err(Failure::LOCAL_QP_OP)) } else { measured };
    let (length, packets) = measured.unwrap_or_default();
    qp.sq.advance(if fits { len } else { ready });
    qp.requester.push(Request {
        index,
        opcode: ctrl.opcode(),
        kind,
        trailer,
        flags,
        stream,
        first_psn: qp.requester.next_psn(),
        packets,
        length,
        digest: loaded.wqe.digest(),
        failure: measured.err(),
    });
    Ok(())
}

/// Returns the bytes of the message, and the number of packet sequence numbers that it takes.
fn measure(qp: &Qp, core: &mut Core, wqe: &SendWqe, kind: Kind) -> Result<(u32, u32), WqeError> {
    if kind == Kind::Nop {
        return Ok((0, 0));
    }
    let at = match qp.attr.service {
        Service::Raw => frames::send::data_offset(wqe)?,
        _ => wqe.data_offset(kind),
    };
    if let Some(bytes) = wqe.zero_length(at) {
        let index = wqe.ctrl().index().into();
        core.strict.violation(Rule::ZeroLength, qp.object(), index, bytes);
    }
    if let Some(bytes) = wqe.too_long(at, kind, &core.mkeys, qp.attr.pd) {
        let index = wqe.ctrl().index().into();
        core.strict.violation(Rule::SegmentLength, qp.object(), index, bytes);
        return Err(WqeError::Length);
    }
    if qp.attr.service == Service::Raw {
        return frames::send::measure(qp, core, wqe);
    }
    let length = wqe.length(at)?;
    match (kind, qp.attr.service) {
        (Kind::Atomic, _) => {
            wqe.atomic()?;
            if length == 8 { Ok((8, 1)) } else { Err(WqeError::Length) }
        }
        (_, Service::Ud) => {
            wqe.datagram()?;
            if length as usize <= qp.mtu { Ok((length, 1)) } else { Err(WqeError::Length) }
        }
        _ => {
            if kind != Kind::Send {
                wqe.remote()?;
            }
            Ok((length, length.div_ceil(qp.mtu as u32).max(1)))
        }
    }
}
