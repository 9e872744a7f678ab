//! What is compared with what.

use crate::adapter::{Form, Order};
use crate::lines::Lines;
use crate::operation::{Operation, What};
use crate::subject::{Givers, Name};
use crate::world::{Kind, Locks, Shape};

/// Slots of a queue, where nothing else is said.
pub const SLOTS: u32 = 1024;
/// Tags of a list and one more.
pub const ENTRIES: u32 = 128;
/// Completions or receives per call, where nothing else is said.
pub const BATCH: u32 = 32;

/// A subject of doorbell, and what it is compared with.
#[derive(Clone, Debug)]
pub struct Case {
    /// Both do this.
    pub operation: Operation,
    /// The subject of doorbell.
    pub doorbell: Name,
    /// The reference.
    pub reference: Name,
}

impl Case {
    /// In the middle of all that can vary: batches of 32, one SGE, 1,024 slots, one QP, in order, against
    /// libmlx5 without locks.
    pub const fn new(kind: Kind, what: What, doorbell: Name) -> Self {
        let shape = Shape::new(kind, SLOTS);
        Self {
            operation: Operation {
                what,
                shape,
                order: Order::Posted,
                form: Form::Plain,
                held: false,
                batch: BATCH,
            },
            doorbell,
            reference: Name::Libmlx5(Locks::Off),
        }
    }

    /// A tag list: batches of 16, against libmlx5 without locks.
    pub const fn tags(what: What) -> Self {
        Self::new(Kind::Tags, what, Name::Ring)
            .slots(ENTRIES)
            .batch(16)
            .against(Name::Libmlx5SrqOps(Locks::Off))
    }

    /// Buffers that threads give back one by one, against a mutex.
    pub const fn shared(kind: Kind, givers: Givers) -> Self {
        Self::new(kind, What::Post, Name::Shared(givers)).against(Name::Mutex(givers))
    }

    /// Whether two threads run at once.
    pub const fn needs_two_cores(&self) -> bool {
        matches!(self.doorbell, Name::Shared(Givers::Other | Givers::Both))
    }

    /// With another batch.
    pub const fn batch(mut self, batch: u32) -> Self {
        self.operation.batch = batch;
        self
    }

    /// With another number of slots.
    pub const fn slots(mut self, slots: u32) -> Self {
        self.operation.shape.slots = slots;
        self
    }

    /// With another number of SGEs.
    pub const fn sges(mut self, sges: u32) -> Self {
        self.operation.shape.sges = sges;
        self
    }

    /// With another number of QPs.
    pub const fn qps(mut self, qps: u32) -> Self {
        self.operation.shape.qps = qps;
        self
    }

    /// With other queues on the CQ.
    pub const fn queues(mut self, queues: u32) -> Self {
        self.operation.shape.queues = queues;
        self
    }

    /// Completing in any order.
    pub const fn random(mut self) -> Self {
        self.operation.order = Order::Random;
        self
    }

    /// With other CQEs.
    pub const fn form(mut self, form: Form) -> Self {
        self.operation.form = form;
        if let Form::Inline64 = form {
            self.operation.shape.cqe_size = 128;
        }
        self
    }

    /// With one message held all the time.
    pub const fn held(mut self) -> Self {
        self.operation.held = true;
        self
    }

    /// Against another reference.
    pub const fn against(mut self, reference: Name) -> Self {
        self.reference = reference;
        self
    }

    /// What is done, with what is not as in [`new`](Self::new).
    pub fn label(&self) -> String {
        let Operation { what, shape, order, form, held, batch } = self.operation;
        let subject = match self.doorbell {
            Name::Lending => ", lending batch",
            Name::Owned => ", owned buffers",
            Name::Replaced => ", buffers replaced",
            Name::Shared(Givers::Own) => ", SharedPoster",
            Name::Shared(Givers::Other) => ", SharedPoster, other thread",
            Name::Shared(Givers::Both) => ", SharedPoster, 2 threads",
            _ => "",
        };
        let mut label = format!("{} {}{subject}", shape.kind.name(), what.name(shape.kind));
        if batch != BATCH {
            label += &format!(", batch {batch}");
        }
        if shape.slots != shape.kind.slots() {
            label += &format!(", {} slots", shape.slots);
        }
        if shape.sges != 1 {
            label += &format!(", {} SGEs", shape.sges);
        }
        if shape.qps != 1 {
            label += &format!(", {} QPs", shape.qps);
        }
        if shape.queues != 1 {
            label += &format!(", {} queues", shape.queues);
        }
        if order == Order::Random {
            label += ", random order";
        }
        label += match form {
            Form::Plain => "",
            Form::Failures => ", 1 % failures",
            Form::Compressed => ", compressed",
            Form::Inline32 => ", 32 bytes inline",
            Form::Inline64 => ", 64 bytes inline",
        };
        if held {
            label += ", one held";
        }
        label
    }
}

