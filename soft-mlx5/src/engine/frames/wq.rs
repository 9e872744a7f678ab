//! Receive queues of frames: plain ones with a WQE for each frame, and striding ones with many frames in a WQE.

use mlx5_wire::cqe::{Cqe64, CqeFormat, ErrorCqe, op_own};
use mlx5_wire::frame::StrideCount;
use mlx5_wire::opcode::CqeOpcode;

use crate::base::defect::Defect;
use crate::engine::core::Core;
use crate::engine::counting::Counted;
use crate::fabric::frame_header::{ETHERNET, Headers, TAG_AT, VLAN_TAG};
use crate::objects::completion::{Completion, Failure};
use crate::objects::memory::{Spaces, Span, Unmapped};
use crate::objects::mkey::MkeyTable;
use crate::objects::rq::ReceiveQueue;
use crate::objects::rss::Hash;
use crate::objects::scatter::{ScatterError, ScatterList};
use crate::objects::strict::{Object, Rule, Strict};
use crate::objects::trace::Trace;
use crate::objects::{self, Qpn, RwqAttr, WqState, defects, verdict};

/// A frame on its way into a queue.
#[derive(Debug, Clone, Copy)]
pub struct Arrival<'a> {
    /// The frame without its check sequence.
    pub bytes: &'a [u8],
    /// Its headers.
    pub headers: &'a Headers,
    /// Tag of the rule that it matched.
    pub tag: u32,
    /// Hash that picked the queue.
    pub hash: Hash,
    /// Time of its arrival.
    pub now: u64,
}

/// The WQE of a striding queue that frames go into.
#[derive(Debug, Clone, Copy)]
struct Open {
    index: u16,
    stride: u32,
}

/// Reason why a queue stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// A CQE reported the reason.
    Failed,
    /// The program took its memory away.
    Lost,
}

impl From<Unmapped> for Stop {
    fn from(_: Unmapped) -> Self {
        Self::Lost
    }
}

/// A receive queue of frames.
#[derive(Debug)]
pub struct Wq {
    /// Number.
    pub number: u32,
    /// Attributes of the creation.
    pub attr: RwqAttr,
    /// State.
    pub state: WqState,
    /// The queue pair whose receive side it is.
    pub owner: Option<Qpn>,
    /// Frames dropped for want of a WQE.
    pub dropped: u64,
    // Dropped frames that no CQE has reported.
    untold: u64,
    queue: ReceiveQueue,
    list: ScatterList,
    open: Option<Open>,
}

/// Parts of the device that a queue needs while it works.
struct Parts<'a> {
    mkeys: &'a MkeyTable,
    strict: &'a mut Strict,
    trace: &'a mut Trace,
}

impl Wq {
    /// Makes a queue in state Reset.
    pub fn new(number: u32, attr: RwqAttr, owner: Option<Qpn>, spaces: &Spaces) -> objects::Result<Self> {
        let record = Span::of(&spaces.record, attr.dbrec, 8);
        let queue = match attr.striding {
            Some(_) => ReceiveQueue::striding(attr.ring, &spaces.ring, record)?,
            None => ReceiveQueue::new(attr.ring, &spaces.ring, record)?,
        };
        Ok(Self {
            number,
            attr,
            state: WqState::Reset,
            owner,
            dropped: 0,
            untold: 0,
            queue,
            list: ScatterList::default(),
            open: None,
        })
    }

    /// Returns the running index of the next WQE to take.
    pub fn next(&self) -> u16 {
        self.queue.next()
    }

    fn object(&self) -> Object {
        self.owner.map_or(Object::Wq(self.number), |qpn| Object::Qp(qpn.0))
    }

    /// Looks at the doorbell record.
    pub fn observe(&mut self, strict: &mut Strict, trace: &mut Trace) -> Result<(), Unmapped> {
        if self.state == WqState::Reset {
            return Ok(());
        }
        self.queue.observe(self.object(), strict, trace)
    }

    /// Returns `true` if WQEs are posted that were not flushed.
    pub fn has_unflushed(&self) -> bool {
        self.state == WqState::Err && self.queue.available() != Ok(0)
    }

    /// Starts again, as after a reset.
    pub fn reset(&mut self) {
        self.queue.reset();
        self.open = None;
        self.untold = 0;
    }

