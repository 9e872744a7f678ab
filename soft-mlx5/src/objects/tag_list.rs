//! The tag list: posted entries in the order of their posting, and the phase counters that decide
//! whether new ones may match.

use super::scatter::ScatterList;

/// Receive WQEs that must have been posted before an adapter takes messages.
pub const MIN_POSTED: u16 = 33;

/// State of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    // The message has arrived; software may not know it yet.
    Ended,
    Posted,
    // The message is arriving, or being read.
    Matched,
}

#[derive(Debug)]
struct Entry {
    state: State,
    // Posted while the counters agreed, or they have agreed since.
    enabled: bool,
    tag: u64,
    mask: u64,
    buffer: ScatterList,
}

impl Entry {
    fn is_unused(&self) -> bool {
        matches!(self.state, State::Free | State::Ended)
    }
}

/// An operation names an entry that it may not name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadIndex;

/// A list of tags.
#[derive(Debug)]
pub struct TagList {
    entries: Box<[Entry]>,
    // Posted entries, oldest first.
    order: Vec<u16>,
    // Entry of the next append: announced by the one before it.
    next: u16,
    // The youngest entry that matches is taken, and masks are ignored: defects.
    youngest: bool,
    exact: bool,
    // Unexpected messages: as counted by the device, and as handled according to software.
    hw_phase: u16,
    sw_phase: u16,
}

impl TagList {
    /// Makes a list for `max_tags` posted tags: it has one entry more, which is always free.
    pub fn new(max_tags: u16) -> Self {
        let entry = || Entry { state: State::Free, enabled: false, tag: 0, mask: 0, buffer: ScatterList::default() };
        Self {
            entries: std::iter::repeat_with(entry).take(usize::from(max_tags) + 1).collect(),
            order: Vec::new(),
            next: 0,
            youngest: false,
            exact: false,
            hw_phase: 0,
            sw_phase: 0,
        }
    }

    /// Returns the number of unexpected messages so far, modulo 2^16.
    pub fn hw_phase(&self) -> u16 {
        self.hw_phase
    }

    /// Returns the number of unexpected messages that software has handled, modulo 2^16.
    pub fn sw_phase(&self) -> u16 {
        self.sw_phase
    }

    /// Returns the entry of the next append.
    pub fn next(&self) -> u16 {
        self.next
    }

    /// Counts a message with a tag that matched no entry: entries posted from now on wait for software.
    pub fn count_unexpected(&mut self) {
        self.hw_phase = self.hw_phase.wrapping_add(1);
    }

    /// Notes that software has handled `count` unexpected messages. Returns `false` if there were not so many, or if
    /// software has reported more before.
    pub fn synchronize(&mut self, count: u16) -> bool {
        let forward = count.wrapping_sub(self.sw_phase) as i16 >= 0;
        if !forward || count.wrapping_sub(self.hw_phase) as i16 > 0 {
            return false;
        }
        self.sw_phase = count;
        if self.in_phase() {
            for index in &self.order {
                self.entries[usize::from(*index)].enabled = true;
            }
        }
        true
    }

    fn in_phase(&self) -> bool {
        self.sw_phase == self.hw_phase
    }

    /// Adds the entry that was announced, and announces `next`; returns the index of the entry.
    pub fn append(&mut self, next: u16, tag: u64, mask: u64, buffer: ScatterList) -> Result<u16, BadIndex> {
        let index = self.next;
        let announced = self.entries.get(usize::from(next)).ok_or(BadIndex)?;
        if !announced.is_unused() || next == index {
            return Err(BadIndex);
        }
        let enabled = self.in_phase();
        self.entries[usize::from(index)] = Entry { state: State::Posted, enabled, tag, mask, buffer };
        self.order.push(index);
        self.next = next;
        Ok(index)
    }

    /// Takes a posted entry out; returns `false` if a message was faster. Software may name only an entry that was
    /// appended and not removed since.
    pub fn remove(&mut self, index: u16) -> Result<bool, BadIndex> {
        let entry = self.entries.get_mut(usize::from(index)).ok_or(BadIndex)?;
        match entry.state {
            State::Posted => {}
            State::Matched | State::Ended => return Ok(false),
            State::Free => return Err(BadIndex),
        }
        entry.state = State::Free;
        self.order.retain(|posted| *posted != index);
        Ok(true)
    }

    /// Lets the list break its rules: [defects](super::defects).
    #[cold]
    pub fn break_rules(&mut self, youngest: bool, exact: bool) {
        (self.youngest, self.exact) = (youngest, exact);
    }

    fn position(&self, tag: u64) -> Option<usize> {
        let matches = |index: &u16| {
            let entry = &self.entries[usize::from(*index)];
            let mask = if self.exact { u64::MAX } else { entry.mask };
            entry.enabled && (entry.tag ^ tag) & mask == 0
        };
        if self.youngest {
            return self.order.iter().rposition(matches);
        }
        self.order.iter().position(matches)
    }

    /// Returns the oldest entry that a message with this tag matches.
    pub fn find(&self, tag: u64) -> Option<u16> {
        self.position(tag).map(|at| self.order[at])
    }

    /// Gives the oldest entry with this tag to a message.
    pub fn take(&mut self, tag: u64) -> Option<u16> {
        let at = self.position(tag)?;
        let index = self.order.remove(at);
        self.entries[usize::from(index)].state = State::Matched;
        Some(index)
    }

    /// Returns the buffer for an entry's message.
    pub fn buffer(&mut self, index: u16) -> &mut ScatterList {
        &mut self.entries[usize::from(index)].buffer
    }

    /// Releases a matched entry after its last CQE: software may use it again.
    pub fn release(&mut self, index: u16) {
        self.entries[usize::from(index)].state = State::Ended;
    }
}

#[cfg(test)]
mod tests;
