//! Impossible requests are refused with an error that says what is possible.

use std::ops::Bound::{self, Excluded, Included, Unbounded};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::time::Duration;

use doorbell::{
    BufferPool, Completions, CqConfig, DataPath, Error, MemoryRegion, NotDirect, PoolConfig, PostFailure, QpConfig,
    QueuePair, Receiver, RemoteRegion, RqConfig, SrqConfig,
};
use doorbell_tests::world::{Shared, Single};
use doorbell_tests::{assert_matches, device, direct_only};

/// Runs the ignored test `name` in another process. `adjust` changes its environment.
fn in_another_process(name: &str, adjust: impl FnOnce(&mut Command)) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "--include-ignored", "--nocapture"]);
    command.arg(format!("{}::{name}", module_path!().split_once("::").unwrap().1));
    adjust(&mut command);
    let output = command.output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    let passed = output.status.success() && printed.contains("1 passed");
    assert!(passed, "{printed}{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn no_device() {
    let nowhere = env!("CARGO_TARGET_TMPDIR");
    in_another_process("where_no_device_is", |command| {
        command.env("SYSFS_PATH", nowhere).env_remove("LD_PRELOAD");
    });
}

#[test]
#[ignore = "run by the test above where there is no device"]
fn where_no_device_is() {
    let error = doorbell::devices().map(|devices| devices.len()).unwrap_err();
    assert_matches!(error, Error::NoDevice);
    assert!(error.to_string().contains("ibv_devices"), "{error}");
    assert_matches!(doorbell::open("mlx5_0").unwrap_err(), Error::NoDevice);
}

#[test]
fn a_device_without_provider() {
    // The files that a kernel shows for a device that no provider matches.
    let root = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("no-provider");
    let device = root.join("class/infiniband/odd_0/device");
    let verbs = root.join("class/infiniband_verbs");
    std::fs::create_dir_all(&device).unwrap();
    std::fs::create_dir_all(verbs.join("uverbs0")).unwrap();
    std::fs::write(device.join("modalias"), "pci:v0000FFFEd00000001sv0sd0bc02sc07i00\n").unwrap();
    std::fs::write(verbs.join("abi_version"), "6\n").unwrap();
    for (name, value) in [("ibdev", "odd_0\n"), ("dev", "1:3\n"), ("abi_version", "1\n")] {
        std::fs::write(verbs.join("uverbs0").join(name), value).unwrap();
    }
    in_another_process("where_a_device_has_no_provider", |command| {
        command.env("SYSFS_PATH", &root).env_remove("LD_PRELOAD");
    });
}

#[test]
#[ignore = "run by the test above where a device has no provider"]
fn where_a_device_has_no_provider() {
    let error = doorbell::devices().map(|devices| devices.len()).unwrap_err();
    assert_matches!(error, Error::NoProvider { .. });
    let words = error.to_string();
    assert!(words.contains("odd_0") && words.contains("ibverbs-providers"), "{words}");
}

#[test]
fn an_unknown_device_is_answered_with_those_that_exist() {
    let present = device::open().name().to_owned();
    let error = doorbell::open("mlx5_77").unwrap_err();
    assert_matches!(&error, Error::UnknownDevice { name, .. } if name == "mlx5_77");
    assert!(error.to_string().contains(&present), "{error}");
}

#[test]
fn a_signature_that_the_environment_asks_for_excludes_the_direct_path() {
    direct_only!(&device::open_unpoisoned());
    for variable in ["MLX5_SRQ_SIGNATURE", "MLX5_QP_SIGNATURE"] {
        in_another_process("where_wqes_are_signed", |command| {
            command.env(variable, "1").env("DOORBELL_PATH", "verbs").env("SIGNATURE", variable);
        });
    }
}

