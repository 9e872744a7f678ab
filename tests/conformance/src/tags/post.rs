//! Posting list operations to both twins.

use mlx5_ring::tag_list::PostError;

use super::added::Added;
use super::plan::{Lag, ListOperation};
use super::request::{Request, What};
use super::{Case, list, reference};
use crate::difference::{Difference, Result, same};
use crate::plan::Key;
use crate::subject::UNKNOWN_KEY;
use crate::tally;

/// The requests of a batch.
#[derive(Default)]
struct Batch {
    requests: Vec<Request>,
    /// An add after them for which the list has no room.
    refused: Option<Request>,
}

impl Case<'_> {
    /// Posts operations in one call.
    pub(super) fn list(&mut self, operations: &[ListOperation]) -> Result<()> {
        let before = (self.silent, self.carried);
        let Batch { mut requests, refused } = self.batch(operations)?;
        let (taken, errno, entries) = reference::post(&self.twins.libmlx5, &requests);
        if taken < requests.len() {
            let text = format!("{taken}, then {errno:?}");
            if errno != Err(libc::ENOMEM) {
                return Err(Difference::new("list operations posted", text, requests.len()));
            }
            // The queue of libmlx5 is full; the queue of doorbell has more room.
            self.tally(tally::TAG_OPERATIONS_FULL, 1);
            requests.truncate(taken);
        }
        self.posted(&requests, before);
        let results = self.subject.post(&requests);
        for (request, (result, entry)) in requests.iter().zip(results.into_iter().zip(entries)) {
            let Ok(handle) = result else {
                let error = format!("{result:?}");
                return Err(Difference::new("list operation posted", "yes", error));
            };
            self.note(request, handle, entry)?;
        }
        if let Some(request) = refused.filter(|_| errno.is_ok()) {
            self.refuse(request)?;
        }
        let [theirs, ours] = &mut self.commands;
        let devices = [&self.twins.libmlx5.base.device, &self.twins.doorbell.base.device];
        list::compare(theirs, ours, devices, self.run.tally)
    }

    /// Makes requests of the operations that are possible.
    fn batch(&mut self, operations: &[ListOperation]) -> Result<Batch> {
        let mut batch = Batch::default();
        let mut free = self.subject.free_entries();
        let mut removed = Vec::new();
        for operation in operations {
            let id = self.id();
            let (what, signaled, lag) = match operation {
                ListOperation::Add { tag, mask, buffer, signaled, lag } => {
                    let mut sge = self.sge(buffer.offset, buffer.length);
                    if buffer.key != Key::Good {
                        sge.lkey = UNKNOWN_KEY;
                    }
                    (What::Add { tag: *tag, mask: *mask, buffer: sge }, *signaled, *lag)
                }
                ListOperation::Del { index, lag } => {
                    let Some(at) = (*index as usize).checked_rem(self.added.len()) else {
                        continue;
                    };
                    let Added { entry, handle, .. } = self.added[at];
                    let request = Request { id, what: What::Del { entry, handle }, signaled: true, count: None };
                    if removed.contains(&at) {
                        continue;
                    }
                    if !self.added[at].can_be_removed() {
                        self.refuse_remove(at, request)?;
                        continue;
                    }
                    removed.push(at);
                    (request.what, true, *lag)
                }
                ListOperation::Sync { signaled, lag } => (What::Sync, *signaled, *lag),
            };
            let request = Request { id, what, signaled, count: None };
            if matches!(what, What::Add { .. }) {
                if free == 0 {
                    batch.refused = Some(request);
                    break;
                }
                free -= 1;
            }
            let signaled = self.must_ask(signaled);
            let count = self.count_of(lag);
            batch.requests.push(Request { signaled, count, ..request });
        }
        Ok(batch)
    }

    /// Returns `true` if a CQE is asked for: as planned, and before the queue of libmlx5 is full, because only a CQE
    /// makes room there. Doorbell, which has more room, asks by itself.
    fn must_ask(&mut self, asked: bool) -> bool {
        let room = self.twins.libmlx5.max_post.min(self.commands[1].blocks / 4);
        let signaled = asked || self.silent + 1 >= room;
        self.silent = if signaled { 0 } else { self.silent + 1 };
        signaled
    }

    /// A count that is not above the number of handled messages, nor below an earlier count.
    fn count_of(&mut self, lag: Lag) -> Option<u32> {
        let count = self.handled.saturating_sub(lag?).max(self.carried);
        self.carried = count;
        Some(count)
    }

    /// Updates the counts for the requests that were posted, which may not be all.
    fn posted(&mut self, requests: &[Request], (silent, carried): (u32, u32)) {
        (self.silent, self.carried) = (silent, carried);
        for request in requests {
            self.silent = if request.signaled { 0 } else { self.silent + 1 };
            self.carried = request.count.unwrap_or(self.carried);
        }
    }

    /// Neither twin takes another tag, nor rings.
    fn refuse(&mut self, request: Request) -> Result<()> {
        let (taken, errno, _) = reference::post(&self.twins.libmlx5, &[request]);
        let ours = self.subject.post(&[request]).pop().expect("a result");
        if (taken, errno, ours) != (0, Err(libc::ENOMEM), Err(PostError::ListFull)) {
            let theirs = format!("{taken} taken, {errno:?}");
            return Err(Difference::new("an add to a full list", theirs, format!("{ours:?}")));
        }
        self.tally(tally::TAG_FULL, 1);
        Ok(())
    }

    /// Doorbell refuses to remove a receive that is over, is being removed, or has matched; libmlx5 does not check.
    fn refuse_remove(&mut self, at: usize, request: Request) -> Result<()> {
        let Added { over, matched, .. } = self.added[at];
        let expected = match (over, matched) {
            (true, _) => PostError::Gone,
            _ if self.added[at].removing.is_some() => PostError::Removing,
            _ => PostError::Matched,
        };
        let result = self.subject.post(&[request]).pop().expect("a result");
        if result != Err(expected) {
            let field = "a remove of what is over or about to be";
            return Err(Difference::new(field, format!("{expected:?}"), format!("{result:?}")));
        }
        self.tally(tally::TAG_REFUSED, 1);
        Ok(())
    }

    /// An operation was posted to both.
    fn note(&mut self, request: &Request, handle: Option<mlx5_ring::tag_list::Handle>, entry: u32) -> Result<()> {
        let counted = if request.count.is_some() { tally::TAG_COUNTED } else { tally::TAG_UNCOUNTED };
        self.tally(counted, 1);
        self.carried_now = request.count.map_or(self.carried_now, |count| count as u16);
        match request.what {
            What::Add { buffer, .. } => {
                let handle = handle.expect("the handle of an append");
                same(|| "entry of an append".into(), entry.into(), handle.entry().into())?;
                self.tally(tally::TAG_ADDS, 1);
                self.tally(tally::TAG_ADDS_SILENT, u64::from(!request.signaled));
                self.tally(tally::TAG_ADDS_EMPTY, u64::from(buffer.length == 0));
                self.carried_by_add = request.count.unwrap_or(self.carried_by_add);
                self.added.push(Added {
                    id: request.id,
                    handle,
                    entry,
                    their_count: self.carried_by_add,
                    our_count: self.carried_now,
                    adding: request.signaled,
                    removing: None,
                    matched: false,
                    over: false,
                });
            }
            What::Del { handle, .. } => {
                self.tally(tally::TAG_DELS, 1);
                let added = self.added.iter_mut().find(|added| added.handle == handle);
                added.expect("a receive").removing = Some((request.id, self.carried_now));
            }
            What::Sync => {
                self.tally(tally::TAG_SYNCS, 1);
                self.tally(tally::TAG_SYNCS_SILENT, u64::from(!request.signaled));
                if request.signaled {
                    self.synchronisations.push_back((request.id, self.carried_now));
                }
            }
        }
        Ok(())
    }
}
