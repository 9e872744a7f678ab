//! Each way a queue can end, in each state that it can be in: every request comes back once, and so does every buffer.

use std::collections::VecDeque;
use std::mem::forget;
use std::rc::Rc;

use doorbell::{
    Buffer, BufferPool, CqConfig, Path, PoolConfig, ProtectionDomain, QpConfig, QueuePair, ReceiveFrom, Receiver,
    RqConfig, Sender, SqId, SrqConfig, SrqId,
};
use doorbell_stepped_tests::sent::Sent;
use doorbell_stepped_tests::{on_each_path, open};
use soft_mlx5::Device;

on_each_path! { every_end_of_a_send_queue every_end_of_a_receive_queue }

const BUFFERS: u32 = 64;

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
    /// The same as [`Waiting`](Self::Waiting), and each request is unsignaled.
    Unsignaled,
    Completed,
    /// Half of a run was returned.
    Half,
    /// The same, and the batch was forgotten with buffers that were not taken.
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

/// A connection that sends, on a stepped device.
struct World {
    sender: Sender,
    near: Option<QueuePair>,
    near_receiver: Receiver,
    far: QueuePair,
    far_receiver: Receiver,
    queue: SqId,
    pool: BufferPool,
    receives: BufferPool,
    /// Requests that were posted.
    posted: u64,
    /// Tokens of the requests that came back.
    back: Vec<u64>,
    pd: ProtectionDomain,
    device: Rc<Device>,
}

impl World {
    fn new((device, pd): (Rc<Device>, ProtectionDomain), path: Path) -> Self {
        let cq = CqConfig::new(256).path(path);
        let mut sender = Sender::new(&pd, &cq).unwrap();
        let [mut near_receiver, mut far_receiver] = [(); 2].map(|()| Receiver::new(&pd, &cq).unwrap());
        let config = QpConfig::rc().sends(16).send_buffers(2).min_rnr_timer(1);
        let own = RqConfig::new(16);
        let near = QueuePair::builder(&config).receive(&mut near_receiver, own).send(&mut sender).build().unwrap();
        let far = QueuePair::builder(&config).receive(&mut far_receiver, own).build().unwrap();
        let [pool, receives] = [(); 2].map(|()| BufferPool::new(&pd, &PoolConfig::new(BUFFERS, 64)).unwrap());
        let queue = near.send_queue().unwrap();
        let (near, back) = (Some(near), Vec::new());
        let mut world =
            Self { sender, near, near_receiver, far, far_receiver, queue, pool, receives, posted: 0, back, pd, device };
        world.join();
        world
    }

    fn near(&mut self) -> &mut QueuePair {
        self.near.as_mut().unwrap()
    }

    fn join(&mut self) {
        let Self { near, far, .. } = self;
        let near = near.as_mut().unwrap();
        let (here, there) = (near.address().unwrap(), far.address().unwrap());
        near.connect(&there).unwrap();
        far.connect(&here).unwrap();
    }

    /// The far end has so many more receives.
    fn receive(&mut self, count: usize) {
        let buffers = std::iter::from_fn(|| self.receives.take()).take(count);
        self.far_receiver.post(self.far.receive_queue().unwrap(), buffers).unwrap();
    }

    /// Takes two buffers for the request with this token.
    fn buffers(pool: &BufferPool, token: u64) -> [Buffer; 2] {
        [(); 2].map(|()| {
            let mut buffer = pool.take().unwrap();
            buffer.extend_from_slice(&token.to_ne_bytes());
            buffer
        })
    }

    /// Posts unsignaled requests of one buffer and of two by turns.
    fn post_unsignaled(&mut self, count: u64) {
        for token in self.posted..self.posted + count {
            let [first, second] = Self::buffers(&self.pool, token);
            let request = self.sender.post(self.queue).unwrap().token(token).unsignaled();
            match token % 2 {
                0 => request.send([first, second]).unwrap(),
                _ => request.send(first).unwrap(),
            }
        }
        self.posted += count;
        self.device.settle();
    }

    /// Posts requests of one buffer and of two by turns.
    fn post(&mut self, count: u64, is_forgotten: bool) {
        let mut posting = self.sender.post_many(self.queue).unwrap();
        for token in self.posted..self.posted + count {
            let [first, second] = Self::buffers(&self.pool, token);
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
            self.device.settle();
        }
    }

