//! The cases: an operation, a subject of doorbell, and its reference.

use crate::adapter::{Form, Order};
use crate::lines::{EVERYWHERE, Lines};
use crate::name::{Calls, Givers, Name};
use crate::operation::{Operation, SLOTS, What};
use crate::world::{Kind, Locks, Request, Shape};

/// Tags of a list and one more.
pub const ENTRIES: u32 = 128;
/// Completions or receives per call, unless stated otherwise.
pub const BATCH: u32 = 32;

/// A subject of doorbell, and its reference.
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
    /// The default settings: batches of 32, one SGE, 1,024 slots, one QP, in order, against libmlx5 without
    /// locks.
    pub const fn new(kind: Kind, what: What, doorbell: Name) -> Self {
        let shape = Shape::new(kind, SLOTS);
        Self {
            operation: Operation { what, shape, order: Order::Posted, form: Form::Plain, held: false, batch: BATCH },
            doorbell,
            reference: Name::Libmlx5(Locks::Off),
        }
    }

    /// A tag list: batches of 16, against libmlx5 without locks.
    pub const fn tags(what: What) -> Self {
        Self::new(Kind::Tags, what, Name::Ring).slots(ENTRIES).batch(16).against(Name::Libmlx5SrqOps(Locks::Off))
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

    /// With messages for `queues` queues in turn.
    pub const fn queues(mut self, queues: u32) -> Self {
        self.operation.shape.queues = queues;
        self.operation.shape.qps = queues;
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

    /// The operation, and each setting that differs from [`new`](Self::new).
    pub fn label(&self) -> String {
        let Operation { what, shape, order, form, held, batch } = self.operation;
        let subject = match self.doorbell {
            Name::Lending => ", lending batch",
            Name::Owned => ", owned buffers",
            Name::Sender => ", Sender",
            Name::Replaced => ", buffers replaced",
            Name::Shared(Givers::Own) => ", SharedPoster",
            Name::Shared(Givers::Other) => ", SharedPoster, other thread",
            Name::Shared(Givers::Both) => ", SharedPoster, 2 threads",
            Name::DropIn(Calls::PollCq | Calls::PostSend) => ", drop-in",
            Name::DropIn(Calls::NextPoll) => ", drop-in, extended",
            Name::DropIn(Calls::WrBuilders) => ", drop-in, ibv_wr_*",
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
        if shape.queues != 1 && shape.kind == Kind::Rq {
            label += &format!(", {} QPs in turn", shape.queues);
        } else if shape.queues != 1 {
            label += &format!(", {} queues in turn", shape.queues);
        } else if shape.qps != 1 {
            label += &format!(", {} QPs", shape.qps);
        }
        if order == Order::Random {
            label += ", random order";
        }
        label += match form {
            Form::Plain => "",
            Form::Failures => ", 1 % failures",
            Form::Compressed => ", compressed",
            Form::Immediate => ", immediate",
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
            Self::Sends(Request::Send) => "SEND",
            Self::Sends(Request::Inline) => "SEND of 32 bytes inline",
            Self::Sends(Request::Write) => "RDMA WRITE",
            Self::Sends(Request::Read) => "RDMA READ",
            Self::Sends(Request::Datagram) => "UD SEND",
            Self::Frames { striding: false } => "frame",
            Self::Frames { striding: true } => "frame of a striding queue",
        }
    }

    const fn slots(self) -> u32 {
        match self {
            Self::Srq | Self::Rq | Self::Sends(_) | Self::Frames { .. } => SLOTS,
            Self::Tags => ENTRIES,
        }
    }
}

impl What {
    const fn name(self, kind: Kind) -> &'static str {
        match self {
            Self::Post if matches!(kind, Kind::Tags) => "add",
            Self::Cycle if matches!(kind, Kind::Sends(_)) => "post and poll",
            Self::Cycle if matches!(kind, Kind::Frames { .. }) => "lent",
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
            Self::PostSend(Locks::Off) => "ibv_post_send, locks off",
            Self::PostSend(Locks::Default) => "ibv_post_send, default locks",
            Self::WrBuilders(Locks::Off) => "ibv_wr_*, locks off",
            Self::WrBuilders(Locks::Default) => "ibv_wr_*, default locks",
            Self::Sender => "Sender",
            Self::Frames => "FrameReceiver",
            Self::Shared(_) => "SharedPoster",
            Self::Mutex(_) => "a mutex around the receiver",
            Self::Ring => "ring",
            Self::Lending => "lending batch",
            Self::Owned => "owned buffers",
            Self::Replaced => "buffers replaced",
            Self::DropIn(_) => "drop-in",
        }
    }
}

/// Cases of the safe layer.
fn safe() -> Vec<Case> {
    let cycle = |name| Case::new(Kind::Srq, What::Cycle, name);
    let lending = || cycle(Name::Lending);
    vec![
        lending(),
        lending().random(),
        lending().queues(2),
        lending().batch(1),
        Case::new(Kind::Srq, What::Nothing, Name::Lending),
        cycle(Name::Owned),
        cycle(Name::Owned).random(),
        cycle(Name::Replaced),
        cycle(Name::Replaced).random(),
        lending().form(Form::Compressed),
        lending().form(Form::Inline32),
        lending().qps(1000),
        lending().slots(64),
        lending().slots(32768),
        Case::new(Kind::Rq, What::Cycle, Name::Lending),
    ]
}

/// Cases of the rings.
fn rings() -> Vec<Case> {
    let srq = |what| Case::new(Kind::Srq, what, Name::Ring);
    let rq = |what| Case::new(Kind::Rq, what, Name::Ring);
    vec![
        srq(What::Cycle),
        srq(What::Cycle).random(),
        srq(What::Cycle).batch(1),
        srq(What::Cycle).held(),
        srq(What::Cycle).form(Form::Failures),
        srq(What::Cycle).form(Form::Compressed),
        srq(What::Cycle).form(Form::Inline32),
        srq(What::Cycle).form(Form::Inline64),
        rq(What::Cycle),
        rq(What::Cycle).batch(1),
        srq(What::Poll),
        srq(What::Poll).against(Name::Libmlx5NextPoll(Locks::Off)),
        srq(What::Poll).random(),
        rq(What::Poll),
        srq(What::Post),
        srq(What::Post).random(),
        srq(What::Post).sges(4),
        rq(What::Post),
        srq(What::Nothing),
        srq(What::Arm),
    ]
}

/// Cases of tag lists.
fn tags() -> Vec<Case> {
    vec![Case::tags(What::Post), Case::tags(What::Cycle)]
}

/// Cases of a sender, or of the send rings. Each of the two references is a row, because which one is faster
/// differs.
fn sends(doorbell: Name) -> Vec<Case> {
    let cycle = |request| Case::new(Kind::Sends(request), What::Cycle, doorbell);
    let cases = [
        cycle(Request::Send),
        cycle(Request::Send).batch(1),
        cycle(Request::Inline),
        cycle(Request::Inline).batch(1),
        cycle(Request::Write),
        cycle(Request::Read),
        cycle(Request::Datagram),
    ];
    let references = [Name::PostSend(Locks::Off), Name::WrBuilders(Locks::Off)];
    let rows = |case: &Case| references.map(|reference| case.clone().against(reference));
    cases.iter().flat_map(rows).collect()
}

/// A sender with many queue pairs. They take long to make: they are counted, beside the faster reference.
fn many_queue_pairs() -> Vec<Case> {
    let send = Case::new(Kind::Sends(Request::Send), What::Cycle, Name::Sender);
    vec![send.batch(1).qps(1024).against(Name::WrBuilders(Locks::Off))]
}

/// Cases of frames.
fn frames() -> Vec<Case> {
    let lent = |striding| Case::new(Kind::Frames { striding }, What::Cycle, Name::Frames);
    vec![lent(false), lent(true)]
}

/// Cases of verbs programs, with the locks that both libraries take by default.
fn drop_in() -> Vec<Case> {
    let polls = [
        (Name::DropIn(Calls::PollCq), Name::Libmlx5(Locks::Default)),
        (Name::DropIn(Calls::NextPoll), Name::Libmlx5NextPoll(Locks::Default)),
    ];
    let sends = [
        (Name::DropIn(Calls::PostSend), Name::PostSend(Locks::Default)),
        (Name::DropIn(Calls::WrBuilders), Name::WrBuilders(Locks::Default)),
    ];
    let mut cases = Vec::new();
    for kind in [Kind::Rq, Kind::Srq] {
        for (doorbell, reference) in polls {
            let poll = Case::new(kind, What::Poll, doorbell).against(reference);
            cases.extend([poll.clone(), poll.clone().batch(1)]);
            if kind == Kind::Srq {
                cases.push(poll.clone().random());
            }
            cases.push(poll.clone().form(Form::Immediate));
            cases.push(poll.clone().form(Form::Inline32));
            cases.push(match kind {
                Kind::Rq => poll.queues(BATCH).slots(SLOTS / BATCH),
                _ => poll.qps(BATCH),
            });
            cases.push(Case::new(kind, What::Nothing, doorbell).against(reference));
        }
        let (doorbell, reference) = polls[0];
        let post = Case::new(kind, What::Post, doorbell).against(reference);
        cases.extend([post.clone(), post.clone().batch(1), post.clone().sges(4)]);
        if kind == Kind::Srq {
            cases.push(post.random());
        }
    }
    for (doorbell, reference) in sends {
        let cycle = |request| Case::new(Kind::Sends(request), What::Cycle, doorbell).against(reference);
        cases.extend([
            cycle(Request::Send),
            cycle(Request::Send).batch(1),
            cycle(Request::Inline),
            cycle(Request::Inline).batch(1),
            cycle(Request::Write),
            cycle(Request::Read),
            cycle(Request::Datagram),
            cycle(Request::Send).sges(0),
            cycle(Request::Inline).sges(4),
            cycle(Request::Write).sges(8),
        ]);
    }
    cases
}

/// Labels of the cases whose times are in the documentation.
pub fn documented() -> Vec<String> {
    let mut labels: Vec<_> =
        [safe(), sends(Name::Ring), sends(Name::Sender), frames()].concat().iter().map(Case::label).collect();
    labels.dedup();
    labels
}

/// The cases that are timed.
pub fn timed() -> Vec<(Case, Lines)> {
    let mut cases = Vec::new();
    for case in [safe(), rings(), tags(), sends(Name::Ring), sends(Name::Sender), frames(), drop_in()].concat() {
        let Operation { what, shape, .. } = case.operation;
        // The other two touch no lines of the device, and the device itself writes frames.
        let touched = !matches!(what, What::Nothing | What::Arm) && !matches!(shape.kind, Kind::Frames { .. });
        let places = if touched { &EVERYWHERE[..] } else { &[Lines::Warm] };
        cases.extend(places.iter().map(|&lines| (case.clone(), lines)));
    }
    for givers in [Givers::Own, Givers::Other, Givers::Both] {
        cases.push((Case::shared(Kind::Srq, givers), Lines::Warm));
    }
    cases
}

/// The cases with counted instructions.
pub fn counted() -> Vec<Case> {
    [safe(), rings(), tags(), sends(Name::Ring), sends(Name::Sender), many_queue_pairs(), frames(), drop_in()].concat()
}
