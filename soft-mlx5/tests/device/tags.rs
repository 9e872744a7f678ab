//! Tag matching as libmlx5 drives it.

use std::ptr;

use rdma_core_sys::*;

use crate::world::{World, errno, post_send};

const SLOTS: usize = 40;
const SLOT: usize = 256;
const TAGGED: usize = SLOTS * SLOT;
const SOURCE: usize = TAGGED + 4096;

/// A completion: `wr_id`, status, opcode, flags, bytes, tag.
#[derive(Debug, PartialEq, Eq)]
struct Seen(u64, u32, u32, u32, u32, u64);

struct Tags {
    world: World,
    cq: *mut ibv_cq_ex,
    srq: *mut ibv_srq,
    sender: *mut ibv_qp,
    mr: *mut ibv_mr,
    memory: Vec<u8>,
}

fn cq_ex(world: &World) -> *mut ibv_cq_ex {
    let wc_flags = u64::from(IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_TM_INFO);
    let mut attr = ibv_cq_init_attr_ex { cqe: 255, wc_flags, ..Default::default() };
    // SAFETY: the context is open.
    let cq = unsafe { ibv_create_cq_ex(world.ctx, &mut attr) };
    assert!(!cq.is_null());
    cq
}

fn create(world: &World, cq: *mut ibv_cq_ex, max_num_tags: u32) -> *mut ibv_srq {
    let mut attr = ibv_srq_init_attr_ex {
        srq_type: IBV_SRQT_TM,
        pd: world.pd,
        cq: cq.cast(),
        tm_cap: ibv_tm_cap { max_num_tags, max_ops: 16 },
        comp_mask: IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_TM,
        ..Default::default()
    };
    (attr.attr.max_wr, attr.attr.max_sge) = (64, 1);
    // SAFETY: context, domain and CQ are alive.
    unsafe { ibv_create_srq_ex(world.ctx, &mut attr) }
}

impl Tags {
    fn new() -> Self {
        let world = World::stepped();
        let mut memory = vec![0; SOURCE + 4096];
        let mr = world.reg(&mut memory, IBV_ACCESS_LOCAL_WRITE);
        let (cq, send_cq) = (cq_ex(&world), world.cq(64));
        let srq = create(&world, cq, 4);
        assert!(!srq.is_null(), "{}", errno());
        // The receiver's own CQ stays empty.
        let receiver = world.qp(IBV_QPT_RC, send_cq, srq);
        let sender = world.qp(IBV_QPT_RC, send_cq, ptr::null_mut());
        world.connect(receiver, sender);
        world.connect(sender, receiver);
        let tags = Self { world, cq, srq, sender, mr, memory };
        (0..SLOTS).for_each(|slot| tags.post_slot(slot));
        tags
    }

    fn sge(&self, at: usize, length: u32) -> ibv_sge {
        // SAFETY: the MR is alive.
        unsafe { ibv_sge { addr: (*self.mr).addr as u64 + at as u64, length, lkey: (*self.mr).lkey } }
    }

    fn post_slot(&self, slot: usize) {
        let mut sge = self.sge(slot * SLOT, SLOT as u32);
        let wr_id = 1000 + slot as u64;
        let mut wr = ibv_recv_wr { wr_id, sg_list: &mut sge, num_sge: 1, ..Default::default() };
        // SAFETY: SRQ and MR are alive.
        assert_eq!(unsafe { ibv_post_srq_recv(self.srq, &mut wr, &mut ptr::null_mut()) }, 0);
    }

    fn operate(&self, mut wr: ibv_ops_wr) -> u32 {
        wr.flags |= IBV_OPS_SIGNALED as i32;
        // SAFETY: the SRQ is alive, and the buffers belong to the MR.
        assert_eq!(unsafe { ibv_post_srq_ops(self.srq, &mut wr, &mut ptr::null_mut()) }, 0);
        self.world.device().settle();
        wr.tm.handle
    }

    fn add(&self, wr_id: u64, tag: u64, mask: u64, at: usize, length: u32) -> u32 {
        let mut sge = self.sge(TAGGED + at, length);
        let mut wr = ibv_ops_wr { wr_id, opcode: IBV_WR_TAG_ADD, ..Default::default() };
        wr.tm.add.recv_wr_id = wr_id + 100;
        (wr.tm.add.sg_list, wr.tm.add.num_sge) = (&mut sge, 1);
        (wr.tm.add.tag, wr.tm.add.mask) = (tag, mask);
        self.operate(wr)
    }

    fn remove(&self, wr_id: u64, handle: u32) {
        let mut wr = ibv_ops_wr { wr_id, opcode: IBV_WR_TAG_DEL, ..Default::default() };
        wr.tm.handle = handle;
        self.operate(wr);
    }

    fn synchronize(&self, wr_id: u64, count: u32) {
        let flags = IBV_OPS_TM_SYNC as i32;
        let mut wr = ibv_ops_wr { wr_id, opcode: IBV_WR_TAG_SYNC, flags, ..Default::default() };
        wr.tm.unexpected_cnt = count;
        self.operate(wr);
    }

    /// Sends an eager message.
    fn send(&mut self, tag: u64, payload: &[u8]) {
        let mut bytes = vec![3, 0, 0, 0, 0, 0, 0, 9];
        bytes.extend(tag.to_be_bytes());
        bytes.extend(payload);
        self.memory[SOURCE..][..bytes.len()].copy_from_slice(&bytes);
        post_send(self.sender, self.mr, SOURCE, bytes.len() as u32);
        self.world.device().settle();
    }

