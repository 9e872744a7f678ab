//! Memory that is not the program's own: dma-bufs and memory of the device.

use std::ffi::c_void;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::ptr;

use crate::dma_buf::{memfd, udmabuf};
use crate::rdma::{ALL, Pair};
use crate::world::*;
use rdma_core_sys::*;

const PAGE: usize = 4096;

fn map(fd: i32, len: usize, rights: i32) -> *mut u8 {
    // SAFETY: a new mapping at an address that the kernel chooses.
    let memory = unsafe { libc::mmap(ptr::null_mut(), len, rights, libc::MAP_SHARED, fd, 0) };
    assert_ne!(memory, libc::MAP_FAILED);
    memory.cast()
}

fn register(
    pd: *mut ibv_pd,
    (offset, length, iova): (u64, usize, u64),
    fd: i32,
    access: u32,
) -> Result<*mut ibv_mr, i32> {
    // SAFETY: the domain is alive.
    let mr = unsafe { ibv_reg_dmabuf_mr(pd, offset, length, iova, fd, access as i32) };
    if mr.is_null() { Err(errno()) } else { Ok(mr) }
}

/// The order decides what a program that probes gets.
#[test]
fn a_dma_buf_is_checked_in_the_order_of_the_kernel() {
    let world = World::stepped();
    let (null, memory) = (File::open("/dev/null").unwrap(), memfd(3 * PAGE));
    let page = PAGE as u64;
    for ((offset, length, iova), fd, access, expected) in [
        // UCX, NCCL.
        ((0, PAGE, 0), -1, ALL, libc::EBADF),
        ((0, 0, 0), -1, 0, libc::EBADF),
        ((0, usize::MAX, 0), -1, 0, libc::EBADF),
        // Looked at before the descriptor.
        ((1, PAGE, 0), -1, 0, libc::EINVAL),
        ((0, PAGE, 0), -1, IBV_ACCESS_REMOTE_WRITE, libc::EINVAL),
        ((0, PAGE, 0), -1, IBV_ACCESS_ON_DEMAND, libc::EINVAL),
        ((0, PAGE, 0), -1, IBV_ACCESS_ZERO_BASED, libc::EINVAL),
        ((0, PAGE, 0), -1, 1 << 21, libc::EINVAL),
        ((page, usize::MAX, 0), -1, 0, libc::EINVAL),
        // Looked at after the descriptor.
        ((0, PAGE, 0), null.as_raw_fd(), 0, libc::EINVAL),
        ((0, 0, 0), memory.as_raw_fd(), 0, libc::EINVAL),
        ((0, 3 * PAGE + 1, 0), memory.as_raw_fd(), 0, libc::EINVAL),
        ((page, 2 * PAGE + 1, page), memory.as_raw_fd(), 0, libc::EINVAL),
        ((3 * page, PAGE, 0), memory.as_raw_fd(), 0, libc::EINVAL),
    ] {
        let found = register(world.pd, (offset, length, iova), fd, access).err();
        assert_eq!(found, Some(expected), "{offset} {length} {iova} {fd} {access:#x}");
    }
    let relaxed = ALL | IBV_ACCESS_RELAXED_ORDERING;
    for (place, access) in [((0, 3 * PAGE, 0), relaxed), ((page + 5, 7, 9 * page + 5), 0)] {
        let mr = register(world.pd, place, memory.as_raw_fd(), access).unwrap();
        // SAFETY: the MR is alive.
        unsafe {
            assert_eq!(((*mr).addr as u64, (*mr).length), (place.0, place.1));
            assert_eq!(ibv_dereg_mr(mr), 0);
        }
    }
}

fn mappings_of(name: &str) -> usize {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains(name)).count()
}