    /// Gives the queue up, because the program took its memory away.
    pub fn abandon(&mut self) {
        self.queue.abandon();
        self.open = None;
    }

    /// Puts a frame into the queue; `out` gets the completions.
    pub fn deliver(&mut self, arrival: &Arrival, core: &mut Core, out: &mut Vec<Completion>) -> Result<(), Stop> {
        let mut bytes = arrival.bytes.to_vec();
        let vlan = arrival.headers.vlan.filter(|_| self.attr.offloads.strip_vlan);
        if vlan.is_some() {
            bytes.drain(TAG_AT..TAG_AT + VLAN_TAG);
        }
        if self.attr.offloads.scatter_fcs {
            bytes.extend(verdict::check_sequence(arrival.bytes));
        }
        if core.defects.is(Defect::Payload) {
            defects::change_last(&mut bytes);
        }
        let mut cqe = Cqe64 {
            rx_hash_result: arrival.hash.result.into(),
            rx_hash_type: arrival.hash.kind,
            vlan_info: vlan.unwrap_or(0).into(),
            srqn_uidx: self.attr.user_index.into(),
            timestamp: arrival.now.into(),
            op_own: op_own(CqeOpcode::ResponderSend, CqeFormat::Plain, false, 0),
            ..verdict::of(arrival.bytes, arrival.headers, vlan.is_some())
        };
        core.defects.frame(&mut cqe);
        let fails = core.faults.receive_fails();
        let Core { mkeys, strict, trace, counters, .. } = core;
        let mut parts = Parts { mkeys, strict, trace };
        let place = match self.attr.striding {
            None => self.take(&mut parts)?.map(|index| (index, 0, 0)),
            Some(_) => self.take_strides(bytes.len(), &mut parts, out)?,
        };
        let Some((index, offset, strides)) = place else {
            self.dropped += 1;
            self.untold += 1;
            counters.count(Counted::Wq(self.number), |counters| counters.out_of_buffer += 1);
            parts.trace.dropped(self.number, bytes.len());
            return Ok(());
        };
        let placed = if fails {
            Err(Failure::LOCAL_QP_OP)
        } else if offset + bytes.len() as u64 > self.capacity() {
            Err(Failure::LOCAL_LENGTH_RECEIVE)
        } else {
            let placed = self.list.write(parts.mkeys, self.attr.pd, offset, &bytes);
            placed.map_err(|error| match error {
                ScatterError::Length => Failure::LOCAL_LENGTH_RECEIVE,
                ScatterError::Protection => Failure::LOCAL_PROT_FRAME,
            })
        };
        if let Err(failure) = placed {
            self.open = None;
            self.queue.complete(index);
            out.push(self.error(index, failure));
            // A frame that is too long uses up its WQE, and the queue goes on (DPDK goes on, too).
            let goes_on = failure == Failure::LOCAL_LENGTH_RECEIVE;
            return if goes_on { Ok(()) } else { Err(Stop::Failed) };
        }
        let cqe = Cqe64 {
            sop_drop_qpn: ((self.untold.min(0xff) as u32) << 24 | arrival.tag).into(),
            byte_cnt: (bytes.len() as u32).into(),
            wqe_counter: index.into(),
            ..cqe
        };
        self.untold = 0;
        match self.attr.striding {
            None => {
                self.queue.complete(index);
                out.push(Completion { cqe: cqe.to_bytes(), front: None });
            }
            Some(_) => {
                self.consume(index, strides, cqe, |strides| StrideCount::frame(bytes.len() as u16, strides), out)
            }
        }
        Ok(())
    }

    fn capacity(&self) -> u64 {
        match self.attr.striding {
            Some(striding) => 1 << (striding.log_stride + striding.log_strides),
            None => self.list.capacity(),
        }
    }

    fn take(&mut self, parts: &mut Parts) -> Result<Option<u16>, Unmapped> {
        let object = self.object();
        let taken = self.queue.take(&mut self.list, object, parts.strict, parts.trace)?;
        if let Some(index) = taken {
            parts.trace.receive_frames(self.number, index, &self.list);
        }
        Ok(taken)
    }

