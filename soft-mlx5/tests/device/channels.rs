//! Completion channels and asynchronous events.

use std::ptr;
use std::time::Duration;

use crate::world::{World, modify, next_event, poll, post_recv, post_send};
use rdma_core_sys::*;

fn is_readable(fd: i32) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid pollfd.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 && poll.revents & libc::POLLIN != 0 }
}

fn next_cq(channel: *mut ibv_comp_channel) -> *mut ibv_cq {
    let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: the channel is alive.
    assert_eq!(unsafe { ibv_get_cq_event(channel, &mut cq, &mut context) }, 0);
    cq
}

// Makes a CQ with a channel, and a QP on it that is connected to itself.
fn loopback(world: &World, channel: *mut ibv_comp_channel) -> (*mut ibv_cq, *mut ibv_qp, *mut ibv_mr) {
    let cq = world.cq_with(16, channel);
    let qp = world.connected(cq, ptr::null_mut());
    let mr = world.reg(Box::leak(vec![0; 64].into_boxed_slice()), IBV_ACCESS_LOCAL_WRITE);
    (cq, qp, mr)
}

#[test]
fn an_armed_queue_raises_one_event_for_its_next_completion() {
    let world = World::stepped();
    let channel = world.channel();
    let (cq, qp, mr) = loopback(&world, channel);
    // SAFETY: the channel is alive.
    let fd = unsafe { (*channel).fd };
    world.exchange(qp, mr, 32);
    assert!(!is_readable(fd), "no event was asked for");
    while poll(cq).is_some() {}
    // SAFETY: the CQ is alive.
    assert_eq!(unsafe { ibv_req_notify_cq(cq, 0) }, 0);
    world.device().settle();
    assert!(!is_readable(fd), "there is no completion yet");
    world.exchange(qp, mr, 32);
    assert!(is_readable(fd));
    assert_eq!(next_cq(channel), cq);
    assert!(!is_readable(fd), "one event for two completions");
    // SAFETY: the CQ is alive until it is destroyed.
    unsafe {
        ibv_ack_cq_events(cq, 1);
        assert_eq!(ibv_destroy_qp(qp), 0);
        assert_eq!(ibv_destroy_cq(cq), 0, "all events were read and acknowledged");
        assert_eq!(ibv_destroy_comp_channel(channel), 0);
    }
}

#[test]
fn unread_events_go_with_their_queue() {
    let world = World::stepped();
    let channel = world.channel();
    let (cq, qp, mr) = loopback(&world, channel);
    let (other_cq, other_qp, other_mr) = loopback(&world, channel);
    for (cq, qp, mr) in [(cq, qp, mr), (other_cq, other_qp, other_mr)] {
        // SAFETY: the CQ is alive.
        assert_eq!(unsafe { ibv_req_notify_cq(cq, 0) }, 0);
        world.exchange(qp, mr, 32);
    }
    // SAFETY: QP and CQ are alive; the destroy call would wait for ever for an acknowledgement of
    // the unread event if the device counted it as read.
    unsafe {
        assert_eq!(ibv_destroy_qp(qp), 0);
        assert_eq!(ibv_destroy_cq(cq), 0);
    }
    assert_eq!(next_cq(channel), other_cq, "the event of the living is still there");
    // SAFETY: the channel is alive.
    assert!(!is_readable(unsafe { (*channel).fd }));
    // SAFETY: the CQ is alive.
    unsafe { ibv_ack_cq_events(other_cq, 1) };
}

#[test]
fn a_waiting_thread_is_woken_by_a_threaded_device() {
    let world = World::threaded();
    let channel = world.channel();
    let (cq, qp, mr) = loopback(&world, channel);
    for _ in 0..200 {
        // SAFETY: the CQ is alive.
        assert_eq!(unsafe { ibv_req_notify_cq(cq, 0) }, 0);
        post_recv(qp, mr, 0, 32);
        post_send(qp, mr, 32, 32);
        let mut taken = 0;
        while taken < 2 {
            assert_eq!(next_cq(channel), cq);
            // SAFETY: the CQ is alive.
            unsafe {
                ibv_ack_cq_events(cq, 1);
                assert_eq!(ibv_req_notify_cq(cq, 0), 0);
            }
            while let Some(wc) = poll(cq) {
                assert_eq!(wc.status, IBV_WC_SUCCESS);
                taken += 1;
            }
        }
    }
}

