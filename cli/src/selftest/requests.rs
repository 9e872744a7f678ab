//! Group K: requests other than a SEND of one piece that the device has room for.

use std::time::Duration;

use doorbell::{
    Buffer, BufferPool, CqConfig, DataPath, MemoryRegion, NotSent, PoolConfig, Posting, QpConfig, QueuePair, Receiver,
    RemoteAccess, RemoteRegion, RqConfig, Sender, WcStatus,
};

use super::check::{Check, Needs};
use super::far::config;
use super::lab::{Lab, Patience};
use super::pair::{Pair, Shape};
use super::receive::payload;
use super::rings::{SendTap, Tap};
use super::stop::{Stop, fail, same};
use super::windows::windows;

pub const CHECKS: &[Check] = &[
    Check { id: "K55", name: "WRITE and READ move the bytes", needs: Needs::Device, run: write_and_read },
    Check { id: "K56", name: "compare and swap, fetch and add", needs: Needs::Device, run: atomics },
    Check { id: "K57", name: "a fenced request waits for the READ before it", needs: Needs::Rings, run: fence },
    Check { id: "K58", name: "several buffers in a request", needs: Needs::Device, run: gather },
    Check { id: "K59", name: "WQEs of 1 to 15 blocks around the end of the ring", needs: Needs::Rings, run: sizes },
    Check { id: "K60", name: "requests behind a failed one are flushed", needs: Needs::Rings, run: flushed },
    Check { id: "K61", name: "a sender tries again until a receive is posted", needs: Needs::Rings, run: not_ready },
    Check { id: "K62", name: "a CQ that libmlx5 resizes keeps its CQEs", needs: Needs::Rings, run: resize },
    Check { id: "K67", name: "access by a memory window ends", needs: Needs::Device, run: windows },
];

/// Bytes that peers may access, and of each buffer.
const BYTES: usize = 4096;
const RECEIVES: u32 = 32;

/// A connection of this port to itself, whose far end lets its memory be accessed.
struct Connection {
    sender: Sender,
    from: QueuePair,
    receiver: Receiver,
    _to: QueuePair,
    memory: MemoryRegion,
    pool: BufferPool,
    tap: Option<(Tap, SendTap)>,
    /// CQEs whose WQEs were noted.
    noted: usize,
}

/// A request that is over.
#[derive(Debug, PartialEq, Eq)]
struct Done {
    token: u64,
    status: WcStatus,
    bytes: Vec<Vec<u8>>,
}

impl Connection {
    fn new(lab: &Lab, with: impl FnOnce(QpConfig) -> QpConfig) -> Result<Self, Stop> {
        let mut receiver = Receiver::new(&lab.pd, &CqConfig::new(2 * RECEIVES).path(lab.path()))?;
        let mut sender = Sender::new(&lab.pd, &CqConfig::new(256).path(lab.path()))?;
        let config = with(config(lab, false).remote_write(true).remote_read(true).remote_atomic(true));
        let small = RqConfig::new(1);
        let mut from = QueuePair::builder(&config).receive(&mut receiver, small).send(&mut sender).build()?;
        let mut to = QueuePair::builder(&config).receive(&mut receiver, RqConfig::new(RECEIVES)).build()?;
        from.connect(&to.address()?)?;
        to.connect(&from.address()?)?;
        let tap = match lab.direct {
            true => {
                // SAFETY: a live queue pair.
                let cq = unsafe { (*from.as_raw()).send_cq };
                Some((Tap::new(cq, &lab.witness)?, SendTap::new(from.as_raw(), &lab.witness)?))
            }
            false => None,
        };
        let pool = BufferPool::new(&lab.pd, &PoolConfig::new(2 * RECEIVES, BYTES as u32))?;
        receiver.fill(to.receive_queue().ok_or("no receive queue")?, &pool)?;
        let access = RemoteAccess::WRITE | RemoteAccess::READ | RemoteAccess::ATOMIC;
        let memory = MemoryRegion::with_access(&lab.pd, BYTES, access)?;
        let mut witness = lab.witness.borrow_mut();
        witness.made("queue pairs", 2);
        witness.made("CQs", 2);
        witness.made("memory of peers", 1);
        Ok(Self { sender, from, receiver, _to: to, memory, pool, tap, noted: 0 })
    }