    /// Takes `count` completions, which must have arrived, one of them with its first buffer only.
    fn take(&mut self, count: usize, is_forgotten: bool) {
        let mut batch = self.sender.poll();
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
                self.near().to_error().unwrap();
                self.device.settle();
                self.take(1, false);
            }
        }
    }

    /// Polls until everything is back, or does not come back.
    fn drain(&mut self, context: &str) {
        for _ in 0..20 {
            self.device.settle();
            let mut batch = self.sender.poll();
            while let Some(done) = batch.next() {
                let Sent { queue, token, buffers, .. } = done.into();
                assert_eq!(queue, self.queue);
                assert_eq!(buffers.len(), if token % 2 == 0 { 2 } else { 1 }, "{context}");
                assert!(buffers.iter().all(|buffer| **buffer == token.to_ne_bytes()), "{context}");
                self.back.push(token);
            }
        }
        assert!(self.back.iter().copied().eq(0..self.posted), "{context}: {:?} of {}", self.back, self.posted);
        assert!(!self.sender.is_busy(self.queue), "{context}: the queue stays busy");
        assert_eq!(self.pool.available(), BUFFERS as usize, "{context}");
    }

    fn end(mut self, end: End, context: &str) {
        match end {
            End::Destroy => {
                let near = self.near.take().unwrap();
                self.near_receiver.destroy_qp(near).unwrap();
                self.drain(context);
            }
            End::Reset => {
                let near = self.near.as_mut().unwrap();
                self.near_receiver.reset_qp(near).unwrap();
                self.drain(context);
                self.works_again(context);
            }
            End::Error => {
                self.near().to_error().unwrap();
                self.drain(context);
                let near = self.near.as_mut().unwrap();
                self.near_receiver.reset_qp(near).unwrap();
                self.drain(context);
                self.works_again(context);
            }
            End::Event => {
                let qp_num = self.near().qp_num();
                let mut events = self.pd.context().events().unwrap();
                if self.device.fail_qp(qp_num) {
                    let event = events.next().unwrap().unwrap();
                    assert!(self.near_receiver.handle_event(&event).unwrap());
                }
                self.drain(context);
            }
            End::DropQueuePair => {
                drop(self.near.take());
                self.drain(context);
            }
            End::DropReceiver => {
                let path = self.sender.path();
                let another = Receiver::new(&self.pd, &CqConfig::new(16).path(path)).unwrap();
                drop(std::mem::replace(&mut self.near_receiver, another));
                drop(self.near.take());
                self.drain(context);
            }
            End::DropSender => {
                let Self { sender, near, mut near_receiver, pool, posted, back, .. } = self;
                drop(sender);
                let outstanding = (back.len() as u64..posted).map(|token| if token % 2 == 0 { 2 } else { 1 });
                // The device may still read all of them.
                let with_the_device = BUFFERS as usize - pool.available();
                assert!(with_the_device >= outstanding.sum(), "{context}: {with_the_device}");
                near_receiver.destroy_qp(near.unwrap()).unwrap();
                assert_eq!(pool.available(), BUFFERS as usize, "{context}");
                return;
            }
            End::DeviceGone => {
                let events = self.pd.context().events().unwrap();
                self.device.remove();
                events.for_each(|event| _ = event.unwrap());
                drop(self.near.take());
                self.drain(context);
            }
        }
        if self.near.is_none() {
            assert_eq!(self.sender.capacity(self.queue), 0, "{context}: the queue pair is destroyed");
        }
        drop((self.near, self.sender));
        assert_eq!(self.pool.available(), BUFFERS as usize, "{context}");
    }

    /// Connects again, and sends.
    fn works_again(&mut self, context: &str) {
        self.far_receiver.reset_qp(&mut self.far).unwrap();
        self.join();
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

fn every_end_of_a_send_queue(path: Path) {
    let device = fresh();
    for end in ENDS {
        for sends in SENDS {
            let context = format!("{end:?} of {sends:?}");
            println!("{context}");
            let mut world = World::new(on(end, &device), path);
            world.prepare(sends);
            world.end(end, &context);
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

/// A connection that receives, from a queue of its own or an SRQ.
struct Receiving {
    receiver: Receiver,
    srq: Option<SrqId>,
    near: Option<QueuePair>,
    far: QueuePair,
    sender: Sender,
    pool: BufferPool,
    kept: VecDeque<Buffer>,
    pd: ProtectionDomain,
    device: Rc<Device>,
}

impl Receiving {
    fn new((device, pd): (Rc<Device>, ProtectionDomain), path: Path, is_shared: bool) -> Self {
        let cq = CqConfig::new(64).path(path);
        let mut receiver = Receiver::new(&pd, &cq).unwrap();
        let mut sender = Sender::new(&pd, &cq).unwrap();
        let srq = is_shared.then(|| receiver.create_srq(&SrqConfig::new(15)).unwrap());
        let from = srq.map_or(RqConfig::new(16).into(), ReceiveFrom::from);
        let config = QpConfig::rc().sends(16).max_inline(32);
        let mut near = QueuePair::builder(&config).receive(&mut receiver, from).build().unwrap();
        let mut far = QueuePair::builder(&config).send(&mut sender).build().unwrap();
        near.connect(&far.address().unwrap()).unwrap();
        far.connect(&near.address().unwrap()).unwrap();
        let pool = BufferPool::new(&pd, &PoolConfig::new(BUFFERS, 64)).unwrap();
        Self { receiver, srq, near: Some(near), far, sender, pool, kept: VecDeque::new(), pd, device }
    }

    fn post(&mut self, count: usize) {
        let buffers = std::iter::from_fn(|| self.pool.take()).take(count);
        let posted = match self.srq {
            Some(srq) => self.receiver.post(srq, buffers),
            None => self.receiver.post(self.near.as_ref().unwrap().receive_queue().unwrap(), buffers),
        };
        assert_eq!(posted.unwrap(), count);
    }

    fn arrive(&mut self, count: usize) {
        for _ in 0..count {
            self.sender.send(&self.far, b"a message").unwrap();
        }
        self.device.settle();
    }

    /// Keeps one of two messages, and gives the other back to the queue.
    fn take(&mut self, is_forgotten: bool) {
        let mut batch = self.receiver.poll();
        self.kept.push_back(batch.next().unwrap().unwrap().take().unwrap());
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
                self.near.as_ref().unwrap().to_error().unwrap();
                self.device.settle();
                let mut batch = self.receiver.poll();
                for _ in 0..3 {
                    drop(batch.next());
                }
            }
        }
    }

    fn end(mut self, end: End, context: &str) {
        if self.srq.is_some() && end != End::DeviceGone {
            // The library waits for the last WQE of the queue pair, and a stepped device does nothing meanwhile.
            self.near.as_ref().unwrap().to_error().unwrap();
            self.device.settle();
        }
        match end {
            End::Destroy => _ = self.receiver.destroy_qp(self.near.take().unwrap()).unwrap(),
            End::Reset => _ = self.receiver.reset_qp(self.near.as_mut().unwrap()).unwrap(),
            End::Error => self.near.as_ref().unwrap().to_error().unwrap(),
            End::Event => {
                let qp_num = self.near.as_ref().unwrap().qp_num();
                let mut events = self.pd.context().events().unwrap();
                if self.device.fail_qp(qp_num) {
                    let event = events.next().unwrap().unwrap();
                    assert!(self.receiver.handle_event(&event).unwrap());
                }
            }
            End::DropQueuePair => drop(self.near.take()),
            // It has nothing to do with the receives.
            End::DropSender => {
                let another = Sender::new(&self.pd, &CqConfig::new(4).path(self.sender.path())).unwrap();
                drop(std::mem::replace(&mut self.sender, another));
            }
            End::DropReceiver => {
                let Self { receiver, near, pool, kept, .. } = self;
                drop(receiver);
                drop(near);
                drop(kept);
                assert_eq!(pool.available(), BUFFERS as usize, "{context}");
                return;
            }
            End::DeviceGone => {
                let events = self.pd.context().events().unwrap();
                self.device.remove();
                events.for_each(|event| _ = event.unwrap());
                drop(self.receiver.reclaim().unwrap());
                self.kept.clear();
                assert_eq!(self.pool.available(), BUFFERS as usize, "{context}");
                return;
            }
        }
        for _ in 0..4 {
            self.device.settle();
            let mut batch = self.receiver.poll();
            while let Some(next) = batch.next() {
                drop(next);
            }
        }
        self.kept.clear();
        let is_over = matches!(end, End::Destroy | End::Reset | End::Error | End::Event | End::DropQueuePair);
        if is_over && self.srq.is_none() {
            assert_eq!(self.pool.available(), BUFFERS as usize, "{context}");
        }
        if let Some(near) = self.near.take() {
            self.receiver.destroy_qp(near).unwrap();
        }
        if let Some(srq) = self.srq {
            self.receiver.destroy_srq(srq).unwrap();
        }
        assert_eq!(self.pool.available(), BUFFERS as usize, "{context}");
    }
}

fn every_end_of_a_receive_queue(path: Path) {
    let device = fresh();
    for is_shared in [false, true] {
        for end in ENDS {
            for receives in RECEIVES {
                let context = format!("{end:?} of {receives:?}, an SRQ: {is_shared}");
                println!("{context}");
                let mut receiving = Receiving::new(on(end, &device), path, is_shared);
                receiving.prepare(receives);
                receiving.end(end, &context);
            }
        }
    }
}
