//! Completions of sends.

use mlx5_ring::completion::REQUESTER;
use mlx5_ring::sq::{self, Completion};
use rdma_core_sys as sys;

use super::Sender;
use super::completion::{SendCompletion, SendFailure};
use super::operation::Transport;
use super::queue::{Entry, SendRing};
use super::request::{Rest, WorkRequest};
use super::unsent;
use crate::cq::{Poller, Wc};
use crate::ids::SqId;
use crate::memory::Buffer;
use crate::status::WcStatus;

/// Requests that one batch returns at most, unless asked otherwise.
const BUDGET: u32 = 64;

/// Requests of one queue that are over and were not returned yet.
///
/// `[run]`: the queue is in the sender, and keeps the blocks of these requests until [`Sender::free_returned`]. There
/// is at least one request when a run becomes that of the sender.
pub(super) struct Run {
    queue: SqId,
    requests: sq::Run<WorkRequest>,
    /// How they ended: all have succeeded, or all were flushed, or there is a single one, which failed.
    status: sys::ibv_wc_status,
    vendor_err: u32,
    /// The timestamp of the completion, as the CQ has it.
    time: u64,
}

impl Run {
    /// No requests, of no queue.
    pub(super) const NONE: Self = Self::success(SqId::NONE, sq::Run::NONE, 0);

    /// Requests that have succeeded.
    #[inline(always)]
    const fn success(queue: SqId, requests: sq::Run<WorkRequest>, time: u64) -> Self {
        Self { queue, requests, status: sys::IBV_WC_SUCCESS, vendor_err: 0, time }
    }

    /// Returns the requests that a CQE of the queue completes, and `true` if these are all. Requests before a failed
    /// one have succeeded, and come first. `None` if the CQE names no outstanding request.
    fn completed(entry: &Entry, completion: Completion, time: u64) -> Option<(Self, bool)> {
        let SendRing::Direct(sq) = &entry.ring else { return None };
        let (requests, _) = sq.ring.run_to(completion.wqe_counter)?;
        let Err(failure) = completion.result else {
            return Some((Self::success(entry.id, requests, time), true));
        };
        let (status, vendor_err) = (failure.syndrome.status(), failure.vendor.into());
        entry.fail(status);
        let earlier = sq.ring.run_before(completion.wqe_counter)?;
        if !earlier.is_over() {
            return Some((Self::success(entry.id, earlier, time), false));
        }
        Some((Self { queue: entry.id, requests, status, vendor_err, time }, true))
    }

    /// Returns the requests that a completion of verbs completes; `None` if it names no outstanding request.
    fn completed_through_verbs(entry: &Entry, &Wc { wc, timestamp, .. }: &Wc) -> Option<Self> {
        let SendRing::Verbs(sq) = &entry.ring else { return None };
        let time = timestamp.unwrap_or_default();
        let requests = sq.run_to(wc.wr_id)?;
        if wc.status != sys::IBV_WC_SUCCESS {
            entry.fail(wc.status);
        }
        Some(Self { queue: entry.id, requests, status: wc.status, vendor_err: wc.vendor_err, time })
    }

    /// Requests that a reset of their queue pair has ended.
    pub(super) const fn flushed(queue: SqId, requests: sq::Run<WorkRequest>) -> Self {
        Self { queue, requests, status: sys::IBV_WC_WR_FLUSH_ERR, vendor_err: 0, time: 0 }
    }

    /// Returns `true` if all its requests were returned.
    pub(super) const fn is_over(&self) -> bool {
        self.requests.is_over()
    }
}

/// Requests that a CQE without an error has completed.
enum Success {
    /// The oldest request of a queue, which has at most one buffer.
    One(SqId, WorkRequest, u64),
    /// The run of the sender, which is over if none of its requests is returned.
    Run,
}

