//! The clients: tasks of one process, each with queues of its own.

use doorbell::{
    Async, BufferPool, Context, CqConfig, PoolConfig, ProtectionDomain, QpConfig, QueuePair, Receiver, RqConfig, Sender,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::{JoinSet, yield_now};

use crate::{Args, MESSAGE, Result, STOP, WINDOW, answer};

pub async fn run(context: &Context, args: &Args, clients: u32) -> Result<()> {
    let pd = context.alloc_pd()?;
    let mut connecting = JoinSet::new();
    for number in 0..clients {
        connecting.spawn(Client::new(&pd, args, number)?.connect(args.address.clone()));
    }
    let mut connected = Vec::new();
    while let Some(client) = connecting.join_next().await {
        connected.push(client??);
    }
    println!("{clients} clients are connected");
    let mut running = JoinSet::new();
    for (client, stream) in connected {
        running.spawn(client.run(stream, args.requests.unwrap_or(u64::MAX)));
    }
    let mut replies = 0;
    while let Some(ended) = running.join_next().await {
        replies += ended??;
    }
    println!("{clients} clients, {replies} replies");
    Ok(())
}

struct Client {
    number: u32,
    receiver: Async<Receiver>,
    sender: Async<Sender>,
    qp: QueuePair,
}

impl Client {
    fn new(pd: &ProtectionDomain, args: &Args, number: u32) -> Result<Self> {
        let pool = BufferPool::new(pd, &PoolConfig::new(WINDOW, MESSAGE as u32))?;
        let mut receiver = Receiver::new(pd, &CqConfig::for_pool(&pool).path(args.path))?;
        // Twice the window, because the completion of a request may come after its reply.
        let config = QpConfig::rc().max_send_wr(2 * WINDOW).max_inline(MESSAGE as u32);
        let mut sender = Sender::new(pd, &CqConfig::for_sends(&config, 1).path(args.path))?;
        let own = RqConfig::for_pool(&pool);
        let qp = QueuePair::builder(&config).receive(&mut receiver, own).send(&mut sender).build()?;
        let queue = qp.receive_queue().ok_or("the queue pair has no receive queue")?;
        receiver.fill(queue, &pool)?;
        Ok(Self { number, receiver: Async::new(receiver)?, sender: Async::new(sender)?, qp })
    }

    async fn connect(mut self, server: String) -> Result<(Self, TcpStream)> {
        let mut stream = TcpStream::connect(&server).await.map_err(|e| format!("{server}: {e}"))?;
        self.qp.connect_over_async(&mut stream).await?;
        Ok((self, stream))
    }

    /// Returns the number of replies, when all requests were answered or the server asked to end.
    async fn run(mut self, mut stream: TcpStream, requests: u64) -> Result<u64> {
        let (mut asked, mut replies, mut requests) = (0, 0, requests);
        loop {
            while asked < requests && asked - replies < u64::from(WINDOW) {
                self.sender.send(&self.qp, request(self.number, asked))?;
                asked += 1;
            }
            if replies == requests {
                break;
            }
            tokio::select! {
                ready = self.receiver.ready() => ready?,
                ready = self.sender.ready() => ready?,
                stop = stream.read_u8() => match stop {
                    // The server still answers what was asked.
                    Ok(STOP) => requests = asked,
                    other => return Err(format!("the server left: {other:?}").into()),
                }
            }
            while let Some(done) = self.sender.next() {
                done?;
            }
            replies = self.read(replies)?;
            yield_now().await;
        }
        stream.write_u64(replies).await?;
        // The server closes the stream when the last reply was acknowledged. Until then the queue pair must stay.
        stream.read_to_end(&mut Vec::new()).await?;
        Ok(replies)
    }

    /// Checks the replies that have arrived, and returns how many there were in all.
    fn read(&mut self, mut replies: u64) -> Result<u64> {
        let number = self.number;
        while let Some(message) = self.receiver.next() {
            let mut expected = request(number, replies);
            answer(&mut expected);
            if message?[..] != expected {
                return Err(format!("client {number}: reply {replies} is wrong").into());
            }
            replies += 1;
        }
        Ok(replies)
    }
}

/// A request of a client, which no other is like.
fn request(client: u32, number: u64) -> [u8; MESSAGE] {
    let mut bytes = [0; MESSAGE];
    bytes[..4].copy_from_slice(&client.to_be_bytes());
    bytes[4..12].copy_from_slice(&number.to_be_bytes());
    bytes
}
