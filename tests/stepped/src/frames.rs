//! A sender and a receiver of frames on a stepped device.

use std::net::Ipv4Addr;

use doorbell::frames::{Flow, FlowRule, FrameConfig, FrameReceiver};
use doorbell::{BufferPool, CqConfig, DataPath, PoolConfig, ProtectionDomain, Sender};
use soft_mlx5::{Builder, Device, LinkLayer};

use crate::{cq, open};

/// The group that receivers have a rule for.
pub const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);
/// A group that no receiver asked for.
pub const OTHER: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 4);
/// Address of the publisher.
pub const SOURCE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 7);
/// UDP port of both groups.
pub const PORT: u16 = 30_001;
/// Bytes of the headers of Ethernet, IPv4 and UDP.
pub const HEADERS: usize = 42;

/// The datagrams to [`GROUP`].
pub fn feed() -> Flow {
    Flow::udp(GROUP, PORT)
}

/// A UDP datagram to a group, of `len` bytes in all. Its payload counts up from `first`. The device computes the
/// checksums.
pub fn datagram(group: Ipv4Addr, source_port: u16, len: usize, first: u8) -> Vec<u8> {
    let [_, a, b, c] = group.octets();
    let mut frame = vec![0x01, 0x00, 0x5e, a & 0x7f, b, c, 2, 0, 0, 0, 0, 1, 0x08, 0x00];
    let (ip, udp) = ((len - 14) as u16, (len - 34) as u16);
    frame.extend([0x45, 0, (ip >> 8) as u8, ip as u8, 0, 0, 0, 0, 16, 17, 0, 0]);
    frame.extend(SOURCE.octets());
    frame.extend(group.octets());
    for field in [source_port, PORT, udp, 0] {
        frame.extend(field.to_be_bytes());
    }
    frame.extend((0..len - HEADERS).map(|i| first.wrapping_add(i as u8)));
    frame
}

/// Returns `true` if the bytes are those that `datagram` made, with checksums.
pub fn is_datagram(frame: &[u8], len: usize, first: u8) -> bool {
    frame.len() == len.max(60) && frame[HEADERS..len].iter().enumerate().all(|(i, b)| *b == first.wrapping_add(i as u8))
}

/// A publisher of frames on a context of its own: a device does not give a program its own frames back.
pub struct Publisher {
    /// Its sender.
    pub sender: Sender,
    /// Its queue pair.
    pub frames: FrameReceiver,
    /// Buffers of frames that are too long to be sent inline.
    pub pool: BufferPool,
}

impl Publisher {
    /// A publisher on a context of its own.
    pub fn new(device: &Device, path: DataPath) -> Self {
        let pd = doorbell::open(device.name()).unwrap().alloc_pd().unwrap();
        let mut sender = Sender::new(&pd, &CqConfig::new(4096).path(path)).unwrap();
        let config = FrameConfig::new().plain(4, 64).cq(cq(path)).max_send_wr(64).max_inline(128);
        let frames = FrameReceiver::with_sender(&pd, &config, &mut sender).unwrap();
        Self { sender, frames, pool: BufferPool::new(&pd, &PoolConfig::new(64, 9216)).unwrap() }
    }

    /// Posts a frame without stepping the device. With `checksum` the device writes the checksums.
    pub fn post(&mut self, bytes: &[u8], checksums: bool) {
        let queue = self.frames.send_queue().unwrap();
        let mut posting = self.sender.post_many(queue).unwrap();
        if bytes.len() <= 100 {
            posting.send_frame(bytes, checksums).unwrap();
        } else {
            let mut buffer = self.pool.take().unwrap();
            buffer.extend_from_slice(bytes);
            posting.send_frame(buffer, checksums).unwrap();
        }
    }

    /// Takes the completions of sends.
    pub fn reap(&mut self) {
        let mut batch = self.sender.poll();
        while let Some(sent) = batch.next() {
            sent.unwrap();
        }
    }

    /// Sends a frame, lets the device deliver it, and takes its completion.
    pub fn send(&mut self, device: &Device, bytes: &[u8], checksums: bool) {
        self.post(bytes, checksums);
        device.settle();
        self.reap();
    }
}

/// A stepped device with an Ethernet port.
pub fn ethernet() -> (Device, ProtectionDomain) {
    open(Device::builder().link_layer(LinkLayer::Ethernet).strict(true).stepped())
}

/// A receiver and a publisher on one stepped device.
pub struct SteppedFrames {
    /// The receiver under test.
    pub receiver: FrameReceiver,
    /// The publisher that sends to it.
    pub publisher: Publisher,
    /// The device. Dropped last.
    pub device: Device,
}

impl SteppedFrames {
    /// A receiver like `config` without a rule, and a publisher, both driven as `path` says.
    pub fn new(config: &FrameConfig, path: DataPath) -> Self {
        Self::on(Device::builder(), config, path)
    }

    /// A receiver like `config` and a publisher on a device that `builder` makes.
    pub fn on(builder: Builder, config: &FrameConfig, path: DataPath) -> Self {
        let (device, pd) = open(builder.link_layer(LinkLayer::Ethernet).strict(true).stepped());
        let receiver = FrameReceiver::new(&pd, &config.clone().cq(cq(path))).unwrap();
        assert_eq!(receiver.path(), path);
        Self { receiver, publisher: Publisher::new(&device, path), device }
    }

    /// A rule for [`GROUP`].
    pub fn attach(&self) -> FlowRule {
        self.receiver.attach(&feed()).unwrap()
    }

    /// Sends `len` bytes to [`GROUP`]. The payload counts up from `first`.
    pub fn send(&mut self, len: usize, first: u8) {
        self.publisher.send(&self.device, &datagram(GROUP, 5, len, first), true);
    }

    /// Takes one frame, which must be the next.
    pub fn expect(&mut self, len: usize, first: u8) {
        let mut batch = self.receiver.poll_up_to(1);
        let frame = batch.next().expect("a frame").unwrap();
        assert!(is_datagram(&frame, len, first), "{len} bytes from {first}: {frame:?}");
        assert!(frame.checksum_ok());
    }

    /// Nothing has arrived.
    pub fn expect_nothing(&mut self) {
        assert!(self.receiver.poll().next().is_none());
    }
}

/// A queue of four, as small as it can be.
pub const PLAIN: FrameConfig = FrameConfig::new().plain(4, 2048).spare(4);
/// As few strides as adapters take: 23 frames of 1,400 bytes to a WQE, and a filler.
pub const STRIDING: FrameConfig = FrameConfig::new().striding(4, 512, 64).spare(4);
/// Makes three tests of each function, one with each receiver of [`ALL`](crate::frames::ALL): `plain::name`,
/// `striding::name` and `through_verbs::name`.
#[macro_export]
macro_rules! with_each_receiver {
    ($($test:ident)*) => {
        $crate::with_each_receiver!(plain, 0, $($test)*);
        $crate::with_each_receiver!(striding, 1, $($test)*);
        $crate::with_each_receiver!(through_verbs, 2, $($test)*);
    };
    ($module:ident, $index:literal, $($test:ident)*) => {
        mod $module {
            $(#[test]
            fn $test() {
                let (config, path, each) = doorbell_stepped_tests::frames::ALL[$index].clone();
                super::$test(&config, path, each);
            })*
        }
    };
}

/// A receiver of each kind, and how many frames of 1,400 bytes a buffer of it holds.
pub const ALL: [(FrameConfig, DataPath, u32); 3] =
    [(PLAIN, DataPath::Direct, 1), (STRIDING, DataPath::Direct, 23), (PLAIN, DataPath::Verbs, 1)];
