//! Sends: doorbell's rings, its sender, `ibv_post_send`, and the `ibv_wr_*` builders.

use std::ptr;

use doorbell::{Buffer, BufferPool, RemoteRegion, SqId};
use doorbell::{PoolConfig, raw::WorkRequest};
use mlx5_ring::sge::Sge;
use mlx5_ring::sq::{Completion, Flags, Immediate, Payload, Remote};
use mlx5_wire::datagram::DatagramSegment;
use rdma_core_sys::*;

use super::libmlx5::write_sge;
use super::{Subject, unexpected};
use crate::name::{Calls, Name};
use crate::sends::{INLINE, Objects, datagram_segment, datagram_to};
use crate::sum::Sum;
use crate::world::{BUFFER, Locks, Request, World};

/// Memory of the peer, which is never accessed.
const REMOTE: RemoteRegion = RemoteRegion::new(0x1000_0000, 1 << 20, 0x1805);

/// Makes a subject on fresh objects.
pub(super) fn make(world: &World, objects: Objects, request: Request, name: Name, batch: u32) -> Box<dyn Subject> {
    macro_rules! of_request {
        ($subject:ident, $new:expr) => {
            match request {
                Request::Send => Box::new($subject::<{ Request::Send as u8 }>($new)),
                Request::Inline => Box::new($subject::<{ Request::Inline as u8 }>($new)),
                Request::Write => Box::new($subject::<{ Request::Write as u8 }>($new)),
                Request::Read => Box::new($subject::<{ Request::Read as u8 }>($new)),
                Request::Datagram => Box::new($subject::<{ Request::Datagram as u8 }>($new)),
            }
        };
    }
    match name {
        Name::Ring => of_request!(Ring, ring(world, objects)),
        Name::Sender => of_request!(Doorbell, doorbell(world, objects)),
        Name::PostSend(_) | Name::DropIn(Calls::PostSend) => {
            let writes_sges = name.locks() == Locks::Default;
            let lists = lists(objects, request, batch);
            if writes_sges { Box::new(PostSend::<true>(lists)) } else { Box::new(PostSend::<false>(lists)) }
        }
        Name::WrBuilders(_) | Name::DropIn(Calls::WrBuilders) => {
            of_request!(Builders, builders(objects))
        }
        _ => unreachable!("sends nothing"),
    }
}

const SEND: u8 = Request::Send as u8;
const INLINED: u8 = Request::Inline as u8;
const WRITE: u8 = Request::Write as u8;
const READ: u8 = Request::Read as u8;

/// The rings of a sender.
struct Direct {
    objects: Objects,
    queue: SqId,
    to: DatagramSegment,
}

fn ring(world: &World, objects: Objects) -> Direct {
    let (_, qps, _) = objects.doorbell.as_ref().expect("objects of doorbell");
    let queue = qps[0].send_queue().expect("made with a sender");
    Direct { queue, to: datagram_segment(world, &objects), objects }
}

/// `wr_id` of a request is the address of its buffer. The last request of a batch has a CQE, which completes all.
struct Ring<const REQUEST: u8>(Direct);

impl<const REQUEST: u8> Subject for Ring<REQUEST> {
    fn cycle(&mut self, count: u32, batch: u32) -> Sum {
        let Direct { objects, queue, to } = &mut self.0;
        let Some((sender, ..)) = &mut objects.doorbell else { unexpected() };
        let memory = objects.memory;
        let remote = Remote { addr: REMOTE.addr(), rkey: REMOTE.rkey() };
        let bytes = [7; INLINE];
        let pieces: [&[u8]; 1] = [&bytes];
        let copied = Payload::inline(&pieces);
        let mut sum = Sum::default();
        let mut addr = memory.start;
        // SAFETY: nothing else posts to the queue or polls its CQ.
        let Ok(Some((cq, ring))) = (unsafe { sender.as_direct(*queue) }) else { unexpected() };
        for _ in 0..count / batch {
            let mut posting = ring.posting();
            for _ in 0..batch {
                let request = WorkRequest::from_wr_id(addr);
                let sges = [Sge { addr, length: BUFFER, lkey: memory.lkey }];
                addr += u64::from(BUFFER);
                let (gather, flags) = (Payload::gather(&sges), Flags::NONE);
                // SAFETY: memory that stays, and a queue pair that is connected.
                let posted = unsafe {
                    match REQUEST {
                        SEND => posting.send(gather, Immediate::None, flags, request),
                        INLINED => posting.send(copied, Immediate::None, flags, request),
                        WRITE => posting.write(remote, gather, None, flags, request),
                        READ => posting.read(remote, &sges, flags, request),
                        _ => posting.send_to(to, gather, None, flags, request),
                    }
                };
                if posted.is_err() {
                    unexpected();
                }
            }
            drop(posting);
            let Some(done) = cq.next().and_then(Completion::read) else { unexpected() };
            let Some(over) = ring.complete(done.wqe_counter) else { unexpected() };
            if done.result.is_err() {
                unexpected();
            }
            over.for_each(|request| sum.add(request.wr_id(), 0));
            cq.publish();
        }
        sum
    }