/// Completed requests, for each queue in the order of posting, from [`Sender::poll`].
///
/// Dropping the batch frees the CQEs. It leaves requests that were not taken to the next batch.
///
/// ```
/// # let mut world = doorbell_doc::World::new();
/// # let (queue, pool) = (world.queue(), world.pool.clone());
/// # let sender = &mut world.sender;
/// sender.send(queue, pool.take().expect("a free buffer"))?;
/// let mut over = 0;
/// while over < 1 {
///     let mut batch = sender.poll();
///     while let Some(done) = batch.next() {
///         done?;
///         over += 1;
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SendBatch<'a> {
    sender: &'a mut Sender,
    left: u32,
}

impl Sender {
    /// Returns the next request that is over, or `None` if there is none.
    ///
    /// ```
    /// # let mut world = doorbell_doc::World::new();
    /// # let (queue, pool) = (world.queue(), world.pool.clone());
    /// # let sender = &mut world.sender;
    /// use doorbell::Completions;
    ///
    /// sender.send(queue, pool.take().expect("a free buffer"))?;
    /// sender.wait(None)?;
    /// while let Some(done) = sender.next() {
    ///     // The buffer returns to its pool.
    ///     done?;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`SendFailure`] with the buffers of a request that failed.
    #[expect(clippy::should_implement_trait, reason = "the item borrows from the sender")]
    #[inline]
    pub fn next(&mut self) -> Option<Result<SendCompletion<'_>, SendFailure>> {
        self.end_batch();
        self.take_next()
    }

    /// Polls at most 64 completed requests, see [`poll_up_to`](Self::poll_up_to).
    #[inline]
    pub fn poll(&mut self) -> SendBatch<'_> {
        self.poll_up_to(BUDGET)
    }

    /// Polls at most `budget` completed requests.
    #[inline]
    pub fn poll_up_to(&mut self, budget: u32) -> SendBatch<'_> {
        SendBatch { sender: self, left: budget }
    }
}

impl SendBatch<'_> {
    /// Returns the next request that is over, or `None` if none is left or the budget is used.
    ///
    /// # Errors
    /// [`SendFailure`] with the buffers of a request that failed.
    #[expect(clippy::should_implement_trait, reason = "the item borrows from the batch")]
    #[inline(always)]
    pub fn next(&mut self) -> Option<Result<SendCompletion<'_>, SendFailure>> {
        self.left = self.left.checked_sub(1)?;
        self.sender.take_next()
    }
}

impl Drop for SendBatch<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.sender.end_batch();
    }
}

impl Sender {
    /// Frees the blocks of the requests that were returned, and publishes the consumer index.
    #[inline(always)]
    pub(super) fn end_batch(&mut self) {
        self.free_returned();
        self.cq.poller.publish();
        if self.cq.object.ended() != self.ended {
            self.finish_ended();
        }
    }

