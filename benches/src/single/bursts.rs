//! Bursts of frames from buffers, posted and completed.

use std::mem::ManuallyDrop;

use doorbell::frames::{FrameConfig, FrameReceiver};
use doorbell::{Buffer, BufferPool, CqConfig, DataPath, PoolConfig, ProtectionDomain, Sender, SqId};
use rdma_core_sys::*;

use super::frames::{other_domain, poll, sending_qp};
use super::{ROUNDS, deliver};
use crate::step;
use crate::world::{BUFFER, Memory, World, made};

/// Frames of a burst.
pub(super) const BURST: u32 = 32;
/// Bytes of a frame: more than an adapter wants inline.
const LEN: u32 = 200;
/// Requests that can be outstanding: several bursts, so that they also end around the end of the ring.
const SENDS: u32 = 4 * BURST;

/// An end that sends bursts.
trait Bursts {
    /// Posts a burst with one doorbell.
    fn send(&mut self);
    /// Takes its completions, and the buffers back.
    fn sent(&mut self);
}

/// Returns the instructions of a frame: posted, and completed.
fn measure(world: &World, bursts: &mut impl Bursts) -> f64 {
    let mut all = 0;
    for round in 0..2 * ROUNDS {
        let send = step::count(|| bursts.send());
        deliver(world);
        let sent = step::count(|| bursts.sent());
        // The first half warms up.
        all += if round < ROUNDS { 0 } else { send.all + sent.all };
    }
    all as f64 / (ROUNDS as u64 * u64::from(BURST)) as f64
}

/// How a sender of doorbell posts a burst.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// A WQE for each frame.
    Single,
    /// Multi-packet WQEs.
    Together,
}

struct Safe {
    sender: Sender,
    queue: SqId,
    buffers: Vec<Buffer>,
    way: Way,
    _pool: BufferPool,
    _frames: FrameReceiver,
}

impl Bursts for Safe {
    #[inline(always)]
    fn send(&mut self) {
        let mut posting = self.sender.post_many(self.queue).expect("ready");
        if self.way == Way::Together {
            posting.send_frames(&mut self.buffers, true).expect("room");
            return;
        }
        while let Some(buffer) = self.buffers.pop() {
            posting.send_frame(buffer, true).expect("room");
        }
    }

    #[inline(always)]
    fn sent(&mut self) {
        let mut batch = self.sender.poll();
        while let Some(done) = batch.next() {
            let mut done = done.expect("no failure");
            match self.way {
                Way::Single => self.buffers.push(done.buffer.expect("a frame")),
                Way::Together => done.take_buffers(&mut self.buffers),
            }
        }
    }
}

pub(super) fn safe(world: &World, way: Way) -> f64 {
    let pd = other_domain(world);
    let cq = |entries| CqConfig::new(entries).path(DataPath::Direct);
    let mut sender = Sender::new(&pd, &cq(1024)).expect("a sender");
    let config = FrameConfig::new().plain(4, BUFFER).cq(cq(1)).max_send_wr(SENDS);
    let frames = FrameReceiver::with_sender(&pd, &config, &mut sender).expect("a queue pair");
    let queue = frames.send_queue().expect("made with a sender");
    let pool = BufferPool::new(&pd, &PoolConfig::new(BURST, BUFFER)).expect("a pool");
    let mut buffers: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
    buffers.iter_mut().for_each(|buffer| buffer.set_len(LEN as usize));
    let mut bursts = Safe { sender, queue, buffers, way, _pool: pool, _frames: frames };
    let cost = measure(world, &mut bursts);
    assert_eq!(bursts.buffers.len(), BURST as usize);
    cost
}

/// Stock libmlx5 without locks: `ibv_wr_send` of each frame, and one completion.
struct Libmlx5 {
    cq: *mut ibv_cq,
    qp: *mut ibv_qp_ex,
    memory: Memory,
    _pd: ManuallyDrop<ProtectionDomain>,
}

impl Bursts for Libmlx5 {
    #[inline(always)]
    fn send(&mut self) {
        let Self { qp, memory, .. } = *self;
        // SAFETY: a live queue pair that was created for sends, and memory that stays.
        let errno = unsafe {
            ibv_wr_start(qp);
            for at in 0..BURST {
                let signaled = if at == BURST - 1 { IBV_SEND_SIGNALED } else { 0 };
                ((*qp).wr_id, (*qp).wr_flags) = (at.into(), signaled | IBV_SEND_IP_CSUM);
                ibv_wr_send(qp);
                ibv_wr_set_sge(qp, memory.lkey, memory.start + u64::from(at * BUFFER), LEN);
            }
            ibv_wr_complete(qp)
        };
        assert_eq!(errno, 0);
    }

    #[inline(always)]
    fn sent(&mut self) {
        assert!(poll(self.cq).is_some());
    }
}

pub(super) fn libmlx5(world: &World) -> f64 {
    let pd = ManuallyDrop::new(other_domain(world));
    let (cq, qp) = sending_qp(&pd, SENDS, 0);
    let bytes = Box::leak(vec![0u8; (BURST * BUFFER) as usize].into_boxed_slice());
    let (start, len) = (bytes.as_mut_ptr(), bytes.len());
    // SAFETY: memory that stays, and a live region; a live queue pair.
    let (start, lkey, qp) = unsafe {
        let mr = made(ibv_reg_mr(pd.as_raw(), start.cast(), len, IBV_ACCESS_LOCAL_WRITE));
        (start.expose_provenance() as u64, (*mr).lkey, made(ibv_qp_to_qp_ex(qp)))
    };
    measure(world, &mut Libmlx5 { cq, qp, memory: Memory { start, lkey }, _pd: pd })
}
