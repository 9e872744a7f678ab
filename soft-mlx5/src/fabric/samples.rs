//! Frames for tests.

use super::checksum;
use super::frame_header::{ETHERNET, GRE, Headers, IPV4, IPV6, TCP, UDP, VLAN};

/// A frame to be built.
#[derive(Clone)]
pub struct Sample {
    pub group: [u8; 4],
    pub port: u16,
    pub source: ([u8; 4], u16),
    pub payload: Vec<u8>,
    vlans: Vec<u16>,
    ipv6: bool,
    protocol: u8,
}

impl Sample {
    /// Makes a UDP datagram to a multicast group, with right checksums.
    pub fn udp(group: [u8; 4], port: u16, payload: &[u8]) -> Self {
        Self {
            group,
            port,
            source: ([10, 0, 0, 1], 40_000),
            payload: payload.to_vec(),
            vlans: Vec::new(),
            ipv6: false,
            protocol: UDP,
        }
    }

    /// Adds a VLAN tag, inside those before.
    pub fn vlan(mut self, tag: u16) -> Self {
        self.vlans.push(tag);
        self
    }

    /// Sends the frame over IPv6, between mapped addresses.
    pub fn ipv6(self) -> Self {
        Self { ipv6: true, ..self }
    }

    /// Makes a TCP segment instead.
    pub fn tcp(self) -> Self {
        Self { protocol: TCP, ..self }
    }

    /// Changes the source address and port.
    pub fn from(self, address: [u8; 4], port: u16) -> Self {
        Self { source: (address, port), ..self }
    }

    /// Builds the frame, padded to 60 bytes.
    pub fn build(&self) -> Vec<u8> {
        let [_, a, b, c] = self.group;
        let mut frame = vec![0x01, 0x00, 0x5e, a & 0x7f, b, c, 2, 0, 0, 0, 0, 9];
        for tag in &self.vlans {
            frame.extend(VLAN.to_be_bytes());
            frame.extend(tag.to_be_bytes());
        }
        let mut body = Vec::new();
        body.extend(self.source.1.to_be_bytes());
        body.extend(self.port.to_be_bytes());
        let sum_at = if self.protocol == UDP {
            body.extend((8 + self.payload.len() as u16).to_be_bytes());
            body.extend([0; 2]);
            6
        } else {
            body.extend([0; 8]);
            body.extend([0x50, 0x18, 1, 0, 0, 0, 0, 0]);
            16
        };
        body.extend(&self.payload);
        let at = frame.len() + 2;
        if self.ipv6 {
            frame.extend(IPV6.to_be_bytes());
            frame.extend([0x60, 0, 0, 0]);
            frame.extend((body.len() as u16).to_be_bytes());
            frame.extend([self.protocol, 9]);
            for address in [self.source.0, self.group] {
                frame.extend([0; 10]);
                frame.extend([0xff; 2]);
                frame.extend(address);
            }
        } else {
            frame.extend(IPV4.to_be_bytes());
            frame.extend([0x45, 0]);
            frame.extend((20 + body.len() as u16).to_be_bytes());
            frame.extend([0, 0, 0x40, 0, 9, self.protocol, 0, 0]);
            frame.extend(self.source.0);
            frame.extend(self.group);
            let sum = !checksum::sum(&frame[at..]);
            frame[at + 10..at + 12].copy_from_slice(&sum.to_be_bytes());
        }
        let body_at = frame.len();
        frame.extend(body);
        let length = frame.len() - body_at;
        let ip = Headers::parse(&frame).and_then(|headers| headers.ip).unwrap();
        let sum = ip.pseudo_sum(length) + checksum::words(&frame[body_at..]);
        let sum = !checksum::folded(sum);
        frame[body_at + sum_at..][..2].copy_from_slice(&sum.to_be_bytes());
        frame.resize(frame.len().max(60), 0);
        frame
    }

    /// Builds a frame with the packet of this one in a GRE tunnel from 10.0.0.7 to 10.0.0.8.
    pub fn tunnel(&self, key: Option<u32>) -> Vec<u8> {
        let inner = self.build();
        let ip = Headers::parse(&inner).and_then(|headers| headers.ip).unwrap();
        let packet = &inner[ETHERNET..ip.end];
        let header = if key.is_some() { 8 } else { 4 };
        let mut frame = vec![2, 0, 0, 0, 0, 8, 2, 0, 0, 0, 0, 7];
        frame.extend(IPV4.to_be_bytes());
        frame.extend([0x45, 0]);
        frame.extend((20 + header + packet.len() as u16).to_be_bytes());
        frame.extend([0, 0, 0x40, 0, 9, GRE, 0, 0, 10, 0, 0, 7, 10, 0, 0, 8]);
        let sum = !checksum::sum(&frame[ETHERNET..]);
        frame[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&sum.to_be_bytes());
        frame.extend(if key.is_some() { [0x20, 0] } else { [0; 2] });
        frame.extend(IPV4.to_be_bytes());
        frame.extend(key.iter().flat_map(|key| key.to_be_bytes()));
        frame.extend(packet);
        frame
    }
}
