//! Asking for an event when the next CQE arrives.

use core::ptr::NonNull;

use mlx5_wire::be::{Be32, Be64};
use mlx5_wire::dbrec::{self, Arm};
use mlx5_wire::uar;

use crate::barrier;
use crate::dbrec::DoorbellRecord;

/// Where a CQ is armed, as `mlx5dv_init_obj` reports it in `struct mlx5dv_cq`.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Doorbell record of the CQ: consumer index and arm word.
    pub dbrec: NonNull<Be32>,
    /// UAR page whose doorbell arms the CQs of the context (`cq_uar`).
    pub uar: NonNull<u8>,
    /// Number of the CQ.
    pub cqn: u32,
}

/// The doorbell that arms a CQ.
///
/// An arm says which CQEs software has taken. The device raises an event as soon as it has written a CQE after those,
/// at once if it has already: so no CQE is missed between the last look at the CQ and the arm. An arm is good for one
/// event. Its sequence number distinguishes it from an arm that the device has answered, so [`event`](Self::event) must
/// count each event.
#[derive(Debug)]
pub struct CqDoorbell {
    record: DoorbellRecord,
    register: NonNull<Be64>,
    cqn: u32,
    sequence: u32,
}

// SAFETY: the record belongs to this value alone, and the register takes stores of eight bytes from any
// thread.
unsafe impl Send for CqDoorbell {}

impl CqDoorbell {
    /// Takes over the arming of a CQ that was never armed.
    ///
    /// # Safety
    /// `place` describes a CQ that no other code arms; its record and its UAR page stay mapped for as long
    /// as the value exists.
    pub const unsafe fn new(place: Place) -> Self {
        // SAFETY: the record has two words, and the register is inside the page.
        let (record, register) = unsafe { (place.dbrec.add(dbrec::ARM), place.uar.add(uar::CQ_DOORBELL).cast()) };
        // SAFETY: the caller keeps the record mapped, and no other code arms the CQ.
        let record = unsafe { DoorbellRecord::new(record) };
        Self { record, register, cqn: place.cqn, sequence: 0 }
    }

    /// Returns the number of the CQ.
    pub const fn cqn(&self) -> u32 {
        self.cqn
    }

    /// Asks for one event, when there is a CQE at `consumer_index` or after it; with `solicited_only` a CQE whose
    /// sender asked for an event, or one in error.
    #[inline]
    pub fn arm(&mut self, consumer_index: u32, solicited_only: bool) {
        let arm = Arm { sequence: self.sequence, solicited_only, consumer_index };
        self.record.write(arm.word());
        barrier::doorbell_record_before_uar();
        // SAFETY: aligned and writable by the contract of `new`; volatile because it is a register.
        unsafe { self.register.as_ptr().write_volatile(arm.doorbell(self.cqn)) }
        barrier::flush_uar();
    }

    /// Counts an event of this CQ that was taken from the completion channel.
    #[inline]
    pub const fn event(&mut self) {
        self.sequence = self.sequence.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_record_then_the_register_with_a_number_for_each_event() {
        let (mut page, mut record) = ([Be64::new(0); 8], [Be32::new(7), Be32::new(0)]);
        let place =
            Place { dbrec: NonNull::from(&mut record).cast(), uar: NonNull::from(&mut page).cast(), cqn: 0x412 };
        // SAFETY: memory of the test's own, which outlives the value.
        let mut doorbell = unsafe { CqDoorbell::new(place) };
        let read = || {
            // SAFETY: as above; the doorbell is not writing now.
            let (record, page) =
                unsafe { (place.dbrec.cast::<[Be32; 2]>().read(), place.uar.cast::<[Be64; 8]>().read()) };
            assert_eq!(record[0].get(), 7, "the consumer index");
            (record[1].get(), page[uar::CQ_DOORBELL / 8].get())
        };
        doorbell.arm(0x0100_0003, false);
        assert_eq!(read(), (0x0000_0003, 0x0000_0003_0000_0412));
        doorbell.arm(4, true);
        assert_eq!(read(), (0x0100_0004, 0x0100_0004_0000_0412));
        for event in 1..6u32 {
            doorbell.event();
            doorbell.arm(5, false);
            assert_eq!(read().0, (event & 3) << 28 | 5);
        }
    }
}
