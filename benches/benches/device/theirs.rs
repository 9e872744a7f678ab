//! Stock libmlx5 without locks: `ibv_post_send`, `ibv_poll_cq`, and work requests that lie ready.

use std::io;
use std::ptr::{self, NonNull};

use doorbell::raw::rdma_core_sys::*;

use crate::place::Place;
use crate::side::{INLINE, LONGEST, RECEIVES, Side};

#[path = "../../../soft-mlx5/tests/common/qp_states.rs"]
mod qp_states;

/// Completions that are polled at once, at most.
const MOST: usize = 32;

struct End {
    receive_cq: *mut ibv_cq,
    send_cq: *mut ibv_cq,
    srq: *mut ibv_srq,
    qps: Vec<*mut ibv_qp>,
    /// Index of the queue pair that sends next.
    next: usize,
    /// Receive buffers, then a buffer to send from, then the memory of the other end's requests.
    memory: NonNull<u8>,
    lkey: u32,
    rkey: u32,
    receives: Box<[ibv_recv_wr]>,
    _sges: Box<[ibv_sge]>,
    /// Requests of each queue pair since the last that asked for a completion.
    silent: Vec<u32>,
    /// Requests that have asked, and completions.
    asked: u64,
    done: u64,
}

/// Offset of the buffer to send from.
const SEND_FROM: usize = RECEIVES as usize * LONGEST;
/// Offset of the memory for requests of the other end.
const REMOTE: usize = SEND_FROM + LONGEST;
/// One request in so many asks for a completion, as programs of libmlx5 do.
const ASK: u32 = 32;

/// Returns the object that a function has made, or its name and why it failed.
fn made<T>(function: &str, object: *mut T) -> Result<*mut T, String> {
    if object.is_null() {
        return Err(format!("{function}: {}", io::Error::last_os_error()));
    }
    Ok(object)
}

/// Two ends.
pub struct Theirs([End; 2]);

impl End {
    /// # Safety
    /// An open context, and a live domain of a single thread and its protection domain.
    unsafe fn new(
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        thread: *mut ibv_pd,
        srq_of: Option<u32>,
    ) -> Result<Self, String> {
        let len = REMOTE + LONGEST;
        // Objects and memory stay until the process ends.
        let memory = NonNull::from(Box::leak(vec![7_u8; len].into_boxed_slice())).cast::<u8>();
        let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
        let mut cq = ibv_cq_init_attr_ex {
            cqe: 2 * RECEIVES,
            wc_flags: IBV_WC_EX_WITH_BYTE_LEN.into(),
            comp_mask: IBV_CQ_INIT_ATTR_MASK_FLAGS,
            flags: IBV_CREATE_CQ_ATTR_SINGLE_THREADED,
            ..Default::default()
        };
        let count = if srq_of.is_some() { RECEIVES - 1 } else { RECEIVES };
        // SAFETY: the caller's objects, and initialised structures; the memory stays.
        unsafe {
            let mr = made("ibv_reg_mr", ibv_reg_mr(pd, memory.as_ptr().cast(), len, access as _))?;
            let receive_cq = made("ibv_create_cq_ex", ibv_create_cq_ex(context, &mut cq))?.cast();
            let send_cq = made("ibv_create_cq_ex", ibv_create_cq_ex(context, &mut cq))?.cast();
            let mut init = ibv_srq_init_attr::default();
            (init.attr.max_wr, init.attr.max_sge) = (count, 1);
            let srq = match srq_of {
                Some(_) => made("ibv_create_srq", ibv_create_srq(thread, &mut init))?,
                None => ptr::null_mut(),
            };
            let mut init =
                ibv_qp_init_attr { send_cq, recv_cq: receive_cq, srq, qp_type: IBV_QPT_RC, ..Default::default() };
            (init.cap.max_send_wr, init.cap.max_send_sge, init.cap.max_inline_data) = (RECEIVES, 1, INLINE as u32);
            if srq_of.is_none() {
                (init.cap.max_recv_wr, init.cap.max_recv_sge) = (RECEIVES, 1);
            }
            let make = |_| made("ibv_create_qp", ibv_create_qp(thread, &mut init));
            let qps = (0..srq_of.unwrap_or(1)).map(make).collect::<Result<Vec<_>, _>>()?;
            let (lkey, rkey) = ((*mr).lkey, (*mr).rkey);
            let start = memory.as_ptr().expose_provenance() as u64;
            let sge = |i| ibv_sge { addr: start + u64::from(i) * LONGEST as u64, length: LONGEST as u32, lkey };
            let mut sges: Box<[_]> = (0..count).map(sge).collect();
            let receive = |(i, sge): (u64, &mut ibv_sge)| ibv_recv_wr {
                wr_id: i,
                sg_list: sge,
                num_sge: 1,
                ..Default::default()
            };
            let receives = (0..).zip(sges.iter_mut()).map(receive).collect();
            Ok(Self {
                receive_cq,
                send_cq,
                srq,
                silent: vec![0; qps.len()],
                qps,
                next: 0,
                memory,
                lkey,
                rkey,
                receives,
                _sges: sges,
                asked: 0,
                done: 0,
            })
        }
    }

