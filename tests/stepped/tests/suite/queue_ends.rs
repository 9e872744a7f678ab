//! Each way a queue can end, in each state that it can be in: every request comes back once, and so does every buffer.

use std::mem::forget;
use std::rc::Rc;

use doorbell::{Buffer, CqConfig, DataPath, ProtectionDomain, QpConfig, Receiver, Sender, SqId};
use doorbell_stepped_tests::sent::Sent;
use doorbell_stepped_tests::{Sending, Stepped, join, on_each_path, open, two_buffers};
use soft_mlx5::Device;

on_each_path! { every_end_of_a_send_queue every_end_of_a_receive_queue }

/// The way a queue ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Destroy,
    Reset,
    /// The queue pair is moved to ERROR and kept.
    Error,
    /// The queue pair fails in the device, and an event says so.
    Event,
    DropQueuePair,
    DropSender,
    DropReceiver,
    DeviceGone,
}

const ENDS: [End; 8] = [
    End::Destroy,
    End::Reset,
    End::Error,
    End::Event,
    End::DropQueuePair,
    End::DropSender,
    End::DropReceiver,
    End::DeviceGone,
];

/// The state of a send queue when it ends.
#[derive(Clone, Copy, Debug)]
enum Sends {
    Idle,
    /// The doorbell has rung, and the peer has no receives.
    Waiting,
    /// No doorbell has rung.
    Forgotten,
    RungAndForgotten,
    /// The doorbell has rung, the peer has no receives, and each request is unsignaled.
    Unsignaled,
    Completed,
    /// Half of a run was returned.
    Half,
    /// Half of a run was returned, and the batch was forgotten with buffers that were not taken.
    HalfForgotten,
    HalfWaitingAndForgotten,
    /// The queue pair is in ERROR, and one failure was polled.
    Failed,
    FailedAndForgotten,
}

const SENDS: [Sends; 11] = [
    Sends::Idle,
    Sends::Waiting,
    Sends::Forgotten,
    Sends::RungAndForgotten,
    Sends::Unsignaled,
    Sends::Completed,
    Sends::Half,
    Sends::HalfForgotten,
    Sends::HalfWaitingAndForgotten,
    Sends::Failed,
    Sends::FailedAndForgotten,
];

/// A connection, and the requests that were posted to it.
struct Requests {
    on: Sending,
    queue: SqId,
    /// Requests that were posted.
    posted: u64,
    /// Tokens of the requests that came back.
    back: Vec<u64>,
}

impl Requests {
    fn new(device: (Rc<Device>, ProtectionDomain), path: DataPath) -> Self {
        let config = QpConfig::rc().max_send_wr(16).max_send_sge(2).min_rnr_timer(1);
        let on = Sending::new(device, path, &config, 1, 16);
        Self { queue: on.queue(0), on, posted: 0, back: Vec::new() }
    }

    /// The far end has so many more receives.
    fn receive(&mut self, count: usize) {
        let buffers = std::iter::from_fn(|| self.on.receives.take()).take(count);
        self.on.far_receiver.post(self.on.far[0].receive_queue().unwrap(), buffers).unwrap();
    }

    /// Posts unsignaled requests of one buffer and of two by turns.
    fn post_unsignaled(&mut self, count: u64) {
        for token in self.posted..self.posted + count {
            let [first, second] = two_buffers(&self.on.pool, &token.to_ne_bytes());
            let request = self.on.sender.post(self.queue).unwrap().token(token).unsignaled();
            match token % 2 {
                0 => request.send([first, second]).unwrap(),
                _ => request.send(first).unwrap(),
            }
        }
        self.posted += count;
        self.on.device.settle();
    }

