//! Records by number: two levels, no hashing.

use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

const BITS: u32 = 12;
const COUNT: usize = 1 << BITS;

type Page<T> = [AtomicPtr<T>; COUNT];

/// Records by a number of 24 bits: that of a queue pair, or the kernel's handle of an object.
pub(crate) struct Table<T> {
    pages: Box<[AtomicPtr<Page<T>>]>,
}

const fn place(number: u32) -> (usize, usize) {
    ((number >> BITS) as usize, number as usize & (COUNT - 1))
}

impl<T> Table<T> {
    pub(crate) fn new() -> Self {
        Self { pages: (0..COUNT).map(|_| AtomicPtr::default()).collect() }
    }

    /// Returns the record with this number.
    #[inline(always)]
    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        let (page, index) = place(number);
        let page = self.pages.get(page)?.load(Ordering::Acquire);
        // SAFETY: pages are freed with the table only, and a record once nobody uses it, by the contract of `remove`.
        unsafe { page.as_ref()?[index].load(Ordering::Acquire).as_ref() }
    }

    /// Puts a record in; returns `None` if the number has more than 24 bits. Insertions do not race with each other.
    pub(crate) fn insert(&self, number: u32, record: Box<T>) -> Option<&T> {
        let (page, index) = place(number);
        let slot = self.pages.get(page)?;
        if slot.load(Ordering::Acquire).is_null() {
            let fresh: Box<Page<T>> = Box::new([const { AtomicPtr::new(ptr::null_mut()) }; COUNT]);
            slot.store(Box::into_raw(fresh), Ordering::Release);
        }
        // SAFETY: the page is there, see `get`.
        let page = unsafe { &*slot.load(Ordering::Acquire) };
        let record = Box::into_raw(record);
        let old = page[index].swap(record, Ordering::AcqRel);
        // SAFETY: the kernel has given the number away again, so its object is gone; the new record was made just now.
        unsafe {
            drop_record(old);
            Some(&*record)
        }
    }

    /// Drops the record with this number.
    ///
    /// # Safety
    /// Nobody uses it, or will find it from now on.
    pub(crate) unsafe fn remove(&self, number: u32) {
        let (page, index) = place(number);
        let Some(page) = self.pages.get(page) else { return };
        // SAFETY: a page, or null; the record is nobody's by the contract.
        unsafe {
            if let Some(page) = page.load(Ordering::Acquire).as_ref() {
                drop_record(page[index].swap(ptr::null_mut(), Ordering::AcqRel));
            }
        }
    }

    /// Returns all records.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        // SAFETY: as in `get`.
        let pages = self.pages.iter().filter_map(|p| unsafe { p.load(Ordering::Acquire).as_ref() });
        // SAFETY: as in `get`.
        pages.flatten().filter_map(|record| unsafe { record.load(Ordering::Acquire).as_ref() })
    }
}

/// # Safety
/// `record` is null, or a record that nobody uses.
unsafe fn drop_record<T>(record: *mut T) {
    if !record.is_null() {
        // SAFETY: it came from a box.
        drop(unsafe { Box::from_raw(record) });
    }
}

impl<T> Drop for Table<T> {
    fn drop(&mut self) {
        for page in &mut self.pages {
            let page = *page.get_mut();
            if !page.is_null() {
                // SAFETY: it came from a box, and the table is nobody else's.
                for record in unsafe { *Box::from_raw(page) } {
                    // SAFETY: as above.
                    unsafe { drop_record(record.into_inner()) }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    #[test]
    fn records_by_number() {
        let (table, record) = (Table::new(), Rc::new(()));
        for number in [0, 0xfff, 0x1000, 0xff_ffff] {
            assert!(table.get(number).is_none());
            assert!(table.insert(number, Box::new((number, Rc::clone(&record)))).is_some());
            assert_eq!(table.get(number).map(|found| found.0), Some(number));
        }
        assert!(table.insert(0x100_0000, Box::new((7, Rc::clone(&record)))).is_none());
        assert!(table.get(0x100_0000).is_none(), "not that of number 0");
        assert_eq!((table.iter().count(), Rc::strong_count(&record)), (4, 5));
        // SAFETY: nobody else has the table.
        unsafe { table.remove(0x1000) };
        assert!(table.get(0x1000).is_none());
        assert_eq!(Rc::strong_count(&record), 4);
        table.insert(0, Box::new((1, Rc::clone(&record))));
        assert_eq!(Rc::strong_count(&record), 4, "the old record of the number is dropped");
        drop(table);
        assert_eq!(Rc::strong_count(&record), 1);
    }
}
