//! Records by number: two levels, no hashing.

use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

const BITS: u32 = 12;
const COUNT: usize = 1 << BITS;

type Page<T> = [AtomicPtr<T>; COUNT];

/// Pages without a record are this one, whatever their type.
static EMPTY: Page<()> = [const { AtomicPtr::new(ptr::null_mut()) }; COUNT];

/// Returns the page that is written where none was made.
const fn empty<T>() -> *mut Page<T> {
    (&raw const EMPTY).cast_mut().cast()
}

/// Records by a number of 24 bits: that of a queue pair, or the kernel's handle of an object.
pub(crate) struct Table<T> {
    pages: Box<[AtomicPtr<Page<T>>; COUNT]>,
}

const fn place(number: u32) -> (usize, usize) {
    ((number >> BITS) as usize, number as usize & (COUNT - 1))
}

impl<T> Table<T> {
    pub(crate) fn new() -> Self {
        Self { pages: Box::new([const { AtomicPtr::new(empty()) }; COUNT]) }
    }

    /// Returns the record with this number.
    #[inline(always)]
    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        let (page, index) = place(number);
        let page = self.pages.get(page)?.load(Ordering::Acquire);
        // SAFETY: a page goes with the table, and a record once no code uses it, which `remove` asks for.
        unsafe { (*page)[index].load(Ordering::Acquire).as_ref() }
    }

    /// Puts a record in; returns `None` if the number has more than 24 bits.
    pub(crate) fn insert(&self, number: u32, record: Box<T>) -> Option<&T> {
        let (page, index) = place(number);
        let slot = self.pages.get(page)?;
        if slot.load(Ordering::Acquire) == empty() {
            let fresh: Box<Page<T>> = Box::new([const { AtomicPtr::new(ptr::null_mut()) }; COUNT]);
            let fresh = Box::into_raw(fresh);
            let (order, failed) = (Ordering::AcqRel, Ordering::Acquire);
            if slot.compare_exchange(empty(), fresh, order, failed).is_err() {
                // Another thread was faster.
                // SAFETY: `fresh` came from a box just now.
                drop(unsafe { Box::from_raw(fresh) });
            }
        }
        // SAFETY: a page goes with the table.
        let page = unsafe { &*slot.load(Ordering::Acquire) };
        let record = Box::into_raw(record);
        // The kernel may give the number of an object away before its record is removed: `remove` drops that.
        page[index].store(record, Ordering::Release);
        // SAFETY: a record is dropped once no code uses it, by the contract of `remove`.
        Some(unsafe { &*record })
    }

    /// Drops a record, and leaves another one that has its number by now.
    ///
    /// # Safety
    /// `record` was inserted with this number and not removed, and no code uses it, or will find it from now on.
    pub(crate) unsafe fn remove(&self, number: u32, record: *const T) {
        let (page, index) = place(number);
        let Some(page) = self.pages.get(page) else { return };
        let (order, failed) = (Ordering::AcqRel, Ordering::Relaxed);
        let (record, none) = (record.cast_mut(), ptr::null_mut());
        // SAFETY: a page, which is freed with the table only; no code uses the record.
        unsafe {
            let page = &*page.load(Ordering::Acquire);
            let _ = page[index].compare_exchange(record, none, order, failed);
            drop_record(record);
        }
    }

    /// Returns all records.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        let pages = self.pages.iter().map(|page| page.load(Ordering::Acquire));
        // SAFETY: a page goes with the table.
        let pages = pages.filter(|page| *page != empty()).map(|page| unsafe { &*page });
        // SAFETY: a record goes once no code uses it, which `remove` asks for.
        pages.flatten().filter_map(|record| unsafe { record.load(Ordering::Acquire).as_ref() })
    }
}

/// Frees a record, unless it is null.
///
/// # Safety
/// `record` is null, or a record of a table that no code uses.
unsafe fn drop_record<T>(record: *mut T) {
    if !record.is_null() {
        // SAFETY: no code uses the record, which came from a box.
        drop(unsafe { Box::from_raw(record) });
    }
}

impl<T> Drop for Table<T> {
    fn drop(&mut self) {
        for page in self.pages.iter_mut() {
            let page = *page.get_mut();
            if page != empty() {
                // SAFETY: the page came from a box, and no other code has the table.
                for record in unsafe { Box::from_raw(page) }.iter_mut() {
                    // SAFETY: no other code has the table, so none uses the record.
                    unsafe { drop_record(*record.get_mut()) }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;
    use std::sync::Barrier;
    use std::thread;

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
        let gone = ptr::from_ref(table.get(0x1000).unwrap());
        // SAFETY: no other code has the table.
        unsafe { table.remove(0x1000, gone) };
        assert!(table.get(0x1000).is_none());
        assert_eq!(Rc::strong_count(&record), 4);
        let old = ptr::from_ref(table.get(0).unwrap());
        table.insert(0, Box::new((1, Rc::clone(&record))));
        assert_eq!(Rc::strong_count(&record), 5, "the old record is in use");
        // SAFETY: no other code has the table.
        unsafe { table.remove(0, old) };
        assert_eq!(Rc::strong_count(&record), 4);
        assert_eq!(table.get(0).map(|found| found.0), Some(1), "the new one stays");
        drop(table);
        assert_eq!(Rc::strong_count(&record), 1);
    }

    #[test]
    fn first_records_of_two_threads() {
        for _ in 0..200 {
            let (table, both) = (Table::new(), Barrier::new(2));
            thread::scope(|scope| {
                for number in [1, 2] {
                    let (table, both) = (&table, &both);
                    scope.spawn(move || {
                        both.wait();
                        assert!(table.insert(number, Box::new(number)).is_some());
                    });
                }
            });
            assert_eq!([1, 2].map(|number| table.get(number).copied()), [Some(1), Some(2)]);
        }
    }
}
