//! The port's side of the wire: transmit with injected faults, receive, reuse of frames.

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;

use super::Fabric;
use super::address::{self, FIRST_LID};
use super::echo::Echo;
use super::faults::{Fate, Injector};
use super::frame_header::ETHERNET;
use super::groups::{Groups, Member, Membership};
use super::interface::Interface;
use super::packet::{Frame, MAX_ETHERNET, MIN_ETHERNET, check_icrc};
use super::pcap::Capture;
use super::playback::Playback;
use super::socket::SocketPort;
use super::switch::SwitchPort;
use crate::base::counters;
use crate::base::faults::Faults;
use crate::base::tally::{Fault, Tally};

// Frames that may wait in the loopback before requesters pause.
const LOOPBACK_LIMIT: usize = 1024;
const POOL_LIMIT: usize = 2048;
// Frames that come from a file or an interface in a step.
const FRAMES_AT_ONCE: usize = 64;

#[derive(Debug)]
enum Port {
    Private,
    Switch(SwitchPort),
    Socket(SocketPort),
}

/// Packets that a port lost, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Drops {
    /// The destination does not exist or has no room.
    pub undeliverable: u64,
    /// The bytes were not a packet or failed their ICRC.
    pub malformed: u64,
    /// Lost on request.
    pub injected: u64,
}

/// The link of a device.
#[derive(Debug)]
pub struct Link {
    lid: u16,
    port: Port,
    injector: Injector,
    capture: Option<Capture>,
    // Packets to this very device, and packets that came from others, in order of arrival.
    arrived: VecDeque<Frame>,
    // Sources of frames besides the fabric.
    playback: Option<Playback>,
    interface: Option<Interface>,
    pool: Vec<Frame>,
    drops: Drops,
    counters: counters::Port,
    // Counters at the last time that they were set to 0.
    base: counters::Port,
    wrong_icrcs: u64,
    tally: Tally,
    groups: Groups,
    up: bool,
}

impl Link {
    /// Joins a fabric.
    pub fn new(fabric: &Fabric, faults: Faults, seed: u64, tally: Tally) -> io::Result<Self> {
        let port = match fabric {
            Fabric::Private => Port::Private,
            Fabric::Switch(switch) => Port::Switch(
                switch
                    .join()
                    .ok_or_else(|| io::Error::new(io::ErrorKind::AddrInUse, "all LIDs of the fabric are taken"))?,
            ),
            Fabric::Named(name) => Port::Socket(SocketPort::join(name, false)?),
            Fabric::OfAllUsers(name) => Port::Socket(SocketPort::join(name, true)?),
        };
        let lid = match &port {
            Port::Private => FIRST_LID,
            Port::Switch(port) => port.lid(),
            Port::Socket(port) => port.lid(),
        };
        // Devices with the same seed on one fabric must not lose the same packets.
        let seed = seed ^ u64::from(lid) << 48;
        Ok(Self {
            lid,
            port,
            injector: Injector::new(faults, seed),
            capture: None,
            arrived: VecDeque::new(),
            playback: None,
            interface: None,
            pool: Vec::new(),
            drops: Drops::default(),
            counters: counters::Port::default(),
            base: counters::Port::default(),
            wrong_icrcs: 0,
            tally,
            groups: Groups::new(fabric, lid),
            up: true,
        })
    }

    /// Returns the LID of this port.
    pub fn lid(&self) -> u16 {
        self.lid
    }

    /// Returns `true` if the link is up.
    pub fn is_up(&self) -> bool {
        self.up
    }

    /// Takes the link down or up; while it is down everything is lost.
    pub fn set_up(&mut self, up: bool) {
        self.counters.link_downed += u64::from(self.up && !up);
        self.up = up;
    }

    /// Returns the counters of the port.
    pub fn counters(&self) -> counters::Port {
        self.counted().since(&self.base)
    }

    /// Sets counters to 0: those whose base `reset` sets to the value of all time.
    pub fn reset_counters(&mut self, reset: impl FnOnce(&mut counters::Port, &counters::Port)) {
        let counted = self.counted();
        reset(&mut self.base, &counted);
    }

