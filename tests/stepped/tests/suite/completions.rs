//! `Completions` and `Async` are the same for all that completes: the same code waits for each.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use doorbell::tags::{TagEvent, TagMatchingConfig, TaggedBuffer};
use doorbell::{Async, BufferPool, Completions, CqConfig, DataPath, PoolConfig, QpConfig, QueuePair, Sender};
use doorbell_stepped_tests::frames::{GROUP, PLAIN, SteppedFrames, datagram, is_datagram};
use doorbell_stepped_tests::{Stepped, cq, is_readable, on_each_path, open, tag_lists};
use soft_mlx5::{Device, LinkLayer};

on_each_path! { receiver sender frame_receiver tag_matching_srq }

/// A step of the program.
enum Act {
    /// Causes a completion, which comes when the device settles.
    Start,
    /// Polls for it.
    Poll,
}

/// Waits for some completions, in a thread and in a task.
fn wait_for_each<T: Completions>(device: &Device, mut object: T, mut act: impl FnMut(&mut T, Act)) {
    for _ in 0..3 {
        act(&mut object, Act::Start);
        assert!(!object.has_completions());
        assert!(!object.wait(Duration::from_millis(1)).unwrap(), "woken by nothing");
        assert!(!object.arm().unwrap());
        assert!(!is_readable(object.channel().unwrap()));
        device.settle();
        assert!(is_readable(object.channel().unwrap()), "the sleeper was not woken");
        assert!(object.has_completions());
        assert!(object.arm().unwrap(), "nothing would end the sleep");
        assert!(object.wait(None).unwrap());
        act(&mut object, Act::Poll);
        assert!(!object.has_completions());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut object = Async::new(object).unwrap();
        for _ in 0..3 {
            act(&mut object, Act::Start);
            {
                let mut ready = pin!(object.ready());
                let early = poll_fn(|task| Poll::Ready(ready.as_mut().poll(task))).await;
                assert!(early.is_pending(), "woken by nothing");
                device.settle();
                let woken = tokio::time::timeout(Duration::from_secs(60), ready).await;
                woken.expect("the task was not woken").unwrap();
            }
            // A task does not sleep while there is something to poll.
            object.ready().await.unwrap();
            act(&mut object, Act::Poll);
        }
        assert!(!object.into_inner().has_completions());
    });
}

fn receiver(path: DataPath) {
    let Stepped { receiver, near: _near, mut far, device, .. } = Stepped::new(path, 16);
    wait_for_each(&device, receiver, |receiver, act| match act {
        Act::Start => far.send_inline(b"hello", None).unwrap(),
        Act::Poll => {
            assert_eq!(*receiver.poll().next().unwrap().unwrap(), *b"hello");
            assert!(far.poll_send().unwrap().status.is_success());
        }
    });
}

fn sender(path: DataPath) {
    let (device, pd) = open(Device::builder().stepped());
    let mut sender = Sender::new(&pd, &CqConfig::new(16).path(path)).unwrap();
    let config = QpConfig::rc().max_send_wr(4).max_inline(16).remote_write(true);
    let mut qp = QueuePair::builder(&config).send(&mut sender).build().unwrap();
    qp.connect(&qp.address().unwrap()).unwrap();
    let memory = doorbell::MemoryRegion::new(&pd, 8).unwrap();
    let mut token = 0;
    wait_for_each(&device, sender, |sender, act| match act {
        Act::Start => {
            token += 1;
            let request = sender.post(&qp).unwrap();
            request.token(token).write(b"itself", &memory.region()).unwrap();
        }
        Act::Poll => assert_eq!(sender.poll().next().unwrap().unwrap().token, token),
    });
}

fn frame_receiver(path: DataPath) {
    let world = SteppedFrames::new(&PLAIN, path);
    let _rule = world.attach();
    let SteppedFrames { receiver, mut publisher, device } = world;
    let mut number = 0;
    wait_for_each(&device, receiver, |receiver, act| match act {
        Act::Start => {
            number += 1;
            publisher.post(&datagram(GROUP, 5, 100, number), true);
        }
        Act::Poll => {
            assert!(is_datagram(&receiver.poll().next().unwrap().unwrap(), 100, number));
            publisher.reap();
        }
    });
}

fn tag_matching_srq(path: DataPath) {
    // The device matches, and the library.
    for link in [LinkLayer::InfiniBand, LinkLayer::Ethernet] {
        let (device, pd) = open(Device::builder().link_layer(link).stepped());
        let [(near, _), (mut far, to_near)] = tag_lists(&pd, &TagMatchingConfig::new(8).cq(cq(path)));
        let pool = BufferPool::new(&pd, &PoolConfig::new(16, 256)).unwrap();
        let mut tag = 0;
        wait_for_each(&device, near, |near, act| match act {
            Act::Start => {
                tag += 1;
                near.post(tag, u64::MAX, pool.take().unwrap()).unwrap();
                // The list has the receive before the message comes.
                device.settle();
                assert!(near.next().is_none());
                let message = TaggedBuffer::new(pool.take().unwrap()).unwrap();
                far.send(to_near, tag, 0, message).unwrap();
            }
            Act::Poll => {
                match near.next() {
                    Some(TagEvent::Received(got)) => assert_eq!(got.tag, tag),
                    other => panic!("{other:?}"),
                }
                while far.next().is_some() {}
            }
        });
    }
}
