//! Firmware commands for frames.

use super::Receiver;
use super::wq::Wq;
use crate::engine::Nic;
use crate::engine::counting::Counted;
use crate::objects::flow::{Conflict, Rule};
use crate::objects::flow_tables::Tables;
use crate::objects::memory::Spaces;
use crate::objects::{Cqn, Errno, Loopback, QpAttr, Qpn, Result, RwqAttr, TirAttr, Tirn, WqState, Wqn};

const ENOMEM: Errno = Errno(libc::ENOMEM);
const EINVAL: Errno = Errno(libc::EINVAL);
const EEXIST: Errno = Errno(libc::EEXIST);

impl Nic {
    /// Creates a receive queue in state Reset.
    pub fn create_wq(&mut self, attr: RwqAttr) -> Result<Wqn> {
        self.create_wq_in(attr, &Spaces::default())
    }

    /// Does the same with memory of other spaces.
    pub(crate) fn create_wq_in(&mut self, attr: RwqAttr, spaces: &Spaces) -> Result<Wqn> {
        self.insert_wq(attr, None, spaces)
    }

    fn insert_wq(&mut self, attr: RwqAttr, owner: Option<Qpn>, spaces: &Spaces) -> Result<Wqn> {
        if self.core.cqs.get(attr.cq.0).is_none() || attr.dbrec % 8 != 0 {
            return Err(EINVAL);
        }
        Wq::new(0, attr, owner, spaces)?;
        let make = |number| Wq::new(number, attr, owner, spaces).expect("checked above");
        self.frames.wqs.insert_with(make).map(Wqn).ok_or(ENOMEM)
    }

    /// Takes a receive queue from one state to another.
    pub fn modify_wq(&mut self, wq: Wqn, from: WqState, to: WqState) -> Result<()> {
        let found = self.frames.wqs.get(wq.0).ok_or(EINVAL)?;
        let legal = match (from, to) {
            (WqState::Err, WqState::Ready) | (WqState::Reset, WqState::Err) => false,
            _ => found.state == from,
        };
        if !legal {
            return Err(EINVAL);
        }
        if from != to {
            self.core.write_late_cqes();
            self.set_wq_state(wq, to);
        }
        Ok(())
    }

    /// Lets a receive queue take VLAN tags out of frames, or leave them in.
    pub fn set_vlan_stripping(&mut self, wq: Wqn, strip: bool) -> Result<()> {
        self.frames.wqs.get_mut(wq.0).ok_or(EINVAL)?.attr.offloads.strip_vlan = strip;
        Ok(())
    }

    /// Returns `true` if a receive queue takes VLAN tags out of frames.
    pub fn strips_vlan(&self, wq: Wqn) -> Result<bool> {
        Ok(self.frames.wqs.get(wq.0).ok_or(EINVAL)?.attr.offloads.strip_vlan)
    }

    /// Returns the state of a receive queue, which may change by itself.
    pub fn wq_state(&self, wq: Wqn) -> Result<WqState> {
        Ok(self.frames.wqs.get(wq.0).ok_or(EINVAL)?.state)
    }

    /// Destroys a receive queue; its memory is not touched after this returns.
    pub fn destroy_wq(&mut self, wq: Wqn) -> Result<()> {
        self.core.write_late_cqes();
        self.core.counters.assign(Counted::Wq(wq.0), 0);
        self.frames.wqs.remove(wq.0).map(drop).ok_or(EINVAL)
    }

    /// Changes which own frames come back to a target.
    pub fn set_loopback(&mut self, tir: Tirn, loopback: Loopback) -> Result<()> {
        self.frames.tirs.get_mut(tir.0).ok_or(EINVAL)?.loopback = loopback;
        Ok(())
    }

    /// Creates a target of flow rules.
    pub fn create_tir(&mut self, attr: TirAttr) -> Result<Tirn> {
        if !attr.queues.len().is_power_of_two() {
            return Err(EINVAL);
        }
        self.frames.tirs.insert_with(|_| attr).map(Tirn).ok_or(ENOMEM)
    }

