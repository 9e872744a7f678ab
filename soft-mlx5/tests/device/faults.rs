//! Faults on request, as a program with libibverbs meets them.

use std::collections::HashMap;
use std::ptr;
use std::time::Duration;

use soft_mlx5::faults::{ByKind, PortFlap, Which};
use soft_mlx5::{Device, Faults, LinkLayer};

use crate::world::{
    SEND, World, create_qp, errno, init_attr, modify, names, next_async, poll, post_recv, post_send, query, to_init,
};
use rdma_core_sys::*;

fn stepped(faults: Faults) -> World {
    World::new(Device::builder().stepped().seed(5).faults(faults))
}

fn leaked(world: &World) -> *mut ibv_mr {
    world.reg(Box::leak(vec![0; 4096].into_boxed_slice()), IBV_ACCESS_LOCAL_WRITE)
}

fn byte(mr: *mut ibv_mr, at: usize) -> u8 {
    // SAFETY: the memory of the MR is leaked.
    unsafe { (*mr).addr.cast::<u8>().add(at).read_volatile() }
}

fn set_byte(mr: *mut ibv_mr, at: usize, byte: u8) {
    // SAFETY: the memory of the MR is leaked.
    unsafe { (*mr).addr.cast::<u8>().add(at).write_volatile(byte) }
}

#[test]
fn an_object_whose_destruction_fails_is_still_there() {
    let fail_destroy = ByKind {
        mr: Which::Nth(1),
        qp: Which::Nth(1),
        cq: Which::Nth(2),
        srq: Which::All,
        pd: Which::Nth(1),
        ..ByKind::default()
    };
    let world = stepped(Faults { fail_destroy, ..Faults::default() });
    let cq = world.cq(16);
    let srq = world.srq(16);
    let qp = world.connected(cq, ptr::null_mut());
    let mr = leaked(&world);
    // SAFETY: an object is used only until its destruction succeeds.
    unsafe {
        assert_eq!(ibv_destroy_qp(qp), libc::EBUSY);
        assert_eq!(ibv_dereg_mr(mr), libc::EBUSY);
        set_byte(mr, 40, 7);
        world.exchange(qp, mr, 64);
        assert_eq!(byte(mr, 64 + 40), 7, "the device still writes to the memory");
        while poll(cq).is_some() {}
        assert_eq!(ibv_destroy_qp(qp), 0);
        assert_eq!(ibv_dereg_mr(mr), 0);
        assert_eq!(ibv_destroy_cq(world.cq(1)), 0);
        assert_eq!(ibv_destroy_cq(cq), libc::EBUSY);
        assert_eq!(ibv_destroy_cq(cq), 0);
        assert_eq!(ibv_destroy_srq(srq), libc::EBUSY);
        assert_eq!(ibv_destroy_srq(srq), libc::EBUSY);
        let pd = ibv_alloc_pd(world.ctx);
        assert_eq!(ibv_dealloc_pd(pd), libc::EBUSY);
        assert_eq!(ibv_dealloc_pd(pd), 0);
        world.device().set_faults(Faults::default());
        assert_eq!(ibv_destroy_srq(srq), 0);
    }
}

/// Returns what `poll` reports of a descriptor.
fn polled(fd: i32) -> libc::c_short {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure.
    unsafe { libc::poll(&mut poll, 1, 0) };
    poll.revents
}

/// Reads at most so many bytes; returns the errno of a read that fails.
fn read(fd: i32, count: usize) -> Result<usize, i32> {
    let mut bytes = [0u8; 64];
    // SAFETY: there is room for `count` bytes.
    let got = unsafe { libc::read(fd, bytes[..count].as_mut_ptr().cast(), count) };
    usize::try_from(got).map_err(|_| errno())
}

