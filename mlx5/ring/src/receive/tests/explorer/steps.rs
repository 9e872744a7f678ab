//! What can be done in a state.

use core::mem::ManuallyDrop;
use std::vec;
use std::vec::Vec;

use mlx5_wire::opcode::CqeOpcode;

use crate::receive::{Completion, Receiving};
use crate::testing::{Beside, CqeSpec, Device, Rig, TestQueue, pool};

use super::Extent;
use super::lending::{Lending, Way};

/// A step between batches.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// Posts so many with one doorbell.
    Post(usize),
    Load,
    /// The device completes the WQE in a slot, whose CQE waits.
    Complete(u32, Kind),
    /// The device completes something that is no receive.
    Other,
    GiveBack(u32, bool),
    /// Starts a batch with this budget, so many CQEs before the end of the CQ's buffer, or where the CQ stands.
    Begin(Loop, u32, Option<u32>),
}

/// A step in a batch.
#[derive(Clone, Copy, Debug)]
pub enum Call {
    /// Asks for a completion, which the device writes now, or has written.
    Next(Option<(u32, Kind)>),
    /// The same of a cursor.
    Lend(Option<(u32, Kind)>, Way),
    /// Asks for a completion, which is one that cannot be true.
    Stray(u16, Way),
    /// Takes the buffer of the message that is lent.
    Take,
    /// Takes it, and leaves another one.
    Replace,
    /// Gives the message in a slot back, with its buffer or without.
    GiveBack(u32, bool),
    End,
    /// Forgets the batch, and posts so many before it is found.
    Forget(usize),
}

/// What completes a WQE.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Send,
    /// Out of the ordinary.
    Immediate,
    Error,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Send, Self::Immediate, Self::Error];

    const fn opcode(self) -> CqeOpcode {
        match self {
            Self::Send => CqeOpcode::ResponderSend,
            Self::Immediate => CqeOpcode::ResponderSendImm,
            Self::Error => CqeOpcode::ResponderError,
        }
    }
}

/// What asks for completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loop {
    /// A [`Receiving`].
    Batch,
    /// A [`Cursor`](crate::receive::Cursor), whose messages are lent.
    Cursor,
}

/// What became of asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    Nothing,
    /// What the device wrote.
    Arrived,
    Stray,
}

/// When CQEs are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cqes {
    /// At any time, in a CQ of so many entries; where it stands is part of the state.
    Wait(u32),
    /// When they are asked for. A batch starts so many CQEs before the end of the buffer.
    Asked(&'static [u32]),
}

/// Every way in which one of the device's WQEs can complete.
fn completions(device: &Device) -> impl Iterator<Item = (u32, Kind)> + '_ {
    device.queue.iter().flat_map(|taken| Kind::ALL.map(|kind| (taken.slot, kind)))
}

/// What can be done between batches.
pub fn steps<Q: TestQueue>(rig: &Rig<Q>, extent: &Extent) -> Vec<Step> {
    let pool = pool(&rig.buffers).count();
    let mut steps: Vec<_> = (1..=pool).map(Step::Post).collect();
    if pool > 0 && rig.device.is_srq() {
        steps.push(Step::Load);
    }
    for held in &rig.held {
        steps.extend([true, false].map(|recycle| Step::GiveBack(held.slot, recycle)));
    }
    let begin = |at: Option<u32>| {
        let with = move |by| extent.budgets.iter().map(move |&budget| Step::Begin(by, budget, at));
        extent.loops.iter().copied().flat_map(with)
    };
    match extent.cqes {
        Cqes::Wait(_) => {
            if rig.cq_device.has_room() {
                steps.push(Step::Other);
                let all = completions(&rig.device);
                steps.extend(all.map(|(slot, kind)| Step::Complete(slot, kind)));
            }
            steps.extend(begin(None));
        }
        Cqes::Asked(before_end) => {
            steps.extend(before_end.iter().flat_map(|&at| begin(Some(at))));
        }
    }
    steps
}

/// Takes a step between batches that starts none.
pub fn take<Q: TestQueue>(rig: &mut Rig<Q>, step: Step) {
    match step {
        Step::Post(count) => {
            let buffers = rig.free_buffers(count);
            rig.post(&buffers);
        }
        Step::Load => {
            let buffer = rig.free_buffer().expect("there is one");
            rig.load(buffer);
        }
        Step::Complete(slot, kind) => {
            let position = rig.device.position(slot);
            rig.complete_as(position, kind.opcode(), false);
        }
        Step::Other => rig.parts().2.complete_other(),
        Step::GiveBack(slot, recycle) => {
            let index = rig.held.iter().position(|held| held.slot == slot).unwrap();
            rig.give_back(index, recycle);
        }
        Step::Begin(..) => unreachable!("it starts a batch"),
    }
}

/// A batch, which stays as it is when this is dropped.
pub struct Open<'a, Q: TestQueue> {
    pub by: By<'a, Q>,
    pub beside: Beside<'a>,
    /// Completions that it may still take.
    pub left: u32,
    /// Nothing was done in it.
    pub fresh: bool,
}

