//! A table of two levels, indexed by QP number.

/// QP numbers have 24 bits; a page of the table covers the lower 12.
const PAGE_BITS: u32 = 12;
const PAGE: usize = 1 << PAGE_BITS;

type Page<T> = Box<[Option<T>; PAGE]>;

/// A value for each QP number: no hashing, two loads for a look-up. A page without numbers is freed, and the list of
/// pages ends with the last one that has some, so numbers that come and go leave nothing.
pub(crate) struct Routes<T> {
    pages: Vec<Option<Page<T>>>,
}

impl<T> Default for Routes<T> {
    fn default() -> Self {
        Self { pages: Vec::new() }
    }
}

impl<T> Routes<T> {
    /// Enters a number, in place of what it had before.
    pub(crate) fn insert(&mut self, number: u32, value: T) {
        let (page, place) = split(number);
        if page >= self.pages.len() {
            self.pages.resize_with(page + 1, || None);
        }
        let page = self.pages[page].get_or_insert_with(|| Box::new([const { None }; PAGE]));
        page[place] = Some(value);
    }

    /// Removes a number; returns its value.
    pub(crate) fn remove(&mut self, number: u32) -> Option<T> {
        let (at, place) = split(number);
        let page = self.pages.get_mut(at)?.as_mut()?;
        let value = page[place].take()?;
        if page.iter().all(Option::is_none) {
            self.pages[at] = None;
            let used = self.pages.iter().rposition(Option::is_some);
            self.pages.truncate(used.map_or(0, |last| last + 1));
            self.pages.shrink_to_fit();
        }
        Some(value)
    }

    /// Returns the value of a number.
    #[inline(always)]
    pub(crate) fn find(&self, number: u32) -> Option<&T> {
        let (page, place) = split(number);
        self.pages.get(page)?.as_ref()?[place].as_ref()
    }

    /// Returns every value.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.pages.iter_mut().flatten().flat_map(|page| page.iter_mut()).flatten()
    }
}

/// Returns the page of a number, and its place there.
#[inline(always)]
const fn split(number: u32) -> (usize, usize) {
    ((number >> PAGE_BITS) as usize, number as usize % PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_was_inserted_and_nothing_else() {
        let mut routes = Routes::default();
        assert_eq!(routes.find(0xff_ffff), None);
        routes.insert(0x118, 0);
        routes.insert(0xff_ffff, 7);
        assert_eq!(routes.find(0x118), Some(&0));
        assert_eq!(routes.find(0x119), None);
        assert_eq!(routes.find(0x1118), None);
        assert_eq!(routes.find(0xff_ffff), Some(&7));
        assert_eq!(routes.remove(0x118), Some(0));
        assert_eq!(routes.find(0x118), None);
        assert_eq!(routes.remove(0x118), None);
    }

    #[test]
    fn numbers_that_come_and_go_leave_nothing() {
        let mut routes = Routes::default();
        for number in (0..1 << 24).step_by(1000) {
            routes.insert(number, 0);
            routes.insert(number, 1);
            assert_eq!((routes.remove(number), routes.remove(number)), (Some(1), None));
        }
        assert_eq!(routes.pages.capacity(), 0);
        routes.insert(5000, 0);
        routes.insert(0xff_ffff, 1);
        assert_eq!((routes.remove(0xff_ffff), routes.find(5000)), (Some(1), Some(&0)));
        assert_eq!(routes.pages.len(), 2);
    }
}
