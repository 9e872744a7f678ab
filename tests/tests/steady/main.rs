//! The data path makes no heap call and no system call.
#![cfg(target_arch = "x86_64")]

mod heap;
#[expect(dead_code, reason = "the example uses the rest")]
#[path = "../../../examples/latency/side.rs"]
mod side;
mod system_calls;

use std::hint::{black_box, spin_loop};
use std::thread;
use std::time::{Duration, Instant};

use doorbell::{
    Buffer, BufferPool, CqConfig, DataPath, Message, PoolConfig, QpConfig, QueueId, QueuePair, Receiver, RqConfig,
    SrqConfig,
};
use doorbell_tests::sending::Sending;
use doorbell_tests::world::{Shared, World, both};
use doorbell_tests::{Peers, device, message, share, skip};
use system_calls::Watch;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Calls of a thread.
#[derive(Debug, PartialEq)]
struct Did {
    heap_calls: u64,
    system_calls: Vec<u64>,
}

const NOTHING: Did = Did { heap_calls: 0, system_calls: Vec::new() };

/// Runs `work` on this thread, and returns its calls.
fn observe(watch: &Watch, work: impl FnOnce()) -> Did {
    let (heap, system) = (heap::calls(), watch.calls());
    work();
    let (heap_calls, system_calls) = (heap::calls() - heap, watch.calls() - system);
    Did { heap_calls, system_calls: watch.latest(system_calls) }
}

#[test]
fn a_loop_that_computes_does_nothing_else() {
    let watch = Watch::this_thread();
    let mut words = [0_u64; 512];
    let did = observe(&watch, || {
        for round in 0..100_000_u64 {
            words[round as usize % 512] += black_box(round);
        }
    });
    assert_eq!(did, NOTHING);
    assert_ne!(words[511], 0);
}

#[test]
fn one_allocation_of_rust_is_seen() {
    let watch = Watch::this_thread();
    let did = observe(&watch, || drop(black_box(Box::new(1))));
    assert_eq!(did.heap_calls, 2, "{did:?}");
}

#[test]
fn one_allocation_inside_a_shared_library_is_seen() {
    let watch = Watch::this_thread();
    let did = observe(&watch, || {
        // SAFETY: a string; the copy is leaked.
        let copy = unsafe { libc::strdup(c"libc calls malloc by name".as_ptr()) };
        // Without this the compiler removes the call.
        assert!(!black_box(copy).is_null());
    });
    assert_eq!(did.heap_calls, 1, "{did:?}");
}

#[test]
fn one_system_call_is_seen_and_still_does_its_work() {
    let watch = Watch::this_thread();
    let mut parent = 0;
    let did = observe(&watch, || {
        // SAFETY: takes nothing and cannot fail.
        parent = unsafe { libc::getppid() };
    });
    assert_eq!(did, Did { heap_calls: 0, system_calls: vec![libc::SYS_getppid as u64] });
    assert_eq!(parent as u32, std::os::unix::process::parent_id());

    let began = Instant::now();
    let did = observe(&watch, || thread::sleep(Duration::from_millis(5)));
    assert_eq!(did.system_calls, [libc::SYS_clock_nanosleep as u64]);
    assert!(began.elapsed() >= Duration::from_millis(5));
}

/// Messages before the steady phase, and in it.
fn phases() -> (u32, u32) {
    (share(2_000) as u32, share(8_000) as u32)
}

