//! The cases: an operation, a subject of doorbell, and its reference.

use crate::adapter::{Form, Order};
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
    /// The operation of both subjects.
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
            operation: Operation { what, shape, order: Order::Posted, form: Form::Plain, batch: BATCH },
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

    /// With ten messages that arrive at once.
    pub const fn at_once(mut self) -> Self {
        self.operation.order = Order::AtOnce(10);
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

    /// Against another reference.
    pub const fn against(mut self, reference: Name) -> Self {
        self.reference = reference;
        self
    }

    /// The operation, and each setting that differs from [`new`](Self::new).
    pub fn label(&self) -> String {
        let Operation { what, shape, order, form, batch } = self.operation;
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
        if shape.queues != 1 && shape.kind == Kind::Rq {
            label += &format!(", {} QPs in turn", shape.queues);
        } else if shape.queues != 1 {
            label += &format!(", {} queues in turn", shape.queues);
        } else if shape.qps != 1 {
            label += &format!(", {} QPs", shape.qps);
        }
        if let Order::AtOnce(messages) = order {
            label += &format!(", {messages} messages at once");
        }
        label += match form {
            Form::Plain => "",
            Form::Compressed => ", compressed",
            Form::Inline32 => ", 32 bytes inline",
            Form::Inline64 => ", 64 bytes inline",
        };
        label
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

/// Cases of [`safe`] that are timed, too.
const SHOWN: usize = 12;

/// Cases of the safe layer.
fn safe() -> Vec<Case> {
    let cycle = |name| Case::new(Kind::Srq, What::Cycle, name);
    let lending = || cycle(Name::Lending);
    vec![
        lending(),
        lending().at_once(),
        lending().queues(2),
        lending().batch(1),
        lending().at_once().batch(1),
        Case::new(Kind::Srq, What::Nothing, Name::Lending),
        cycle(Name::Owned),
        cycle(Name::Owned).at_once(),
        cycle(Name::Replaced),
        cycle(Name::Replaced).at_once(),
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
    let cycle = |kind| Case::new(kind, What::Cycle, Name::Ring);
    vec![
        cycle(Kind::Srq),
        cycle(Kind::Srq).at_once(),
        cycle(Kind::Srq).batch(1),
        cycle(Kind::Srq).form(Form::Compressed),
        cycle(Kind::Srq).form(Form::Inline32),
        cycle(Kind::Srq).form(Form::Inline64),
        cycle(Kind::Rq),
        Case::new(Kind::Srq, What::Nothing, Name::Ring),
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
            cases.extend([poll.clone(), poll.batch(1)]);
        }
        let (doorbell, reference) = polls[0];
        cases.extend([What::Post, What::Nothing].map(|what| Case::new(kind, what, doorbell).against(reference)));
    }
    for (doorbell, reference) in sends {
        let cycle = |request| Case::new(Kind::Sends(request), What::Cycle, doorbell).against(reference);
        cases.extend([cycle(Request::Send), cycle(Request::Inline), cycle(Request::Inline).batch(1)]);
        cases.extend([Request::Write, Request::Read, Request::Datagram].map(cycle));
    }
    cases
}

/// Subjects that are timed on one operation, doorbell's first.
#[derive(Clone, Debug)]
pub struct Timed {
    /// As in the table of counts.
    pub label: String,
    /// All do this.
    pub operation: Operation,
    /// The subject of doorbell, and its references.
    pub names: Vec<Name>,
    /// Whether two threads run at once.
    pub needs_two_cores: bool,
}

/// The rows of `docs/performance.md`, and the threads that give buffers back.
pub fn timed() -> Vec<Timed> {
    let shared = [Givers::Own, Givers::Other, Givers::Both].map(|givers| Case::shared(Kind::Srq, givers));
    let mut rows: Vec<Timed> = Vec::new();
    for case in [&safe()[..SHOWN], &sends(Name::Sender), &frames(), &shared].concat() {
        let label = case.label();
        if let Some(row) = rows.last_mut().filter(|row| row.label == label) {
            row.names.push(case.reference);
            continue;
        }
        let needs_two_cores = matches!(case.doorbell, Name::Shared(Givers::Other | Givers::Both));
        let names = vec![case.doorbell, case.reference];
        rows.push(Timed { label, operation: case.operation, names, needs_two_cores });
    }
    rows
}

/// The cases with counted instructions.
pub fn counted() -> Vec<Case> {
    [safe(), rings(), tags(), sends(Name::Ring), sends(Name::Sender), many_queue_pairs(), frames(), drop_in()].concat()
}