    #[inline(always)]
    fn post(&mut self, first: *mut ibv_recv_wr) {
        let mut bad = ptr::null_mut();
        // SAFETY: live objects, and a list of work requests that stay and name memory that stays.
        let errno = unsafe {
            match self.srq.is_null() {
                true => ibv_post_recv(self.qps[0], first, &mut bad),
                false => ibv_post_srq_recv(self.srq, first, &mut bad),
            }
        };
        assert_eq!(errno, 0, "a receive");
    }

    #[inline(always)]
    fn receive(&mut self, most: u32) -> u32 {
        let mut wcs = [const { no_completion() }; MOST];
        // SAFETY: a live CQ, and room for the completions.
        let polled = unsafe { ibv_poll_cq(self.receive_cq, most.min(MOST as u32) as i32, wcs.as_mut_ptr()) };
        let mut next = ptr::null_mut();
        for wc in &wcs[..polled as usize] {
            assert_eq!(wc.status, IBV_WC_SUCCESS);
            let wr = &mut self.receives[wc.wr_id as usize];
            wr.next = next;
            next = wr;
        }
        if !next.is_null() {
            self.post(next);
        }
        polled as u32
    }

    /// Work request of one piece of memory, for the queue pair whose turn it is; `ask` has it complete.
    #[inline(always)]
    fn request(&mut self, sge: &mut ibv_sge, opcode: ibv_wr_opcode, ask: bool) -> ibv_send_wr {
        let mut flags = if sge.length as usize <= INLINE && opcode != IBV_WR_RDMA_READ { IBV_SEND_INLINE } else { 0 };
        let silent = &mut self.silent[self.next];
        *silent += 1;
        if ask || *silent == ASK {
            (*silent, self.asked) = (0, self.asked + 1);
            flags |= IBV_SEND_SIGNALED;
        }
        ibv_send_wr { sg_list: sge, num_sge: 1, opcode, send_flags: flags, ..Default::default() }
    }

    #[inline(always)]
    fn sge(&self, len: usize) -> ibv_sge {
        let addr = self.memory.as_ptr().expose_provenance() as u64 + SEND_FROM as u64;
        ibv_sge { addr, length: len as u32, lkey: self.lkey }
    }

    /// Posts requests to the queue pair whose turn it is.
    #[inline(always)]
    fn post_send(&mut self, wr: &mut ibv_send_wr) {
        let qp = self.qps[self.next];
        self.next = if self.next + 1 == self.qps.len() { 0 } else { self.next + 1 };
        // SAFETY: a live queue pair, and a list of work requests that name memory that stays.
        assert_eq!(unsafe { ibv_post_send(qp, wr, &mut ptr::null_mut()) }, 0, "a request");
    }

    #[inline(always)]
    fn reap(&mut self) {
        if self.done == self.asked {
            return;
        }
        let mut wc = no_completion();
        // SAFETY: a live CQ, and room for one completion.
        while unsafe { ibv_poll_cq(self.send_cq, 1, &mut wc) } == 1 {
            assert_eq!(wc.status, IBV_WC_SUCCESS);
            self.done += 1;
        }
    }
}

/// A completion without content.
const fn no_completion() -> ibv_wc {
    // SAFETY: a plain structure, for which all zeroes is a value.
    unsafe { std::mem::zeroed() }
}

