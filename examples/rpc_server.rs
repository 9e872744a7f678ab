//! Answers the requests of many clients: one SRQ for the requests, one sender for the replies.
//!
//! - A reply goes out in the buffer that the request came in. The replies of one poll to a client have one doorbell.
//! - When the send queue of a client is full its replies are kept, and nothing more is read until there is room: the
//!   receives that are not given back make all clients wait.
//! - It sleeps until a request or the end of a send arrives, or a client leaves.
//! - One client dies with requests outstanding. The others do not notice.
//!
//! The clients are threads here, so that there is something to answer.
//!
//! ```text
//! rpc_server [auto | direct | verbs]
//! ```

use std::collections::{HashMap, VecDeque};
use std::error::Error;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::thread;

use doorbell::{
    Buffer, BufferPool, Completions, CqConfig, DataPath, NotSent, PoolConfig, ProtectionDomain, QpConfig, QueuePair,
    Receiver, Refused, RqConfig, Sender, SqId, SrqConfig, SrqId,
};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Clients that get all their replies; one more dies.
const CLIENTS: u32 = 4;
/// Requests of each.
const REQUESTS: u64 = 5000;
/// Requests that a client has outstanding.
const WINDOW: u64 = 32;
/// Replies that can be outstanding to a client: fewer.
const REPLIES: u32 = 8;

fn main() -> Result<()> {
    let path = std::env::args().nth(1).map_or(Ok(DataPath::Auto), |path| path.parse())?;
    let pd = &doorbell::devices()?.first().ok_or("there is no RDMA device")?.open()?.alloc_pd()?;
    thread::scope(|scope| {
        let mut server = Server::new(pd, path)?;
        let mut clients = Vec::new();
        for id in 0..=CLIENTS {
            let (here, there) = UnixStream::pair()?;
            clients.push(scope.spawn(move || client(pd, path, id, there)));
            server.take(here)?;
        }
        server.serve()?;
        let mut replies = 0;
        for client in clients {
            replies += client.join().map_err(|_| "a client panicked")??;
        }
        let Server { answered, doorbells, full, sender, .. } = server;
        println!("{answered} requests answered, {doorbells} doorbells, path {}", sender.path());
        println!("{full} times not read, because a send queue was full");
        println!("ok: {replies} replies to {CLIENTS} clients, and another client died");
        Ok(())
    })
}

/// The answer to a request.
fn answer(request: &[u8]) -> [u8; 8] {
    request.iter().fold(7u64, |sum, &byte| sum.wrapping_mul(31) + u64::from(byte)).to_be_bytes()
}

/// Sends requests, and checks and counts the replies. The last client dies in the middle.
fn client(pd: &ProtectionDomain, path: DataPath, id: u32, mut stream: UnixStream) -> Result<u64> {
    let pool = BufferPool::new(pd, &PoolConfig::new(WINDOW as u32, 64))?;
    let mut receiver = Receiver::new(pd, &CqConfig::for_pool(&pool).path(path))?;
    let config = QpConfig::rc().max_send_wr(WINDOW as u32).max_inline(16);
    let mut sender = Sender::new(pd, &CqConfig::for_sends(&config, 1).path(path))?;
    let own = RqConfig::for_pool(&pool);
    let mut qp = QueuePair::builder(&config).receive(&mut receiver, own).send(&mut sender).build()?;
    let queue = qp.send_queue().ok_or("the queue pair has no send queue")?;
    receiver.fill(qp.receive_queue().ok_or("the queue pair has no receive queue")?, &pool)?;
    qp.connect_over(&mut stream)?;

    let request = |number: u64| (u128::from(id) << 64 | u128::from(number)).to_be_bytes();
    let (mut asked, mut got) = (0, 0);
    while got < REQUESTS {
        let mut posting = sender.post_many(queue)?;
        while asked < REQUESTS && asked - got < WINDOW {
            posting.send(request(asked))?;
            asked += 1;
        }
        drop(posting);
        if id == CLIENTS && asked > REQUESTS / 2 {
            return Ok(0);
        }
        receiver.wait(None)?;
        let mut batch = receiver.poll();
        while let Some(reply) = batch.next() {
            let (reply, asked) = (reply?, request(got));
            if reply[..] != [&asked[..], &answer(&asked)].concat() {
                return Err(format!("client {id}: the reply to {got} is {reply:?}").into());
            }
            got += 1;
        }
        let mut batch = sender.poll();
        while let Some(done) = batch.next() {
            done.map_err(|failure| format!("client {id}: {failure}"))?;
        }
    }
    Ok(got)
}

