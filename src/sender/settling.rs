//! Binds and revocations of memory windows that are outstanding.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::memory::Window;
use crate::window_keys::Grant;

/// The binds and revocations of a queue that are outstanding, in the order of posting and completion.
#[derive(Default)]
pub(super) struct Windows(VecDeque<Posted>);

/// A bind, or a revocation.
pub(super) struct Posted {
    pub(super) window: Arc<Window>,
    pub(super) grant: Arc<Grant>,
    pub(super) is_bind: bool,
}

impl Windows {
    /// Adds a request that was posted.
    pub(super) fn push(&mut self, posted: Posted) {
        self.0.push_back(posted);
    }

    /// Takes note of how the oldest request ended.
    #[cold]
    pub(super) fn settle(&mut self, succeeded: bool) {
        if let Some(posted) = self.0.pop_front() {
            posted.settle(succeeded);
        }
    }

    /// Takes the windows of all requests, whose end is not known.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Arc<Window>> {
        self.0.drain(..).map(|posted| {
            posted.settle(false);
            posted.window
        })
    }
}

impl Posted {
    fn settle(&self, succeeded: bool) {
        match self.is_bind {
            true => self.grant.note_bind(succeeded),
            false => self.grant.note_revoked(succeeded),
        }
    }
}
