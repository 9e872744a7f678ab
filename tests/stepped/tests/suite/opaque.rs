//! A pool over memory of the program that is `PROT_NONE` whenever the library runs: the device alone moves its bytes.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use doorbell::opaque::{Opaque, OpaqueMemory};
use doorbell::{
    Buffer, BufferPool, CqConfig, DataPath, NotSent, ProtectionDomain, QpConfig, QueuePair, Receiver, RemoteAccess,
    Sender, SrqConfig,
};
use doorbell_stepped_tests::{join, on_each_path, open};
use soft_mlx5::Device;

const LEN: usize = 1 << 16;

/// Anonymous memory that nobody may touch, unless it is opened.
struct Closed(*mut u8);

impl Closed {
    fn new() -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe { libc::mmap(ptr::null_mut(), LEN, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        Self(start.cast())
    }

    /// Opens the memory while `act` runs.
    fn open<T>(&self, act: impl FnOnce() -> T) -> T {
        self.allow(libc::PROT_READ | libc::PROT_WRITE);
        let result = act();
        self.allow(libc::PROT_NONE);
        result
    }

    fn allow(&self, rights: libc::c_int) {
        // SAFETY: our mapping.
        assert_eq!(unsafe { libc::mprotect(self.0.cast(), LEN, rights) }, 0);
    }

    /// The bytes of a buffer.
    fn bytes(&self, buffer: &Buffer<Opaque>) -> Vec<u8> {
        let read = |at| {
            // SAFETY: inside the mapping, which is open.
            unsafe { self.0.add(buffer.offset() + at).read() }
        };
        self.open(|| (0..buffer.len()).map(read).collect())
    }
}

/// Says when the memory may be freed.
struct Keep(Arc<AtomicBool>);

impl Drop for Keep {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Whichever of the buffers it is.
fn a_buffer_of_another_domain_is_refused(path: DataPath) {
    let (device, pd) = open(Device::builder().strict(true).stepped());
    let pool = |pd: &ProtectionDomain| {
        let mut bytes = vec![0u8; 4096].into_boxed_slice();
        // SAFETY: the bytes live until the device has let go of them, and nothing uses them.
        let memory = unsafe { OpaqueMemory::unreadable(pd, bytes.as_mut_ptr(), 4096, RemoteAccess::empty(), bytes) };
        BufferPool::divide(memory.unwrap(), 8, 256).unwrap()
    };
    let (own, other) = (pool(&pd), pool(&pd.context().alloc_pd().unwrap()));
    let mut sender = Sender::new(&pd, &CqConfig::new(1024).path(path)).unwrap();
    let [mut near, mut far] =
        [(); 2].map(|()| QueuePair::builder(&QpConfig::rc().max_send_sge(2)).send(&mut sender).build().unwrap());
    join(&mut near, &mut far);
    let queue = near.send_queue().unwrap();
    for [first, second] in [[&own, &other], [&other, &own], [&other, &other]] {
        let buffers = [first.take().unwrap(), second.take().unwrap()];
        let refused = sender.send(queue, buffers).map_err(NotSent::from);
        assert!(matches!(refused, Err(NotSent::WrongDomain)), "{refused:?}");
    }
    sender.send(queue, [own.take().unwrap(), own.take().unwrap()]).unwrap();
    drop(device);
}

fn no_byte_is_touched_by_the_library(path: DataPath) {
    let (device, pd) = open(Device::builder().strict(true).stepped());
    let (closed, dropped) = (Closed::new(), Arc::new(AtomicBool::new(false)));
    // SAFETY: the mapping stays for as long as the test, and is looked at when nothing is outstanding.
    let memory = unsafe {
        let keep = Keep(dropped.clone());
        OpaqueMemory::unreadable(&pd, closed.0, LEN, RemoteAccess::READ | RemoteAccess::ATOMIC, keep).unwrap()
    };
    closed.allow(libc::PROT_NONE);
    let region = memory.region();
    assert_eq!(region.addr(), closed.0.addr() as u64);
    let pool = BufferPool::divide(memory, 16, 1024).unwrap();
    let cq = CqConfig::new(64).path(path);
    let mut receiver = Receiver::opaque(&pd, &cq).unwrap();
    let (mut sender, mut far_sender) = (Sender::new(&pd, &cq).unwrap(), Sender::new(&pd, &cq).unwrap());
    let srq = receiver.create_srq(&SrqConfig::new(7)).unwrap();
    let config = QpConfig::rc().max_send_wr(8).max_inline(64).remote_read(true).remote_atomic(true);
    let mut near = QueuePair::builder(&config).receive(&mut receiver, srq).send(&mut sender).build().unwrap();
    let mut far = QueuePair::builder(&config).receive(&mut receiver, srq).send(&mut far_sender).build().unwrap();
    join(&mut near, &mut far);
    receiver.fill(srq, &pool).unwrap();
    let settle = || closed.open(|| device.settle());

    // Copied bytes into the memory, then the memory into the memory, as short as what is scattered to CQEs.
    for number in 0..100u8 {
        let bytes = [number; 40];
        let bytes = &bytes[..usize::from(number) % 40];
        far_sender.send(&far, bytes).unwrap();
        settle();
        let message = receiver.next().expect("a message").unwrap();
        let buffer = message.replace(pool.take().unwrap()).unwrap();
        assert_eq!(closed.bytes(&buffer), bytes);
        assert!(far_sender.next().expect("a completion").unwrap().opaque_buffer().is_none());
        sender.send(&near, buffer).unwrap();
        settle();
        let message = receiver.next().expect("the message back").unwrap();
        assert_eq!((message.len(), message.qp_num()), (bytes.len(), far.qp_num()));
        let again = message.replace(pool.take().unwrap()).unwrap();
        assert_eq!(closed.bytes(&again), bytes);
        let back = sender.next().expect("a completion").unwrap().opaque_buffer();
        assert_eq!(back.expect("the buffer of the send").len(), bytes.len());
    }
    // A READ and an atomic of eight bytes, whose source and answer are both in the memory.
    let mut buffer = pool.take().unwrap();
    buffer.set_len(8);
    let at = region.slice(buffer.offset(), 8).unwrap();
    // SAFETY: an open mapping, of which nothing is outstanding.
    closed.open(|| unsafe { closed.0.add(buffer.offset()).cast::<u64>().write(40) });
    let answer = pool.take().unwrap();
    far_sender.post(&far).unwrap().fetch_add(answer, &at, 2).unwrap();
    settle();
    let answer = far_sender.next().expect("a completion").unwrap().opaque_buffer().expect("its buffer");
    assert_eq!(closed.bytes(&answer), 40u64.to_ne_bytes());
    far_sender.post(&far).unwrap().read(answer, &at).unwrap();
    settle();
    let answer = far_sender.next().expect("a completion").unwrap().opaque_buffer().expect("its buffer");
    assert_eq!(closed.bytes(&answer), 42u64.to_ne_bytes());

    // The owner of the memory is dropped last.
    drop((buffer, answer, pool));
    drop((near, far, sender, far_sender));
    assert!(!dropped.load(Ordering::Relaxed), "receives are posted");
    drop(receiver);
    assert!(dropped.load(Ordering::Relaxed));
}

on_each_path! { a_buffer_of_another_domain_is_refused no_byte_is_touched_by_the_library }