    /// Posts requests of one buffer and of two by turns.
    fn post(&mut self, count: u64, is_forgotten: bool) {
        let mut posting = self.on.sender.post_many(self.queue).unwrap();
        for token in self.posted..self.posted + count {
            let [first, second] = two_buffers(&self.on.pool, &token.to_ne_bytes());
            posting.token(token);
            match token % 2 {
                0 => posting.send([first, second]).unwrap(),
                _ => posting.send(first).unwrap(),
            }
        }
        self.posted += count;
        if is_forgotten {
            forget(posting);
        } else {
            posting.ring();
            self.on.device.settle();
        }
    }

    /// Takes `count` completions, which must have arrived, one of them with its first buffer only.
    fn take(&mut self, count: usize, is_forgotten: bool) {
        let mut batch = self.on.sender.poll();
        for _ in 0..count {
            match batch.next().expect("a completion") {
                Ok(done) => self.back.push(done.token),
                Err(failure) => self.back.push(failure.token),
            }
        }
        if is_forgotten {
            forget(batch);
        }
    }

    fn prepare(&mut self, sends: Sends) {
        match sends {
            Sends::Idle => {}
            Sends::Waiting => self.post(4, false),
            Sends::Unsignaled => self.post_unsignaled(4),
            Sends::Forgotten => self.post(4, true),
            Sends::RungAndForgotten => {
                self.post(2, false);
                self.post(3, true);
            }
            Sends::Completed | Sends::Half | Sends::HalfForgotten | Sends::HalfWaitingAndForgotten => {
                self.receive(5);
                self.post(5, false);
                match sends {
                    Sends::Completed => {}
                    Sends::Half => self.take(3, false),
                    Sends::HalfForgotten => self.take(3, true),
                    _ => {
                        self.take(3, true);
                        self.post(2, false);
                        self.post(3, true);
                    }
                }
            }
            Sends::Failed | Sends::FailedAndForgotten => {
                self.post(3, false);
                if let Sends::FailedAndForgotten = sends {
                    self.post(3, true);
                }
                self.on.near[0].to_error().unwrap();
                self.on.device.settle();
                self.take(1, false);
            }
        }
    }

    /// Polls until everything is back, or does not come back.
    fn drain(&mut self, context: &str) {
        for Sent { queue, token, buffers, .. } in self.on.over() {
            assert_eq!(queue, self.queue);
            assert_eq!(buffers.len(), if token % 2 == 0 { 2 } else { 1 }, "{context}");
            assert!(buffers.iter().all(|buffer| **buffer == token.to_ne_bytes()), "{context}");
            self.back.push(token);
        }
        assert!(self.back.iter().copied().eq(0..self.posted), "{context}: {:?} of {}", self.back, self.posted);
        assert!(!self.on.sender.is_busy(self.queue), "{context}: the queue stays busy");
        assert_eq!(self.on.pool.available(), Sending::BUFFERS as usize, "{context}");
    }