impl Theirs {
    /// Makes both ends. Each receives from an SRQ of so many queue pairs, or from the queue of one.
    pub fn new(place: &Place, srq_of: Option<u32>) -> Result<Self, String> {
        let raw = place.context.as_raw();
        // SAFETY: an open context, live objects, initialised structures.
        let mut ends = unsafe {
            let pd = made("ibv_alloc_pd", ibv_alloc_pd(raw))?;
            let td = made("ibv_alloc_td", ibv_alloc_td(raw, &mut ibv_td_init_attr::default()))?;
            let mut attr = ibv_parent_domain_init_attr { pd, td, ..Default::default() };
            let thread = made("ibv_alloc_parent_domain", ibv_alloc_parent_domain(raw, &mut attr))?;
            [End::new(raw, pd, thread, srq_of)?, End::new(raw, pd, thread, srq_of)?]
        };
        for (&one, &other) in ends[0].qps.iter().zip(&ends[1].qps) {
            // SAFETY: live queue pairs.
            unsafe {
                connect(place, one, (*other).qp_num);
                connect(place, other, (*one).qp_num);
            }
        }
        for end in &mut ends {
            for index in 0..end.receives.len() {
                let wr = &raw mut end.receives[index];
                end.post(wr);
            }
        }
        Ok(Self(ends))
    }

    #[inline(always)]
    fn rdma(&mut self, from: usize, len: usize, opcode: ibv_wr_opcode) {
        let remote_addr = self.0[1 - from].memory.as_ptr().expose_provenance() as u64 + REMOTE as u64;
        let rkey = self.0[1 - from].rkey;
        let end = &mut self.0[from];
        let mut sge = end.sge(len);
        let mut wr = end.request(&mut sge, opcode, opcode == IBV_WR_RDMA_READ);
        (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey) = (remote_addr, rkey);
        end.post_send(&mut wr);
    }
}

/// Connects a queue pair with another one of the port.
fn connect(place: &Place, qp: *mut ibv_qp, peer: u32) {
    let mut attr = ibv_qp_attr {
        port_num: place.port,
        path_mtu: place.attr.active_mtu.map_or(0, |mtu| mtu as u32),
        dest_qp_num: peer,
        qp_access_flags: IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
        max_dest_rd_atomic: 1,
        max_rd_atomic: 1,
        min_rnr_timer: 1,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        ..Default::default()
    };
    (attr.ah_attr.dlid, attr.ah_attr.port_num) = (place.attr.lid, place.port);
    if let Some(gid) = place.gid {
        attr.ah_attr.is_global = 1;
        attr.ah_attr.grh.dgid.raw = gid.raw;
        (attr.ah_attr.grh.sgid_index, attr.ah_attr.grh.hop_limit) = (gid.index as u8, 64);
    }
    // SAFETY: a fresh queue pair.
    unsafe { qp_states::to(qp, &[IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS], attr) }
}

impl Side for Theirs {
    #[inline(always)]
    fn send(&mut self, from: usize, len: usize) {
        let end = &mut self.0[from];
        let mut sge = end.sge(len);
        let mut wr = end.request(&mut sge, IBV_WR_SEND, false);
        end.post_send(&mut wr);
    }

    #[inline(always)]
    fn receive(&mut self, at: usize, most: u32) -> u32 {
        self.0[at].receive(most)
    }

    #[inline(always)]
    fn write(&mut self, from: usize, len: usize, last: u8) {
        // SAFETY: inside of the memory. A write of before has arrived, because its answer has.
        unsafe { self.0[from].memory.add(SEND_FROM + len - 1).write_volatile(last) };
        self.rdma(from, len, IBV_WR_RDMA_WRITE);
    }

    #[inline(always)]
    fn last_byte(&self, at: usize, len: usize) -> u8 {
        // SAFETY: inside of the memory, which the device writes: read as it is.
        unsafe { self.0[at].memory.add(REMOTE + len - 1).read_volatile() }
    }

    #[inline(always)]
    fn read(&mut self, len: usize) {
        self.rdma(0, len, IBV_WR_RDMA_READ);
    }

    #[inline(always)]
    fn has_read(&mut self) -> bool {
        self.0[0].reap();
        self.0[0].done == self.0[0].asked
    }

    #[inline(always)]
    fn burst(&mut self, count: u32, len: usize) {
        let end = &mut self.0[0];
        let mut sges = [end.sge(len); MOST];
        let mut wrs = sges[..count as usize].iter_mut().map(|sge| end.request(sge, IBV_WR_SEND, false));
        let mut list: [ibv_send_wr; MOST] = std::array::from_fn(|_| wrs.next().unwrap_or_default());
        drop(wrs);
        let first = list.as_mut_ptr();
        for (index, wr) in list[..count as usize - 1].iter_mut().enumerate() {
            wr.next = first.wrapping_add(index + 1);
        }
        end.post_send(&mut list[0]);
    }

    #[inline(always)]
    fn reap(&mut self) {
        self.0.iter_mut().for_each(End::reap);
    }
}
