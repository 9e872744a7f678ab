//! What can be done in a state.

use core::mem::ManuallyDrop;
use std::vec;
use std::vec::Vec;

use mlx5_wire::opcode::CqeOpcode;

use crate::receive::{Completion, Receiving};
use crate::testing::{Beside, CqeSpec, Device, Place, Rig, TestQueue};

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
    Begin(u32, Option<u32>),
}

/// A step in a batch.
#[derive(Clone, Copy, Debug)]
pub enum Call {
    /// Asks for a completion, which the device writes now, or has written.
    Next(Option<(u32, Kind)>),
    /// Asks for a completion, which is one that cannot be true.
    Stray(u16),
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
pub fn steps<Q: TestQueue>(rig: &Rig<Q>, cqes: Cqes, budgets: &[u32]) -> Vec<Step> {
    let pool = rig.free_buffers(usize::MAX).len();
    let mut steps: Vec<_> = (1..=pool).map(Step::Post).collect();
    if pool > 0 && rig.device.is_srq() {
        steps.push(Step::Load);
    }
    for held in &rig.held {
        steps.extend([true, false].map(|recycle| Step::GiveBack(held.slot, recycle)));
    }
    let begin = |at: Option<u32>| budgets.iter().map(move |&budget| Step::Begin(budget, at));
    match cqes {
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
    pub receiving: ManuallyDrop<Receiving<'a, Q>>,
    pub beside: Beside<'a>,
    /// Completions that it may still take.
    pub left: u32,
    /// Nothing was done in it.
    pub fresh: bool,
}

impl<'a, Q: TestQueue> Open<'a, Q> {
    pub fn new(rig: &'a mut Rig<Q>, budget: u32) -> Self {
        let (receiving, beside) = rig.batch(budget);
        Self { receiving: ManuallyDrop::new(receiving), beside, left: budget, fresh: true }
    }

    /// What can be done now.
    pub fn calls(&self, cqes: Cqes) -> Vec<Call> {
        let Self { beside, left, fresh, .. } = self;
        let mut calls = vec![Call::Next(None), Call::End, Call::Forget(0)];
        let pool = beside.buffers.iter().filter(|&&place| place == Place::Pool).count();
        if pool > 0 {
            calls.extend([Call::Forget(1), Call::Forget(pool)]);
        }
        for held in beside.held.iter() {
            calls.extend([true, false].map(|recycle| Call::GiveBack(held.slot, recycle)));
        }
        // With the other kind of arrival, no batch comes so far that the CQ is full.
        let waits = matches!(cqes, Cqes::Wait(_));
        let room = !waits || beside.cq_device.has_room();
        if beside.arrived() == 0 && *left > 0 && room {
            if !waits {
                let next = completions(beside.device).map(|next| Call::Next(Some(next)));
                calls.extend(next);
            }
            // What is posted and not rung for yet could complete, for all that the queue knows.
            if *fresh || beside.none_waits() {
                calls.extend(beside.device.not_posted().into_iter().map(Call::Stray));
            }
        }
        calls
    }

    /// Does something that does not end the batch.
    pub fn apply(&mut self, call: Call) {
        let Self { receiving, beside, left, fresh } = self;
        *fresh = false;
        match call {
            Call::Next(written) => {
                if let Some((slot, kind)) = written {
                    beside.complete_as(beside.device.position(slot), kind.opcode(), false);
                }
                let due = beside.arrived() > 0 && *left > 0;
                match receiving.next() {
                    Some(completion) => drop(beside.received(receiving, completion)),
                    None => return assert!(!due, "a completion is not seen"),
                }
                assert!(due, "a completion of nothing");
                *left -= 1;
            }
            Call::Stray(counter) => {
                beside.cq_device.write(&CqeSpec::send(counter, 1));
                let found = receiving.next();
                assert!(matches!(found, Some(Completion::Stray(_))), "{found:?}");
                *left -= 1;
            }
            Call::GiveBack(slot, recycle) => {
                let index = beside.held.iter().position(|held| held.slot == slot).unwrap();
                beside.give_back(receiving, index, None, recycle);
            }
            Call::End | Call::Forget(_) => unreachable!("it ends the batch"),
        }
        beside.device.check();
        assert_eq!(beside.device.look(), 0, "the doorbell rang in the middle");
    }

    pub fn end(self) {
        drop(ManuallyDrop::into_inner(self.receiving));
    }

    /// Forgets it, after a note of how far it has come.
    pub fn forget(mut self) {
        self.receiving.note();
    }
}
