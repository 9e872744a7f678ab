//! Full and empty queues, counters that wrap, threads, forks, and everything dropped in any order.

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use doorbell::frames::{FrameConfig, FrameReceiver};
use doorbell::{Completions, CqConfig, DataPath, NotSent, Sender};
use doorbell_stepped_tests::frames::{
    ALL, GROUP, HEADERS, PLAIN, Publisher, STRIDING, SteppedFrames, datagram, ethernet, feed, is_datagram,
};
use doorbell_stepped_tests::{cq, on_each_path, open, with_each_receiver};
use soft_mlx5::objects::WqState;
use soft_mlx5::{Device, LinkLayer};

on_each_path! { the_counters_wrap }
with_each_receiver! { a_full_queue_drops_and_goes_on }

/// More frames than the queue holds, without a poll between: the first ones arrive, the device counts the others, and
/// the queue goes on. The CQ has not one entry more than the queue can complete.
fn a_full_queue_drops_and_goes_on(config: &FrameConfig, path: DataPath, each: u32) {
    let mut world = SteppedFrames::new(config, path);
    let _rule = world.attach();
    let room = 4 * each;
    for lap in 0..20u32 {
        for number in 0..room + 3 {
            world.send(1400, number as u8);
        }
        let mut batch = world.receiver.poll_up_to(u32::MAX);
        for number in 0..room {
            let frame = batch.next().expect("a frame").unwrap();
            assert!(is_datagram(&frame, 1400, number as u8), "lap {lap}");
            let dropped = if lap > 0 && number == 0 { 3 } else { 0 };
            assert_eq!(frame.dropped_before(), (path == DataPath::Direct).then_some(dropped));
        }
        assert!(batch.next().is_none());
        drop(batch);
        // Empty.
        world.expect_nothing();
    }
}

/// Twice through the 16 bits of the index of a WQE, in batches of every length that the queue has.
fn the_counters_wrap(path: DataPath) {
    let mut world = SteppedFrames::new(&PLAIN.plain(4, 64), path);
    let _rule = world.attach();
    let frame = datagram(GROUP, 5, 60, 0);
    let (mut sent, mut received) = (0u32, 0u32);
    while received < 2 << 16 {
        for _ in 0..1 + sent % 4 {
            let mut frame = frame.clone();
            frame[HEADERS..HEADERS + 4].copy_from_slice(&sent.to_be_bytes());
            world.publisher.post(&frame, false);
            sent += 1;
        }
        world.device.settle();
        world.publisher.reap();
        let mut batch = world.receiver.poll();
        while let Some(frame) = batch.next() {
            let frame = frame.unwrap();
            assert_eq!(frame[HEADERS..HEADERS + 4], received.to_be_bytes());
            assert_eq!(frame.dropped_before().unwrap_or(0), 0);
            received += 1;
        }
        drop(batch);
        assert_eq!(sent, received);
    }
}

/// Posts a frame as soon as the send queue has room for it.
fn post_when_room(publisher: &mut Publisher, frame: &[u8]) {
    let queue = publisher.frames.send_queue().unwrap();
    loop {
        match publisher.sender.post(queue).unwrap().send_frame(frame, true) {
            Ok(()) => return,
            Err(error) => assert!(matches!(error, NotSent::Full { .. }), "{error}"),
        }
        thread::yield_now();
        publisher.reap();
    }
}

