//! Records by number: two levels, no hashing.

use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::places::Places;

/// A record of an object.
pub(crate) trait Record: Sized + 'static {
    /// Places of the records of this type, and the object of this one.
    fn place(&self) -> Option<(&'static Places<Self>, *mut c_void)>;
}

const BITS: u32 = 12;
const COUNT: usize = 1 << BITS;

type Page<T> = [AtomicPtr<T>; COUNT];

/// Records by a number of 24 bits: that of a queue pair, or the kernel's handle of an object. Any thread may look up a
/// record, while others insert and take some: it is the caller who knows that no thread uses a record that it drops.
pub(crate) struct Table<T: Record> {
    pages: Box<Page<Page<T>>>,
}

const fn place(number: u32) -> (usize, usize) {
    ((number >> BITS) as usize, number as usize & (COUNT - 1))
}

impl<T: Record> Table<T> {
    pub(crate) fn new() -> Self {
        Self { pages: Box::new([const { AtomicPtr::new(ptr::null_mut()) }; COUNT]) }
    }

    /// Returns the record with this number.
    ///
    /// # Safety
    /// The record is not dropped during `'a`, if it is [taken](Self::take).
    #[inline(always)]
    pub(crate) unsafe fn get<'a>(&self, number: u32) -> Option<&'a T> {
        let (page, index) = place(number);
        // SAFETY: a page goes with the table, and the record stays.
        unsafe {
            let page = self.pages.get(page)?.load(Ordering::Acquire).as_ref()?;
            page[index].load(Ordering::Acquire).as_ref()
        }
    }

    /// Puts a record in, in the place of one that the number had. Gives it back if the number has more than 24 bits.
    pub(crate) fn insert(&self, number: u32, record: Box<T>) -> Result<(), Box<T>> {
        let (page, index) = place(number);
        let Some(page) = self.pages.get(page) else { return Err(record) };
        if page.load(Ordering::Acquire).is_null() {
            let fresh: Box<Page<T>> = Box::new([const { AtomicPtr::new(ptr::null_mut()) }; COUNT]);
            let (fresh, none) = (Box::into_raw(fresh), ptr::null_mut());
            let (order, failed) = (Ordering::AcqRel, Ordering::Relaxed);
            if page.compare_exchange(none, fresh, order, failed).is_err() {
                // Another thread was faster.
                // SAFETY: `fresh` came from a box just now.
                drop(unsafe { Box::from_raw(fresh) });
            }
        }
        // SAFETY: a page goes with the table; a record comes from a box.
        unsafe {
            let page = &*page.load(Ordering::Acquire);
            let place = record.place();
            let record = Box::into_raw(record);
            drop_box(page[index].swap(record, Ordering::AcqRel));
            if let Some((places, object)) = place {
                places.insert(object, record);
            }
        }
        Ok(())
    }

    /// Takes a record out.
    pub(crate) fn take(&self, number: u32) -> Option<Box<T>> {
        let (page, index) = place(number);
        // SAFETY: a page goes with the table; a record comes from a box.
        unsafe {
            let page = self.pages.get(page)?.load(Ordering::Acquire).as_ref()?;
            let record = page[index].swap(ptr::null_mut(), Ordering::AcqRel);
            (!record.is_null()).then(|| without_place(record))
        }
    }
}

/// Returns a record that nothing finds by its object any more.
///
/// # Safety
/// `record` came from a box, and no code uses it.
unsafe fn without_place<T: Record>(record: *mut T) -> Box<T> {
    // SAFETY: it came from a box, and no code uses it.
    let record = unsafe { Box::from_raw(record) };
    if let Some((places, object)) = record.place() {
        places.remove(object);
    }
    record
}

/// # Safety
/// `record` is null or came from a box, and no code uses it.
unsafe fn drop_box<T: Record>(record: *mut T) {
    if !record.is_null() {
        // SAFETY: it came from a box, and no code uses it.
        drop(unsafe { without_place(record) });
    }
}

impl<T: Record> Drop for Table<T> {
    fn drop(&mut self) {
        for page in self.pages.iter_mut().map(|page| *page.get_mut()).filter(|page| !page.is_null()) {
            // SAFETY: pages and records came from boxes, and no other code has the table.
            unsafe { Box::from_raw(page).iter_mut().for_each(|record| drop_box(*record.get_mut())) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;
    use std::sync::Barrier;
    use std::thread;

    impl Record for u32 {
        fn place(&self) -> Option<(&'static Places<Self>, *mut c_void)> {
            None
        }
    }

    impl Record for (u32, Rc<()>) {
        fn place(&self) -> Option<(&'static Places<Self>, *mut c_void)> {
            None
        }
    }

    #[test]
    fn records_by_number() {
        let (table, record) = (Table::new(), Rc::new(()));
        // SAFETY: a record is used before it is taken.
        let number_of = |number| unsafe { table.get(number) }.map(|found: &(u32, Rc<()>)| found.0);
        for number in [0, 0xfff, 0x1000, 0xff_ffff] {
            assert!(number_of(number).is_none());
            assert!(table.insert(number, Box::new((number, Rc::clone(&record)))).is_ok());
            assert_eq!(number_of(number), Some(number));
        }
        assert!(table.insert(0x100_0000, Box::new((7, Rc::clone(&record)))).is_err());
        assert!(number_of(0x100_0000).is_none(), "not that of number 0");
        assert_eq!(table.take(0x1000).map(|taken| taken.0), Some(0x1000));
        assert!(number_of(0x1000).is_none() && table.take(0x1000).is_none());
        assert!(table.insert(0, Box::new((1, Rc::clone(&record)))).is_ok());
        assert_eq!((number_of(0), Rc::strong_count(&record)), (Some(1), 4));
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
                        assert!(table.insert(number, Box::new(number)).is_ok());
                    });
                }
            });
            // SAFETY: no record is taken.
            let found = [1, 2].map(|number| unsafe { table.get(number) }.copied());
            assert_eq!(found, [Some(1), Some(2)]);
        }
    }
}
