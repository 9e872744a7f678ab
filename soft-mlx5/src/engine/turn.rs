//! The turn of a queue pair, and its changes by MODIFY_QP.

use super::core::{Core, Turn};
use super::dc::initiator;
use super::tm::{message, rendezvous};
use super::{completion, execute, requester, responder};
use crate::fabric::packet::MAX_MTU;
use crate::objects::completion::Failure;
use crate::objects::dc::Role;
use crate::objects::qp::Qp;
use crate::objects::rendezvous::Rendezvous;
use crate::objects::requester::Requester;
use crate::objects::responder::Responder;
use crate::objects::sq::blocks;
use crate::objects::strict::Rule;
use crate::objects::{Event, QpModify, QpState, Qpn};

impl Qp {
    /// Applies the changes of MODIFY_QP.
    pub fn modify(&mut self, change: &QpModify, core: &mut Core) {
        if change.state == Some(QpState::Reset) {
            self.reset(core);
        }
        if let Some(access) = change.access {
            self.access = access;
        }
        if let Some(qkey) = change.qkey {
            self.qkey = qkey;
        }
        if let Some(mtu) = change.path_mtu {
            self.mtu = (mtu as usize).clamp(256, MAX_MTU);
        }
        if let Some(qpn) = change.dest_qpn {
            self.dest_qpn = qpn;
        }
        if let Some(av) = &change.av {
            self.route = core.route(av);
            if let Role::Target(target) = &mut self.role {
                target.path = *av;
            }
        }
        self.requester.modify(change);
        self.responder.modify(change);
        if let Some(state) = change.state {
            self.enter(state, core);
        }
    }

    /// Releases the entries and slots of its SRQ.
    pub fn release(&mut self, core: &mut Core) {
        message::cancel(self, core);
        rendezvous::cancel(self, core);
        if let Some((slot, srqn)) = self.responder.receive.counter.zip(self.attr.srq) {
            // The WQE is lost to the program: the queue pair had taken it and reports nothing more.
            if let Some(srq) = core.srqs.get_mut(srqn.0) {
                srq.complete(slot);
            }
        }
    }

    fn reset(&mut self, core: &mut Core) {
        self.release(core);
        core.release_completions_of(self.number);
        self.rq.reset();
        self.sq.reset();
        self.rendezvous.iter_mut().for_each(Rendezvous::reset);
        self.requester = Requester::default();
        self.responder = Responder::default();
        initiator::reset(self);
        core.timers.set(self.number, &mut self.deadline, None);
        (self.established, self.drained, self.last_wqe) = (false, false, false);
    }

    /// Works for a bounded while.
    pub fn turn(&mut self, core: &mut Core) -> Turn {
        let mut budget = core.turn;
        // Refusals are sent even if this queue pair has failed.
        let answers = responder::transmit(self, core, &mut budget);
        match self.state {
            QpState::Reset | QpState::Init => return Turn::Idle,
            QpState::Err => {
                self.flush(core);
                return answers;
            }
            _ => {}
        }
        let requests = execute::run(self, core, &mut budget);
        if self.state == QpState::Sqd && self.requester.is_idle() && !self.drained {
            self.drained = true;
            core.events.push_back(Event::SqDrained(Qpn(self.number)));
        }
        match (answers, requests) {
            (Turn::More, _) | (_, Turn::More) => Turn::More,
            (Turn::Blocked, _) | (_, Turn::Blocked) => Turn::Blocked,
            _ => Turn::Idle,
        }
    }

    /// Completes everything that a queue pair in error holds or gets.
    pub fn flush(&mut self, core: &mut Core) {
        requester::flush(self, core);
        self.flush_posted_sends(core);
        rendezvous::cancel(self, core);
        responder::flush(self, core);
        if self.attr.srq.is_some() && !self.last_wqe {
            self.last_wqe = true;
            core.progress = true;
            core.release_completions_of(self.number);
            core.events.extend(self.event(Event::LastWqe));
        }
    }

    fn flush_posted_sends(&mut self, core: &mut Core) {
        loop {
            let ready = self.ready(core);
            if ready == 0 {
                return;
            }
            let index = self.sq.next();
            let Ok(ctrl) = self.sq.ctrl(index) else { return self.lose_memory(core) };
            let len = blocks(ctrl.ds());
            if len == 0 || len > ready {
                let bytes = ctrl.to_bytes();
                core.strict.violation(Rule::SendSize, self.object(), index.into(), &bytes);
                // The start of the next WQE is not known.
                self.sq.advance(ready);
            } else {
                self.sq.advance(len);
            }
            if self.rendezvous.is_some() {
                continue;
            }
            let cqe = completion::requester_error(self, ctrl.opcode(), index, Failure::FLUSH);
            core.complete(self.attr.send_cq, &cqe);
        }
    }
}
