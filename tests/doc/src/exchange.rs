//! The exchange that the program of a trader answers.

use std::net::Ipv4Addr;
use std::sync::Barrier;
use std::thread::{self, JoinHandle};

use doorbell::frames::{Flow, FrameConfig, FrameReceiver};
use doorbell::{Completions, CqConfig, Sender};
use etherparse::PacketBuilder;
use soft_mlx5::{Device, LinkLayer};

/// The prices begin when the trader has its rule.
static START: Barrier = Barrier::new(2);

const HEADERS: usize = 42;
const FRAME: usize = HEADERS + 24;

/// Publishes prices until so many orders have come, each for a price up to a limit.
pub struct Exchange {
    thread: JoinHandle<()>,
    _device: Device,
}

impl Exchange {
    /// Makes the device, with an Ethernet port.
    pub fn new(orders: usize, limit: u64) -> Self {
        let device = Device::builder().name("mlx5_0").link_layer(LinkLayer::Ethernet).strict(true).build().unwrap();
        Self { thread: thread::spawn(move || publish(orders, limit)), _device: device }
    }

    /// Lets the prices begin.
    pub fn start() {
        START.wait();
    }

    /// Waits for the orders.
    pub fn end(self) {
        self.thread.join().unwrap();
    }
}

fn publish(orders: usize, limit: u64) {
    let pd = doorbell::open("mlx5_0").unwrap().alloc_pd().unwrap();
    let config = FrameConfig::new().max_inline(FRAME as u32);
    let mut sender = Sender::new(&pd, &CqConfig::for_frame_sends(&config, 1)).unwrap();
    let mut receiver = FrameReceiver::with_sender(&pd, &config, &mut sender).unwrap();
    let queue = receiver.send_queue().unwrap();
    let _rule = receiver.attach(&Flow::mac([2, 0, 0, 0, 0, 1])).unwrap();
    let group = Ipv4Addr::new(239, 192, 2, 1).octets();
    START.wait();
    let (mut number, mut came) = (0u64, 0);
    while came < orders {
        let (mut frame, mut price) = (Vec::new(), [0; 24]);
        price[..8].copy_from_slice(&number.to_be_bytes());
        price[8..16].copy_from_slice(&(number * 7 % 50).to_be_bytes());
        let headers =
            PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [0x01, 0, 0x5e, group[1] & 0x7f, group[2], group[3]]);
        headers.ipv4([192, 0, 2, 1], group, 16).udp(30_002, 30_002).write(&mut frame, &price).unwrap();
        sender.post(queue).unwrap().send_frame(&frame[..], false).unwrap();
        sender.wait(None).unwrap();
        sender.next().unwrap().unwrap();
        while let Some(order) = receiver.next() {
            let order = order.unwrap();
            let price = u64::from_be_bytes(*order[HEADERS + 8..].first_chunk().unwrap());
            assert!(order.checksum_ok() && price <= limit, "{order:?}");
            came += 1;
        }
        number += 1;
    }
}
