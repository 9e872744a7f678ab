//! A subject and an adapter, which repeat an operation.

use std::time::{Duration, Instant};

use crate::adapter::{Adapter, Complete, Form, Order};
use crate::lines::{Lines, Shared};
use crate::name::Name;
use crate::operation::{Operation, What};
use crate::sends;
use crate::subject::{self, Subject};
use crate::sum::Sum;
use crate::tags;
use crate::world::{Kind, World};

/// A subject that can do an operation again and again.
pub struct Rig {
    operation: Operation,
    adapter: Box<dyn Complete>,
    subject: Box<dyn Subject>,
    shared: Shared,
    form: Form,
}

impl Rig {
    /// Makes objects, and posts all buffers to them.
    pub fn new(world: &World, operation: Operation, name: Name) -> Self {
        let Operation { what, shape, form, held, .. } = operation;
        if shape.kind == Kind::Tags {
            let objects = tags::Objects::new(world, shape, name);
            let subject = subject::make_of_tags(&objects, name, operation.batch);
            let shared = Shared::of_tags(&objects);
            let adapter = Box::new(tags::Sender::new(world, &objects));
            return Self { operation, adapter, subject, shared, form };
        }
        if let Kind::Sends(request) = shape.kind {
            let objects = sends::Objects::new(world, shape, request, name);
            let shared = Shared::of_sends(&objects);
            let adapter = Box::new(sends::Completer::new(&objects, request, operation.batch));
            let subject = subject::make_of_sends(world, objects, request, name, operation.batch);
            return Self { operation, adapter, subject, shared, form };
        }
        if let Kind::Frames { striding } = shape.kind {
            let (adapter, subject) = subject::make_of_frames(world.ethernet(), shape, striding, name);
            return Self { operation, adapter, subject, shared: Shared::default(), form };
        }
        let form = if form == Form::Compressed && !name.is_doorbell() { Form::Plain } else { form };
        let (objects, mut subject) = subject::make(world, &operation, name);
        world.greet(&objects);
        let mut adapter = Adapter::new(&objects);
        let greetings = objects.qps.len() as u32;
        // One by one, so that laps do not begin where batches do.
        subject.cycle(greetings, 1);
        if held {
            assert_eq!((shape.kind, what), (Kind::Srq, What::Cycle), "a receive queue stands still");
            adapter.complete(1, Order::Posted, Form::Plain);
            subject.hold();
        }
        let shared = Shared::of(&objects);
        Self { operation, adapter: Box::new(adapter), subject, shared, form }
    }

    /// Messages, or receives, of one round.
    pub const fn count(&self) -> u32 {
        self.operation.count()
    }

    /// Time of one round.
    pub fn time(&mut self, lines: Lines) -> Duration {
        let mut time = Duration::ZERO;
        self.round(lines, |round| {
            let start = Instant::now();
            round();
            time = start.elapsed();
        });
        time
    }

    /// Does the operation [`count`](Self::count) times, in `measured`, with the lines of CQEs and WQEs where
    /// `lines` says.
    ///
    /// # Panics
    /// If the sum of the subject differs from that of the adapter.
    pub fn round(&mut self, lines: Lines, measured: impl FnOnce(&mut dyn FnMut())) {
        let Operation { what, order, batch, .. } = self.operation;
        let count = self.count();
        let subject = &mut self.subject;
        match what {
            What::Arm => return measured(&mut || subject.arm(count)),
            What::Nothing => return measured(&mut || subject.find_nothing(count, batch)),
            What::Poll | What::Post | What::Cycle => {}
        }
        let written = lines.complete(&mut *self.adapter, count, order, self.form);
        let flush = || {
            if lines == Lines::Flushed {
                self.shared.flush();
            }
        };
        let subject = &mut self.subject;
        let mut reported = Sum::default();
        match what {
            What::Cycle => {
                flush();
                measured(&mut || reported = subject.cycle(count, batch));
            }
            What::Poll => {
                flush();
                measured(&mut || reported = subject.poll(count, batch));
                subject.prepare(batch);
                subject.post(batch);
            }
            What::Arm | What::Nothing => {}
            What::Post => {
                reported = subject.poll(count, batch);
                subject.prepare(batch);
                flush();
                if lines == Lines::OtherCore {
                    // Polling has had them here again: libmlx5 writes the link of each slot then.
                    self.shared.read_elsewhere();
                }
                measured(&mut || subject.post(batch));
            }
        }
        let expected = Sum { ids: subject.ids(count, written.ids), ..written };
        assert_eq!(reported, expected, "the subject did not return what the adapter wrote");
    }
}
