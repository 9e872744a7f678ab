//! Buffers and their owners.

use core::ptr::NonNull;

use mlx5_wire::data::DataSegment;

use super::Arena;
use crate::sge::Sge;

/// Bytes of a buffer.
const SIZE: usize = 128;
const LKEY: u32 = 0x1234;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    Test,
    /// The queue with this number, or the device.
    Queue(usize),
    /// The code that took the completion.
    Held,
}

/// Memory of some buffers.
pub struct Buffers {
    base: NonNull<u8>,
    _arena: Arena,
}

/// The pieces of a buffer: how many, and how long they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape(pub u8);

impl Shape {
    /// One piece of all bytes.
    pub const WHOLE: Self = Self(u8::MAX);

    /// Lengths of the pieces, at most 7. Some are 0.
    fn lengths(self) -> impl Iterator<Item = u32> {
        let (count, first) = (self.0 & 7, self.0 >> 3);
        let length = move |i: u8| match self {
            Self::WHOLE => SIZE as u32,
            _ => [16, 5, 9, 0, 1, 16, 12][usize::from(first + i) % 7],
        };
        (0..if self == Self::WHOLE { 1 } else { count }).map(length)
    }
}

impl Buffers {
    pub fn new(count: usize) -> Self {
        let mut arena = Arena::default();
        Self { base: arena.cut(count * SIZE), _arena: arena }
    }

    fn at(&self, id: u32) -> NonNull<u8> {
        // SAFETY: the buffers exist that the ledger knows.
        unsafe { self.base.add(id as usize * SIZE) }
    }

    /// Returns the scatter list of a buffer.
    pub fn sges(&self, id: u32, shape: Shape) -> impl Iterator<Item = Sge> {
        let start = self.at(id).as_ptr().expose_provenance() as u64;
        let piece = move |(i, length)| Sge { addr: start + 16 * i as u64, length, lkey: LKEY };
        shape.lengths().enumerate().map(piece)
    }

    /// Returns the segments that a WQE of a buffer has.
    pub fn segments(&self, id: u32, shape: Shape) -> impl Iterator<Item = DataSegment> {
        let sges = self.sges(id, shape).filter(|sge| sge.length != 0);
        sges.map(|sge| DataSegment::new(sge.addr, sge.length, sge.lkey))
    }

    /// Fills a buffer with what no payload has.
    pub fn clear(&self, id: u32) {
        // SAFETY: a buffer.
        unsafe { self.at(id).write_bytes(0xee, SIZE) }
    }

    /// Checks that a cleared buffer has `len` bytes that count up from `first`, as far as they fit, and nothing else.
    pub fn check_payload(&self, id: u32, shape: Shape, len: u32, first: u8) {
        let mut expected = [0xee; SIZE];
        let mut payload = (0..len).map(|i| first.wrapping_add(i as u8));
        for (i, length) in shape.lengths().enumerate() {
            let to = &mut expected[16 * i..][..length as usize];
            to.iter_mut().zip(&mut payload).for_each(|(to, byte)| *to = byte);
        }
        // SAFETY: a buffer, which no code writes now.
        assert_eq!(unsafe { self.at(id).cast::<[u8; SIZE]>().read() }, expected, "buffer {id}");
    }
}
