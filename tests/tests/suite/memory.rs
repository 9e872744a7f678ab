//! Memory of buffers, and memory that peers write.

use std::fs::{self, File};
use std::mem::size_of;
use std::os::fd::FromRawFd;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use doorbell::{BufferPool, Error, HugePages, MemoryRegion, PoolConfig, QpConfig, SrqConfig, StableMemory};
use doorbell_tests::peers::join;
use doorbell_tests::sending::bytes_of;
use doorbell_tests::sending_qp::SendingQp;
use doorbell_tests::world::Shared;
use doorbell_tests::{Peers, assert_matches, device, message, receiving};

/// Sends to a queue pair with receives from `pool` only.
fn receive_into(pd: &doorbell::ProtectionDomain, pool: &BufferPool) {
    let mut receiver = device::receiver(pd, 64);
    let srq = receiver.create_srq(&SrqConfig::new(7)).unwrap();
    let config = QpConfig::rc();
    let (_near, mut peers) = Peers::connect(pd, &mut receiver, &config, srq, 1, pool.buffer_size());
    assert!(receiver.fill(srq, pool).unwrap() > 0);
    for number in 0..30 {
        peers.send(0, pool.buffer_size() as usize);
        receiving::messages(&mut receiver, 1, |message| {
            assert_eq!(message::read(&message), (0, number));
            assert_eq!(message.as_ptr().addr() % 64, 0, "a cache line has two owners");
        });
    }
}

/// A vector that notes when it is dropped.
struct Watched(Vec<u8>, Arc<AtomicBool>);

// SAFETY: as for the vector.
unsafe impl StableMemory for Watched {
    fn memory(&mut self) -> (NonNull<u8>, usize) {
        self.0.memory()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.1.store(true, Ordering::Relaxed);
    }
}

#[test]
fn memory_of_the_program_is_used_and_dropped_after_everything() {
    let pd = device::pd();
    let dropped = Arc::new(AtomicBool::new(false));
    let memory = Watched(vec![0; 100 * 128 + 63], dropped.clone());
    let inside = memory.0.as_ptr_range();
    let pool = BufferPool::from_memory(&pd, memory, &PoolConfig::new(u32::MAX, 100)).unwrap();
    assert!((100..=101).contains(&pool.count()), "{}", pool.count());
    receive_into(&pd, &pool);
    let all: Vec<_> = std::iter::from_fn(|| pool.take())
        .map(|mut buffer| {
            buffer.set_len(100);
            assert!(inside.contains(&buffer.as_ptr()) && inside.contains(&&raw const buffer[99]));
            buffer
        })
        .collect();
    assert_eq!(all.len(), pool.count() as usize);
    drop(pool);
    assert!(!dropped.load(Ordering::Relaxed), "buffers are left");
    drop(all);
    assert!(dropped.load(Ordering::Relaxed));
    receive_into(
        &pd,
        &BufferPool::from_memory(&pd, vec![0; 4096].into_boxed_slice(), &PoolConfig::new(u32::MAX, 64)).unwrap(),
    );
}

#[test]
fn memory_in_which_no_buffer_fits_comes_back() {
    let pd = device::pd();
    let refused = BufferPool::from_memory(&pd, vec![7u8; 1000], &PoolConfig::new(u32::MAX, 4096)).unwrap_err();
    assert!(matches!(refused.reason, Error::OutOfRange { .. }), "{refused}");
    assert_eq!(refused.payload, [7; 1000]);
    let refused = BufferPool::from_memory(&pd, Vec::new(), &PoolConfig::new(u32::MAX, 1)).unwrap_err();
    assert!(matches!(refused.reason, Error::OutOfRange { .. }), "{refused}");
}

#[test]
fn pools_that_cannot_be_are_refused_and_their_memory_comes_back() {
    let pd = device::pd();
    let most = u32::MAX;
    for config in [
        PoolConfig::new(0, 64),
        PoolConfig::new(0, 0),
        PoolConfig::new(1, 0),
        PoolConfig::new(1, most),
        PoolConfig::new(most, most),
        PoolConfig::new(1, 64).headroom(most),
    ] {
        let refused = BufferPool::new(&pd, &config).unwrap_err();
        assert!(matches!(refused, Error::OutOfRange { .. }), "{config:?}: {refused}");
        let refused = BufferPool::from_memory(&pd, vec![7u8; 4096], &config).unwrap_err();
        assert!(matches!(refused.reason, Error::OutOfRange { .. }), "{config:?}: {refused}");
        assert_eq!(refused.payload, [7; 4096]);
    }
    let refused = BufferPool::new(&pd, &PoolConfig::new(most, (1 << 31) - 1)).unwrap_err();
    assert_matches!(refused, Error::OutOfRange { .. } | Error::Verbs { .. });
}

