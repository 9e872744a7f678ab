//! Records by the address of their object, for the functions that programs call most often: three instructions where a
//! number takes a dozen.

use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

const COUNT: usize = 4096;

/// Places of which each object has one. An object that finds its place taken has none: its record is found by number.
pub(crate) struct Places<T>([Place<T>; COUNT]);

struct Place<T> {
    object: AtomicPtr<c_void>,
    record: AtomicPtr<T>,
}

impl<T> Places<T> {
    pub(crate) const fn new() -> Self {
        Self(
            [const { Place { object: AtomicPtr::new(ptr::null_mut()), record: AtomicPtr::new(ptr::null_mut()) } };
                COUNT],
        )
    }

    #[inline(always)]
    fn place(&self, object: *mut c_void) -> &Place<T> {
        // The allocator aligns objects to 16 bytes, and none is smaller than 128.
        &self.0[object.addr() / 128 % COUNT]
    }

    /// Returns the record of an object, if it has a place.
    ///
    /// # Safety
    /// The object is alive, and its record is neither [removed](Self::remove) nor dropped during `'a`.
    #[inline(always)]
    pub(crate) unsafe fn get<'a>(&self, object: *mut c_void) -> Option<&'a T> {
        let place = self.place(object);
        if place.object.load(Ordering::Acquire) != object {
            return None;
        }
        // SAFETY: the place is this object's until it is removed: the record was stored before, and is not null.
        unsafe { Some(place.record.load(Ordering::Relaxed).as_ref().unwrap_unchecked()) }
    }

    /// Gives an object its place, if it is free.
    pub(crate) fn insert(&self, object: *mut c_void, record: *mut T) {
        let place = self.place(object);
        // Whoever stores the record has the place.
        let is_free = place.record.compare_exchange(ptr::null_mut(), record, Ordering::Relaxed, Ordering::Relaxed);
        if is_free.is_ok() {
            place.object.store(object, Ordering::Release);
        }
    }

    /// Frees the place of an object, if it has one. No code looks for the object.
    pub(crate) fn remove(&self, object: *mut c_void) {
        let place = self.place(object);
        if place.object.load(Ordering::Acquire) == object {
            place.object.store(ptr::null_mut(), Ordering::Relaxed);
            place.record.store(ptr::null_mut(), Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static PLACES: Places<u32> = Places::new();

    fn found(address: usize) -> Option<u32> {
        // SAFETY: the records are the test's, which outlive it.
        unsafe { PLACES.get(ptr::without_provenance_mut(address)) }.copied()
    }

    #[test]
    fn a_place_is_taken_once() {
        let object = ptr::without_provenance_mut;
        let [one, other] = [0x10_0000, 0x10_0000 + 128 * COUNT];
        let mut records = [1, 2];
        let [first, second] = &mut records;
        PLACES.insert(object(one), first);
        PLACES.insert(object(other), second);
        assert_eq!([found(one), found(other), found(one + 128)], [Some(1), None, None]);
        PLACES.remove(object(other));
        assert_eq!(found(one), Some(1), "removing an object without a place");
        PLACES.remove(object(one));
        PLACES.insert(object(other), second);
        assert_eq!([found(one), found(other)], [None, Some(2)]);
    }
}
