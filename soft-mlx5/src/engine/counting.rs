//! Which events of the transport count.

use std::collections::BTreeMap;

use mlx5_wire::cqe::{Cqe64, ErrorCqe};
use mlx5_wire::opcode::CqeOpcode;
use mlx5_wire::syndrome::Syndrome;

use crate::base::counters::Hardware;
use crate::fabric::headers::NakCode;
use crate::fabric::opcode::Operation;
use crate::objects::completion::Completion;
use crate::objects::responder::Refusal;

/// A queue whose events may count in a set of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Counted {
    /// Queue pair, or target of dynamic connections.
    Qp(u32),
    /// Receive queue of frames.
    Wq(u32),
}

/// Counters of the transport: of the device as a whole, and of the sets that drivers give to queues.
#[derive(Debug, Default)]
pub(crate) struct QueueCounters {
    device: Hardware,
    sets: BTreeMap<u8, Hardware>,
    queues: BTreeMap<Counted, u8>,
}

impl QueueCounters {
    /// Returns the counters of all queues together.
    pub fn device(&self) -> &Hardware {
        &self.device
    }

    /// Counts an event of a queue, for the device and in the set of the queue.
    pub fn count(&mut self, queue: Counted, add: impl Fn(&mut Hardware)) {
        add(&mut self.device);
        let set = self.queues.get(&queue).and_then(|set| self.sets.get_mut(set));
        set.into_iter().for_each(add);
    }

    /// Counts a CQE if it reports a failure.
    pub fn count_cqe(&mut self, completion: &Completion) {
        let cqe = Cqe64::from_bytes(&completion.cqe);
        if matches!(cqe.opcode(), CqeOpcode::RequesterError | CqeOpcode::ResponderError) {
            // CQEs of frames name no queue.
            let qpn = cqe.sop_drop_qpn.get() & 0xff_ffff;
            self.count(Counted::Qp(qpn), |counters| counters.count_failure(completion));
        }
    }

    /// Lets a queue count in a set from now on; set 0 is none.
    pub fn assign(&mut self, queue: Counted, set: u8) {
        match set {
            0 => self.queues.remove(&queue),
            _ => self.queues.insert(queue, set),
        };
    }

    /// Begins a set.
    pub fn begin(&mut self, set: u8) {
        self.sets.insert(set, Hardware::default());
    }

    /// Ends a set: its queues count in none.
    pub fn end(&mut self, set: u8) {
        self.sets.remove(&set);
        self.queues.retain(|_, of| *of != set);
    }

    /// Returns the counters of a set.
    pub fn set(&mut self, set: u8) -> Option<&mut Hardware> {
        self.sets.get_mut(&set)
    }
}

impl Hardware {
    /// Counts a CQE if it reports a failure.
    pub(crate) fn count_failure(&mut self, completion: &Completion) {
        let opcode = Cqe64::from_bytes(&completion.cqe).opcode();
        let requester = match opcode {
            CqeOpcode::RequesterError => true,
            CqeOpcode::ResponderError => false,
            _ => return,
        };
        let syndrome = ErrorCqe::from_bytes(&completion.cqe).syndrome;
        let all = if requester { &mut self.req_cqe_error } else { &mut self.resp_cqe_error };
        *all += 1;
        let is = |other: Syndrome| syndrome == other.get();
        let kind = match requester {
            true if is(Syndrome::WR_FLUSH) => &mut self.req_cqe_flush_error,
            true if is(Syndrome::REMOTE_INVAL_REQ) => &mut self.req_remote_invalid_request,
            true if is(Syndrome::REMOTE_ACCESS) => &mut self.req_remote_access_errors,
            true if is(Syndrome::TRANSPORT_RETRY_EXC) => &mut self.req_transport_retries_exceeded,
            true if is(Syndrome::RNR_RETRY_EXC) => &mut self.req_rnr_retries_exceeded,
            false if is(Syndrome::WR_FLUSH) => &mut self.resp_cqe_flush_error,
            false if is(Syndrome::LOCAL_LENGTH) => &mut self.resp_local_length_error,
            _ => return,
        };
        *kind += 1;
    }

    /// Counts a request that a responder executed or refused.
    pub(crate) fn count_request<T>(&mut self, operation: Operation, outcome: &Result<T, Refusal>) {
        match outcome {
            Ok(_) if operation == Operation::ReadRequest => self.rx_read_requests += 1,
            Ok(_) if operation.has_atomic_eth() => self.rx_atomic_requests += 1,
            Ok(_) => self.rx_write_requests += u64::from(operation.starts_write()),
            Err(Refusal::Fatal(NakCode::RemoteAccess, _)) => self.resp_remote_access_errors += 1,
            Err(_) => {}
        }
    }
}
