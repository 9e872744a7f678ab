//! The sender of the book's first page, which shows what follows, line by line. `first_receiver` is its peer.
//!
//! ```text
//! first_receiver [ADDRESS] & first_sender [ADDRESS]
//! ```

use std::net::TcpStream;

use doorbell::{BufferPool, CqConfig, PoolConfig, QpConfig, QueuePair, Sender};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or("127.0.0.1:18515".into());
    let device = doorbell::devices()?.into_iter().next().ok_or("there is no RDMA device")?;
    let pd = device.open()?.alloc_pd()?;
    let pool = BufferPool::new(&pd, &PoolConfig::new(16, 4096))?;
    let config = QpConfig::rc();
    let mut sender = Sender::new(&pd, &CqConfig::for_sends(&config, 1))?;
    let mut qp = QueuePair::builder(&config).send(&mut sender).build()?;
    let mut stream = TcpStream::connect(address)?;
    qp.connect_over(&mut stream)?;

    let (mut sent, mut done) = (0, 0);
    while done < 1000 {
        let mut posting = sender.post_many(&qp)?;
        while sent < 1000 {
            // `None` while all buffers are on their way.
            let Some(mut buffer) = pool.take() else { break };
            buffer.set_len(64);
            buffer.fill(sent as u8);
            posting.send(buffer)?;
            sent += 1;
        }
        posting.ring();
        let mut batch = sender.poll();
        while let Some(completion) = batch.next() {
            // The buffer of a completion goes back to the pool here. A failed request is an error.
            completion?;
            done += 1;
        }
    }
    Ok(())
}
