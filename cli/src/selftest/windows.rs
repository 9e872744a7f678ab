//! Memory windows: that a SEND with invalidate, and a local invalidation, end the access of the peer.

use doorbell::{
    BufferPool, CqConfig, DataPath, MemoryWindow, PoolConfig, QueuePair, Receiver, RemoteAccess, RemoteRegion,
    RqConfig, Sender, SqId, WcStatus,
};

use super::far::config;
use super::lab::{Lab, Patience};
use super::receive::payload;
use super::stop::{Stop, fail, same};

const ROUNDS: u32 = 20;
const BYTES: usize = 1000;

/// A connection of this port to itself.
struct Connection {
    sender: Sender,
    receiver: Receiver,
    near: QueuePair,
    far: QueuePair,
}

impl Connection {
    fn new(lab: &Lab) -> Result<Self, Stop> {
        let mut receiver = Receiver::new(&lab.pd, &CqConfig::new(8).path(lab.path()))?;
        let config = config(lab, false).remote_write(true).memory_windows(true).max_send_wr(8);
        let mut sender = Sender::new(&lab.pd, &CqConfig::for_sends(&config, 2).path(lab.path()))?;
        let mut make =
            || QueuePair::builder(&config).receive(&mut receiver, RqConfig::new(4)).send(&mut sender).build();
        let (mut near, mut far) = (make()?, make()?);
        near.connect(&far.address()?)?;
        far.connect(&near.address()?)?;
        let pool = BufferPool::new(&lab.pd, &PoolConfig::new(8, 64))?;
        receiver.fill(near.receive_queue().ok_or("no receive queue")?, &pool)?;
        let mut witness = lab.witness.borrow_mut();
        witness.made("queue pairs", 2);
        witness.made("CQs", 2);
        witness.made("memory of peers", 1);
        Ok(Self { sender, receiver, near, far })
    }

    /// Waits for a request; returns its status.
    fn done(&mut self) -> Result<WcStatus, Stop> {
        let patience = Patience::new();
        loop {
            match self.sender.next() {
                Some(Ok(_)) => return Ok(WcStatus::SUCCESS),
                Some(Err(failure)) => return Ok(failure.status),
                None => patience.wait(|| "a request that has no completion".into())?,
            }
        }
    }

    fn succeeded(&mut self, what: &str) -> Result<(), Stop> {
        same(format!("status of {what}"), &WcStatus::SUCCESS, &self.done()?)
    }

    /// Waits for the message that invalidates a key.
    fn message(&mut self) -> Result<Option<u32>, Stop> {
        let patience = Patience::new();
        loop {
            if let Some(message) = self.receiver.next() {
                return Ok(message?.invalidated_rkey());
            }
            patience.wait(|| "a message that does not arrive".into())?;
        }
    }

    /// Tries to write with a key that was revoked.
    fn is_over(&mut self, queue: SqId, region: &RemoteRegion, how: &str) -> Result<(), Stop> {
        self.sender.post(queue)?.write(b"late", region)?;
        match self.done()? {
            WcStatus::REM_ACCESS_ERR => Ok(()),
            status => fail(format!("a WRITE with a key that {how}: {status} instead of a remote access error")),
        }
    }
}

/// Binds windows, and has the peer end its access, and then this side.
pub fn windows(lab: &mut Lab) -> Result<String, Stop> {
    let cannot = |error: doorbell::Error| Stop::Cannot(format!("no memory window of type 2: {error}"));
    let mut window = MemoryWindow::new(&lab.pd).map_err(cannot)?;
    let pool = BufferPool::new(&lab.pd, &PoolConfig::new(1, BYTES as u32).memory_windows(true))?;
    for peer_ends in [true, false] {
        let mut c = Connection::new(lab)?;
        let (near, far) = (c.near.send_queue().ok_or("no queue")?, c.far.send_queue().ok_or("no queue")?);
        let mut last = None;
        for round in 0..ROUNDS {
            let buffer = pool.take().ok_or("no buffer")?;
            let region = c.sender.post(near)?.bind(&mut window, buffer, .., RemoteAccess::WRITE)?;
            c.succeeded("a bind")?;
            let bytes = payload(round, BYTES);
            for at in (0..BYTES).step_by(BYTES / 25) {
                let to = region.slice(at, BYTES / 25)?;
                c.sender.post(far)?.write(&bytes[at..at + BYTES / 25], &to)?;
                c.succeeded("a WRITE to a window")?;
            }
            if peer_ends {
                c.sender.post(far)?.send_with_invalidate(b"", region.rkey())?;
                c.succeeded("a SEND with invalidate")?;
                let key = c.message()?;
                if key.is_none() && lab.path() == DataPath::Verbs {
                    return Err(Stop::Cannot("the driver does not say which key a message invalidated".into()));
                }
                same("the key that a message invalidated", &Some(region.rkey()), &key)?;
            } else {
                c.sender.post(near)?.revoke(&mut window)?;
                c.succeeded("a local invalidation")?;
            }
            let mut buffer = window.take_buffer().ok_or("the access of a key has not ended")?;
            buffer.set_len(BYTES);
            same(format!("memory of window {round}"), &bytes, &buffer.to_vec())?;
            last = Some(region);
        }
        let how = if peer_ends { "the peer invalidated" } else { "was invalidated" };
        c.is_over(far, &last.ok_or("no round")?, how)?;
    }
    Ok(format!("{ROUNDS} ended by the peer, {ROUNDS} by this side; then the key is refused"))
}
