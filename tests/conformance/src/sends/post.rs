//! Posting requests to both twins.

use rdma_core_sys as sys;

use super::build::build;
use super::plan::{self, Kind};
use super::request::{Change, Destination, Request};
use super::twin::{Known, Twin};
use super::{Case, keys_of, queue, subject};
use crate::difference::{Difference, Result, same};
use crate::plan::{Entry, Key};
use crate::session::Case as _;
use crate::sizes::SOURCE;
use crate::subject::UNKNOWN_KEY;
use crate::{tally, verbs};

impl Case<'_> {
    /// Brings the index of the send queues near its wrap.
    pub(super) fn blocks_lead(&mut self) -> Result<()> {
        let request = plan::Request {
            kind: Kind::Send,
            pieces: Vec::new(),
            at: 0,
            good_key: true,
            inline: false,
            signaled: true,
            solicited: false,
            fence: false,
        };
        for qp in 0..self.senders.len() {
            let mut left = self.shape.lead;
            while left > 0 {
                let count = left.min(self.twins.libmlx5.cap.max_send_wr).clamp(1, 64);
                self.post(qp, &vec![request.clone(); count as usize])?;
                self.work()?;
                self.poll(u32::MAX)?;
                left = left.saturating_sub(count);
            }
        }
        Ok(())
    }

    /// Posts requests in one call.
    pub(super) fn post(&mut self, qp: usize, planned: &[plan::Request]) -> Result<()> {
        let silent = self.senders[qp].silent;
        // The ring has one way to post. After an error in a batch libmlx5 overwrites the last request with its parts.
        let most = self.twins.libmlx5.cap.max_send_wr as usize;
        let fits = self.senders[qp].outstanding.len() + planned.len() <= most;
        // `ibv_wr_*` binds no windows of type 1.
        let has_type_1 = planned.iter().any(|request| matches!(request.kind, Kind::WindowType1 | Kind::UnbindType1));
        let is_built = self.subject.is_none() && fits && !has_type_1 && self.next_id % 2 == 0;
        let was_bound = self.senders[qp].is_bound;
        self.senders[qp].queues.iter_mut().for_each(queue::Queue::look_at_register);
        let mut requests: Vec<_> = planned.iter().map(|request| self.request(qp, request)).collect();
        for request in &mut requests {
            request.signaled = self.must_ask(qp, request);
        }
        if is_built && self.next_id % 8 == 0 {
            for twin in [&self.twins.libmlx5, &self.twins.doorbell] {
                // SAFETY: as in `post_by_verbs`.
                unsafe { self.build(qp, twin, &requests, true) };
            }
            // Blocks that are free were written to.
            self.senders[qp].queues[1].look_at_ring();
        }
        let (taken, errno) = self.post_by_verbs(qp, &self.twins.libmlx5, &mut requests, is_built);
        match errno {
            0 => {}
            libc::ENOMEM => self.run.tally.add(tally::SEND_FULL, 1),
            _ => {
                let count = requests.len();
                return Err(Difference::new("requests posted", format!("errno {errno}"), count));
            }
        }
        if self.subject.is_none() {
            let ours = self.post_by_verbs(qp, &self.twins.doorbell, &mut requests, is_built);
            same(|| "requests posted".into(), taken as u64, ours.0 as u64)?;
            same(|| "errno of posting".into(), errno as u64, ours.1 as u64)?;
        }
        requests.truncate(taken);
        let last =
            requests.iter().rev().filter(|request| request.kind == Kind::Window).find_map(|request| request.change);
        self.senders[qp].is_bound = last.map_or(was_bound, |change| change.bytes.is_some());
        self.senders[qp].silent = silent;
        for request in &requests {
            self.must_ask(qp, request);
        }
        if let Some(subject) = &mut self.subject {
            let results = subject.post(qp, self.shape.datagrams, &requests);
            if let Some(refused) = results.iter().find(|result| result.is_err()) {
                return Err(Difference::new("request posted", "yes", format!("{refused:?}")));
            }
        }
        for request in requests {
            self.count_request(&request, is_built);
            self.senders[qp].outstanding.push_back(request);
        }
        let [theirs, ours] = &mut self.senders[qp].queues;
        queue::compare(theirs, ours, is_built, self.run.tally)
    }

    /// Makes a request that fits from a planned one.
    fn request(&mut self, qp: usize, planned: &plan::Request) -> Request {
        let plan::Request { kind, at, good_key, inline, signaled, solicited, fence, .. } = *planned;
        let twin = &self.twins.libmlx5;
        let keys = twin.keys;
        let reads = matches!(kind, Kind::Read | Kind::FetchAdd(_) | Kind::CompareSwap(..));
        let atomic = reads && kind != Kind::Read;
        let inline = inline && !reads;
        let mut room = match (inline, self.shape.datagrams) {
            (true, _) => twin.cap.max_inline_data.min(900),
            (false, true) => 900,
            (false, false) => u32::MAX,
        };
        let known = match (inline, reads) {
            // The processor reads inline bytes.
            (true, _) => Known { address: self.memory.source.address(), ..keys.source },
            (false, true) => keys.results,
            (false, false) => keys.source,
        };
        let sge = |piece: &Entry| {
            let length = piece.length.min(room);
            room -= length;
            let lkey = if piece.key == Key::Good { known.key } else { UNKNOWN_KEY };
            let addr = known.address + u64::from(piece.offset);
            sys::ibv_sge { addr, length, lkey }
        };
        let mut sges: Vec<_> = planned.pieces.iter().map(sge).collect();
        let change = self.change(qp, kind, at);
        if change.is_some() {
            sges.clear();
        }
        if atomic {
            let addr = known.address + u64::from(at);
            sges = vec![sys::ibv_sge { addr, length: 8, lkey: known.key }];
        }
        debug_assert!(SOURCE >= plan::END as usize);
        self.next_id += 1;
        let rkey = if good_key { keys.target.key } else { UNKNOWN_KEY };
        let remote = (keys.target.address + u64::from(at), rkey);
        Request { id: self.next_id, kind, sges, inline, remote, signaled, solicited, fence, change }
    }

    /// Makes the change of a key that a request of this kind makes: of bytes of the results from `at` on, with rights
    /// by the same number.
    fn change(&mut self, qp: usize, kind: Kind, at: u32) -> Option<Change> {
        let results = self.twins.libmlx5.keys.results;
        let windows = keys_of(&self.twins.libmlx5, qp);
        let sender = &mut self.senders[qp];
        let (is_type_2, is_bind) = match kind {
            Kind::Window => (true, !sender.is_bound),
            Kind::WindowType1 => (false, true),
            Kind::UnbindType1 => (false, false),
            _ => return None,
        };
        let key = &mut sender.keys[usize::from(is_type_2)];
        let before = *key;
        if !is_type_2 || is_bind {
            *key = sys::ibv_inc_rkey(before);
        }
        let bits = [
            sys::IBV_ACCESS_REMOTE_READ,
            sys::IBV_ACCESS_REMOTE_WRITE,
            sys::IBV_ACCESS_REMOTE_ATOMIC,
            sys::IBV_ACCESS_LOCAL_WRITE,
            sys::IBV_ACCESS_ZERO_BASED,
        ];
        let access =
            bits.iter().enumerate().filter(|(bit, _)| (at / 8) >> bit & 1 != 0).map(|(_, access)| access).sum();
        let bytes = is_bind.then(|| (results.address + u64::from(at), 8 + at, results.key));
        if is_type_2 {
            sender.is_bound = is_bind;
        }
        // libmlx5 takes the key of a window from the window, which this program leaves as it was made.
        let named = if kind == Kind::Window && !is_bind { before } else { windows[usize::from(is_type_2)] };
        Some(Change { keys: [named, *key], bytes, access })
    }

    /// Returns `true` if a request asks for a CQE: as planned, when doorbell would ask by itself, or before the queue
    /// of libmlx5 is full of requests without a CQE.
    fn must_ask(&mut self, qp: usize, request: &Request) -> bool {
        let blocks = request.blocks(self.shape.datagrams);
        let capacity = self.senders[qp].queues[1].capacity();
        let most = subject::max_wqe_blocks(&self.twins.libmlx5, &self.shape).min(capacity);
        let max_silent = (capacity - most).min(capacity / 4);
        let [silent, requests] = self.senders[qp].silent;
        let asks =
            request.signaled || silent + blocks > max_silent || requests + 1 >= self.twins.libmlx5.cap.max_send_wr;
        self.senders[qp].silent = if asks { [0; 2] } else { [silent + blocks, requests + 1] };
        asks
    }

    fn destination(&self, qp: usize, twin: &Twin) -> Option<Destination> {
        let to = || Destination { ah: twin.ah, qpn: twin.base.number(twin.base.peers[qp]) };
        self.shape.datagrams.then(to)
    }

    /// Posts with one call of `ibv_post_send`, or with `ibv_wr_*`; returns how many were taken, and the errno.
    fn post_by_verbs(&self, qp: usize, twin: &Twin, requests: &mut [Request], is_built: bool) -> (usize, i32) {
        let to = self.destination(qp, twin);
        if is_built {
            // SAFETY: the QP is alive and was made with these operations, and the memory that they name is read only
            // while the device rests.
            let errno = unsafe { self.build(qp, twin, requests, false) };
            return (if errno == 0 { requests.len() } else { 0 }, errno);
        }
        let mut wrs: Vec<_> =
            requests.iter_mut().map(|request| request.wr(to.as_ref(), twin.windows.get(qp))).collect();
        // SAFETY: the QP is alive, the list can be read, and the memory that it names is read only while the device
        // rests.
        let post = |first, bad: &mut _| unsafe { sys::ibv_post_send(twin.base.qps[qp], first, bad) };
        verbs::post_list(&mut wrs, |wr| &mut wr.next, post)
    }

    /// Builds requests with `ibv_wr_*`; returns the errno.
    ///
    /// # Safety
    /// As for [`build`].
    unsafe fn build(&self, qp: usize, twin: &Twin, requests: &[Request], is_aborted: bool) -> i32 {
        let to = self.destination(qp, twin);
        // SAFETY: the caller's QP and memory.
        unsafe { build(twin.base.qps[qp], to.as_ref(), twin.windows.get(qp), requests, is_aborted) }
    }

    fn count_request(&mut self, request: &Request, is_built: bool) {
        let (name, opaque) = match request.kind {
            Kind::Send | Kind::SendImmediate(_) if self.shape.datagrams => (tally::SEND_DATAGRAMS, tally::OPAQUE_SENDS),
            Kind::Send | Kind::SendImmediate(_) | Kind::SendInvalidate(_) => (tally::SEND_SENDS, tally::OPAQUE_SENDS),
            Kind::Write | Kind::WriteImmediate(_) => (tally::SEND_WRITES, tally::OPAQUE_WRITES),
            Kind::Read => (tally::SEND_READS, tally::OPAQUE_READS),
            Kind::FetchAdd(_) | Kind::CompareSwap(..) => (tally::SEND_ATOMICS, tally::OPAQUE_ATOMICS),
            Kind::Window | Kind::WindowType1 | Kind::UnbindType1 => (tally::SEND_CHANGES, tally::OPAQUE_SENDS),
        };
        if self.twins.payload {
            self.run.tally.add(name, 1);
            if !request.inline && request.sges.iter().any(|sge| sge.length > 0) {
                self.shape.backing.count(self.run.tally, opaque);
            }
            self.run.tally.add(tally::SEND_INLINE, u64::from(request.inline));
            self.run.tally.add(tally::SEND_BUILT, u64::from(is_built));
        }
    }
}
