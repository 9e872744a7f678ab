//! The file `umad0`: management datagrams of programs.
//!
//! A program registers agents, sends datagrams by writing them and gets answers and requests by reading. What is for
//! the port itself, for the switch or for the subnet administrator is answered here; everything else goes to another
//! device. A transfer of several segments exists only as the answer of the subnet administrator, which the program
//! reads whole.

mod agent;
mod files;
mod send;

pub use self::files::UmadFiles;

use self::agent::Registration;
use super::abi::Abi;
use super::errno::{EINVAL, ENOTTY};
use super::events::FileId;
use super::{Core, user};
use crate::fabric::mad::Arrived;
use crate::objects::Result;
use crate::uverbs::mad::{self, Change, Surroundings, pma, smp};

/// `IB_USER_MAD_*` as numbers of ioctl.
mod request {
    pub const REGISTER: u32 = 0xc01c_1b01;
    pub const UNREGISTER: u32 = 0x4004_1b02;
    pub const ENABLE_PKEY: u32 = 0x1b03;
    pub const REGISTER2: u32 = 0xc028_1b04;
}

impl Core {
    /// Runs an ioctl of an open file.
    pub fn umad_ioctl(&mut self, file: FileId, request: u32, argument: u64) -> Result<()> {
        let roce = self.link == crate::fabric::LinkLayer::Ethernet;
        let file = self.umad.file(file)?;
        match request {
            request::REGISTER | request::REGISTER2 => {
                let second = request == request::REGISTER2;
                let wanted = Registration::read(argument, second)?;
                let (number, agent) = file.register(&wanted, roce)?;
                user::write(argument, &number.to_bytes())?;
                file.add(number, agent);
                Ok(())
            }
            request::UNREGISTER => {
                let mut number = [0; 4];
                user::read(argument, &mut number)?;
                let number = u32::from_ne_bytes(number);
                file.unregister(number)?;
                Ok(())
            }
            request::ENABLE_PKEY => file.enable_pkey(),
            _ => Err(ENOTTY),
        }
    }

    /// Returns the bytes of the header in front of each datagram of an open file.
    pub fn umad_header(&mut self, file: FileId) -> Result<usize> {
        Ok(send::header_size(self.umad.file(file)?.with_pkey))
    }

    /// Takes a datagram that a program writes; returns the bytes taken, which are all.
    pub fn umad_write(&mut self, file: FileId, addr: u64, count: usize) -> Result<usize> {
        let mut bytes = vec![0; count.min(send::LONGEST)];
        if count > bytes.len() {
            return Err(EINVAL);
        }
        user::read(addr, &mut bytes)?;
        self.send_umad(file, &bytes)?;
        Ok(count)
    }

    /// Takes a datagram that arrived for an agent of management.
    pub(super) fn receive_umad(&mut self, arrived: &Arrived) {
        if smp::is_response(&arrived.mad) {
            return self.umad.answered(arrived, &arrived.mad);
        }
        let around = self.surroundings();
        let (answer, change) = match arrived.mad[1] {
            mad::CLASS_SUBNET_LID | mad::CLASS_SUBNET_DIRECTED => {
                (smp::port(&arrived.mad, &around, arrived.slid), None)
            }
            mad::CLASS_PERFORMANCE => match pma::answer(&arrived.mad, &around) {
                Some((answer, change)) => (Some(answer), change),
                None => (None, None),
            },
            _ if self.umad.requested(arrived) => return,
            _ => (mad::refuse(&arrived.mad), None),
        };
        self.apply(change);
        if let Some(answer) = answer {
            let to = send::way_back(arrived, self.link);
            self.nic.send_management(&to, arrived.qpn, &answer);
        }
    }

    /// Sends again or gives up what was not answered in time; returns `true` if there was any.
    pub(super) fn expire_umad(&mut self) -> bool {
        let now = self.clock.now();
        let late = self.umad.take_late(now);
        let any = !late.is_empty();
        for sent in late {
            self.resend_umad(sent, now);
        }
        any
    }

    fn surroundings(&mut self) -> Surroundings {
        let now = self.clock.now();
        let port = self.nic.port();
        Surroundings {
            lid: port.lid,
            up: port.up,
            peers: self.nic.peers(now),
            counters: self.nic.counters().port,
            members: self.nic.group_members(),
            seconds: ((self.epoch + now) / 1_000_000_000) as u32,
        }
    }

    fn apply(&mut self, change: Option<Change>) {
        match change {
            Some(Change::Reset(selected)) => {
                self.nic.reset_counters(|base, now| selected.reset(base, now));
            }
            // A fabric that takes no member shows none.
            Some(Change::Join(membership)) => drop(self.nic.join_group(membership)),
            Some(Change::Leave(mgid)) => drop(self.nic.leave_group(&mgid)),
            None => {}
        }
    }
}
