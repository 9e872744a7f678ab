//! The order of a queue's stores: doorbell records, registers, and the fences between.

use core::cell::RefCell;
use core::ptr::NonNull;
use std::thread_local;
use std::vec::Vec;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// [`wqe_before_doorbell_record`](crate::barrier::wqe_before_doorbell_record), and what is the same.
    RecordFence,
    /// A doorbell record was written.
    Record(u32),
    /// [`doorbell_record_before_uar`](crate::barrier::doorbell_record_before_uar), and what is the same.
    RegisterFence,
    /// A half of a register was written.
    Register(NonNull<u8>),
}

thread_local! {
    static EVENTS: RefCell<Option<Vec<Event>>> = const { RefCell::new(None) };
}

pub fn event(event: Event) {
    EVENTS.with_borrow_mut(|events| {
        if let Some(events) = events {
            events.push(event);
        }
    });
}

/// Returns what happens in `run`, on this thread.
pub fn of(run: impl FnOnce()) -> Vec<Event> {
    EVENTS.set(Some(Vec::new()));
    run();
    EVENTS.take().unwrap_or_default()
}
