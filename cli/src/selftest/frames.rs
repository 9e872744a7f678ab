//! Group L: Ethernet frames, where this process may make raw packet queue pairs.
//!
//! The frames are datagrams to a multicast group of the site (239.255.100.57), which leave the port, too. They are sent
//! by another context of the device: adapters keep multicast frames from the context that sent them.

use std::net::Ipv4Addr;

use doorbell::caps::LinkLayer;
use doorbell::frames::{Flow, FrameConfig, FrameReceiver};
use doorbell::{BufferPool, Context, CqConfig, PoolConfig, Sender};

use super::check::{Check, Needs};
use super::lab::{Lab, Patience};
use super::receive::payload;
use super::stop::{Stop, fail, same};

pub const CHECKS: &[Check] = &[
    Check { id: "L63", name: "frames in a plain queue, and their checksums", needs: Needs::Rings, run: plain },
    Check { id: "L64", name: "frames in a striding queue that goes round", needs: Needs::Rings, run: striding },
    Check { id: "L65", name: "frames spread over four queues by their hash", needs: Needs::Rings, run: spread },
    Check { id: "L66", name: "VLAN tags that the device removes", needs: Needs::Rings, run: vlan },
];

const GROUP: Ipv4Addr = Ipv4Addr::new(239, 255, 100, 57);
const PORT: u16 = 30_057;
const ETHERNET_HEADER: usize = 14;
const IP_HEADER: usize = 20;
const UDP_HEADER: usize = 8;

/// The sum of the internet checksum over big-endian words.
fn sum(bytes: &[u8]) -> u32 {
    bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word.get(1).copied().unwrap_or(0))).sum()
}

fn checksum(sum: u32) -> [u8; 2] {
    let folded = (sum & 0xffff) + (sum >> 16);
    (!((folded & 0xffff) + (folded >> 16)) as u16).to_be_bytes()
}

/// A datagram from that port to the group, with right checksums.
fn frame(from: u16, vlan: Option<u16>, bytes: &[u8]) -> Vec<u8> {
    let udp_len = ((UDP_HEADER + bytes.len()) as u16).to_be_bytes();
    let mut udp = [&from.to_be_bytes()[..], &PORT.to_be_bytes(), &udp_len, &[0; 2], bytes].concat();
    let total = ((IP_HEADER + udp.len()) as u16).to_be_bytes();
    let [source, to] = [[198, 51, 100, 57], GROUP.octets()];
    let mut ip = [&[0x45, 0][..], &total, &[0, 0, 0x40, 0, 1, 17, 0, 0], &source, &to].concat();
    let ip_sum = checksum(sum(&ip));
    ip[10..12].copy_from_slice(&ip_sum);
    let udp_sum = checksum(sum(&source) + sum(&to) + 17 + u32::from(u16::from_be_bytes(udp_len)) + sum(&udp));
    udp[6..8].copy_from_slice(&udp_sum);
    let tag = vlan.map_or(Vec::new(), |tci| [[0x81, 0x00], tci.to_be_bytes()].concat());
    let addresses = [0x01, 0x00, 0x5e, 0x7f, 100, 57, 0x02, 0x00, 0x5e, 0x10, 0x00, 0x39];
    [&addresses[..], &tag, &[0x08, 0x00], &ip, &udp].concat()
}

/// A frame that has arrived.
struct Seen {
    receiver: usize,
    bytes: Vec<u8>,
    checksum_ok: bool,
    vlan: Option<u16>,
    hash: Option<u32>,
}

/// The sending context.
struct Source {
    sender: Sender,
    /// The owner of the queue pair that sends.
    frames: FrameReceiver,
    pool: BufferPool,
    _context: Context,
    arrived: bool,
}

