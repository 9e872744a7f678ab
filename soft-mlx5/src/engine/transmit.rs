//! Packets of requests.

use std::convert::Infallible;

use mlx5_wire::datagram::DatagramSegment;
use mlx5_wire::opcode::WqeOpcode;

use super::core::Core;
use super::frames;
use crate::fabric::headers::{AtomicEth, Bth, Deth, PKEY, Reth};
use crate::fabric::opcode::Operation;
use crate::fabric::packet::{Frame, MAX_MTU, Route};
use crate::fabric::{LinkLayer, address, psn};
use crate::objects::qp::Qp;
use crate::objects::requester::Request;
use crate::objects::wqe::{Kind, SendWqe, Trailer, WqeError};
use crate::objects::{AddressVector, Grh, Service};

/// QP number that stands for all members of a multicast group.
pub const MULTICAST_QPN: u32 = 0xff_ffff;

// One packet of so many asks for an acknowledgement, besides the last of each message.
const ACK_EVERY: u32 = 16;
const GRH_PRESENT: u32 = 1 << 30;
// A queue key with this bit set in the WQE stands for the QP's own.
const PRIVILEGED_QKEY: u32 = 1 << 31;

/// Sends packet `number` of a request.
pub fn packet(qp: &Qp, core: &mut Core, wqe: &SendWqe, request: &Request, number: u32) -> Result<(), WqeError> {
    match (qp.attr.service, request.kind) {
        (Service::Ud, _) => datagram(qp, core, wqe, request),
        (Service::Raw, _) => frames::send::transmit(qp, core, wqe, number),
        (_, Kind::Read) => read_request(qp, core, wqe, request, number),
        (_, Kind::Atomic) => atomic_request(qp, core, wqe, request),
        _ => data(qp, core, wqe, request, number),
    }
}

/// Begins a packet on the route of a queue pair.
fn begin(qp: &Qp, core: &mut Core, route: &Route, bth: &Bth) -> Frame {
    let mut frame = core.link.frame();
    frame.begin(route, bth);
    if let Some(header) = qp.role.header(qp.number) {
        frame.push(&header);
    }
    frame
}

fn bth(qp: &Qp, operation: Operation, psn: u32) -> Bth {
    Bth { opcode: operation.encode(qp.attr.service), pkey: PKEY, dest_qpn: qp.dest_qpn, psn, ..Bth::default() }
}

/// Sends a frame on the route of a connected queue pair. Sends nothing if no port has the address.
pub fn send(qp: &Qp, core: &mut Core, bth: &Bth, fill: impl FnOnce(&mut Frame)) {
    let filled = |frame: &mut Frame| {
        fill(frame);
        Ok::<_, Infallible>(())
    };
    match try_send(qp, core, bth, filled) {
        Ok(()) => {}
        Err(never) => match never {},
    }
}

/// Does the same as [`send`], unless the frame cannot be filled.
pub fn try_send<E>(
    qp: &Qp,
    core: &mut Core,
    bth: &Bth,
    fill: impl FnOnce(&mut Frame) -> Result<(), E>,
) -> Result<(), E> {
    let Some(route) = &qp.route else { return Ok(()) };
    let mut frame = begin(qp, core, route, bth);
    if let Err(error) = fill(&mut frame) {
        core.link.recycle(frame);
        return Err(error);
    }
    frame.finish();
    core.link.send(frame, core.now);
    Ok(())
}

fn operation_of(kind: Kind, trailer: Trailer, first: bool, last: bool) -> Operation {
    use Operation::*;
    let send = kind == Kind::Send;
    match (send, first, last, trailer) {
        (true, true, false, _) => SendFirst,
        (true, false, false, _) => SendMiddle,
        (true, true, true, Trailer::None) => SendOnly,
        (true, true, true, Trailer::Immediate) => SendOnlyImm,
        (true, true, true, Trailer::Invalidate) => SendOnlyInv,
        (true, false, true, Trailer::None) => SendLast,
        (true, false, true, Trailer::Immediate) => SendLastImm,
        (true, false, true, Trailer::Invalidate) => SendLastInv,
        (false, true, false, _) => WriteFirst,
        (false, false, false, _) => WriteMiddle,
        (false, true, true, Trailer::Immediate) => WriteOnlyImm,
        (false, true, true, _) => WriteOnly,
        (false, false, true, Trailer::Immediate) => WriteLastImm,
        (false, false, true, _) => WriteLast,
    }
}

