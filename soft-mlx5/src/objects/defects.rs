//! Devices that are broken on purpose: each breaks one rule that programs rely on.
//!
//! Tests of programs that judge a device, such as `doorbell selftest`, need devices that must not pass. Each defect has
//! one hook, in this module or where this module is called.

use std::cell::Cell;

use mlx5_wire::cqe::{Cqe64, L3_OK, L4_OK, OWNER, SOLICITED_EVENT};
use mlx5_wire::opcode::{CqeOpcode, WqeOpcode};
use mlx5_wire::syndrome::Syndrome;

use super::Event;
use super::completion::Completion;
use super::scatter::ScatterList;
use super::wqe::SendWqe;
use crate::base::defect::Defect;

/// Interval of the defects that act seldom: every N-th case.
const SELDOM: u64 = 40;
/// Nanoseconds for which a torn CQE stays torn, unless another one is written before.
pub const TORN_NS: u64 = 1_000_000_000;

// Places in a CQE.
const WQE_ID: usize = 2;
const IMMEDIATE: usize = 36;
const BYTE_COUNT: usize = 44;
const TIMESTAMP: usize = 48;
const VENDOR: usize = 54;
const SYNDROME: usize = 55;
const QPN: usize = 57;
const COUNTER: usize = 60;
const OP_OWN: usize = 63;

/// The defect of a device, if it has one.
#[derive(Debug, Default)]
pub struct Defects {
    defect: Option<Defect>,
    count: u64,
    late: Option<Completion>,
    finished: Cell<u64>,
}

impl Defects {
    /// Makes the state of a device with this defect.
    pub fn new(defect: Option<Defect>) -> Self {
        Self { defect, ..Self::default() }
    }

    /// Returns `true` if the device has this defect.
    #[inline]
    pub fn is(&self, defect: Defect) -> bool {
        self.defect == Some(defect)
    }

    fn seldom(&mut self, defect: Defect) -> bool {
        self.count += u64::from(self.is(defect));
        self.is(defect) && self.count % SELDOM == 0
    }

    /// Changes the segments of a receive WQE after they were read.
    pub fn receive(&self, list: &mut ScatterList) {
        match self.defect {
            Some(Defect::SwappedAddress) => list.swap_address_halves(),
            Some(Defect::SegmentOrder) => list.reverse(),
            _ => {}
        }
    }

    /// Returns the bytes of a message that are written, or `None` to write all of them unchanged.
    pub fn payload(&mut self, payload: &[u8]) -> Option<Vec<u8>> {
        if self.seldom(Defect::LostWrite) {
            return Some(Vec::new());
        }
        let (last, rest) = payload.split_last().filter(|_| self.is(Defect::Payload))?;
        Some([rest, &[last ^ 0x10]].concat())
    }

    /// Changes a send WQE after it was read. It stands in the ring up to `before_end`.
    pub fn send(&self, wqe: &mut SendWqe, before_end: usize) {
        match self.defect {
            Some(Defect::GatherOrder) if wqe.ctrl().opcode() == WqeOpcode::SEND => wqe.reverse_segments(),
            Some(Defect::RingEnd) => wqe.clear_from(before_end),
            _ => {}
        }
    }

    /// Returns the CQEs that are written in the place of this one, or `None` to write it unchanged.
    pub fn completions(&mut self, completion: &Completion) -> Option<Vec<Completion>> {
        let defect = self.defect?;
        let mut changed = completion.clone();
        let cqe = &mut changed.cqe;
        let opcode = CqeOpcode::from_bits(cqe[OP_OWN] >> 4);
        let error = matches!(opcode, CqeOpcode::RequesterError | CqeOpcode::ResponderError);
        let flush = error && cqe[SYNDROME] == Syndrome::WR_FLUSH.get();
        let message = opcode.is_responder() && !error;
        match defect {
            Defect::ByteCount if message => add(&mut cqe[BYTE_COUNT..][..4]),
            Defect::Counter if message => add(&mut cqe[COUNTER..][..2]),
            Defect::QpNumber => add(&mut cqe[QPN..][..3]),
            Defect::Immediate if opcode == CqeOpcode::ResponderSendImm => {
                cqe[IMMEDIATE..][..4].reverse();
            }
            Defect::Opcode if opcode == CqeOpcode::ResponderSend => {
                cqe[OP_OWN] = cqe[OP_OWN] & 0xf | (CqeOpcode::ResponderSendImm.bits() << 4);
            }
            Defect::Clock if !error => cqe[TIMESTAMP + 1..][..7].iter_mut().for_each(|b| *b = !*b),
            Defect::Unsolicited if message => cqe[OP_OWN] &= !SOLICITED_EVENT,
            Defect::Syndrome if error && !flush => cqe[SYNDROME] = Syndrome::LOCAL_QP_OP.get(),
            Defect::Vendor if error => cqe[VENDOR] ^= 0x40,
            Defect::LostFlush if flush && opcode == CqeOpcode::ResponderError => {
                return Some(vec![]);
            }
            Defect::SilentFlush if flush && opcode == CqeOpcode::RequesterError => {
                return Some(vec![]);
            }
            Defect::DoubleCqe if message && self.seldom(defect) => {
                return Some(vec![changed.clone(), changed]);
            }
            Defect::LateCqe if message => {
                if let Some(late) = self.late.take() {
                    return Some(vec![changed, late]);
                }
                if self.seldom(defect) {
                    self.late = Some(changed);
                    return Some(vec![]);
                }
            }
            _ => return None,
        }
        Some(vec![changed])
    }