    fn counted(&self) -> counters::Port {
        let drops = self.drops();
        counters::Port { rcv_errors: drops.malformed, xmit_discards: drops.undeliverable, ..self.counters }
    }

    /// Returns the members of multicast groups on the fabric.
    pub fn members(&self) -> Vec<Member> {
        self.groups.members()
    }

    /// Makes this port a member of a group, or changes its membership.
    pub fn join_group(&mut self, membership: Membership) -> io::Result<()> {
        self.groups.join(membership)
    }

    /// Ends the membership of this port in a group; returns `false` if it was no member.
    pub fn leave_group(&mut self, mgid: &[u8; 16]) -> bool {
        self.groups.leave(mgid)
    }

    /// Records what leaves the port.
    pub fn capture(&mut self, capture: Capture) {
        self.capture = Some(capture);
    }

    /// Plays a capture file to this port, from the first [`Self::bring_in`] on.
    pub fn play(&mut self, playback: Playback) {
        self.playback = Some(playback);
    }

    /// Joins a network interface of the machine to this port.
    pub fn join(&mut self, interface: Interface) {
        self.interface = Some(interface);
    }

    /// Takes in frames from a file and from an interface, a bounded number; returns `true` if there were any.
    pub fn bring_in(&mut self, now: u64) -> bool {
        let mut any = false;
        for _ in 0..FRAMES_AT_ONCE {
            if self.arrived.len() >= LOOPBACK_LIMIT {
                break;
            }
            let played = self.playback.as_mut().and_then(|playback| playback.play(now));
            let come = || self.interface.as_mut().and_then(Interface::receive);
            let Some(mut bytes) = played.or_else(come) else { break };
            any = true;
            if !(ETHERNET..=MAX_ETHERNET).contains(&bytes.len()) {
                self.drops.malformed += 1;
                continue;
            }
            bytes.resize(bytes.len().max(MIN_ETHERNET), 0);
            let mut frame = self.frame();
            frame.wrap_ethernet(self.lid, self.lid, &bytes, 0);
            self.send(frame, now);
        }
        any
    }

    /// Changes the faults from now on.
    pub fn set_faults(&mut self, faults: Faults) {
        self.injector.set_faults(faults);
    }

    /// Returns the packets lost so far.
    pub fn drops(&self) -> Drops {
        let mut drops = self.drops;
        if let Port::Socket(port) = &self.port {
            let (undeliverable, malformed) = port.drops();
            drops.undeliverable += undeliverable;
            drops.malformed += malformed;
        }
        drops
    }

    /// Returns the number of packets that failed their ICRC.
    pub fn wrong_icrcs(&self) -> u64 {
        self.wrong_icrcs
    }

    /// Counts a packet that arrived and could not be parsed.
    pub fn count_malformed(&mut self) {
        self.drops.malformed += 1;
    }

    /// Takes a frame to build a packet in.
    pub fn frame(&mut self) -> Frame {
        self.pool.pop().unwrap_or_default()
    }

    /// Gives a frame back.
    pub fn recycle(&mut self, frame: Frame) {
        if self.pool.len() < POOL_LIMIT {
            self.pool.push(frame);
        }
    }

    /// Returns `true` if a requester may send to this port now; answers are always taken.
    pub fn has_room(&self, dlid: u16) -> bool {
        if dlid == self.lid {
            return self.arrived.len() < LOOPBACK_LIMIT;
        }
        match &self.port {
            Port::Private => true,
            Port::Switch(port) => port.has_room(dlid),
            Port::Socket(port) => port.has_room(dlid),
        }
    }

    /// Returns `true` if a device of the fabric has this address now.
    pub fn has_device(&self, lid: u16) -> bool {
        lid == self.lid
            || match &self.port {
                Port::Private => false,
                Port::Switch(port) => port.has_device(lid),
                Port::Socket(port) => port.has_device(lid),
            }
    }

    /// Returns the name of the fabric, if it has one.
    pub fn fabric(&self) -> Option<&str> {
        match &self.port {
            Port::Socket(port) => Some(port.fabric()),
            Port::Private | Port::Switch(_) => None,
        }
    }

