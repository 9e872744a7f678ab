//! Which queue a completion belongs to, by the number of its QP.

/// QP numbers have 24 bits; a page of the table covers the lower 12.
const PAGE_BITS: u32 = 12;
const PAGE: usize = 1 << PAGE_BITS;
const NONE: u32 = u32::MAX;

/// A table of two levels, indexed by QP number: no hashing, two loads for a look-up.
#[derive(Default)]
pub(crate) struct Routes {
    pages: Vec<Option<Box<[u32; PAGE]>>>,
}

impl Routes {
    pub(crate) fn insert(&mut self, qpn: u32, queue: u32) {
        let page = (qpn >> PAGE_BITS) as usize;
        if page >= self.pages.len() {
            self.pages.resize_with(page + 1, || None);
        }
        let page = self.pages[page].get_or_insert_with(|| Box::new([NONE; PAGE]));
        page[qpn as usize % PAGE] = queue;
    }

    pub(crate) fn remove(&mut self, qpn: u32) {
        if let Some(Some(page)) = self.pages.get_mut((qpn >> PAGE_BITS) as usize) {
            page[qpn as usize % PAGE] = NONE;
        }
    }

    #[inline]
    pub(crate) fn find(&self, qpn: u32) -> Option<u32> {
        let page = self.pages.get((qpn >> PAGE_BITS) as usize)?.as_ref()?;
        let queue = page[qpn as usize % PAGE];
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
}
