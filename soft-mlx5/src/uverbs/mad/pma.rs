//! Performance management agent: the counters of the port.

use super::bytes::{get16, put16, put32, put64};
use super::{CLASS_PORT_INFO, Change, DATA, GET, INVALID, OK, SET, Surroundings, UNSUPPORTED, response};
use crate::base::counters::Port;
use crate::fabric::mad::{Header, Mad};

const PORT_COUNTERS: u16 = 0x12;
const PORT_COUNTERS_EXTENDED: u16 = 0x1d;

/// Counters of 64 bits, those of single packets to one port or to groups among them.
const EXTENDED_WIDTH: u16 = 1 << 9;
/// The port by its number, by none, and as one of all: a ConnectX takes any of them.
const PORTS: [u8; 3] = [1, 0, 0xff];
const RESPONSE_TIME: u8 = 18;

/// The counters of the port that a request selects for a reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SelectedCounters {
    mask: u16,
    extended: bool,
}

impl SelectedCounters {
    /// Sets the selected counters of `base` to those of `now`.
    pub fn reset(self, base: &mut Port, now: &Port) {
        let mut take = |bit: u16, field: fn(&mut Port) -> &mut u64| {
            if self.mask & 1 << bit != 0 {
                let mut now = *now;
                *field(base) = *field(&mut now);
            }
        };
        if self.extended {
            take(0, |port| &mut port.xmit_data);
            take(1, |port| &mut port.rcv_data);
            take(2, |port| &mut port.xmit_packets);
            take(3, |port| &mut port.rcv_packets);
            take(4, |port| &mut port.unicast_xmit_packets);
            take(5, |port| &mut port.unicast_rcv_packets);
            take(6, |port| &mut port.multicast_xmit_packets);
            take(7, |port| &mut port.multicast_rcv_packets);
        } else {
            take(2, |port| &mut port.link_downed);
            take(3, |port| &mut port.rcv_errors);
            take(6, |port| &mut port.xmit_discards);
            take(12, |port| &mut port.xmit_data);
            take(13, |port| &mut port.rcv_data);
            take(14, |port| &mut port.xmit_packets);
            take(15, |port| &mut port.rcv_packets);
        }
    }
}

/// Answers a request; `None` if it asks for nothing.
pub fn answer(request: &Mad, around: &Surroundings) -> Option<(Mad, Option<Change>)> {
    let header = Header::parse(request)?;
    if !matches!(header.method, GET | SET) {
        return None;
    }
    let data = &request[DATA..];
    let (select, mask) = (data[1], get16(data, 2));
    let extended = header.attribute == PORT_COUNTERS_EXTENDED;
    let refused = match header.attribute {
        CLASS_PORT_INFO if header.method == GET => {
            let mut answer = response(request, OK);
            class_port_info(&mut answer[DATA..]);
            return Some((answer, None));
        }
        PORT_COUNTERS | PORT_COUNTERS_EXTENDED if !PORTS.contains(&select) => INVALID,
        PORT_COUNTERS | PORT_COUNTERS_EXTENDED => OK,
        _ => UNSUPPORTED,
    };
    let mut answer = response(request, refused);
    if refused != OK {
        return Some((answer, None));
    }
    let mut counters = around.counters;
    let mut change = None;
    if header.method == SET {
        let selected = SelectedCounters { mask, extended };
        // The answer shows what the counters are now.
        let mut base = Port::default();
        selected.reset(&mut base, &counters);
        counters = counters.since(&base);
        change = Some(Change::Reset(selected));
    }
    let data = &mut answer[DATA..];
    data.fill(0);
    data[1] = select;
    put16(data, 2, mask);
    if extended {
        put_extended(data, &counters)
    } else {
        put_plain(data, &counters)
    }
    Some((answer, change))
}

fn class_port_info(data: &mut [u8]) {
    data.fill(0);
    data[..2].copy_from_slice(&[1, 1]);
    put16(data, 2, EXTENDED_WIDTH);
    data[7] = RESPONSE_TIME;
}

// Counters stop at their largest value.
fn at_most<T: TryFrom<u64>>(value: u64, largest: T) -> T {
    T::try_from(value).unwrap_or(largest)
}

fn put_plain(data: &mut [u8], counters: &Port) {
    data[7] = at_most(counters.link_downed, u8::MAX);
    put16(data, 8, at_most(counters.rcv_errors, u16::MAX));
    put16(data, 14, at_most(counters.xmit_discards, u16::MAX));
    let words = [counters.xmit_data, counters.rcv_data, counters.xmit_packets, counters.rcv_packets];
    for (at, value) in (24..).step_by(4).zip(words) {
        put32(data, at, at_most(value, u32::MAX));
    }
}

fn put_extended(data: &mut [u8], counters: &Port) {
    let words = [
        counters.xmit_data,
        counters.rcv_data,
        counters.xmit_packets,
        counters.rcv_packets,
        counters.unicast_xmit_packets,
        counters.unicast_rcv_packets,
        counters.multicast_xmit_packets,
        counters.multicast_rcv_packets,
    ];
    for (at, value) in (8..).step_by(8).zip(words) {
        put64(data, at, value);
    }
}
