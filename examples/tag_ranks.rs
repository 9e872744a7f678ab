//! Processes that send each other messages by tag, as the ranks of a parallel program: in each round every rank tells
//! its number to all others and adds up what they tell.
//!
//! The streams of the connections show when a rank dies: the others go on without it. At the end each pair agrees that
//! nothing is under way.
//!
//! ```text
//! tag_ranks 0 HOST:PORT HOST:PORT & tag_ranks 1 HOST:PORT HOST:PORT
//! ```

use std::error::Error;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use doorbell::tags::{PeerId, ReceiveId, RequestId, TagEvent, TagMatchingConfig, TagMatchingSrq, TaggedBuffer};
use doorbell::{BufferPool, CqConfig, DataPath, PoolConfig, QpConfig};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Bytes of a message, and of the header in front of it.
const MESSAGE: u32 = 64;
/// How often a rank looks whether the others live while it waits for them.
const LOOK: Duration = Duration::from_millis(50);
/// How long a rank waits for another to start, and to end.
const PATIENCE: Duration = Duration::from_secs(20);

/// Add up the numbers of all ranks
#[derive(Parser)]
struct Args {
    /// How the queues are driven: auto, direct or verbs
    #[arg(long, default_value_t = DataPath::Auto)]
    path: DataPath,
    /// Rounds
    #[arg(long, default_value_t = 100)]
    rounds: u64,
    /// Abort in this round
    #[arg(long)]
    dies: Option<u64>,
    /// Number of this process
    rank: usize,
    /// Address of each rank
    #[arg(required = true)]
    addresses: Vec<SocketAddr>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tag_ranks: rank {}: {error}", args.rank);
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let pd = doorbell::devices()?.first().ok_or("there is no RDMA device")?.open()?.alloc_pd()?;
    let config = TagMatchingConfig::new(64).cq(CqConfig::default().path(args.path));
    let mut tags = TagMatchingSrq::new(&pd, &config)?;
    // For messages of ranks that are a round ahead.
    tags.keep_filled(&BufferPool::new(&pd, &PoolConfig::new(256, 2 * MESSAGE))?)?;
    let pool = BufferPool::new(&pd, &PoolConfig::new(256, 2 * MESSAGE))?;
    let mut ranks = Ranks { me: args.rank, tags, pool, others: Vec::new() };
    ranks.connect(&args.addresses)?;
    println!("rank {}: {} others, path {}", ranks.me, ranks.living(), ranks.tags.path());
    let mut sum = 0;
    for round in 0..args.rounds {
        if args.dies == Some(round) {
            std::process::abort();
        }
        sum = ranks.round(round)?;
    }
    let living = ranks.living();
    ranks.end()?;
    println!("rank {}: {} rounds, {living} others at the end, sum {sum}", args.rank, args.rounds);
    Ok(())
}

/// Another rank that lives.
struct Other {
    peer: PeerId,
    stream: TcpStream,
}

struct Ranks {
    me: usize,
    tags: TagMatchingSrq,
    pool: BufferPool,
    /// By rank; `None` for this one, and for those that have died.
    others: Vec<Option<Other>>,
}

impl Ranks {
    /// Connects to all. In each pair the lower rank listens.
    fn connect(&mut self, addresses: &[SocketAddr]) -> Result<()> {
        let listener = TcpListener::bind(addresses[self.me])?;
        let mut streams: Vec<_> = addresses.iter().map(|_| None).collect();
        for (rank, address) in addresses.iter().enumerate().take(self.me) {
            let mut stream = patiently(|| TcpStream::connect(address))?;
            stream.write_all(&(self.me as u32).to_be_bytes())?;
            streams[rank] = Some(stream);
        }
        for _ in self.me + 1..addresses.len() {
            let (mut stream, mut rank) = (listener.accept()?.0, [0; 4]);
            stream.read_exact(&mut rank)?;
            *streams.get_mut(u32::from_be_bytes(rank) as usize).ok_or("there is no such rank")? = Some(stream);
        }
        for stream in streams {
            // A peer for this rank, too: the index of a peer is its rank then.
            let peer = self.tags.add_peer(&QpConfig::rc().max_send_wr(16))?;
            let other = match stream {
                Some(mut stream) => {
                    self.tags.connect_over(peer, &mut stream)?;
                    stream.set_nonblocking(true)?;
                    Some(Other { peer, stream })
                }
                None => None,
            };
            self.others.push(other);
        }
        Ok(())
    }

