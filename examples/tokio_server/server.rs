//! The server.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use doorbell::{
    Async, Buffer, BufferPool, Context, CqConfig, NotSent, PoolConfig, QpConfig, QueuePair, Receiver, Refused, Sender,
    SqId, SrqConfig, SrqId,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::{JoinSet, yield_now};
use tokio::time::timeout;

use crate::device::describe;
use crate::{Args, MESSAGE, Result, STOP, WINDOW, answer};

/// Receives that are posted, for all clients together.
const RECEIVES: u32 = 1023;

/// Clients that can be connected at once: the sends of all have room in the CQ of the sender.
const CLIENTS: u32 = 256;

/// How long a client may take for the exchange of addresses.
const PATIENCE: Duration = Duration::from_secs(10);

pub async fn run(context: &Context, args: &Args) -> Result<()> {
    let listener = TcpListener::bind(&args.address).await.map_err(|e| format!("{}: {e}", args.address))?;
    let mut server = Server::new(context, args)?;
    println!("listening on {}, path {}, device {}", listener.local_addr()?, server.receiver.path(), describe(context));
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let (stop, stopped) = watch::channel(false);
    let mut connections = JoinSet::new();

    while !*stop.borrow() || !server.clients.is_empty() {
        let (stopping, full) = (*stop.borrow(), server.is_full());
        tokio::select! {
            accepted = listener.accept(), if !stopping && server.clients.len() < CLIENTS as usize => {
                let qp = server.take()?;
                connections.spawn(connection(qp, accepted?.0, stopped.clone()));
            }
            Some(ended) = connections.join_next() => server.leaving.push(ended?),
            ready = server.receiver.ready(), if !full => ready?,
            ready = server.sender.ready() => ready?,
            _ = interrupt.recv(), if !stopping => stop.send(true)?,
            _ = terminate.recv(), if !stopping => stop.send(true)?,
        }
        server.work()?;
        // `ready` does not yield while there is something to poll, and the connections have this thread, too.
        yield_now().await;
    }
    let Server { left, died, answered, doorbells, .. } = server;
    println!("{answered} requests answered, {doorbells} doorbells");
    println!("tokio_server: {left} clients left, {died} died");
    Ok(())
}

/// A client that has ended, or died.
struct Ended {
    qp: QueuePair,
    stream: TcpStream,
    /// How many replies it had.
    replies: Result<u64>,
}

/// The connection of a client, until it ends. A client can send as soon as its side of the exchange is over.
async fn connection(mut qp: QueuePair, mut stream: TcpStream, stopped: watch::Receiver<bool>) -> Ended {
    let replies = until_it_ends(&mut qp, &mut stream, stopped).await;
    Ended { qp, stream, replies }
}

async fn until_it_ends(qp: &mut QueuePair, stream: &mut TcpStream, mut stopped: watch::Receiver<bool>) -> Result<u64> {
    timeout(PATIENCE, qp.connect_over_async(stream)).await.map_err(|_| "it is silent")??;
    let mut first = [0];
    tokio::select! {
        // `readable` would be over at once: it says `true` until a read finds nothing.
        peeked = stream.peek(&mut first) => {
            peeked?;
        }
        () = asked_to_stop(&mut stopped) => stream.write_u8(STOP).await?,
    }
    Ok(stream.read_u64().await?)
}

/// Waits until the server ends.
async fn asked_to_stop(stopped: &mut watch::Receiver<bool>) {
    // The channel closes with the server.
    let _ = stopped.wait_for(|&stopped| stopped).await;
}

struct Client {
    queue: SqId,
    answered: u64,
    /// Replies for which there is no room yet.
    replies: VecDeque<Buffer>,
}

struct Server {
    receiver: Async<Receiver>,
    sender: Async<Sender>,
    srq: SrqId,
    pool: BufferPool,
    /// By the number of the queue pair.
    clients: HashMap<u32, Client>,
    /// Connections that have ended, with requests outstanding.
    leaving: Vec<Ended>,
    left: u64,
    died: u64,
    answered: u64,
    doorbells: u64,
}

