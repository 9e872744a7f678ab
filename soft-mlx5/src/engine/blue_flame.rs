//! WQEs as they stand in a register that several queue pairs share.
//!
//! A program that copies a whole WQE to a register, and not only its first eight bytes, makes the adapter execute
//! the bytes in the register. If two threads do so at one register without a lock, a WQE gets bytes of the other.
//! The model looks at the register when it takes a ring. If the register holds other bytes than the WQE of the
//! ring, the program may still be copying: the model waits for some time, and then executes the bytes.
//!
//! The model sees the register at one time and not each store. So it spares doubtful cases: zeros count as not
//! written, and a ring that comes meanwhile ends the wait.

use super::Nic;
use crate::objects::sq::{PATIENCE_LOOKS, PATIENCE_NS};
use crate::objects::strict::Rule;
use crate::objects::uar::{BF_HALF, Ring};
use crate::objects::wqe::SendWqe;

const WORD: usize = 8;

/// Rings whose WQE is not yet in the register.
#[derive(Debug)]
pub struct Copies {
    enabled: bool,
    waiting: Vec<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    ring: Ring,
    image: Vec<u8>,
    since: u64,
    looks: u32,
}

impl Copies {
    /// Starts without waiting rings; without `enabled` no ring ever waits.
    pub fn new(enabled: bool) -> Self {
        Self { enabled, waiting: Vec::new() }
    }
}

/// Returns the WQE as an adapter gets it: from the register, where the register was written.
fn merge(image: &[u8], wqe: &[u8]) -> Vec<u8> {
    let words = image.chunks_exact(WORD).zip(wqe.chunks_exact(WORD));
    words.flat_map(|(here, there)| if here == [0; WORD] { there } else { here }).copied().collect()
}

impl Nic {
    /// Takes a ring at once, or when its WQE stands in the register.
    pub(crate) fn take_ring(&mut self, ring: Ring) {
        if self.copies.enabled {
            if let Some(image) = self.foreign_image(&ring) {
                let since = self.core.now;
                return self.copies.waiting.push(Waiting { ring, image, since, looks: 0 });
            }
            self.uar.clear(&ring);
        }
        self.ring(ring);
    }

    /// Looks again at the registers of rings that wait.
    pub(crate) fn look_at_copies(&mut self) {
        for mut waiting in std::mem::take(&mut self.copies.waiting) {
            let image = self.foreign_image(&waiting.ring);
            if image.as_ref() != Some(&waiting.image) {
                // The WQE is complete, or still being copied, or overwritten by another.
                if image.is_some() && !self.uar.is_rung(&waiting.ring) {
                    waiting.image = image.unwrap_or_default();
                    self.copies.waiting.push(waiting);
                } else {
                    self.uar.clear_unless_rung(&waiting.ring);
                    self.ring(waiting.ring);
                }
                continue;
            }
            waiting.looks += 1;
            let late = self.core.now - waiting.since >= PATIENCE_NS;
            if late && waiting.looks >= PATIENCE_LOOKS {
                self.execute_from_register(&waiting);
            } else {
                self.copies.waiting.push(waiting);
            }
        }
    }

    /// Returns the content of the register, if it is not the WQE that the ring names.
    fn foreign_image(&self, ring: &Ring) -> Option<Vec<u8>> {
        let (page, users) = self.uar.users(ring.register);
        let (index, ds) = ((ring.value >> 40) as u16, ring.value as u8 & 0x3f);
        let len = (usize::from(ds) * 16).min(BF_HALF as usize);
        if users.len() < 2 || len == 0 {
            return None;
        }
        let qp = self.qps.get((ring.value >> 8) as u32 & 0xff_ffff)?;
        if qp.attr.register.page != page || !qp.takes_doorbells() {
            return None;
        }
        let mut wqe = SendWqe::default();
        qp.sq.load(index, qp.sq.ctrl(index).ok()?, &mut wqe).ok()?;
        let image = self.uar.image(ring, len);
        let wqe = wqe.bytes().get(..len)?;
        (merge(&image, wqe) != wqe).then_some(image)
    }

    fn execute_from_register(&mut self, waiting: &Waiting) {
        let ring = waiting.ring;
        let index = (ring.value >> 40) as u16;
        if let Some(qp) = self.qps.get_mut((ring.value >> 8) as u32 & 0xff_ffff) {
            self.core.strict.violation(Rule::BlueFlame, qp.object(), index.into(), &waiting.image);
            let mut wqe = SendWqe::default();
            let ctrl = qp.sq.ctrl(index);
            if ctrl.and_then(|ctrl| qp.sq.load(index, ctrl, &mut wqe)).is_ok() {
                qp.sq.execute_instead(index, merge(&waiting.image, wqe.bytes()));
            }
        }
        self.uar.clear(&ring);
        self.ring(ring);
    }
}
