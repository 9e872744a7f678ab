//! A subject and an adapter, which repeat an operation.

use std::time::{Duration, Instant};

use crate::adapter::{Adapter, Complete, Form};
use crate::name::Name;
use crate::operation::{Operation, What};
use crate::subject::{self, Subject};
use crate::sum::Sum;
use crate::world::{Kind, World};
use crate::{sends, tags};

/// A subject that can do an operation again and again.
pub struct Rig {
    operation: Operation,
    adapter: Box<dyn Complete>,
    subject: Box<dyn Subject>,
    form: Form,
}

impl Rig {
    /// Makes objects, and posts all buffers to them.
    pub fn new(world: &World, operation: Operation, name: Name) -> Self {
        let Operation { shape, form, batch, .. } = operation;
        let (adapter, subject): (Box<dyn Complete>, _) = match shape.kind {
            Kind::Tags => {
                let objects = tags::Objects::new(world, shape, name);
                let subject = subject::make_of_tags(&objects, name, batch);
                (Box::new(tags::Sender::new(world, &objects)), subject)
            }
            Kind::Sends(request) => {
                let objects = sends::Objects::new(world, shape, request, name);
                let adapter = Box::new(sends::Completer::new(&objects, request, batch));
                (adapter, subject::make_of_sends(world, objects, request, name, batch))
            }
            Kind::Frames { striding } => subject::make_of_frames(world.ethernet(), shape, striding, name),
            Kind::Srq | Kind::Rq => {
                let (objects, mut subject) = subject::make(world, &operation, name);
                world.greet(&objects);
                let adapter = Box::new(Adapter::new(&objects));
                // One by one, so that laps do not begin where batches do.
                subject.cycle(objects.qps.len() as u32, 1);
                (adapter, subject)
            }
        };
        let form = if form == Form::Compressed && !name.is_doorbell() { Form::Plain } else { form };
        Self { operation, adapter, subject, form }
    }

    /// Messages, or receives, of one round.
    pub const fn count(&self) -> u32 {
        self.operation.count()
    }

    /// Time of one round.
    pub fn time(&mut self) -> Duration {
        let mut time = Duration::ZERO;
        self.round(|round| {
            let start = Instant::now();
            round();
            time = start.elapsed();
        });
        time
    }

    /// Does the operation [`count`](Self::count) times, in `measured`.
    ///
    /// # Panics
    /// If the sum of the subject differs from that of the adapter.
    pub fn round(&mut self, measured: impl FnOnce(&mut dyn FnMut())) {
        self.round_of(self.count(), measured);
    }

    /// Receives so many messages, batch by batch, after as many that bring the queue to a steady state. Returns the
    /// share of WQEs that the next in memory follows.
    pub fn adjacent(&mut self, messages: u32) -> f64 {
        let batch = self.operation.batch;
        let mut run = || {
            (0..messages / batch).for_each(|_| self.round_of(batch, |round| round()));
            self.adapter.links()
        };
        let [before, after] = [run(), run()];
        let [taken, jumps] = [0, 1].map(|which| f64::from(after[which].wrapping_sub(before[which])));
        1.0 - jumps / taken
    }

    fn round_of(&mut self, count: u32, measured: impl FnOnce(&mut dyn FnMut())) {
        let Operation { what, order, batch, .. } = self.operation;
        let subject = &mut self.subject;
        if what == What::Nothing {
            return measured(&mut || subject.find_nothing(count, batch));
        }
        let written = self.adapter.complete(count, order, self.form);
        let mut reported = Sum::default();
        match what {
            What::Cycle => measured(&mut || reported = subject.cycle(count, batch)),
            What::Poll => {
                measured(&mut || reported = subject.poll(count, batch));
                subject.prepare(batch);
                subject.post(batch);
            }
            What::Post => {
                reported = subject.poll(count, batch);
                subject.prepare(batch);
                measured(&mut || subject.post(batch));
            }
            What::Nothing => {}
        }
        let expected = Sum { ids: subject.ids(count, written.ids), ..written };
        assert_eq!(reported, expected, "the subject did not return what the adapter wrote");
    }
}