    /// Changes the CQE of a frame.
    pub fn frame(&self, cqe: &mut Cqe64) {
        match self.defect {
            Some(Defect::Verdict) => cqe.hds_ip_ext |= L3_OK | L4_OK,
            Some(Defect::Vlan) => cqe.vlan_info = (cqe.vlan_info.get() ^ 1).into(),
            _ => {}
        }
    }

    /// Changes the number of the WQE in the CQE of a striding queue of `count` WQEs.
    pub fn stride(&self, cqe: &mut [u8; 64], count: u32) {
        if self.is(Defect::MaskedId) {
            let masked = u32::from(u16::from_be_bytes([cqe[WQE_ID], cqe[WQE_ID + 1]])) & (count - 1);
            cqe[WQE_ID..][..2].copy_from_slice(&(masked as u16).to_be_bytes());
        }
    }

    /// Changes the last bytes of a CQE that a queue has finished: signature and owner.
    pub fn finish(&self, cqe: &mut [u8; 64]) {
        match self.defect {
            Some(Defect::Signature) => cqe[62] ^= 0x5a,
            Some(Defect::FewSignatures) => {
                self.finished.set(self.finished.get() + 1);
                cqe[62] ^= u8::from(self.finished.get() % SELDOM == 0);
            }
            Some(Defect::Owner) => cqe[OP_OWN] ^= OWNER,
            _ => {}
        }
    }

    /// Changes an array of mini CQEs.
    pub fn mini_cqes(&self, array: &mut [u8; 64]) {
        if self.is(Defect::MiniCqes) {
            array.chunks_exact_mut(8).for_each(|mini| mini.rotate_left(4));
        }
    }

    /// Returns `true` if an event is lost on its way to the driver.
    pub fn loses(&self, event: &Event) -> bool {
        match event {
            Event::Completion(_) => self.is(Defect::LostEvent),
            Event::SrqLimit(_) => self.is(Defect::LostLimit),
            Event::LastWqe(_) => self.is(Defect::LostLastWqe),
            _ => false,
        }
    }
}

/// Changes the last byte of a packet.
pub fn change_last(payload: &mut [u8]) {
    if let Some(last) = payload.last_mut() {
        *last ^= 0x10;
    }
}

/// Adds one to a big-endian number.
fn add(bytes: &mut [u8]) {
    for byte in bytes.iter_mut().rev() {
        *byte = byte.wrapping_add(1);
        if *byte != 0 {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = Defect::ALL.iter().map(|defect| defect.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Defect::ALL.len());
    }

    #[test]
    fn a_sound_device_changes_nothing() {
        let mut sound = Defects::default();
        let completion = Completion { cqe: [0x21; 64], front: None };
        assert!(sound.completions(&completion).is_none() && sound.payload(b"abc").is_none());
        let mut cqe = [7; 64];
        sound.finish(&mut cqe);
        assert_eq!(cqe, [7; 64]);
        assert!(!sound.loses(&Event::LastWqe(crate::objects::Qpn(1))));
    }

    #[test]
    fn numbers_carry() {
        let mut bytes = [0, 0xff, 0xff];
        add(&mut bytes);
        assert_eq!(bytes, [1, 0, 0]);
    }
}
