//! The ping-pong of the book's first page, which shows what follows, line by line: the server without an address, then
//! the client with that of the server.
//!
//! ```text
//! first_pingpong & first_pingpong ADDRESS
//! ```

use std::net::{TcpListener, TcpStream};

use doorbell::{BufferPool, CqConfig, PoolConfig, QpConfig, QueuePair, Receiver, Sender, SrqConfig};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = std::env::args().nth(1);
    let device = doorbell::devices()?.into_iter().next().ok_or("there is no RDMA device")?;
    let pd = device.open()?.alloc_pd()?;
    let pool = BufferPool::new(&pd, &PoolConfig::new(16, 4096))?;
    let mut receiver = Receiver::new(&pd, &CqConfig::for_pool(&pool))?;
    let srq = receiver.create_srq(&SrqConfig::for_pool(&pool))?;
    receiver.fill(srq, &pool)?;
    let config = QpConfig::rc();
    let mut sender = Sender::new(&pd, &CqConfig::for_sends(&config, 1))?;
    let mut qp = QueuePair::builder(&config).receive(&mut receiver, srq).send(&mut sender).build()?;
    let mut stream = match &server {
        Some(address) => TcpStream::connect(address)?,
        None => TcpListener::bind("0.0.0.0:18515")?.accept()?.0,
    };
    qp.connect_over(&mut stream)?;

    if server.is_some() {
        sender.send(&qp, b"ball")?;
    }
    let mut turns = 0;
    while turns < 1000 {
        if let Some(message) = receiver.next() {
            // The buffer moves from the receive to the send; its bytes do not.
            sender.send(&qp, message?.take()?)?;
            turns += 1;
        }
        while let Some(done) = sender.next() {
            if let Some(buffer) = done?.buffer {
                receiver.post(srq, [buffer])?;
            }
        }
    }
    Ok(())
}