/// The kernel reports POLLERR and nothing else, and reads fail at once, whether they may block or not. Files of
/// asynchronous events do not end.
#[test]
fn completion_channels_of_a_removed_device_end_with_an_error() {
    let world = stepped(Faults::default());
    let (busy, idle, copied) = (world.channel(), world.channel(), world.channel());
    let cq = world.cq_with(16, busy);
    let qp = world.connected(cq, ptr::null_mut());
    let mr = leaked(&world);
    // SAFETY: the objects of the program are alive.
    unsafe {
        let files = [(*world.ctx).async_fd, (*busy).fd, (*idle).fd, libc::dup((*copied).fd)];
        assert_eq!(ibv_req_notify_cq(cq, 0), 0);
        world.exchange(qp, mr, 64);
        // A sleeper in epoll, as runtimes are.
        let epoll = libc::epoll_create1(0);
        for fd in files {
            let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: fd as u64 };
            assert_eq!(libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &mut event), 0);
        }
        let mut found = [libc::epoll_event { events: 0, u64: 0 }; 4];
        let mut sleepers = |time| {
            let count = libc::epoll_wait(epoll, found.as_mut_ptr(), found.len() as i32, time);
            found[..count as usize]
                .iter()
                .map(|event| (event.u64 as i32, event.events as i32))
                .collect::<HashMap<_, _>>()
        };
        assert_eq!(sleepers(0), [(files[1], libc::EPOLLIN)].into());
        world.device().remove();
        let err = libc::EPOLLERR;
        // The event of the CQ went with the CQ.
        let ended = files[1..].iter().map(|&fd| (fd, err));
        assert_eq!(sleepers(0), ended.chain([(files[0], libc::EPOLLIN)]).collect());
        assert_eq!(polled(files[0]), libc::POLLIN);
        assert_eq!(next_async(world.ctx), Some(IBV_EVENT_DEVICE_FATAL));
        libc::fcntl(files[0], libc::F_SETFL, libc::O_NONBLOCK);
        for _ in 0..2 {
            assert_eq!((polled(files[0]), read(files[0], 16)), (0, Err(libc::EAGAIN)));
        }
        for flags in [0, libc::O_NONBLOCK, 0] {
            for &fd in &files[1..] {
                libc::fcntl(fd, libc::F_SETFL, flags);
                assert_eq!((polled(fd), read(fd, 16), polled(fd)), (libc::POLLERR, Err(libc::EIO), libc::POLLERR));
            }
        }
    }
}

#[test]
fn a_removal_wakes_all_who_read_an_event_file() {
    let world = World::new(Device::builder());
    let channel = world.channel() as usize;
    let sleeper = move || {
        let (mut cq, mut user) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is alive.
        let result = unsafe { ibv_get_cq_event(channel as *mut ibv_comp_channel, &mut cq, &mut user) };
        (result, errno())
    };
    let sleepers = [(); 3].map(|()| std::thread::spawn(sleeper));
    // They sleep, or come late: both must end.
    std::thread::sleep(Duration::from_millis(20));
    world.device().remove();
    for sleeper in sleepers {
        assert_eq!(sleeper.join().unwrap(), (-1, libc::EIO));
    }
}

#[test]
fn an_object_that_cannot_be_created_leaves_nothing_behind() {
    let first = Which::Nth(1);
    let fail_create = ByKind { mr: first, qp: first, cq: first, srq: first, pd: Which::Nth(2), ah: first };
    let world = World::new(
        Device::builder().stepped().link_layer(LinkLayer::Ethernet).faults(Faults { fail_create, ..Faults::default() }),
    );
    let page = Box::leak(vec![0; 4096].into_boxed_slice());
    let mut srq = ibv_srq_init_attr::default();
    (srq.attr.max_wr, srq.attr.max_sge) = (4, 1);
    let mut ah = ibv_ah_attr { port_num: 1, is_global: 1, ..Default::default() };
    // SAFETY: the context is open.
    assert_eq!(unsafe { ibv_query_gid(world.ctx, 1, 0, &mut ah.grh.dgid) }, 0);
    // SAFETY: the context and the domain are open; the memory is leaked.
    unsafe {
        for wanted in [Some(libc::ENOMEM), None] {
            let is_as_wanted = |null: bool| {
                let error = errno();
                assert_eq!(null.then_some(error), wanted);
            };
            is_as_wanted(ibv_create_cq(world.ctx, 4, ptr::null_mut(), ptr::null_mut(), 0).is_null());
            is_as_wanted(ibv_create_srq(world.pd, &mut srq).is_null());
            is_as_wanted(ibv_create_ah(world.pd, &mut ah).is_null());
            is_as_wanted(ibv_alloc_pd(world.ctx).is_null());
        }
        assert!(ibv_reg_mr(world.pd, page.as_mut_ptr().cast(), 4096, 0).is_null());
        assert_eq!(errno(), libc::EAGAIN);
        assert!(!ibv_reg_mr(world.pd, page.as_mut_ptr().cast(), 4096, 0).is_null());
        let cq = world.cq(16);
        let mut init = init_attr(IBV_QPT_RC, cq, 4);
        assert_eq!(create_qp(world.pd, &mut init).err(), Some(libc::ENOMEM));
        let qp = create_qp(world.pd, &mut init).unwrap();
        assert_eq!((ibv_destroy_qp(qp), ibv_destroy_cq(cq)), (0, 0), "the CQ is not in use");
    }
    assert_eq!(world.device().counters().injected.creates, 6);
}