/// Four receivers, each on its own thread, which sleeps when there is nothing; the device has a thread of its own, too.
#[test]
fn receivers_that_share_a_rule_work_on_threads() {
    const FRAMES: u32 = 8_000;
    const SOURCES: u32 = 64;
    /// Frames on their way: fewer than one queue has buffers, for one receiver could get all.
    const WINDOW: u32 = 200;
    for config in [PLAIN.plain(256, 2048), STRIDING] {
        let builder = Device::builder().link_layer(LinkLayer::Ethernet).strict(true);
        let (device, pd) = open(builder);
        let receivers = FrameReceiver::spread(&pd, &config, 4).unwrap();
        let rule = receivers[0].attach(&feed()).unwrap();
        let mut publisher = Publisher::new(&device, DataPath::Direct);
        let received = &AtomicU32::new(0);
        let each = move |mut receiver: FrameReceiver| {
            let mut next = [None; SOURCES as usize];
            while received.load(Ordering::Relaxed) < FRAMES {
                receiver.wait(Duration::from_millis(20)).unwrap();
                let mut batch = receiver.poll();
                while let Some(frame) = batch.next() {
                    let frame = frame.unwrap();
                    assert!(frame.checksum_ok() && frame.dropped_before() == Some(0));
                    let source = u16::from_be_bytes([frame[34], frame[35]]);
                    let number = u32::from_be_bytes(*frame[HEADERS..].first_chunk().unwrap());
                    let next = &mut next[usize::from(source)];
                    assert_eq!(number, next.unwrap_or(0), "frame of source {source}");
                    *next = Some(number + 1);
                    received.fetch_add(1, Ordering::Relaxed);
                }
            }
            next
        };
        let seen: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = receivers.into_iter().map(|receiver| scope.spawn(move || each(receiver))).collect();
            for sent in 0..FRAMES {
                while sent - received.load(Ordering::Relaxed) >= WINDOW
                    && !threads.iter().any(|thread| thread.is_finished())
                {
                    thread::yield_now();
                }
                let mut frame = datagram(GROUP, (sent % SOURCES) as u16, 60 + sent as usize % 30, 0);
                frame[HEADERS..HEADERS + 4].copy_from_slice(&(sent / SOURCES).to_be_bytes());
                post_when_room(&mut publisher, &frame);
            }
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for source in 0..SOURCES as usize {
            let counts: Vec<_> = seen.iter().filter_map(|next| next[source]).collect();
            assert_eq!(counts, [FRAMES / SOURCES], "source {source} came to one receiver");
        }
        let busy = seen.iter().filter(|next| next.iter().any(Option::is_some)).count();
        assert_eq!(busy, 4, "receivers that got frames");
        drop((rule, publisher));
    }
}

/// Says whether the page of a doorbell record is mapped in children, too.
fn advise(record: u64, advice: libc::c_int) {
    let page = (record / 4096 * 4096) as *mut libc::c_void;
    // SAFETY: a page of libmlx5, which does not change in this process.
    assert_eq!(unsafe { libc::madvise(page, 4096, advice) }, 0);
}

/// Waits for a child, which must exit with code 0.
fn wait_for(child: libc::pid_t) {
    let mut status = 0;
    // SAFETY: waits for our own child, with room for its status.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "status {status:#x}");
}

/// A child that drops everything changes nothing for its parent. The doorbell records are not even mapped in the child.
#[test]
fn a_forked_child_that_drops_everything_changes_nothing_for_its_parent() {
    for (config, path, _) in ALL {
        let mut world = SteppedFrames::new(&config, path);
        let rule = world.attach();
        world.send(1400, 1);
        world.send(1400, 2);
        world.send(1400, 3);
        let mut batch = world.receiver.poll();
        let taken = batch.next().unwrap().unwrap().take();
        assert!(batch.next().is_some());
        // The child finds a frame that was lent, and a doorbell that was not rung.
        std::mem::forget(batch);
        let wqs = if path == DataPath::Direct { world.device.queues().wqs } else { Vec::new() };
        wqs.iter().for_each(|wq| advise(wq.attr.dbrec, libc::MADV_DONTFORK));
        // SAFETY: the child owns copies of all that it drops, and leaves without dropping them again; the parent goes
        // on with its own.
        let copies = unsafe { (std::ptr::read(&world), std::ptr::read(&rule), std::ptr::read(&taken)) };
        let copies = ManuallyDrop::new(copies);
        // SAFETY: the name is a string.
        let complaints = unsafe { libc::memfd_create(c"stderr".as_ptr(), 0) };
        // SAFETY: the child frees memory, for which libc prepares fork, and leaves.
        let child = unsafe { libc::fork() };
        assert!(complaints >= 0 && child >= 0);
        if child == 0 {
            // SAFETY: an open descriptor of this process takes the place of another one.
            unsafe { libc::dup2(complaints, libc::STDERR_FILENO) };
            drop(ManuallyDrop::into_inner(copies));
            // SAFETY: exits without running the exit handlers of the parent.
            unsafe { libc::_exit(0) };
        }
        wait_for(child);
        // The pages are other memory of the next round's.
        wqs.iter().for_each(|wq| advise(wq.attr.dbrec, libc::MADV_DOFORK));
        // The child did not even try: a device that refuses the child would have been complained about.
        let printed = std::fs::read_to_string(format!("/proc/self/fd/{complaints}")).unwrap();
        assert_eq!(printed, "");
        assert!(is_datagram(&taken, 1400, 1));
        world.expect(1400, 3);
        for number in 0..200 {
            world.send(1400, number);
            world.expect(1400, number);
        }
    }
}