#[test]
fn many_unread_events_are_kept() {
    let world = World::stepped();
    let channel = world.channel();
    let queues: Vec<_> = (0..400).map(|_| loopback(&world, channel)).collect();
    for &(cq, qp, mr) in &queues {
        // SAFETY: the CQ is alive.
        assert_eq!(unsafe { ibv_req_notify_cq(cq, 0) }, 0);
        post_recv(qp, mr, 0, 32);
        post_send(qp, mr, 32, 32);
    }
    world.device().settle();
    let mut seen: Vec<_> = Vec::new();
    for _ in &queues {
        seen.push(next_cq(channel));
        world.device().step();
    }
    let mut expected: Vec<_> = queues.iter().map(|&(cq, ..)| cq).collect();
    seen.sort();
    expected.sort();
    assert_eq!(seen, expected);
}

#[test]
fn an_asynchronous_event_is_delivered_and_counted() {
    let world = World::stepped();
    let cq = world.cq(16);
    let srq = world.srq(4);
    let qp = world.connected(cq, srq);
    let attr = ibv_qp_attr { qp_state: IBV_QPS_ERR, ..Default::default() };
    assert_eq!(modify(qp, &attr, IBV_QP_STATE), 0);
    world.device().settle();
    let event = next_event(world.ctx).unwrap();
    assert_eq!(event.event_type, IBV_EVENT_QP_LAST_WQE_REACHED);
    // SAFETY: such an event has a QP, which is alive; destroying it would wait for ever for an event
    // that was counted as read and not acknowledged.
    unsafe {
        assert_eq!(event.element.qp, qp);
        assert_eq!(ibv_destroy_qp(qp), 0);
    }
}

#[test]
fn an_unread_asynchronous_event_goes_with_its_object() {
    let world = World::stepped();
    let qp = world.connected(world.cq(16), world.srq(4));
    let attr = ibv_qp_attr { qp_state: IBV_QPS_ERR, ..Default::default() };
    assert_eq!(modify(qp, &attr, IBV_QP_STATE), 0);
    world.device().settle();
    // SAFETY: context and QP are alive.
    unsafe {
        assert!(is_readable((*world.ctx).async_fd));
        assert_eq!(ibv_destroy_qp(qp), 0);
        assert!(!is_readable((*world.ctx).async_fd));
    }
}

#[test]
fn every_open_context_learns_that_the_link_went_down() {
    let world = World::stepped();
    let other = crate::world::open(world.device().name());
    world.device().set_link(false);
    for ctx in [world.ctx, other] {
        let event = next_event(ctx).unwrap();
        assert_eq!(event.event_type, IBV_EVENT_PORT_ERR);
        let mut port = ibv_port_attr::default();
        // SAFETY: such an event has a port; the context is open.
        unsafe {
            assert_eq!(event.element.port_num, 1);
            assert_eq!(ibv_query_port(ctx, 1, &mut port), 0);
            assert_eq!(port.state, IBV_PORT_DOWN);
        }
    }
    world.device().set_link(true);
    // SAFETY: the context is open.
    unsafe {
        assert!(is_readable((*other).async_fd));
        ibv_close_device(other);
    }
}

#[test]
fn a_queue_outlives_its_channel() {
    let world = World::stepped();
    let channel = world.channel();
    let (cq, qp, mr) = loopback(&world, channel);
    // SAFETY: closes the descriptor that the program was given; the channel's memory stays.
    unsafe { libc::close((*channel).fd) };
    // SAFETY: the CQ is alive.
    assert_eq!(unsafe { ibv_req_notify_cq(cq, 0) }, 0);
    world.exchange(qp, mr, 32);
    assert!(poll(cq).is_some(), "its completions can still be polled");
    // SAFETY: QP and CQ are alive.
    unsafe {
        assert_eq!(ibv_destroy_qp(qp), 0);
        assert_eq!(ibv_destroy_cq(cq), 0);
    }
}

#[test]
fn the_clock_can_be_read() {
    let world = World::stepped();
    let read = || {
        let mut values = ibv_values_ex { comp_mask: IBV_VALUES_MASK_RAW_CLOCK, ..Default::default() };
        // SAFETY: the context is open.
        assert_eq!(unsafe { ibv_query_rt_values_ex(world.ctx, &mut values) }, 0);
        values.raw_clock.tv_nsec
    };
    assert_eq!(read(), 0);
    world.device().advance(Duration::from_nanos(12_345));
    world.device().step();
    assert_eq!(read(), 12_345);
}
