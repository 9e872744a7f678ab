//! A table of values that clients read and write without the processor of the server: RDMA READ, WRITE and atomics.
//!
//! `slot.rs` has the layout of a slot.
//!
//! - A reader reads the whole slot. A writer may have been at work meanwhile: then the check sum is wrong, and the
//!   reader reads again.
//! - A writer takes the lock with COMPARE_SWAP and a version from a counter with FETCH_ADD, writes, and gives the lock
//!   back with a second WRITE, under the same doorbell.
//!
//! The clients are threads here. Each value follows from key and version, so that all readers can check it.
//!
//! ```text
//! one_sided [auto | direct | verbs]
//! ```

mod slot;

use std::error::Error;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;

use doorbell::{
    Buffer, BufferPool, Completions, CqConfig, DataPath, MemoryRegion, Mtu, PoolConfig, Posting, ProtectionDomain,
    QpConfig, QueuePair, Receiver, Refused, RemoteAccess, RemoteRegion, RqConfig, Sender, SqId,
};

use slot::{SLOT, content};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Clients that read, and as many that write.
const CLIENTS: u64 = 2;
/// Reads or writes of each.
const ROUNDS: u64 = 500;
const SLOTS: usize = 8;
/// The counter of versions comes after the slots.
const COUNTER: usize = SLOTS * SLOT;

fn main() -> Result<()> {
    let path = std::env::args().nth(1).map_or(Ok(DataPath::Auto), |path| path.parse())?;
    let pd = &doorbell::devices()?.first().ok_or("there is no RDMA device")?.open()?.alloc_pd()?;
    let access = RemoteAccess::READ | RemoteAccess::WRITE | RemoteAccess::ATOMIC;
    let mut table = MemoryRegion::with_access(pd, COUNTER + 8, access)?;
    for key in 0..SLOTS {
        table.write(key * SLOT + 8, &content(key, 0));
    }
    let mut receiver = Receiver::new(pd, &CqConfig::new(4096).path(path))?;
    let config = QpConfig::rc().mtu(Mtu::Mtu1024);
    let config = config.remote_read(true).remote_write(true).remote_atomic(true);
    let (mut reads, mut torn, mut writes, mut waited) = (0, 0, 0, 0);
    thread::scope(|scope| {
        let (mut ends, mut readers, mut writers) = (Vec::new(), Vec::new(), Vec::new());
        for id in 1..=2 * CLIENTS {
            let (mut here, there) = UnixStream::pair()?;
            let connect = move || Client::connect(pd, path, there);
            match id <= CLIENTS {
                true => readers.push(scope.spawn(move || connect()?.read_all())),
                false => writers.push(scope.spawn(move || connect()?.write_all(id))),
            }
            let mut qp = QueuePair::builder(&config).receive(&mut receiver, RqConfig::new(1)).build()?;
            qp.connect_over(&mut here)?;
            here.write_all(&table.region().to_bytes())?;
            ends.push((qp, here));
        }
        // The server has nothing to do.
        for reader in readers {
            let (done, again) = reader.join().map_err(|_| "a reader panicked")??;
            (reads, torn) = (reads + done, torn + again);
        }
        for writer in writers {
            let (done, again) = writer.join().map_err(|_| "a writer panicked")??;
            (writes, waited) = (writes + done, waited + again);
        }
        Ok::<_, Box<dyn Error + Send + Sync>>(())
    })?;
    let mut versions = [0; 8];
    table.read(COUNTER, &mut versions);
    if u64::from_ne_bytes(versions) != writes {
        return Err(format!("{} versions of {writes} writes", u64::from_ne_bytes(versions)).into());
    }
    println!("{reads} reads, {torn} of a slot that was being written, and read again");
    println!("{writes} writes, {waited} times somebody else had the lock");
    println!("ok: every value read was one that was written");
    Ok(())
}

struct Client {
    _qp: QueuePair,
    sender: Sender,
    queue: SqId,
    pool: BufferPool,
    table: RemoteRegion,
}

impl Client {
    fn connect(pd: &ProtectionDomain, path: DataPath, mut stream: UnixStream) -> Result<Self> {
        let config = QpConfig::rc().max_send_wr(4).max_inline(8).mtu(Mtu::Mtu1024);
        let mut sender = Sender::new(pd, &CqConfig::for_sends(&config, 1).path(path))?;
        let mut qp = QueuePair::builder(&config).send(&mut sender).build()?;
        let queue = qp.send_queue().ok_or("the queue pair has no send queue")?;
        qp.connect_over(&mut stream)?;
        let mut bytes = [0; RemoteRegion::BYTES];
        stream.read_exact(&mut bytes)?;
        let (pool, table) = (BufferPool::new(pd, &PoolConfig::new(4, SLOT as u32))?, RemoteRegion::from_bytes(&bytes));
        Ok(Self { _qp: qp, sender, queue, pool, table })
    }

    /// Posts requests with one doorbell, and waits for all; returns the buffer of the last request that has a buffer.
    fn execute(
        &mut self,
        requests: impl FnOnce(&mut Posting<'_>, Buffer) -> std::result::Result<(), Refused<Buffer>>,
    ) -> Result<Buffer> {
        let buffer = self.pool.take().ok_or("no buffer")?;
        requests(&mut self.sender.post_many(self.queue)?, buffer)?;
        let mut back = None;
        while self.sender.is_busy(self.queue) {
            let mut batch = self.sender.poll();
            while let Some(done) = batch.next() {
                let done = done?;
                back = done.buffer.or(back);
            }
            drop(batch);
            if self.sender.is_busy(self.queue) {
                self.sender.wait(None)?;
            }
        }
        Ok(back.ok_or("a request without a buffer")?)
    }

    /// Returns how many values it read, and how many slots it read in vain.
    fn read_all(mut self) -> Result<(u64, u64)> {
        let (mut torn, mut newest) = (0, [0; SLOTS]);
        for round in 0..ROUNDS {
            let key = round as usize % SLOTS;
            let slot = self.table.slice(key * SLOT, SLOT)?;
            loop {
                let found = self.execute(|posting, buffer| posting.read(buffer, &slot))?;
                let Some(version) = slot::version(&found) else {
                    torn += 1;
                    continue;
                };
                if found[8..] != content(key, version) || version < newest[key] {
                    return Err(format!("slot {key} has a wrong value of version {version}").into());
                }
                newest[key] = version;
                break;
            }
        }
        Ok((ROUNDS, torn))
    }

    /// Returns how many values it wrote, and how often it did not get the lock.
    fn write_all(mut self, id: u64) -> Result<(u64, u64)> {
        let mut waited = 0;
        let counter = self.table.slice(COUNTER, 8)?;
        for round in 0..ROUNDS {
            let key = (round.wrapping_mul(5) + id) as usize % SLOTS;
            let lock = self.table.slice(key * SLOT, 8)?;
            let cas = |posting: &mut Posting<'_>, buffer| posting.compare_swap(buffer, &lock, 0, id);
            while self.execute(cas)?[..] != [0; 8] {
                waited += 1;
            }
            let before = self.execute(|posting, buffer| posting.fetch_add(buffer, &counter, 1))?;
            let version = 1 + u64::from_ne_bytes(before[..8].try_into()?);
            let value = self.table.slice(key * SLOT + 8, SLOT - 8)?;
            self.execute(|posting, mut buffer| {
                buffer.extend_from_slice(&content(key, version));
                posting.write(buffer, &value)?;
                posting.write([0; 8], &lock).expect("room for two requests");
                Ok(())
            })?;
        }
        Ok((ROUNDS, waited))
    }
}