    /// Takes WQE, offset and strides for a frame of `len` bytes.
    fn take_strides(
        &mut self,
        len: usize,
        parts: &mut Parts,
        out: &mut Vec<Completion>,
    ) -> Result<Option<(u16, u64, u32)>, Unmapped> {
        let Some(striding) = self.attr.striding else { return Ok(None) };
        let shift = if striding.two_byte_shift { 2 } else { 0 };
        let strides = (len as u32 + shift).div_ceil(1 << striding.log_stride);
        let all = 1u32 << striding.log_strides;
        if let Some(open) = self.open.filter(|open| open.stride + strides > all) {
            // A frame does not continue in another WQE: the rest of this WQE stays empty.
            self.fill(open, all - open.stride, out);
        }
        let open = match self.open {
            Some(open) => open,
            None => {
                let Some(index) = self.take(parts)? else { return Ok(None) };
                let bytes = u64::from(all) << striding.log_stride;
                let one = self.list.segments().len() == 1 && self.list.capacity() == bytes;
                if !one {
                    let segment = self.list.segments().first().map(|segment| segment.to_bytes());
                    let found = segment.unwrap_or_default();
                    let object = self.object();
                    parts.strict.violation(Rule::StridingWqe, object, index.into(), &found);
                }
                *self.open.insert(Open { index, stride: 0 })
            }
        };
        let offset = (u64::from(open.stride) << striding.log_stride) + u64::from(shift);
        Ok(Some((open.index, offset, strides)))
    }

    fn fill(&mut self, open: Open, mut rest: u32, out: &mut Vec<Completion>) {
        while rest > 0 {
            let strides = rest.min(StrideCount::MAX_STRIDES);
            let cqe = Cqe64 {
                srqn_uidx: self.attr.user_index.into(),
                op_own: op_own(CqeOpcode::ResponderSend, CqeFormat::Plain, false, 0),
                ..Cqe64::zeroed()
            };
            self.consume(open.index, strides, cqe, StrideCount::filler, out);
            rest -= strides;
        }
    }

    /// Completes strides of the open WQE.
    fn consume(
        &mut self,
        index: u16,
        strides: u32,
        cqe: Cqe64,
        count: impl FnOnce(u32) -> StrideCount,
        out: &mut Vec<Completion>,
    ) {
        let (Some(striding), Some(open)) = (self.attr.striding, &mut self.open) else { return };
        let cqe = Cqe64 {
            wqe_id: index.into(),
            wqe_counter: (open.stride as u16).into(),
            byte_cnt: count(strides).0.into(),
            ..cqe
        };
        out.push(Completion { cqe: cqe.to_bytes(), front: None });
        open.stride += strides;
        if open.stride == 1 << striding.log_strides {
            self.open = None;
            self.queue.complete(index);
        }
    }

    /// Returns the CQE of a failed WQE. Adapters left out the number of the queue and the solicited event (dumps C5,
    /// C6).
    fn error(&self, index: u16, failure: Failure) -> Completion {
        let [hw_err_synd, hw_synd_type] = failure.hardware;
        let cqe = ErrorCqe {
            srqn_uidx: self.attr.user_index.into(),
            hw_err_synd,
            hw_synd_type,
            vendor_err_synd: failure.vendor,
            syndrome: failure.syndrome.get(),
            wqe_counter: index.into(),
            op_own: op_own(CqeOpcode::ResponderError, CqeFormat::Plain, false, 0),
            ..ErrorCqe::zeroed()
        };
        Completion { cqe: cqe.to_bytes(), front: None }
    }

    /// Completes all posted WQEs.
    pub fn flush(&mut self, core: &mut Core, out: &mut Vec<Completion>) -> Result<(), Unmapped> {
        let Core { mkeys, strict, trace, .. } = core;
        let mut parts = Parts { mkeys, strict, trace };
        let open = self.open.take().map(|open| open.index);
        let mut next = open;
        loop {
            let index = match next.take() {
                Some(index) => index,
                None => match self.take(&mut parts)? {
                    Some(index) => index,
                    None => return Ok(()),
                },
            };
            self.queue.complete(index);
            out.push(self.error(index, Failure::FLUSH));
        }
    }
}

const _: () = assert!(ETHERNET == TAG_AT + 2);