    fn post_many(&mut self) -> Result<Posting<'_>, Stop> {
        Ok(self.sender.post_many(self.from.send_queue().ok_or(NotSent::NoQueue)?)?)
    }

    /// Posts one request.
    fn post(&mut self, request: impl FnOnce(&mut Posting<'_>) -> Result<(), NotSent>) -> Result<(), Stop> {
        Ok(request(&mut self.post_many()?)?)
    }

    fn buffer(&self, bytes: &[u8]) -> Result<Buffer, Stop> {
        let mut buffer = self.pool.take().ok_or("no buffer")?;
        buffer.extend_from_slice(bytes);
        Ok(buffer)
    }

    fn region(&self, at: usize, len: usize) -> Result<RemoteRegion, Stop> {
        Ok(self.memory.region().slice(at, len)?)
    }

    fn bytes_at(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read(at, &mut bytes);
        bytes
    }

    /// Reads the new CQEs before the sender takes them, and notes their WQEs.
    fn look(&mut self) {
        if let Some((tap, wqes)) = &mut self.tap {
            let seen = tap.look();
            tap.take(seen);
            tap.seen[self.noted..].iter().for_each(|cqe| wqes.executed(cqe));
            self.noted = tap.seen.len();
        }
    }

    /// Waits for a request that is over.
    fn done(&mut self) -> Result<Done, Stop> {
        let patience = Patience::new();
        loop {
            self.look();
            match self.sender.next() {
                Some(Ok(mut done)) => {
                    let mut bytes: Vec<_> = done.buffer.take().iter().map(|buffer| buffer.to_vec()).collect();
                    while let Some(buffer) = done.next_buffer() {
                        bytes.push(buffer.to_vec());
                    }
                    return Ok(Done { token: done.token, status: WcStatus::SUCCESS, bytes });
                }
                Some(Err(failed)) => {
                    return Ok(Done { token: failed.token, status: failed.status, bytes: Vec::new() });
                }
                None => patience.wait(|| "a request that has no completion".into())?,
            }
        }
    }

    /// Waits for a request that must succeed; returns the bytes of its buffers.
    fn succeeded(&mut self) -> Result<Vec<Vec<u8>>, Stop> {
        let done = self.done()?;
        same(format!("status of request {}", done.token), &WcStatus::SUCCESS, &done.status)?;
        Ok(done.bytes)
    }

    /// Waits for a message: its bytes and immediate data.
    fn message(&mut self) -> Result<(Vec<u8>, Option<u32>), Stop> {
        let patience = Patience::new();
        loop {
            if let Some(message) = self.receiver.next() {
                let message = message?;
                return Ok((message.segments().flatten().copied().collect(), message.imm()));
            }
            patience.wait(|| "a message that does not arrive".into())?;
        }
    }
}

/// Posts a request whose payload needs not come back if it is refused.
macro_rules! post {
    ($connection:ident, $($request:tt)*) => {
        $connection.post(|posting| posting.$($request)*.map_err(NotSent::from))?
    };
}

