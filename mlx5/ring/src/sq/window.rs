//! Memory windows of type 2: binding them, and invalidating keys of this side.

use mlx5_wire::be::Be64;
use mlx5_wire::data::DataSegment;
use mlx5_wire::firmware::mkey::MkeyContext;
use mlx5_wire::opcode::WqeOpcode;
use mlx5_wire::umr::UmrControl;

use super::posting::What;
use super::{Flags, PostError, Posting, Remote};

/// Part of a memory region that a window of type 2 lets the peer access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The window's key so far.
    pub key: u32,
    /// First byte, and the key that peers will use: of another variant, its lower eight bits.
    pub remote: Remote,
    /// Bytes, 1 to [`MAX_WINDOW`].
    pub len: u32,
    /// Local key of the region.
    pub lkey: u32,
    /// The peer may read.
    pub read: bool,
    /// The peer may write.
    pub write: bool,
    /// The peer may perform atomic operations.
    pub atomic: bool,
}

/// Most bytes of a window: an entry of its translation counts so many.
pub const MAX_WINDOW: u32 = 1 << 31;

/// Units of the segments of a WQE: control segment, those of a change of a key, and of a bind the translation.
const INVALIDATE_UNITS: usize = 1 + 3 + 4;
const BIND_UNITS: usize = INVALIDATE_UNITS + 4;

/// No queue pair.
const NO_QPN: u32 = 0xff_ffff;

impl<T: Copy> Posting<'_, T> {
    /// Binds a window (`IBV_WR_BIND_MW`): the peer of this queue pair can access the memory with its key, until the key
    /// is invalidated. The request after it needs [`Flags::SMALL_FENCE`] or [`Flags::FENCE`].
    ///
    /// # Errors
    /// [`PostError::Full`]; [`PostError::TooLong`] in a queue whose WQEs have fewer than three blocks.
    ///
    /// # Safety
    /// *ready*, see [the module](super). Until the key is invalidated or the window deallocated, the memory is valid,
    /// and used only as memory is that a device reads and writes at any time.
    pub unsafe fn bind(&mut self, window: &Window, flags: Flags, data: T) -> Result<(), PostError> {
        let Remote { addr, rkey } = window.remote;
        let context = MkeyContext {
            remote_read: window.read,
            remote_write: window.write,
            atomic: window.atomic,
            qpn: self.qpn(),
            variant: rkey as u8,
            start: addr,
            len: window.len.into(),
            ..MkeyContext::ZERO
        };
        let entry = DataSegment::new(addr, window.len, window.lkey);
        // SAFETY: the caller's *ready*, and the memory is as the caller says.
        unsafe { self.change(window.key, UmrControl::bind(), &context, Some(entry), flags, data) }
    }

    /// Invalidates a key of this side (`IBV_WR_LOCAL_INV`). The request after it needs [`Flags::SMALL_FENCE`] or
    /// [`Flags::FENCE`].
    ///
    /// # Errors
    /// [`PostError::Full`]; [`PostError::TooLong`] in a queue whose WQEs have one block.
    ///
    /// # Safety
    /// *ready*, see [the module](super).
    pub unsafe fn invalidate(&mut self, rkey: u32, flags: Flags, data: T) -> Result<(), PostError> {
        let context = MkeyContext { free: true, qpn: NO_QPN, ..MkeyContext::ZERO };
        // SAFETY: the caller's *ready*.
        unsafe { self.change(rkey, UmrControl::invalidate(), &context, None, flags, data) }
    }

    /// # Safety
    /// *ready*; the key with this translation gives access as [`bind`](Self::bind) says.
    unsafe fn change(
        &mut self,
        key: u32,
        control: UmrControl,
        context: &MkeyContext,
        entry: Option<DataSegment>,
        flags: Flags,
        data: T,
    ) -> Result<(), PostError> {
        let units = if entry.is_some() { BIND_UNITS } else { INVALIDATE_UNITS };
        let (mut wqe, begun) = self.start(What(WqeOpcode::UMR, key), &control.to_bytes(), units, flags, data)?;
        let mut write = |bytes: &[u8]| {
            for unit in bytes.chunks_exact(16) {
                let word = |at: usize| {
                    let mut word = [0; 8];
                    word.copy_from_slice(&unit[at..at + 8]);
                    Be64::new(u64::from_be_bytes(word))
                };
                // SAFETY: one of the units that were taken.
                unsafe { wqe.unit([word(0), word(8)]) }
            }
        };
        write(&context.to_bytes());
        if let Some(entry) = entry {
            write(&entry.to_bytes());
            write(&[0; 48]);
        }
        self.finish(begun, false, data);
        Ok(())
    }
}
