//! Layouts that no driver makes are refused, and those at the edge are not.

use std::ptr::NonNull;

use mlx5_ring::{cq, rq, sq, srq};

#[test]
fn of_completion_queues() {
    let check = |cqe_cnt, cqe_size| {
        cq::Layout { buf: NonNull::dangling(), dbrec: NonNull::dangling(), cqe_cnt, cqe_size }.check()
    };
    for count in [1, 2, 1 << 22, 1 << 23] {
        assert_eq!((check(count, 64), check(count, 128)), (Ok(()), Ok(())), "{count} CQEs");
    }
    for count in [0, 3, 6, (1 << 23) - 1, (1 << 23) + 1, 1 << 24, 1 << 31] {
        assert_eq!(check(count, 64), Err(cq::LayoutError::CqeCount), "{count} CQEs");
    }
    for size in [0, 32, 63, 65, 96, 127, 256] {
        assert_eq!(check(4, size), Err(cq::LayoutError::CqeSize), "CQEs of {size} bytes");
    }
}

#[test]
fn of_receive_queues() {
    let check =
        |wqe_cnt, stride| rq::Layout { buf: NonNull::dangling(), dbrec: NonNull::dangling(), wqe_cnt, stride }.check();
    for count in [1, 2, 1 << 14, 1 << 15] {
        assert_eq!((check(count, 16), check(count, 512)), (Ok(()), Ok(())), "{count} WQEs");
    }
    for count in [0, 3, (1 << 15) - 1, (1 << 15) + 1, 1 << 16] {
        assert_eq!(check(count, 16), Err(rq::LayoutError::WqeCount), "{count} WQEs");
    }
    for stride in [0, 8, 15, 17, 48] {
        assert_eq!(check(4, stride), Err(rq::LayoutError::Stride), "WQEs of {stride} bytes");
    }
}

#[test]
fn of_shared_receive_queues() {
    let check = |head, tail, stride| {
        let layout = srq::Layout { buf: NonNull::dangling(), dbrec: NonNull::dangling(), stride, head, tail };
        layout.check()
    };
    for tail in [1, 3, (1 << 15) - 1, (1 << 16) - 1] {
        assert_eq!((check(0, tail, 32), check(0, tail, 512)), (Ok(()), Ok(())), "tail {tail}");
    }
    for tail in [0, 2, 4, 1 << 16, (1 << 17) - 1, u32::MAX] {
        assert_eq!(check(0, tail, 32), Err(srq::LayoutError::SlotCount), "tail {tail}");
    }
    for stride in [0, 16, 31, 33, 48] {
        assert_eq!(check(0, 3, stride), Err(srq::LayoutError::Stride), "WQEs of {stride} bytes");
    }
    assert_eq!(check(1, 3, 32), Err(srq::LayoutError::NotFresh));
}

#[test]
fn of_send_queues() {
    let check = |wqe_cnt, stride| {
        let layout = sq::Layout {
            buf: NonNull::dangling(),
            dbrec: NonNull::dangling(),
            wqe_cnt,
            stride,
            register: NonNull::dangling(),
            register_size: 0,
            qpn: 0,
        };
        layout.check()
    };
    for count in [1, 2, 1 << 14, 1 << 15] {
        assert_eq!(check(count, 64), Ok(()), "{count} basic blocks");
    }
    for count in [0, 3, (1 << 15) - 1, (1 << 15) + 1, 1 << 16] {
        assert_eq!(check(count, 64), Err(sq::LayoutError::BlockCount), "{count} basic blocks");
    }
    for stride in [0, 32, 63, 65, 128] {
        assert_eq!(check(4, stride), Err(sq::LayoutError::Stride), "blocks of {stride} bytes");
    }
}
