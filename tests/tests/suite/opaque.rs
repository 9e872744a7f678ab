//! Memory that the processor does not read: dma-bufs that the program has mapped without any right, and memory of the
//! adapter.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::{ptr, slice};

use doorbell::opaque::{Opaque, OpaqueMemory};
use doorbell::{
    Buffer, BufferPool, Cause, CqConfig, Error, MemoryRegion, PoolConfig, ProtectionDomain, QpConfig, QueueId,
    QueuePair, Receiver, RemoteAccess, RemoteRegion, Request, RqConfig, SendFailure, Sender, SqId, SrqConfig, WcStatus,
};
use doorbell_tests::peers::join;
use doorbell_tests::receiving::wait_for;
use doorbell_tests::{device, skip};

use self::dma_buf::{memfd, udmabuf};

#[path = "../../../soft-mlx5/tests/common/dma_buf.rs"]
mod dma_buf;

const PAGE: usize = 4096;
/// Bytes of a dma-buf before the part that is registered.
const OFFSET: usize = 2 * PAGE;
const SIZE: usize = 2048;

fn everything() -> RemoteAccess {
    RemoteAccess::READ | RemoteAccess::WRITE | RemoteAccess::ATOMIC
}

/// The mapping of a dma-buf in this process, without any right but while a test looks.
struct Guarded(*mut u8, usize);

impl Guarded {
    fn new(fd: &OwnedFd, len: usize) -> Self {
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, libc::PROT_NONE, libc::MAP_SHARED, fd.as_raw_fd(), 0) };
        assert_ne!(start, libc::MAP_FAILED);
        Self(start.cast(), len)
    }

    fn with<T>(&self, act: impl FnOnce(&mut [u8]) -> T) -> T {
        let allow = |rights| {
            // SAFETY: our mapping.
            assert_eq!(unsafe { libc::mprotect(self.0.cast(), self.1, rights) }, 0);
        };
        allow(libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: our mapping, which the device does not use meanwhile: nothing is outstanding.
        let result = act(unsafe { slice::from_raw_parts_mut(self.0, self.1) });
        allow(libc::PROT_NONE);
        result
    }

    /// The bytes of a buffer.
    fn bytes(&self, buffer: &Buffer<Opaque>) -> Vec<u8> {
        self.with(|bytes| bytes[OFFSET + buffer.offset()..][..buffer.len()].to_vec())
    }

    fn store(&self, buffer: &mut Buffer<Opaque>, content: &[u8]) {
        self.with(|bytes| bytes[OFFSET + buffer.offset()..][..content.len()].copy_from_slice(content));
        buffer.set_len(content.len());
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: our mapping, unmapped once.
        unsafe { libc::munmap(self.0.cast(), self.1) };
    }
}

/// Registers all of a dma-buf after its first pages; `None` if the device takes no dma-bufs.
fn register(pd: &ProtectionDomain, fd: OwnedFd, len: usize, access: RemoteAccess) -> Option<OpaqueMemory> {
    match OpaqueMemory::dma_buf(pd, fd, OFFSET as u64, len - OFFSET, access) {
        Ok(memory) => Some(memory),
        Err(refused) if refused.reason.to_string().contains("takes no dma-bufs") => None,
        Err(refused) => panic!("{refused}"),
    }
}

/// Two connected queue pairs. The near one has opaque buffers, the far one ordinary ones.
struct Ends {
    /// Where the near side receives.
    queue: QueueId,
    near: QueuePair,
    far: QueuePair,
    receiver: Receiver<Opaque>,
    sender: Sender,
    far_receiver: Receiver,
    far_sender: Sender,
    /// Buffers of the far side.
    host: BufferPool,
    remote: MemoryRegion,
}

impl Ends {
    fn new(pd: &ProtectionDomain, own: bool, pool: &BufferPool<Opaque>) -> Self {
        let cq = || CqConfig::new(64).path(device::path());
        let mut receiver = Receiver::opaque(pd, &cq()).unwrap();
        let mut sender = device::sender(pd, 64);
        let mut far_receiver = device::receiver(pd, 64);
        let mut far_sender = device::sender(pd, 64);
        let config = QpConfig::rc().max_send_wr(8).max_send_sge(2).max_inline(64);
        let config = config.remote_read(true).remote_write(true).remote_atomic(true);
        let srq = receiver.create_srq(&SrqConfig::new(3)).unwrap();
        let builder = QueuePair::builder(&config);
        let builder = match own {
            true => builder.receive(&mut receiver, RqConfig::new(4)),
            false => builder.receive(&mut receiver, srq),
        };
        let mut near = builder.send(&mut sender).build().unwrap();
        let mut far = QueuePair::builder(&config)
            .receive(&mut far_receiver, RqConfig::new(4))
            .send(&mut far_sender)
            .build()
            .unwrap();
        join(&mut near, &mut far);
        let queue = near.receive_queue().map_or(srq.into(), QueueId::from);
        assert!(receiver.fill(queue, pool).unwrap() >= 3);
        let host = BufferPool::new(pd, &PoolConfig::new(16, SIZE as u32)).unwrap();
        far_receiver.fill(far.receive_queue().unwrap(), &host).unwrap();
        let remote = MemoryRegion::with_access(pd, SIZE, everything()).unwrap();
        Self { queue, near, far, receiver, sender, far_receiver, far_sender, host, remote }
    }