struct Client {
    qp: QueuePair,
    queue: SqId,
    /// Readable when the client has left.
    stream: UnixStream,
    /// Replies for which there is no room yet.
    replies: VecDeque<Buffer>,
}

struct Server {
    /// By the number of the queue pair.
    clients: HashMap<u32, Client>,
    receiver: Receiver,
    sender: Sender,
    srq: SrqId,
    pool: BufferPool,
    answered: u64,
    doorbells: u64,
    full: u64,
}

impl Server {
    fn new(pd: &ProtectionDomain, path: DataPath) -> Result<Self> {
        let mut receiver = Receiver::new(pd, &CqConfig::new(256).path(path))?;
        let sending = CqConfig::new((CLIENTS + 1) * REPLIES).path(path);
        let sender = Sender::new(pd, &sending)?;
        let srq = receiver.create_srq(&SrqConfig::new(255))?;
        let pool = BufferPool::new(pd, &PoolConfig::new(512, 64))?;
        receiver.fill(srq, &pool)?;
        let (clients, answered, doorbells, full) = (HashMap::new(), 0, 0, 0);
        Ok(Self { clients, receiver, sender, srq, pool, answered, doorbells, full })
    }

    fn take(&mut self, mut stream: UnixStream) -> Result<()> {
        // A client that does not answer is given up after 4 tries of 4 ms.
        let config = QpConfig::rc().max_send_wr(REPLIES).timeout(10).retry_cnt(3);
        let mut qp =
            QueuePair::builder(&config).receive(&mut self.receiver, self.srq).send(&mut self.sender).build()?;
        qp.connect_over(&mut stream)?;
        let queue = qp.send_queue().ok_or("the queue pair has no send queue")?;
        self.clients.insert(qp.qp_num(), Client { qp, queue, stream, replies: VecDeque::new() });
        Ok(())
    }

    fn serve(&mut self) -> Result<()> {
        while !self.clients.is_empty() {
            // The buffers go back to the pool. A failed send was for a client that has left, as its stream will show.
            let mut batch = self.sender.poll();
            while batch.next().is_some() {}
            drop(batch);
            self.receiver.fill(self.srq, &self.pool)?;
            if self.is_full() {
                self.full += 1;
            } else {
                self.read()?;
            }
            self.reply()?;
            self.sleep()?;
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
            // A receive fails if its client left in the middle of the message; the SRQ has it again.
            let Ok(message) = message else { continue };
            if let Some(client) = self.clients.get_mut(&message.qp_num()) {
                let mut reply = message.take()?;
                let answer = answer(&reply);
                reply.extend_from_slice(&answer);
                client.replies.push_back(reply);
            }
        }
        Ok(())
    }

    /// Posts replies, with one doorbell for each client.
    fn reply(&mut self) -> Result<()> {
        for client in self.clients.values_mut().filter(|client| !client.replies.is_empty()) {
            // The queue pair has failed: its client has left.
            let Ok(mut posting) = self.sender.post_many(client.queue) else {
                client.replies.clear();
                continue;
            };
            let before = self.answered;
            while let Some(reply) = client.replies.pop_front() {
                match posting.send(reply) {
                    Ok(()) => self.answered += 1,
                    Err(Refused { payload, reason: NotSent::Full { .. }, .. }) => {
                        client.replies.push_front(payload);
                        break;
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            self.doorbells += u64::from(self.answered > before);
        }
        Ok(())
    }

    /// Sleeps until there is something to do, and removes the clients that have left.
    fn sleep(&mut self) -> Result<()> {
        // Requests are not read while replies wait for room.
        let is_full = self.is_full();
        if self.sender.arm()? || !is_full && self.receiver.arm()? {
            return Ok(());
        }
        let numbers: Vec<u32> = self.clients.keys().copied().collect();
        let streams = self.clients.values().map(|client| client.stream.as_raw_fd());
        let receiver = self.receiver.channel().filter(|_| !is_full);
        let channels = [self.sender.channel(), receiver].into_iter().flatten();
        let mut fds: Vec<_> = streams
            .chain(channels.map(|channel| channel.as_raw_fd()))
            .map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 })
            .collect();
        // SAFETY: as many structures as the vector holds.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, -1) };
        for (number, _) in numbers.iter().zip(&fds).filter(|(_, fd)| fd.revents != 0) {
            // A client sends nothing over the stream after the addresses.
            if let Some(client) = self.clients.remove(number) {
                self.receiver.destroy_qp(client.qp)?;
            }
        }
        Ok(())
    }
}
