//! The buffers that tests post, and who has each of them.

use mlx5_ring::sge::Sge;

use super::memory::Memory;

/// Bytes of a buffer; the entries of its scatter list lie in it one after the other.
pub const BUFFER: usize = 160;
const LKEY: u32 = 0x1234_0000;
const FILL: u8 = 0xaa;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// It can be posted.
    Test,
    /// It was given to the ring.
    Ring,
    /// The device took a WQE that names it from this slot.
    Device(u32),
    /// A message with it has arrived and was not given back.
    Held,
}

#[derive(Clone, Copy, Debug)]
struct Buffer {
    owner: Owner,
    lengths: [u8; 6],
    count: u8,
}

#[derive(Debug)]
pub struct Buffers {
    arena: Memory,
    list: Vec<Buffer>,
}

impl Buffers {
    pub fn new(count: u32) -> Self {
        let buffer = Buffer { owner: Owner::Test, lengths: [0; 6], count: 0 };
        Self { arena: Memory::new(count as usize * BUFFER), list: vec![buffer; count as usize] }
    }

    pub fn count(&self) -> u32 {
        self.list.len() as u32
    }

    pub fn owner(&self, id: u32) -> Owner {
        self.list[id as usize].owner
    }

    pub fn set_owner(&mut self, id: u32, from: &[Owner], to: Owner) {
        let owner = &mut self.list[id as usize].owner;
        assert!(from.contains(owner), "buffer {id} is at {owner:?}, not {from:?}");
        *owner = to;
    }

    pub fn with(&self, owner: impl Fn(Owner) -> bool) -> u32 {
        self.list.iter().filter(|b| owner(b.owner)).count() as u32
    }

    /// A buffer to post, from `hint` on.
    pub fn free(&self, hint: u32) -> Option<u32> {
        let n = self.count();
        (0..n).map(|i| (hint + i) % n).find(|&id| self.owner(id) == Owner::Test)
    }

    /// Chooses the scatter list with which buffer `id` is posted next.
    pub fn shape(&mut self, id: u32, count: usize, seed: u32) -> Vec<Sge> {
        let buffer = &mut self.list[id as usize];
        buffer.count = count as u8;
        for (i, length) in buffer.lengths.iter_mut().enumerate() {
            let bits = seed.rotate_left(i as u32 * 5) ^ id;
            *length = if bits % 7 == 0 { 0 } else { (bits % 25) as u8 };
        }
        self.sges(id)
    }

    /// The scatter list of `id`.
    pub fn sges(&self, id: u32) -> Vec<Sge> {
        let buffer = self.list[id as usize];
        let mut addr = self.arena.ptr::<u8>().as_ptr() as u64 + u64::from(id) * BUFFER as u64;
        let mut list = Vec::new();
        for &length in &buffer.lengths[..buffer.count.into()] {
            list.push(Sge { addr, length: length.into(), lkey: LKEY + id });
            addr += u64::from(length);
        }
        list
    }

    /// The data segments of a WQE of `max_sge` that posts `id`, as `mlx5_wqe_data_seg` lays them out, up to
    /// and with the terminator.
    pub fn segments(&self, id: u32, max_sge: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        for sge in self.sges(id).iter().filter(|sge| sge.length > 0) {
            bytes.extend(sge.length.to_be_bytes());
            bytes.extend(sge.lkey.to_be_bytes());
            bytes.extend(sge.addr.to_be_bytes());
        }
        if bytes.len() < max_sge * 16 {
            bytes.extend([0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        }
        bytes
    }

    /// The buffer that a WQE with these segments names, if it names one.
    pub fn identify(&self, segments: &[u8]) -> Option<u32> {
        let lkey = u32::from_be_bytes(segments[4..8].try_into().unwrap());
        let id = (lkey != 0x100).then(|| lkey.wrapping_sub(LKEY));
        assert!(id.is_none_or(|id| id < self.count()), "no buffer has lkey {lkey:#x}");
        id
    }

    pub fn clear(&self, id: u32) {
        self.arena.fill(id as usize * BUFFER, BUFFER, FILL);
    }

    /// The buffer holds `payload`, as far as its list has room, and nothing else was written.
    pub fn check_payload(&self, id: u32, payload: &[u8]) {
        let mut expected = [FILL; BUFFER];
        let room: u32 = self.sges(id).iter().map(|sge| sge.length).sum();
        let len = payload.len().min(room as usize);
        expected[..len].copy_from_slice(&payload[..len]);
        assert_eq!(self.arena.array::<BUFFER>(id as usize * BUFFER), expected, "buffer {id}");
    }
}
