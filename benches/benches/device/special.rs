//! Tags and frames: doorbell on its direct path, beside the same program on its verbs path, which calls libmlx5.

use std::time::{Duration, Instant};

use doorbell::frames::{Flow, FlowRule, FrameConfig, FrameReceiver};
use doorbell::tags::{PeerId, TagEvent, TagMatchingConfig, TagMatchingSrq, TaggedBuffer};
use doorbell::{Buffer, BufferPool, CqConfig, DataPath, Error, PoolConfig, Result, Sender};

use crate::place::Place;
use crate::side::until;

/// Bytes of a message or a frame.
const LEN: u32 = 64;
/// Frames that are sent with one doorbell.
pub const FRAMES: u32 = 32;

/// A list of tags, and its sender.
pub struct Tags {
    receiver: TagMatchingSrq,
    sender: TagMatchingSrq,
    peer: PeerId,
    /// The buffers of the receive and of the message, while they are not on their way.
    buffers: [Option<Buffer>; 2],
    tag: u64,
}

impl Tags {
    /// Makes both.
    pub fn new(place: &Place, path: DataPath) -> Result<Self> {
        let pd = place.context.alloc_pd()?;
        let config = TagMatchingConfig::new(16).cq(CqConfig::new(1).path(path));
        let [mut receiver, mut sender] = [TagMatchingSrq::new(&pd, &config)?, TagMatchingSrq::new(&pd, &config)?];
        let pool = BufferPool::new(&pd, &PoolConfig::new(256, 2 * LEN))?;
        receiver.keep_filled(&pool)?;
        sender.keep_filled(&pool)?;
        let config = place.config().max_send_wr(32).min_rnr_timer(1);
        let (peer, from) = (sender.add_peer(&config)?, receiver.add_peer(&config)?);
        let addresses = (sender.address(peer)?, receiver.address(from)?);
        sender.connect(peer, &addresses.1)?;
        receiver.connect(from, &addresses.0)?;
        let pool = BufferPool::new(&pd, &PoolConfig::new(2, 2 * LEN))?;
        Ok(Self { receiver, sender, peer, buffers: [pool.take(), pool.take()], tag: 0 })
    }

    /// Returns `true` if the device matches.
    pub fn offload(&self) -> bool {
        self.receiver.offload()
    }

    /// A receive is posted; the message that matches is sent and taken.
    pub fn step(&mut self) -> Duration {
        let Self { receiver, sender, peer, buffers, tag } = self;
        *tag += 1;
        let began = Instant::now();
        let receive = buffers[0].take().expect("a buffer");
        receiver.post(*tag, u64::MAX, receive).expect("room in the list");
        let mut message = TaggedBuffer::new(buffers[1].take().expect("a buffer")).expect("room for the header");
        message.set_len(LEN as usize);
        sender.send(*peer, *tag, 0, message).expect("room");
        until(|| {
            if let Some(TagEvent::Received(received)) = receiver.next() {
                buffers[0] = Some(received.buffer);
            }
            buffers[0].is_some()
        });
        let time = began.elapsed();
        until(|| {
            if let Some(TagEvent::Sent(sent)) = sender.next() {
                buffers[1] = Some(sent.buffer);
            }
            buffers[1].is_some()
        });
        time
    }
}

/// A receiver of frames, and their sender, which is of another context: a device does not give a program its own frames
/// back.
pub struct Frames {
    receiver: FrameReceiver,
    _rule: FlowRule,
    sender: Sender,
    queue: FrameReceiver,
    frame: [u8; LEN as usize],
}

impl Frames {
    /// Makes both, and sends a first burst.
    pub fn new(place: &Place, mac: [u8; 6], path: DataPath) -> Result<Self> {
        let (name, port) = (place.context.name(), place.port);
        let cq = CqConfig::new(1).path(path);
        let config = FrameConfig::new().port(port).plain(1024, 2048).cq(cq);
        let receiver = FrameReceiver::new(&doorbell::open(name)?.alloc_pd()?, &config)?;
        let rule = receiver.attach(&Flow::mac(mac))?;
        let pd = doorbell::open(name)?.alloc_pd()?;
        let mut sender = Sender::new(&pd, &CqConfig::new(1024))?;
        let config = FrameConfig::new().port(port).plain(4, 2048).max_send_wr(256).max_inline(LEN);
        let queue = FrameReceiver::with_sender(&pd, &config, &mut sender)?;
        let mut frame = [0; LEN as usize];
        frame[..6].copy_from_slice(&mac);
        let mut made = Self { receiver, _rule: rule, sender, queue, frame };
        made.send();
        let began = Instant::now();
        let mut left = FRAMES;
        while left > 0 {
            left -= made.receive();
            if began.elapsed() > Duration::from_secs(2) {
                let subject = "a frame from this port to itself".to_owned();
                return Err(Error::TimedOut { operation: "FrameReceiver::poll", subject });
            }
        }
        Ok(made)
    }

    fn send(&mut self) {
        let queue = self.queue.send_queue().expect("made with a sender");
        let mut posting = self.sender.post_many(queue).expect("a queue");
        for _ in 0..FRAMES {
            posting.send_frame(&self.frame[..], false).expect("room");
        }
    }

    fn receive(&mut self) -> u32 {
        let mut frames = self.receiver.poll_up_to(FRAMES);
        let mut received = 0;
        while let Some(frame) = frames.next() {
            received += u32::from(!frame.expect("no failure").is_empty());
        }
        received
    }

    /// A burst is sent and taken.
    pub fn step(&mut self) -> Duration {
        let began = Instant::now();
        self.send();
        let mut received = 0;
        until(|| {
            received += self.receive();
            received == FRAMES
        });
        let time = began.elapsed();
        while let Some(done) = self.sender.next() {
            done.expect("no failure");
        }
        time
    }
}
