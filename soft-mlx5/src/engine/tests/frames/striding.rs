//! Striding queues: many frames in a WQE.

use mlx5_wire::frame::StrideCount;
use mlx5_wire::syndrome::Syndrome;

use super::*;
use crate::base::rng::Rng;
use crate::objects::strict::Rule as StrictRule;

/// Bytes of a stride, and strides of a WQE: fewer than a driver may ask for, so that queues wrap soon.
const LOG_STRIDE: u32 = 6;
const LOG_STRIDES: u32 = 5;
const STRIDE: usize = 1 << LOG_STRIDE;
const STRIDES: u32 = 1 << LOG_STRIDES;

fn striding(attr: RwqAttr) -> RwqAttr {
    let striding = Striding { log_stride: LOG_STRIDE, log_strides: LOG_STRIDES, two_byte_shift: false };
    RwqAttr { striding: Some(striding), ..attr }
}

fn count(cqe: &Cqe64) -> StrideCount {
    StrideCount(cqe.byte_cnt.get())
}

/// A queue as its driver reads it: each CQE must name the WQE and the stride that the driver counts itself.
struct Reader {
    wqe: u16,
    stride: u32,
    frames: Vec<Vec<u8>>,
    fillers: u32,
}

impl Reader {
    fn new() -> Self {
        Self { wqe: 0, stride: 0, frames: Vec::new(), fillers: 0 }
    }

    /// Takes a CQE; returns `true` if its WQE is used up.
    fn take(&mut self, queue: &Queue, cqe: &Cqe64) -> bool {
        assert_eq!(cqe.wqe_id.get(), self.wqe);
        assert_eq!(u32::from(cqe.wqe_counter.get()), self.stride);
        let count = count(cqe);
        if count.is_filler() {
            assert_eq!((count.len(), self.stride + count.strides()), (0, STRIDES));
            self.fillers += 1;
        } else {
            let at = self.stride as usize * STRIDE;
            let len = count.len() as usize;
            assert_eq!(count.strides() as usize, len.div_ceil(STRIDE));
            self.frames.push(queue.received(self.wqe, at + len).split_off(at));
        }
        self.stride += count.strides();
        let done = self.stride == STRIDES;
        if done {
            (self.wqe, self.stride) = (self.wqe.wrapping_add(1), 0);
        }
        done
    }
}

#[test]
fn frames_of_every_size_fill_wqes_that_are_posted_again() {
    let mut pair = Pair::new();
    let mut queue = pair.queue(2, striding);
    pair.lead(&[queue.number], Some(3));
    queue.post();
    queue.post();
    let mut rng = Rng::new(1);
    let (mut reader, mut sent) = (Reader::new(), Vec::new());
    let largest = STRIDE * STRIDES as usize;
    let sizes = (60..=400).chain([largest - 1, largest, largest, 60, largest - STRIDE, 65]);
    for size in sizes.chain((0..300).map(|_| 60 + rng.below(1440) as usize)) {
        let frame = feed(&pattern(size as u64, size - 42)).build();
        pair.send(&frame);
        sent.push(frame);
        for cqe in pair.cq.drain() {
            assert!(count(&cqe).is_filler() || cqe.flow_tag() == 3);
            assert_eq!(cqe.dropped(), 0);
            if reader.take(&queue, &cqe) {
                queue.post();
            }
        }
    }
    assert!(reader.frames == sent);
    assert!(reader.fillers > 50 && reader.wqe > 100);
}

#[test]
fn a_wqe_id_wraps_at_16_bits() {
    let mut pair = Pair::new();
    let mut queue = pair.queue(2, striding);
    pair.lead(&[queue.number], None);
    queue.post();
    queue.post();
    let frame = feed(&vec![9; STRIDE * STRIDES as usize - 42]).build();
    let data = DataSegment::new(pair.memory.addr(), frame.len() as u32, pair.key);
    pair.memory.set(0, &frame);
    let work = Work::send().flags(0).bytes(&EthSegment::zeroed().to_bytes()).bytes(&data.to_bytes());
    let mut reader = Reader::new();
    for _ in 0..65_540 / 2 {
        pair.out.post(&mut pair.sender, &work);
        pair.out.post(&mut pair.sender, &work);
        pair.settle();
        for cqe in pair.cq.drain() {
            assert!(reader.take(&queue, &cqe));
            queue.post();
        }
        reader.frames.clear();
    }
    assert_eq!(reader.wqe, 4);
}

