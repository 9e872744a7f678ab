//! Where libmlx5 keeps the doorbell records of queues.

use std::mem::zeroed;

use doorbell::QueuePair;
use rdma_core_sys as sys;
use sys::Mlx5dv;

/// The addresses of the doorbell records of the CQ and of the SRQ of a queue pair of an mlx5 device.
pub fn of(qp: &QueuePair) -> [usize; 2] {
    let mlx5dv = Mlx5dv::get().expect("libmlx5");
    // SAFETY: structures of integers and pointers; live objects of an mlx5 device.
    unsafe {
        let (mut cq_out, mut srq_out): (sys::mlx5dv_cq, sys::mlx5dv_srq) = (zeroed(), zeroed());
        let mut obj: sys::mlx5dv_obj = zeroed();
        (obj.cq.in_, obj.cq.out) = ((*qp.as_raw()).recv_cq, &mut cq_out);
        (obj.srq.in_, obj.srq.out) = ((*qp.as_raw()).srq, &mut srq_out);
        let kinds = sys::MLX5DV_OBJ_CQ | sys::MLX5DV_OBJ_SRQ;
        assert_eq!((mlx5dv.init_obj)(&mut obj, kinds.into()), 0);
        [cq_out.dbrec as usize, srq_out.dbrec as usize]
    }
}
