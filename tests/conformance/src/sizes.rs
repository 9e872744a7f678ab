//! Sizes of the memory of a session.

use mlx5_wire::tmh::{Rvh, Tmh};

/// Bytes of memory that scatter lists of the ring layer name.
pub const ARENA: u32 = 16 * 1024;
/// Bytes of a buffer of the safe layer.
pub const BUFFER: u32 = 1024;
/// Longest message.
pub const LONGEST: u32 = 4000;

/// Bytes that peers send from.
pub const SOURCE: usize = 2048 + LONGEST as usize;

/// Headers that peers send: each stays until as many more were written as there are places.
pub const HEADER: usize = Tmh::SIZE + Rvh::SIZE;
pub const HEADERS: usize = 4096 * HEADER;
