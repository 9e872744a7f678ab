//! The subjects of the measurements.
//!
//! Each subject works as a careful program would: everything that can be prepared once is not made per message,
//! and work requests, where there are any, lie ready in memory for every buffer.

mod frames;
mod libmlx5;
mod lists;
mod ring;
mod safe;
mod sends;
mod shared;
mod tag_list;
mod tag_ops;

use crate::adapter::{Complete, Form};
use crate::name::{Calls, Name};
use crate::operation::{Operation, What};
use crate::sum::Sum;
use crate::tags;
use crate::world::{Locks, Objects, Request, Shape, World};

/// A queue and a CQ, driven in one of the ways. All buffers are posted at first.
pub trait Subject {
    /// Takes `count` messages, and does not give their buffers back.
    fn poll(&mut self, count: u32, batch: u32) -> Sum {
        unreachable!("not measured: {count}, {batch}")
    }
    /// Posts all buffers, of which none is posted, in the order of their addresses.
    fn post(&mut self, batch: u32) {
        unreachable!("not measured: {batch}")
    }
    /// Takes `count` messages and posts the buffer of each again, batch by batch.
    fn cycle(&mut self, count: u32, batch: u32) -> Sum;
    /// Looks `count` times for at most `batch` messages, and finds none.
    fn find_nothing(&mut self, count: u32, batch: u32) {
        unreachable!("not measured: {count}, {batch}")
    }
    /// Prepares the work requests for [`post`](Self::post).
    fn prepare(&mut self, batch: u32) {
        let _ = batch;
    }
    /// The sum of `wr_id` of `count` messages. The addresses of their buffers sum up to `addresses`.
    fn ids(&self, count: u32, addresses: u64) -> u64 {
        let _ = count;
        addresses
    }
}

/// Makes a subject on fresh objects.
pub fn make(world: &World, operation: &Operation, name: Name) -> (Objects, Box<dyn Subject>) {
    // A subject may hold one buffer more than can be posted if that buffer need not be posted by itself.
    let spare = operation.what == What::Cycle;
    if (name, operation.form) == (Name::Lending, Form::Compressed) {
        return safe::make_compressed(world, operation.shape, safe::Way::Lend);
    }
    let objects = world.objects(operation.shape, name.locks());
    // The drop-in and its reference: the program is an ordinary one.
    let writes_sges = name.locks() == Locks::Default;
    let subject = match name {
        Name::Ring => ring::make(&objects, spare, operation.form),
        Name::Lending => safe::make(world, &objects, safe::Way::Lend),
        Name::Owned => safe::make(world, &objects, safe::Way::Post),
        Name::Replaced => safe::make(world, &objects, safe::Way::Replace),
        Name::Shared(givers) => shared::make(world, &objects, givers, true),
        Name::Mutex(givers) => shared::make(world, &objects, givers, false),
        Name::Libmlx5(_) | Name::DropIn(Calls::PollCq) => libmlx5::make(&objects, false, writes_sges),
        Name::Libmlx5NextPoll(_) | Name::DropIn(Calls::NextPoll) => libmlx5::make(&objects, true, writes_sges),
        Name::Libmlx5SrqOps(_) => unreachable!("drives tag lists"),
        Name::Sender | Name::PostSend(_) | Name::WrBuilders(_) | Name::DropIn(_) => {
            unreachable!("sends")
        }
        Name::Frames => unreachable!("receives frames"),
    };
    (objects, subject)
}

/// Makes a subject on a fresh tag list.
pub fn make_of_tags(objects: &tags::Objects, name: Name, batch: u32) -> Box<dyn Subject> {
    match name {
        Name::Ring => tag_list::make(objects, batch),
        Name::Libmlx5SrqOps(_) => tag_ops::make(objects, batch),
        _ => unreachable!("drives no tag list"),
    }
}

/// Makes a subject that sends.
pub fn make_of_sends(
    world: &World,
    objects: crate::sends::Objects,
    request: Request,
    name: Name,
    batch: u32,
) -> Box<dyn Subject> {
    sends::make(world, objects, request, name, batch)
}

/// Makes a subject that receives frames, and their sender.
pub fn make_of_frames(
    world: &World,
    shape: Shape,
    striding: bool,
    name: Name,
) -> (Box<dyn Complete>, Box<dyn Subject>) {
    if name == Name::Frames {
        let (receiver, _rule, feed) = crate::frames::receiver(world, shape, striding);
        return (Box::new(feed), Box::new(frames::Frames { receiver, _rule }));
    }
    let (objects, feed) = crate::frames::objects(world, shape, name.locks(), striding);
    (Box::new(feed), libmlx5::make(&objects, false, false))
}

/// A completion that no subject should see.
#[cold]
#[inline(never)]
fn unexpected() -> ! {
    panic!("a completion that is not a message");
}
