//! Batches of datagrams: addresses that come last, which allocate nothing, and batches that fail, which post nothing.

use std::alloc::{GlobalAlloc, Layout as Size, System};
use std::cell::Cell;
use std::mem;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;

use mlx5_ring::sq::{BlueFlame, Config, Layout, SendQueue};
use mlx5_wire::be::Be32;
use mlx5_wire::datagram::DatagramSegment;
use rdma_core_sys::{ibv_ah, ibv_data_buf, ibv_sge};

use super::parts::*;
use super::*;
use crate::av;
use crate::lock::Lock;
use crate::log::Count;
use crate::objects::{SendLimits, Status};

thread_local! {
    static ALLOCATIONS: Cell<u32> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, size: Size) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: `size` is not empty.
        unsafe { System.alloc(size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, size: Size) {
        // SAFETY: `alloc` has returned `memory` for this `size`.
        unsafe { System.dealloc(memory, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const BLOCKS: usize = 16;

#[repr(C, align(64))]
struct Device {
    ring: [u8; BLOCKS * 64],
    register: [u8; 512],
    record: [Be32; 2],
}

#[repr(C)]
struct Address {
    ah: ibv_ah,
    av: [u8; DatagramSegment::SIZE],
}

fn queue_pair(device: NonNull<Device>) -> Qp {
    let mut records = Box::new_uninit_slice(BLOCKS);
    let layout = Layout {
        buf: device.cast(),
        // SAFETY: the field is inside of the device.
        dbrec: unsafe { NonNull::new_unchecked(&raw mut (*device.as_ptr()).record) }.cast(),
        wqe_cnt: BLOCKS as u32,
        stride: 64,
        // SAFETY: the field is inside of the device.
        register: unsafe { NonNull::new_unchecked(&raw mut (*device.as_ptr()).register) }.cast(),
        register_size: 256,
        qpn: 7,
    };
    let config = Config { max_wqe_blocks: BLOCKS as u32, blue_flame: BlueFlame::Never };
    let storage = NonNull::from(&mut *records).cast();
    // SAFETY: the memory of the test lives longer, and there is a record for each block.
    let queue = unsafe { SendQueue::new(layout, config, storage) }.unwrap();
    let limits = SendLimits { requests: 8, sges: 2, inline: 60 };
    let side = SendSide {
        queue: queue.without_asking(),
        limits,
        has_atomics: false,
        posted: 0,
        retired: 0,
        draft: Draft::new(limits.inline),
        _records: records,
    };
    Qp {
        ibv: core::ptr::null_mut(),
        qpn: 7,
        transport: Transport::Ud,
        signal_all: false,
        send_cq: None,
        recv_cq: None,
        srq: None,
        status: Status::new(None),
        can_send: true.into(),
        send_queue: Lock::new(Some(side), true).into(),
        send_completer: SendCompleter::default(),
        receive_queue: Lock::new(None, true).into(),
        receive_completer: OnceLock::new(),
        original: std::sync::Mutex::new(None),
        sends_posted: Count::default().into(),
        receives_posted: Count::default().into(),
    }
}

/// Does what `wr_start` does for a queue pair that doorbell drives.
fn start(record: &Qp) {
    mem::forget(record.send_queue.lock());
    // SAFETY: this thread holds the lock.
    let side = unsafe { record.send_queue.held() }.as_mut().unwrap();
    side.draft.start = Some((side.queue.mark(), side.posted));
    (side.draft.error, side.draft.lacks) = (0, 0);
}

#[test]
fn a_late_address_allocates_nothing() {
    let mut device = Device { ring: [0; BLOCKS * 64], register: [0; 512], record: [0.into(); 2] };
    let device = NonNull::from(&mut device);
    let record = queue_pair(device);
    // SAFETY: structures of integers and pointers; the functions are called as verbs asks for.
    unsafe {
        let (mut qp, mut to): (ibv_qp_ex, Address) = (mem::zeroed(), mem::zeroed());
        find::place_in_qp(&mut qp).write(&record);
        av::assume(mem::offset_of!(Address, av));
        start(&record);
        let (qp, before) = (&raw mut qp, ALLOCATIONS.get());
        let ah = &raw mut to.ah;
        let mut bytes = *b"twenty bytes of text";
        let piece = ibv_data_buf { addr: bytes.as_mut_ptr().cast(), length: bytes.len() };
        let sge = ibv_sge { addr: 0x1000, length: 8, lkey: 9 };
        wr_send(qp);
        wr_set_inline_data_list(qp, 3, [piece; 3].as_ptr());
        wr_set_ud_addr(qp, ah, 0x55, 0x66);
        wr_send(qp);
        wr_set_sge_list(qp, 2, [sge; 2].as_ptr());
        wr_set_ud_addr(qp, ah, 0x55, 0x66);
        wr_send(qp);
        wr_set_inline_data(qp, bytes.as_mut_ptr().cast(), bytes.len());
        wr_set_ud_addr(qp, ah, 0x55, 0x66);
        assert_eq!(ALLOCATIONS.get(), before);
        assert_eq!(wr_complete(qp), 0);
    }
    assert_eq!(record.sends_posted.get(), 3);
    // SAFETY: no code writes to it any more.
    let ring = unsafe { device.as_ref() }.ring;
    let text = b"twenty bytes of text";
    assert_eq!(ring[64..68], [0x80, 0, 0, 60]);
    assert_eq!(ring[68..128], [*text; 3].concat());
    assert_eq!(ring[192..208], [0, 0, 0, 8, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0x10, 0]);
    assert_eq!(ring[320..344], [&[0x80, 0, 0, 20], &text[..]].concat());
}

/// The result of `ibv_wr_complete` after each case of [`wrong`].
const ERRORS: [c_int; 10] = [
    libc::EINVAL,
    libc::EINVAL,
    libc::EINVAL,
    libc::EINVAL,
    libc::EINVAL,
    libc::ENOMEM,
    libc::EINVAL,
    libc::ENOMEM,
    libc::ENOMEM,
    libc::EOPNOTSUPP,
];

/// Makes the calls of case `number`, which verbs forbids or the queue pair has no room for.
///
/// # Safety
/// A batch of the queue pair is open.
unsafe fn wrong(number: usize, qp: *mut ibv_qp_ex, ah: *mut ibv_ah) {
    // SAFETY: a batch is open; the lists can be read.
    unsafe {
        // 0 has no payload, 1 no address, 2 neither.
        match number {
            0..=2 => wr_send(qp),
            5 | 6 => {
                wr_send(qp);
                wr_set_ud_addr(qp, ah, 1, 2);
            }
            _ => {}
        }
        match number {
            0 => wr_set_ud_addr(qp, ah, 1, 2),
            1 => wr_set_sge(qp, 9, 0x1000, 8),
            2 => good(qp, ah),
            // A part without a request, and a part twice.
            3 => wr_set_sge(qp, 9, 0x1000, 8),
            4 => {
                good(qp, ah);
                wr_set_inline_data(qp, ptr::null_mut(), 0);
            }
            // More SGEs, longer ones, more inline data and more requests than the queue takes.
            5 => wr_set_sge_list(qp, 3, [ibv_sge { addr: 0, length: 8, lkey: 9 }; 3].as_ptr()),
            6 => wr_set_sge(qp, 9, 0x1000, 1 << 31),
            7 => {
                wr_send(qp);
                // Refused data is not read.
                wr_set_inline_data(qp, ptr::null_mut(), 61);
            }
            8 => (0..9).for_each(|_| good(qp, ah)),
            // The queue pair has no atomics.
            _ => wr_atomic_fetch_add(qp, 1, 8, 1),
        }
    }
}

/// # Safety
/// A batch of the queue pair is open.
unsafe fn good(qp: *mut ibv_qp_ex, ah: *mut ibv_ah) {
    // SAFETY: a batch is open.
    unsafe {
        wr_send(qp);
        wr_set_ud_addr(qp, ah, 1, 2);
        wr_set_sge(qp, 9, 0x1000, 8);
    }
}

#[test]
fn a_batch_that_fails_or_is_aborted_posts_nothing() {
    let mut device = Device { ring: [0; BLOCKS * 64], register: [0; 512], record: [0.into(); 2] };
    let device = NonNull::from(&mut device);
    let record = queue_pair(device);
    // SAFETY: structures of integers and pointers; each call names memory that can be read.
    unsafe {
        let (mut qp, mut to): (ibv_qp_ex, Address) = (mem::zeroed(), mem::zeroed());
        find::place_in_qp(&mut qp).write(&record);
        av::assume(mem::offset_of!(Address, av));
        let (qp, ah) = (&raw mut qp, &raw mut to.ah);
        let posted = |requests: u32| {
            let side = record.send_queue.lock();
            let side = side.as_ref().unwrap();
            assert_eq!((side.posted, side.queue.posted()), (requests, 2 * requests));
            assert_eq!(device.as_ref().record[1].get(), 2 * requests);
        };
        for (number, error) in ERRORS.into_iter().enumerate() {
            for is_good_first in [false, true] {
                start(&record);
                if is_good_first {
                    good(qp, ah);
                }
                wrong(number, qp, ah);
                // A correct request afterwards does not repair the batch.
                if number > 2 {
                    good(qp, ah);
                }
                assert_eq!(wr_complete(qp), error, "{number}");
                posted(0);
            }
        }
        start(&record);
        good(qp, ah);
        wr_abort(qp);
        posted(0);
        for batch in 1..=2 {
            start(&record);
            (0..4).for_each(|_| good(qp, ah));
            assert_eq!(wr_complete(qp), 0);
            posted(4 * batch);
        }
        start(&record);
        good(qp, ah);
        assert_eq!(wr_complete(qp), libc::ENOMEM);
        posted(8);
    }
    assert_eq!(record.sends_posted.get(), 8);
}

#[test]
fn calls_outside_of_a_batch_do_nothing() {
    let mut device = Device { ring: [0; BLOCKS * 64], register: [0; 512], record: [0.into(); 2] };
    let device = NonNull::from(&mut device);
    let record = queue_pair(device);
    // SAFETY: structures of integers and pointers; each call names memory that can be read.
    unsafe {
        let (mut qp, mut to): (ibv_qp_ex, Address) = (mem::zeroed(), mem::zeroed());
        find::place_in_qp(&mut qp).write(&record);
        av::assume(mem::offset_of!(Address, av));
        let (qp, ah) = (&raw mut qp, &raw mut to.ah);
        for posted in [0, 1] {
            good(qp, ah);
            (0..3).for_each(|number| wrong(number, qp, ah));
            assert_eq!(wr_complete(qp), libc::EINVAL);
            wr_abort(qp);
            // No thread holds the lock.
            let side = record.send_queue.try_lock().unwrap();
            assert!(record.send_queue.try_lock().is_none());
            assert_eq!(
                (side.as_ref().unwrap().posted, device.as_ref().record[1].get()),
                (posted, 2 * posted)
            );
            drop(side);
            start(&record);
            good(qp, ah);
            assert_eq!(wr_complete(qp), 0);
        }
    }
}
