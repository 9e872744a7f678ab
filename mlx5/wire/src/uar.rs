//! User access region: the page of device registers that a process may write.

/// Offset of the CQ doorbell in a UAR page (`MLX5_CQ_DOORBELL`).
pub const CQ_DOORBELL: usize = 0x20;
/// Offset of the first BlueFlame register in a UAR page.
pub const BLUE_FLAME: usize = 0x800;
/// Offset of the EQ doorbell that moves the consumer index and arms (`MLX5_EQ_DOORBEL_OFFSET`).
pub const EQ_ARM: usize = 0x40;
/// Offset of the EQ doorbell that only moves the consumer index.
pub const EQ_UPDATE: usize = 0x48;
