//! The objects that a C program has made through verbs, and a peer that sends to it.

use std::ptr;
use std::thread::{self, JoinHandle};

use doorbell::raw::rdma_core_sys::{self as sys, ibv_context, ibv_cq, ibv_pd, ibv_qp, ibv_srq};
use doorbell::{Context, CqConfig, ProtectionDomain, QpAddress, QpConfig, QueuePair, Sender};

use crate::finish;

/// A context, a domain, a CQ, an SRQ, and a queue pair on both that is connected.
pub struct CProgram {
    /// The context.
    pub context: *mut ibv_context,
    /// The domain.
    pub pd: *mut ibv_pd,
    /// The CQ of the receives.
    pub cq: *mut ibv_cq,
    /// The SRQ.
    pub srq: *mut ibv_srq,
    /// The queue pair.
    pub qp: *mut ibv_qp,
    send_cq: *mut ibv_cq,
    peer: JoinHandle<()>,
}

impl CProgram {
    /// Makes the objects. The peer sends so many messages of five bytes.
    pub fn start(messages: u32) -> Self {
        let context = doorbell::open("mlx5_0").unwrap();
        let near = peer(&context);
        // SAFETY: an open device, live objects and initialised structures; nothing else uses the objects.
        unsafe {
            let list = sys::ibv_get_device_list(ptr::null_mut());
            let context = sys::ibv_open_device(*list);
            sys::ibv_free_device_list(list);
            let pd = sys::ibv_alloc_pd(context);
            let cq = || sys::ibv_create_cq(context, 64, ptr::null_mut(), ptr::null_mut(), 0);
            let (cq, send_cq) = (cq(), cq());
            let mut init = sys::ibv_srq_init_attr::default();
            (init.attr.max_wr, init.attr.max_sge) = (63, 1);
            let srq = sys::ibv_create_srq(pd, &mut init);
            let mut init = sys::ibv_qp_init_attr { send_cq, recv_cq: cq, srq, ..Default::default() };
            init.qp_type = sys::IBV_QPT_RC;
            (init.cap.max_send_wr, init.cap.max_send_sge) = (1, 1);
            let qp = sys::ibv_create_qp(pd, &mut init);
            connect(qp, near.0.address().unwrap());
            let mut port = sys::ibv_port_attr::default();
            assert_eq!(sys::ibv_query_port(context, 1, &mut port), 0);
            let number = (*qp).qp_num;
            let peer = thread::spawn(move || send(near, number, port.lid, messages));
            Self { context, pd, cq, srq, qp, send_cq, peer }
        }
    }

    /// Destroys the objects.
    pub fn end(self) {
        self.peer.join().unwrap();
        // SAFETY: the objects of this program, which nothing uses any more.
        unsafe {
            assert_eq!(sys::ibv_destroy_qp(self.qp), 0);
            assert_eq!(sys::ibv_destroy_srq(self.srq), 0);
            assert_eq!(sys::ibv_destroy_cq(self.cq), 0);
            assert_eq!(sys::ibv_destroy_cq(self.send_cq), 0);
            assert_eq!(sys::ibv_dealloc_pd(self.pd), 0);
            assert_eq!(sys::ibv_close_device(self.context), 0);
        }
    }
}

type Peer = (QueuePair, Sender, ProtectionDomain);

fn peer(context: &Context) -> Peer {
    let pd = context.alloc_pd().unwrap();
    let config = QpConfig::rc();
    let mut sender = Sender::new(&pd, &CqConfig::for_sends(&config, 1)).unwrap();
    let qp = QueuePair::builder(&config).send(&mut sender).build().unwrap();
    (qp, sender, pd)
}

fn send((mut qp, mut sender, _pd): Peer, qpn: u32, lid: u16, messages: u32) {
    let there = QpAddress { qpn, psn: 0, lid, ..qp.address().unwrap() };
    qp.connect(&there).unwrap();
    for _ in 0..messages {
        sender.send(&qp, b"hello").unwrap();
        finish(&mut sender, qp.send_queue().unwrap());
    }
}

/// # Safety
/// The queue pair is alive.
unsafe fn connect(qp: *mut ibv_qp, peer: QpAddress) {
    use sys::*;
    let mut attr = ibv_qp_attr { qp_state: IBV_QPS_INIT, port_num: 1, ..Default::default() };
    let modify = |attr: &mut ibv_qp_attr, mask| {
        // SAFETY: the caller's queue pair, and an initialised structure.
        assert_eq!(unsafe { ibv_modify_qp(qp, attr, mask as _) }, 0);
    };
    modify(&mut attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    (attr.qp_state, attr.path_mtu) = (IBV_QPS_RTR, IBV_MTU_1024);
    (attr.dest_qp_num, attr.rq_psn, attr.min_rnr_timer) = (peer.qpn, peer.psn, 12);
    (attr.ah_attr.dlid, attr.ah_attr.port_num) = (peer.lid, 1);
    let path = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    modify(&mut attr, IBV_QP_STATE | path | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}