/// The processor cannot reach the memory, and the descriptor is closed: the device moves bytes all the same.
#[test]
fn bytes_move_into_and_out_of_a_dma_buf() {
    const LEN: usize = 4 * PAGE;
    let fds = [Some(memfd(LEN)), udmabuf(LEN)];
    for fd in fds.into_iter().flatten() {
        let world = World::stepped();
        let memory = map(fd.as_raw_fd(), LEN, libc::PROT_NONE);
        // The region begins 100 bytes into the second page, under an address of its own.
        let (offset, iova) = (PAGE as u64 + 100, 0x7000_0064);
        let mr = register(world.pd, (offset, 2 * PAGE, iova), fd.as_raw_fd(), ALL).unwrap();
        drop(fd);
        // SAFETY: the MR is alive.
        let key = unsafe { (*mr).lkey };
        let host = Box::leak(vec![0u8; 4 * PAGE].into_boxed_slice());
        for (index, byte) in host.iter_mut().enumerate() {
            *byte = (index * 7 + index / 256) as u8;
        }
        let host_mr = world.reg(host, ALL);
        // SAFETY: the MR is alive.
        let (from, host_key) = unsafe { ((*host_mr).addr as u64, (*host_mr).lkey) };
        let pair = Pair::new(&world);
        let go = |opcode, local, to| {
            assert_eq!(pair.run(&world, opcode, Some(local), to), IBV_WC_SUCCESS, "{opcode}");
        };
        let len = 2 * PAGE as u32;
        // WRITE into the buffer, READ out of it, and as the source and the destination of messages.
        let to = (iova, key);
        go(IBV_WR_RDMA_WRITE, (from, len, host_key), to);
        let back = from + 2 * PAGE as u64;
        go(IBV_WR_RDMA_READ, (back, len, host_key), to);
        assert_eq!(host[..2 * PAGE], host[2 * PAGE..]);
        pair.receive(Some((iova + 4000, 200, key)));
        go(IBV_WR_SEND, (from, 200, host_key), (0, 0));
        pair.receive(Some((back, 200, host_key)));
        go(IBV_WR_SEND, (iova + 4000, 200, key), (0, 0));
        assert_eq!(statuses(pair.far_cq), [IBV_WC_SUCCESS; 2]);
        assert_eq!(host[..200], host[2 * PAGE..][..200]);
        // Atomics at an aligned address: 4 bytes after the start.
        let counter = iova + 4;
        host[..8].copy_from_slice(&10u64.to_ne_bytes());
        let to = (counter, key);
        go(IBV_WR_RDMA_WRITE, (from, 8, host_key), to);
        go(IBV_WR_ATOMIC_FETCH_AND_ADD, (back, 8, host_key), to);
        assert_eq!(host[2 * PAGE..][..8], 10u64.to_ne_bytes());
        // Not a byte before or beyond the region.
        for (addr, len) in [(iova - 1, 1), (iova + 2 * PAGE as u64, 1), (iova, len + 1)] {
            let local = Some((back, len, host_key));
            let found = Pair::new(&world).run(&world, IBV_WR_RDMA_READ, local, (addr, key));
            assert_eq!(found, IBV_WC_REM_ACCESS_ERR, "{addr:#x} {len}");
        }
        // The program sees what the device wrote, at the offset of the dma-buf.
        // SAFETY: the mapping is ours.
        unsafe {
            assert_eq!(libc::mprotect(memory.cast(), LEN, libc::PROT_READ), 0);
            let at = memory.add(offset as usize + 4).cast::<u64>();
            assert_eq!(at.read_unaligned(), 15);
            assert_eq!(memory.add(offset as usize - 1).read(), 0);
            assert_eq!(libc::munmap(memory.cast(), LEN), 0);
            assert_eq!(ibv_dereg_mr(mr), 0);
        }
        assert_eq!(mappings_of("test-buffer"), 0, "the device holds no mapping any more");
    }
}

