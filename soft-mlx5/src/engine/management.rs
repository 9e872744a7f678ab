//! Management datagrams. No queue pair of a program has the numbers 0 and 1: the driver takes and sends their packets.

use std::collections::VecDeque;

use super::Nic;
use crate::fabric::headers::{Bth, Deth, PKEY};
use crate::fabric::mad::{Arrived, GSI_QKEY, GSI_QPN, Mad, SIZE, SMI_QPN};
use crate::fabric::opcode::Operation;
use crate::fabric::packet::Packet;
use crate::objects::{AddressVector, Service};

// Datagrams that wait for the driver; further ones are lost, as from a full receive queue.
const LIMIT: usize = 1024;

/// Datagrams of the driver.
#[derive(Debug, Default)]
pub struct Management {
    arrived: VecDeque<Arrived>,
    // Sequence number of the next one to send.
    psn: u32,
}

impl Management {
    /// Takes a packet for queue pair 0 or 1.
    pub fn receive(&mut self, packet: &Packet) {
        let keyed = packet.bth.dest_qpn == SMI_QPN || packet.deth.qkey == GSI_QKEY;
        let whole: Result<&Mad, _> = packet.payload.try_into();
        let (Ok(mad), Service::Ud, true) = (whole, packet.service, keyed) else { return };
        if self.arrived.len() < LIMIT {
            self.arrived.push_back(Arrived {
                qpn: packet.bth.dest_qpn,
                source_qpn: packet.deth.source_qpn,
                slid: packet.slid,
                sl: packet.sl,
                pkey: packet.bth.pkey,
                grh: packet.global.then_some(*packet.grh),
                mad: *mad,
            });
        }
    }
}

impl Nic {
    /// Takes the next management datagram that arrived.
    pub fn next_management(&mut self) -> Option<Arrived> {
        self.management.arrived.pop_front()
    }

    /// Sends a management datagram from queue pair `qpn` to the queue pair of the same number; returns `false` if no
    /// port has the address.
    pub fn send_management(&mut self, to: &AddressVector, qpn: u32, mad: &Mad) -> bool {
        let core = &mut self.core;
        let Some(way) = core.route(to) else { return false };
        let mut frame = core.link.frame();
        let opcode = Operation::SendOnly.encode(Service::Ud);
        let psn = self.management.psn;
        self.management.psn = psn.wrapping_add(1);
        frame.begin(&way, &Bth { opcode, pkey: PKEY, dest_qpn: qpn, psn, ..Bth::default() });
        let qkey = if qpn == GSI_QPN { GSI_QKEY } else { 0 };
        frame.push(&Deth { qkey, source_qpn: qpn });
        frame.payload_mut(SIZE).copy_from_slice(mad);
        frame.finish();
        core.link.send(frame, core.now);
        core.link.flush(core.now);
        true
    }

    /// Returns the LIDs of the other devices on the fabric.
    pub fn peers(&mut self, now: u64) -> Vec<u16> {
        self.core.link.peers(now)
    }
}
