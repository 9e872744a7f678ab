//! Memory that the device reaches by a key and by addresses of its own.

use std::ffi::c_int;
use std::ptr;

use rdma_core_sys as sys;

use crate::base::Base;
use crate::memory::{Memory, Region};
use crate::tally::{self, Tally};
use crate::verbs::{init_obj, made};

/// How memory is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// `ibv_reg_mr`, at the address of the process.
    Ordinary,
    /// `ibv_reg_dmabuf_mr`, a part of a dma-buf.
    DmaBuf,
    /// `ibv_reg_mr_iova2`, at another address than that of the process.
    Translated,
    /// `ibv_alloc_dm`, memory of the adapter, whose addresses count from 0.
    Adapter,
}

/// A place of memory.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Where the process sees it.
    pub region: Region,
    /// Its address for the device.
    pub address: u64,
}

/// Address of the first byte for the device, of a dma-buf and of memory with an address of its own.
const IOVA: u64 = 1 << 41;

impl Backing {
    /// Takes turns: half of the sessions have ordinary memory.
    pub fn of_receives(turn: u64) -> Self {
        match turn % 6 {
            1 => Self::DmaBuf,
            3 => Self::Translated,
            5 => Self::Adapter,
            _ => Self::Ordinary,
        }
    }

    /// Takes turns of four sessions each.
    pub fn of_sends(number: u64) -> Self {
        [Self::Ordinary, Self::DmaBuf, Self::Translated, Self::Adapter][(number / 4 % 4) as usize]
    }

    /// Returns `true` if the process cannot use the address of the device: no payload may be in CQEs.
    pub fn is_opaque(self) -> bool {
        self != Self::Ordinary
    }

    /// Counts a request or message of this memory, and what it is.
    pub fn count(self, tally: &mut Tally, what: &'static str) {
        let of = match self {
            Self::Ordinary => return,
            Self::DmaBuf => tally::OPAQUE_DMA_BUF,
            Self::Translated => tally::OPAQUE_TRANSLATED,
            Self::Adapter => tally::OPAQUE_ADAPTER,
        };
        tally.add(of, 1);
        tally.add(what, 1);
    }
}

impl Base {
    /// Registers a region of `memory` once with each set of access flags. Memory of the adapter gets the region's
    /// bytes.
    pub fn register_as<const N: usize>(
        &mut self,
        pd: *mut sys::ibv_pd,
        backing: Backing,
        memory: &Memory,
        region: Region,
        access: [u32; N],
    ) -> (Place, [u32; N]) {
        let (start, len) = (region.start().cast(), region.len());
        let offset = region.address() - memory.start;
        let dm = if backing == Backing::Adapter { self.alloc_dm(pd, len) } else { ptr::null_mut() };
        let place = match backing {
            Backing::Ordinary => Place { region, address: region.address() },
            Backing::DmaBuf => Place { region, address: IOVA + offset },
            Backing::Translated => Place { region, address: IOVA },
            Backing::Adapter => Place { region: mapped(dm, len), address: 0 },
        };
        if backing == Backing::Adapter {
            place.region.write(&region.bytes(0, len));
        }
        let keys = access.map(|access| {
            // SAFETY: the domain and the memory of the adapter are alive, and the other memory outlives the twin.
            let mr = unsafe {
                match backing {
                    Backing::Ordinary => sys::ibv_reg_mr(pd, start, len, access),
                    Backing::DmaBuf => {
                        sys::ibv_reg_dmabuf_mr(pd, offset, len, place.address, memory.dma_buf, access as c_int)
                    }
                    Backing::Translated => sys::ibv_reg_mr_iova2(pd, start, len, place.address, access),
                    Backing::Adapter => sys::ibv_reg_dm_mr(pd, dm, 0, len, access | sys::IBV_ACCESS_ZERO_BASED),
                }
            };
            self.keep(made(mr, "registering memory"))
        });
        (place, keys)
    }
}

/// Where the process sees memory of the adapter.
fn mapped(dm: *mut sys::ibv_dm, len: usize) -> Region {
    // SAFETY: a structure of integers and pointers.
    let mut out: sys::mlx5dv_dm = unsafe { std::mem::zeroed() };
    init_obj(sys::MLX5DV_OBJ_DM, |obj| (obj.dm.in_, obj.dm.out) = (dm, &mut out));
    // SAFETY: libmlx5 has mapped it until it is freed, which is after the session; the device rests meanwhile.
    unsafe { Region::at(out.buf as u64, len) }
}