    fn end(mut self, end: End, context: &str) {
        match end {
            End::Destroy => {
                let near = self.on.near.remove(0);
                self.on.near_receiver.destroy_qp(near).unwrap();
                self.drain(context);
            }
            End::Reset => {
                self.on.near_receiver.reset_qp(&mut self.on.near[0]).unwrap();
                self.drain(context);
                self.works_again(context);
            }
            End::Error => {
                self.on.near[0].to_error().unwrap();
                self.drain(context);
                self.on.near_receiver.reset_qp(&mut self.on.near[0]).unwrap();
                self.drain(context);
                self.works_again(context);
            }
            End::Event => {
                let qp_num = self.on.near[0].qp_num();
                let mut events = self.on.pd.context().events().unwrap();
                if self.on.device.fail_qp(qp_num) {
                    let event = events.next().unwrap().unwrap();
                    assert!(self.on.near_receiver.handle_event(&event).unwrap());
                }
                self.drain(context);
            }
            End::DropQueuePair => {
                self.on.near.clear();
                self.drain(context);
            }
            End::DropReceiver => {
                let path = self.on.sender.path();
                let another = Receiver::new(&self.on.pd, &CqConfig::new(16).path(path)).unwrap();
                drop(std::mem::replace(&mut self.on.near_receiver, another));
                self.on.near.clear();
                self.drain(context);
            }
            End::DropSender => {
                let Self { on: Sending { sender, mut near, mut near_receiver, pool, .. }, posted, back, .. } = self;
                drop(sender);
                let outstanding = (back.len() as u64..posted).map(|token| if token % 2 == 0 { 2 } else { 1 });
                // The device may still read all of them.
                let with_the_device = Sending::BUFFERS as usize - pool.available();
                assert!(with_the_device >= outstanding.sum(), "{context}: {with_the_device}");
                near_receiver.destroy_qp(near.remove(0)).unwrap();
                assert_eq!(pool.available(), Sending::BUFFERS as usize, "{context}");
                return;
            }
            End::DeviceGone => {
                let events = self.on.pd.context().events().unwrap();
                self.on.device.remove();
                events.for_each(|event| _ = event.unwrap());
                self.on.near.clear();
                self.drain(context);
            }
        }
        if self.on.near.is_empty() {
            assert_eq!(self.on.sender.capacity(self.queue), 0, "{context}: the queue pair is destroyed");
        }
        drop((self.on.near, self.on.sender));
        assert_eq!(self.on.pool.available(), Sending::BUFFERS as usize, "{context}");
    }

    /// Connects again, and sends.
    fn works_again(&mut self, context: &str) {
        self.on.far_receiver.reset_qp(&mut self.on.far[0]).unwrap();
        join(&mut self.on.near[0], &mut self.on.far[0]);
        self.receive(3);
        self.post(3, false);
        self.drain(context);
    }
}

/// A device and a domain of it: the same for every end but that of the device.
fn on(end: End, device: &(Rc<Device>, ProtectionDomain)) -> (Rc<Device>, ProtectionDomain) {
    if end == End::DeviceGone { fresh() } else { device.clone() }
}

fn fresh() -> (Rc<Device>, ProtectionDomain) {
    let (device, pd) = open(Device::builder().strict(true).stepped());
    (Rc::new(device), pd)
}

fn every_end_of_a_send_queue(path: DataPath) {
    let device = fresh();
    for end in ENDS {
        for sends in SENDS {
            let context = format!("{end:?} of {sends:?}");
            println!("{context}");
            let mut requests = Requests::new(on(end, &device), path);
            requests.prepare(sends);
            requests.end(end, &context);
        }
    }
}

/// The state of a receive queue when it ends.
#[derive(Clone, Copy, Debug)]
enum Receives {
    Idle,
    Posted,
    Arrived,
    Half,
    HalfForgotten,
    /// Posted after a batch was forgotten.
    ForgottenAndPosted,
    Failed,
}

const RECEIVES: [Receives; 7] = [
    Receives::Idle,
    Receives::Posted,
    Receives::Arrived,
    Receives::Half,
    Receives::HalfForgotten,
    Receives::ForgottenAndPosted,
    Receives::Failed,
];

/// A connection, and the messages that the program keeps.
struct Messages {
    on: Stepped,
    kept: Vec<Buffer>,
}

impl Messages {
    fn new(device: (Rc<Device>, ProtectionDomain), path: DataPath, is_shared: bool) -> Self {
        let on = Stepped::empty(device, &CqConfig::new(64).path(path), 15, is_shared);
        Self { on, kept: Vec::new() }
    }

    fn post(&mut self, count: usize) {
        let buffers = std::iter::from_fn(|| self.on.pool.take()).take(count);
        assert_eq!(self.on.receiver.post(self.on.queue, buffers).unwrap(), count);
    }

    fn arrive(&mut self, count: usize) {
        for _ in 0..count {
            self.on.far.send_inline(b"a message", None).unwrap();
        }
        self.on.device.settle();
    }