    /// Destroys a target of flow rules.
    pub fn destroy_tir(&mut self, tir: Tirn) -> Result<()> {
        self.frames.tirs.remove(tir.0).map(drop).ok_or(EINVAL)
    }

    /// Changes the receive queues of a target, of which there is a power of two.
    pub(crate) fn set_tir_queues(&mut self, tir: Tirn, queues: Vec<Wqn>) -> Result<()> {
        let found = self.frames.tirs.get_mut(tir.0).ok_or(EINVAL)?;
        if !queues.len().is_power_of_two() {
            return Err(EINVAL);
        }
        found.queues = queues;
        Ok(())
    }

    /// Returns the flow tables of the receive side, which firmware fills.
    pub(crate) fn flow_tables(&mut self) -> &mut Tables {
        &mut self.frames.tables
    }

    /// Makes the receive side of a queue pair.
    pub(crate) fn create_receiver(&mut self, qp: Qpn, attr: &QpAttr, spaces: &Spaces) -> Result<()> {
        if attr.rq.count == 0 {
            return Ok(());
        }
        let queue = self.insert_wq(attr.receive_side(), Some(qp), spaces)?;
        let target = self.create_tir(attr.target(queue))?;
        self.frames.receivers.insert(qp.0, Receiver { queue, target, followed: WqState::Reset });
        Ok(())
    }

    pub(crate) fn destroy_receiver(&mut self, qp: Qpn) {
        if let Some(Receiver { queue, target, .. }) = self.frames.receivers.remove(&qp.0) {
            self.frames.wqs.remove(queue.0);
            self.core.counters.assign(Counted::Wq(queue.0), 0);
            self.frames.tirs.remove(target.0);
        }
    }

    /// Returns the queue of the receive side of a queue pair, and the target that leads to it.
    pub fn receiver_of(&self, qp: Qpn) -> Option<(Wqn, Tirn)> {
        self.frames.receivers.get(&qp.0).map(|receiver| (receiver.queue, receiver.target))
    }

    /// Returns the running index of the next WQE of the receive side of a queue pair.
    pub(crate) fn receive_index(&self, qp: u32) -> Option<u16> {
        let (queue, _) = self.receiver_of(Qpn(qp))?;
        self.frames.wqs.get(queue.0).map(Wq::next)
    }

    /// Returns how many frames the receive side of a queue pair has dropped for want of a WQE.
    pub fn dropped_by(&self, qp: Qpn) -> u64 {
        let queue = self.receiver_of(qp).and_then(|(queue, _)| self.frames.wqs.get(queue.0));
        queue.map_or(0, |wq| wq.dropped)
    }

    /// Returns `true` if a receive queue completes on this CQ.
    pub(crate) fn is_cq_of_wq(&self, cq: Cqn) -> bool {
        self.frames.wqs.iter().any(|(_, wq)| wq.attr.cq == cq)
    }

    /// Adds the rules of a flow, all or none; returns its number.
    pub fn create_flow(&mut self, rules: &[Rule]) -> Result<u32> {
        self.frames.flows += 1;
        let flow = self.frames.flows;
        for rule in rules {
            if let Err(Conflict) = self.frames.rules.add(flow, rule) {
                self.frames.rules.remove(flow);
                return Err(EEXIST);
            }
            let Rule { level, tag, target, continues, .. } = rule;
            let tag = tag.unwrap_or(0);
            self.core.trace.flow(
                "create",
                flow,
                format_args!("level={level} tag={tag:#x} target={target:?} dont_trap={continues}"),
            );
        }
        Ok(flow)
    }

    /// Removes the rules of a flow.
    pub fn destroy_flow(&mut self, flow: u32) {
        self.frames.rules.remove(flow);
        self.core.trace.flow("destroy", flow, format_args!("rules={}", self.frames.rules.len()));
    }
}
