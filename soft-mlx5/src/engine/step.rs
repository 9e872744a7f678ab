//! One step of the device: doorbells, WQEs, packets, timers.

use std::collections::VecDeque;

use super::core::{Core, Turn};
use super::{Nic, requester, responder, response, tm, transmit};
use crate::base::tally::Fault;
use crate::fabric::echo::Echo;
use crate::fabric::mad::GSI_QPN;
use crate::fabric::packet::Packet;
use crate::objects::dc::Role;
use crate::objects::qp::Qp;
use crate::objects::strict::{Object, Rule};
use crate::objects::table::Table;
use crate::objects::uar::Ring;
use crate::objects::{QpState, Qpn, Service};

// Bounds of one step.
const PACKETS_PER_STEP: usize = 256;
const TURNS_PER_STEP: usize = 64;
// Queue pairs in error are looked at when nothing else is to do, and once in so many steps.
const ERROR_SCAN_INTERVAL: u32 = 16;
// Doorbell records looked at in a step, of SRQs and of queue pairs.
const RECORD_SCAN: usize = 8;

/// Echoes of other devices.
#[derive(Debug, Default)]
pub struct Echoes {
    // Each with the number of turns after which it goes back.
    waiting: VecDeque<(u64, Echo)>,
    // Turns that queue pairs have had.
    turns: u64,
}

impl Nic {
    /// Works for a bounded while at time `now_ns`; returns `false` if there was nothing to do.
    pub fn step(&mut self, now_ns: u64) -> bool {
        self.core.now = self.core.now.max(now_ns);
        self.core.trace.now = self.core.now;
        self.core.progress = false;
        while let Some(up) = self.schedule.port_change(self.core.now) {
            self.tally.count_if(!up, Fault::PortDown);
            self.set_link(up);
        }
        if !self.schedule.works(self.core.now) {
            return false;
        }
        self.steps = self.steps.wrapping_add(1);
        self.take_doorbells(false);
        self.do_late_work();
        self.look_at_records();
        self.look_at_wqs();
        self.run_active();
        self.core.progress |= self.core.link.poll();
        // Without a rule no queue would get the frames.
        if self.has_rules() {
            self.core.progress |= self.core.link.bring_in(self.core.now);
        }
        self.receive_packets();
        self.expire_timers();
        if !self.small_steps {
            self.run_active();
        }
        self.core.release_completions();
        self.core.write_blocks();
        self.core.mend_cqes();
        self.return_echoes();
        self.core.progress |= self.core.link.flush(self.core.now);
        self.fail_users_of_failed_cqs();
        // A queue pair that had no turn in a small step may have something to do.
        self.core.progress |= self.small_steps && !self.core.active.is_empty();
        if !self.core.progress || self.steps % ERROR_SCAN_INTERVAL == 0 {
            self.take_doorbells(true);
            self.look_at_failed();
        }
        self.core.progress
    }

    /// Looks at doorbell records, a few at a time, so that the WQEs that they cover are known early.
    fn look_at_records(&mut self) {
        for _ in 0..RECORD_SCAN {
            let Core { srqs, strict, trace, .. } = &mut self.core;
            if let Some((number, srq)) = srqs.next_mut(&mut self.srq_cursor) {
                if srq.observe(strict, trace).is_err() {
                    self.core.lose_srq(number);
                }
            }
            if let Some((_, qp)) = self.qps.next_mut(&mut self.qp_cursor) {
                qp.observe(&mut self.core);
            }
        }
    }

    pub(crate) fn take_doorbells(&mut self, all: bool) {
        let core = &mut self.core;
        core.progress |= self.uar.take_arms(|page, cqs, value| {
            let cqn = value as u32 & 0xff_ffff;
            if !cqs.contains(&cqn) {
                core.strict.violation(Rule::ArmCqn, Object::Uar(page), cqn, &value.to_be_bytes());
            }
            // The value may have overwritten those of other CQs, whose records tell.
            for cq in cqs {
                if core.late.is_on() {
                    core.late.arms.add(*cq, core.now);
                } else {
                    core.arm(*cq);
                }
            }
        });
        let mut rings = std::mem::take(&mut self.rings);
        self.uar.take_rings(all, &mut rings);
        for ring in rings.drain(..) {
            self.core.progress = true;
            self.take_ring(ring);
        }
        self.look_at_copies();
        // The vector goes back with its capacity.
        self.rings = rings;
    }

