//! Serves `srq_client`s in one thread that sleeps while there is nothing to do: one `poll(2)` waits for new
//! connections, for reports of the clients over TCP, and for messages.
//!
//! ```text
//! event_server --connections 4 &
//! srq_client & srq_client
//! ```

mod common;

use std::collections::HashMap;
use std::error::Error;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use common::{Digest, MAX_MESSAGE, Report};
use doorbell::{BufferPool, Completions, CqConfig, DataPath, PoolConfig, QpConfig, QueuePair, Receiver, SrqConfig};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Buffers of the receives, for all connections together.
const BUFFERS: u32 = 256;

/// Longest time for a report that a client has begun.
const PATIENCE: Duration = Duration::from_secs(20);

/// Receive from srq_clients without polling
#[derive(Parser)]
struct Args {
    /// Name of the RDMA device [default: the first]
    #[arg(long)]
    device: Option<String>,
    /// How the queues are driven: auto, direct or verbs
    #[arg(long, default_value_t = DataPath::Auto)]
    path: DataPath,
    /// End after so many connections [default: serve for ever]
    #[arg(long)]
    connections: Option<u64>,
    /// Where to listen
    #[arg(default_value = "0.0.0.0:18515")]
    listen: String,
}

struct Connection {
    qp: QueuePair,
    stream: TcpStream,
    digest: Digest,
    /// Report of the client, once it is done.
    reported: Option<Report>,
}

/// Events that wake the server.
#[derive(Clone, Copy)]
enum Event {
    /// A new connection.
    Listener,
    /// Messages.
    Channel,
    /// A client says something, or leaves; by the number of its queue pair.
    Stream(u32),
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("event_server: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let context = match &args.device {
        Some(name) => doorbell::open(name)?,
        None => doorbell::devices()?[0].open()?,
    };
    let pd = context.alloc_pd()?;
    let pool = BufferPool::new(&pd, &PoolConfig::new(BUFFERS, MAX_MESSAGE))?;
    let mut receiver = Receiver::new(&pd, &CqConfig::for_pool(&pool).path(args.path))?;
    let srq = receiver.create_srq(&SrqConfig::for_pool(&pool))?;
    receiver.fill(srq, &pool)?;
    let listener = TcpListener::bind(&args.listen).map_err(|e| format!("{}: {e}", args.listen))?;
    println!("listening on {}, path {}", listener.local_addr()?, receiver.path());

    let mut connections: HashMap<u32, Connection> = HashMap::new();
    let (mut served, mut sleeps) = (0, 0u64);
    while args.connections != Some(served) {
        receive(&mut receiver, &mut connections)?;
        for number in complete(&connections) {
            let connection = connections.remove(&number).ok_or("a connection is gone")?;
            println!("{}", end(&mut receiver, connection)?);
            served += 1;
        }
        // A message from here on makes the channel readable; `arm` returns `true` for a message that has arrived
        // before.
        if args.connections == Some(served) || receiver.arm()? {
            continue;
        }
        sleeps += 1;
        for event in wait(&listener, &receiver, &connections)? {
            match event {
                // `arm` takes the events of the channel.
                Event::Channel => {}
                Event::Listener => {
                    let (mut stream, peer) = listener.accept()?;
                    stream.set_read_timeout(Some(PATIENCE))?;
                    let mut qp =
                        QueuePair::builder(&QpConfig::rc().max_send_wr(1)).receive(&mut receiver, srq).build()?;
                    // A client that breaks off now is no reason to stop.
                    if let Err(error) = qp.connect_over(&mut stream) {
                        println!("{peer}: {error}");
                        continue;
                    }
                    let (digest, reported) = (Digest::default(), None);
                    let connection = Connection { qp, stream, digest, reported };
                    connections.insert(connection.qp.qp_num(), connection);
                }
                Event::Stream(number) => {
                    let connection = connections.get_mut(&number).ok_or("an unknown stream")?;
                    match Report::read(&connection.stream) {
                        Ok(report) => connection.reported = Some(report),
                        Err(error) => {
                            println!("QP {number:#x}: no report: {error}");
                            connections.remove(&number);
                            served += 1;
                        }
                    }
                }
            }
        }
    }
    println!("event_server: {served} connections served, slept {sleeps} times");
    Ok(())
}

/// Takes all messages that have arrived.
fn receive(receiver: &mut Receiver, connections: &mut HashMap<u32, Connection>) -> Result<()> {
    loop {
        let mut count = 0;
        let mut batch = receiver.poll();
        while let Some(message) = batch.next() {
            count += 1;
            match message {
                Ok(message) => {
                    if let Some(connection) = connections.get_mut(&message.qp_num()) {
                        connection.digest.update(message.segments());
                    }
                }
                // Only its connection is concerned: the receive goes back to the SRQ.
                Err(failure) => println!("{failure}"),
            }
        }
        if count == 0 {
            return Ok(());
        }
    }
}

/// The connections with a client that is done and no messages to come.
fn complete(connections: &HashMap<u32, Connection>) -> Vec<u32> {
    let complete =
        |connection: &Connection| connection.reported.is_some_and(|sent| connection.digest.messages() >= sent.messages);
    let complete = connections.iter().filter(|(_, connection)| complete(connection));
    complete.map(|(&number, _)| number).collect()
}

/// Reports to the client whether all messages arrived unchanged, and disconnects.
fn end(receiver: &mut Receiver, mut connection: Connection) -> Result<String> {
    let received = connection.digest.report();
    let ok = connection.reported == Some(received);
    connection.stream.write_all(&[u8::from(ok)])?;
    let number = connection.qp.qp_num();
    receiver.destroy_qp(connection.qp)?;
    let verdict = if ok { "as they were sent" } else { "NOT as they were sent" };
    Ok(format!("QP {number:#x}: {} messages, {verdict}", received.messages))
}

/// Sleeps until something happens.
fn wait(listener: &TcpListener, receiver: &Receiver, connections: &HashMap<u32, Connection>) -> Result<Vec<Event>> {
    let channel = receiver.channel().ok_or("the receiver has no completion channel")?;
    let mut events = vec![Event::Listener, Event::Channel];
    let mut fds = vec![poll_in(listener.as_raw_fd()), poll_in(channel.as_raw_fd())];
    // A client that has reported says nothing more.
    for (&number, connection) in connections.iter().filter(|(_, c)| c.reported.is_none()) {
        events.push(Event::Stream(number));
        fds.push(poll_in(connection.stream.as_raw_fd()));
    }
    // SAFETY: as many structures as the vector holds.
    let ready = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, -1) };
    if ready < 0 {
        let error = std::io::Error::last_os_error();
        let interrupted = error.kind() == std::io::ErrorKind::Interrupted;
        return if interrupted { Ok(Vec::new()) } else { Err(error.into()) };
    }
    let ready = fds.iter().zip(events).filter(|(fd, _)| fd.revents != 0);
    Ok(ready.map(|(_, event)| event).collect())
}

const fn poll_in(fd: RawFd) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}
