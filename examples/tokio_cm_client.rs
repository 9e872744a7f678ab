//! A client in tasks of tokio that connects by IP address to `cm_server`. It tries until the server is there, notices
//! when the server leaves, and connects again with the same queue pair.
//!
//! ```text
//! cm_server 127.0.0.1:18516 & tokio_cm_client 127.0.0.1:18516
//! ```

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use doorbell::rdmacm::{Connection, Route};
use doorbell::{Async, CqConfig, DataPath, QpConfig, QueuePair, Receiver, RqConfig, Sender};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// How long one attempt to connect, and the answer to the end of a connection, may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(100);
/// Bytes of a message.
const MESSAGE: u32 = 64;

/// Send to a server that may come later, or leave and come again
#[derive(Parser)]
struct Args {
    /// How the queues are driven: auto, direct or verbs
    #[arg(long, default_value_t = DataPath::Auto)]
    path: DataPath,
    /// Messages
    #[arg(long, default_value_t = 1000)]
    messages: u64,
    /// Microseconds between two messages
    #[arg(long, default_value_t = 0)]
    gap: u64,
    /// Seconds without a server after which the client gives up
    #[arg(long, default_value_t = 20)]
    give_up: u64,
    /// Address of the server
    server: SocketAddr,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run(&Args::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tokio_cm_client: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: &Args) -> Result<()> {
    let mut client: Option<Client> = None;
    let mut sent = 0;
    loop {
        let mut connection = connect(args, &mut client, args.messages - sent).await?;
        let client = client.as_mut().ok_or("connected without a queue pair")?;
        println!("connected, {sent} of {} messages sent", args.messages);
        let done = client.send(args, &mut connection, &mut sent).await;
        // Ends also a connection that has failed: the server must hear of it before the queue pair comes again.
        connection.disconnect(&client.qp)?;
        let answered = timeout(PATIENCE, connection.wait_disconnected_async()).await;
        match done {
            Ok(()) => break,
            Err(error) => println!("{error}; the server has {}", if answered.is_ok() { "left" } else { "vanished" }),
        }
        client.reset()?;
    }
    println!("tokio_cm_client: {sent} messages sent");
    Ok(())
}

/// The objects of all connections, on the device that led to the server first.
struct Client {
    /// It only resets the queue pair.
    receiver: Receiver,
    sender: Async<Sender>,
    qp: QueuePair,
}

impl Client {
    fn new(device: &str, path: DataPath) -> Result<Self> {
        let pd = doorbell::open(device)?.alloc_pd()?;
        // A lost server is noticed after some tens of milliseconds.
        let config = QpConfig::rc().max_send_wr(16).max_inline(MESSAGE).timeout(10).retry_cnt(3);
        let mut receiver = Receiver::new(&pd, &CqConfig::new(4).path(path))?;
        let mut sender = Sender::new(&pd, &CqConfig::for_sends(&config, 1).path(path))?;
        let qp = QueuePair::builder(&config).receive(&mut receiver, RqConfig::new(1)).send(&mut sender).build()?;
        Ok(Self { receiver, sender: Async::new(sender)?, qp })
    }

    /// Sends the rest of the messages, each after the one before has arrived, while a watcher waits for the server to
    /// leave.
    async fn send(&mut self, args: &Args, connection: &mut Connection, sent: &mut u64) -> Result<()> {
        let Self { sender, qp, .. } = self;
        let messages = async {
            while *sent < args.messages {
                sender.send(&*qp, sent.to_be_bytes())?;
                while sender.is_busy(&*qp) {
                    sender.ready().await?;
                    while let Some(done) = sender.next() {
                        done?;
                        *sent += 1;
                    }
                }
                sleep(Duration::from_micros(args.gap)).await;
            }
            Ok(())
        };
        tokio::select! {
            done = messages => done,
            left = connection.wait_disconnected_async() => Err(left.map_or_else(Into::into, |()| "disconnected".into())),
        }
    }

    /// Makes the queue pair as good as new. What was outstanding comes back flushed: it is sent again.
    fn reset(&mut self) -> Result<()> {
        self.receiver.reset_qp(&mut self.qp)?;
        while self.sender.is_busy(&self.qp) {
            while self.sender.next().is_some() {}
        }
        Ok(())
    }
}

/// Tries to connect until the server answers, and says how many messages will come. Makes the client when a device
/// leads to the server.
async fn connect(args: &Args, client: &mut Option<Client>, promised: u64) -> Result<Connection> {
    let (server, path, began) = (args.server, args.path, Instant::now());
    loop {
        // The connection manager waits for its peer in a thread of its own. The queue pair moves there and back.
        let mut there = client.take();
        let attempt = spawn_blocking(move || {
            let mut connect = || -> Result<Connection> {
                let route = Route::resolve(server, PATIENCE)?;
                let client = match &mut there {
                    Some(client) => client,
                    None => there.insert(Client::new(route.device_name(), path)?),
                };
                Ok(route.connect(&mut client.qp, &promised.to_be_bytes(), PATIENCE)?)
            };
            let connected = connect();
            (there, connected)
        });
        let connected;
        (*client, connected) = attempt.await?;
        match connected {
            Ok(connection) => return Ok(connection),
            Err(error) if began.elapsed() > Duration::from_secs(args.give_up) => return Err(error),
            Err(_) => sleep(PAUSE).await,
        }
    }
}