    /// Receives a message that the far side sends, and returns its buffer.
    fn receive(&mut self, bytes: &[u8], inline: bool) -> Buffer<Opaque> {
        let queue = self.far.send_queue().unwrap();
        if inline {
            self.far_sender.send(queue, bytes).unwrap();
        } else {
            let mut buffer = self.host.take().unwrap();
            buffer.extend_from_slice(bytes);
            self.far_sender.send(queue, buffer).unwrap();
        }
        let buffer = wait_for("a message", || {
            let mut batch = self.receiver.poll();
            let message = batch.next()?.unwrap();
            assert_eq!((message.len(), message.imm()), (bytes.len(), None));
            Some(message.take().unwrap())
        });
        done(&mut self.far_sender);
        buffer
    }

    /// Runs a request of the near side, and returns its buffers.
    fn run(&mut self, post: impl FnOnce(Request<'_>)) -> Vec<Buffer<Opaque>> {
        let queue: SqId = self.near.send_queue().unwrap();
        post(self.sender.post(queue).unwrap().token(7));
        done(&mut self.sender)
    }
}

/// Waits for the next request of a sender, which succeeds, and takes its opaque buffers.
fn done(sender: &mut Sender) -> Vec<Buffer<Opaque>> {
    wait_for("a completion", || {
        let mut batch = sender.poll();
        let mut done = batch.next()?.unwrap();
        let buffers: Vec<_> = std::iter::from_fn(|| done.opaque_buffer()).collect();
        assert!(buffers.is_empty() || done.buffer.is_none() && done.next_buffer().is_none());
        Some(buffers)
    })
}

fn failed(sender: &mut Sender) -> SendFailure {
    wait_for("a failure", || sender.poll().next().map(|done| done.expect_err("the key is wrong")))
}

fn content(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_mul(7) ^ seed).collect()
}

fn only(mut buffers: Vec<Buffer<Opaque>>) -> Buffer<Opaque> {
    assert_eq!(buffers.len(), 1);
    buffers.pop().unwrap()
}