#[test]
fn a_device_without_room_takes_an_object_when_another_is_gone() {
    let world = stepped(Faults { max_qps: Some(2), max_mkeys: Some(1), ..Faults::default() });
    let cq = world.cq(16);
    let qps = [(); 2].map(|()| world.qp(IBV_QPT_RC, cq, ptr::null_mut()));
    let mut init = init_attr(IBV_QPT_RC, cq, 4);
    let mr = leaked(&world);
    let page = Box::leak(vec![0; 4096].into_boxed_slice()).as_mut_ptr().cast();
    // SAFETY: an object is not used after its destruction; the memory is leaked.
    unsafe {
        for _ in 0..3 {
            assert_eq!(create_qp(world.pd, &mut init).err(), Some(libc::ENOMEM));
            assert!(ibv_reg_mr(world.pd, page, 4096, 0).is_null() && errno() == libc::EAGAIN);
        }
        assert_eq!(ibv_destroy_qp(qps[0]), 0);
        create_qp(world.pd, &mut init).unwrap();
        assert_eq!(ibv_dereg_mr(mr), 0);
        assert!(!ibv_reg_mr(world.pd, page, 4096, 0).is_null());
    }
    assert_eq!(world.device().counters().injected.creates, 6);
}

#[test]
fn a_removed_device_raises_an_event_and_then_fails_commands() {
    let world = stepped(Faults::default());
    let cq = world.cq(16);
    let qp = world.connected(cq, ptr::null_mut());
    let mr = leaked(&world);
    let name = world.device().name().to_owned();
    post_recv(qp, mr, 2048, 64);
    set_byte(mr, 40, 7);
    post_send(qp, mr, 0, 64);
    world.device().remove();
    world.device().settle();
    assert_eq!(byte(mr, 2048 + 40), 0, "the memory is left alone");
    assert!(poll(cq).is_none());
    assert_eq!(next_async(world.ctx), Some(IBV_EVENT_DEVICE_FATAL));
    world.device().set_link(false);
    assert_eq!(next_async(world.ctx), None, "no event follows");
    assert!(!names().contains(&name));
    // SAFETY: the program's side of all objects is alive; no object is used after its destruction.
    unsafe {
        assert!(ibv_alloc_pd(world.ctx).is_null());
        assert_eq!(errno(), libc::EIO);
        assert!(ibv_create_comp_channel(world.ctx).is_null());
        assert_eq!(errno(), libc::EIO);
        assert_eq!(modify(qp, &to_init(), IBV_QP_STATE), libc::EIO);
    }
}

/// The kernel keeps the answers, with the events that the program has read: libibverbs waits for their acknowledgement.
#[test]
fn objects_of_a_removed_device_can_be_destroyed_once() {
    let world = stepped(Faults::default());
    let channel = world.channel();
    let cq = world.cq_with(16, channel);
    let qp = world.connected(cq, ptr::null_mut());
    let mr = leaked(&world);
    let mut srq_attr = ibv_srq_init_attr::default();
    (srq_attr.attr.max_wr, srq_attr.attr.max_sge) = (4, 1);
    // SAFETY: the objects of the program are alive until they are destroyed.
    unsafe {
        let srq = ibv_create_srq(world.pd, &mut srq_attr);
        assert_eq!(ibv_req_notify_cq(cq, 0), 0);
        world.exchange(qp, mr, 64);
        let (mut of, mut user) = (ptr::null_mut(), ptr::null_mut());
        assert_eq!(ibv_get_cq_event(channel, &mut of, &mut user), 0);
        world.device().remove();
        // DEREG_MR in the form of a write.
        let (region, queue) = ((*mr).handle, (*srq).handle);
        let deregister = |handle: u32| {
            let command = [13u32, 3, handle];
            let taken = libc::write((*world.ctx).cmd_fd, command.as_ptr().cast(), size_of_val(&command));
            if taken < 0 { errno() } else { 0 }
        };
        assert_eq!(deregister(queue), libc::EINVAL);
        assert_eq!([deregister(region), deregister(region)], [0, libc::ENOENT]);
        assert_eq!((ibv_destroy_qp(qp), ibv_destroy_srq(srq)), (0, 0));
        let cq = cq as usize;
        let destruction = std::thread::spawn(move || ibv_destroy_cq(cq as *mut ibv_cq));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!destruction.is_finished(), "it waits for the acknowledgement of an event");
        ibv_ack_cq_events(of, 1);
        assert_eq!(destruction.join().unwrap(), 0);
        assert_eq!((ibv_destroy_comp_channel(channel), ibv_dealloc_pd(world.pd)), (0, 0));
    }
}