impl Source {
    fn new(lab: &Lab) -> Result<Self, Stop> {
        if lab.context.query_port(lab.port)?.link_layer != LinkLayer::Ethernet {
            return Err(Stop::Cannot("the port is not one of Ethernet".into()));
        }
        let context = doorbell::open(lab.context.name())?;
        let pd = context.alloc_pd()?;
        let mut sender = Sender::new(&pd, &CqConfig::new(256).path(lab.path()))?;
        let config = FrameConfig::new().plain(4, 2048).spare(0).port(lab.port).cq(CqConfig::default().path(lab.path()));
        let frames = FrameReceiver::with_sender(&pd, &config, &mut sender).map_err(|error| {
            Stop::Cannot(format!("raw packet queue pairs need CAP_NET_RAW (setcap, or run as root): {error}"))
        })?;
        let pool = BufferPool::new(&pd, &PoolConfig::new(8, 2048))?;
        let mut witness = lab.witness.borrow_mut();
        witness.made("raw packet queue pairs", 1);
        witness.made("CQs", 2);
        Ok(Self { sender, frames, pool, _context: context, arrived: false })
    }

    /// Sends a frame, and waits until one of the receivers has it.
    fn through(&mut self, receivers: &mut [FrameReceiver], frame: &[u8]) -> Result<Seen, Stop> {
        let mut buffer = self.pool.take().ok_or("no buffer")?;
        buffer.extend_from_slice(frame);
        let queue = self.frames.send_queue().ok_or("no send queue")?;
        self.sender.post(queue)?.send_frame(buffer, false)?;
        let patience = Patience::new();
        let seen = loop {
            if let Some(seen) = arrived(receivers)? {
                break seen;
            }
            let waited = patience.wait(|| "a frame that does not arrive".into());
            waited.map_err(|stop| match stop {
                Stop::Fail(_) if !self.arrived => Stop::Cannot("the port does not bring back what it sends".into()),
                stop => stop,
            })?;
        };
        self.arrived = true;
        let patience = Patience::new();
        loop {
            match self.sender.next() {
                Some(done) => {
                    done.map_err(|failure| format!("a frame was not sent: {}", failure.status))?;
                    return Ok(seen);
                }
                None => patience.wait(|| "a frame that has no completion".into())?,
            }
        }
    }
}

fn arrived(receivers: &mut [FrameReceiver]) -> Result<Option<Seen>, Stop> {
    for (receiver, frames) in receivers.iter_mut().enumerate() {
        let mut batch = frames.poll();
        if let Some(frame) = batch.next() {
            let frame = frame.map_err(|failure| format!("a frame completed with {}", failure.cause))?;
            let (checksum_ok, vlan, hash) = (frame.checksum_ok(), frame.vlan(), frame.rss_hash());
            return Ok(Some(Seen { receiver, bytes: frame.to_vec(), checksum_ok, vlan, hash }));
        }
    }
    Ok(None)
}

/// Receivers of one rule.
fn receivers(lab: &Lab, config: FrameConfig, count: u32) -> Result<Vec<FrameReceiver>, Stop> {
    let config = config.port(lab.port).cq(CqConfig::default().path(lab.path()));
    let made = match count {
        0 => FrameReceiver::new(&lab.pd, &config).map(|one| vec![one]),
        many => FrameReceiver::spread(&lab.pd, &config, many),
    };
    let mut witness = lab.witness.borrow_mut();
    witness.made(if count == 0 { "raw packet queue pairs" } else { "WQs" }, count.max(1));
    witness.made("CQs", count.max(1));
    made.map_err(|error| Stop::Cannot(error.to_string()))
}

fn plain(lab: &mut Lab) -> Result<String, Stop> {
    let mut source = Source::new(lab)?;
    let mut to = receivers(lab, FrameConfig::new().plain(16, 2048), 0)?;
    let _rule = to[0].attach(&Flow::udp(GROUP, PORT))?;
    for number in 0..60u32 {
        let sent = frame(1000, None, &payload(number, 20 + number as usize * 24));
        let seen = source.through(&mut to, &sent)?;
        same(format!("bytes of frame {number}"), &sent, &seen.bytes)?;
        same(format!("verdict on the checksums of frame {number}"), &true, &seen.checksum_ok)?;
    }
    for (what, at) in [("IP header", 18), ("datagram", ETHERNET_HEADER + IP_HEADER + UDP_HEADER)] {
        let mut sent = frame(1000, None, &payload(0, 100));
        sent[at] ^= 1;
        let seen = source.through(&mut to, &sent)?;
        same(format!("verdict on a changed {what}"), &false, &seen.checksum_ok)?;
    }
    Ok("60 frames in a queue of 16, and two with wrong checksums".into())
}

