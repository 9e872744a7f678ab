//! A store that any number of clients read by RDMA READ over dynamic connections (DC): the server has one target and no
//! queue pair, and each client one initiator.
//!
//! ```text
//! dc_store
//! ```
//!
//! Server and clients are threads of one program here. Programs on several hosts send the [`DcAddress`] of the target
//! and the [`RemoteRegion`] of the table over TCP, and nothing else: a client that comes or goes changes nothing at the
//! server.

use std::error::Error;
use std::thread;

use doorbell::{
    Buffer, BufferPool, Completions, CqConfig, DataPath, DcAddress, DcInitiator, DcTarget, MemoryRegion, NotSent,
    PoolConfig, ProtectionDomain, QpConfig, Receiver, RemoteAccess, RemoteRegion, Sender, SrqConfig,
};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const CLIENTS: u64 = 8;
/// Values that each client reads.
const GETS: u64 = 500;
/// Requests that a client has outstanding at most.
const WINDOW: u32 = 16;
/// Values of the store, and bytes of each.
const KEYS: u64 = 1024;
const VALUE: usize = 64;

/// All that a client needs to know of the server.
#[derive(Clone)]
struct Store {
    target: DcAddress,
    table: RemoteRegion,
}

/// The value of a key: its number, again and again.
fn value(key: u64) -> [u8; VALUE] {
    std::array::from_fn(|at| key.to_be_bytes()[at % 8])
}

struct Client {
    sender: Sender,
    initiator: DcInitiator,
    pool: BufferPool,
    store: Store,
    right: u64,
}

impl Client {
    fn new(pd: &ProtectionDomain, store: Store) -> Result<Self> {
        let config = QpConfig::dc().max_send_wr(WINDOW);
        let mut sender = Sender::new(pd, &CqConfig::for_sends(&config, 1))?;
        let initiator = DcInitiator::new(&mut sender, &config)?;
        let pool = BufferPool::new(pd, &PoolConfig::new(WINDOW, VALUE as u32))?;
        Ok(Self { sender, initiator, pool, store, right: 0 })
    }

    /// Reads values, and says so to the server at the end.
    fn run(mut self, seed: u64) -> Result<u64> {
        let server = self.initiator.peer(&self.store.target)?;
        for number in 0..GETS {
            // Any key: the next one of a sequence that visits all.
            let key = (seed + number * 389) % KEYS;
            let mut buffer = self.buffer()?;
            let record = self.store.table.slice(key as usize * VALUE, VALUE)?;
            loop {
                match self.sender.post(&self.initiator)?.token(key).to(&server).read(buffer, &record) {
                    Ok(()) => break,
                    Err(refused) if matches!(refused.reason, NotSent::Full { .. }) => buffer = refused.payload,
                    Err(refused) => return Err(refused.into()),
                }
                self.take()?;
            }
        }
        while self.sender.is_busy(&self.initiator) {
            self.take()?;
        }
        self.sender.send_dc(&self.initiator, &server, b"done")?;
        while self.sender.is_busy(&self.initiator) {
            self.take()?;
        }
        Ok(self.right)
    }

    /// Waits for a buffer that no request has.
    fn buffer(&mut self) -> Result<Buffer> {
        loop {
            match self.pool.take() {
                Some(buffer) => return Ok(buffer),
                None => self.take()?,
            }
        }
    }

    /// Takes completions, and checks the values that were read.
    fn take(&mut self) -> Result<()> {
        self.sender.wait(None)?;
        while let Some(done) = self.sender.next() {
            // After an error `Sender::take_unsent` has the requests behind it.
            let done = done?;
            if let Some(buffer) = &done.buffer {
                self.right += u64::from(buffer[..] == value(done.token));
            }
        }
        Ok(())
    }
}

fn main() -> Result<()> {
    let path: DataPath = std::env::args().nth(1).as_deref().unwrap_or("auto").parse()?;
    let device = doorbell::devices()?.first().ok_or("no RDMA device")?.open()?;
    let pd = device.alloc_pd()?;

    // The server: a table that peers may read, and a target that lets them.
    let mut table = MemoryRegion::with_access(&pd, KEYS as usize * VALUE, RemoteAccess::READ)?;
    for key in 0..KEYS {
        table.write(key as usize * VALUE, &value(key));
    }
    let pool = BufferPool::new(&pd, &PoolConfig::new(16, 64))?;
    let mut receiver = Receiver::new(&pd, &CqConfig::for_pool(&pool).path(path))?;
    let srq = receiver.create_srq(&SrqConfig::for_pool(&pool))?;
    receiver.fill(srq, &pool)?;
    let target = DcTarget::new(&mut receiver, srq, &QpConfig::dc().remote_read(true), 0x1ee7)?;
    let store = Store { target: target.address()?, table: table.region() };
    println!("the store is at {}", store.target);

    let clients: Vec<_> = (0..CLIENTS)
        .map(|seed| {
            let (pd, store) = (pd.clone(), store.clone());
            thread::spawn(move || Client::new(&pd, store)?.run(seed))
        })
        .collect();
    let mut done = 0;
    while done < CLIENTS {
        receiver.wait(None)?;
        while let Some(message) = receiver.next() {
            done += u64::from(message?[..] == *b"done");
        }
    }
    let mut right = 0;
    for client in clients {
        right += client.join().map_err(|_| "a client panicked")??;
    }
    println!("ok: {right} values read by {CLIENTS} clients through 1 target");
    Ok(())
}