fn write_and_read(lab: &mut Lab) -> Result<String, Stop> {
    let mut c = Connection::new(lab, |config| config.max_inline(60))?;
    let lengths = [1, 4, 60, 1000, BYTES];
    for (number, len) in lengths.into_iter().enumerate() {
        let (bytes, all) = (payload(number as u32, len), c.region(0, len)?);
        let buffer = c.buffer(&bytes)?;
        post!(c, write(buffer, &all));
        c.succeeded()?;
        same(format!("memory after a WRITE of {len}"), &bytes, &c.bytes_at(0, len))?;
        let buffer = c.buffer(b"")?;
        post!(c, read(buffer, &all));
        same(format!("bytes of a READ of {len}"), &vec![bytes], &c.succeeded()?)?;
    }
    for number in 0..40u32 {
        let (bytes, at) = (payload(number, 24), c.region(64, 24)?);
        post!(c, write_with_imm(&bytes[..], &at, number));
        same("message of a WRITE", &(Vec::new(), Some(number)), &c.message()?)?;
        c.succeeded()?;
        same("memory after a WRITE with immediate data", &bytes, &c.bytes_at(64, 24))?;
        post!(c, write(&bytes[..8], &at));
        c.succeeded()?;
    }
    Ok(format!("of {lengths:?} bytes; 40 with immediate data"))
}

fn atomics(lab: &mut Lab) -> Result<String, Stop> {
    let mut c = Connection::new(lab, |config| config)?;
    let at = c.region(64, 8)?;
    let (mut number, rounds) = (0x1122_3344_5566_7788u64, 20);
    c.memory.write(64, &number.to_ne_bytes());
    for round in 0..rounds {
        // Each third one compares with another value, and changes nothing.
        let (compare, swap) = (number ^ u64::from(round % 3 == 0), number.rotate_left(9) ^ round);
        let buffer = c.buffer(b"")?;
        post!(c, compare_swap(buffer, &at, compare, swap));
        let before = vec![number.to_ne_bytes().to_vec()];
        same(format!("value before compare and swap {round}"), &before, &c.succeeded()?)?;
        number = if compare == number { swap } else { number };
        same("value after it", &number.to_ne_bytes().to_vec(), &c.bytes_at(64, 8))?;
        let buffer = c.buffer(b"")?;
        post!(c, fetch_add(buffer, &at, u64::MAX - round));
        let before = vec![number.to_ne_bytes().to_vec()];
        same(format!("value before fetch and add {round}"), &before, &c.succeeded()?)?;
        number = number.wrapping_add(u64::MAX - round);
        same("value after it", &number.to_ne_bytes().to_vec(), &c.bytes_at(64, 8))?;
    }
    Ok(format!("{rounds} of each, with the values before and after"))
}

fn fence(lab: &mut Lab) -> Result<String, Stop> {
    let mut c = Connection::new(lab, |config| config)?;
    let (all, rounds) = (c.region(0, BYTES)?, 50);
    for round in 0..rounds {
        let old = payload(round, BYTES);
        c.memory.write(0, &old);
        let (into, new) = (c.buffer(b"")?, c.buffer(&payload(!round, BYTES))?);
        let mut posting = c.post_many()?;
        posting.token(1).read(into, &all)?;
        posting.token(2).fence().write(new, &all)?;
        drop(posting);
        let read = c.done()?;
        if read != (Done { token: 1, status: WcStatus::SUCCESS, bytes: vec![old] }) {
            return fail(format!("round {round}: a READ got bytes of the fenced WRITE after it, or failed"));
        }
        c.succeeded()?;
    }
    Ok(format!("{rounds} READs of memory that the next request overwrites"))
}

fn gather(lab: &mut Lab) -> Result<String, Stop> {
    let mut c = Connection::new(lab, |config| config.max_send_sge(3))?;
    for round in 0..30u32 {
        let pieces = [1, 2, 3].map(|piece| payload(round * 4 + piece, 1 + (round * piece) as usize % 300));
        let buffers = [c.buffer(&pieces[0])?, c.buffer(&pieces[1])?, c.buffer(&pieces[2])?];
        post!(c, send(buffers));
        same(format!("message {round}"), &pieces.concat(), &c.message()?.0)?;
        c.succeeded()?;
    }
    Ok("30 messages of three pieces of 1 to 300 bytes".into())
}