#[test]
fn a_key_of_a_dma_buf_ends_with_its_region() {
    let world = World::stepped();
    let fd = memfd(PAGE);
    let mr = register(world.pd, (0, PAGE, 0), fd.as_raw_fd(), ALL).unwrap();
    let host = world.reg(Box::leak(vec![0u8; PAGE].into_boxed_slice()), ALL);
    // SAFETY: the MRs are alive.
    let (key, local) = unsafe { ((*mr).rkey, ((*host).addr as u64, 64, (*host).lkey)) };
    let read = || Pair::new(&world).run(&world, IBV_WR_RDMA_READ, Some(local), (0, key));
    assert_eq!(read(), IBV_WC_SUCCESS);
    // SAFETY: the MR is alive.
    assert_eq!(unsafe { ibv_dereg_mr(mr) }, 0);
    assert_eq!(read(), IBV_WC_REM_ACCESS_ERR);
}

/// A file that lost its pages is memory that was unmapped: an access fails, and nothing else does.
#[test]
fn a_buffer_that_shrinks_fails_the_access() {
    let world = World::stepped();
    let fd = memfd(2 * PAGE);
    let mr = register(world.pd, (0, 2 * PAGE, 0), fd.as_raw_fd(), ALL).unwrap();
    let host = world.reg(Box::leak(vec![0u8; PAGE].into_boxed_slice()), ALL);
    // SAFETY: the MRs are alive; the descriptor is open.
    let (key, local) = unsafe {
        assert_eq!(libc::ftruncate(fd.as_raw_fd(), PAGE as i64), 0);
        ((*mr).rkey, ((*host).addr as u64, 64, (*host).lkey))
    };
    for (addr, expected) in [(PAGE as u64, IBV_WC_REM_ACCESS_ERR), (0, IBV_WC_SUCCESS)] {
        let pair = Pair::new(&world);
        assert_eq!(pair.run(&world, IBV_WR_RDMA_READ, Some(local), (addr, key)), expected);
    }
}

struct DeviceMemory(*mut ibv_dm);

fn extended(world: &World) -> &verbs_context {
    // SAFETY: the context is open, and the library of the system makes extended ones.
    unsafe { &*verbs_get_ctx(world.ctx) }
}

fn alloc(world: &World, length: usize, log_align_req: u32) -> Result<DeviceMemory, i32> {
    let mut attr = ibv_alloc_dm_attr { length, log_align_req, comp_mask: 0 };
    // SAFETY: the context is open.
    let dm = unsafe { extended(world).alloc_dm.unwrap()(world.ctx, &mut attr) };
    if dm.is_null() { Err(errno()) } else { Ok(DeviceMemory(dm)) }
}

impl DeviceMemory {
    fn free(self) -> i32 {
        // SAFETY: the memory is alive, and so is its context.
        unsafe { (*verbs_get_ctx((*self.0).context)).free_dm.unwrap()(self.0) }
    }

    fn write(&self, at: u64, bytes: &[u8]) -> i32 {
        // SAFETY: the memory is alive.
        unsafe { (*self.0).memcpy_to_dm.unwrap()(self.0, at, bytes.as_ptr().cast(), bytes.len()) }
    }

    fn read(&self, at: u64, bytes: &mut [u8]) -> i32 {
        let (to, len) = (bytes.as_mut_ptr().cast::<c_void>(), bytes.len());
        // SAFETY: the memory is alive.
        unsafe { (*self.0).memcpy_from_dm.unwrap()(to, self.0, at, len) }
    }

    fn register(&self, world: &World, offset: u64, len: usize, access: u32) -> Result<*mut ibv_mr, i32> {
        // SAFETY: memory and domain are alive.
        let mr = unsafe { extended(world).reg_dm_mr.unwrap()(world.pd, self.0, offset, len, access) };
        if mr.is_null() { Err(errno()) } else { Ok(mr) }
    }
}

