//! Which queue a completion belongs to, by the number of its QP.

/// QP numbers have 24 bits; a page of the table covers the lower 12.
const PAGE_BITS: u32 = 12;
const PAGE: usize = 1 << PAGE_BITS;
const NONE: u32 = u32::MAX;

/// A table of two levels, indexed by QP number: no hashing, two loads for a look-up.
#[derive(Default)]
pub(crate) struct Routes {
    pages: Vec<Option<Box<Page>>>,
}

struct Page {
    queues: [u32; PAGE],
    /// Entries that name a queue: a page without any is freed.
    used: u32,
}

impl Routes {
    pub(crate) fn insert(&mut self, qpn: u32, queue: u32) {
        let page = (qpn >> PAGE_BITS) as usize;
        if page >= self.pages.len() {
            self.pages.resize_with(page + 1, || None);
        }
        let page = self.pages[page]
            .get_or_insert_with(|| Box::new(Page { queues: [NONE; PAGE], used: 0 }));
        let before = std::mem::replace(&mut page.queues[qpn as usize % PAGE], queue);
        page.used += u32::from(before == NONE);
    }

    pub(crate) fn remove(&mut self, qpn: u32) {
        let Some(place) = self.pages.get_mut((qpn >> PAGE_BITS) as usize) else { return };
        let Some(page) = place else { return };
        let before = std::mem::replace(&mut page.queues[qpn as usize % PAGE], NONE);
        page.used -= u32::from(before != NONE);
        if page.used == 0 {
            *place = None;
        }
    }

    #[inline]
    pub(crate) fn find(&self, qpn: u32) -> Option<u32> {
        let page = self.pages.get((qpn >> PAGE_BITS) as usize)?.as_ref()?;
        let queue = page.queues[qpn as usize % PAGE];
        (queue != NONE).then_some(queue)
    }
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
        assert_eq!(routes.find(0x118), Some(0));
        assert_eq!(routes.find(0x119), None);
        assert_eq!(routes.find(0x1118), None);
        assert_eq!(routes.find(0xff_ffff), Some(7));
        routes.remove(0x118);
        assert_eq!(routes.find(0x118), None);
    }

    #[test]
    fn pages_of_numbers_that_have_come_and_gone_are_freed() {
        let mut routes = Routes::default();
        routes.insert(5, 1);
        for qpn in 0..100_000 {
            routes.insert(qpn, 0);
            routes.insert(qpn, 1);
            routes.remove(qpn);
            routes.remove(qpn);
        }
        assert!(routes.pages.iter().all(Option::is_none));
    }
}
