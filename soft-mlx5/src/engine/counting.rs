//! Which events of the transport count.

use mlx5_wire::cqe::{Cqe64, ErrorCqe};
use mlx5_wire::opcode::CqeOpcode;
use mlx5_wire::syndrome::Syndrome;

use crate::base::counters::Hardware;
use crate::fabric::headers::NakCode;
use crate::fabric::opcode::Operation;
use crate::objects::completion::Completion;
use crate::objects::responder::Refusal;

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
