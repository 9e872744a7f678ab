//! Completions of sends.

use mlx5_ring::sq::{self, Completion};
use rdma_core_sys as sys;

use super::queue::SendRing;
use super::request::{Rest, WorkRequest};
use super::{Sender, SqId};
use crate::memory::Buffer;
use crate::poller::Poller;
use crate::receiver::wc_status;
use crate::status::WcStatus;

/// Requests that one batch returns at most, unless asked otherwise.
const BUDGET: u32 = 64;

/// A completed request, successful or not.
///
/// ```
/// # let mut world = doorbell_doc::Sends::new();
/// # let (queue, pool) = (world.queue(), world.pool.clone());
/// # let sender = &mut world.sender;
/// sender.post(queue)?.token(7).send(pool.take().expect("a free buffer"))?;
/// let mut buffer = None;
/// while buffer.is_none() {
///     let mut batch = sender.poll();
///     while let Some(done) = batch.next() {
///         if !done.status.is_success() {
///             println!("request {}: {}, vendor error {:#x}", done.token, done.status, done.vendor_err);
///         }
///         // The buffer is the program's again, whatever became of the request.
///         buffer = done.buffer;
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
#[must_use = "a send may have failed"]
pub struct SendCompletion<'a> {
    /// The queue of the request.
    pub queue: SqId,
    /// The number set with [`Posting::token`](crate::Posting::token), or 0.
    pub token: u64,
    /// The buffer, or the first of several; `None` if the bytes were copied.
    pub buffer: Option<Buffer>,
    /// The status of the request.
    pub status: WcStatus,
    /// The device's own error code; 0 for a success or a reset.
    pub vendor_err: u32,
    rest: Rest<'a>,
}

impl SendCompletion<'_> {
    /// Takes the next buffer of a request with several buffers.
    ///
    /// ```
    /// # let mut world = doorbell_doc::Sends::new();
    /// # let (queue, pool) = (world.queue(), world.pool.clone());
    /// # let sender = &mut world.sender;
    /// let (header, payload) = (pool.take().expect("free"), pool.take().expect("free"));
    /// sender.post(queue)?.send([header, payload])?;
    /// let mut back = 0;
    /// while back == 0 {
    ///     if let Some(mut done) = sender.poll().next() {
    ///         let mut next = done.buffer.take();
    ///         while let Some(_buffer) = next {
    ///             back += 1;
    ///             next = done.next_buffer();
    ///         }
    ///     }
    /// }
    /// assert_eq!(back, 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Buffers that are not taken return to their pools with the next completion, or at the end of the batch.
    pub fn next_buffer(&mut self) -> Option<Buffer> {
        self.rest.take()
    }
}

/// Requests of one queue that are over and were not returned yet.
///
/// `[run]`: the queue is in the sender, and keeps the blocks of these requests until [`Sender::free_returned`].
pub(super) struct Run {
    queue: SqId,
    requests: sq::Run<WorkRequest>,
    /// How the last request ended, which the CQE names.
    status: sys::ibv_wc_status,
    vendor_err: u32,
    /// How the requests before it ended.
    earlier: sys::ibv_wc_status,
}

impl Run {
    /// No requests, of no queue.
    pub(super) const NONE: Self = Self::success(SqId::NONE, sq::Run::NONE);

    /// Requests that have succeeded.
    #[inline(always)]
    const fn success(queue: SqId, requests: sq::Run<WorkRequest>) -> Self {
        let status = sys::IBV_WC_SUCCESS;
        Self { queue, requests, status, vendor_err: 0, earlier: status }
    }

    /// Requests that a reset of their queue pair has ended.
    pub(super) const fn flushed(queue: SqId, requests: sq::Run<WorkRequest>) -> Self {
        let status = sys::IBV_WC_WR_FLUSH_ERR;
        Self { queue, requests, status, vendor_err: 0, earlier: status }
    }

    /// Returns `true` if all its requests were returned.
    pub(super) const fn is_over(&self) -> bool {
        self.requests.is_over()
    }
}

/// Completed requests, for each queue in the order of posting, from [`Sender::poll`].
///
/// Dropping the batch frees the CQEs. It leaves requests that were not taken to the next batch.
///
/// ```
/// # let mut world = doorbell_doc::Sends::new();
/// # let (queue, pool) = (world.queue(), world.pool.clone());
/// # let sender = &mut world.sender;
/// sender.post(queue)?.send(pool.take().expect("a free buffer"))?;
/// let mut over = 0;
/// while over < 1 {
///     let mut batch = sender.poll();
///     while let Some(done) = batch.next() {
///         assert!(done.status.is_success(), "{}", done.status);
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
    /// Returns the next completed request, or `None` if none is left or the budget is used.
    #[expect(clippy::should_implement_trait, reason = "the item borrows from the batch")]
    #[inline(always)]
    pub fn next(&mut self) -> Option<SendCompletion<'_>> {
        self.left = self.left.checked_sub(1)?;
        let sender = &mut *self.sender;
        let request = loop {
            // SAFETY: [run].
            if let Some(request) = unsafe { sender.run.requests.next() } {
                break request;
            }
            if !sender.next_run() {
                return None;
            }
        };
        let Run { queue, ref requests, status, vendor_err, earlier } = sender.run;
        let (status, vendor_err) =
            if requests.is_over() { (status, vendor_err) } else { (earlier, 0) };
        let more = request.more();
        let rest = if more == 0 { Rest::default() } else { sender.rest_of(queue, more) };
        Some(SendCompletion {
            queue,
            token: request.wr_id(),
            // SAFETY: it was taken from its queue just now, and no other code has it.
            buffer: unsafe { request.into_buffer() },
            status: WcStatus::from_raw(status),
            vendor_err,
            rest,
        })
    }
}

