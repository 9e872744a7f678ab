//! A receiver has one owner, which may be another thread, and is never shared.

use std::thread;

use doorbell::{Batch, BufferPool, Context, Receiver, MemoryRegion, SendBatch, Sender, SharedPoster, SqId};

fn shared<T: Sync>(_: &T) {}

pub fn right(mut receiver: Receiver, mut sender: Sender, queue: SqId) {
    thread::spawn(move || drop(receiver.poll()));
    thread::spawn(move || drop(sender.post(queue)));
}

pub fn what_may_be_shared(context: &Context, pool: &BufferPool, poster: &SharedPoster) {
    shared(context);
    shared(pool);
    shared(poster);
}

pub fn peers_write_what_two_threads_look_at(memory: &MemoryRegion) {
    shared(memory); //~ E0277
}

pub fn a_batch_that_two_threads_look_at(batch: &Batch<'_>) {
    shared(batch); //~ E0277
}

pub fn polled_by_two(receiver: &Receiver) {
    shared(receiver); //~ E0277
}

pub fn a_batch_of_sends_that_two_threads_look_at(batch: &SendBatch<'_>) {
    shared(batch); //~ E0277
}

pub fn posted_by_two(mut sender: Sender, queue: SqId) {
    thread::scope(|scope| {
        scope.spawn(|| drop(sender.post(queue)));
        scope.spawn(|| drop(sender.post(queue))); //~ E0499
    });
}
