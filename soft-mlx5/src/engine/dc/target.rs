//! Targets and their connections.

use crate::engine::core::Core;
use crate::engine::{Nic, responder};
use crate::fabric::headers::{Aeth, Bth, DcHeader, NakCode, PKEY, Syndrome};
use crate::fabric::opcode::Operation;
use crate::fabric::packet::Packet;
use crate::objects::dc::{Connection, Role, Source, Target};
use crate::objects::qp::Qp;
use crate::objects::responder::Message;
use crate::objects::{AddressVector, DcAttr, Errno, Event, Grh, QpAttr, QpModify, QpState, Qpn, Result, TargetStatus};

/// Connections of a target at most. Beyond it the one that was silent for longest goes.
const MAX_CONNECTIONS: usize = 4096;
/// Time after which a silent connection goes: longer than the retries of an initiator with the usual timeouts.
const IDLE_NS: u64 = 60_000_000_000;
/// READs and atomics that a connection answers at once.
const MAX_READS: u8 = 16;
const DEFAULT_HOP_LIMIT: u8 = 64;

const EINVAL: Errno = Errno(libc::EINVAL);

/// Returns the path from a target to the sender of a packet.
fn path_back(target: &Target, packet: &Packet) -> AddressVector {
    let mut dgid = [0; 16];
    dgid.copy_from_slice(&packet.grh[8..24]);
    let own = target.path.grh;
    AddressVector {
        dlid: packet.slid,
        sl: packet.sl,
        src_path_bits: 0,
        grh: packet.global.then_some(Grh {
            dgid,
            sgid_index: own.map_or(0, |grh| grh.sgid_index),
            flow_label: own.map_or(0, |grh| grh.flow_label),
            hop_limit: own.map_or(DEFAULT_HOP_LIMIT, |grh| grh.hop_limit),
            traffic_class: own.map_or(0, |grh| grh.traffic_class),
        }),
    }
}

/// Refuses the session of a packet from its first packet on: nothing of it was executed.
fn refuse(target: &Target, core: &mut Core, packet: &Packet, code: NakCode) {
    let path = path_back(target, packet);
    let Some(route) = core.gids.route_to(&path, core.link.lid(), packet.slid, core.link_layer) else { return };
    let DcHeader { session, initiator, .. } = packet.dc;
    let opcode = Operation::Acknowledge.encode(packet.service);
    let mut frame = core.link.frame();
    frame.begin(&route, &Bth { opcode, pkey: PKEY, dest_qpn: initiator, psn: 0, ..Bth::default() });
    frame.push(&DcHeader { key: 0, session, initiator });
    frame.push(&Aeth { syndrome: Syndrome::Nak(code), msn: 0 });
    frame.finish();
    core.link.send(frame, core.now);
}

fn target_of(qp: &mut Qp) -> Option<&mut Target> {
    match &mut qp.role {
        Role::Target(target) => Some(target),
        _ => None,
    }
}

impl Nic {
    /// Returns the connection that a request is for. The first request of a session makes one.
    pub(in crate::engine) fn connection_of(&mut self, packet: &Packet) -> Option<u32> {
        let number = packet.bth.dest_qpn;
        let DcHeader { key, session, initiator } = packet.dc;
        let source = (packet.slid, initiator);
        let qp = self.qps.get_mut(number).filter(|qp| qp.receives())?;
        let target = target_of(qp).filter(|target| !target.drained)?;
        if key != target.key {
            target.violations = target.violations.saturating_add(1);
            if std::mem::take(&mut target.armed) {
                self.core.events.push_back(Event::DctKeyViolation(Qpn(number)));
            }
            refuse(target, &mut self.core, packet, NakCode::RemoteAccess);
            return None;
        }
        let found = match target.connections.get(&source).copied() {
            Some((known, connection)) if known == session => connection,
            Some((known, _)) if known > session => return None,
            Some((_, connection)) => {
                self.close(connection);
                self.open(number, source, packet)?
            }
            None => self.open(number, source, packet)?,
        };
        let qp = self.qps.get_mut(found.0)?;
        self.core.timers.set(found.0, &mut qp.deadline, Some(self.core.now + IDLE_NS));
        Some(found.0)
    }

