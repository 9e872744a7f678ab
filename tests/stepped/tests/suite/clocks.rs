//! Timestamps, on a device with a clock that the test moves.

use std::time::Duration;

use doorbell::{
    BufferPool, CqConfig, DataPath, Error, PoolConfig, QpConfig, QueuePair, Receiver, RqConfig, Sender, Timestamps,
};
use doorbell_stepped_tests::{PATHS, Stepped, on_each_path, open};
use rdma_core_sys as sys;
use soft_mlx5::{Builder, Device};

/// More than the lower half of a timestamp in real time can say, at odd nanoseconds.
const PAUSE: Duration = Duration::from_nanos(1_700_000_001);

on_each_path! { real_time ticks the_clock_is_that_of_timestamps a_sender_has_the_clock_of_the_receiver }

fn config(path: DataPath) -> CqConfig {
    CqConfig::new(64).path(path)
}

/// Sends a message after each pause, and takes them all: each timestamp in nanoseconds is the time at which the device
/// completed the message. Returns the timestamps as they came.
fn run(builder: Builder, config: CqConfig) -> Vec<u64> {
    let mut s = Stepped::on(builder, config, 16);
    let mut sent = Vec::new();
    for _ in 0..5 {
        s.device.advance(PAUSE);
        sent.push(s.device.now().as_nanos() as u64);
        s.send();
        s.device.settle();
    }
    let clock = s.receiver.clock().unwrap();
    // The clock of the device does not depend on the configuration of the receiver.
    let of_device = s.pd.context().clock().unwrap();
    let mut batch = s.receiver.poll();
    let mut raw = Vec::new();
    for time in sent {
        let timestamp = batch.next().unwrap().unwrap().timestamp().expect("it was asked for");
        assert_eq!(clock.nanoseconds(timestamp), Ok(time), "{timestamp:?}");
        assert_eq!(of_device.nanoseconds(timestamp), Ok(time), "{timestamp:?}");
        raw.push(timestamp.raw());
    }
    raw
}

fn real_time(path: DataPath) {
    let raw = run(Device::builder().real_time(true), config(path).timestamps(Timestamps::RealTime));
    // Seconds above, nanoseconds below.
    assert_eq!(raw[..2], [1 << 32 | 700_000_001, 3 << 32 | 400_000_002]);
}

fn the_clock_is_that_of_timestamps(path: DataPath) {
    let mut s = Stepped::on(Device::builder(), config(path).timestamps(Timestamps::Ticks), 16);
    s.device.advance(PAUSE);
    s.send();
    s.device.settle();
    let context = s.pd.context().clone();
    let now = context.now().unwrap();
    let timestamp = s.receiver.next().unwrap().unwrap().timestamp();
    assert_eq!(Some(now), timestamp);
    s.device.advance(PAUSE);
    s.device.settle();
    assert_eq!(context.now().unwrap().raw(), now.raw() + PAUSE.as_nanos() as u64);
    assert_eq!(context.clock().unwrap().nanoseconds(now), Ok(now.raw()));
}

/// The driver of another device may have no such entry.
#[test]
fn a_counter_that_cannot_be_read_is_refused_in_words() {
    let (_device, pd) = open(Device::builder().stepped());
    let context = pd.context();
    // SAFETY: an open context of libibverbs, which no other code uses now.
    unsafe { (*sys::verbs_get_ctx(context.as_raw())).query_rt_values = None };
    let refused = context.now().unwrap_err();
    assert!(matches!(refused, Error::Unsupported { operation: "Context::now", .. }), "{refused}");
}

/// The driver makes no queue pair on CQs of two clocks.
fn a_sender_has_the_clock_of_the_receiver(path: DataPath) {
    let (device, pd) = open(Device::builder().stepped().real_time(true));
    let mut receiver = Receiver::new(&pd, &config(path).timestamps(Timestamps::RealTime)).unwrap();
    let with = QpConfig::rc().max_send_wr(1).max_inline(8);
    let sender = CqConfig::new(64).path(path);
    let mut other = Sender::new(&pd, &sender).unwrap();
    match QueuePair::builder(&with).receive(&mut receiver, RqConfig::new(1)).send(&mut other).build() {
        Err(Error::Unsupported { operation, .. }) => {
            assert_eq!(operation, "a queue pair");
        }
        other => panic!("{other:?}"),
    }
    let mut sender = Sender::new(&pd, &sender.timestamps(Timestamps::RealTime)).unwrap();
    let mut qp = QueuePair::builder(&with).receive(&mut receiver, RqConfig::new(1)).send(&mut sender).build().unwrap();
    qp.connect(&qp.address().unwrap()).unwrap();
    let pool = BufferPool::new(&pd, &PoolConfig::new(1, 64)).unwrap();
    receiver.fill(qp.receive_queue().unwrap(), &pool).unwrap();
    sender.post(qp.send_queue().unwrap()).unwrap().send(b"itself").unwrap();
    device.settle();
    assert!(sender.poll().next().unwrap().is_ok());
    let mut batch = receiver.poll();
    assert_eq!(&batch.next().unwrap().unwrap()[..], b"itself");
}

/// A device with real time gives ticks to a receiver that asks for ticks.
fn ticks(path: DataPath) {
    let raw = run(Device::builder().real_time(true), config(path).timestamps(Timestamps::Ticks));
    assert_eq!(raw[..2], [PAUSE.as_nanos() as u64, 2 * PAUSE.as_nanos() as u64]);
}

#[test]
fn real_time_is_refused_where_there_is_none() {
    let (_device, pd) = open(Device::builder().stepped());
    assert!(!pd.context().capabilities().unwrap().timestamps.unwrap().real_time);
    for path in PATHS {
        match Receiver::new(&pd, &config(path).timestamps(Timestamps::RealTime)) {
            Err(Error::Unsupported { operation, .. }) => {
                assert_eq!(operation, "timestamps in real time");
            }
            other => panic!("{other:?}"),
        }
        // Ticks are there.
        Receiver::new(&pd, &config(path).timestamps(Timestamps::Ticks)).unwrap();
    }
}
