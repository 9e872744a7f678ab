//! States of queue pairs: what the device does to a queue pair by itself.

use super::core::Core;
use super::counting::Counted;
use crate::objects::dc::Role;
use crate::objects::memory::Unmapped;
use crate::objects::qp::Qp;
use crate::objects::strict::Rule;
use crate::objects::{Event, QpState, Qpn};

impl Qp {
    /// Returns the queue in whose name its events count: a connection counts for its target.
    pub(crate) fn counted(&self) -> Counted {
        Counted::Qp(self.cqe_number())
    }

    /// Returns `true` if WQEs were posted since the last flush.
    pub fn has_unflushed(&mut self, core: &mut Core) -> bool {
        let receives = self.attr.srq.is_none() && self.available(core) > 0;
        receives || self.ready(core) > 0
    }

    /// Looks at the doorbell record.
    pub fn observe(&mut self, core: &mut Core) {
        let object = self.object();
        let Core { strict, trace, now, .. } = core;
        let mut seen = Ok(());
        if self.state != QpState::Reset && self.attr.srq.is_none() {
            seen = self.rq.observe(object, strict, trace);
        }
        if self.state == QpState::Rts && self.rendezvous.is_none() {
            seen = seen.and_then(|()| self.sq.observe(object, *now, strict));
        }
        self.unless_lost(core, seen);
    }

    /// Takes the record as rung: a register that several queue pairs share was written, perhaps by this one.
    pub fn ring_by_record(&mut self, core: &mut Core) {
        let rung = self.sq.ring_by_record();
        self.unless_lost(core, rung);
        core.activate(self);
    }

    fn available(&mut self, core: &mut Core) -> u16 {
        let posted = self.rq.available();
        self.unless_lost(core, posted)
    }

    pub(crate) fn ready(&mut self, core: &mut Core) -> u16 {
        let ready = self.sq.ready(self.object(), &mut core.strict);
        self.unless_lost(core, ready)
    }

    fn unless_lost<T: Default>(&mut self, core: &mut Core, found: Result<T, Unmapped>) -> T {
        found.unwrap_or_else(|Unmapped| {
            self.lose_memory(core);
            T::default()
        })
    }

    /// Stops the queue pair, because the program took the memory of a queue away. The queues are empty from now
    /// on. An adapter would still read the old memory.
    #[cold]
    pub fn lose_memory(&mut self, core: &mut Core) {
        core.strict.violation(Rule::QueueMemory, self.object(), self.sq.next().into(), &[]);
        self.rq.abandon();
        self.sq.abandon();
        self.fail_fatally(core);
    }

    /// Stops for a reason that no completion reports.
    pub fn fail_fatally(&mut self, core: &mut Core) {
        if self.state != QpState::Err && self.state != QpState::Reset {
            core.events.extend(self.event(Event::QpFatal));
            self.fail(core);
        }
    }

    pub(crate) fn enter(&mut self, state: QpState, core: &mut Core) {
        if state == QpState::Sqd {
            self.drained = false;
        }
        let posted = self.available(core);
        if self.state == QpState::Reset && state == QpState::Init && posted > 0 {
            let index = posted.into();
            core.strict.violation(Rule::ReceiveState, self.object(), index, &posted.to_be_bytes());
        }
        self.state = state;
        // The timer of a connection of a target ends it, failed or not.
        if state == QpState::Err && !matches!(self.role, Role::Connection(_)) {
            core.timers.set(self.number, &mut self.deadline, None);
        }
        if state != QpState::Reset {
            core.activate(self);
        }
    }

    /// Stops this queue pair; its WQEs are flushed at its next turn.
    pub fn fail(&mut self, core: &mut Core) {
        if self.state != QpState::Err && self.state != QpState::Reset {
            self.enter(QpState::Err, core);
        }
    }

    /// Notes a packet for this queue pair.
    pub fn note_arrival(&mut self, core: &mut Core) {
        if !self.established {
            self.established = true;
            if self.state == QpState::Rtr {
                core.events.push_back(Event::CommunicationEstablished(Qpn(self.number)));
            }
        }
    }
}