/// What goes through it.
pub enum By<'a, Q: TestQueue> {
    Batch(ManuallyDrop<Receiving<'a, Q>>),
    Cursor(Lending<'a, Q>),
}

impl<'a, Q: TestQueue> Open<'a, Q> {
    pub fn new(rig: &'a mut Rig<Q>, by: Loop, budget: u32) -> Self {
        let (queue, cq, beside) = rig.parts();
        // SAFETY: all completions are of this queue; nobody touches the memory of the buffers.
        let by = unsafe {
            match by {
                Loop::Batch => By::Batch(ManuallyDrop::new(Receiving::new(cq, queue, budget))),
                Loop::Cursor => {
                    let cursor = Receiving::new(cq, queue, budget).into_cursor();
                    By::Cursor(Lending::new(queue, cursor, false))
                }
            }
        };
        Self { by, beside, left: budget, fresh: true }
    }

    /// What can be done now.
    pub fn calls(&self, &Extent { cqes, forget, retargets, .. }: &Extent) -> Vec<Call> {
        let Self { by, beside, left, fresh } = self;
        let mut calls = vec![Call::End];
        let pool = pool(beside.buffers).count();
        if forget {
            calls.push(Call::Forget(0));
            if pool > 0 {
                calls.extend([Call::Forget(1), Call::Forget(pool)]);
            }
        }
        let arrived = beside.arrived() > 0;
        match by {
            By::Batch(_) => {
                calls.push(Call::Next(None));
                for held in beside.held.iter() {
                    calls.extend([true, false].map(|recycle| Call::GiveBack(held.slot, recycle)));
                }
            }
            By::Cursor(lending) => {
                calls.extend(Way::all(retargets, arrived).map(|way| Call::Lend(None, way)));
                if lending.lent {
                    calls.push(Call::Take);
                    calls.extend((pool > 0).then_some(Call::Replace));
                }
            }
        }
        // With the other kind of arrival, no batch comes so far that the CQ is full.
        let waits = matches!(cqes, Cqes::Wait(_));
        let room = !waits || beside.cq_device.has_room();
        if arrived || *left == 0 || !room {
            return calls;
        }
        if !waits {
            for next in completions(beside.device).map(Some) {
                match by {
                    By::Batch(_) => calls.push(Call::Next(next)),
                    By::Cursor(_) => {
                        calls.extend(Way::all(retargets, true).map(|way| Call::Lend(next, way)))
                    }
                }
            }
        }
        // What is posted and not rung for yet could complete, for all that the queue knows; and so could what is
        // posted in place of a message that is lent.
        let lent = matches!(by, By::Cursor(lending) if lending.lent);
        if *fresh || beside.none_waits() && !lent {
            for counter in beside.device.not_posted() {
                let retargets =
                    if matches!(by, By::Batch(_)) { &retargets[..1] } else { retargets };
                let ways = Way::all(retargets, false);
                calls.extend(ways.map(|way| Call::Stray(counter, way)));
            }
        }
        calls
    }

    /// Does something that does not end the batch.
    pub fn apply(&mut self, call: Call) {
        self.fresh = false;
        match call {
            Call::Next(written) => self.next(written, Way::STRAIGHT),
            Call::Lend(written, way) => self.next(written, way),
            Call::Stray(counter, way) => {
                self.beside.cq_device.write(&CqeSpec::send(counter, 1));
                assert_eq!(self.ask(way), Found::Stray);
                self.left -= 1;
            }
            Call::GiveBack(slot, recycle) => {
                let By::Batch(receiving) = &mut self.by else { unreachable!("it has no cursor") };
                let held = &self.beside.held;
                let index = held.iter().position(|held| held.slot == slot).unwrap();
                self.beside.give_back(receiving, index, None, recycle);
            }
            Call::Take | Call::Replace => {
                let Self { by: By::Cursor(lending), beside, .. } = self else {
                    unreachable!("it has a cursor")
                };
                match call {
                    Call::Take => lending.take(beside),
                    _ => lending.replace(beside),
                }
            }
            Call::End | Call::Forget(_) => unreachable!("it ends the batch"),
        }
        self.beside.device.check();
        assert_eq!(self.beside.device.look(), 0, "the doorbell rang in the middle");
    }

    /// Asks for a completion, which the device writes before, or has written.
    fn next(&mut self, written: Option<(u32, Kind)>, way: Way) {
        let Self { beside, left, .. } = self;
        if let Some((slot, kind)) = written {
            beside.complete_as(beside.device.position(slot), kind.opcode(), false);
        }
        let due = beside.arrived() > 0 && *left > 0;
        let found = self.ask(way);
        assert_eq!(found, if due { Found::Arrived } else { Found::Nothing });
        self.left -= u32::from(due);
    }

    fn ask(&mut self, way: Way) -> Found {
        let Self { by, beside, .. } = self;
        match by {
            By::Batch(receiving) => match receiving.next() {
                None => Found::Nothing,
                Some(Completion::Stray(_)) => Found::Stray,
                Some(completion) => {
                    let _ = beside.received(receiving, completion);
                    Found::Arrived
                }
            },
            By::Cursor(lending) => lending.next(beside, way),
        }
    }

    pub fn end(mut self) {
        match self.by {
            By::Batch(receiving) => drop(ManuallyDrop::into_inner(receiving)),
            By::Cursor(lending) => lending.end(&mut self.beside),
        }
    }

    /// Forgets it, after a note of how far it has come. Returns the slot of a message that may be held, though it is
    /// nobody's.
    pub fn forget(self) -> Option<u32> {
        match self.by {
            By::Batch(mut receiving) => {
                receiving.note();
                None
            }
            By::Cursor(lending) => lending.forget(),
        }
    }
}
