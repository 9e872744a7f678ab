//! Counters that a program binds to queue pairs (`rdma statistic qp bind`): what each has counted since.

use super::Core;
use super::errno::{EINVAL, EOPNOTSUPP};
use super::handles::Object;
use crate::objects::{QpState, Qpn, Result, Service};

/// Counters that are bound.
#[derive(Debug, Default)]
pub struct BoundCounters {
    counters: Vec<Bound>,
    // Counters that were made so far.
    made: u32,
}

#[derive(Debug, Clone, Copy)]
struct Bound {
    id: u32,
    qpn: Qpn,
    // Frames that the queue pair had dropped before.
    before: u64,
}

impl BoundCounters {
    /// Forgets the counter of a queue pair that was destroyed.
    pub fn remove(&mut self, qpn: Qpn) {
        self.counters.retain(|bound| bound.qpn != qpn);
    }
}

/// A counter, and what it has counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counted {
    /// Number of the counter.
    pub id: u32,
    /// Number of its queue pair.
    pub qpn: u32,
    /// Frames that found no receive WQE.
    pub out_of_buffer: u64,
}

impl Core {
    /// Binds a new counter to a queue pair of frames; returns its number. The device counts nothing for others.
    pub fn bind_counter(&mut self, qpn: u32) -> Result<u32> {
        let qpn = Qpn(qpn);
        let mut objects = self.files.values().flat_map(|file| file.handles.objects());
        let service = objects.find_map(|object| match object {
            Object::Qp(qp) if qp.qpn == qpn => Some(qp.service),
            _ => None,
        });
        match service {
            None => return Err(EINVAL),
            Some(Service::Raw) => {}
            Some(_) => return Err(EOPNOTSUPP),
        }
        // As the kernel: not before the queue pair has a port, and one counter each.
        let is_reset = self.nic.query_qp(qpn).is_ok_and(|status| status.state == QpState::Reset);
        if is_reset || self.bound.counters.iter().any(|bound| bound.qpn == qpn) {
            return Err(EINVAL);
        }
        self.bound.made += 1;
        let (id, before) = (self.bound.made, self.nic.dropped_by(qpn));
        self.bound.counters.push(Bound { id, qpn, before });
        Ok(id)
    }

    /// Takes a counter from its queue pair.
    pub fn unbind_counter(&mut self, id: u32, qpn: u32) -> Result<()> {
        let counters = &mut self.bound.counters;
        let at = counters.iter().position(|bound| bound.id == id && bound.qpn.0 == qpn).ok_or(EINVAL)?;
        counters.remove(at);
        Ok(())
    }

    pub(super) fn counted(&self) -> Vec<Counted> {
        let counted = |bound: &Bound| Counted {
            id: bound.id,
            qpn: bound.qpn.0,
            out_of_buffer: self.nic.dropped_by(bound.qpn) - bound.before,
        };
        self.bound.counters.iter().map(counted).collect()
    }
}