    fn seen(&self) -> Option<Seen> {
        // SAFETY: the CQ is alive and was created with these fields.
        unsafe {
            if ibv_start_poll(self.cq, &mut ibv_poll_cq_attr::default()) != 0 {
                return None;
            }
            let (status, mut info) = ((*self.cq).status, ibv_wc_tm_info::default());
            ibv_wc_read_tm_info(self.cq, &mut info);
            let seen = Seen(
                (*self.cq).wr_id,
                status,
                ibv_wc_read_opcode(self.cq),
                ibv_wc_read_wc_flags(self.cq),
                ibv_wc_read_byte_len(self.cq),
                info.tag,
            );
            ibv_end_poll(self.cq);
            Some(seen)
        }
    }

    #[track_caller]
    fn expect_done(&self, wr_id: u64, status: u32, opcode: u32, flags: u32) {
        let Seen(seen_id, seen_status, seen_opcode, seen_flags, ..) = self.seen().unwrap();
        assert_eq!((seen_id, seen_status, seen_opcode, seen_flags), (wr_id, status, opcode, flags));
    }
}

#[test]
fn the_library_adds_matches_removes_and_synchronizes() {
    let mut tags = Tags::new();
    let first = tags.add(1, 0x51, u64::MAX, 0, 512);
    tags.expect_done(1, IBV_WC_SUCCESS, IBV_WC_TM_ADD, 0);
    let second = tags.add(2, 0x50, 0xf0, 512, 2048);
    tags.expect_done(2, IBV_WC_SUCCESS, IBV_WC_TM_ADD, 0);

    tags.send(0x51, &[1; 100]);
    let both = IBV_WC_TM_MATCH | IBV_WC_TM_DATA_VALID;
    assert_eq!(tags.seen(), Some(Seen(101, IBV_WC_SUCCESS, IBV_WC_TM_RECV, both, 100, 0x51)));
    assert_eq!(tags.memory[TAGGED..TAGGED + 100], [1; 100]);

    // The entry was used: the remove is too late.
    tags.remove(3, first);
    tags.expect_done(3, IBV_WC_TM_ERR, IBV_WC_TM_DEL, 0);

    // Two packets: the match, then the data.
    tags.send(0x5f, &[2; 2000]);
    tags.expect_done(102, IBV_WC_SUCCESS, IBV_WC_TM_RECV, IBV_WC_TM_MATCH);
    let last = tags.seen().unwrap();
    assert_eq!((last.0, last.3, last.4), (102, IBV_WC_TM_DATA_VALID, 2000));
    assert_eq!(tags.memory[TAGGED + 512..TAGGED + 2512], [2; 2000]);
    assert_ne!(first, second);

    // No entry has this tag; the next add is out of phase until the library synchronizes.
    tags.send(0x77, &[3; 100]);
    tags.expect_done(1000, IBV_WC_SUCCESS, IBV_WC_TM_RECV, 0);
    assert_eq!(tags.memory[16..116], [3; 100]);
    tags.add(4, 0x77, u64::MAX, 0, 512);
    tags.expect_done(4, IBV_WC_SUCCESS, IBV_WC_TM_ADD, IBV_WC_TM_SYNC_REQ);
    tags.synchronize(5, 1);
    tags.expect_done(5, IBV_WC_SUCCESS, IBV_WC_TM_SYNC, 0);
    tags.send(0x77, &[4; 10]);
    tags.expect_done(104, IBV_WC_SUCCESS, IBV_WC_TM_RECV, both);
    assert_eq!(tags.memory[TAGGED..TAGGED + 10], [4; 10]);

    let fourth = tags.add(6, 0x88, u64::MAX, 0, 512);
    tags.expect_done(6, IBV_WC_SUCCESS, IBV_WC_TM_ADD, IBV_WC_TM_SYNC_REQ);
    tags.remove(7, fourth);
    let Seen(wr_id, status, opcode, ..) = tags.seen().unwrap();
    assert_eq!((wr_id, status, opcode), (7, IBV_WC_SUCCESS, IBV_WC_TM_DEL));
    assert_eq!(tags.seen(), None);
}

#[test]
fn a_list_has_from_1_to_127_tags() {
    let world = World::stepped();
    let mut attr = ibv_device_attr_ex::default();
    // SAFETY: the context is open.
    assert_eq!(unsafe { ibv_query_device_ex(world.ctx, ptr::null(), &mut attr) }, 0);
    let caps = attr.tm_caps;
    assert_eq!((caps.max_rndv_hdr_size, caps.max_num_tags, caps.max_ops), (64, 127, 8192));
    assert_eq!((caps.flags, caps.max_sge), (IBV_TM_CAP_RC, 1));
    let cq = cq_ex(&world);
    assert!(create(&world, cq, 128).is_null());
    assert_eq!(errno(), libc::EINVAL);
    let srq = create(&world, cq, 127);
    assert!(!srq.is_null());
    // SAFETY: both are alive; the SRQ keeps its CQ.
    unsafe {
        assert_eq!(ibv_destroy_cq(cq.cast()), libc::EBUSY);
        assert_eq!(ibv_destroy_srq(srq), 0);
        assert_eq!(ibv_destroy_cq(cq.cast()), 0);
    }
}
