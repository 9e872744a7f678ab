//! The probable cause when a peer does not answer, in one line on standard error, once for each device.

use crate::engine::core::Core;
use crate::fabric::LinkLayer;
use crate::objects::qp::Qp;

const LONG_NS: u64 = 5_000_000_000;

/// Says why the retries of a queue pair may have been in vain.
pub fn retries_exceeded(qp: &Qp, core: &mut Core) {
    if !std::mem::replace(&mut core.silent_peers.retries_told, true) {
        let cause = cause(qp, core);
        eprintln!("soft-mlx5: QP {:#x}: transport retry counter exceeded: {cause}", qp.number);
    }
}

/// Says that a peer does not get the processor.
pub fn peer_behind(qp: &Qp, core: &mut Core, waited_ns: u64) {
    let Some(dlid) = qp.route.as_ref().map(|route| route.dlid) else { return };
    if waited_ns >= LONG_NS && !std::mem::replace(&mut core.silent_peers.behind_told, true) {
        let seconds = waited_ns / 1_000_000_000;
        eprintln!(
            "soft-mlx5: QP {:#x}: the device with LID {dlid} exists and has taken no packet for {seconds} s: its process is stopped, \
             or gets no processor. The QP waits for it",
            qp.number
        );
    }
}

/// Returns the most probable cause.
pub fn cause(qp: &Qp, core: &Core) -> String {
    let peer = format!("QP {:#x}", qp.dest_qpn);
    let same_fabric = match core.link.fabric() {
        Some(name) => {
            format!("this device is on fabric {name:?}: start both with the same --fabric NAME")
        }
        None => "this device has no named fabric".to_owned(),
    };
    let Some(dlid) = qp.route.as_ref().map(|route| route.dlid) else {
        return match core.link_layer {
            LinkLayer::InfiniBand => {
                "the destination LID is 0, and there is no GRH: the program addresses its peer as on \
                                      Ethernet (use --link roce), or has not exchanged LIDs"
                    .to_owned()
            }
            LinkLayer::Ethernet => {
                "the destination GID is of no device: the peer has not sent its GID, or is on a real network".to_owned()
            }
        };
    };
    if !core.link.is_up() {
        return "the port is down".to_owned();
    }
    if !core.link.has_device(dlid) {
        return format!("no device has LID {dlid}: the peer has ended, or is elsewhere; {same_fabric}");
    }
    let lost = core.link.drops().injected;
    if lost > 0 {
        return format!("{lost} packets of this device were lost on request, and perhaps some of the peer's");
    }
    if dlid == core.link.lid() {
        return format!(
            "LID {dlid} is this device itself, and its {peer} does not receive from this QP; if the peer is another process, \
             {same_fabric}"
        );
    }
    format!(
        "the device with LID {dlid} has taken all packets, and its {peer} does not receive from this QP: the QP was destroyed, is in \
         RESET, INIT or error, or is connected to another QP"
    )
}
