//! Access flags of registered memory, and what they permit a peer that knows the key.
//!
//! This binary has an `ibv_reg_mr` of its own, which notes the access flags that the library asks for.

use std::ffi::{c_int, c_void};
use std::sync::Mutex;

use doorbell::{BufferPool, HugePages, MemoryRegion, PoolConfig, QpConfig, QpState, RemoteRegion, WcStatus};
use doorbell_tests::device;
use doorbell_tests::sending_qp::SendingQp;
use doorbell_tests::world::Shared;
use rdma_core_sys as sys;

const LOCAL: sys::ibv_access_flags = sys::IBV_ACCESS_LOCAL_WRITE;
const READ: sys::ibv_access_flags = LOCAL | sys::IBV_ACCESS_REMOTE_READ;

/// Access and rkey of each region.
static REGIONS: Mutex<Vec<(sys::ibv_access_flags, u32)>> = Mutex::new(Vec::new());

type RegMr = unsafe extern "C" fn(*mut sys::ibv_pd, *mut c_void, usize, c_int) -> *mut sys::ibv_mr;

/// Takes the place of the function of libibverbs, and calls it.
///
/// # Safety
/// As for `ibv_reg_mr(3)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr(
    pd: *mut sys::ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut sys::ibv_mr {
    // SAFETY: the function of that name that comes next has this type.
    let mr = unsafe {
        let next = libc::dlsym(libc::RTLD_NEXT, c"ibv_reg_mr".as_ptr());
        let next: Option<RegMr> = std::mem::transmute(next);
        next.expect("libibverbs has it")(pd, addr, length, access)
    };
    if !mr.is_null() {
        // SAFETY: made just now.
        REGIONS.lock().unwrap().push((access as sys::ibv_access_flags, unsafe { (*mr).rkey }));
    }
    mr
}

/// The region that `make` registers.
fn region<T>(make: impl FnOnce() -> T) -> (T, sys::ibv_access_flags, u32) {
    REGIONS.lock().unwrap().clear();
    let made = make();
    let regions = REGIONS.lock().unwrap();
    assert_eq!(regions.len(), 1, "one region for what was made");
    (made, regions[0].0, regions[0].1)
}

#[test]
fn pools_are_registered_for_local_writes_and_on_request_for_reads_of_peers() {
    let pd = device::pd();
    let config = PoolConfig::new(4, 64);
    let pools = [
        (region(|| BufferPool::new(&pd, &PoolConfig::new(4, 64)).unwrap()).1, LOCAL),
        (region(|| BufferPool::new(&pd, &PoolConfig::new(4, 64).pages(HugePages::Transparent)).unwrap()).1, LOCAL),
        (region(|| BufferPool::from_memory(&pd, vec![0; 4096], &PoolConfig::new(u32::MAX, 64)).unwrap()).1, LOCAL),
        (region(|| BufferPool::new(&pd, &config.clone().headroom(9)).unwrap()).1, LOCAL),
        (region(|| BufferPool::new(&pd, &PoolConfig::new(4, 64).readable(true)).unwrap()).1, READ),
        (region(|| BufferPool::new(&pd, &config.readable(true)).unwrap()).1, READ),
    ];
    for (at, (access, expected)) in pools.into_iter().enumerate() {
        assert_eq!(access, expected, "pool {at}");
    }
}

/// Writes eight bytes to `addr`, and how that ended.
fn write(qp: &mut SendingQp, addr: u64, rkey: u32) -> WcStatus {
    qp.write(b"intruder", &RemoteRegion::new(addr, 8, rkey)).unwrap();
    qp.ended()
}

#[test]
fn a_peer_that_knows_the_key_of_a_pool_does_not_write_to_it() {
    for readable in [false, true] {
        let mut w = Shared::with(7, 1, 1, 64, QpConfig::rc().remote_write(true));
        let config = PoolConfig::new(1, 64).readable(readable);
        let (pool, _, rkey) = region(|| BufferPool::new(&w.pd, &config).unwrap());
        let (open, access, open_rkey) = region(|| MemoryRegion::new(&w.pd, 64).unwrap());
        assert_eq!((access, open_rkey), (LOCAL | sys::IBV_ACCESS_REMOTE_WRITE, open.region().rkey()));
        // Memory that is open to the peer takes the same write.
        let far = &mut w.peers.qps[0];
        assert_eq!(write(far, open.region().addr(), open.region().rkey()), WcStatus::SUCCESS);

        let mut buffer = pool.take().unwrap();
        let addr = buffer.as_ptr().expose_provenance() as u64;
        assert_eq!(write(far, addr, rkey), WcStatus::REM_ACCESS_ERR);
        buffer.set_len(64);
        assert_eq!(*buffer, [0; 64]);
        assert_eq!(far.state().unwrap(), QpState::Error);
    }
}