    /// Handles a register write of the first eight bytes of a control segment.
    pub(crate) fn ring(&mut self, ring: Ring) {
        let (page, users) = self.uar.users(ring.register);
        self.core.trace.rang(page, &ring);
        let qpn = (ring.value >> 8) as u32 & 0xff_ffff;
        let bytes = ring.value.to_be_bytes();
        let index = (ring.value >> 40) as u16;
        match self.qps.get_mut(qpn).filter(|qp| qp.attr.register.page == page) {
            Some(qp) if qp.takes_doorbells() => {
                qp.sq.ring(index, ring.value as u8 & 0x3f);
                self.core.activate(qp);
            }
            Some(qp) => {
                let object = qp.object();
                self.core.strict.violation(Rule::DoorbellState, object, index.into(), &bytes);
            }
            None => self.core.strict.violation(Rule::DoorbellQpn, Object::Uar(page), qpn, &bytes),
        }
        if users == [qpn] {
            return;
        }
        // This ring may have overwritten the ring of another queue pair: of a user of this register or, where the value
        // does not belong here, of any user of the page.
        let others = if users.contains(&qpn) { users.to_vec() } else { self.uar.users_of(page) };
        for user in others {
            if let Some(qp) = self.qps.get_mut(user).filter(|qp| qp.takes_doorbells()) {
                qp.ring_by_record(&mut self.core);
            }
        }
    }

    /// Returns the bound of a step, which is `many` unless the device works in small steps or slowly.
    fn at_most(&self, many: usize) -> usize {
        if self.small_steps || self.schedule.is_slow() { 1 } else { many }
    }

    /// Looks at the CQs whose arms took their time, and lets queue pairs send the acknowledgements that they hold back.
    fn do_late_work(&mut self) {
        let core = &mut self.core;
        if core.late.is_due(&core.late.arms, core.now) {
            while let Some(cq) = core.late.arms.take() {
                core.arm(cq);
            }
            core.progress = true;
        }
        if core.late.is_due(&core.late.acks, core.now) {
            while let Some(number) = core.late.acks.take() {
                if let Some(qp) = self.qps.get_mut(number) {
                    qp.responder.release_ack();
                    core.activate(qp);
                }
            }
            core.progress = true;
        }
    }

    fn run_active(&mut self) {
        let turns = self.core.active.len().min(self.at_most(TURNS_PER_STEP));
        let mut unfinished = std::mem::take(&mut self.unfinished);
        for _ in 0..turns {
            let Some(number) = self.core.active.pop_front() else { break };
            let Some(qp) = self.qps.get_mut(number) else { continue };
            qp.active = false;
            self.echoes.turns += 1;
            match qp.turn(&mut self.core) {
                Turn::Idle => {}
                Turn::More => unfinished.push(number),
                Turn::Blocked => self.blocked.push(number),
            }
            if qp.state == QpState::Err && !self.failed.contains(&number) {
                self.failed.push(number);
            }
        }
        // The queue pairs for which the link had no room get the next room before those that have just sent.
        for number in self.blocked.drain(..).chain(unfinished.drain(..)) {
            if let Some(qp) = self.qps.get_mut(number) {
                self.core.activate(qp);
            }
        }
        // The vector goes back with its capacity.
        self.unfinished = unfinished;
    }

    fn receive_packets(&mut self) {
        for _ in 0..self.at_most(PACKETS_PER_STEP) {
            let Some(frame) = self.core.link.receive() else { break };
            self.core.progress = true;
            if frame.is_ethernet() {
                self.receive_frame(&frame);
                self.core.link.recycle(frame);
                continue;
            }
            match (Echo::parse(frame.bytes()), Packet::parse(frame.bytes())) {
                (Some(echo), _) => self.take_echo(echo),
                (None, Ok(packet)) => self.dispatch(&packet),
                (None, Err(_)) => self.core.link.count_malformed(),
            }
            self.core.link.recycle(frame);
        }
    }

    /// Keeps an echo until all queue pairs with something to do have had their turn, or hands a returned one to its
    /// queue pair.
    fn take_echo(&mut self, echo: Echo) {
        if !echo.returned {
            let due = self.echoes.turns + self.core.active.len() as u64;
            self.echoes.waiting.push_back((due, echo));
        } else if let Some(qp) = self.qps.get_mut(echo.queue_pair) {
            requester::echo_returned(qp, &mut self.core, echo.token);
        }
    }