    fn ids(&self, count: u32, _: u64) -> u64 {
        let start = self.0.objects.memory.start;
        (0..u64::from(count)).map(|i| start + i * u64::from(BUFFER)).sum()
    }
}

struct Sending {
    objects: Objects,
    queues: Vec<SqId>,
    buffers: Vec<Buffer>,
    _pool: BufferPool,
}

fn doorbell(world: &World, objects: Objects) -> Sending {
    let pool = BufferPool::new(&world.pd, &PoolConfig::new(objects.shape.slots, BUFFER)).expect("a pool");
    let mut buffers: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
    buffers.iter_mut().for_each(|buffer| buffer.set_len(BUFFER as usize));
    let (_, qps, _) = objects.doorbell.as_ref().expect("objects of doorbell");
    let queues = qps.iter().map(|qp| qp.send_queue().expect("made with a sender")).collect();
    Sending { objects, queues, buffers, _pool: pool }
}

struct Doorbell<const REQUEST: u8>(Sending);

impl<const REQUEST: u8> Subject for Doorbell<REQUEST> {
    fn cycle(&mut self, count: u32, batch: u32) -> Sum {
        let Sending { objects, queues, buffers, .. } = &mut self.0;
        let Some((sender, ..)) = &mut objects.doorbell else { unexpected() };
        let bytes = [7; INLINE];
        let mut sum = Sum::default();
        let mut next = 0;
        for _ in 0..count / batch {
            let Ok(mut posting) = sender.post_many(queues[next]) else { unexpected() };
            next += 1;
            if next == queues.len() {
                next = 0;
            }
            for _ in 0..batch {
                if REQUEST == INLINED {
                    if posting.send(&bytes).is_err() {
                        unexpected();
                    }
                    continue;
                }
                let Some(buffer) = buffers.pop() else { unexpected() };
                let posted = match REQUEST {
                    SEND => posting.send(buffer),
                    WRITE => posting.write(buffer, &REMOTE),
                    READ => {
                        let from = RemoteRegion::new(REMOTE.addr(), BUFFER as usize, REMOTE.rkey());
                        posting.read(buffer, &from)
                    }
                    _ => posting.send_to(&objects.to, buffer, None),
                };
                if posted.is_err() {
                    unexpected();
                }
            }
            drop(posting);
            let mut over = sender.poll_up_to(batch);
            while let Some(done) = over.next() {
                let Ok(done) = done else { unexpected() };
                sum.add(1, 0);
                if REQUEST != INLINED {
                    let Some(buffer) = done.buffer else { unexpected() };
                    buffers.push(buffer);
                }
            }
        }
        sum
    }
}

struct Lists {
    objects: Objects,
    wrs: Box<[ibv_send_wr]>,
    _sges: Box<[ibv_sge]>,
}

/// Work requests that lie ready, in lists of `batch`, of which the last asks for a completion.
fn lists(objects: Objects, request: Request, batch: u32) -> Lists {
    let (memory, slots) = (objects.memory, objects.shape.slots);
    let length = if request == Request::Inline { INLINE as u32 } else { BUFFER };
    let mut sges: Box<[_]> = (0..slots)
        .map(|i| ibv_sge { addr: memory.start + u64::from(i) * u64::from(BUFFER), length, lkey: memory.lkey })
        .collect();
    let mut wrs: Box<[_]> = sges
        .iter_mut()
        .map(|sge| ibv_send_wr {
            sg_list: sge,
            num_sge: 1,
            opcode: match request {
                Request::Write => IBV_WR_RDMA_WRITE,
                Request::Read => IBV_WR_RDMA_READ,
                _ => IBV_WR_SEND,
            },
            send_flags: if request == Request::Inline { IBV_SEND_INLINE } else { 0 },
            ..Default::default()
        })
        .collect();
    let (remote_qpn, remote_qkey) = datagram_to(&objects);
    let first = wrs.as_mut_ptr();
    for (i, wr) in wrs.iter_mut().enumerate() {
        if request == Request::Datagram {
            wr.wr.ud = ibv_send_wr__bindgen_ty_2__bindgen_ty_3 { ah: objects.ah, remote_qpn, remote_qkey };
        } else {
            (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey) = (REMOTE.addr(), REMOTE.rkey());
        }
        if (i + 1) % batch as usize == 0 {
            wr.send_flags |= IBV_SEND_SIGNALED;
        } else {
            wr.next = first.wrapping_add(i + 1);
        }
    }
    Lists { objects, wrs, _sges: sges }
}