#[test]
fn a_device_that_works_by_itself_is_removed_once() {
    let world = World::new(Device::builder());
    world.connected(world.cq(16), ptr::null_mut());
    world.device().set_faults(Faults { remove_after: Some(Duration::ZERO), ..Faults::default() });
    let mut event = ibv_async_event::default();
    // SAFETY: the context is open; its end, whenever it comes, ends a call that waits.
    unsafe {
        assert_eq!(ibv_get_async_event(world.ctx, &mut event), 0);
        assert_eq!(event.event_type, IBV_EVENT_DEVICE_FATAL);
        ibv_ack_async_event(&mut event);
        assert!(next_async(world.ctx).is_none());
    }
}

#[test]
fn a_removal_and_a_port_that_flaps_keep_their_times() {
    let (up, down) = (Duration::from_millis(30), Duration::from_millis(20));
    let world = stepped(Faults {
        port_flap: Some(PortFlap { up, down }),
        remove_after: Some(Duration::from_millis(90)),
        ..Faults::default()
    });
    let mut events = Vec::new();
    while world.wait_for_timer() {
        let at = world.device().now().as_millis();
        events.extend(std::iter::from_fn(|| next_async(world.ctx)).map(|event| (at, event)));
        if at == 90 {
            break;
        }
    }
    let (down, up) = (IBV_EVENT_PORT_ERR, IBV_EVENT_PORT_ACTIVE);
    assert_eq!(events, [(30, down), (50, up), (80, down), (90, IBV_EVENT_DEVICE_FATAL)]);
}

// Returns the state of the port in sysfs, and from the command to query it.
fn port(world: &World) -> (Vec<String>, ibv_port_state) {
    let root = std::env::var("SYSFS_PATH").unwrap();
    let device = format!("{root}/class/infiniband/{}", world.device().name());
    let read = |name| std::fs::read_to_string(format!("{device}/ports/1/{name}")).unwrap();
    let mut attr = ibv_port_attr::default();
    // SAFETY: the context is open.
    assert_eq!(unsafe { ibv_query_port(world.ctx, 1, &mut attr) }, 0);
    (["state", "phys_state"].map(read).into(), attr.state)
}

#[test]
fn a_port_that_flaps_is_down_wherever_a_program_looks() {
    let active = (vec!["4: ACTIVE\n".to_owned(), "5: LinkUp\n".to_owned()], IBV_PORT_ACTIVE);
    let down = (vec!["1: DOWN\n".to_owned(), "3: Disabled\n".to_owned()], IBV_PORT_DOWN);
    let times = PortFlap { up: Duration::from_millis(30), down: Duration::from_millis(20) };
    let world = stepped(Faults { port_flap: Some(times), ..Faults::default() });
    for _ in 0..3 {
        assert_eq!(port(&world), active);
        world.device().advance(times.up);
        world.device().settle();
        assert_eq!(port(&world), down);
        world.device().advance(times.down);
        world.device().settle();
    }
    world.device().set_link(false);
    assert_eq!(port(&world), down);
    world.device().set_link(true);
    assert_eq!(port(&world), active);
}