#[test]
fn messages_are_received_into_a_file() {
    let pd = device::pd();
    // SAFETY: a name, and a descriptor that no other code owns.
    let file = unsafe { File::from_raw_fd(libc::memfd_create(c"messages".as_ptr(), 0)) };
    file.set_len(3 * 4096).unwrap();
    // SAFETY: the file is read through `file` only when nothing is posted.
    let mapping = unsafe { memmap2::MmapMut::map_mut(&file) }.unwrap();
    let pool = BufferPool::from_memory(&pd, mapping, &PoolConfig::new(u32::MAX, 4096)).unwrap();
    assert_eq!(pool.count(), 3);
    let mut receiver = device::receiver(&pd, 64);
    let srq = receiver.create_srq(&SrqConfig::new(7)).unwrap();
    let config = QpConfig::rc();
    let (_near, mut peers) = Peers::connect(&pd, &mut receiver, &config, srq, 1, 4096);
    // The last page comes first: it is not chance that the first message is in the first page.
    let mut pages: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
    pages.reverse();
    receiver.post(srq, pages).unwrap();
    for number in [0, 1, 2] {
        assert_eq!(peers.send(0, 100 + number as usize), number);
        receiving::messages(&mut receiver, 1, |message| drop(message.take().unwrap()));
        let mut bytes = vec![0; 100 + number as usize];
        file.read_exact_at(&mut bytes, 4096 * (2 - number)).unwrap();
        assert_eq!(message::read(&bytes), (0, number));
    }
}

#[test]
fn the_headroom_is_left_alone_and_sent_on_when_asked_for() {
    let (pd, mut receiver) = device::start(64);
    let srq = receiver.create_srq(&SrqConfig::new(7)).unwrap();
    let config = QpConfig::rc();
    let (_, mut peers) = Peers::connect(&pd, &mut receiver, &config, srq, 1, 100);
    peers.reset(0);
    let mut near = SendingQp::create(&mut receiver, &config, srq).unwrap();
    join(&mut near, &mut peers.qps[0]);
    let pool = BufferPool::new(&pd, &PoolConfig::new(9, 100).headroom(20)).unwrap();
    assert_eq!((pool.count(), pool.headroom(), pool.buffer_size()), (9, 20, 100));
    let marked: Vec<_> = std::iter::from_fn(|| pool.take())
        .map(|mut buffer| {
            assert_eq!(buffer.headroom(), [0; 20]);
            buffer.headroom_mut().fill(0xa5);
            buffer
        })
        .collect();
    assert_eq!(marked.len(), 9);
    drop(marked);
    let posted = receiver.fill(srq, &pool).unwrap();

    let answers = BufferPool::new(&pd, &PoolConfig::new(1, 120)).unwrap();
    let back = peers.qps[0].receive_queue().unwrap();
    for number in 0..30 {
        peers.receiver.fill(back, &answers).unwrap();
        let len = [12, 99, 100][number as usize % 3];
        peers.send(0, len);
        let mut taken = None;
        receiving::messages(&mut receiver, 1, |message| {
            assert_eq!(message.as_ptr().addr() % 64, 0);
            taken = Some(message.take().unwrap());
        });
        let mut buffer = taken.unwrap();
        assert_eq!(message::read(&buffer), (0, number));
        assert!(buffer.headroom()[..12].iter().all(|&byte| byte == 0xa5));
        buffer.headroom_mut()[12..].copy_from_slice(&number.to_be_bytes());
        assert_eq!(buffer.with_headroom(8)[..8], number.to_be_bytes());
        near.send(buffer.part_with_headroom(8), None).unwrap();
        receiving::messages(&mut peers.receiver, 1, |message| {
            let (header, payload) = message.split_at(8);
            assert_eq!(header, number.to_be_bytes());
            assert_eq!(message::read(payload), (0, number));
            assert_eq!(payload.len(), len);
        });
        receiving::wait("the send", || near.poll_send().is_some());
        receiver.fill(srq, &pool).unwrap();
    }
    receiver.destroy_qp(near.into_qp()).unwrap();
    receiver.destroy_srq(srq).unwrap();
    assert!(posted > 0 && pool.available() == 9, "{} of 9 came back", pool.available());
}

#[test]
fn memory_of_the_program_has_headroom_too() {
    let pd = device::pd();
    let config = PoolConfig::new(4, 64).headroom(64);
    let pool = BufferPool::from_memory(&pd, vec![3u8; 4096], &config).unwrap();
    assert_eq!((pool.count(), pool.headroom()), (4, 64), "no more than were asked for");
    assert_eq!(pool.take().unwrap().headroom(), [3; 64]);
    receive_into(&pd, &pool);
    let refused = BufferPool::from_memory(&pd, vec![7u8; 100], &config).unwrap_err();
    assert!(matches!(refused.reason, Error::OutOfRange { .. }), "{refused}");
    assert_eq!(refused.payload, [7; 100]);
}

