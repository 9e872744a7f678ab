//! Prices and orders, and the datagrams that carry them.

use std::net::Ipv4Addr;

use etherparse::PacketBuilder;

/// Group and UDP port of the prices.
pub const GROUP: Ipv4Addr = Ipv4Addr::new(239, 192, 2, 1);
pub const PRICES: u16 = 30_002;
/// UDP port of the orders.
pub const ORDERS: u16 = 30_003;

/// Address of the exchange, and that of the trader.
pub const EXCHANGE: ([u8; 6], [u8; 4]) = ([2, 0, 0, 0, 0, 1], [192, 0, 2, 1]);
pub const TRADER: ([u8; 6], [u8; 4]) = ([2, 0, 0, 0, 0, 2], [192, 0, 2, 2]);

/// Bytes of the headers of Ethernet, IPv4 and UDP.
pub const HEADERS: usize = 14 + 20 + 8;
/// Bytes of a price or an order.
pub const BYTES: usize = 24;
/// A frame with a price or an order.
pub type Frame = [u8; HEADERS + BYTES];

/// The trader buys at this price and below.
const LIMIT: u64 = 20;
/// The number of the tick that ends the session.
const LAST: u64 = u64::MAX;

/// A price, and the order at that price.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tick {
    pub number: u64,
    pub price: u64,
}

impl Tick {
    pub const LAST: Self = Self { number: LAST, price: 0 };

    /// Returns the order that the trader must send, if it must send one.
    pub fn order(self) -> Option<Self> {
        (self.price <= LIMIT).then_some(self)
    }

    pub fn to_bytes(self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..8].copy_from_slice(&self.number.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.price.to_be_bytes());
        bytes
    }

    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (number, rest) = bytes.split_first_chunk()?;
        let (price, _) = rest.split_first_chunk()?;
        Some(Self { number: u64::from_be_bytes(*number), price: u64::from_be_bytes(*price) })
    }

    /// Reads the payload of a frame that [`prices`] or [`orders`] began.
    pub fn from_frame(frame: &[u8]) -> Option<Self> {
        Self::from_bytes(frame.get(HEADERS..)?)
    }
}

/// Returns a frame with room for a price. The adapter writes its checksums when it is sent.
pub fn prices() -> Frame {
    let [_, a, b, c] = GROUP.octets();
    let group = ([0x01, 0x00, 0x5e, a & 0x7f, b, c], GROUP.octets());
    frame(EXCHANGE, group, PRICES)
}

/// Returns a frame with room for an order.
pub fn orders() -> Frame {
    frame(TRADER, EXCHANGE, ORDERS)
}

fn frame(from: ([u8; 6], [u8; 4]), to: ([u8; 6], [u8; 4]), port: u16) -> Frame {
    let mut frame = [0; HEADERS + BYTES];
    let headers = PacketBuilder::ethernet2(from.0, to.0).ipv4(from.1, to.1, 16).udp(port, port);
    headers.write(&mut &mut frame[..], &[0; BYTES]).expect("it has room for both");
    frame
}

/// Puts a price or an order into a frame.
pub fn put(frame: &mut Frame, tick: Tick) {
    frame[HEADERS..].copy_from_slice(&tick.to_bytes());
}