#[test]
fn completions_come_in_random_order_but_not_those_of_one_queue() {
    let world = stepped(Faults { shuffle_completions: true, ..Faults::default() });
    let cq = world.cq(512);
    let mr = leaked(&world);
    let qps: Vec<_> = (0..4).map(|_| world.connected(cq, ptr::null_mut())).collect();
    for _ in 0..8 {
        for &qp in &qps {
            post_recv(qp, mr, 2048, 64);
            post_send(qp, mr, 0, 64);
        }
    }
    let mut order = Vec::new();
    world.device().settle();
    assert!(poll(cq).is_none(), "all CQEs wait for their time");
    while world.wait_for_timer() {
        while let Some(wc) = poll(cq) {
            assert_eq!(wc.status, IBV_WC_SUCCESS);
            order.push((wc.qp_num, wc.opcode & IBV_WC_RECV != 0));
        }
    }
    assert_eq!(order.len(), 64);
    let mut counts = HashMap::new();
    for queue in &order {
        *counts.entry(queue).or_insert(0) += 1;
    }
    assert!(counts.len() == 8 && counts.values().all(|count| *count == 8), "{counts:?}");
    let rounds = order.chunks(8).filter(|round| round.iter().any(|queue| *queue == order[0]));
    assert!(rounds.count() < 8, "queue by queue in turn: {order:?}");
}

// Returns the statuses of the completions, sends first.
fn statuses_of_both(cq: *mut ibv_cq) -> (Vec<ibv_wc_status>, Vec<ibv_wc_status>) {
    let all: Vec<_> = std::iter::from_fn(|| poll(cq)).collect();
    let of = |sends: bool| {
        let chosen = all.iter().filter(|wc| (wc.wr_id == SEND) == sends);
        chosen.map(|wc| wc.status).collect::<Vec<_>>()
    };
    (of(true), of(false))
}

#[test]
fn the_nth_operation_fails_as_asked() {
    let ok = IBV_WC_SUCCESS;
    let flushed = IBV_WC_WR_FLUSH_ERR;
    let failed = IBV_WC_LOC_QP_OP_ERR;
    for (faults, sends, receives, event) in [
        (Faults { fail_send: Some(2), ..Faults::default() }, [ok, failed], [ok, flushed], None),
        (
            Faults { fail_receive: Some(2), ..Faults::default() },
            // The QP is connected to itself: in error it receives no answer.
            [ok, flushed],
            [ok, failed],
            None,
        ),
        (
            // The first message counts twice: this device sends it and receives it.
            Faults { qp_fatal: Some(3), ..Faults::default() },
            [ok, flushed],
            [ok, flushed],
            Some(IBV_EVENT_QP_FATAL),
        ),
    ] {
        let world = stepped(faults);
        let cq = world.cq(16);
        let mr = leaked(&world);
        let qp = world.connected(cq, ptr::null_mut());
        world.exchange(qp, mr, 64);
        world.exchange(qp, mr, 64);
        let (sent, received) = statuses_of_both(cq);
        assert_eq!((&sent[..], &received[..]), (&sends[..], &receives[..]), "{faults:?}");
        assert_eq!(query(qp).qp_state, IBV_QPS_ERR);
        let events: Vec<_> = std::iter::from_fn(|| next_async(world.ctx)).collect();
        assert_eq!(events.contains(&IBV_EVENT_QP_FATAL), event.is_some(), "{events:?}");
    }
}

#[test]
fn a_receiver_that_plays_not_ready_gets_everything_in_the_end() {
    let world = stepped(Faults { rnr: 0.5, ..Faults::default() });
    let cq = world.cq(64);
    let mr = leaked(&world);
    let qp = world.connected(cq, ptr::null_mut());
    for _ in 0..16 {
        world.exchange(qp, mr, 64);
    }
    assert!(world.device().next_timer().is_some(), "a sender got RNR");
    let mut completions = 0;
    while completions < 32 {
        while let Some(wc) = poll(cq) {
            assert_eq!(wc.status, IBV_WC_SUCCESS);
            completions += 1;
        }
        world.wait_for_timer();
    }
}

#[test]
fn delay_and_slowness_are_seen_in_the_time_a_message_takes() {
    let time = |faults| {
        let world = stepped(faults);
        let cq = world.cq(16);
        let mr = leaked(&world);
        let qp = world.connected(cq, ptr::null_mut());
        world.exchange(qp, mr, 64);
        let mut completions = 0;
        loop {
            completions += std::iter::from_fn(|| poll(cq)).count();
            if completions == 2 {
                return world.device().now();
            }
            assert!(world.wait_for_timer(), "nothing to wait for");
        }
    };
    let us = Duration::from_micros;
    assert_eq!(time(Faults::default()), us(0));
    // There and back.
    assert_eq!(time(Faults { delay: us(70), ..Faults::default() }), us(140));
    let slow = time(Faults { slow: Some(us(100)), ..Faults::default() });
    assert!(slow >= us(100) && slow <= us(1000), "{slow:?}");
}
