//! The rings themselves, with memory of the program's own.

use std::alloc::{Layout, alloc_zeroed, dealloc};

use doorbell::raw::SlotContext;
use doorbell::{Cause, ProtectionDomain, Receiver, SrqId, WcStatus};
use doorbell_tests::world::{Shared, Single};
use doorbell_tests::{device, direct_only, message, receiving};
use mlx5_ring::receive::{PostError, ReceiveRing};
use mlx5_ring::sge::Sge;
use rdma_core_sys as sys;

/// Two pages that the device may write, of which the second is not registered.
struct Memory {
    start: *mut u8,
    mr: *mut sys::ibv_mr,
}

const PAGE: usize = 4096;

fn pages() -> Layout {
    Layout::from_size_align(2 * PAGE, PAGE).unwrap()
}

impl Memory {
    fn new(pd: &ProtectionDomain) -> Self {
        // SAFETY: new pages, registered in a domain that outlives the region.
        unsafe {
            let start = alloc_zeroed(pages());
            let access = sys::IBV_ACCESS_LOCAL_WRITE;
            let mr = sys::ibv_reg_mr(pd.as_raw(), start.cast(), PAGE, access);
            assert!(!start.is_null() && !mr.is_null());
            Self { start, mr }
        }
    }

    fn sge(&self, offset: usize, length: u32) -> Sge {
        // SAFETY: the region exists.
        Sge { addr: self.start as u64 + offset as u64, length, lkey: unsafe { (*self.mr).lkey } }
    }

    fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= 2 * PAGE);
        // SAFETY: inside the pages; the device has completed its writes.
        (0..len).map(|i| unsafe { self.start.add(offset + i).read_volatile() }).collect()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: registered and allocated by `new`; all receives have completed, or their queue was destroyed.
        unsafe {
            assert_eq!(sys::ibv_dereg_mr(self.mr), 0);
            dealloc(self.start, pages());
        }
    }
}

fn post(receiver: &mut Receiver, srq: SrqId, wr_id: u64, sges: &[Sge]) {
    // SAFETY: the memory lives until the receive has completed, and no code touches it before.
    unsafe {
        let mut rings = receiver.as_direct().unwrap();
        let (_, ring) = rings.srq(srq).unwrap();
        ring.post(SlotContext::from_wr_id(wr_id), sges).unwrap();
        ring.ring_doorbell();
    }
}

/// The next completion, which is one of a receive posted through the ring.
fn completed(receiver: &mut Receiver) -> Cause {
    receiving::wait_for("a completion", || match receiver.poll_up_to(1).next()? {
        Ok(message) => panic!("{message:?} arrived"),
        Err(failure) => {
            assert!(failure.buffers.is_empty());
            Some(failure.cause)
        }
    })
}

#[test]
fn receives_of_the_program_and_of_the_library_share_a_queue() {
    direct_only!(&device::open());
    let mut w = Shared::without_patience(15, 2, 1, 64);
    let memory = Memory::new(&w.pd);
    for round in 0..50_u64 {
        let at = round as usize % 8 * 128;
        post(&mut w.receiver, w.queue, round, &[memory.sge(at, 10), memory.sge(at + 64, 54)]);
        w.receiver.post(w.queue, w.pool.take()).unwrap();
        w.peers.send(0, 64);
        w.peers.send(0, 64);
        assert_eq!(completed(&mut w.receiver), Cause::Raw(round));
        let bytes = [memory.bytes(at, 10), memory.bytes(at + 64, 54)].concat();
        assert_eq!(message::read(&bytes), (0, 2 * round));
        receiving::messages(&mut w.receiver, 1, |message| {
            assert_eq!(message::read(&message), (0, 2 * round + 1));
            drop(message.take().unwrap());
        });
    }
}

