//! Memory windows: binding them, and invalidating keys of this side.

use mlx5_wire::be::Be64;
use mlx5_wire::ctrl::UNIT;
use mlx5_wire::data::DataSegment;
use mlx5_wire::firmware::mkey::MkeyContext;
use mlx5_wire::opcode::WqeOpcode;
use mlx5_wire::umr::{self, UmrControl};

use super::posting::What;
use super::wqe::Writer;
use super::{Batch, Flags, PostError, Posting, Remote, SendQueue};

/// Part of a memory region that a window lets the peer access.
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
const HEAD_UNITS: usize = 1 + UmrControl::SIZE / UNIT;
const INVALIDATE_UNITS: usize = HEAD_UNITS + MkeyContext::SIZE / UNIT;
const BIND_UNITS: usize = INVALIDATE_UNITS + umr::BIND_OCTOWORDS as usize;

/// No queue pair.
const NO_QPN: u32 = 0xff_ffff;

/// A change of a memory key, as `IBV_WR_BIND_MW` and `IBV_WR_LOCAL_INV` of libmlx5 make it.
#[derive(Clone, Copy, Debug)]
pub struct KeyChange {
    key: u32,
    control: UmrControl,
    context: MkeyContext,
    entry: Option<DataSegment>,
}

impl KeyChange {
    /// Binds a window of type 2, which belongs to the queue pair `qpn` then.
    pub const fn bind(window: &Window, qpn: u32) -> Self {
        let Remote { addr, rkey } = window.remote;
        let context = MkeyContext {
            remote_read: window.read,
            remote_write: window.write,
            atomic: window.atomic,
            qpn,
            variant: rkey as u8,
            start: addr,
            len: window.len as u64,
            ..MkeyContext::ZERO
        };
        let entry = DataSegment::new(addr, window.len, window.lkey);
        Self { key: window.key, control: UmrControl::bind(), context, entry: Some(entry) }
    }

    /// Binds a window of type 1.
    pub const fn bind_type_1(window: &Window) -> Self {
        Self { control: UmrControl::bind_type_1(), ..Self::bind(window, NO_QPN) }
    }

    /// Invalidates `key`, which has the variant `variant` then.
    pub const fn invalidate(key: u32, variant: u8) -> Self {
        let context = MkeyContext { free: true, qpn: NO_QPN, variant, ..MkeyContext::ZERO };
        Self { key, control: UmrControl::invalidate(), context, entry: None }
    }

    /// Unbinds a window of type 1, whose key has the variant `variant` then.
    pub const fn unbind_type_1(key: u32, variant: u8) -> Self {
        Self { control: UmrControl::unbind_type_1(), ..Self::invalidate(key, variant) }
    }

    /// Has the first byte of the window be that of address 0 (`IBV_ACCESS_ZERO_BASED`).
    #[must_use]
    pub const fn zero_based(mut self) -> Self {
        self.context.start = 0;
        self
    }

    /// Lets the key be used as a local key for writes (`IBV_ACCESS_LOCAL_WRITE`).
    #[must_use]
    pub const fn local_write(mut self) -> Self {
        self.context.local_write = true;
        self
    }

    const fn units(&self) -> usize {
        if self.entry.is_some() { BIND_UNITS } else { INVALIDATE_UNITS }
    }

    /// Writes the segments behind the first block, which is full of the control segment and [`UmrControl`].
    ///
    /// # Safety
    /// The WQE has [`units`](Self::units), of which the first four are written.
    unsafe fn write(&self, wqe: &mut Writer) {
        let mut write = |bytes: &[u8]| {
            for unit in bytes.chunks_exact(UNIT) {
                let word = |at: usize| {
                    let mut word = [0; 8];
                    word.copy_from_slice(&unit[at..at + 8]);
                    Be64::new(u64::from_be_bytes(word))
                };
                // SAFETY: one of the units of the caller's WQE.
                unsafe { wqe.unit([word(0), word(8)]) }
            }
        };
        write(&self.context.to_bytes());
        if let Some(entry) = self.entry {
            write(&entry.to_bytes());
            write(&[0; (umr::BIND_OCTOWORDS as usize - 1) * UNIT]);
        }
    }
}

impl<T: Copy> Posting<'_, T> {
    /// Binds a window of type 2 (`IBV_WR_BIND_MW`): the peer of this queue pair can access the memory with its key,
    /// until the key is invalidated. The request after it needs [`Flags::SMALL_FENCE`] or [`Flags::FENCE`].
    ///
    /// # Errors
    /// [`PostError::Full`]; [`PostError::TooLong`] in a queue whose WQEs have fewer than three blocks.
    ///
    /// # Safety
    /// *ready*, see [the module](super). Until the key is invalidated or the window deallocated, the memory is valid,
    /// and used only as memory is that a device reads and writes at any time.
    pub unsafe fn bind(&mut self, window: &Window, flags: Flags, data: T) -> Result<(), PostError> {
        // SAFETY: the caller's *ready*, and the memory is as the caller says.
        unsafe { self.change(&KeyChange::bind(window, self.qpn()), flags, data) }
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
        // SAFETY: the caller's *ready*.
        unsafe { self.change(&KeyChange::invalidate(rkey, 0), flags, data) }
    }

    /// Changes a key.
    ///
    /// # Errors
    /// As of [`bind`](Self::bind) or [`invalidate`](Self::invalidate).
    ///
    /// # Safety
    /// As for [`bind`](Self::bind) or [`invalidate`](Self::invalidate).
    pub unsafe fn change(&mut self, change: &KeyChange, flags: Flags, data: T) -> Result<(), PostError> {
        let what = What(WqeOpcode::UMR, change.key);
        let (mut wqe, begun) = self.start(what, &change.control.to_bytes(), change.units(), flags, data)?;
        // SAFETY: the first block is written, and the WQE has the units of the change.
        unsafe { change.write(&mut wqe) }
        self.finish(begun, false, data);
        Ok(())
    }
}

impl<T: Copy> SendQueue<T> {
    /// As [`Posting::change`], in a batch: a request that has its WQE and takes no payload.
    ///
    /// # Errors
    /// As of [`Posting::change`]; nothing is added to the batch then.
    ///
    /// # Safety
    /// As for [`Posting::change`] when the batch is posted. The batch is of this queue, to which nothing was posted
    /// since it was started.
    pub unsafe fn change(
        &mut self,
        batch: &mut Batch,
        change: &KeyChange,
        flags: Flags,
        data: T,
    ) -> Result<(), PostError> {
        let what = What(WqeOpcode::UMR, change.key);
        self.write_head(batch, what, Some(&change.control.to_bytes()), flags, data)?;
        let mut wqe = self.payload(batch, change.units() - HEAD_UNITS)?;
        // SAFETY: the first block is written, and the WQE has the units of the change.
        unsafe { change.write(&mut wqe) }
        Ok(())
    }
}
