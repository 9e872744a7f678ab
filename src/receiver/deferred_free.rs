//! Buffers that the device may still write, kept until it cannot.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use crate::memory::{Buffer, Pool};

/// Buffers left in a queue whose receiver is gone. They go back to their pools when the queue has been
/// destroyed, and never otherwise: then the pools themselves stay for ever.
#[derive(Default)]
pub(crate) struct DeferredFree(Mutex<Vec<Kept>>);

/// A buffer that the queue may still write.
enum Kept {
    /// By its first byte, with the pool that it keeps.
    Owned(ManuallyDrop<Arc<Pool>>, NonNull<u8>),
    /// One of which frames may have been taken.
    Shared(ManuallyDrop<Arc<Buffer>>),
}

// SAFETY: the memory of the buffers is not touched here; their addresses go back to pools.
unsafe impl Send for DeferredFree {}
// SAFETY: as above; the list is locked.
unsafe impl Sync for DeferredFree {}

impl DeferredFree {
    /// Keeps the buffer that starts at `start`.
    pub(crate) fn keep(&self, pool: Arc<Pool>, start: NonNull<u8>) {
        self.push(Kept::Owned(ManuallyDrop::new(pool), start));
    }

    /// Keeps a buffer that others may read, too.
    pub(crate) fn keep_shared(&self, buffer: Arc<Buffer>) {
        self.push(Kept::Shared(ManuallyDrop::new(buffer)));
    }

    fn push(&self, kept: Kept) {
        self.0.lock().expect("nothing panics while holding it").push(kept);
    }

    /// The queue was destroyed: the device writes none of the buffers any more.
    pub(crate) fn release(&mut self) {
        let deferred = self.0.get_mut().expect("nothing panics while holding it");
        for kept in deferred.drain(..) {
            match kept {
                Kept::Owned(pool, start) => {
                    pool.put(start);
                    drop(ManuallyDrop::into_inner(pool));
                }
                Kept::Shared(buffer) => drop(ManuallyDrop::into_inner(buffer)),
            }
        }
    }

    /// The queue is the caller's, who destroys it at an unknown time: the buffers are not used
    /// again. Their pools need not stay, for memory that is deregistered is out of the device's reach.
    pub(crate) fn abandon(&mut self) {
        let deferred = self.0.get_mut().expect("nothing panics while holding it");
        for kept in deferred.drain(..) {
            if let Kept::Owned(pool, _) = kept {
                drop(ManuallyDrop::into_inner(pool));
            }
        }
    }
}
