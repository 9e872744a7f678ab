//! Requests of the most common forms: one SGE, or inline data of one piece.

use core::ffi::c_int;
use core::mem;
use core::slice;

use mlx5_ring::sge::Sge;
use mlx5_ring::sq::{Immediate, Payload, Remote};
use mlx5_wire::inline::INLINE_SEG;
use rdma_core_sys::{
    IBV_SEND_INLINE, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_SEND, ibv_send_wr,
};

use super::{bytes, flags_of};
use crate::av;
use crate::objects::{Qp, Request, SendSide, Transport};

impl SendSide {
    /// Posts the requests of a list that are of one form, up to the first of another form, and the rest with
    /// [`post_any`](Self::post_any). `ARE_INLINE` are requests with a copy of their bytes in the WQE.
    ///
    /// # Safety
    /// [verbs]; this is the send queue of `qp`, which is a UD queue pair if `ARE_DATAGRAMS`.
    // Not inlined: in a function that is given the queue alone the compiler keeps its fields in registers.
    #[inline(never)]
    pub(super) unsafe fn post<const ARE_DATAGRAMS: bool, const ARE_INLINE: bool>(
        &mut self,
        qp: &Qp,
        mut wr: *mut ibv_send_wr,
        bad_wr: *mut *mut ibv_send_wr,
    ) -> c_int {
        let (first, room) = (self.posted, self.room(qp));
        let room = if self.limits.sges == 0 { 0 } else { room };
        let longest = if ARE_INLINE { self.limits.inline } else { INLINE_SEG - 1 };
        let mut posting = self.queue.posting();
        // SAFETY: [verbs] the list and its inline data can be read, and the program keeps [memory]. [ready] `room` is 0 before
        // RTS. Fields of unions are those that the opcode names, or integers.
        unsafe {
            while let Some(request) = wr.as_ref() {
                let number = self.posted;
                let sge = request.sg_list.cast::<Sge>();
                if request.num_sge != 1
                    || (request.send_flags & IBV_SEND_INLINE != 0) != ARE_INLINE
                    || !(1..=longest).contains(&(*sge).length)
                    || number.wrapping_sub(first) == room
                {
                    break;
                }
                let list = slice::from_ref(&*sge);
                let pieces = [if ARE_INLINE { bytes(&*sge) } else { &[] }];
                let payload =
                    if ARE_INLINE { Payload::inline(&pieces) } else { Payload::gather(list) };
                let flags = flags_of(request.send_flags, qp.signal_all);
                let data = Request { wr_id: request.wr_id, number };
                let posted = if ARE_DATAGRAMS {
                    let ud = &request.wr.ud;
                    let Some(av) = av::known(ud.ah) else { break };
                    if request.opcode != IBV_WR_SEND {
                        break;
                    }
                    let to = av.read_unaligned().to(ud.remote_qpn, ud.remote_qkey);
                    posting.send_to(&to, payload, None, flags, data)
                } else {
                    let rdma = &request.wr.rdma;
                    let remote = Remote { addr: rdma.remote_addr, rkey: rdma.rkey };
                    match request.opcode {
                        IBV_WR_SEND => posting.send(payload, Immediate::None, flags, data),
                        IBV_WR_RDMA_WRITE => posting.write(remote, payload, None, flags, data),
                        IBV_WR_RDMA_READ if !ARE_INLINE && qp.transport == Transport::Rc => {
                            posting.read(remote, list, flags, data)
                        }
                        _ => break,
                    }
                };
                if posted.is_err() {
                    break;
                }
                self.posted = number.wrapping_add(1);
                wr = request.next;
            }
            qp.sends.add(self.posted.wrapping_sub(first).into());
            if wr.is_null() {
                return 0;
            }
            // One doorbell for all.
            mem::forget(posting);
            self.post_any(qp, wr, bad_wr)
        }
    }
}