    fn living(&self) -> usize {
        self.others.iter().flatten().count()
    }

    /// Tells the number of this rank to all others, and returns the sum of all that live.
    fn round(&mut self, round: u64) -> Result<u64> {
        let mut silent: Vec<bool> = self.others.iter().map(Option::is_some).collect();
        let (mut receives, mut sends) = (Vec::new(), Vec::new());
        for peer in self.others.iter().flatten().map(|other| other.peer) {
            // From any of them: the event says from whom.
            receives.push(self.tags.post(round, u64::MAX, self.pool.take().ok_or("the pool is too small")?)?);
            let mut message = TaggedBuffer::new(self.pool.take().ok_or("the pool is too small")?)?;
            message.set_len(8);
            message.copy_from_slice(&(self.me as u64).to_be_bytes());
            sends.push(self.tags.send(peer, round, 0, message)?);
        }
        let mut sum = self.me as u64;
        while let Some(request) = next_of(&receives, &sends) {
            match self.tags.wait_for(request, LOOK)? {
                Some(TagEvent::Received(got)) => {
                    silent[got.peer.index()] = false;
                    sum += u64::from_be_bytes(got.buffer[..].try_into()?);
                    receives.remove(0);
                }
                Some(TagEvent::Cancelled { .. }) => _ = receives.remove(0),
                // One to a rank that has died fails, and its stream ends.
                Some(TagEvent::Sent(_)) => _ = sends.remove(0),
                Some(other) => return Err(format!("{other:?}").into()),
                None => {
                    for rank in self.dead()? {
                        println!("rank {}: rank {rank} has died in round {round}", self.me);
                        // The message for which this receive was posted does not come.
                        if std::mem::take(&mut silent[rank]) {
                            self.cancel_one(&receives);
                        }
                    }
                }
            }
        }
        Ok(sum)
    }

    /// Removes the ranks that have died, and returns them.
    fn dead(&mut self) -> Result<Vec<usize>> {
        // A failure to send is no proof of a death, and no news: the stream decides.
        while self.tags.next_notice().is_some() {}
        let mut dead = Vec::new();
        for rank in 0..self.others.len() {
            let Some(other) = &self.others[rank] else { continue };
            // The first byte of the end can be there already.
            let lives = match other.stream.peek(&mut [0]) {
                Ok(count) => count > 0,
                Err(error) => error.kind() == ErrorKind::WouldBlock,
            };
            if !lives {
                self.tags.remove_peer(other.peer)?;
                self.others[rank] = None;
                dead.push(rank);
            }
        }
        Ok(dead)
    }

    /// Cancels a receive that has no message yet. If all have one, those of the dead rank came before it died.
    fn cancel_one(&mut self, receives: &[ReceiveId]) {
        for &receive in receives.iter().rev() {
            if self.tags.cancel(receive).is_ok() {
                break;
            }
        }
    }

    /// Ends all connections, in the order of ranks.
    fn end(mut self) -> Result<()> {
        for Other { peer, mut stream } in self.others.into_iter().flatten() {
            stream.set_nonblocking(false)?;
            self.tags.end_over(peer, &mut stream, PATIENCE)?;
        }
        Ok(())
    }
}

fn next_of(receives: &[ReceiveId], sends: &[doorbell::tags::SendId]) -> Option<RequestId> {
    receives.first().map(|id| (*id).into()).or(sends.first().map(|id| (*id).into()))
}

/// Tries until the other side listens.
fn patiently<T>(mut attempt: impl FnMut() -> std::io::Result<T>) -> std::io::Result<T> {
    let began = Instant::now();
    loop {
        match attempt() {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused && began.elapsed() < PATIENCE => {
                thread::sleep(LOOK);
            }
            done => return done,
        }
    }
}
