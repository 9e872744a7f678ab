//! Commands to a uverbs device, and how they stand in the input of a fuzzer.

/// `RDMA_VERBS_IOCTL`.
pub const VERBS_IOCTL: u64 = 0xc018_1b01;
/// Bytes that a pointer of an attribute leads to, at most.
pub const MAX_POINTED: usize = 160;
/// Bytes of a written command, at most.
pub const MAX_WRITTEN: usize = 1024;

/// Begins an operation, see [`crate::commands::run`].
pub mod op {
    /// `object: u16, method: u16, attributes: u8`, then the attributes.
    pub const IOCTL: u8 = 0;
    /// `length: u16`, then the bytes.
    pub const WRITE: u8 = 1;
    /// `offset: u32` in pages, `pages: u8`, `flags: u8`.
    pub const MMAP: u8 = 2;
    /// The device works.
    pub const STEP: u8 = 3;
    /// `offset: u32` in the arena, `value: u64`.
    pub const POKE: u8 = 4;
    /// `offset: u16`, `value: u64`: into the page that was mapped last.
    pub const REGISTER: u8 = 5;
    /// Number of operations.
    pub const COUNT: u8 = 6;
}

/// What an attribute holds: after `id: u16, len: u16, flags: u8`.
pub mod attr {
    /// `u64`: the number itself.
    pub const PLAIN: u8 = 0;
    /// The address of so many bytes, which follow (at most [`MAX_POINTED`](super::MAX_POINTED)).
    pub const POINTER: u8 = 1;
    /// `u8`: an address where nothing is.
    pub const WILD: u8 = 2;
    /// Number of kinds.
    pub const COUNT: u8 = 3;
}

/// An attribute of an `ioctl` (`struct ib_uverbs_attr`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Attr {
    /// Which.
    pub id: u16,
    /// Bytes of the value.
    pub len: u16,
    /// `UVERBS_ATTR_F_*`.
    pub flags: u16,
    /// What only enumerations have.
    pub special: u16,
    /// The value, or where it is.
    pub data: u64,
}

/// What stands in front of the attributes (`struct ib_uverbs_ioctl_hdr`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Header {
    /// Bytes of the command.
    pub length: u16,
    /// Kind of object.
    pub object: u16,
    /// What to do with it.
    pub method: u16,
    /// Attributes that follow.
    pub num_attrs: u16,
    /// Zero.
    pub reserved1: u64,
    /// `RDMA_DRIVER_MLX5` is 1.
    pub driver_id: u32,
    /// Zero.
    pub reserved2: u32,
}
