//! Messages whose data the device reads.

use super::*;

const DATA: usize = SOURCE + (1 << 19);

fn offer(world: &World, tag: u64, at: usize, len: u32) -> Vec<u8> {
    let va = world.memory.addr() + (DATA + at) as u64;
    message(TmhOpcode::Rendezvous, 0x1234, tag, &read_me(va, world.key, len))
}

#[test]
fn the_data_is_read_and_the_sender_notified() {
    for len in [0, 1, 256, 257, 100_000] {
        let mut world = World::new(&PLAIN);
        let entry = world.appended(7, ALL, 0, 100_000);
        let data = pattern(1, len);
        world.memory.set(DATA, &data);
        let fin_at = world.memory.addr() + SOURCE as u64 + 4096;
        let fin = DataSegment::new(fin_at, 64, world.key);
        let counter = world.sender.post_receive(&[fin]);
        let offer = offer(&world, 7, 0, len as u32);
        world.send(&offer);
        let World { device, fin_cq, .. } = &mut world;
        device.run_until(|| fin_cq.peek().is_some());
        assert_eq!(world.tagged(0, len), data, "reported before the data was there");
        world.device.finish();
        let cqe = world.expect(AppOp::CONSUMED, entry);
        assert_eq!((header(&cqe).app_ctx.get(), header(&cqe).tag.get()), (0x1234, 7));
        assert_eq!(world.expect(AppOp::EXPECTED, entry).byte_cnt.get(), len as u32);
        world.cq.expect_nothing();
        let cqe = world.fin_cq.expect(CqeOpcode::ResponderSend, &world.sender, counter);
        let fin = world.memory.get(SOURCE + 4096, cqe.byte_cnt.get() as usize);
        assert_eq!(fin[0], TmhOpcode::Fin.byte());
        assert_eq!(fin[1..], offer[1..]);
        world.fin_cq.expect_nothing();
    }
}

#[test]
fn more_than_the_device_can_read_at_once() {
    const COUNT: usize = 120;
    let mut world = World::new(&Shape { tags: 127, ..PLAIN });
    let data = pattern(1, COUNT * 1000);
    world.memory.set(DATA, &data);
    let receive = DataSegment::new(world.memory.addr() + SOURCE as u64 + 60_000, 64, world.key);
    let mut fin = 0;
    for n in 0..COUNT {
        world.appended(n as u64, ALL, n * 1000, 1000);
    }
    let World { device, fin_cq, .. } = &mut world;
    device.settle();
    fin_cq.expect_nothing();
    for n in (0..COUNT).rev() {
        // At most as many as the sender's queues hold.
        if n % 40 == COUNT % 40 {
            world.device.finish();
        }
        world.sender.post_receive(&[receive]);
        let offer = offer(&world, n as u64, n * 1000, 1000);
        world.send(&offer);
        if n % 40 == 0 {
            world.device.finish();
            fin += world.fin_cq.drain().len();
        }
    }
    world.device.finish();
    assert_eq!(fin + world.fin_cq.drain().len(), COUNT);
    let mut parts = vec![Vec::new(); COUNT];
    for cqe in world.cq.drain() {
        parts[usize::from(cqe.app_info.get())].push(AppOp::new(cqe.app_op));
    }
    assert!(parts.iter().all(|ops| ops[..] == [AppOp::CONSUMED, AppOp::EXPECTED]), "{parts:?}");
    assert_eq!(world.tagged(0, COUNT * 1000), data);
}

#[test]
fn software_reads_what_the_device_cannot() {
    let with_send_queue = Shape { own_send_queue: true, ..PLAIN };
    // A buffer too small for the data, a buffer too small for the headers, no send queue for the device.
    for (shape, room) in [(&PLAIN, 499), (&PLAIN, 20), (&with_send_queue, 500)] {
        let mut world = World::new(shape);
        let entry = world.appended(7, ALL, 0, room);
        let offer = offer(&world, 7, 0, 500);
        world.send(&offer);
        world.device.finish();
        let cqe = world.expect(AppOp::CONSUMED_MSG_SW_RNDV, entry);
        assert_eq!(header(&cqe).tag.get(), 7);
        let len = room.min(32);
        assert_eq!(cqe.byte_cnt.get(), len);
        assert_eq!(world.tagged(0, 32)[..len as usize], offer[..len as usize]);
        assert_eq!(world.tagged(len as usize, 400), vec![0; 400]);
        world.cq.expect_nothing();
        assert!(!world.remove(entry));
        assert_eq!(world.device.state(&world.receiver), QpState::Rts);
    }
}

#[test]
fn headers_of_several_packets_come_in_two_parts() {
    let mut world = World::new(&PLAIN);
    let entry = world.appended(7, ALL, 0, 1000);
    let long = [offer(&world, 7, 0, 500), pattern(1, 400)].concat();
    world.send(&long);
    world.device.finish();
    world.expect(AppOp::CONSUMED_SW_RNDV, entry);
    assert_eq!(world.expect(AppOp::EXPECTED, entry).byte_cnt.get(), 432);
    assert_eq!(world.tagged(0, 432), long);
}

#[test]
fn an_unexpected_rendezvous_is_a_message_like_others() {
    let mut world = World::new(&PLAIN);
    let offer = offer(&world, 7, 0, 500);
    world.send(&offer);
    world.device.finish();
    assert_eq!(world.expect_slot(AppOp::UNEXPECTED), offer);
}

#[test]
fn an_entry_ends_when_its_data_cannot_be_read() {
    let mut world = World::new(&PLAIN);
    let first = world.appended(7, ALL, 0, 1000);
    let second = world.appended(8, ALL, 1000, 1000);
    let beyond = message(
        TmhOpcode::Rendezvous,
        0,
        7,
        &read_me(world.memory.addr() + world.memory.len() as u64 - 100, world.key, 101),
    );
    world.send(&beyond);
    let fine = offer(&world, 8, 0, 500);
    world.send(&fine);
    world.device.finish();
    world.expect(AppOp::CONSUMED, first);
    let mut rest: Vec<_> = world.cq.drain().iter().map(|cqe| (cqe.app_info.get(), AppOp::new(cqe.app_op))).collect();
    rest.retain(|event| *event != (second, AppOp::CONSUMED));
    rest.sort_by_key(|event| event.0);
    let ended = |entry| (entry, AppOp::MSG_COMPLETION_CANCELED);
    assert!(rest == [ended(first)] || rest == [ended(first), ended(second)], "{rest:?}");
    assert_eq!(world.device.state(&world.receiver), QpState::Err);
    world.fin_cq.expect_nothing();
}

#[test]
fn an_entry_ends_when_its_queue_pair_goes_while_data_is_read() {
    let mut world = World::new(&PLAIN);
    let entry = world.appended(7, ALL, 0, 1 << 18);
    let offer = offer(&world, 7, 0, 1 << 18);
    world.send(&offer);
    let World { device, cq, .. } = &mut world;
    device.run_until(|| cq.peek().is_some());
    world.expect(AppOp::CONSUMED, entry);
    world.device.nic.destroy_qp(world.receiver.number).unwrap();
    world.expect(AppOp::MSG_COMPLETION_CANCELED, entry);
}
