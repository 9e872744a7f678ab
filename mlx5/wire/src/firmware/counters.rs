//! Counters of queues.

use super::command::Request;

fields! {
    /// QUERY_Q_COUNTER.
    pub struct QueryQCounter: 0x20 {
        /// Head.
        request: Request = 0x00,
        /// The counters are zero afterwards.
        clear: bool = 0x18[31],
        /// The answer is the sum of all sets.
        aggregate: bool = 0x18[30],
        /// Set of counters.
        set: u8 = 0x1c[7:0],
    }
}

fields! {
    /// QUERY_Q_COUNTER, answer. Linux shows the counters under these names in sysfs.
    pub struct QueryQCounterReply: 0x100 {
        /// WRITE requests executed.
        rx_write_requests: u32 = 0x10,
        /// READ requests executed.
        rx_read_requests: u32 = 0x18,
        /// Atomic requests executed.
        rx_atomic_requests: u32 = 0x20,
        /// Messages and frames that found no receive WQE.
        out_of_buffer: u32 = 0x30,
        /// Requests that came before a request that is missing.
        out_of_sequence: u32 = 0x38,
        /// Requests that came again.
        duplicate_request: u32 = 0x40,
        /// RNR NAKs received.
        rnr_nak_retry_err: u32 = 0x48,
        /// NAKs of sequence errors received.
        packet_seq_err: u32 = 0x50,
        /// Answers that are missing, because a later one came.
        implied_nak_seq_err: u32 = 0x58,
        /// Timers of unacknowledged requests that expired.
        local_ack_timeout_err: u32 = 0x60,
        /// RNR retries that were used up.
        req_rnr_retries_exceeded: u32 = 0x70,
        /// Receives that were too short for their message.
        resp_local_length_error: u32 = 0x78,
        /// Error CQEs of receives.
        resp_cqe_error: u32 = 0x90,
        /// Error CQEs of sends.
        req_cqe_error: u32 = 0x94,
        /// Requests that the peer found invalid.
        req_remote_invalid_request: u32 = 0xa0,
        /// Requests that a key of the peer did not allow.
        req_remote_access_errors: u32 = 0xa8,
        /// Requests refused because a key does not allow them.
        resp_remote_access_errors: u32 = 0xac,
        /// Transport retries that were used up.
        req_transport_retries_exceeded: u32 = 0xb4,
        /// Receives that were flushed.
        resp_cqe_flush_error: u32 = 0xbc,
        /// Sends that were flushed.
        req_cqe_flush_error: u32 = 0xc0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_named_in_the_last_byte() {
        let bytes = QueryQCounter { clear: true, set: 9, ..QueryQCounter::ZERO }.to_bytes();
        assert_eq!((bytes[0x18], bytes[0x1f]), (0x80, 9));
    }

    #[test]
    fn counters_of_errors_stand_after_those_of_retries() {
        let reply =
            QueryQCounterReply { local_ack_timeout_err: 1, resp_local_length_error: 2, ..QueryQCounterReply::ZERO };
        let bytes = QueryQCounterReply { req_cqe_flush_error: 3, ..reply }.to_bytes();
        assert_eq!((bytes[0x63], bytes[0x7b], bytes[0xc3]), (1, 2, 3));
    }
}
