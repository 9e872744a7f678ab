//! Stock libmlx5 without locks.

use std::hint::black_box;
use std::ptr;

use rdma_core_sys::*;

use super::{Costs, LEN, RECEIVES, Single, measure};
use crate::step;
use crate::world::{BUFFER, Kind, Locks, Memory, Shape, World, made};

/// `EXTENDED` polls with `ibv_start_poll` and sends with `ibv_wr_*`.
struct Libmlx5<const EXTENDED: bool> {
    cq: *mut ibv_cq_ex,
    send_cq: *mut ibv_cq,
    srq: *mut ibv_srq,
    qp: *mut ibv_qp,
    memory: Memory,
    /// Lie ready; `wr_id` is the address of the buffer.
    receives: Box<[ibv_recv_wr]>,
    _sges: Box<[ibv_sge]>,
    bytes: Box<[u8; LEN]>,
}

impl<const EXTENDED: bool> Libmlx5<EXTENDED> {
    fn new(world: &World) -> Self {
        let cq = world.cq(RECEIVES, 64, Locks::Off);
        let send_cq: *mut ibv_cq = world.cq(256, 64, Locks::Off).cast();
        let pd = world.domain(Locks::Off);
        let memory = world.memory(RECEIVES);
        let address = |i| memory.start + u64::from(i) * u64::from(BUFFER);
        let sge = |i| ibv_sge { addr: address(i), length: BUFFER, lkey: memory.lkey };
        let mut sges: Box<[_]> = (0..RECEIVES).map(sge).collect();
        let receive =
            |sge: &mut ibv_sge| ibv_recv_wr { wr_id: sge.addr, sg_list: sge, num_sge: 1, ..Default::default() };
        let receives = sges.iter_mut().map(receive).collect();
        // SAFETY: an open context, live objects, initialised structures.
        let (srq, qp) = unsafe {
            let srq = world.srq(pd, Shape::new(Kind::Srq, RECEIVES + 1));
            let mut init = ibv_qp_init_attr_ex {
                send_cq,
                recv_cq: cq.cast(),
                srq,
                qp_type: IBV_QPT_RC,
                comp_mask: IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
                pd,
                send_ops_flags: IBV_QP_EX_WITH_SEND.into(),
                ..Default::default()
            };
            (init.cap.max_send_wr, init.cap.max_send_sge, init.cap.max_inline_data) = (64, 1, LEN as u32);
            // As the queue pairs of doorbell: a payload in a CQE would be copied.
            let mut mlx5 = mlx5dv_qp_init_attr {
                comp_mask: MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS.into(),
                create_flags: MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE,
                ..Default::default()
            };
            let qp = made((world.mlx5dv.create_qp)(world.pd.context().as_raw(), &mut init, &mut mlx5));
            world.connect(qp, (*qp).qp_num);
            let layout = world.sq_layout(qp);
            step::watch(layout.register.cast(), layout.register_size);
            (srq, qp)
        };
        let mut made = Self { cq, send_cq, srq, qp, memory, receives, _sges: sges, bytes: Box::new([7; LEN]) };
        (0..RECEIVES as usize).for_each(|index| made.post(index));
        made
    }

    #[inline(always)]
    fn post(&mut self, index: usize) {
        // SAFETY: a live SRQ, and a work request that names memory that stays.
        let errno = unsafe { ibv_post_srq_recv(self.srq, &mut self.receives[index], &mut ptr::null_mut()) };
        assert_eq!(errno, 0);
    }

    #[inline(always)]
    fn give_back(&mut self, wr_id: u64) {
        self.post(((wr_id - self.memory.start) / u64::from(BUFFER)) as usize);
    }

    /// Sends with these flags.
    #[inline(always)]
    fn send_with(&mut self, flags: u32) {
        let bytes = black_box(&raw mut *self.bytes);
        if EXTENDED {
            // SAFETY: a live queue pair that was created for sends; the bytes are copied.
            let errno = unsafe {
                let qp = ibv_qp_to_qp_ex(self.qp);
                ibv_wr_start(qp);
                ((*qp).wr_id, (*qp).wr_flags) = (7, flags);
                ibv_wr_send(qp);
                ibv_wr_set_inline_data(qp, bytes.cast(), LEN);
                ibv_wr_complete(qp)
            };
            assert_eq!(errno, 0);
            return;
        }
        let mut sge = ibv_sge { addr: bytes.expose_provenance() as u64, length: LEN as u32, lkey: 0 };
        let mut wr = ibv_send_wr {
            wr_id: 7,
            sg_list: &mut sge,
            num_sge: 1,
            opcode: IBV_WR_SEND,
            send_flags: flags | IBV_SEND_INLINE,
            ..Default::default()
        };
        // SAFETY: a live queue pair; the bytes are copied.
        assert_eq!(unsafe { ibv_post_send(self.qp, &mut wr, &mut ptr::null_mut()) }, 0);
    }
}

impl<const EXTENDED: bool> Single for Libmlx5<EXTENDED> {
    #[inline(always)]
    fn send(&mut self) {
        self.send_with(IBV_SEND_SIGNALED);
    }

    #[inline(always)]
    fn send_unsignaled(&mut self, is_last: bool) {
        self.send_with(if is_last { IBV_SEND_SIGNALED } else { 0 });
    }

    #[inline(always)]
    fn sent_unsignaled(&mut self) {
        self.sent();
    }

    #[inline(always)]
    fn sent(&mut self) {
        let mut wc = ibv_wc::default();
        // SAFETY: a live CQ, and room for one completion.
        let polled = unsafe { ibv_poll_cq(self.send_cq, 1, &mut wc) };
        assert_eq!((polled, wc.status), (1, IBV_WC_SUCCESS));
    }

    #[inline(always)]
    fn receive(&mut self) {
        if !EXTENDED {
            let mut wc = ibv_wc::default();
            // SAFETY: a live CQ, and room for one completion.
            let polled = unsafe { ibv_poll_cq(self.cq.cast(), 1, &mut wc) };
            assert_eq!((polled, wc.status), (1, IBV_WC_SUCCESS));
            black_box((wc.wr_id, wc.byte_len));
            step::mark();
            return self.give_back(wc.wr_id);
        }
        // SAFETY: a live CQ that was created with the byte count among its fields.
        let wr_id = unsafe {
            assert_eq!(ibv_start_poll(self.cq, &mut ibv_poll_cq_attr::default()), 0);
            assert_eq!((*self.cq).status, IBV_WC_SUCCESS);
            let wr_id = (*self.cq).wr_id;
            black_box((wr_id, ibv_wc_read_byte_len(self.cq)));
            step::mark();
            ibv_end_poll(self.cq);
            wr_id
        };
        self.give_back(wr_id);
    }

    #[inline(always)]
    fn poll_nothing(&mut self) {
        // SAFETY: a live CQ, and room for one completion.
        let found = unsafe {
            match EXTENDED {
                true => ibv_start_poll(self.cq, &mut ibv_poll_cq_attr::default()) == 0,
                false => ibv_poll_cq(self.cq.cast(), 1, &mut ibv_wc::default()) != 0,
            }
        };
        assert!(!found);
    }
}

pub(super) fn costs(world: &World, extended: bool) -> Costs {
    match extended {
        true => measure(world, &mut Libmlx5::<true>::new(world)),
        false => measure(world, &mut Libmlx5::<false>::new(world)),
    }
}