/// The requests of a program on memory that a read or write of the processor would fault on.
fn requests_on(fd: OwnedFd, len: usize, own: bool) -> bool {
    let pd = device::pd();
    let guarded = Guarded::new(&fd, len);
    let Some(memory) = register(&pd, fd, len, RemoteAccess::empty()) else { return false };
    let pool = BufferPool::divide(memory, 8, SIZE as u32).unwrap();
    let mut ends = Ends::new(&pd, own, &pool);

    // Messages as short as those that a device puts into CQEs, and long ones.
    let mut last: Option<Buffer<Opaque>> = None;
    for (seed, len) in [1, 8, 32, 33, 64, SIZE].into_iter().enumerate() {
        let sent = content(len, seed as u8);
        let buffer = ends.receive(&sent, len <= 64);
        assert_eq!(guarded.bytes(&buffer), sent);
        // The queue of each round is full.
        drop(last.replace(buffer));
        let fresh = pool.take().unwrap();
        ends.receiver.post(ends.queue, [fresh]).unwrap();
    }
    // A request as short as those that are sent inline, from a buffer that a receive has filled.
    let mut buffer = last.unwrap();
    guarded.store(&mut buffer, b"from the GPU");
    let buffer = only(ends.run(|request| request.send(buffer).unwrap()));
    assert_eq!(buffer.len(), 12);
    wait_for("the message", || {
        let mut batch = ends.far_receiver.poll();
        let message = batch.next()?.unwrap();
        assert_eq!(*message, *b"from the GPU");
        Some(())
    });
    // RDMA: two buffers to the peer's memory, and back into one.
    let mut second = pool.take().unwrap();
    guarded.store(&mut second, b", twice");
    let to = ends.remote.region().slice(0, 19).unwrap();
    let mut both = ends.run(|request| request.write([buffer, second], &to).unwrap());
    let mut found = [0; 19];
    ends.remote.read(0, &mut found);
    assert_eq!(found, *b"from the GPU, twice");
    let buffer = both.pop().unwrap();
    let buffer = only(ends.run(|request| request.read(buffer, &to).unwrap()));
    assert_eq!(guarded.bytes(&buffer), *b"from the GPU, twice");
    // Atomics, whose answers a device puts into CQEs.
    let at = ends.remote.region().slice(64, 8).unwrap();
    ends.remote.write(64, &40u64.to_ne_bytes());
    let buffer = only(ends.run(|request| request.fetch_add(buffer, &at, 2).unwrap()));
    assert_eq!(guarded.bytes(&buffer), 40u64.to_ne_bytes());
    let buffer = only(ends.run(|request| request.compare_swap(buffer, &at, 42, 9).unwrap()));
    assert_eq!(guarded.bytes(&buffer), 42u64.to_ne_bytes());
    let mut number = [0; 8];
    ends.remote.read(64, &mut number);
    assert_eq!(u64::from_ne_bytes(number), 9);
    // The buffer of a request that fails returns to its pool, and the receives of a queue pair's own queue return
    // theirs.
    let free = pool.available();
    let nowhere = RemoteRegion::new(at.addr(), 8, at.rkey() ^ 0x100);
    let queue = ends.near.send_queue().unwrap();
    ends.sender.post(queue).unwrap().write(buffer, &nowhere).unwrap();
    let failure = failed(&mut ends.sender);
    assert_eq!(failure.status, WcStatus::REM_ACCESS_ERR);
    assert_eq!((pool.available(), failure.buffers.len()), (free + 1, 0));
    if own {
        let flushed = wait_for("a flushed receive", || {
            ends.receiver.poll().next().map(|next| next.map(|_| ()).expect_err("nothing was sent"))
        });
        assert_eq!(flushed.cause, Cause::Status(WcStatus::WR_FLUSH_ERR));
        assert_eq!(flushed.buffers.len(), 1);
    }
    true
}

/// Calls a test with each kind of dma-buf that the machine has, and each kind of receive queue.
fn on_each(len: usize, test: impl Fn(OwnedFd, bool) -> bool) -> bool {
    [false, true].into_iter().all(|own| {
        let fds = [Some(memfd(len)), udmabuf(len)];
        fds.into_iter().flatten().all(|fd| test(fd, own))
    })
}

#[test]
fn the_device_moves_bytes_that_the_processor_may_not_touch() {
    let len = OFFSET + 16 * SIZE;
    if !on_each(len, |fd, own| requests_on(fd, len, own)) {
        skip!("the device takes no dma-bufs");
    }
}

#[test]
fn peers_read_write_and_count_in_opaque_memory() {
    let len = OFFSET + PAGE;
    let pd = device::pd();
    let fd = memfd(len);
    let guarded = Guarded::new(&fd, len);
    let Some(memory) = register(&pd, fd, len, everything() | RemoteAccess::RELAXED_ORDERING) else {
        skip!("the device takes no dma-bufs");
    };
    let fd = memfd(OFFSET + 8 * SIZE);
    let unused = register(&pd, fd, OFFSET + 8 * SIZE, RemoteAccess::empty()).unwrap();
    let mut ends = Ends::new(&pd, false, &BufferPool::divide(unused, 8, SIZE as u32).unwrap());
    let region = memory.region();
    assert_eq!((region.len(), memory.len()), (PAGE, PAGE));
    let queue = ends.far.send_queue().unwrap();
    let (host, sender) = (&ends.host, &mut ends.far_sender);
    sender.post(queue).unwrap().write(b"a peer was here", &region.slice(100, 15).unwrap()).unwrap();
    done(sender);
    guarded.with(|bytes| assert_eq!(bytes[OFFSET + 100..][..15], *b"a peer was here"));
    let mut run = |post: &dyn Fn(Request<'_>)| {
        post(sender.post(queue).unwrap());
        wait_for("an answer", || sender.poll().next().map(|done| done.unwrap().buffer.unwrap()))
    };
    let read = run(&|request| request.read(host.take().unwrap(), &region.slice(107, 4).unwrap()).unwrap());
    assert_eq!(*read, *b"was ");
    let counter = region.slice(8, 8).unwrap();
    run(&|request| request.fetch_add(host.take().unwrap(), &counter, 5).unwrap());
    let old = run(&|request| request.compare_swap(host.take().unwrap(), &counter, 5, 1).unwrap());
    assert_eq!(*old, 5u64.to_ne_bytes());
    guarded.with(|bytes| assert_eq!(bytes[OFFSET + 8..][..8], 1u64.to_ne_bytes()));
}

