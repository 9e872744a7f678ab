//! What the two kinds of receive queue have in common for a test.

use std::ptr::NonNull;

use mlx5_ring::bitmap;
use mlx5_ring::receive::Queue;
use mlx5_ring::rq::{self, PostError, ReceiveQueue};
use mlx5_ring::sge::Sge;
use mlx5_ring::srq::{self, SharedReceiveQueue};

use super::memory::Memory;
use super::wq::{Kind, WorkQueue};

pub type Books = [Memory; 3];

/// What a test gets back with each message, the number of a buffer. As wide as that of the safe layer: processors do not
/// scale an index to it, so that a cursor steps from one to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(align(16))]
pub struct Data(pub u32);

pub fn books(slots: u32) -> Books {
    let words = bitmap::words(slots);
    [
        Memory::new(slots as usize),
        Memory::new(slots as usize * size_of::<Data>()),
        Memory::new(words * 8),
    ]
}

pub trait Subject: Queue<Data = Data> + Sized {
    const KIND: Kind;

    fn over(device: &WorkQueue, books: &Books) -> Self;
    /// Posts all of `batch` with one doorbell; `between` runs after each, with the WQEs posted so far.
    fn post(&mut self, batch: &[(u32, Vec<Sge>)], between: impl FnMut(Result<u32, PostError>, u32));
    /// Starts to post and forgets to end it.
    fn post_and_forget(&mut self, batch: &[(u32, Vec<Sge>)]);
    /// Leaves a buffer in the spare slot, where there is such a thing.
    fn load(&mut self, id: u32, sges: &[Sge]) -> Option<Result<u32, PostError>>;
    fn release(&mut self, slot: u32);
    fn recycle(&mut self, slot: u32);
    fn ring(&mut self);
    fn vacant(&self) -> u32;
    /// WQEs handed over.
    fn counter(&self) -> u32;
    fn complete(&mut self, counter: u16) -> Option<u32>;
    /// The queue is gone: what it had.
    fn drain(&mut self, f: impl FnMut(u32));
    fn state(&self, slot: u32) -> u8;
    fn data_of(&self, slot: u32) -> u32;
    /// The buffer of a slot that is posted.
    fn posted(&self, slot: u32) -> Option<u32>;
    /// SGEs that a WQE has room for.
    fn room(&self) -> u32;
}

macro_rules! common {
    () => {
        fn post(
            &mut self,
            batch: &[(u32, Vec<Sge>)],
            mut between: impl FnMut(Result<u32, PostError>, u32),
        ) {
            let mut posting = self.posting();
            for (id, sges) in batch {
                // SAFETY: the model device touches buffers only for inline data of completed WQEs.
                let result = unsafe { posting.post(Data(*id), sges) };
                between(result, posting.posted());
            }
        }

        fn post_and_forget(&mut self, batch: &[(u32, Vec<Sge>)]) {
            let mut posting = self.posting();
            for (id, sges) in batch {
                // SAFETY: as above.
                let _ = unsafe { posting.post(Data(*id), sges) };
            }
            std::mem::forget(posting);
        }

        fn release(&mut self, slot: u32) {
            // SAFETY: tests give back what they hold.
            unsafe { self.release(slot) }
        }

        fn recycle(&mut self, slot: u32) {
            // SAFETY: as above.
            unsafe { self.recycle(slot) }
        }

        fn ring(&mut self) {
            self.ring();
        }

        fn vacant(&self) -> u32 {
            self.vacant()
        }

        fn complete(&mut self, counter: u16) -> Option<u32> {
            self.complete(counter)
        }

        fn state(&self, slot: u32) -> u8 {
            self.book().state(slot)
        }

        fn data_of(&self, slot: u32) -> u32 {
            // SAFETY: asked only for slots that were posted.
            unsafe { self.book().data(slot) }.0
        }

        fn posted(&self, slot: u32) -> Option<u32> {
            self.book().posted(slot).map(|Data(id)| id)
        }

        fn room(&self) -> u32 {
            self.max_sge()
        }
    };
}

impl Subject for SharedReceiveQueue<Data> {
    const KIND: Kind = Kind::Srq;

    fn over(device: &WorkQueue, books: &Books) -> Self {
        let layout = srq::Layout {
            buf: device.wqes.ptr(),
            dbrec: device.record.ptr(),
            stride: device.stride as u32,
            head: 0,
            tail: device.slots - 1,
        };
        let storage =
            srq::Storage { states: books[0].ptr(), data: books[1].ptr(), bitmap: books[2].ptr() };
        // SAFETY: fresh; the memory lives as long as the queue.
        unsafe { Self::new(layout, storage) }.unwrap()
    }

    common!();

    fn load(&mut self, id: u32, sges: &[Sge]) -> Option<Result<u32, PostError>> {
        // SAFETY: as with `post`.
        Some(unsafe { self.load(Data(id), sges) })
    }

    fn counter(&self) -> u32 {
        self.counter()
    }

    fn drain(&mut self, mut f: impl FnMut(u32)) {
        self.drain(|Data(id)| f(id));
    }
}

impl Subject for ReceiveQueue<Data> {
    const KIND: Kind = Kind::Rq;

    fn over(device: &WorkQueue, books: &Books) -> Self {
        let dbrec: NonNull<_> = device.record.ptr();
        let layout = rq::Layout {
            buf: device.wqes.ptr(),
            dbrec,
            wqe_cnt: device.slots,
            stride: device.stride as u32,
        };
        let storage = rq::Storage { states: books[0].ptr(), data: books[1].ptr() };
        // SAFETY: fresh; the memory lives as long as the queue.
        unsafe { Self::new(layout, storage) }.unwrap()
    }

    common!();

    fn load(&mut self, _: u32, _: &[Sge]) -> Option<Result<u32, PostError>> {
        None
    }

    fn counter(&self) -> u32 {
        self.head()
    }

    fn drain(&mut self, mut f: impl FnMut(u32)) {
        self.reset(|Data(id)| f(id));
    }
}
