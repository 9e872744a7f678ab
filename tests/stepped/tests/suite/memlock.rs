//! A process that may not lock as much memory as it registers.

use doorbell::{BufferPool, CqConfig, PoolConfig, Receiver};
use doorbell_stepped_tests::open;
use soft_mlx5::Device;

const LIMIT: u64 = 256 << 10;

// To root the limit means nothing, unless it gives up the capability.
fn give_up_ipc_lock() {
    const VERSION_3: u32 = 0x2008_0522;
    const IPC_LOCK: u32 = 14;
    let header = [VERSION_3, 0];
    let mut sets = [[0u32; 3]; 2];
    // SAFETY: header and sets have the form that the version stands for, and outlive the calls, which change
    // this thread only.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_capget, &raw const header, &raw mut sets), 0);
        sets[0][0] &= !(1 << IPC_LOCK);
        assert_eq!(libc::syscall(libc::SYS_capset, &raw const header, &raw const sets), 0);
    }
}

fn set_limit(bytes: u64) {
    // SAFETY: the structure outlives both calls.
    unsafe {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        assert_eq!(libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit), 0);
        limit.rlim_cur = bytes;
        assert_eq!(libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit), 0);
    }
}

#[test]
fn what_exceeds_the_limit_is_refused_in_words() {
    give_up_ipc_lock();
    set_limit(LIMIT);
    let (_device, pd) = open(Device::builder().stepped().memlock(true));
    let pool = |count| BufferPool::new(&pd, &PoolConfig::new(count, 4096));
    let words = "RLIMIT_MEMLOCK allows 256 KiB of registered memory and queues: raise it";
    let refused = pool(65).unwrap_err().to_string();
    assert!(refused.contains("ibv_reg_mr") && refused.contains(words), "{refused}");
    // A refused pool is not counted. A pool counts until it is dropped.
    let first = pool(40).unwrap();
    assert!(pool(40).is_err());
    drop(first);
    let _second = pool(40).unwrap();
    let large = CqConfig::new(4095);
    let refused = Receiver::new(&pd, &large).unwrap_err().to_string();
    assert!(refused.contains("_create_cq") && refused.contains(words), "{refused}");
}
