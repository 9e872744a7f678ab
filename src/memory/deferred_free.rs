//! Buffers that the device may still write, kept until it cannot.

use std::mem::{self, ManuallyDrop};
use std::sync::{Arc, Mutex};

use super::{Buffer, Window};

/// Buffers left in a queue whose receiver was dropped. They go back to their pools when the queue has been
/// destroyed, and never otherwise: then the pools themselves stay for ever.
#[derive(Default)]
pub(crate) struct DeferredFree(ManuallyDrop<Mutex<Vec<Kept>>>);

/// A buffer that the queue may still write.
enum Kept {
    Owned(Buffer),
    /// A buffer of which frames may have been taken.
    Shared(Arc<Buffer>),
    /// A window of which a bind or an invalidation was posted.
    Window(Arc<Window>),
}

impl DeferredFree {
    /// Keeps a buffer.
    pub(crate) fn keep(&self, buffer: Buffer) {
        self.push(Kept::Owned(buffer));
    }

    /// Keeps a buffer that others may read, too.
    pub(crate) fn keep_shared(&self, buffer: Arc<Buffer>) {
        self.push(Kept::Shared(buffer));
    }

    /// Keeps a window.
    pub(crate) fn keep_window(&self, window: Arc<Window>) {
        self.push(Kept::Window(window));
    }

    fn push(&self, kept: Kept) {
        self.0.lock().expect("nothing panics while holding it").push(kept);
    }

    fn take(&mut self) -> Vec<Kept> {
        mem::take(self.0.get_mut().expect("nothing panics while holding it"))
    }

    /// The queue was destroyed: the device writes none of the buffers any more.
    pub(crate) fn release(&mut self) {
        drop(self.take());
    }

    /// The queue is the caller's, who destroys it at an unknown time: the buffers are not used
    /// again. Their pools need not stay, for memory that is deregistered is out of the device's reach.
    pub(crate) fn abandon(&mut self) {
        for kept in self.take() {
            match kept {
                Kept::Owned(buffer) => buffer.abandon(),
                Kept::Shared(buffer) => mem::forget(buffer),
                Kept::Window(window) => mem::forget(window),
            }
        }
    }
}
