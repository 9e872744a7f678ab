//! The twin that doorbell drives.
//!
//! The entries of its context for posting and polling abort, so libmlx5 cannot do the work by accident. The drop-in has
//! entries of its own. It counts its posts and polls in its last line (`DOORBELL_LOG`).

mod drop_in;
mod ring;
mod safe;

use crate::poison;
use doorbell::{
    Completions, Context, CqConfig, DataPath, ProtectionDomain, QpConfig, QueuePair, ReceiveFrom, Receiver, RqConfig,
    SrqConfig, SrqId,
};
use mlx5_wire::syndrome::Syndrome;
use rdma_core_sys as sys;

use crate::plan::{Entry, Give, Shape};
use crate::queue::Wqe;
use crate::reference::Refusal;
use crate::twin::Twin;

pub use drop_in::DropIn;
pub use ring::{Keys, Ring, UNKNOWN_KEY, sges};
pub use safe::{Pools, Safe};

/// A receive: its number and its scatter list.
pub type Receive = (u64, Vec<sys::ibv_sge>);

/// A completion, as doorbell shows it.
#[derive(Clone, Debug)]
pub struct Completion {
    /// Names and values of the fields that this layer reports.
    pub fields: Vec<(&'static str, u64)>,
    /// How the message ended.
    pub given: Give,
    /// The message, from a layer that hands it out.
    pub data: Option<Vec<u8>>,
}

/// A layer of doorbell.
pub trait Subject {
    /// Makes receives of scatter lists; fewer when there are not enough buffers.
    fn prepare(&mut self, lists: &[Vec<Entry>]) -> Vec<Receive>;
    /// Posts prepared receives. Returns how many were taken.
    fn post(&mut self, queue: usize, receives: &[Receive]) -> (usize, Option<Refusal>);
    /// Puts a buffer into the slot of a full SRQ that stays unposted; returns its receive.
    fn load_spare(&mut self, queue: usize) -> Option<Receive>;
    fn poll(&mut self, budget: u32, give: &[Give]) -> Vec<Completion>;
    /// Messages held.
    fn held(&self) -> usize;
    /// Gives a held message back; returns its queue and the number of its receive.
    fn give_back(&mut self, index: usize, recycle: bool) -> (usize, u64);
    /// Takes the events that have come, and asks for the next one.
    fn arm(&mut self, solicited_only: bool);
    /// Takes a QP through RESET to INIT.
    fn reset(&mut self, qp: usize);
    /// The number that doorbell has noted for a WQE.
    fn id(&mut self, queue: usize, wqe: &Wqe) -> u64;
}

/// A receiver on the objects of a twin.
struct Wrapped {
    qps: Vec<QueuePair>,
    receiver: Receiver,
    srq: Option<SrqId>,
}

fn domain(twin: &Twin) -> ProtectionDomain {
    // SAFETY: the twin is destroyed after the subject.
    unsafe {
        let context = Context::from_raw(twin.base.context).expect("an open context");
        ProtectionDomain::from_raw(&context, twin.base.pd)
    }
}

impl Wrapped {
    fn new(twin: &Twin, pd: &ProtectionDomain, shape: &Shape) -> Self {
        // SAFETY: the objects are fresh, no other code uses them, they are destroyed after the receiver,
        // and they were made with these sizes.
        unsafe {
            let mut receiver =
                Receiver::from_raw_cq(pd, twin.cq, &CqConfig::new(4096).path(DataPath::Direct)).expect("a fresh CQ");
            let srq = shape.shared.then(|| {
                receiver
                    .attach_srq(twin.srq, &SrqConfig::new(shape.max_wr).max_sge(shape.max_sge).patience(0))
                    .unwrap_or_else(|error| panic!("{error}"))
            });
            let own = RqConfig::new(shape.max_wr).max_sge(shape.max_sge);
            let from = srq.map_or(own.into(), ReceiveFrom::from);
            let qps = twin.base.qps.iter().map(|qp| {
                let builder = QueuePair::builder(&QpConfig::rc()).receive(&mut receiver, from);
                builder.attach(*qp).unwrap_or_else(|error| panic!("{error}"))
            });
            let qps = qps.collect();
            poison::post_and_poll(twin.base.context);
            Self { qps, receiver, srq }
        }
    }

    fn arm(&mut self, solicited_only: bool) {
        let receiver = &mut self.receiver;
        let armed = if solicited_only { receiver.arm_solicited() } else { receiver.arm() };
        armed.expect("the CQ has a channel");
    }

    fn reset(&mut self, qp: usize) {
        self.receiver.reset_qp(&mut self.qps[qp]).expect("a QP can be reset");
    }
}

/// Status of a syndrome, by the names of the man page of `ibv_poll_cq`. The safe layer is compared by
/// doorbell's own table.
pub fn status(syndrome: Syndrome) -> sys::ibv_wc_status {
    match syndrome {
        Syndrome::LOCAL_LENGTH => sys::IBV_WC_LOC_LEN_ERR,
        Syndrome::LOCAL_QP_OP => sys::IBV_WC_LOC_QP_OP_ERR,
        Syndrome::LOCAL_PROT => sys::IBV_WC_LOC_PROT_ERR,
        Syndrome::WR_FLUSH => sys::IBV_WC_WR_FLUSH_ERR,
        Syndrome::LOCAL_ACCESS => sys::IBV_WC_LOC_ACCESS_ERR,
        Syndrome::REMOTE_INVAL_REQ => sys::IBV_WC_REM_INV_REQ_ERR,
        Syndrome::REMOTE_ACCESS => sys::IBV_WC_REM_ACCESS_ERR,
        Syndrome::REMOTE_OP => sys::IBV_WC_REM_OP_ERR,
        _ => sys::IBV_WC_GENERAL_ERR,
    }
}
