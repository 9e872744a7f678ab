//! Mappings: of the program, as it asks for them, and of the device.

use std::os::fd::RawFd;
use std::{io, ptr};

use super::errno::ENOMEM;
use crate::objects::{Errno, Result};

/// A mapping of the uverbs descriptor.
#[derive(Debug, Clone, Copy)]
pub struct MapRequest {
    /// Offset given to mmap.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// `PROT_*`.
    pub protection: i32,
    /// `MAP_*`.
    pub flags: i32,
}

/// A shared mapping from the start of a file. It stays when the program closes the file.
#[derive(Debug)]
pub struct Mapping {
    addr: u64,
    len: usize,
}

impl Mapping {
    /// Maps `len` bytes of a file.
    pub fn new(file: RawFd, len: u64, writable: bool) -> Result<Self> {
        let len = usize::try_from(len).map_err(|_| ENOMEM)?;
        let rights = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        // SAFETY: a new mapping at an address that the kernel chooses.
        let memory = unsafe { libc::mmap(ptr::null_mut(), len, rights, libc::MAP_SHARED, file, 0) };
        if memory == libc::MAP_FAILED {
            let error = io::Error::last_os_error();
            return Err(Errno(error.raw_os_error().unwrap_or(libc::ENOMEM)));
        }
        Ok(Self { addr: memory as u64, len })
    }

    /// Returns the address of the first byte.
    pub fn addr(&self) -> u64 {
        self.addr
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: a mapping of ours. The keys that lead to it were destroyed, or lead to unmapped memory from now on,
        // which the device finds out when it gets there.
        unsafe { libc::munmap(self.addr as *mut libc::c_void, self.len) };
    }
}