    /// Sends an echo behind all packets that were sent to its receiver. Returns `false` if no device has the address.
    pub fn send_echo(&mut self, echo: &Echo) -> bool {
        if !self.has_device(echo.dlid) {
            return false;
        }
        let mut frame = self.frame();
        echo.write(&mut frame);
        frame.seal();
        let refused = match &mut self.port {
            _ if echo.dlid == self.lid => {
                self.arrived.push_back(frame);
                None
            }
            Port::Private => Some(frame),
            Port::Switch(port) => port.send(echo.dlid, frame).err(),
            Port::Socket(port) => port.send(echo.dlid, frame).err(),
        };
        if let Some(frame) = refused {
            self.recycle(frame);
        }
        true
    }

    /// Returns `true` if all ports that would get an Ethernet frame have room for it: the link has flow control.
    pub fn has_room_for_ethernet(&mut self, now: u64) -> bool {
        let lid = self.lid;
        self.has_room(lid) && self.peers(now).into_iter().all(|peer| self.has_room(peer))
    }

    /// Sends an Ethernet frame of a transport domain of this device: to the port that its destination address names, or
    /// to all ports, this one included.
    pub fn send_ethernet(&mut self, ethernet: &[u8], origin: u32, now: u64) {
        let named = ethernet.first_chunk().and_then(address::lid_of_mac);
        let ports = match named {
            Some(lid) => vec![lid],
            None => self.peers(now).into_iter().chain([self.lid]).collect(),
        };
        if let Some(interface) = self.interface.as_ref().filter(|_| self.up && named.is_none()) {
            self.drops.undeliverable += u64::from(!interface.send(ethernet));
        }
        for dlid in ports {
            let mut frame = self.frame();
            let origin = if dlid == self.lid { origin } else { 0 };
            frame.wrap_ethernet(self.lid, dlid, ethernet, origin);
            self.send(frame, now);
        }
    }

    /// Sends a finished packet.
    pub fn send(&mut self, frame: Frame, now: u64) {
        self.count_sent(&frame);
        if self.injector.is_idle() {
            return self.deliver(frame, now);
        }
        self.tally.count(Fault::Packet);
        match self.injector.fate() {
            Fate::Send => {}
            Fate::SendTwice => {
                self.tally.count(Fault::Doubled);
                let mut copy = self.frame();
                copy.copy_from(&frame);
                self.carry(copy, now);
            }
            Fate::Lose => {
                self.drops.injected += 1;
                self.tally.count(Fault::Lost);
                return self.recycle(frame);
            }
            Fate::Hold => {
                self.tally.count(Fault::Overtaken);
                return self.injector.hold(frame, now);
            }
        }
        self.carry(frame, now);
        self.injector.overtake();
        self.release_held(now);
    }

    fn count_sent(&mut self, frame: &Frame) {
        let multicast = frame.is_multicast();
        // Each port gets a copy of a packet to a group; the copy for this port stands for the packet.
        if !self.up || multicast && frame.dlid() != self.lid {
            return;
        }
        let counters = &mut self.counters;
        counters.xmit_packets += 1;
        counters.xmit_data += frame.wire_len() as u64 / 4;
        counters.unicast_xmit_packets += u64::from(!multicast);
        counters.multicast_xmit_packets += u64::from(multicast);
    }

    fn carry(&mut self, frame: Frame, now: u64) {
        if let Some(frame) = self.injector.delay(frame, now) {
            self.deliver(frame, now);
        }
    }

    fn release_held(&mut self, now: u64) -> bool {
        let mut any = false;
        while let Some(frame) = self.injector.release(now) {
            self.carry(frame, now);
            any = true;
        }
        while let Some(frame) = self.injector.arrival(now) {
            self.deliver(frame, now);
            any = true;
        }
        any
    }