#[test]
fn a_queue_without_wqes_drops_and_a_wqe_that_is_too_short_is_closed() {
    let mut pair = Pair::new();
    let mut queue = pair.queue(1, striding);
    pair.lead(&[queue.number], None);
    let (small, large) = (feed(b"tick").build(), feed(&[1; 1000]).build());
    pair.send(&small);
    queue.post();
    let cqe = pair.arrives(&large);
    assert_eq!((cqe.dropped(), count(&cqe).strides()), (1, 17));
    // The WQE has no room for the frame, and there is no other WQE: the WQE is closed, and the frame is lost.
    let cqe = pair.arrives(&large);
    assert_eq!((count(&cqe).is_filler(), count(&cqe).strides(), cqe.wqe_counter.get()), (true, 15, 17));
    queue.post();
    let cqe = pair.arrives(&small);
    assert_eq!((cqe.dropped(), cqe.wqe_id.get(), cqe.wqe_counter.get()), (1, 1, 0));
}

#[test]
fn a_frame_larger_than_a_wqe_costs_one() {
    let mut pair = Pair::new();
    let mut queue = pair.queue(4, striding);
    pair.lead(&[queue.number], None);
    queue.post_many(3);
    pair.arrives(&feed(b"tick").build());
    let frame = feed(&vec![1; STRIDE * STRIDES as usize]).build();
    pair.send(&frame);
    let cqes = pair.cq.drain();
    assert!(count(&cqes[0]).is_filler());
    assert_eq!(error(&cqes[1]).syndrome, Syndrome::LOCAL_LENGTH.get());
    assert_eq!((error(&cqes[1]).wqe_counter.get(), cqes.len()), (1, 2));
    let cqe = pair.arrives(&feed(b"tick").build());
    assert_eq!((cqe.wqe_id.get(), cqe.wqe_counter.get()), (2, 0));
}

#[test]
fn frames_begin_two_bytes_into_their_stride_where_asked() {
    let mut pair = Pair::new();
    let mut queue = pair.queue(1, |attr| {
        let mut attr = striding(attr);
        attr.striding.as_mut().unwrap().two_byte_shift = true;
        attr
    });
    pair.lead(&[queue.number], None);
    queue.post();
    let frame = feed(&[5; 22]).build();
    assert_eq!(frame.len(), 64);
    let cqe = pair.arrives(&frame);
    assert_eq!((count(&cqe).len(), count(&cqe).strides()), (64, 2));
    assert_eq!(queue.received(0, 66)[2..], frame);
}

#[test]
fn the_rest_of_a_wqe_is_flushed_as_one() {
    let mut pair = Pair::new();
    let mut queue = pair.queue(2, striding);
    pair.lead(&[queue.number], None);
    queue.post();
    queue.post();
    pair.arrives(&feed(b"tick").build());
    pair.device.nic.modify_wq(queue.number, WqState::Ready, WqState::Err).unwrap();
    let flushed: Vec<_> = pair.cq.drain().iter().map(|cqe| error(cqe).wqe_counter.get()).collect();
    assert_eq!(flushed, [0, 1]);
}

#[test]
fn a_wqe_holds_all_its_strides() {
    let mut pair = Pair::with(|config| NicConfig { strict: false, ..config });
    let mut queue = pair.queue(4, striding);
    pair.lead(&[queue.number], None);
    queue.post_segment(DataSegment::new(queue.buffers.addr(), STRIDE as u32, queue.key));
    pair.send(&feed(b"tick").build());
    assert_eq!(pair.device.nic.violations(StrictRule::StridingWqe), 1);
}

#[test]
fn a_slot_is_posted_again_when_its_wqe_is_used_up() {
    let mut pair = Pair::with(|config| NicConfig { strict: false, ..config });
    let mut queue = pair.queue(1, striding);
    pair.lead(&[queue.number], None);
    queue.post();
    pair.arrives(&feed(b"tick").build());
    assert_eq!(pair.device.nic.violations(StrictRule::ReceiveOverflow), 0);
    queue.post();
    pair.settle();
    assert_eq!(pair.device.nic.violations(StrictRule::ReceiveOverflow), 1);
}