    /// Keeps one of two messages, and gives the other back to the queue.
    fn take(&mut self, is_forgotten: bool) {
        let mut batch = self.on.receiver.poll();
        self.kept.push(batch.next().unwrap().unwrap().take().unwrap());
        batch.next().unwrap().unwrap();
        if is_forgotten {
            forget(batch);
        }
    }

    fn prepare(&mut self, receives: Receives) {
        if let Receives::Idle = receives {
            return;
        }
        self.post(8);
        match receives {
            Receives::Idle | Receives::Posted => {}
            Receives::Arrived => self.arrive(5),
            Receives::Half => {
                self.arrive(5);
                self.take(false);
            }
            Receives::HalfForgotten => {
                self.arrive(5);
                self.take(true);
            }
            Receives::ForgottenAndPosted => {
                self.arrive(5);
                self.take(true);
                self.post(2);
            }
            Receives::Failed => {
                self.arrive(2);
                self.on.near.to_error().unwrap();
                self.on.device.settle();
                let mut batch = self.on.receiver.poll();
                for _ in 0..3 {
                    drop(batch.next());
                }
            }
        }
    }

    fn end(self, end: End, context: &str) {
        let Self { on, mut kept } = self;
        let Stepped { device, pd, mut receiver, srq, pool, near, mut far, far_receiver: _far, .. } = on;
        let mut near = Some(near);
        let all = pool.count() as usize;
        if srq.is_some() && end != End::DeviceGone {
            // The library waits for the last WQE of the queue pair, and a stepped device does nothing meanwhile.
            near.as_ref().unwrap().to_error().unwrap();
            device.settle();
        }
        match end {
            End::Destroy => _ = receiver.destroy_qp(near.take().unwrap()).unwrap(),
            End::Reset => _ = receiver.reset_qp(near.as_mut().unwrap()).unwrap(),
            End::Error => near.as_ref().unwrap().to_error().unwrap(),
            End::Event => {
                let qp_num = near.as_ref().unwrap().qp_num();
                let mut events = pd.context().events().unwrap();
                if device.fail_qp(qp_num) {
                    let event = events.next().unwrap().unwrap();
                    assert!(receiver.handle_event(&event).unwrap());
                }
            }
            End::DropQueuePair => drop(near.take()),
            // The end of a sender has nothing to do with the receives.
            End::DropSender => {
                let another = Sender::new(&pd, &CqConfig::new(4).path(far.sender.path())).unwrap();
                drop(std::mem::replace(&mut far.sender, another));
            }
            End::DropReceiver => {
                drop(receiver);
                drop(near);
                drop(kept);
                assert_eq!(pool.available(), all, "{context}");
                return;
            }
            End::DeviceGone => {
                let events = pd.context().events().unwrap();
                device.remove();
                events.for_each(|event| _ = event.unwrap());
                drop(receiver.reclaim().unwrap());
                kept.clear();
                assert_eq!(pool.available(), all, "{context}");
                return;
            }
        }
        for _ in 0..4 {
            device.settle();
            let mut batch = receiver.poll();
            while let Some(next) = batch.next() {
                drop(next);
            }
        }
        kept.clear();
        let is_over = matches!(end, End::Destroy | End::Reset | End::Error | End::Event | End::DropQueuePair);
        if is_over && srq.is_none() {
            assert_eq!(pool.available(), all, "{context}");
        }
        if let Some(near) = near.take() {
            receiver.destroy_qp(near).unwrap();
        }
        if let Some(srq) = srq {
            receiver.destroy_srq(srq).unwrap();
        }
        assert_eq!(pool.available(), all, "{context}");
    }
}

fn every_end_of_a_receive_queue(path: DataPath) {
    let device = fresh();
    for is_shared in [false, true] {
        for end in ENDS {
            for receives in RECEIVES {
                let context = format!("{end:?} of {receives:?}, an SRQ: {is_shared}");
                println!("{context}");
                let mut messages = Messages::new(on(end, &device), path, is_shared);
                messages.prepare(receives);
                messages.end(end, &context);
            }
        }
    }
}