    fn deliver(&mut self, mut frame: Frame, now: u64) {
        // One copy of a frame to all ports is enough.
        let named = frame.ethernet().and_then(|bytes| address::lid_of_mac(bytes.first_chunk()?));
        let copy = frame.is_ethernet() && frame.dlid() != self.lid && named.is_none();
        if let Some(capture) = self.capture.as_mut().filter(|_| self.up && !copy) {
            frame.seal();
            capture.add(&frame, now);
        }
        let dlid = frame.dlid();
        let undelivered = if !self.up {
            Some(frame)
        } else if dlid == self.lid {
            self.arrived.push_back(frame);
            None
        } else {
            match &mut self.port {
                Port::Private => Some(frame),
                Port::Switch(port) => {
                    frame.seal();
                    port.send(dlid, frame).err()
                }
                Port::Socket(port) => {
                    frame.seal();
                    port.send(dlid, frame).err()
                }
            }
        };
        if let Some(frame) = undelivered {
            self.drops.undeliverable += 1;
            self.recycle(frame);
        }
    }

    /// Moves the waiting packets out at time `now`; returns `true` if any moved.
    pub fn flush(&mut self, now: u64) -> bool {
        let mut moved = self.release_held(now);
        if let Port::Socket(port) = &mut self.port {
            moved |= port.flush(&mut self.pool);
            self.pool.truncate(POOL_LIMIT);
        }
        moved
    }

    /// Moves the arrived packets in; returns `true` if any moved.
    pub fn poll(&mut self) -> bool {
        let mut moved = false;
        // Further packets wait at the senders, which then pause.
        if self.arrived.len() >= LOOPBACK_LIMIT {
            return false;
        }
        match &mut self.port {
            Port::Private => {}
            Port::Switch(port) => {
                while let Some(frame) = port.receive() {
                    moved = true;
                    let sound = check_icrc(frame.bytes()).is_ok();
                    let passes = self.up || Echo::parse(frame.bytes()).is_some();
                    if passes && sound {
                        self.arrived.push_back(frame);
                    } else {
                        self.drops.malformed += 1;
                        self.wrong_icrcs += u64::from(!sound);
                    }
                }
            }
            Port::Socket(port) => {
                let (pool, arrived, drops) = (&mut self.pool, &mut self.arrived, &mut self.drops);
                let (up, wrong_icrcs) = (self.up, &mut self.wrong_icrcs);
                moved |= port.receive(|bytes| {
                    let mut frame = pool.pop().unwrap_or_default();
                    let sound = check_icrc(bytes).is_ok();
                    let passes = up || Echo::parse(bytes).is_some();
                    if passes && sound && frame.fill(bytes).is_ok() {
                        arrived.push_back(frame);
                    } else {
                        drops.malformed += 1;
                        *wrong_icrcs += u64::from(!sound);
                    }
                });
            }
        }
        moved
    }

    /// Takes the next packet that arrived.
    pub fn receive(&mut self) -> Option<Frame> {
        let frame = self.arrived.pop_front()?;
        let (multicast, counters) = (frame.is_multicast(), &mut self.counters);
        counters.rcv_packets += 1;
        counters.rcv_data += frame.wire_len() as u64 / 4;
        counters.unicast_rcv_packets += u64::from(!multicast);
        counters.multicast_rcv_packets += u64::from(multicast);
        Some(frame)
    }

    /// Returns the LIDs of the other devices on the fabric.
    pub fn peers(&mut self, now: u64) -> Vec<u16> {
        match &mut self.port {
            Port::Private => Vec::new(),
            Port::Switch(port) => port.peers(),
            Port::Socket(port) => port.peers(now).to_vec(),
        }
    }

    /// Returns when the next held packet goes or the next frame of a file comes.
    pub fn next_deadline(&self) -> Option<u64> {
        let played = self.playback.as_ref().and_then(Playback::next_deadline);
        [self.injector.next_deadline(), played].into_iter().flatten().min()
    }

    /// Returns the descriptor that becomes readable when packets arrive from another process.
    pub fn wait_fd(&self) -> Option<RawFd> {
        match &self.port {
            Port::Socket(port) => Some(port.fd()),
            _ => self.interface.as_ref().map(Interface::fd),
        }
    }
}