impl Drop for SendBatch<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.sender.free_returned();
        if let Poller::Direct(direct) = &mut self.sender.poller {
            direct.cq.publish();
        }
        if self.sender.cq.ended() != self.sender.ended {
            self.sender.finish_ended();
        }
    }
}

impl Sender {
    /// Has the queue of the run free the blocks of the requests that were returned, and what was not taken of the last one.
    #[inline(always)]
    pub(super) fn free_returned(&mut self) {
        let Run { queue, requests, .. } = &mut self.run;
        if let Some(Some(entry)) = self.queues.get_mut(queue.index as usize) {
            // SAFETY: [run].
            unsafe { entry.ring.free_returned(requests) }
            entry.gathered.drop_unclaimed();
            if requests.is_over() {
                *queue = SqId::NONE;
            }
        }
    }

    /// Goes on with the next requests that are over; returns `false` if there are none.
    #[inline(always)]
    fn next_run(&mut self) -> bool {
        self.free_returned();
        self.next_success() || self.next_other()
    }

    /// Returns the `more` buffers after the first of the oldest request of `queue` that was retired.
    #[cold]
    fn rest_of(&mut self, queue: SqId, more: u32) -> Rest<'_> {
        match self.queues.get_mut(queue.index as usize) {
            Some(Some(entry)) => entry.gathered.rest(more),
            _ => Rest::default(),
        }
    }

    /// Takes the next CQE if it says that a request of a queue that is driven directly succeeded; returns `true` if so.
    #[inline(always)]
    fn next_success(&mut self) -> bool {
        let Poller::Direct(direct) = &mut self.poller else { return false };
        let Some(cqe) = direct.cq.peek_requester() else { return false };
        let Some(queue) =
            (if self.queues.len() == 1 { Some(0) } else { self.routes.find(cqe.qpn()).copied() })
        else {
            return false;
        };
        let Some(Some(entry)) = self.queues.get_mut(queue as usize) else { return false };
        let SendRing::Direct(sq) = &mut entry.ring else { return false };
        let Some(requests) = sq.ring.run_to(cqe.wqe_counter()) else { return false };
        self.run = Run::success(entry.id, requests);
        direct.cq.advance();
        true
    }

    /// Takes CQEs up to the next one that completes requests; returns `false` if there is none. It skips CQEs that name no
    /// outstanding request. Requests that a reset has ended come when there is no CQE.
    #[inline(never)]
    fn next_other(&mut self) -> bool {
        loop {
            let (entry, requests, status, vendor_err) = match &mut self.poller {
                Poller::Direct(direct) => {
                    let Some(cqe) = direct.cq.next() else { return self.next_ended() };
                    let Some(completion) = Completion::read(cqe) else { continue };
                    let Some(&queue) = self.routes.find(completion.qpn) else { continue };
                    let Some(Some(entry)) = self.queues.get_mut(queue as usize) else { continue };
                    let SendRing::Direct(sq) = &mut entry.ring else { continue };
                    let Some(requests) = sq.ring.run_to(completion.wqe_counter) else {
                        continue;
                    };
                    match completion.result {
                        Ok(_) => (entry, requests, sys::IBV_WC_SUCCESS, 0),
                        Err(failure) => {
                            (entry, requests, wc_status(failure.syndrome), failure.vendor.into())
                        }
                    }
                }
                Poller::Verbs(cq) => {
                    let Some(wc) = cq.next() else { return self.next_ended() };
                    let sys::ibv_wc { wr_id, status, vendor_err, .. } = wc.wc;
                    let queue = (wr_id >> 32) as u32;
                    let Some(Some(entry)) = self.queues.get_mut(queue as usize) else { continue };
                    let SendRing::Verbs(sq) = &entry.ring else { continue };
                    let Some(requests) = sq.run_to(wr_id) else { continue };
                    (entry, requests, status, vendor_err)
                }
            };
            if status != sys::IBV_WC_SUCCESS {
                entry.fail();
            }
            self.run = Run { status, vendor_err, ..Run::success(entry.id, requests) };
            return true;
        }
    }
}
