//! Sizes of queues: both paths round a size in the same way, and all slots can be used.

use doorbell::{Context, CqConfig, DataPath, DeviceEvent, Receiver, Timestamps};
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