impl Server {
    fn new(context: &Context, args: &Args) -> Result<Self> {
        let pd = context.alloc_pd()?;
        let mut receiver = Receiver::new(&pd, &CqConfig::new(RECEIVES + 1).path(args.path))?;
        let srq = receiver.create_srq(&SrqConfig::new(RECEIVES))?;
        let sender = Sender::new(&pd, &CqConfig::new(CLIENTS * WINDOW).path(args.path))?;
        let pool = BufferPool::new(&pd, &PoolConfig::new(2 * RECEIVES, MESSAGE as u32))?;
        receiver.fill(srq, &pool)?;
        let (receiver, sender) = (Async::new(receiver)?, Async::new(sender)?);
        let (clients, leaving) = (HashMap::new(), Vec::new());
        let (left, died, answered, doorbells) = (0, 0, 0, 0);
        Ok(Self { receiver, sender, srq, pool, clients, leaving, left, died, answered, doorbells })
    }

    /// Makes the queue pair of a new client.
    fn take(&mut self) -> Result<QueuePair> {
        // A client that was killed is given up after 4 tries of 4 ms.
        let config = QpConfig::rc().max_send_wr(WINDOW).timeout(10).retry_cnt(3);
        let qp = QueuePair::builder(&config).receive(&mut self.receiver, self.srq).send(&mut self.sender).build()?;
        let queue = qp.send_queue().ok_or("the queue pair has no send queue")?;
        self.clients.insert(qp.qp_num(), Client { queue, answered: 0, replies: VecDeque::new() });
        Ok(qp)
    }

    /// Does what there is to do.
    fn work(&mut self) -> Result<()> {
        // The buffers go back to the pool. A failed send was for a client that has died, as its stream will show.
        let mut batch = self.sender.poll();
        while batch.next().is_some() {}
        drop(batch);
        self.receiver.fill(self.srq, &self.pool)?;
        if !self.is_full() {
            self.read()?;
        }
        self.reply()?;
        for index in (0..self.leaving.len()).rev() {
            let queue = self.leaving[index].qp.send_queue().ok_or("the queue pair has no send queue")?;
            if !self.sender.is_busy(queue) {
                let ended = self.leaving.swap_remove(index);
                self.end(ended)?;
            }
        }
        Ok(())
    }

    /// Returns `true` if replies wait for room in a send queue.
    fn is_full(&self) -> bool {
        self.clients.values().any(|client| !client.replies.is_empty())
    }

    /// Reads and answers the requests that have arrived.
    fn read(&mut self) -> Result<()> {
        let mut batch = self.receiver.poll();
        while let Some(message) = batch.next() {
            // A receive fails if its client died in the middle of the message; the SRQ has it again.
            let Ok(message) = message else { continue };
            if let Some(client) = self.clients.get_mut(&message.qp_num()) {
                let mut reply = message.take()?;
                answer(&mut reply);
                client.replies.push_back(reply);
            }
        }
        Ok(())
    }

    /// Posts replies, with one doorbell for each client.
    fn reply(&mut self) -> Result<()> {
        for client in self.clients.values_mut().filter(|client| !client.replies.is_empty()) {
            // The queue pair has failed: its client has died.
            let Ok(mut posting) = self.sender.post_many(client.queue) else {
                client.replies.clear();
                continue;
            };
            let before = client.answered;
            while let Some(reply) = client.replies.pop_front() {
                match posting.send(reply) {
                    Ok(()) => client.answered += 1,
                    Err(Refused { payload, reason: NotSent::Full { .. }, .. }) => {
                        client.replies.push_front(payload);
                        break;
                    }
                    Err(refused) => return Err(refused.into()),
                }
            }
            self.answered += client.answered - before;
            self.doorbells += u64::from(client.answered > before);
        }
        Ok(())
    }

    /// Removes a client of which nothing is outstanding. The stream closes after its queue pair, so a client that waits
    /// for that has acknowledged the last reply.
    fn end(&mut self, ended: Ended) -> Result<()> {
        let number = ended.qp.qp_num();
        let client = self.clients.remove(&number).ok_or("an unknown client")?;
        match ended.replies {
            Ok(replies) if replies == client.answered => self.left += 1,
            Ok(replies) => return Err(format!("QP {number:#x}: {replies} of {} replies", client.answered).into()),
            Err(error) => {
                println!("QP {number:#x}: the client died: {error}");
                self.died += 1;
            }
        }
        self.receiver.destroy_qp(ended.qp)?;
        drop(ended.stream);
        Ok(())
    }
}
