//! Requests that change a memory key: `IBV_WR_BIND_MW`, `IBV_WR_LOCAL_INV`, `ibv_bind_mw`.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU8, Ordering};

use mlx5_ring::sq::{KeyChange, MAX_WINDOW, Remote, Window};
use rdma_core_sys::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE,
    IBV_ACCESS_ZERO_BASED, IBV_MW_TYPE_1, IBV_WC_BIND_MW, IBV_WC_LOCAL_INV, ibv_mw_bind_info, ibv_mw_type,
    ibv_wc_opcode,
};

/// Kind of each change of a key on a send queue, bind or invalidation: their CQEs have one opcode.
///
/// There is a byte for each block of two laps of the queue. The bytes of a WQE stay until its CQE was read: from the
/// moment on when the WQE is retired, and before the next CQE is taken, one lap can be posted.
pub(crate) struct Changes(Box<[AtomicU8]>);

impl Changes {
    /// Takes over two bytes for each block of the queue, whose blocks are a power of two, at most 32,768.
    pub(crate) const fn new(bytes: Box<[AtomicU8]>) -> Self {
        Self(bytes)
    }

    /// Takes note of the change whose WQE begins at the block with this running index.
    pub(crate) fn note(&self, start: u32, is_bind: bool) {
        self.at(start).store(is_bind.into(), Ordering::Relaxed);
    }

    /// Returns the opcode of the completion of the change whose WQE begins at this block.
    pub(crate) fn opcode(&self, wqe_counter: u16) -> ibv_wc_opcode {
        match self.at(wqe_counter.into()).load(Ordering::Relaxed) {
            0 => IBV_WC_LOCAL_INV,
            _ => IBV_WC_BIND_MW,
        }
    }

    fn at(&self, index: u32) -> &AtomicU8 {
        &self.0[index as usize % self.0.len()]
    }
}

/// Returns the bind of a window with key `key` through the queue pair `qpn`, as libmlx5 posts it, or the errno.
///
/// # Safety
/// The region of `info` exists, if it is not empty.
pub(crate) unsafe fn bind(
    kind: ibv_mw_type,
    qpn: u32,
    key: u32,
    rkey: u32,
    info: &ibv_mw_bind_info,
) -> Result<KeyChange, c_int> {
    let is_type_1 = kind == IBV_MW_TYPE_1;
    let len = u32::try_from(info.length).ok().filter(|len| *len <= MAX_WINDOW).ok_or(libc::EOPNOTSUPP)?;
    if len == 0 {
        let variant = rkey as u8;
        return Ok(if is_type_1 {
            KeyChange::unbind_type_1(key, variant)
        } else {
            KeyChange::invalidate(key, variant)
        });
    }
    let has = |flag| info.mw_access_flags & flag != 0;
    let window = Window {
        key,
        remote: Remote { addr: info.addr, rkey },
        len,
        // SAFETY: the caller's region exists.
        lkey: unsafe { info.mr.as_ref() }.ok_or(libc::EINVAL)?.lkey,
        read: has(IBV_ACCESS_REMOTE_READ),
        write: has(IBV_ACCESS_REMOTE_WRITE),
        atomic: has(IBV_ACCESS_REMOTE_ATOMIC),
    };
    let change = if is_type_1 { KeyChange::bind_type_1(&window) } else { KeyChange::bind(&window, qpn) };
    let change = if has(IBV_ACCESS_ZERO_BASED) { change.zero_based() } else { change };
    Ok(if has(IBV_ACCESS_LOCAL_WRITE) { change.local_write() } else { change })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_known_until_the_queue_is_two_laps_ahead() {
        let changes = Changes::new((0..8).map(|_| AtomicU8::new(0)).collect());
        // The queue has retired the WQE of two blocks at 0xfffe, and is full again before its completion is read.
        changes.note(0xfffe, true);
        for start in [0x1_0000, 0x1_0002] {
            changes.note(start, false);
        }
        assert_eq!(
            [0xfffe, 0, 2].map(|block| changes.opcode(block)),
            [IBV_WC_BIND_MW, IBV_WC_LOCAL_INV, IBV_WC_LOCAL_INV]
        );
    }
}