#[test]
#[ignore = "run by the test above where libmlx5 signs WQEs"]
fn where_wqes_are_signed() {
    let pd = device::pd();
    let make = |path| Receiver::new(&pd, &CqConfig::new(4096).path(path));
    let error = make(DataPath::Direct).unwrap_err();
    assert_matches!(error, Error::NotDirect { reason: NotDirect::Signature(_), .. });
    let variable = std::env::var("SIGNATURE").unwrap();
    assert!(error.to_string().contains(&variable), "{error}");
    assert_eq!(make(DataPath::Auto).unwrap().path(), DataPath::Verbs);
}

/// Asserts that an error is about the size called `what`.
#[track_caller]
fn out_of_range<T>(result: Result<T, Error>, what: &str) {
    let error = result.err().unwrap_or_else(|| panic!("{what} was accepted"));
    assert_matches!(error, Error::OutOfRange { .. });
    assert!(error.to_string().contains(what), "{error}");
}

#[test]
fn sizes_that_are_zero_or_too_large() {
    let pd = device::pd();
    let attr = *pd.context().attr();
    let receiver = |entries| Receiver::new(&pd, &CqConfig::new(entries).path(device::path()));
    for entries in [0, attr.max_cqe + 1, u32::MAX] {
        out_of_range(receiver(entries), "cqe of the CQ");
    }
    let mut receiver = receiver(1024).unwrap();
    // The CQ would be too small, too.
    for max_wr in [0, attr.max_srq_wr + 1, u32::MAX] {
        out_of_range(receiver.create_srq(&SrqConfig::new(max_wr)), "max_wr of the SRQ");
    }
    for max_sge in [0, attr.max_srq_sge + 1, u32::MAX] {
        out_of_range(receiver.create_srq(&SrqConfig::new(16).max_sge(max_sge)), "max_sge");
    }
    out_of_range(
        QueuePair::builder(&QpConfig::rc()).receive(&mut receiver, RqConfig::new(0)).build(),
        "max_wr of receives",
    );
    for max_sge in [0, attr.max_sge + 1, u32::MAX] {
        let config = QpConfig::rc();
        out_of_range(
            QueuePair::builder(&config).receive(&mut receiver, RqConfig::new(1).max_sge(max_sge)).build(),
            "max_sge of receives",
        );
    }
    for max_wr in [0, attr.max_qp_wr + 1, u32::MAX] {
        out_of_range(
            QueuePair::builder(&QpConfig::rc().max_send_wr(max_wr)).receive(&mut receiver, RqConfig::new(128)).build(),
            "max_send_wr",
        );
    }
    for port in [0, attr.phys_port_cnt + 1, u8::MAX] {
        out_of_range(
            QueuePair::builder(&QpConfig::rc().port(port)).receive(&mut receiver, RqConfig::new(128)).build(),
            "port",
        );
    }
    out_of_range(BufferPool::new(&pd, &PoolConfig::new(0, 64)), "count");
    out_of_range(BufferPool::new(&pd, &PoolConfig::new(1, 0)), "buffer_size");
    out_of_range(BufferPool::new(&pd, &PoolConfig::new(1, u32::MAX)), "buffer_size");

    // Nothing of this has used anything up.
    let srq = receiver.create_srq(&SrqConfig::new(511)).unwrap();
    QueuePair::builder(&QpConfig::rc()).receive(&mut receiver, srq).build().unwrap();
}

