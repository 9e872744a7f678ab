//! A receive in the list, as the session knows it.

use mlx5_ring::tag_list::Handle;

#[derive(Clone, Debug)]
pub struct Added {
    /// `wr_id` of the append and of the receive.
    pub id: u64,
    /// The handle that both doorbell and libmlx5 give it.
    pub handle: Handle,
    pub entry: u32,
    /// The count that libmlx5 notes for it, with more bits than the device has.
    pub their_count: u32,
    /// The count that doorbell notes for it.
    pub our_count: u16,
    /// The completion of the append is to come.
    pub adding: bool,
    /// The one of a remove is: its `wr_id`, and the count that it carries.
    pub removing: Option<(u64, u16)>,
    /// A message has matched, and its data is to come.
    pub matched: bool,
    /// The device does not have the buffer any more.
    pub over: bool,
}

impl Added {
    /// Whether no completion will name it again.
    pub fn is_done(&self) -> bool {
        self.over && !self.adding && self.removing.is_none()
    }

    /// Whether it can be removed, as far as completions have shown.
    pub fn can_be_removed(&self) -> bool {
        !self.over && !self.matched && self.removing.is_none()
    }
}