/// Values that a program has of a receiver that also sends. Each order of dropping them is tried.
const PARTS: usize = 5;

/// The `number`th order of the parts.
fn order(mut number: usize) -> Vec<usize> {
    let mut left: Vec<_> = (0..PARTS).collect();
    (1..=PARTS)
        .rev()
        .map(|choices| {
            let chosen = left.remove(number % choices);
            number /= choices;
            chosen
        })
        .collect()
}

/// Everything is dropped while frames are on their way in both directions, in every order. Then the device has no
/// object left, and a taken frame has kept its bytes as long as it lived.
#[test]
fn everything_can_be_dropped_in_any_order() {
    let (device, _) = ethernet();
    let mut publisher = Publisher::new(&device, DataPath::Direct);
    let count = |device: &Device| {
        let queues = device.queues();
        [queues.qps.len(), queues.wqs.len(), queues.cqs.len()]
    };
    let others = count(&device);
    for (config, path, each) in ALL {
        for number in 0..(1..=PARTS).product() {
            let pd = doorbell::open(device.name()).unwrap().alloc_pd().unwrap();
            let mut sender = Sender::new(&pd, &CqConfig::new(4096).path(path)).unwrap();
            let config = config.clone().cq(cq(path));
            let receiver = match each {
                1 => FrameReceiver::with_sender(&pd, &config.max_inline(64), &mut sender),
                _ => FrameReceiver::new(&pd, &config),
            };
            let mut receiver = receiver.unwrap();
            let rule = receiver.attach(&feed()).unwrap();
            for first in 0..3 {
                publisher.send(&device, &datagram(GROUP, 5, 1400, first), true);
            }
            let mut batch = receiver.poll();
            let taken = batch.next().unwrap().unwrap().take();
            assert!(batch.next().is_some());
            drop(batch);
            if let Some(queue) = receiver.send_queue() {
                sender.post(queue).unwrap().send_frame(&datagram(GROUP, 5, 60, 1)[..], true).unwrap();
            }
            let mut parts = (Some(pd), Some(sender), Some(receiver), Some(rule), Some(taken));
            for part in order(number) {
                match part {
                    0 => drop(parts.0.take()),
                    1 => drop(parts.1.take()),
                    2 => drop(parts.2.take()),
                    3 => drop(parts.3.take()),
                    _ => {
                        let taken = parts.4.take().unwrap();
                        assert!(is_datagram(&taken, 1400, 0), "order {:?}", order(number));
                    }
                }
                publisher.send(&device, &datagram(GROUP, 5, 1400, 77), true);
                // A work queue outlives its receiver while a rule leads to it, and so do its buffers. (A queue pair
                // goes to error.)
                let queues = device.queues();
                let work_queues = queues.wqs.iter().filter(|wq| wq.attr.striding.is_some());
                for wq in work_queues {
                    assert_eq!(wq.state, WqState::Ready, "order {:?}", order(number));
                }
            }
            assert_eq!(count(&device), others, "order {:?}", order(number));
        }
    }
}

/// The child of a fork lacks the doorbell records of its parent.
#[test]
fn an_empty_batch_ends_in_a_child() {
    for (config, path, _) in ALL.into_iter().filter(|(_, path, _)| *path == DataPath::Direct) {
        let mut world = SteppedFrames::new(&config, path);
        let mut batch = world.receiver.poll();
        assert!(batch.next().is_none());
        let keep = |record| advise(record, libc::MADV_DONTFORK);
        let queues = world.device.queues();
        queues.wqs.iter().for_each(|wq| keep(wq.attr.dbrec));
        queues.cqs.iter().for_each(|cq| keep(cq.attr.dbrec));
        // SAFETY: the child does nothing but what follows.
        let child = unsafe { libc::fork() };
        if child == 0 {
            drop(batch);
            // SAFETY: the function has no conditions.
            unsafe { libc::_exit(0) };
        }
        wait_for(child);
    }
}
