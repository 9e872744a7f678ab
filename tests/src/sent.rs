//! Requests that are over, however they ended.

use doorbell::{Buffer, SendCompletion, SendFailure, SqId, WcStatus};

/// A request that is over.
#[derive(Debug)]
pub struct Sent {
    /// Its queue.
    pub queue: SqId,
    /// Its token.
    pub token: u64,
    /// How it ended.
    pub status: WcStatus,
    /// The device's own error code, 0 for a success.
    pub vendor_err: u32,
    /// Its buffers, in order.
    pub buffers: Vec<Buffer>,
}

impl Sent {
    /// Its only buffer.
    #[track_caller]
    pub fn into_buffer(self) -> Buffer {
        let buffers = <[Buffer; 1]>::try_from(self.buffers);
        let [buffer] = buffers.unwrap_or_else(|buffers| panic!("{} buffers", buffers.len()));
        buffer
    }
}

impl From<SendCompletion<'_>> for Sent {
    fn from(mut done: SendCompletion<'_>) -> Self {
        let mut buffers = Vec::from_iter(done.buffer.take());
        buffers.extend(std::iter::from_fn(|| done.next_buffer()));
        let (queue, token, status) = (done.queue, done.token, WcStatus::SUCCESS);
        Self { queue, token, status, vendor_err: 0, buffers }
    }
}

impl From<SendFailure> for Sent {
    fn from(failure: SendFailure) -> Self {
        assert!(!failure.status.is_success(), "a failure that is none: {failure}");
        let SendFailure { queue, token, status, vendor_err, buffers, .. } = failure;
        Self { queue, token, status, vendor_err, buffers }
    }
}

impl From<Result<SendCompletion<'_>, SendFailure>> for Sent {
    fn from(over: Result<SendCompletion<'_>, SendFailure>) -> Self {
        match over {
            Ok(done) => done.into(),
            Err(failure) => failure.into(),
        }
    }
}