impl Case {
    /// What the ratio of times should be at most: 1, and less where more was aimed at.
    pub fn aim(&self, lines: Lines) -> Option<f64> {
        let Operation { what, shape, order, form, held, batch } = self.operation;
        let middle =
            shape == Shape::new(shape.kind, shape.kind.slots()) && form == Form::Plain && !held;
        if self.reference == Name::Floor {
            return Some(if lines == Lines::Warm { 2.0 } else { 1.3 });
        }
        let (warm, cold) = match (what, order, batch, self.doorbell, self.reference) {
            _ if !middle => (1.0, 1.0),
            (What::Post, _, 16, Name::Ring, Name::Libmlx5SrqOps(_)) => (0.6, 0.7),
            (What::Cycle, Order::Posted, BATCH, Name::Ring, _) => (0.15, 0.6),
            (What::Cycle, Order::Posted, 1, Name::Ring, _) => (0.6, 0.8),
            (What::Poll, Order::Posted, BATCH, Name::Ring, Name::Libmlx5(_)) => (0.18, 0.6),
            (What::Poll, Order::Posted, BATCH, Name::Ring, _) => (0.3, 0.7),
            (What::Post, Order::Posted, BATCH, Name::Ring, _) => (0.45, 0.6),
            (What::Post, Order::Random, BATCH, Name::Ring, _) => (0.85, 0.9),
            _ => (1.0, 1.0),
        };
        Some(if lines == Lines::Warm { warm } else { cold })
    }

    /// [`label`](Self::label), and where lines are.
    pub fn timed_label(&self, lines: Lines) -> String {
        format!("{}, {}", self.label(), lines.name())
    }
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Srq => "SRQ",
            Self::Rq => "RQ",
            Self::Tags => "tag",
        }
    }

    const fn slots(self) -> u32 {
        match self {
            Self::Srq | Self::Rq => SLOTS,
            Self::Tags => ENTRIES,
        }
    }
}

impl What {
    const fn name(self, kind: Kind) -> &'static str {
        match self {
            Self::Post if matches!(kind, Kind::Tags) => "add",
            Self::Poll => "poll",
            Self::Post => "post",
            Self::Cycle => "cycle",
            Self::Arm => "arm",
            Self::Nothing => "poll of nothing",
        }
    }
}

impl Name {
    /// The reference in words.
    pub const fn reference(self) -> &'static str {
        match self {
            Self::Libmlx5(Locks::Off) => "ibv_poll_cq, locks off",
            Self::Libmlx5(Locks::Default) => "ibv_poll_cq, default locks",
            Self::Libmlx5NextPoll(Locks::Off) => "ibv_next_poll, locks off",
            Self::Libmlx5NextPoll(Locks::Default) => "ibv_next_poll, default locks",
            Self::Libmlx5SrqOps(Locks::Off) => "ibv_post_srq_ops, locks off",
            Self::Libmlx5SrqOps(Locks::Default) => "ibv_post_srq_ops, default locks",
            Self::Shared(_) => "SharedPoster",
            Self::Mutex(_) => "a mutex around the receiver",
            Self::Floor => "the floor",
            Self::Ring => "ring",
            Self::Lending => "lending batch",
            Self::Owned => "owned buffers",
            Self::Replaced => "buffers replaced",
        }
    }
}

/// Where lines are in a case that time is taken of.
const EVERYWHERE: [Lines; 3] = [Lines::Warm, Lines::Flushed, Lines::OtherCore];