fn data(qp: &Qp, core: &mut Core, wqe: &SendWqe, request: &Request, number: u32) -> Result<(), WqeError> {
    let (first, last) = (number == 0, number + 1 == request.packets);
    let operation = operation_of(request.kind, request.trailer, first, last);
    let offset = number as usize * qp.mtu;
    let len = (request.length as usize - offset).min(qp.mtu);
    let notify = request.kind == Kind::Send || request.trailer == Trailer::Immediate;
    let mut bth = bth(qp, operation, psn::add(request.first_psn, number));
    bth.solicited = last && notify && request.flags.solicited();
    bth.ack_request = last || number % ACK_EVERY == ACK_EVERY - 1;
    let Some(route) = &qp.route else { return Ok(()) };
    let mut frame = begin(qp, core, route, &bth);
    if operation.has_reth() {
        let remote = wqe.remote()?;
        frame.push(&Reth { va: remote.raddr.get(), rkey: remote.rkey.get(), length: request.length });
    }
    if operation.has_immediate() || operation.has_ieth() {
        frame.push(&wqe.ctrl().imm.get());
    }
    let at = wqe.data_offset(request.kind);
    let payload = frame.payload_mut(len);
    let gathered = wqe.gather(at, offset as u64, payload, &core.mkeys, qp.attr.pd);
    if gathered.is_err() {
        core.link.recycle(frame);
        return gathered;
    }
    frame.finish();
    core.link.send(frame, core.now);
    Ok(())
}

fn read_request(qp: &Qp, core: &mut Core, wqe: &SendWqe, request: &Request, number: u32) -> Result<(), WqeError> {
    let remote = wqe.remote()?;
    // Data that has come already is not asked for again.
    let done = number * qp.mtu as u32;
    let reth = Reth {
        va: remote.raddr.get().wrapping_add(done.into()),
        rkey: remote.rkey.get(),
        length: request.length - done,
    };
    let mut bth = bth(qp, Operation::ReadRequest, psn::add(request.first_psn, number));
    bth.ack_request = true;
    send(qp, core, &bth, |frame| frame.push(&reth));
    Ok(())
}

fn atomic_request(qp: &Qp, core: &mut Core, wqe: &SendWqe, request: &Request) -> Result<(), WqeError> {
    let (remote, operands) = (wqe.remote()?, wqe.atomic()?);
    let operation = match request.opcode {
        WqeOpcode::ATOMIC_CS => Operation::CompareSwap,
        _ => Operation::FetchAdd,
    };
    let mut bth = bth(qp, operation, request.first_psn);
    bth.ack_request = true;
    let header = AtomicEth {
        va: remote.raddr.get(),
        rkey: remote.rkey.get(),
        swap_add: operands.swap_add.get(),
        compare: operands.compare.get(),
    };
    send(qp, core, &bth, |frame| frame.push(&header));
    Ok(())
}

/// Returns the path to the destination that a WQE names.
pub fn path_of(segment: &DatagramSegment, layer: LinkLayer) -> AddressVector {
    let fields = segment.grh_gid_fl.get();
    let global = fields & GRH_PRESENT != 0 || layer == LinkLayer::Ethernet;
    AddressVector {
        // On Ethernet the field of the LID holds the UDP source port.
        dlid: match layer {
            LinkLayer::Ethernet => address::lid_of_mac(&segment.rmac).unwrap_or(0),
            LinkLayer::InfiniBand => segment.rlid.get(),
        },
        sl: segment.stat_rate_sl & 0xf,
        src_path_bits: 0,
        grh: global.then_some(Grh {
            dgid: segment.rgid,
            sgid_index: (fields >> 20) as u8,
            flow_label: fields & 0xf_ffff,
            hop_limit: segment.hop_limit,
            traffic_class: segment.tclass,
        }),
    }
}

fn datagram(qp: &Qp, core: &mut Core, wqe: &SendWqe, request: &Request) -> Result<(), WqeError> {
    let segment = wqe.datagram()?;
    let av = path_of(&segment, core.link_layer);
    let qkey = segment.qkey.get();
    let deth = Deth { qkey: if qkey & PRIVILEGED_QKEY != 0 { qp.qkey } else { qkey }, source_qpn: qp.wire_number };
    let operation = operation_of(Kind::Send, request.trailer, true, true);
    let mut bth = bth(qp, operation, request.first_psn);
    bth.dest_qpn = segment.dqp_dct.get() & 0xff_ffff;
    bth.solicited = request.flags.solicited();

    let mut payload = [0; MAX_MTU];
    let payload = &mut payload[..request.length as usize];
    let at = wqe.data_offset(request.kind);
    wqe.gather(at, 0, payload, &core.mkeys, qp.attr.pd)?;

    let emit = |core: &mut Core, way: &Route| {
        let mut frame = core.link.frame();
        frame.begin(way, &bth);
        frame.push(&deth);
        if operation.has_immediate() {
            frame.push(&wqe.ctrl().imm.get());
        }
        frame.payload_mut(payload.len()).copy_from_slice(payload);
        frame.finish();
        core.link.send(frame, core.now);
    };
    let lid = core.link.lid();
    if av.grh.is_some_and(|grh| address::is_multicast_gid(&grh.dgid)) {
        // Only each port itself knows its members: all ports get a copy.
        for dlid in core.link.peers(core.now).into_iter().chain([lid]) {
            if let Some(way) = core.gids.route_to(&av, lid, dlid, core.link_layer) {
                emit(core, &way);
            }
        }
    } else if let Some(way) = core.route(&av) {
        emit(core, &way);
    }
    Ok(())
}
