//! Requests of the most common forms: SEND, RDMA WRITE and RDMA READ, of SGEs or of inline data.

use core::ffi::c_int;
use core::iter;
use core::mem;

use mlx5_ring::sq::{Immediate, Payload, Pieces, Posting, Remote};
use rdma_core_sys::{
    IBV_SEND_INLINE, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_SEND, ibv_send_wr,
};

use super::{bytes, flags_of, len_of};
use crate::av;
use crate::objects::{Qp, Request, SendSide, Transport};
use crate::receive::sges;

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
        let (first, limits) = (self.posted, self.limits);
        let end = first.wrapping_add(self.room(qp));
        let mut posting = self.queue.posting();
        // SAFETY: [verbs] the list and its inline data can be read, and the program keeps [memory]. [ready] `room` is 0 before
        // RTS.
        unsafe {
            while let Some(request) = wr.as_ref() {
                let number = self.posted;
                let list = sges(request.sg_list, request.num_sge);
                if list.len() > limits.sges as usize
                    || (request.send_flags & IBV_SEND_INLINE != 0) != ARE_INLINE
                    || number == end
                {
                    break;
                }
                let data = Request { wr_id: request.wr_id, number };
                let posting = &mut posting;
                let is_posted = match list {
                    _ if !ARE_INLINE => {
                        put::<ARE_DATAGRAMS, _>(posting, qp, request, Payload::gather(list), data)
                    }
                    // Without data it is of another form.
                    [] => break,
                    // Refused data is not read.
                    [sge] if sge.length > limits.inline => break,
                    [sge] => {
                        let (inline, inline_len) = (iter::once(bytes(sge)), sge.length);
                        let payload = Payload { inline, inline_len, sges: &[] };
                        put::<ARE_DATAGRAMS, _>(posting, qp, request, payload, data)
                    }
                    _ => {
                        let (inline, inline_len) =
                            (list.iter().map(|sge| bytes(sge)), len_of(list));
                        if inline_len > limits.inline {
                            break;
                        }
                        let payload = Payload { inline, inline_len, sges: &[] };
                        put::<ARE_DATAGRAMS, _>(posting, qp, request, payload, data)
                    }
                };
                if !is_posted {
                    break;
                }
                self.posted = self.posted.wrapping_add(1);
                wr = request.next;
            }
            qp.sends_posted.add(self.posted.wrapping_sub(first).into());
            if wr.is_null() {
                posting.hand_over(&qp.send_completer.progress);
                return 0;
            }
            // One doorbell for all.
            mem::forget(posting);
            self.post_any(qp, wr, bad_wr)
        }
    }
}

/// Posts a request with its payload; returns `false`, and posts nothing, if it is of another form or is refused.
///
/// # Safety
/// [verbs] the program keeps [memory]; [ready]. `posting` is of the send queue of `qp`, which is a UD queue pair if `IS_DATAGRAM`.
#[inline(always)]
unsafe fn put<const IS_DATAGRAM: bool, I: Pieces>(
    posting: &mut Posting<'_, Request>,
    qp: &Qp,
    request: &ibv_send_wr,
    payload: Payload<'_, I>,
    data: Request,
) -> bool {
    let flags = flags_of(request.send_flags, qp.signal_all);
    // SAFETY: [verbs] the program keeps [memory]; [ready]. Fields of unions are those that the opcode names, or integers.
    let posted = unsafe {
        if IS_DATAGRAM {
            let ud = &request.wr.ud;
            let Some(av) = av::known(ud.ah) else { return false };
            if request.opcode != IBV_WR_SEND {
                return false;
            }
            let to = av.read_unaligned().to(ud.remote_qpn, ud.remote_qkey);
            posting.send_to(&to, payload, None, flags, data)
        } else {
            let rdma = &request.wr.rdma;
            let remote = Remote { addr: rdma.remote_addr, rkey: rdma.rkey };
            match request.opcode {
                IBV_WR_SEND => posting.send(payload, Immediate::None, flags, data),
                IBV_WR_RDMA_WRITE => posting.write(remote, payload, None, flags, data),
                IBV_WR_RDMA_READ if !payload.has_inline() && qp.transport == Transport::Rc => {
                    posting.read(remote, payload.sges, flags, data)
                }
                _ => return false,
            }
        }
    };
    posted.is_ok()
}