#[test]
fn the_device_has_memory_of_its_own() {
    let world = World::stepped();
    let mut caps = ibv_device_attr_ex::default();
    // SAFETY: the context is open.
    assert_eq!(unsafe { ibv_query_device_ex(world.ctx, ptr::null(), &mut caps) }, 0);
    assert_eq!(caps.max_dm_size, 256 << 10);
    assert_eq!(alloc(&world, 0, 0).err(), Some(libc::EINVAL));
    assert_eq!(alloc(&world, 64, 13).err(), Some(libc::EINVAL), "a start at 8192 bytes");
    assert_eq!(alloc(&world, (256 << 10) + 1, 0).err(), Some(libc::EINVAL), "by the library");
    let all = alloc(&world, 256 << 10, 12).unwrap();
    assert_eq!(alloc(&world, 1, 0).err(), Some(libc::ENOMEM));
    assert_eq!(all.free(), 0);
    // Each piece takes pages of its own.
    let pieces: Vec<_> = (0..64).map(|_| alloc(&world, 100, 6).unwrap()).collect();
    assert_eq!(alloc(&world, 1, 0).err(), Some(libc::ENOMEM));
    for (index, piece) in pieces.iter().enumerate() {
        assert_eq!(piece.write(0, &[index as u8; 100]), 0);
    }
    for (index, piece) in pieces.iter().enumerate() {
        let mut bytes = [0; 100];
        assert_eq!(piece.read(0, &mut bytes), 0);
        assert_eq!(bytes, [index as u8; 100]);
    }
    pieces.into_iter().for_each(|piece| assert_eq!(piece.free(), 0));
}

#[test]
fn device_memory_is_the_source_and_the_target_of_requests() {
    let world = World::stepped();
    let dm = alloc(&world, 1000, 0).unwrap();
    let zero_based = ALL | IBV_ACCESS_ZERO_BASED;
    for (offset, len, access) in [
        (0, 1000, ALL),
        (0, 1001, zero_based),
        (900, 101, zero_based),
        (1001, 0, zero_based),
        (0, 1000, IBV_ACCESS_ZERO_BASED | IBV_ACCESS_REMOTE_WRITE),
        (0, 1000, zero_based | IBV_ACCESS_ON_DEMAND),
    ] {
        let found = dm.register(&world, offset, len, access).err();
        assert_eq!(found, Some(libc::EINVAL), "{offset} {len} {access:#x}");
    }
    let mr = dm.register(&world, 104, 896, zero_based).unwrap();
    // SAFETY: the MR is alive.
    let (addr, length, key) = unsafe { ((*mr).addr, (*mr).length, (*mr).lkey) };
    assert_eq!((addr, length), (ptr::null_mut(), 896));
    // The whole piece, sent from the device, is received by the device.
    let text: Vec<u8> = (0..64).collect();
    assert_eq!(dm.write(104, &text), 0);
    let go = |opcode, local, to| Pair::new(&world).run(&world, opcode, Some(local), to);
    assert_eq!(go(IBV_WR_RDMA_WRITE, (0, 64, key), (800, key)), IBV_WC_SUCCESS);
    let mut bytes = [0; 64];
    assert_eq!(dm.read(904, &mut bytes), 0);
    assert_eq!(bytes[..], text);
    assert_eq!(go(IBV_WR_ATOMIC_FETCH_AND_ADD, (8, 8, key), (800, key)), IBV_WC_SUCCESS);
    assert_eq!(dm.read(904, &mut bytes), 0);
    let first = u64::from_ne_bytes([0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(bytes[..8], (first + 5).to_ne_bytes());
    // Beyond the region, which ends with the piece.
    assert_eq!(go(IBV_WR_RDMA_WRITE, (0, 64, key), (840, key)), IBV_WC_REM_ACCESS_ERR);
    let still_used = DeviceMemory(dm.0);
    assert_eq!(still_used.free(), libc::EBUSY, "a region names it");
    // SAFETY: the MR is alive.
    unsafe { assert_eq!(ibv_dereg_mr(mr), 0) };
    assert_eq!(dm.free(), 0);
}