fn striding(lab: &mut Lab) -> Result<String, Stop> {
    let mut source = Source::new(lab)?;
    let mut to = receivers(lab, FrameConfig::new().striding(4, 512, 64).spare(0), 1)?;
    let _rule = to[0].attach(&Flow::udp(GROUP, PORT))?;
    // 22 strides each: 23 frames and a filler in each WQE, 92 in a lap.
    const FRAMES: u32 = 300;
    for number in 0..FRAMES {
        let sent = frame(1000, None, &payload(number, 1358));
        let seen = source.through(&mut to, &sent)?;
        same(format!("bytes of frame {number}"), &sent, &seen.bytes)?;
    }
    let ids = match to[0].has_masked_wqe_ids() {
        Some(false) => "wqe_id is the full counter",
        Some(true) => {
            lab.note("L64", "wqe_id of a striding queue is the number of its WQE, and no full counter");
            "wqe_id is the number of the WQE"
        }
        None => return fail("the queue has not gone round"),
    };
    Ok(format!("{FRAMES} frames in a queue of 4 WQEs of 512 strides; {ids}"))
}

fn spread(lab: &mut Lab) -> Result<String, Stop> {
    let mut source = Source::new(lab)?;
    let mut to = receivers(lab, FrameConfig::new().plain(16, 2048), 4)?;
    let _rule = to[0].attach(&Flow::udp(GROUP, PORT))?;
    let mut places = Vec::new();
    for round in 0..3 {
        for flow in 0..32u16 {
            let sent = frame(2000 + flow * 7, None, &payload(flow.into(), 60));
            let seen = source.through(&mut to, &sent)?;
            same(format!("bytes of a frame of flow {flow}"), &sent, &seen.bytes)?;
            let place = (seen.receiver, seen.hash);
            if round == 0 {
                places.push(place);
            }
            same(format!("queue and hash of flow {flow}"), &places[usize::from(flow)], &place)?;
        }
    }
    let used = (0..4).filter(|queue| places.iter().any(|(receiver, _)| receiver == queue)).count();
    if used < 2 {
        return fail(format!("all of {} flows went to one queue", places.len()));
    }
    Ok(format!("{} flows, each to one of {used} queues", places.len()))
}

fn vlan(lab: &mut Lab) -> Result<String, Stop> {
    const TCI: u16 = 0x6064;
    let mut source = Source::new(lab)?;
    let mut to = receivers(lab, FrameConfig::new().plain(16, 2048).vlan_stripping(true), 0)?;
    let _rule = to[0].attach(&Flow::udp(GROUP, PORT).vlan(TCI & 0xfff))?;
    for number in 0..20u32 {
        let bytes = payload(number, 100);
        let seen = source.through(&mut to, &frame(1000, Some(TCI), &bytes))?;
        same(format!("bytes of frame {number} without its tag"), &frame(1000, None, &bytes), &seen.bytes)?;
        same(format!("tag of frame {number}"), &Some(TCI), &seen.vlan)?;
    }
    Ok("20 frames".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_of_a_frame_add_up() {
        let sent = frame(1000, None, b"odd");
        let (ip, udp) = sent[ETHERNET_HEADER..].split_at(IP_HEADER);
        assert_eq!(checksum(sum(ip)), [0, 0]);
        assert_eq!(checksum(sum(&ip[12..]) + 17 + udp.len() as u32 + sum(udp)), [0, 0]);
        assert_eq!(frame(1000, Some(5), b"odd")[12..18], [0x81, 0, 0, 5, 8, 0]);
    }
}
