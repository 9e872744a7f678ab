//! Memory that peers write is never a slice, and memory of the program's needs a promise.

use std::ptr::NonNull;

use doorbell::{BufferPool, PoolConfig, ProtectionDomain, MemoryRegion, StableMemory};

pub fn right(memory: &MemoryRegion) -> [u8; 4] {
    let mut bytes = [0; 4];
    memory.read(0, &mut bytes);
    bytes
}

pub fn as_a_slice(memory: &MemoryRegion) -> &[u8] {
    memory //~ E0308
}

pub fn by_index(memory: &MemoryRegion) -> u8 {
    memory[0] //~ E0608
}

pub fn borrowed(pd: &ProtectionDomain) {
    let mut array = [0u8; 4096];
    let _ = BufferPool::from_memory(pd, &mut array[..], &PoolConfig::new(u32::MAX, 64)); //~ E0277
}

pub struct Mine(Vec<u8>);

impl StableMemory for Mine { //~ E0200
    fn memory(&mut self) -> (NonNull<u8>, usize) {
        self.0.memory()
    }
}