    fn return_echoes(&mut self) {
        let Self { qps, core, echoes: Echoes { waiting, turns }, .. } = self;
        for _ in 0..waiting.len() {
            let Some((due, echo)) = waiting.pop_front() else { break };
            // An answer waits as long as the link has no room: a peer that owes one is not silent.
            let owes_answer = qps.get(echo.peer).is_some_and(|qp| qp.responder.owes_answer());
            if due > *turns || owes_answer {
                waiting.push_back((due, echo));
            } else {
                core.link.send_echo(&echo.back());
                core.progress = true;
            }
        }
    }

    fn dispatch(&mut self, packet: &Packet) {
        if let Some(Some(Qpn(bound))) = self.management_qps.get(packet.bth.dest_qpn as usize) {
            return deliver(&mut self.qps, &mut self.core, *bound, packet);
        }
        if packet.bth.dest_qpn <= GSI_QPN {
            return self.management.receive(packet);
        }
        if packet.service == Service::Dc && !packet.operation.is_response() {
            if let Some(connection) = self.connection_of(packet) {
                deliver(&mut self.qps, &mut self.core, connection, packet);
            }
            return;
        }
        if packet.bth.dest_qpn != transmit::MULTICAST_QPN {
            return deliver(&mut self.qps, &mut self.core, packet.bth.dest_qpn, packet);
        }
        let group = &packet.grh[24..];
        let ours = packet.slid == self.core.link.lid();
        for (_, Qpn(member)) in self.groups.iter().filter(|(joined, _)| joined[..] == *group) {
            let own = ours && packet.deth.source_qpn == *member;
            let blocks = |qp: &Qp| qp.attr.block_multicast_loopback;
            if own && self.qps.get(*member).is_some_and(|qp| blocks(qp)) {
                continue;
            }
            deliver(&mut self.qps, &mut self.core, *member, packet);
        }
    }

    fn expire_timers(&mut self) {
        while let Some(number) = self.core.timers.pop(self.core.now) {
            let Some(qp) = self.qps.get_mut(number) else { continue };
            if !self.core.timers.is_due(number, &mut qp.deadline, self.core.now) {
                continue;
            }
            match qp.role {
                Role::Connection(_) => self.close(Qpn(number)),
                _ => requester::expire(qp, &mut self.core),
            }
        }
    }

    /// Fails the queue pairs of CQs that overran.
    fn fail_users_of_failed_cqs(&mut self) {
        while let Some(cq) = self.core.completions.take_failed() {
            for (_, qp) in self.qps.iter_mut() {
                let uses = qp.attr.send_cq == cq || qp.attr.recv_cq == cq;
                let shares = tm::target(qp, &self.core).is_some_and(|(own, _)| own == cq);
                if (uses || shares) && qp.receives() {
                    qp.fail_fatally(&mut self.core);
                }
            }
            self.fail_wqs_of(cq);
        }
    }

    /// Flushes WQEs that were posted to queue pairs in error: receives come without a doorbell.
    fn look_at_failed(&mut self) {
        let (qps, core) = (&mut self.qps, &mut self.core);
        self.failed.retain(|number| {
            let Some(qp) = qps.get_mut(*number).filter(|qp| qp.state == QpState::Err) else {
                return false;
            };
            if qp.has_unflushed(core) {
                core.progress = true;
                core.activate(qp);
            }
            true
        });
    }
}

/// Hands a packet to its queue pair, if the queue pair takes the packet.
fn deliver(qps: &mut Table<Box<Qp>>, core: &mut Core, number: u32, packet: &Packet) {
    let Some(qp) = qps.get_mut(number) else { return };
    let from_peer = !qp.attr.service.is_connected() || qp.route.as_ref().is_some_and(|route| route.dlid == packet.slid);
    let of_session = qp.role.header(qp.number).is_none_or(|own| own.session == packet.dc.session);
    if packet.service != qp.attr.service || !from_peer || !of_session || !qp.receives() {
        return;
    }
    if packet.operation.is_response() {
        response::receive(qp, core, packet);
    } else {
        qp.note_arrival(core);
        responder::receive(qp, core, packet);
    }
}