/// Receives `count` messages without a pause.
fn receive(receiver: &mut Receiver, count: u32, mut each: impl FnMut(Message<'_>)) {
    let mut left = count;
    let mut idle = 0_u64;
    while left > 0 {
        let mut batch = receiver.poll_up_to(left);
        while let Some(next) = batch.next() {
            match next {
                Ok(message) => each(message),
                Err(failure) => panic!("{failure}"),
            }
            left -= 1;
            idle = 0;
        }
        idle += 1;
        // Looking at the clock could be a system call.
        assert!(idle < 20_000_000_000, "nothing arrives");
        spin_loop();
    }
}

/// Sends from another thread the messages that `receive_all` receives, twice: to warm up, and observed.
fn observe_receiving(
    receiver: &mut Receiver,
    mut peers: Peers,
    mut receive_all: impl FnMut(&mut Receiver, u32) + Send,
) -> Did {
    let (warm_up, steady) = phases();
    let sender = thread::spawn(move || {
        peers.arrive((warm_up + steady) as usize);
    });
    // A thread that was watched cannot start others.
    let did = thread::scope(|scope| {
        let observed = scope.spawn(|| {
            let watch = Watch::this_thread();
            receive_all(receiver, warm_up);
            observe(&watch, || receive_all(receiver, steady))
        });
        observed.join().unwrap()
    });
    sender.join().unwrap();
    did
}

/// Takes every message and posts its buffer again, up to 16 at once.
fn take_and_post(receiver: &mut Receiver, queue: QueueId, count: u32, taken: &mut Vec<Buffer>) {
    let mut left = count;
    while left > 0 {
        let some = left.min(16);
        receive(receiver, some, |message| taken.push(message.take().unwrap()));
        let posted = taken.len();
        assert_eq!(receiver.post(queue, taken.drain(..)).unwrap(), posted);
        left -= some;
    }
}

#[test]
fn recycling() {
    for mut w in both(64, 64).map(World::filled) {
        let did = observe_receiving(&mut w.receiver, w.peers, |receiver, count| {
            receive(receiver, count, |message| {
                black_box(message::read(&message));
            });
        });
        assert_eq!(did, NOTHING);
    }
}

#[test]
fn posting() {
    for mut w in both(64, 64).map(World::filled) {
        let mut taken = Vec::with_capacity(64);
        let did = observe_receiving(&mut w.receiver, w.peers, |receiver, count| {
            take_and_post(receiver, w.queue, count, &mut taken);
        });
        assert_eq!(did, NOTHING);
    }
}

#[test]
fn recycling_scattered_messages() {
    let mut w = Shared::with(15, 3, 1, 40, QpConfig::rc());
    let pieces = BufferPool::new(&w.pd, &PoolConfig::new(3 * w.receiver.capacity(w.queue), 16)).unwrap();
    while w.receiver.free_slots(w.queue) > 0 {
        let buffers = (0..3).map(|_| pieces.take().unwrap()).collect();
        w.receiver.post_scatter(w.queue, buffers).unwrap();
    }
    let did = observe_receiving(&mut w.receiver, w.peers, |receiver, count| {
        receive(receiver, count, |message| {
            assert_eq!(black_box(message.segments().map(<[u8]>::len).sum::<usize>()), 40);
        });
    });
    assert_eq!(did, NOTHING);
}

#[test]
fn recycling_with_several_queues_on_the_cq() {
    let (pd, mut receiver) = device::start(256);
    let srq = receiver.create_srq(&SrqConfig::new(31)).unwrap();
    let other = QueuePair::builder(&QpConfig::rc()).receive(&mut receiver, RqConfig::new(16)).build().unwrap();
    let pool = BufferPool::new(&pd, &PoolConfig::new(128, 64)).unwrap();
    let config = QpConfig::rc();
    let (_near, peers) = Peers::connect(&pd, &mut receiver, &config, srq, 1, 64);
    receiver.fill(srq, &pool).unwrap();
    receiver.fill(other.receive_queue().unwrap(), &pool).unwrap();
    let did = observe_receiving(&mut receiver, peers, |receiver, count| {
        receive(receiver, count, |message| {
            black_box((message::read(&message), message.qp_num(), message.imm()));
        });
    });
    assert_eq!(did, NOTHING);
}

/// Every kind of request, on two queue pairs in turn.
#[test]
fn posting_requests_and_taking_their_buffers() {
    let config = QpConfig::rc().max_send_wr(16).max_inline(32).max_send_sge(2);
    let w = Sending::with(2, 64, &config, &CqConfig::new(4096));
    if w.pd.context().auto_path().0 != DataPath::Direct {
        skip!("the driver of Soft-RoCE sends by a system call");
    }
    let queues = [w.queue(0), w.queue(1)];
    let remote = w.remote().slice(0, 32).unwrap();
    let number = w.remote().slice(32, 8).unwrap();
    let Sending { mut sender, mut far_receiver, pool, .. } = w;
    let (warm_up, steady) = phases();
    let peer = thread::spawn(move || receive(&mut far_receiver, 2 * (warm_up + steady), |_| ()));
    let mut rounds = |count: u32| {
        for round in 0..count {
            let take = || pool.take().expect("a free buffer");
            let mut posting = sender.post_many(queues[round as usize % 2]).unwrap();
            posting.send(take()).unwrap();
            posting.solicited().send([take(), take()]).unwrap();
            posting.write(b"inline", &remote).unwrap();
            posting.read(take(), &remote).unwrap();
            posting.fence().fetch_add(take(), &number, 1).unwrap();
            drop(posting);
            let mut left = 5;
            while left > 0 {
                let mut batch = sender.poll();
                while let Some(done) = batch.next() {
                    assert!(done.is_ok());
                    left -= 1;
                }
                spin_loop();
            }
        }
    };
    let watch = Watch::this_thread();
    rounds(warm_up);
    let did = observe(&watch, || rounds(steady));
    peer.join().unwrap();
    assert_eq!(did, NOTHING);
}

/// Both ends in one thread, with messages that are copied, and unsignaled, and with such that are not.
#[test]
fn the_loop_of_the_example_latency() {
    for size in [64, 4096] {
        let (pd, _) = device::start(16);
        let path = pd.context().auto_path().0;
        if path != DataPath::Direct {
            skip!("the driver of Soft-RoCE sends by a system call");
        }
        let [mut near, mut far] = [(); 2].map(|()| side::Side::new(pd.context(), path, size, false).unwrap());
        near.connect_to(&mut far).unwrap();
        let mut rounds = |count: u32| {
            for _ in 0..count {
                near.send().unwrap();
                far.receive().unwrap();
                far.send().unwrap();
                near.receive().unwrap();
                near.finish_send().unwrap();
                far.finish_send().unwrap();
            }
        };
        let watch = Watch::this_thread();
        rounds(200);
        let did = observe(&watch, || rounds(2_000));
        assert_eq!(did.heap_calls, 0, "{size} bytes: {did:?}");
    }
}

#[test]
fn an_allocation_or_a_system_call_per_message_would_be_seen() {
    let mut w = Shared::new(63, 1, 64).filled();
    let did = observe_receiving(&mut w.receiver, w.peers, |receiver, count| {
        receive(receiver, count, |message| {
            drop(black_box(message.to_vec()));
            // SAFETY: takes nothing and cannot fail.
            unsafe { libc::getppid() };
        });
    });
    assert_eq!(did.heap_calls, 2 * u64::from(phases().1));
    assert_eq!(did.system_calls, [libc::SYS_getppid as u64; system_calls::REMEMBERED]);
}