/// Bytes that a SEND of so many blocks has room for: 16 bytes are of the control segment, 4 say how many bytes follow.
const fn room(blocks: usize) -> usize {
    64 * blocks - 20
}

fn sizes(lab: &mut Lab) -> Result<String, Stop> {
    const MOST: usize = 15;
    // Queue pairs of an older driver may have less room.
    let made = Connection::new(lab, |config| config.max_send_wr(4).max_inline(room(MOST) as u32));
    let mut c = made.map_err(|stop| match stop {
        Stop::Fail(why) => Stop::Cannot(format!("no queue pair with WQEs of {MOST} blocks: {why}")),
        cannot => cannot,
    })?;
    let mut sent = 0;
    for round in 0..if lab.quick { 4 } else { 40 } {
        for blocks in 1..=MOST {
            // From a round to the next each size moves on by one block.
            if blocks == 1 && round % 2 == 1 {
                continue;
            }
            let bytes = payload(sent, room(blocks) - round % 16);
            post!(c, send(&bytes[..]));
            same(format!("message of {blocks} blocks"), &bytes, &c.message()?.0)?;
            c.succeeded()?;
            sent += 1;
        }
    }
    Ok(format!("{sent} messages"))
}

fn flushed(lab: &mut Lab) -> Result<String, Stop> {
    const BEHIND: u64 = 6;
    let mut c = Connection::new(lab, |config| config)?;
    let wrong = RemoteRegion::new(c.memory.region().addr(), 8, c.memory.region().rkey() ^ 0xff00);
    let mut posting = c.post_many()?;
    // With one doorbell, so that only the last has a CQE of its own.
    posting.token(0).write(b"nowhere.", &wrong)?;
    for token in 1..=BEHIND {
        posting.token(token).send(b"behind")?;
    }
    drop(posting);
    for token in 0..=BEHIND {
        let status = if token == 0 { WcStatus::REM_ACCESS_ERR } else { WcStatus::WR_FLUSH_ERR };
        same("a request that failed", &Done { token, status, bytes: Vec::new() }, &c.done()?)?;
    }
    Ok(format!("{BEHIND} of which one has a CQE of its own"))
}

fn not_ready(lab: &mut Lab) -> Result<String, Stop> {
    // 164 ms from a try to the next (code 28): all tries take a second.
    let receives_with: fn(QpConfig) -> QpConfig = |config| config.min_rnr_timer(28);
    let shape = Shape { fill: false, rnr_retry: 6, receives_with, ..Shape::new(lab) };
    let mut pair = Pair::new(lab, &shape)?;
    pair.send(0, b"early", None)?;
    std::thread::sleep(Duration::from_millis(20));
    pair.fill()?;
    pair.receive(1, |message| same("message", &b"early".to_vec(), &message?.to_vec()))?;
    pair.all_sent(0)?;
    Ok("the receive came between two tries".into())
}

fn resize(lab: &mut Lab) -> Result<String, Stop> {
    // A tap would read the memory of the CQ that libmlx5 frees.
    let shape = Shape { path: DataPath::Verbs, watched: false, ..Shape::new(lab) };
    let mut pair = Pair::new(lab, &shape)?;
    let mut next = 0;
    for entries in [1024, 256, 512] {
        let first = next;
        for number in first..first + 20 {
            pair.send(0, &payload(number, 30), None)?;
        }
        pair.all_sent(0)?;
        let mut receive = |pair: &mut Pair, count| {
            pair.receive(count, |message| {
                next += 1;
                same(format!("message {}", next - 1), &payload(next - 1, 30), &message?.to_vec())
            })
        };
        receive(&mut pair, 5)?;
        pair.receiver.resize_cq(entries)?;
        receive(&mut pair, 15)?;
        for number in first + 20..first + 40 {
            pair.send(0, &payload(number, 30), None)?;
        }
        receive(&mut pair, 20)?;
        pair.all_sent(0)?;
    }
    Ok("larger and smaller, with 15 CQEs in it".into())
}