#[test]
fn a_registration_that_is_refused_returns_what_it_was_given() {
    let pd = device::pd();
    let fd = File::open("/dev/null").unwrap();
    let number = fd.as_raw_fd();
    let refused = OpaqueMemory::dma_buf(&pd, fd.into(), 0, PAGE, RemoteAccess::empty()).unwrap_err();
    assert!(refused.to_string().contains("ibv_reg_dmabuf_mr"), "{refused}");
    assert_eq!(refused.payload.as_raw_fd(), number);
    for (offset, len) in [(0, 0), (u64::MAX, 1), (0, usize::MAX), (0, isize::MAX as usize)] {
        let refused = OpaqueMemory::dma_buf(&pd, memfd(PAGE), offset, len, RemoteAccess::empty()).unwrap_err();
        assert!(matches!(refused.reason, Error::OutOfRange { .. }), "{refused}");
    }
    // SAFETY: nothing is registered.
    let refused = unsafe { OpaqueMemory::unreadable(&pd, ptr::null_mut(), PAGE, RemoteAccess::empty(), ()) };
    assert!(matches!(refused, Err(Error::OutOfRange { .. })));
    // SAFETY: a page that no code uses.
    let refused = unsafe { OpaqueMemory::unreadable(&pd, PAGE as *mut u8, PAGE, RemoteAccess::empty(), ()) };
    assert!(refused.unwrap_err().to_string().contains("peer-memory module"));
    let Some(memory) = register(&pd, memfd(OFFSET + PAGE), OFFSET + PAGE, RemoteAccess::empty()) else {
        skip!("the device takes no dma-bufs");
    };
    let refused = BufferPool::divide(memory, 1, PAGE as u32 + 1).unwrap_err();
    assert!(matches!(refused.reason, Error::OutOfRange { .. }), "{refused}");
    assert_eq!(BufferPool::divide(refused.payload, u32::MAX, PAGE as u32).unwrap().count(), 1);
}

#[test]
fn memory_of_the_adapter_is_stored_to_and_sent() {
    let pd = device::pd();
    let memory = match OpaqueMemory::on_adapter(&pd, 1000, RemoteAccess::READ) {
        Ok(memory) => memory,
        Err(error) if error.to_string().contains("max_dm_size") => skip!("{error}"),
        Err(error) => panic!("{error}"),
    };
    assert_eq!(memory.len(), 1024);
    let pool = BufferPool::divide(memory, u32::MAX, 65).unwrap();
    assert_eq!(pool.count(), 8);
    let Some(unused) = register(&pd, memfd(OFFSET + 8 * SIZE), OFFSET + 8 * SIZE, RemoteAccess::empty()) else {
        skip!("the device takes no dma-bufs");
    };
    let mut ends = Ends::new(&pd, false, &BufferPool::divide(unused, 8, SIZE as u32).unwrap());
    // Each buffer, of each length around a word, beside neighbours that keep their bytes.
    let mut all: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
    for (at, len) in [0, 1, 3, 4, 5, 63, 64, 65].into_iter().enumerate() {
        all[at].store(&content(len, at as u8)).unwrap();
    }
    assert!(matches!(all[0].store(&[0; 66]), Err(Error::OutOfRange { .. })));
    for (at, buffer) in all.into_iter().enumerate() {
        let expected = content(buffer.len(), at as u8);
        only(ends.run(|request| request.send(buffer).unwrap()));
        wait_for("the message", || {
            let mut batch = ends.far_receiver.poll();
            let message = batch.next()?.unwrap();
            assert_eq!(*message, *expected, "buffer {at}");
            Some(())
        });
    }
    assert_eq!(pool.available(), 8);
    // The processor does not write other memory.
    let Some(other) = register(&pd, memfd(OFFSET + PAGE), OFFSET + PAGE, RemoteAccess::empty()) else { return };
    let mut buffer = BufferPool::divide(other, 1, 64).unwrap().take().unwrap();
    let refused = buffer.store(b"bytes").unwrap_err();
    assert!(refused.to_string().contains("not the adapter's"), "{refused}");
}

#[test]
fn a_queue_pair_of_the_program_does_not_receive_into_opaque_memory() {
    let pd = device::pd();
    let mut receiver = Receiver::opaque(&pd, &CqConfig::new(8).path(device::path())).unwrap();
    let builder = QueuePair::builder(&QpConfig::rc()).receive(&mut receiver, RqConfig::new(4));
    // SAFETY: the call does not look at the pointer.
    let refused = unsafe { builder.attach(ptr::null_mut()) }.unwrap_err();
    assert!(refused.to_string().contains("put payload into the CQEs"), "{refused}");
}
