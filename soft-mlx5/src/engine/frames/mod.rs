//! Ethernet frames: receive queues, flow rules that lead to them, and the frames of raw packet queue pairs.

mod commands;
pub mod send;
mod wq;

pub use self::wq::Wq;

use std::collections::BTreeMap;

use self::wq::{Arrival, Stop};
use super::Nic;
use super::core::Core;
use crate::base::defect::Defect;
use crate::fabric::LinkLayer;
use crate::fabric::frame_header::Headers;
use crate::fabric::packet::Frame;
use crate::objects::flow::{Rules, Target, fields_of};
use crate::objects::flow_tables::Tables;
use crate::objects::rss::Hash;
use crate::objects::strict::{Object, Rule};
use crate::objects::table::Table;
use crate::objects::{Event, QpState, Qpn, TirAttr, Tirn, WqState, Wqn};

const FIRST_WQN: u32 = 0x2000;
const FIRST_TIRN: u32 = 1;
const MAX_QUEUES: u32 = 1 << 20;

/// The state of a device for frames.
#[derive(Debug)]
pub struct Frames {
    rules: Rules,
    tables: Tables,
    /// Receive queues.
    pub wqs: Table<Wq>,
    tirs: Table<TirAttr>,
    // Receive sides of queue pairs.
    receivers: BTreeMap<u32, Receiver>,
    flows: u32,
    wq_cursor: u32,
}

/// The receive side of a queue pair.
#[derive(Debug)]
struct Receiver {
    queue: Wqn,
    target: Tirn,
    // State of the queue pair that the queue followed last: a command may change the queue alone.
    followed: WqState,
}

impl Default for Frames {
    fn default() -> Self {
        Self {
            rules: Rules::default(),
            tables: Tables::default(),
            wqs: Table::new(FIRST_WQN, MAX_QUEUES),
            tirs: Table::new(FIRST_TIRN, MAX_QUEUES),
            receivers: BTreeMap::new(),
            flows: 0,
            wq_cursor: 0,
        }
    }
}

fn state_of(qp: QpState) -> WqState {
    match qp {
        QpState::Reset => WqState::Reset,
        QpState::Err => WqState::Err,
        _ => WqState::Ready,
    }
}

impl Nic {
    pub(crate) fn has_rules(&self) -> bool {
        !self.frames.rules.is_empty() || self.frames.tables.root.is_some()
    }

    /// Delivers an arrived frame to each queue that the rules name.
    pub(crate) fn receive_frame(&mut self, frame: &Frame) {
        let bytes = frame.ethernet();
        let headers = bytes.and_then(Headers::parse);
        let (Some(bytes), Some(headers)) = (bytes, headers) else {
            return self.core.link.count_malformed();
        };
        if !self.has_rules() || self.core.link_layer != LinkLayer::Ethernet {
            return;
        }
        let mut found = Vec::new();
        let fields = fields_of(&headers);
        self.frames.rules.find(&fields, &mut found);
        self.frames.tables.find(&fields, &mut found);
        for (target, tag) in found {
            let Target::Tir(tirn) = target else { continue };
            let Some(tir) = self.frames.tirs.get(tirn.0) else { continue };
            let back = tir.loopback;
            let comes_back = if headers.is_multicast() { back.multicast } else { back.unicast };
            if frame.origin() != 0 && frame.origin() == tir.domain && !comes_back {
                continue;
            }
            let hash = tir.hash.map_or_else(Hash::default, |hash| hash.of(&headers));
            let hashed = self.core.defects.is(Defect::Hash);
            let place = if hashed { self.core.now as usize } else { hash.result as usize };
            let Some(wqn) = tir.queues.get(place & (tir.queues.len() - 1)) else {
                continue;
            };
            let now = self.core.now;
            self.deliver_frame(*wqn, &Arrival { bytes, headers: &headers, tag, hash, now });
        }
    }

