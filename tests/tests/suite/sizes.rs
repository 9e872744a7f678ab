//! Sizes of queues: both paths round a size in the same way, and all slots can be used.

use doorbell::{
    BufferPool, Context, CqConfig, DataPath, DeviceEvent, PoolConfig, QpConfig, QueuePair, Receiver, RqConfig,
    SrqConfig, Timestamps,
};
use doorbell_tests::device;
use doorbell_tests::world::{Shared, Single};

/// Returns `true` if libmlx5 makes the queues: it rounds sizes, on either path.
fn is_mlx5(context: &Context) -> bool {
    context.auto_path().0 == DataPath::Direct
}

/// A queue that was rounded up fits into a CQ that was rounded up likewise. All its slots are filled with messages at
/// once.
#[test]
fn queues_of_500_fit_a_cq_of_501_and_fill_it() {
    for (mut w, expected) in [(Single::beside(500, 64, 1).any(), 512), (Shared::new(500, 1, 64).any(), 511)] {
        let mut events = w.pd.context().events().unwrap();
        let capacity = w.capacity();
        if is_mlx5(w.pd.context()) {
            assert_eq!((w.receiver.cq_capacity(), capacity), (512, expected));
        }
        assert!(capacity >= 500 && capacity as u32 <= w.receiver.cq_capacity());
        w.post(capacity);
        w.peers.arrive(capacity);
        drop(w.take(capacity));
        while let Some(event) = events.try_next().unwrap() {
            assert!(!matches!(event, DeviceEvent::CqError { .. }), "{event:?}");
        }
    }
}

/// The sizes of a queue and of its CQ follow from the number of buffers, whatever it is.
#[test]
fn a_pool_says_how_large_its_queue_and_the_cq_are() {
    let pd = device::pd();
    for count in [1, 2, 3, 4, 5, 7, 8, 9, 255, 256, 257, 500] {
        let pool = BufferPool::new(&pd, &PoolConfig::new(count, 64)).unwrap();
        let create = || Receiver::new(&pd, &CqConfig::for_pool(&pool).path(device::path())).unwrap();
        let mut receiver = create();
        let srq = receiver.create_srq(&SrqConfig::for_pool(&pool)).unwrap();
        let posted = receiver.fill(srq, &pool).unwrap() as u32;
        // An SRQ of a power of two slots keeps one unposted. The direct path puts a buffer there. Other drivers make
        // the SRQ as large as was asked for, or larger.
        let least = count.saturating_sub(1).max(1);
        if is_mlx5(pd.context()) {
            assert_eq!(posted, if count.is_power_of_two() { least } else { count }, "{count} buffers");
        }
        let unposted = if receiver.path() == DataPath::Direct { count - posted } else { 0 };
        assert!(posted >= least, "{posted} of {count} buffers");
        assert_eq!(posted + unposted + pool.available() as u32, count);

        let pool = BufferPool::new(&pd, &PoolConfig::new(count, 64)).unwrap();
        let mut receiver = create();
        let own = RqConfig::for_pool(&pool);
        let qp = QueuePair::builder(&QpConfig::rc()).receive(&mut receiver, own).build().unwrap();
        assert_eq!(receiver.fill(qp.receive_queue().unwrap(), &pool).unwrap() as u32, count);
        assert_eq!(pool.available(), 0);
    }
}

#[test]
fn a_cq_is_as_large_as_was_asked_for() {
    let pd = device::pd();
    let config = |capacity| CqConfig::new(capacity).path(device::path());
    let largest = pd.context().attr().max_cqe;
    let sizes = [(1, 2), (2, 2), (3, 4), (64, 64), (65, 128), (511, 512), (512, 512), (4096, 4096)];
    for (asked, mlx5) in sizes {
        let made = Receiver::new(&pd, &config(asked)).unwrap().cq_capacity();
        assert!(made >= asked, "{made} for {asked}");
        if is_mlx5(pd.context()) {
            assert_eq!(made, mlx5, "for {asked}");
        }
    }
    assert!(Receiver::new(&pd, &config(largest)).is_ok());
    let timestamps = config(512).timestamps(Timestamps::Ticks);
    let made = Receiver::new(&pd, &timestamps).unwrap().cq_capacity();
    assert!(made == 512 || made > 512 && !is_mlx5(pd.context()), "{made}");
}
