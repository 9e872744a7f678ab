//! A message from a queue pair to another of the same port.

use std::time::{Duration, Instant};

use doorbell::{BufferPool, Context, CqConfig, PoolConfig, QpConfig, QueuePair, Receiver, RqConfig, Sender};

const MESSAGE: &[u8] = b"doorbell doctor";
/// An adapter ends a send itself, after its retries. This time ends the wait for an adapter that does not.
const LONGEST: Duration = Duration::from_secs(60);

/// Sends a message through this GID, and waits for it. The error has the failure and its meaning.
pub fn send(context: &Context, port: u8, gid_index: u8) -> Result<(), String> {
    let text = |error: doorbell::Error| error.to_string();
    let pd = context.alloc_pd().map_err(text)?;
    let mut receiver = Receiver::new(&pd, &CqConfig::new(8)).map_err(text)?;
    // 67 ms for each of four tries.
    let config = QpConfig::rc().max_send_wr(2).max_inline(32).port(port).gid_index(gid_index);
    let config = config.timeout(14).retry_cnt(3).rnr_retry(3);
    let sending = CqConfig::new(64);
    let mut sender = Sender::new(&pd, &sending).map_err(text)?;
    let mut near = QueuePair::builder(&config).send(&mut sender).build().map_err(text)?;
    let own = RqConfig::new(2);
    let mut far = QueuePair::builder(&config).receive(&mut receiver, own).build().map_err(text)?;
    near.connect(&far.address().map_err(text)?).map_err(text)?;
    far.connect(&near.address().map_err(text)?).map_err(text)?;
    let queue = far.receive_queue().ok_or("the queue pair has no receive queue")?;
    let pool = BufferPool::new(&pd, &PoolConfig::new(2, 64)).map_err(text)?;
    receiver.fill(queue, &pool).map_err(|error| error.to_string())?;
    sender.send(&near, MESSAGE).map_err(|refused| refused.to_string())?;
    let began = Instant::now();
    let (mut sent, mut arrived) = (false, false);
    while !(sent && arrived) {
        if let Some(completion) = sender.next() {
            completion
                .map_err(|failure| format!("{} (vendor syndrome {:#04x})", failure.status, failure.vendor_err))?;
            sent = true;
        }
        let mut batch = receiver.poll();
        while let Some(found) = batch.next() {
            match found {
                Ok(message) => arrived |= *message == *MESSAGE,
                Err(failure) => return Err(format!("the receive failed: {failure}")),
            }
        }
        drop(batch);
        if began.elapsed() > LONGEST {
            return Err("neither a message nor an error within a minute".into());
        }
        std::thread::yield_now();
    }
    Ok(())
}
