//! RDMA READ, for a rendezvous that software finishes.

use rdma_core_sys as sys;

use super::QueuePair;
use super::send::{NotSent, SendError};
use crate::memory::Buffer;

impl QueuePair {
    /// Reads `len` bytes at `remote_addr` of the peer's memory into `buffer`, which holds as many. It
    /// comes back from [`poll_send`](Self::poll_send).
    pub(crate) fn read(
        &mut self,
        mut buffer: Buffer,
        len: u32,
        remote_addr: u64,
        rkey: u32,
    ) -> Result<(), SendError> {
        let max = buffer.capacity().min(self.max_msg_size as usize);
        let mut reason = self.check_room(len as usize, max).err();
        if !buffer.pool().pd().is_same(self.qp.pd()) {
            reason = Some(NotSent::Foreign);
        }
        if let Some(reason) = reason {
            return Err(SendError { payload: buffer, reason });
        }
        buffer.set_len(len as usize);
        let addr = buffer.addr().as_ptr().expose_provenance() as u64;
        let mut sge = sys::ibv_sge { addr, length: len, lkey: buffer.pool().lkey() };
        let mut wr = sys::ibv_send_wr {
            wr_id: self.sends.next(),
            sg_list: &mut sge,
            num_sge: 1,
            opcode: sys::IBV_WR_RDMA_READ,
            send_flags: sys::IBV_SEND_SIGNALED,
            ..Default::default()
        };
        wr.wr.rdma = sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey };
        // SAFETY: the buffer is writable for the device, registered in the domain of the queue pair, and
        // `sends` owns it until its completion or the end of the queue pair.
        match unsafe { self.submit(&mut wr) } {
            Ok(()) => {
                self.sends.posted(Some(buffer));
                Ok(())
            }
            Err(reason) => Err(SendError { payload: buffer, reason }),
        }
    }
}