    fn deliver_frame(&mut self, wqn: Wqn, arrival: &Arrival) {
        let (frames, core) = (&mut self.frames, &mut self.core);
        let Some(wq) = frames.wqs.get_mut(wqn.0).filter(|wq| wq.state == WqState::Ready) else {
            return;
        };
        let mut out = Vec::new();
        let delivered = wq.deliver(arrival, core, &mut out);
        let cq = wq.attr.cq;
        if wq.attr.striding.is_some() {
            out.iter_mut().for_each(|completion| core.defects.stride(&mut completion.cqe, wq.attr.ring.count));
        }
        out.iter().for_each(|completion| core.complete_frame(cq, completion));
        match delivered {
            Ok(()) => {}
            Err(Stop::Lost) => self.lose_wq(wqn),
            Err(Stop::Failed) => self.fail_wq(wqn),
        }
    }

    /// Moves a queue to error by itself.
    fn fail_wq(&mut self, wqn: Wqn) {
        let Some(wq) = self.frames.wqs.get_mut(wqn.0) else { return };
        if wq.state != WqState::Ready {
            return;
        }
        match wq.owner {
            Some(qpn) => {
                if let Some(qp) = self.qps.get_mut(qpn.0) {
                    qp.fail_fatally(&mut self.core);
                }
            }
            None => self.core.events.push_back(Event::WqFatal(wqn)),
        }
        self.set_wq_state(wqn, WqState::Err);
    }

    #[cold]
    fn lose_wq(&mut self, wqn: Wqn) {
        let Some(wq) = self.frames.wqs.get_mut(wqn.0) else { return };
        let object = wq.owner.map_or(Object::Wq(wqn.0), |qpn| Object::Qp(qpn.0));
        self.core.strict.violation(Rule::QueueMemory, object, wq.next().into(), &[]);
        wq.abandon();
        self.fail_wq(wqn);
    }

    pub(crate) fn set_wq_state(&mut self, wqn: Wqn, state: WqState) {
        let Some(wq) = self.frames.wqs.get_mut(wqn.0) else { return };
        wq.state = state;
        match state {
            WqState::Reset => wq.reset(),
            WqState::Ready => {}
            WqState::Err => self.flush_wq(wqn),
        }
    }

    fn flush_wq(&mut self, wqn: Wqn) {
        let Some(wq) = self.frames.wqs.get_mut(wqn.0) else { return };
        let mut out = Vec::new();
        let flushed = wq.flush(&mut self.core, &mut out);
        let cq = wq.attr.cq;
        out.iter().for_each(|completion| self.core.complete_frame(cq, completion));
        if flushed.is_err() {
            self.lose_wq(wqn);
        }
    }

    /// Moves the receive side of a queue pair to the state of the queue pair.
    pub(crate) fn follow_queue_pair(&mut self, qpn: Qpn) {
        let Some(qp) = self.qps.get(qpn.0) else { return };
        let state = state_of(qp.state);
        let Some(receiver) = self.frames.receivers.get_mut(&qpn.0) else { return };
        if receiver.followed != state {
            receiver.followed = state;
            let queue = receiver.queue;
            self.set_wq_state(queue, state);
        }
    }

    /// Follows the states of queue pairs, and looks at the doorbell record of the next queue.
    pub(crate) fn look_at_wqs(&mut self) {
        let owners: Vec<_> = self.frames.receivers.keys().copied().collect();
        owners.into_iter().for_each(|owner| self.follow_queue_pair(Qpn(owner)));
        let Frames { wqs, wq_cursor, .. } = &mut self.frames;
        let Some((number, wq)) = wqs.next_mut(wq_cursor) else { return };
        let Core { strict, trace, .. } = &mut self.core;
        if wq.observe(strict, trace).is_err() {
            self.lose_wq(Wqn(number));
        } else if wq.has_unflushed() {
            self.flush_wq(Wqn(number));
        }
    }

    /// Fails the queues of a CQ that overran.
    pub(crate) fn fail_wqs_of(&mut self, cq: crate::objects::Cqn) {
        let wqs = self.frames.wqs.iter().filter(|(_, wq)| wq.attr.cq == cq);
        let failed: Vec<_> = wqs.map(|(number, _)| Wqn(number)).collect();
        failed.into_iter().for_each(|wqn| self.fail_wq(wqn));
    }
}