#[test]
fn more_receives_than_the_cq_holds() {
    let (pd, mut receiver) = device::start(100);
    let capacity = receiver.cq_capacity();
    let refused = receiver.create_srq(&SrqConfig::new(capacity + 1)).unwrap_err();
    assert!(refused.to_string().contains("CqConfig::new"), "{refused}");
    let Error::CqTooSmall { needed, .. } = refused else { panic!("{refused:?}") };
    // As many as it says are enough.
    let mut larger = device::receiver(&pd, needed as u32);
    larger.create_srq(&SrqConfig::new(capacity + 1)).unwrap();
    let refused =
        QueuePair::builder(&QpConfig::rc()).receive(&mut receiver, RqConfig::new(capacity + 1)).build().unwrap_err();
    assert_matches!(refused, Error::CqTooSmall { .. });

    // Queues may fill a CQ, and not have one receive more.
    let mut small = device::receiver(&pd, 8);
    let half = small.cq_capacity() / 2;
    let both = [half, small.cq_capacity() - half]
        .map(|count| QueuePair::builder(&QpConfig::rc()).receive(&mut small, RqConfig::new(count)).build().unwrap());
    let used: u32 = both.iter().map(|qp| small.capacity(qp.receive_queue().unwrap())).sum();
    assert_eq!(used, small.cq_capacity());
    assert_matches!(small.create_srq(&SrqConfig::new(1)).unwrap_err(), Error::CqTooSmall { new: 1, .. });

    // Each fits alone, both together do not.
    let srq = receiver.create_srq(&SrqConfig::new(capacity / 2 + 1)).unwrap();
    let refused = QueuePair::builder(&QpConfig::rc())
        .receive(&mut receiver, RqConfig::new(capacity / 2 + 1))
        .build()
        .unwrap_err();
    assert_matches!(refused, Error::CqTooSmall { .. });
    // Any number of queue pairs may share it: its receives complete once.
    for _ in 0..8 {
        drop(QueuePair::builder(&QpConfig::rc()).receive(&mut receiver, srq).build().unwrap());
    }
}

#[test]
fn more_buffers_than_a_receive_of_the_queue_takes() {
    let (pd, mut receiver) = device::start(256);
    let srq = receiver.create_srq(&SrqConfig::new(15).max_sge(2)).unwrap();
    let pool = BufferPool::new(&pd, &PoolConfig::new(64, 64)).unwrap();
    let some = |count| (0..count).map(|_| pool.take().unwrap()).collect::<Vec<_>>();

    let refused = receiver.post_scatter(srq, some(40)).unwrap_err();
    assert_matches!(refused.reason, PostFailure::TooManyBuffers { given: 40, max: 2.. });
    assert_eq!(refused.buffers.len(), 40);
    drop(refused);
    let refused = receiver.post_scatter(srq, Vec::new()).unwrap_err();
    assert_eq!(refused.reason, PostFailure::NoBuffer);
    assert_eq!(pool.available(), 64);
    assert_eq!(receiver.free_slots(srq), receiver.capacity(srq));
    receiver.post_scatter(srq, some(2)).unwrap();
}

#[test]
fn queues_of_another_receiver() {
    let w = Shared::new(15, 1, 64);
    let mut other = device::receiver(&w.pd, 64);
    let error = other.post(w.queue, w.pool.take()).unwrap_err();
    assert_eq!((error.posted, error.reason), (0, PostFailure::NoQueue));
    drop(error);
    assert_eq!((other.capacity(w.queue), other.free_slots(w.queue)), (0, 0));
    assert_eq!(other.fill(w.queue, &w.pool).unwrap_err().reason, PostFailure::NoQueue);
    let refused = QueuePair::builder(&QpConfig::rc()).receive(&mut other, w.queue).build().unwrap_err();
    assert_matches!(refused, Error::Foreign { .. });
}

#[test]
fn connecting_twice_and_to_what_cannot_be() {
    let mut w = Single::new(8, 64);
    let there = w.peers.qps[0].address().unwrap();
    let refused = w.near[0].connect(&there).unwrap_err();
    assert_matches!(refused, Error::WrongState { operation: "connect", .. });

    w.receiver.reset_qp(&mut w.near[0]).unwrap();
    for wrong in [
        doorbell::QpAddress { qpn: 0, ..there },
        doorbell::QpAddress { qpn: 1, ..there },
        doorbell::QpAddress { qpn: 1 << 24, ..there },
        doorbell::QpAddress { psn: 1 << 24, ..there },
        doorbell::QpAddress { lid: 0, gid: [0; 16], ..there },
    ] {
        println!("{wrong:?}");
        let refused = w.near[0].connect(&wrong).unwrap_err();
        assert_matches!(refused, Error::OutOfRange { .. } | Error::Handshake(_));
    }
    // And still it can be connected.
    w.reconnect(0);
    w.fill();
    w.exchange(1);
}

