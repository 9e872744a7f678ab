//! Memory of a UMEM.

use std::sync::Arc;

use super::refusal::Refusal;
use crate::objects::memory::{PageList, Space};

/// Memory that a user gave for its queues.
#[derive(Debug, Clone)]
pub enum Umem {
    /// Pages of a host.
    Pages(Arc<PageList>),
    /// Memory of this process.
    Process {
        /// First byte.
        addr: u64,
        /// Bytes.
        len: u64,
    },
}

impl Umem {
    /// Returns the space and the address of `len` bytes at an offset.
    pub fn place(&self, offset: u64, len: u64) -> Result<(Space, u64), Refusal> {
        let end = offset.checked_add(len).ok_or(Refusal::UMEM_RANGE)?;
        match self {
            Self::Pages(pages) if end <= pages.len() => Ok((Space::Pages(pages.clone()), offset)),
            Self::Process { addr, len } if end <= *len => Ok((Space::Process, addr + offset)),
            _ => Err(Refusal::UMEM_RANGE),
        }
    }
}
