//! Sleeping until frames come: no wake-up is lost, whatever the device does between the steps of a program that arms,
//! polls and sleeps.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use doorbell::frames::FrameConfig;
use doorbell::{Completions, DataPath};
use doorbell_stepped_tests::frames::{GROUP, SteppedFrames, datagram, feed, is_datagram};
use doorbell_stepped_tests::{is_readable, with_each_receiver};
use fastrand::Rng;

with_each_receiver! {
    no_wakeup_is_lost
    one_frame_wakes_a_thread
    a_sleeper_without_buffers_goes_on_when_they_are_dropped
}

/// Bytes of a frame.
const LEN: usize = 1400;

/// A world in which frames are sent, and the device steps, at any place between the steps of the program.
struct Meddled {
    world: SteppedFrames,
    random: Rng,
    sent: u32,
    taken: u32,
}

impl Meddled {
    fn send(&mut self) {
        let frame = datagram(GROUP, 5, LEN, self.sent as u8);
        self.world.publisher.post(&frame, true);
        self.sent += 1;
    }

    fn meddle(&mut self) -> u8 {
        self.world.publisher.reap();
        if self.random.u8(..3) == 0 && self.sent - self.taken < 4 {
            self.send();
        }
        for _ in 0..self.random.u8(..4) {
            self.world.device.step();
        }
        self.random.u8(..8)
    }

    /// Takes the frames that are there; returns their number.
    fn take(&mut self) -> u32 {
        let mut batch = self.world.receiver.poll();
        let before = self.taken;
        while let Some(frame) = batch.next() {
            let frame = frame.unwrap();
            assert!(is_datagram(&frame, LEN, self.taken as u8));
            assert_eq!(frame.dropped_before().unwrap_or(0), 0);
            self.taken += 1;
        }
        self.taken - before
    }

    fn round(&mut self, round: u32) -> bool {
        if self.meddle() < 4 {
            self.take();
        }
        self.meddle();
        if self.world.receiver.arm().unwrap() {
            // The program must not sleep now. Sometimes it does not poll either, and arms again. The completion may be
            // a filler.
            if self.meddle() < 6 {
                self.take();
            }
            return false;
        }
        self.meddle();
        // The program sleeps. The frames under way arrive now.
        if self.sent == self.taken {
            self.send();
        }
        self.world.device.settle();
        let there = self.sent - self.taken;
        assert!(
            is_readable(self.world.receiver.channel().unwrap()),
            "round {round}: asleep, with {there} frames there"
        );
        if self.meddle() < 7 {
            assert!(self.world.receiver.wait(Duration::ZERO).unwrap());
        }
        if self.meddle() < 6 {
            self.world.device.settle();
            self.take();
        }
        true
    }
}

fn no_wakeup_is_lost(config: &FrameConfig, path: DataPath, _: u32) {
    let world = SteppedFrames::new(config, path);
    let _rule = world.attach();
    let random = Rng::with_seed(0x5eed);
    let mut meddled = Meddled { world, random, sent: 0, taken: 0 };
    let count = 20_000;
    let slept = (0..count).filter(|round| meddled.round(*round)).count();
    meddled.world.device.settle();
    meddled.take();
    assert_eq!(meddled.sent, meddled.taken, "frames sent and received");
    assert!((5_000..18_000).contains(&slept), "slept {slept} times");
}

/// A thread sleeps without a time limit, and wakes for each frame.
fn one_frame_wakes_a_thread(config: &FrameConfig, path: DataPath, _: u32) {
    let SteppedFrames { mut receiver, mut publisher, device } = SteppedFrames::new(config, path);
    let _rule = receiver.attach(&feed()).unwrap();
    assert!(!receiver.wait(Duration::from_millis(1)).unwrap(), "nothing was sent");
    let (took, takes) = mpsc::channel();
    let sleeper = thread::spawn(move || {
        for number in 0..200u8 {
            // A filler can wake it, too.
            loop {
                assert!(receiver.wait(None).unwrap());
                let mut batch = receiver.poll();
                if let Some(frame) = batch.next() {
                    assert!(is_datagram(&frame.unwrap(), LEN, number));
                    break;
                }
            }
            took.send(()).unwrap();
        }
    });
    for number in 0..200u8 {
        publisher.send(&device, &datagram(GROUP, 5, LEN, number), true);
        takes.recv().unwrap();
    }
    sleeper.join().unwrap();
}

/// A receiver without buffers sleeps, and goes on when one is dropped elsewhere, although it is not notified.
fn a_sleeper_without_buffers_goes_on_when_they_are_dropped(config: &FrameConfig, path: DataPath, each: u32) {
    let config = config.clone().spare(0);
    let mut world = SteppedFrames::new(&config, path);
    let rule = world.attach();
    let mut taken = Vec::new();
    for number in 0..4 * each {
        world.send(LEN, number as u8);
        taken.push(world.receiver.poll().next().expect("a frame").unwrap().take());
    }
    world.send(LEN, 0);
    world.expect_nothing();
    let SteppedFrames { mut receiver, mut publisher, device } = world;
    let sleeper = thread::spawn(move || {
        assert!(receiver.wait(None).unwrap());
        let mut batch = receiver.poll();
        assert!(is_datagram(&batch.next().expect("a frame").unwrap(), LEN, 99));
    });
    // The thread sleeps by then, or comes late.
    thread::sleep(Duration::from_millis(10));
    drop(taken);
    // The device drops frames until the sleeper has looked.
    while !sleeper.is_finished() {
        publisher.send(&device, &datagram(GROUP, 5, LEN, 99), true);
        thread::sleep(Duration::from_millis(1));
    }
    sleeper.join().unwrap();
    drop(rule);
}
