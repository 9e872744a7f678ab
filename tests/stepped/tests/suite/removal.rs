//! Whoever waits for a device wakes when it is removed, and not before. The objects that wait hold the last references
//! to the device.

use std::future::poll_fn;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use doorbell::frames::{FrameConfig, FrameReceiver};
use doorbell::rdmacm::{Listener, Route};
use doorbell::tags::{TagMatchingConfig, TagMatchingSrq};
use doorbell::{
    Async, Completions, CqConfig, DataPath, DeviceEvent, Error, EventStream, ProtectionDomain, QpConfig, QueuePair,
    Receiver, RqConfig, Sender,
};
use doorbell_stepped_tests::{cq, on_each_path, open};
use futures_core::Stream;
use soft_mlx5::{Device, LinkLayer};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(60);

on_each_path!(receivers senders frames tags);

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn device() -> (Device, ProtectionDomain) {
    open(Device::builder().link_layer(LinkLayer::Ethernet).strict(true).stepped())
}

/// The link goes down and up, which wakes nobody, and then the device is removed.
fn remove(device: &Device) {
    device.set_link(false);
    device.set_link(true);
    device.remove();
}

fn is_removal<T: std::fmt::Debug>(result: doorbell::Result<T>) {
    let error = result.expect_err("there is nothing to wait for");
    assert!(matches!(&error, Error::Verbs { source, .. } if source.raw_os_error() == Some(libc::EIO)), "{error}");
}

async fn within<T>(wait: impl Future<Output = T>) -> T {
    timeout(PATIENCE, wait).await.expect("a task sleeps on")
}

/// Polls once: the task sleeps.
async fn begin<T: std::fmt::Debug>(wait: &mut Pin<&mut impl Future<Output = T>>) {
    let early = poll_fn(|cx| Poll::Ready(wait.as_mut().poll(cx))).await;
    assert!(early.is_pending(), "{early:?}");
}

/// Two threads and a task wait for an object each.
fn ends<T: Completions + Send + 'static>(make: impl Fn(&ProtectionDomain) -> T) {
    let (device, pd) = device();
    let [forever, long, polled] = [(); 3].map(|()| make(&pd));
    let mut task = make(&pd);
    drop(pd);
    let sleepers =
        [(forever, None), (long, Some(PATIENCE))].map(|(mut object, time)| thread::spawn(move || object.wait(time)));
    runtime().block_on(async {
        // The task looked at its object before, as in an event loop.
        assert!(!task.arm().unwrap());
        let mut task = Async::new(task).unwrap();
        {
            let mut wait = pin!(task.ready());
            begin(&mut wait).await;
            device.set_link(false);
            device.set_link(true);
            begin(&mut wait).await;
            device.remove();
            is_removal(within(wait).await);
        }
        // The task is told of the removal more than once.
        is_removal(within(task.ready()).await);
    });
    sleepers.into_iter().for_each(|sleeper| is_removal(sleeper.join().unwrap()));
    let mut polled = polled;
    assert!(!polled.has_completions());
    is_removal(polled.wait(Duration::ZERO));
}

fn receivers(path: DataPath) {
    ends(|pd| Receiver::new(pd, &CqConfig::new(16).path(path)).unwrap());
}

fn senders(path: DataPath) {
    ends(|pd| Sender::new(pd, &CqConfig::new(16).path(path)).unwrap());
}

fn frames(path: DataPath) {
    ends(|pd| FrameReceiver::new(pd, &FrameConfig::new().plain(4, 64).cq(cq(path))).unwrap());
}

fn tags(path: DataPath) {
    let make = |pd: &ProtectionDomain| TagMatchingSrq::new(pd, &TagMatchingConfig::new(8).cq(cq(path))).unwrap();
    ends(make);
    let (device, pd) = device();
    runtime().block_on(async {
        let mut tags = Async::new(make(&pd)).unwrap();
        let mut next = pin!(poll_fn(|cx| Pin::new(&mut tags).poll_next(cx)));
        begin(&mut next).await;
        device.remove();
        is_removal(within(next).await.expect("the stream does not end"));
    });
}

/// A stream that is polled by a task of a second runtime, while the first does not run.
#[test]
fn events() {
    let (device, pd) = device();
    let first = runtime();
    let mut events = first.block_on(async { EventStream::new(pd.context().events().unwrap()).unwrap() });
    drop(pd);
    runtime().block_on(async {
        let seen = [DeviceEvent::PortError { port: 1 }, DeviceEvent::PortActive { port: 1 }, DeviceEvent::DeviceFatal];
        let changes: [fn(&Device); 3] =
            [|device| device.set_link(false), |device| device.set_link(true), Device::remove];
        for (event, change) in seen.into_iter().zip(changes) {
            let mut next = pin!(poll_fn(|cx| Pin::new(&mut events).poll_next(cx)));
            begin(&mut next).await;
            change(&device);
            assert_eq!(within(next).await.map(Result::unwrap), Some(event));
        }
        assert!(within(poll_fn(|cx| Pin::new(&mut events).poll_next(cx))).await.is_none());
    });
}

#[test]
fn the_reader_of_events_in_a_thread() {
    let (device, pd) = device();
    let events = pd.context().events().unwrap();
    drop(pd);
    let reader = thread::spawn(move || events.map(Result::unwrap).last());
    remove(&device);
    assert_eq!(reader.join().unwrap(), Some(DeviceEvent::DeviceFatal));
}

#[test]
fn the_connection_manager() {
    let device = Device::builder().link_layer(LinkLayer::Ethernet).build().unwrap();
    let here = SocketAddr::from((Ipv4Addr::new(10, 219, 0, 1), 0));
    let queue_pair = |name: &str| {
        let pd = doorbell::open(name).unwrap().alloc_pd().unwrap();
        let mut receiver = Receiver::new(&pd, &CqConfig::new(16)).unwrap();
        let qp = QueuePair::builder(&QpConfig::rc()).receive(&mut receiver, RqConfig::new(4)).build().unwrap();
        (receiver, qp)
    };
    let mut listener = Listener::bind(here).unwrap();
    let to = SocketAddr::new(here.ip(), listener.port());
    let side = thread::spawn(move || {
        let request = listener.accept(PATIENCE).unwrap().unwrap();
        let (receiver, mut qp) = queue_pair(request.device_name());
        let connection = request.accept(&mut qp, b"", PATIENCE).unwrap();
        (listener, connection, receiver, qp)
    });
    let route = Route::resolve(to, PATIENCE).unwrap();
    let (_receiver, mut qp) = queue_pair(route.device_name());
    let mut connection = route.connect(&mut qp, b"", PATIENCE).unwrap();
    let (mut listener, mut other, _other_receiver, _other_qp) = side.join().unwrap();
    let listening = Listener::bind(here).unwrap();
    let threads = (
        thread::spawn(move || connection.wait_disconnected(None)),
        thread::spawn(move || {
            let mut listening = listening;
            listening.accept(None).map(drop)
        }),
    );
    runtime().block_on(async {
        {
            let mut wait = pin!(other.wait_disconnected_async());
            let mut accept = pin!(listener.accept_async());
            begin(&mut wait).await;
            begin(&mut accept).await;
            remove(&device);
            assert!(matches!(within(wait).await, Err(Error::Verbs { .. })));
            assert!(matches!(within(accept).await, Err(Error::Verbs { .. })));
        }
    });
    assert!(matches!(threads.0.join().unwrap(), Err(Error::Verbs { .. })));
    assert!(matches!(threads.1.join().unwrap(), Err(Error::Verbs { .. })));
}