struct PostSend<const WRITES_SGES: bool>(Lists);

/// Stores the SGEs of a list again, field by field, as most programs do right before they post it.
///
/// # Safety
/// `wr` is a list of work requests, whose SGEs can be written.
#[inline(always)]
unsafe fn write_sges(mut wr: *mut ibv_send_wr) {
    // SAFETY: a list of work requests, each with its SGEs.
    unsafe {
        while let Some(request) = wr.as_ref() {
            write_sge(request.sg_list);
            wr = request.next;
        }
    }
}

/// Takes the completion of a batch.
#[inline(always)]
fn take(cq: *mut ibv_cq) {
    let mut wc = ibv_wc::default();
    // SAFETY: a live CQ, and room for one completion.
    if unsafe { ibv_poll_cq(cq, 1, &mut wc) } != 1 || wc.status != IBV_WC_SUCCESS {
        unexpected();
    }
}

impl<const WRITES_SGES: bool> Subject for PostSend<WRITES_SGES> {
    fn cycle(&mut self, count: u32, batch: u32) -> Sum {
        let Lists { objects, wrs, .. } = &mut self.0;
        let mut sum = Sum::default();
        let mut next = 0;
        for list in 0..count / batch {
            let mut bad = ptr::null_mut();
            let first = &raw mut wrs[(list * batch) as usize];
            if WRITES_SGES {
                // SAFETY: a list of work requests that stay, each with its SGEs.
                unsafe { write_sges(first) };
            }
            // SAFETY: a live queue pair, a list of work requests that names memory that stays.
            if unsafe { ibv_post_send(objects.qps[next], first, &mut bad) } != 0 {
                unexpected();
            }
            next = (next + 1) % objects.qps.len();
            take(objects.cq);
            sum.add(batch.into(), 0);
        }
        sum
    }
}

struct Building {
    objects: Objects,
    qps: Vec<*mut ibv_qp_ex>,
    to: (u32, u32),
    bytes: Box<[u8; INLINE]>,
}

fn builders(objects: Objects) -> Building {
    // SAFETY: live queue pairs that were created with the flags of their operations.
    let qps = objects.qps.iter().map(|&qp| unsafe { ibv_qp_to_qp_ex(qp) }).collect();
    Building { to: datagram_to(&objects), objects, qps, bytes: Box::new([7; INLINE]) }
}

struct Builders<const REQUEST: u8>(Building);

impl<const REQUEST: u8> Subject for Builders<REQUEST> {
    fn cycle(&mut self, count: u32, batch: u32) -> Sum {
        let Building { objects, qps, to, bytes } = &mut self.0;
        let memory = objects.memory;
        let mut sum = Sum::default();
        let mut next = 0;
        let mut addr = memory.start;
        for _ in 0..count / batch {
            let qp = qps[next];
            next = (next + 1) % qps.len();
            // SAFETY: a live queue pair of those operations, and memory that stays.
            unsafe {
                ibv_wr_start(qp);
                for left in (0..batch).rev() {
                    (*qp).wr_id = 0;
                    (*qp).wr_flags = if left == 0 { IBV_SEND_SIGNALED } else { 0 };
                    match REQUEST {
                        WRITE => ibv_wr_rdma_write(qp, REMOTE.rkey(), REMOTE.addr()),
                        READ => ibv_wr_rdma_read(qp, REMOTE.rkey(), REMOTE.addr()),
                        _ => ibv_wr_send(qp),
                    }
                    if REQUEST > INLINED && REQUEST != WRITE && REQUEST != READ {
                        ibv_wr_set_ud_addr(qp, objects.ah, to.0, to.1);
                    }
                    match REQUEST {
                        INLINED => ibv_wr_set_inline_data(qp, bytes.as_mut_ptr().cast(), INLINE),
                        _ => ibv_wr_set_sge(qp, memory.lkey, addr, BUFFER),
                    }
                }
                if ibv_wr_complete(qp) != 0 {
                    unexpected();
                }
            }
            addr = if addr == memory.start { addr + u64::from(BUFFER) } else { memory.start };
            take(objects.cq);
            sum.add(batch.into(), 0);
        }
        sum
    }
}