#[test]
fn an_entry_of_no_length_on_an_srq_is_left_out() {
    direct_only!(&device::open());
    let mut w = Shared::without_patience(15, 2, 1, 64);
    let memory = Memory::new(&w.pd);
    // The second entry is the whole of the receive: two gigabytes would not fit the region.
    post(&mut w.receiver, w.queue, 1, &[memory.sge(0, 0), memory.sge(64, 64)]);
    post(&mut w.receiver, w.queue, 2, &[memory.sge(256, 64), memory.sge(0, 0)]);
    w.peers.send(0, 64);
    w.peers.send(0, 64);
    for (wr_id, at) in [(1, 64), (2, 256)] {
        assert_eq!(completed(&mut w.receiver), Cause::Raw(wr_id));
        assert_eq!(message::read(&memory.bytes(at, 64)), (0, wr_id - 1));
    }
    assert_eq!(memory.bytes(0, 64), [0; 64]);
}

#[test]
fn an_entry_of_no_length_on_a_receive_queue_is_left_out() {
    direct_only!(&device::open());
    let mut w = Single::new(8, 64);
    let memory = Memory::new(&w.pd);
    // SAFETY: as in `post`.
    unsafe {
        let mut rings = w.receiver.as_direct().unwrap();
        let (_, ring) = rings.rq(w.queue).unwrap();
        let sges = [memory.sge(64, 64)];
        ring.post(SlotContext::from_wr_id(1), &[memory.sge(0, 0)]).unwrap();
        ring.post(SlotContext::from_wr_id(2), &sges).unwrap();
        ring.ring_doorbell();
    }
    w.peers.qps[0].send_inline(b"", None).unwrap();
    assert_eq!(completed(&mut w.receiver), Cause::Raw(1));
    w.peers.send(0, 64);
    assert_eq!(completed(&mut w.receiver), Cause::Raw(2));
    assert_eq!(message::read(&memory.bytes(64, 64)), (0, 0));
}

#[test]
fn an_entry_outside_its_region_fails_the_receive_and_is_not_written() {
    direct_only!(&device::open());
    for outside in [PAGE, PAGE - 32] {
        let mut w = Shared::without_patience(15, 1, 2, 64);
        let memory = Memory::new(&w.pd);
        post(&mut w.receiver, w.queue, 9, &[memory.sge(outside, 64)]);
        w.peers.send(0, 64);
        assert_eq!(completed(&mut w.receiver), Cause::Status(WcStatus::LOC_PROT_ERR));
        assert_eq!(memory.bytes(PAGE, PAGE), [0; PAGE]);
        assert_eq!(w.peers.qps[0].ended(), WcStatus::REM_OP_ERR);

        // The other queue pair and the queue work on.
        w.fill();
        w.peers.exchange(&mut w.receiver, 1, 1);
    }
}

#[test]
fn more_entries_than_a_receive_has_room_for() {
    direct_only!(&device::open());
    let mut w = Shared::without_patience(15, 1, 1, 64);
    let memory = Memory::new(&w.pd);
    let sges = [memory.sge(0, 8); 64];
    // SAFETY: as in `post`.
    unsafe {
        let mut rings = w.receiver.as_direct().unwrap();
        let (_, ring) = rings.srq(w.queue).unwrap();
        let refused = ring.post(SlotContext::from_wr_id(1), &sges).unwrap_err();
        assert_eq!(refused, PostError::TooManySges);
    }
    w.fill();
    w.exchange(1);
}

#[test]
fn the_verbs_path_has_no_rings() {
    let (pd, mut receiver) = device::start(64);
    let direct = device::drives_directly(pd.context());
    // SAFETY: nothing is done with them.
    assert_eq!(unsafe { receiver.as_direct() }.is_some(), direct);
}

/// Memory of the program failed the queue pair. It may be gone when the next message comes.
#[test]
fn a_receive_of_the_program_that_failed_is_not_posted_again() {
    direct_only!(&device::open());
    let mut w = Shared::without_patience(15, 1, 2, 64);
    let memory = Memory::new(&w.pd);
    for (at, peer) in [(PAGE, 0), (PAGE - 8, 1)] {
        post(&mut w.receiver, w.queue, 9, &[memory.sge(at, 64)]);
        w.peers.send(peer, 64);
        assert_eq!(completed(&mut w.receiver), Cause::Status(WcStatus::LOC_PROT_ERR));
        assert_eq!(w.free_slots(), w.capacity(), "the slot is free");
    }
}
