//! The send interface that builds work requests one call at a time, on a queue pair which was
//! created with `send_ops_flags`.

use crate::{__be32, ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp_ex, ibv_sge};
use core::ffi::{c_int, c_void};

/// Declares a function that calls the entry of the queue pair.
macro_rules! of_qp {
    ($($(#[$doc:meta])* $name:ident => $entry:ident($($arg:ident: $type:ty),*) $(-> $ret:ty)?;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// `qp` is valid and was created with the flag of this operation; calls come in the order
        /// that `ibv_wr_post(3)` gives; memory named here obeys the rules of
        /// [`ibv_post_send`](crate::ibv_post_send).
        #[inline]
        pub unsafe fn $name(qp: *mut ibv_qp_ex $(, $arg: $type)*) $(-> $ret)? {
            // SAFETY: `qp` is valid and was created with the flag of this operation. The provider sets the
            // entries that the flags ask for.
            unsafe { (*qp).$entry.unwrap_unchecked()(qp $(, $arg)*) }
        }
    )*};
}

of_qp! {
    /// Starts a batch and takes the queue's lock.
    ibv_wr_start => wr_start();
    /// Posts the batch with one doorbell. Returns 0, or an errno and then nothing was posted.
    ibv_wr_complete => wr_complete() -> c_int;
    /// Drops the batch.
    ibv_wr_abort => wr_abort();
    /// Begins a SEND.
    ibv_wr_send => wr_send();
    /// Begins a SEND with immediate data.
    ibv_wr_send_imm => wr_send_imm(imm_data: __be32);
    /// Begins a SEND that invalidates a key of the receiver.
    ibv_wr_send_inv => wr_send_inv(invalidate_rkey: u32);
    /// Begins an RDMA WRITE.
    ibv_wr_rdma_write => wr_rdma_write(rkey: u32, remote_addr: u64);
    /// Begins an RDMA WRITE with immediate data.
    ibv_wr_rdma_write_imm => wr_rdma_write_imm(rkey: u32, remote_addr: u64, imm_data: __be32);
    /// Begins an RDMA READ.
    ibv_wr_rdma_read => wr_rdma_read(rkey: u32, remote_addr: u64);
    /// Begins an atomic compare-and-swap.
    ibv_wr_atomic_cmp_swp => wr_atomic_cmp_swp(rkey: u32, remote_addr: u64, compare: u64, swap: u64);
    /// Begins an atomic fetch-and-add.
    ibv_wr_atomic_fetch_add => wr_atomic_fetch_add(rkey: u32, remote_addr: u64, add: u64);
    /// Begins the bind of a memory window of type 2.
    ibv_wr_bind_mw => wr_bind_mw(mw: *mut ibv_mw, rkey: u32, bind_info: *const ibv_mw_bind_info);
    /// Begins the invalidation of a local key.
    ibv_wr_local_inv => wr_local_inv(invalidate_rkey: u32);
    /// Gives the current request its receiver (UD).
    ibv_wr_set_ud_addr => wr_set_ud_addr(ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32);
    /// Gives the current request its SRQ (XRC).
    ibv_wr_set_xrc_srqn => wr_set_xrc_srqn(remote_srqn: u32);
    /// Gives the current request one piece of memory.
    ibv_wr_set_sge => wr_set_sge(lkey: u32, addr: u64, length: u32);
    /// Gives the current request several pieces of memory.
    ibv_wr_set_sge_list => wr_set_sge_list(num_sge: usize, sg_list: *const ibv_sge);
    /// Copies the current request's data out of one buffer.
    ibv_wr_set_inline_data => wr_set_inline_data(addr: *mut c_void, length: usize);
    /// Copies the current request's data out of several buffers.
    ibv_wr_set_inline_data_list => wr_set_inline_data_list(num_buf: usize, buf_list: *const ibv_data_buf);
}