#[test]
#[should_panic(expected = "21 bytes of a headroom of 20")]
fn nothing_is_read_before_the_headroom() {
    let pool = BufferPool::new(&device::pd(), &PoolConfig::new(1, 64).headroom(20)).unwrap();
    pool.take().unwrap().with_headroom(21);
}

/// The lines of `/proc/self/smaps` about the mapping at an address.
fn mapping(addr: usize) -> String {
    let all = fs::read_to_string("/proc/self/smaps").unwrap();
    let mut here = false;
    let mut lines = String::new();
    for line in all.lines() {
        let range = line.split(' ').next().unwrap().split_once('-');
        let number = |hex| usize::from_str_radix(hex, 16).ok();
        if let Some((Some(start), Some(end))) = range.map(|(a, b)| (number(a), number(b))) {
            here = (start..end).contains(&addr);
        }
        if here {
            lines.push_str(line);
            lines.push('\n');
        }
    }
    lines
}

#[test]
fn transparent_huge_pages_are_asked_for_where_the_kernel_can_give_them() {
    let pd = device::pd();
    let pool = BufferPool::new(&pd, &PoolConfig::new(600, 4096).pages(HugePages::Transparent)).unwrap();
    let addr = pool.take().unwrap().as_ptr().addr();
    assert_eq!(addr % (2 << 20), 0);
    if !fs::exists("/sys/kernel/mm/transparent_hugepage").unwrap() {
        doorbell_tests::skip!("the kernel has no transparent huge pages");
    }
    let flags = mapping(addr);
    assert!(flags.lines().any(|line| line.starts_with("VmFlags:") && line.contains(" hg")), "{flags}");
    receive_into(&pd, &pool);
}

#[test]
fn reserved_huge_pages_are_used_or_the_error_says_how_to_reserve_them() {
    let pd = device::pd();
    let free: u64 = fs::read_to_string("/proc/meminfo")
        .unwrap()
        .lines()
        .find_map(|line| line.strip_prefix("HugePages_Free:")?.trim().parse().ok())
        .unwrap_or(0);
    match BufferPool::new(&pd, &PoolConfig::new(16, 4096).pages(HugePages::Reserved)) {
        Ok(pool) => {
            let of_pool = mapping(pool.take().unwrap().as_ptr().addr());
            let small = of_pool.lines().any(|line| line.starts_with("KernelPageSize:        4 kB"));
            assert!(free > 0 && !small, "{of_pool}");
            receive_into(&pd, &pool);
        }
        Err(error) => {
            assert_eq!(free, 0, "{error}");
            assert!(error.to_string().contains("vm.nr_hugepages"), "{error}");
        }
    }
}

#[test]
fn a_peer_writes_to_memory_that_is_open_to_it() {
    let mut w = Shared::with(7, 1, 1, 64, QpConfig::rc().remote_write(true));
    let mut memory = MemoryRegion::new(&w.pd, 8192).unwrap();
    memory.write(4096, b"before, after");
    let middle = memory.region().slice(4096, 6).unwrap();
    w.peers.qps[0].write(b"middle", &middle).unwrap();
    receiving::wait("the write", || bytes_of(&memory, 4096, 13) == *b"middle, after");
    // The memory was zeroed, and is written nowhere else.
    assert_eq!(bytes_of(&memory, 0, 4096), [0; 4096]);
    assert_eq!(memory.len(), 8192);
    drop(memory);
    assert!(w.receiver.poll().next().is_none());
    w.receiver.destroy_qp(w.near.remove(0)).unwrap();
}

#[test]
fn a_peer_does_not_write_through_a_queue_pair_that_does_not_allow_it() {
    let mut w = Shared::new(7, 1, 64);
    let memory = MemoryRegion::new(&w.pd, 64).unwrap();
    w.peers.qps[0].write(b"intruder", &memory.region()).unwrap();
    receiving::wait("the refusal", || w.peers.qps[0].state().unwrap() == doorbell::QpState::Error);
    assert_eq!(bytes_of(&memory, 0, 64), [0; 64]);
}

#[test]
#[should_panic(expected = "bytes from")]
fn nothing_is_read_beyond_remote_memory() {
    let memory = MemoryRegion::new(&device::pd(), 64).unwrap();
    memory.read(usize::MAX - 7, &mut [0; size_of::<u64>()]);
}

#[test]
fn the_memory_of_a_new_pool_is_zero() {
    let pd = device::pd();
    for pages in [HugePages::No, HugePages::Transparent] {
        let pool = BufferPool::new(&pd, &PoolConfig::new(64, 1000).pages(pages)).unwrap();
        let all: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        for mut buffer in all {
            assert!(buffer.is_empty());
            buffer.set_len(1000);
            assert!(buffer.iter().all(|&byte| byte == 0));
            buffer.fill(0xff);
        }
    }
}
