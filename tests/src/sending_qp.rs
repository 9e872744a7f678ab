//! A queue pair with a sender of its own.

use std::ops::{Deref, DerefMut};

use doorbell::{
    AddressHandle, CqConfig, DataPath, NotSent, Payload, QpConfig, QpEnd, QueuePair, ReceiveFrom, Receiver,
    RemoteRegion, Request, Sender, SqId,
};

use crate::sent::Sent;

/// A queue pair with a sender of its own, for nothing else. It dereferences to the queue pair.
pub struct SendingQp {
    qp: QueuePair,
    /// Its sender.
    pub sender: Sender,
    outstanding: usize,
}

impl SendingQp {
    /// A queue pair of `receiver`, on the same path.
    pub fn create(receiver: &mut Receiver, config: &QpConfig, from: impl Into<ReceiveFrom>) -> doorbell::Result<Self> {
        let path = receiver.path();
        Self::create_on(receiver, config, from, path)
    }

    /// A queue pair of `receiver`, with its sender on `path`.
    pub fn create_on(
        receiver: &mut Receiver,
        config: &QpConfig,
        from: impl Into<ReceiveFrom>,
        path: DataPath,
    ) -> doorbell::Result<Self> {
        let config_of_sender = CqConfig::new(512).path(path);
        let mut sender = Sender::new(receiver.pd(), &config_of_sender)?;
        let qp = QueuePair::builder(config).receive(receiver, from).send(&mut sender).build()?;
        Ok(Self { qp, sender, outstanding: 0 })
    }

    fn queue(&self) -> SqId {
        self.qp.send_queue().unwrap()
    }

    /// Posts one request.
    fn post<P: Payload>(
        &mut self,
        payload: P,
        post: impl FnOnce(Request<'_>, P) -> Result<(), P::Error>,
    ) -> Result<(), P::Error> {
        match self.sender.post(self.queue()) {
            Ok(request) => post(request, payload)?,
            Err(reason) => return Err(payload.refuse(reason)),
        }
        self.outstanding += 1;
        Ok(())
    }

    /// Sends a message, with immediate data or without.
    pub fn send<P: Payload>(&mut self, payload: P, imm: Option<u32>) -> Result<(), P::Error> {
        self.post(payload, |request, payload| match imm {
            Some(imm) => request.send_with_imm(payload, imm),
            None => request.send(payload),
        })
    }

    /// Sends bytes that are copied.
    pub fn send_inline(&mut self, bytes: &[u8], imm: Option<u32>) -> Result<(), NotSent> {
        self.send(bytes, imm)
    }

    /// Writes to memory of the peer.
    pub fn write<P: Payload>(&mut self, payload: P, to: &RemoteRegion) -> Result<(), P::Error> {
        self.post(payload, |request, payload| request.write(payload, to))
    }

    /// Sends a datagram.
    pub fn send_to<P: Payload>(&mut self, payload: P, to: &AddressHandle, imm: Option<u32>) -> Result<(), P::Error> {
        self.post(payload, |request, payload| request.send_to(to, payload, imm))
    }

    /// Takes the next request that is over.
    pub fn poll_send(&mut self) -> Option<Sent> {
        let sent = self.sender.poll_up_to(1).next().map(Sent::from)?;
        self.outstanding -= 1;
        Some(sent)
    }

    /// Resets it, and drops the outstanding requests: it can be connected again.
    pub fn reset(&mut self, receiver: &mut Receiver) -> doorbell::Result<QpEnd> {
        let end = receiver.reset_qp(&mut self.qp)?;
        loop {
            while self.poll_send().is_some() {}
            if !self.sender.is_busy(self.queue()) {
                return Ok(end);
            }
        }
    }

    /// Requests that are not over.
    pub fn sends_outstanding(&self) -> usize {
        self.outstanding
    }

    /// The queue pair alone. Outstanding requests stay with it until it is destroyed.
    pub fn into_qp(self) -> QueuePair {
        self.qp
    }
}

impl Deref for SendingQp {
    type Target = QueuePair;

    fn deref(&self) -> &QueuePair {
        &self.qp
    }
}

impl DerefMut for SendingQp {
    fn deref_mut(&mut self) -> &mut QueuePair {
        &mut self.qp
    }
}
