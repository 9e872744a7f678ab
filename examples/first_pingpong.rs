//! The ping-pong of the book's first page, which shows what follows, line by line: the server without an address, then
//! the client with that of the server.
//!
//! ```text
//! first_pingpong & first_pingpong ADDRESS
//! ```

use std::net::{TcpListener, TcpStream};

use doorbell::{BufferPool, CqConfig, PoolConfig, QpConfig, QueuePair, Receiver, RqConfig, Sender};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = std::env::args().nth(1);
    let device = doorbell::devices()?.into_iter().next().ok_or("there is no RDMA device")?;
    let pd = device.open()?.alloc_pd()?;
    let pool = BufferPool::new(&pd, &PoolConfig::new(17, 4096))?;
    let mut receiver = Receiver::new(&pd, &CqConfig::new(16))?;
    let mut sender = Sender::new(&pd, &CqConfig::new(16))?;
    let mut qp = QueuePair::builder(&QpConfig::rc().max_send_wr(16))
        .receive(&mut receiver, RqConfig::new(16))
        .send(&mut sender)
        .build()?;
    let queue = qp.receive_queue().ok_or("no receive queue")?;
    receiver.fill(queue, &pool)?;
    let mut stream = match &server {
        Some(address) => TcpStream::connect(address)?,
        None => TcpListener::bind("0.0.0.0:18515")?.accept()?.0,
    };
    qp.connect_over(&mut stream)?;

    if server.is_some() {
        sender.send(&qp, pool.take().ok_or("no buffer is left")?)?;
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
                receiver.post(queue, [buffer])?;
            }
        }
    }
    Ok(())
}