    fn open(&mut self, number: u32, source: Source, packet: &Packet) -> Option<Qpn> {
        self.make_room(number)?;
        let qp = self.qps.get_mut(number)?;
        let (mtu, rnr_timer, access) = (qp.mtu as u32, qp.responder.rnr_timer, qp.access);
        let attr = QpAttr { dc: DcAttr::None, ..qp.attr };
        let path = path_back(target_of(qp)?, packet);
        let connection = self.create_qp(attr).ok()?;
        let qp = self.qps.get_mut(connection.0)?;
        let session = packet.dc.session;
        qp.role = Role::Connection(Connection { target: number, source, session });
        let change = QpModify {
            state: Some(QpState::Rts),
            access: Some(access),
            path_mtu: Some(mtu),
            dest_qpn: Some(source.1),
            rq_psn: Some(0),
            max_dest_rd_atomic: Some(MAX_READS),
            min_rnr_timer: Some(rnr_timer),
            ..QpModify::default()
        };
        qp.modify(&change, &mut self.core);
        let core = &self.core;
        qp.route = core.gids.route_to(&path, core.link.lid(), packet.slid, core.link_layer);
        let target = self.qps.get_mut(number).and_then(|qp| target_of(qp))?;
        target.connections.insert(source, (session, connection));
        Some(connection)
    }

    /// Makes room for a connection of a target; returns `None` if all connections are busy.
    fn make_room(&mut self, number: u32) -> Option<()> {
        let target = self.qps.get_mut(number).and_then(|qp| target_of(qp))?;
        if target.connections.len() < MAX_CONNECTIONS {
            return Some(());
        }
        let all: Vec<Qpn> = target.connections.values().map(|(_, connection)| *connection).collect();
        let silent = all.into_iter().filter_map(|connection| {
            let qp = self.qps.get(connection.0)?;
            let is_busy = qp.responder.message != Message::None || qp.responder.owes_answer();
            (!is_busy).then_some((qp.deadline.get(), connection))
        });
        let (_, oldest) = silent.min_by_key(|(deadline, _)| *deadline)?;
        self.close(oldest);
        Some(())
    }

    /// Closes a connection of a target. A receive WQE that it holds is flushed.
    pub(in crate::engine) fn close(&mut self, connection: Qpn) {
        let Some(mut qp) = self.qps.remove(connection.0) else { return };
        responder::flush(&mut qp, &mut self.core);
        qp.release(&mut self.core);
        let Role::Connection(Connection { target, source, session }) = qp.role else { return };
        if let Some(target) = self.qps.get_mut(target).and_then(|qp| target_of(qp)) {
            if target.connections.get(&source).is_some_and(|(known, _)| *known == session) {
                target.connections.remove(&source);
            }
        }
    }

    /// Ends the connections of a target, which takes no more requests from now on.
    pub fn drain_target(&mut self, target: Qpn) -> Result<()> {
        self.end_connections(target)?;
        self.core.events.push_back(Event::DctDrained(target));
        Ok(())
    }

    pub(in crate::engine) fn end_connections(&mut self, target: Qpn) -> Result<()> {
        let found = self.qps.get_mut(target.0).and_then(|qp| target_of(qp)).ok_or(EINVAL)?;
        found.drained = true;
        for (_, connection) in std::mem::take(&mut found.connections).into_values() {
            self.close(connection);
        }
        Ok(())
    }

    /// Reports the state that a target changes by itself.
    pub fn target_status(&self, target: Qpn) -> Result<TargetStatus> {
        let Some(Role::Target(target)) = self.qps.get(target.0).map(|qp| &qp.role) else { return Err(EINVAL) };
        let Target { drained, violations: key_violations, .. } = *target;
        Ok(TargetStatus { drained, key_violations, connections: target.connections.len() })
    }

    /// Raises an event at the next request that names a target with another key.
    pub(crate) fn arm_key_violation(&mut self, target: Qpn) -> Result<()> {
        self.qps.get_mut(target.0).and_then(|qp| target_of(qp)).ok_or(EINVAL)?.armed = true;
        Ok(())
    }
}