    /// Takes the next request that is over and is returned.
    #[inline(always)]
    fn take_next(&mut self) -> Option<Result<SendCompletion<'_>, SendFailure>> {
        loop {
            if self.run.is_over() {
                self.free_returned();
                match self.next_success() {
                    Some(Success::One(queue, request, time)) => {
                        // SAFETY: it was taken from its queue just now, and no other code has it.
                        return Some(Ok(unsafe { self.completion(queue, request, time) }));
                    }
                    Some(Success::Run) => continue,
                    None if self.is_idle() || !self.next_other() => return None,
                    None => {}
                }
            }
            if self.run.status != sys::IBV_WC_SUCCESS {
                match self.take_failure() {
                    Some(failure) => return Some(Err(failure)),
                    None => continue,
                }
            }
            // SAFETY: [run], which is not over.
            let request = unsafe { self.run.requests.take() };
            let Run { queue, time, .. } = self.run;
            let rest = if request.is_plain() {
                Rest::default()
            } else if request.is_unsignaled() {
                let more = request.more();
                // SAFETY: it was taken from its queue just now, and no other code has it.
                drop(unsafe { request.into_buffer() });
                self.pass_over(more);
                continue;
            } else {
                rest_of(&mut self.queues, queue, request.more(), true)
            };
            let token = request.wr_id();
            // SAFETY: it was taken from its queue just now, and no other code has it.
            let buffer = unsafe { request.into_buffer() };
            return Some(Ok(SendCompletion { queue, token, buffer, rest, time, cq: &self.cq.object }));
        }
    }

    /// Passes over an unsignaled request, which has succeeded and was taken, and those that follow it. `more` buffers
    /// after its first, and those of the others, return to their pools.
    #[cold]
    #[inline(never)]
    fn pass_over(&mut self, more: u32) {
        if more > 0 {
            // Buffers that nobody takes are dropped.
            rest_of(&mut self.queues, self.run.queue, more, true);
        }
        // SAFETY: [run].
        unsafe { self.run.requests.pass_over(WorkRequest::is_unsignaled_copy) }
    }

    /// Takes the next request of the run, which has failed and is not over; returns `None` if the program did not post
    /// it.
    #[cold]
    #[inline(never)]
    fn take_failure(&mut self) -> Option<SendFailure> {
        let start = self.run.requests.returned();
        // SAFETY: [run], which the caller says is not over.
        let request = unsafe { self.run.requests.take() };
        if request.is_internal() {
            return None;
        }
        let Run { queue, status, vendor_err, .. } = self.run;
        let entry = self.queues.get(queue.index as usize).and_then(Option::as_deref);
        let qp_num = entry.map_or(0, |entry| entry.qp.qp_num());
        let is_flushed = status == sys::IBV_WC_WR_FLUSH_ERR;
        let first = entry.filter(|_| is_flushed).and_then(|entry| entry.qp.first_failure());
        let (more, token) = (request.more(), request.wr_id());
        let described = entry.filter(|_| is_flushed).and_then(|entry| match &entry.ring {
            SendRing::Direct(sq) if entry.limits.transport == Transport::Dynamic => {
                unsent::describe(&sq.ring, start, &self.pd)
            }
            _ => None,
        });
        // SAFETY: it was taken from its queue just now, and no other code has it.
        let mut buffers = Vec::from_iter(unsafe { request.into_buffer() });
        if more > 0 {
            let mut rest = rest_of(&mut self.queues, queue, more, false);
            buffers.extend(std::iter::from_fn(|| rest.take()));
            if described.is_some() {
                buffers.extend(std::iter::from_fn(|| rest.take_opaque().map(Buffer::cast)));
            }
            // Opaque buffers return to their pools: a field for them costs each completion 25 instructions.
            while rest.take_opaque().is_some() {}
        }
        let status = WcStatus::from_raw(status);
        if let (Some(described), Some(Some(entry))) = (described, self.queues.get_mut(queue.index as usize)) {
            entry.unsent.push(described.with(token, &mut buffers));
        }
        Some(SendFailure { queue, qp_num, token, status, first, vendor_err, buffers })
    }

    /// Has the queue of the run free the blocks of the requests that were returned, and drops buffers that were not
    /// taken. The consumer index is published with them: the CQ must have room for a CQE of each free block.
    #[inline(always)]
    pub(super) fn free_returned(&mut self) {
        let Run { queue, requests, .. } = &mut self.run;
        let Some(Some(entry)) = self.queues.get_mut(queue.index as usize) else { return };
        match &mut entry.ring {
            // SAFETY: [run].
            SendRing::Direct(sq) if entry.gathered.are_claimed() => unsafe {
                sq.ring.free_returned(requests);
            },
            _ => return self.free_others(),
        }
        self.cq.poller.publish();
        if requests.is_over() {
            *queue = SqId::NONE;
        }
    }

    /// As [`free_returned`](Self::free_returned), on both paths.
    #[cold]
    fn free_others(&mut self) {
        let Run { queue, requests, .. } = &mut self.run;
        let Some(Some(entry)) = self.queues.get_mut(queue.index as usize) else { return };
        // SAFETY: [run].
        unsafe { entry.ring.free_returned(requests) }
        self.cq.poller.publish();
        entry.gathered.drop_unclaimed();
        if requests.is_over() {
            *queue = SqId::NONE;
        }
    }

    /// Returns `true` if nothing has arrived, and no queue pair has ended.
    #[inline(always)]
    fn is_idle(&self) -> bool {
        let Poller::Direct(direct) = &self.cq.poller else { return false };
        direct.cq.is_empty() && self.cq.object.ended() == self.ended && !self.has_departing
    }

    /// Takes the next CQE if it says that requests of a queue that is driven directly succeeded. A single request, and
    /// requests of which none is returned, are freed at once. The consumer index is published with them: the CQ must
    /// have room for a CQE of each free block.
    #[inline(always)]
    fn next_success(&mut self) -> Option<Success> {
        let Poller::Direct(direct) = &mut self.cq.poller else { return None };
        let cqe = direct.cq.peek_only(REQUESTER)?;
        let entry = match &mut self.queues[..] {
            [only] => only.as_deref_mut()?,
            queues => queues.get_mut(*self.routes.find(cqe.qpn())? as usize)?.as_deref_mut()?,
        };
        let Entry { ring: SendRing::Direct(sq), id, silent, .. } = entry else { return None };
        let (requests, &last) = sq.ring.run_to(cqe.wqe_counter())?;
        let time = cqe.timestamp();
        if last.is_plain() && requests.returned() as u16 == cqe.wqe_counter() {
            // SAFETY: the run is of this queue, and no other one is under way.
            unsafe { sq.ring.free_all(&requests) }
            direct.cq.advance();
            direct.cq.publish();
            return Some(Success::One(*id, last, time));
        }
        direct.cq.advance();
        if last.is_unsignaled_copy() && silent.contains(&requests) {
            // SAFETY: the run is of this queue, and no other one is under way.
            unsafe { sq.ring.free_all(&requests) }
            direct.cq.publish();
        } else {
            self.run = Run::success(*id, requests, time);
        }
        Some(Success::Run)
    }

    /// Returns the completion of a plain request.
    ///
    /// # Safety
    /// The request has succeeded, and no other code takes its buffer.
    #[inline(always)]
    unsafe fn completion(&self, queue: SqId, request: WorkRequest, time: u64) -> SendCompletion<'_> {
        let (token, rest) = (request.wr_id(), Rest::default());
        // SAFETY: the caller's request is over, and no other code takes its buffer.
        let buffer = unsafe { request.into_buffer() };
        SendCompletion { queue, token, buffer, rest, time, cq: &self.cq.object }
    }

    /// Goes on to the next CQE that completes requests; returns `false` if there is none. It skips CQEs that name no
    /// outstanding request. Requests that a reset has ended come when there is no CQE.
    #[inline(never)]
    fn next_other(&mut self) -> bool {
        loop {
            let run = match &mut self.cq.poller {
                Poller::Direct(direct) => {
                    let Some(cqe) = direct.cq.peek() else { return self.next_ended() };
                    let time = cqe.timestamp();
                    let completed = Completion::read(cqe).and_then(|completion| {
                        let queue = *self.routes.find(completion.qpn)?;
                        Run::completed(self.queues.get(queue as usize)?.as_deref()?, completion, time)
                    });
                    let (run, is_all) = completed.map_or((None, true), |(run, all)| (Some(run), all));
                    if is_all {
                        direct.cq.advance();
                    }
                    run
                }
                Poller::Verbs(cq) => {
                    let Some(wc) = cq.next() else { return self.next_ended() };
                    let queue = (wc.wc.wr_id >> 32) as usize;
                    let entry = self.queues.get(queue).and_then(Option::as_deref);
                    entry.and_then(|entry| Run::completed_through_verbs(entry, wc))
                }
            };
            if let Some(run) = run {
                self.run = run;
                return true;
            }
        }
    }
}

/// Returns the `more` buffers after the first of the oldest request of `queue` that was retired. If it is one of a
/// memory window, takes note of how it ended.
#[cold]
fn rest_of(queues: &mut [Option<Box<Entry>>], queue: SqId, more: u32, succeeded: bool) -> Rest<'_> {
    match queues.get_mut(queue.index as usize) {
        Some(Some(entry)) if WorkRequest::is_of_window(more) => {
            entry.windows.settle(succeeded);
            Rest::default()
        }
        Some(Some(entry)) => entry.gathered.rest(more),
        _ => Rest::default(),
    }
}
