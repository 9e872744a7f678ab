//! Buffers that the device may still write, kept until it cannot.

use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex};

use crate::memory::Pool;

/// Buffers left in a queue whose receiver is gone. They go back to their pools when the queue has been
/// destroyed, and never otherwise: then the pools themselves stay for ever.
#[derive(Default)]
pub(crate) struct Parked(Mutex<Vec<(ManuallyDrop<Arc<Pool>>, u32)>>);

impl Parked {
    /// Keeps a buffer.
    pub(crate) fn park(&self, pool: Arc<Pool>, index: u32) {
        self.0
            .lock()
            .expect("nothing panics while holding it")
            .push((ManuallyDrop::new(pool), index));
    }

    /// The queue was destroyed: the device writes none of the buffers any more.
    pub(crate) fn release(&mut self) {
        let parked = self.0.get_mut().expect("nothing panics while holding it");
        for (pool, index) in parked.drain(..) {
            pool.put(index);
            drop(ManuallyDrop::into_inner(pool));
        }
    }

    /// The queue is the caller's, who destroys it at a time that nobody tells: the buffers are not used
    /// again. Their pools need not stay, for memory that is deregistered is out of the device's reach.
    pub(crate) fn abandon(&mut self) {
        let parked = self.0.get_mut().expect("nothing panics while holding it");
        parked.drain(..).for_each(|(pool, _)| drop(ManuallyDrop::into_inner(pool)));
    }
}
