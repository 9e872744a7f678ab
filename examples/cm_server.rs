//! Serves any number of clients that connect by IP address, through the connection manager of the system, on
//! one shared receive queue; and is the client, which connects again and again with the same queue pair.
//!
//! ```text
//! cm_server --connections 3 192.0.2.1:18516 &
//! cm_server --client --times 3 192.0.2.1:18516
//! ```
//!
//! It needs the kernel module `rdma_ucm`, and the feature `rdmacm` of doorbell.

use std::collections::HashMap;
use std::error::Error;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use doorbell::rdmacm::{ConnectRequest, Connection, Listener, Route};
use doorbell::{
    BufferPool, Completions, CqConfig, DataPath, PoolConfig, ProtectionDomain, QpConfig, QueuePair, Receiver, RqConfig,
    Sender, SrqConfig, SrqId,
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Buffers of the receives, for all connections together.
const BUFFERS: u32 = 256;

/// Bytes of a message.
const MESSAGE: u32 = 64;

/// How long a peer may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Receive from clients that connect by IP address
#[derive(Parser)]
struct Args {
    /// How the queues are driven: auto, direct or verbs
    #[arg(long, default_value_t = DataPath::Auto)]
    path: DataPath,
    /// End after so many connections [default: serve for ever]
    #[arg(long)]
    connections: Option<u64>,
    /// Connect to a server, and send
    #[arg(long)]
    client: bool,
    /// How often the client connects
    #[arg(long, default_value_t = 1)]
    times: u32,
    /// Messages that the client sends over each connection
    #[arg(long, default_value_t = 1000)]
    messages: u64,
    /// Where to listen, or to connect to
    #[arg(default_value = "0.0.0.0:18516")]
    address: SocketAddr,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let done = if args.client { client(&args) } else { Server::run(&args) };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cm_server: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A client that is connected.
struct Client {
    qp: QueuePair,
    connection: Connection,
    /// Messages that it announced in the private data of its request.
    promised: u64,
    received: u64,
}

struct Server {
    pd: ProtectionDomain,
    receiver: Receiver,
    srq: SrqId,
    /// By the number of the queue pair.
    clients: HashMap<u32, Client>,
}

impl Server {
    fn run(args: &Args) -> Result<()> {
        let mut listener = Listener::bind(args.address)?;
        println!("listening on port {}", listener.port());
        // The first request says which device it came to.
        let first = listener.accept(None)?.ok_or("no time-out was given")?;
        let mut server = Self::new(first.device_name(), args.path)?;
        server.admit(first);
        let (mut served, mut missing) = (0, 0);
        loop {
            server.receive()?;
            for client in server.disconnected()? {
                let Client { promised, received, .. } = client;
                println!("QP {:#x}: {received} of {promised} messages", client.qp.qp_num());
                missing += promised.saturating_sub(received);
                served += 1;
                server.receiver.destroy_qp(client.qp)?;
            }
            if args.connections == Some(served) {
                break;
            }
            if !server.receiver.arm()? && server.sleep(&listener)? {
                if let Some(request) = listener.accept(Duration::ZERO)? {
                    server.admit(request);
                }
            }
        }
        println!("cm_server: {served} connections served, {missing} messages missing");
        if missing == 0 { Ok(()) } else { Err("messages are missing".into()) }
    }

    fn new(device: &str, path: DataPath) -> Result<Self> {
        let pd = doorbell::open(device)?.alloc_pd()?;
        let pool = BufferPool::new(&pd, &PoolConfig::new(BUFFERS, MESSAGE))?;
        let mut receiver = Receiver::new(&pd, &CqConfig::for_pool(&pool).path(path))?;
        let srq = receiver.create_srq(&SrqConfig::for_pool(&pool))?;
        receiver.fill(srq, &pool)?;
        Ok(Self { pd, receiver, srq, clients: HashMap::new() })
    }

    /// Lets a client in. The server goes on if the client breaks off now, or came to another device.
    fn admit(&mut self, request: ConnectRequest) {
        let mut accept = |request: ConnectRequest| -> doorbell::Result<Client> {
            let promised = request.private_data().first_chunk().map_or(0, |n| u64::from_be_bytes(*n));
            let mut qp =
                QueuePair::builder(&QpConfig::rc().max_send_wr(1)).receive(&mut self.receiver, self.srq).build()?;
            let connection = request.accept(&mut qp, b"", PATIENCE)?;
            Ok(Client { qp, connection, promised, received: 0 })
        };
        match accept(request) {
            Ok(client) => {
                self.clients.insert(client.qp.qp_num(), client);
            }
            Err(error) => println!("on {}: {error}", self.pd.context().name()),
        }
    }

    /// Takes all messages that have arrived.
    fn receive(&mut self) -> Result<()> {
        loop {
            let mut count = 0;
            let mut batch = self.receiver.poll();
            while let Some(message) = batch.next() {
                count += 1;
                match message {
                    Ok(message) => {
                        if let Some(client) = self.clients.get_mut(&message.qp_num()) {
                            client.received += 1;
                        }
                    }
                    Err(failure) => println!("{failure}"),
                }
            }
            if count == 0 {
                return Ok(());
            }
        }
    }

    /// Removes the clients that have disconnected. All their messages arrived before, and are received.
    fn disconnected(&mut self) -> Result<Vec<Client>> {
        let mut gone = Vec::new();
        for (&number, client) in &mut self.clients {
            if client.connection.wait_disconnected(Duration::ZERO)? {
                gone.push(number);
            }
        }
        if !gone.is_empty() {
            self.receive()?;
        }
        Ok(gone.iter().filter_map(|number| self.clients.remove(number)).collect())
    }

    /// Sleeps until something happens. Returns `true` if a client wants to connect.
    fn sleep(&self, listener: &Listener) -> Result<bool> {
        let channel = self.receiver.channel().ok_or("the receiver has no completion channel")?;
        let mut fds = vec![listener.as_fd(), channel.as_fd()];
        fds.extend(self.clients.values().map(|client| client.connection.as_fd()));
        let mut fds: Vec<_> =
            fds.iter().map(|fd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 }).collect();
        // SAFETY: as many structures as the vector holds. A signal is as good as a wake-up.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, -1) };
        Ok(fds[0].revents != 0)
    }
}

fn client(args: &Args) -> Result<()> {
    let route = Route::resolve(args.address, PATIENCE)?;
    let pd = doorbell::open(route.device_name())?.alloc_pd()?;
    let mut receiver = Receiver::new(&pd, &CqConfig::new(4096).path(args.path))?;
    let config = QpConfig::rc().max_inline(MESSAGE);
    let mut sender = Sender::new(&pd, &CqConfig::for_sends(&config, 1).path(args.path))?;
    let mut qp = QueuePair::builder(&config).receive(&mut receiver, RqConfig::new(1)).send(&mut sender).build()?;
    let queue = qp.send_queue().ok_or("the queue pair has no send queue")?;
    let mut route = Some(route);
    for time in 1..=args.times {
        // Each connection takes a route of its own.
        let way = match route.take() {
            Some(route) => route,
            None => Route::resolve(args.address, PATIENCE)?,
        };
        let mut connection = way.connect(&mut qp, &args.messages.to_be_bytes(), PATIENCE)?;
        for number in 0..args.messages {
            sender.post(queue)?.send(number.to_be_bytes())?;
            // The end of a send says that the message has arrived.
            sender.wait(None)?;
            if let Some(done) = sender.next() {
                done?;
            }
        }
        connection.disconnect(&qp)?;
        // The server must have heard of the end before this queue pair can come back.
        if !connection.wait_disconnected(PATIENCE)? {
            return Err("the server does not disconnect".into());
        }
        // As good as new: the next connection needs no other queue pair.
        receiver.reset_qp(&mut qp)?;
        while sender.poll().next().is_some() {}
        println!("connection {time}: {} messages sent", args.messages);
    }
    Ok(())
}