/// What time is taken of.
pub fn timed() -> Vec<(Case, Lines)> {
    let mut cases = Vec::new();
    let next_poll = Name::Libmlx5NextPoll(Locks::Off);
    for kind in [Kind::Srq, Kind::Rq] {
        let ring = |what| Case::new(kind, what, Name::Ring);
        for lines in EVERYWHERE {
            cases.extend([
                (ring(What::Cycle), lines),
                (ring(What::Cycle).batch(1), lines),
                (ring(What::Poll), lines),
                (ring(What::Poll).against(next_poll), lines),
                (ring(What::Post), lines),
                (ring(What::Cycle).against(Name::Floor), lines),
                (Case::new(kind, What::Cycle, Name::Lending), lines),
            ]);
        }
        for name in [Name::Owned, Name::Replaced] {
            cases.push((Case::new(kind, What::Cycle, name), Lines::Warm));
        }
        cases.push((ring(What::Cycle).against(Name::Libmlx5(Locks::Default)), Lines::Warm));
        for batch in [4, 16, 64] {
            cases.push((ring(What::Cycle).batch(batch), Lines::Warm));
        }
        for sges in [2, 4] {
            cases.push((ring(What::Post).sges(sges), Lines::Warm));
        }
    }
    let srq = |what| Case::new(Kind::Srq, what, Name::Ring);
    for lines in EVERYWHERE {
        cases.push((Case::tags(What::Post), lines));
        cases.push((Case::tags(What::Cycle), lines));
        cases.push((srq(What::Post).random(), lines));
    }
    cases.push((srq(What::Cycle).random(), Lines::Warm));
    for givers in [Givers::Own, Givers::Other, Givers::Both] {
        cases.push((Case::shared(Kind::Srq, givers), Lines::Warm));
    }
    for slots in [64, 4096, 32768] {
        cases.push((srq(What::Cycle).slots(slots), Lines::Warm));
        cases.push((srq(What::Post).slots(slots), Lines::Warm));
    }
    cases.push((srq(What::Cycle).qps(1000), Lines::Warm));
    cases.extend(beside().into_iter().map(|case| (case, Lines::Warm)));
    cases
}

/// What is both timed and counted, of all that is not the plain case.
fn beside() -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in [Kind::Srq, Kind::Rq] {
        let ring = |what| Case::new(kind, what, Name::Ring);
        for form in [Form::Failures, Form::Compressed] {
            cases.push(ring(What::Poll).form(form));
            cases.push(ring(What::Cycle).form(form));
        }
        for form in [Form::Inline32, Form::Inline64] {
            cases.push(ring(What::Cycle).form(form));
        }
    }
    let srq = |what, name| Case::new(Kind::Srq, what, name);
    cases.push(srq(What::Cycle, Name::Ring).held());
    for name in [Name::Lending, Name::Owned, Name::Replaced] {
        cases.push(srq(What::Cycle, name).random());
    }
    cases.push(srq(What::Arm, Name::Ring));
    for name in [Name::Ring, Name::Lending] {
        cases.push(srq(What::Nothing, name));
    }
    cases.push(srq(What::Cycle, Name::Lending).batch(1));
    cases.push(srq(What::Cycle, Name::Lending).queues(2));
    cases
}

/// What instructions are counted of.
pub fn counted() -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in [Kind::Srq, Kind::Rq] {
        for name in [Name::Ring, Name::Lending, Name::Owned, Name::Replaced] {
            cases.push(Case::new(kind, What::Cycle, name));
        }
        for batch in [1, 4, 16, 64] {
            cases.push(Case::new(kind, What::Cycle, Name::Ring).batch(batch));
        }
        let poll = Case::new(kind, What::Poll, Name::Ring);
        cases.push(poll.clone().against(Name::Libmlx5NextPoll(Locks::Off)));
        cases.push(poll);
        for sges in [1, 2, 4] {
            cases.push(Case::new(kind, What::Post, Name::Ring).sges(sges));
        }
    }
    cases.push(Case::tags(What::Post));
    cases.push(Case::tags(What::Cycle));
    cases.push(Case::new(Kind::Srq, What::Cycle, Name::Ring).random());
    cases.push(Case::new(Kind::Srq, What::Post, Name::Ring).random());
    for slots in [64, 4096] {
        cases.push(Case::new(Kind::Srq, What::Cycle, Name::Ring).slots(slots));
    }
    cases.push(Case::new(Kind::Srq, What::Cycle, Name::Ring).qps(1000));
    cases.extend(beside());
    cases
}