/// Numbers at their limits are refused in builds that check for overflow and in builds that do not.
#[test]
fn parts_of_a_buffer_at_the_limits() {
    let pd = device::pd();
    let pool = BufferPool::new(&pd, &PoolConfig::new(1, 64)).unwrap();
    let most = usize::MAX;
    let part = |range: (Bound<usize>, Bound<usize>)| {
        let mut buffer = pool.take().unwrap();
        buffer.set_len(16);
        catch_unwind(AssertUnwindSafe(|| buffer.part(range))).map(drop)
    };
    let bounds = |at| [Included(at), Excluded(at)];
    for end in bounds(most) {
        assert!(part((Unbounded, end)).is_err(), "to {end:?}");
        assert!(part((Included(0), end)).is_err(), "to {end:?}");
    }
    for start in bounds(most) {
        for end in [Unbounded, Included(0), Excluded(0), Included(most), Excluded(most)] {
            assert!(part((start, end)).is_err(), "{start:?} to {end:?}");
        }
    }
    // The limits of the buffer itself.
    for (range, is_inside) in [
        ((Excluded(15), Unbounded), true),
        ((Excluded(16), Unbounded), false),
        ((Unbounded, Included(15)), true),
        ((Unbounded, Included(16)), false),
        ((Included(16), Excluded(16)), true),
    ] {
        assert_eq!(part(range).is_ok(), is_inside, "{range:?}");
    }
    assert_eq!(pool.available(), 1, "a panic gives the buffer back");
}

/// Public functions with a number of the caller's, at its limit: refused, or taken for what there is.
#[test]
fn numbers_at_the_limits() {
    let pd = device::pd();
    let region = RemoteRegion::new(u64::MAX - 7, usize::MAX, 1);
    for (offset, len) in [(1, usize::MAX), (usize::MAX, 1), (usize::MAX, usize::MAX)] {
        assert_matches!(region.slice(offset, len), Err(Error::OutOfRange { .. }));
    }
    let memory = MemoryRegion::new(&pd, 64).unwrap();
    for offset in [usize::MAX, usize::MAX - 7, 64] {
        let outside = catch_unwind(AssertUnwindSafe(|| memory.read(offset, &mut [0; 8])));
        assert!(outside.is_err(), "{offset}");
    }
    assert_matches!(MemoryRegion::new(&pd, usize::MAX), Err(Error::OutOfRange { .. }));

    let mut receiver = device::receiver(&pd, 64);
    let mut sender = device::sender(&pd, 512);
    assert!(receiver.poll_up_to(u32::MAX).next().is_none());
    assert!(sender.poll_up_to(u32::MAX).next().is_none());
    assert!(receiver.poll_up_to(0).next().is_none());
    let most = QpConfig::rc().max_send_wr(4).max_unsignaled(u32::MAX);
    let qp = QueuePair::builder(&most).receive(&mut receiver, RqConfig::new(4)).send(&mut sender).build().unwrap();
    let pool = BufferPool::new(&pd, &PoolConfig::new(8, 64).headroom(8)).unwrap();
    let too_large = [
        QpConfig::rc().max_send_wr(u32::MAX),
        QpConfig::rc().max_send_wr(4).max_send_sge(u32::MAX),
        QpConfig::rc().max_send_wr(4).max_inline(u32::MAX),
    ];
    for config in too_large {
        assert!(QueuePair::builder(&config).send(&mut sender).build().is_err(), "{config:?}");
    }
    let buffer = pool.take().unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| buffer.with_headroom(usize::MAX).len())).is_err());
    let part = catch_unwind(AssertUnwindSafe(|| buffer.part_with_headroom(usize::MAX)));
    assert!(part.is_err());
    if receiver.path() == DataPath::Verbs {
        assert_matches!(receiver.resize_cq(u32::MAX), Err(Error::OutOfRange { .. }));
    }
    receiver.destroy_qp(qp).unwrap();
    assert!(!receiver.wait(Duration::ZERO).unwrap());
}
