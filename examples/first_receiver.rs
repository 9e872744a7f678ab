//! The receiver of the book's first page, which shows what follows, line by line. `first_sender` is its peer.
//!
//! ```text
//! first_receiver [ADDRESS] & first_sender [ADDRESS]
//! ```

use std::io::Read;
use std::net::TcpListener;

use doorbell::{BufferPool, CqConfig, PoolConfig, QpConfig, QueuePair, Receiver, SrqConfig};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or("0.0.0.0:18515".into());
    let device = doorbell::devices()?.into_iter().next().ok_or("there is no RDMA device")?;
    let pd = device.open()?.alloc_pd()?;
    let pool = BufferPool::new(&pd, &PoolConfig::new(256, 4096))?;

    let mut receiver = Receiver::new(&pd, &CqConfig::for_pool(&pool))?;
    let srq = receiver.create_srq(&SrqConfig::for_pool(&pool))?;
    println!("{} receives posted, path {}", receiver.fill(srq, &pool)?, receiver.path());

    let listener = TcpListener::bind(address)?;
    println!("waiting for a sender on {}", listener.local_addr()?);
    let mut stream = listener.accept()?.0;
    let mut qp = QueuePair::builder(&QpConfig::rc()).receive(&mut receiver, srq).build()?;
    qp.connect_over(&mut stream)?;

    let (mut messages, mut bytes) = (0u64, 0u64);
    while messages < 1000 {
        let mut batch = receiver.poll();
        while let Some(message) = batch.next() {
            messages += 1;
            bytes += message?.len() as u64;
        }
    }
    println!("{messages} messages, {bytes} bytes");
    // The sender hangs up when every message was acknowledged. Until then the queue pair must stay.
    stream.read_to_end(&mut Vec::new())?;
    Ok(())
}
