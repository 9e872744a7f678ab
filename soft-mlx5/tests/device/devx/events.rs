//! Events that programs subscribe to, and answers that come later.

use std::fs::File;
use std::io::Read;
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;
use std::ptr;
use std::time::Duration;

use mlx5_wire::firmware::command::Opcode;
use mlx5_wire::firmware::eq::{Eqe, QueueData, event};
use mlx5_wire::firmware::qp::{QueryQpReply, state};
use rdma_core_sys::mlx5dv_devx_event_channel;
use soft_mlx5::Device;
use soft_mlx5::objects::strict::Rule;

use super::bench::*;
use super::{page, put_text};
use crate::world::errno;

const COMPLETION: u16 = event::COMPLETION as u16;
const OMIT_DATA: u32 = 1;

/// Reads what an event file has now.
fn read(fd: i32) -> Vec<Vec<u8>> {
    // SAFETY: plain calls on a descriptor of this test.
    unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) };
    // SAFETY: the descriptor stays open, and the file does not close it.
    let mut file = ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
    let mut records = Vec::new();
    let mut bytes = vec![0; 70_000];
    while let Ok(len) = file.read(&mut bytes) {
        records.push(bytes[..len].to_vec());
    }
    records
}

struct Channel(*mut mlx5dv_devx_event_channel);

impl Channel {
    fn new(bench: &Bench, flags: u32) -> Self {
        // SAFETY: the context is open.
        let channel = unsafe { (dv().devx_create_event_channel)(bench.world.ctx, flags) };
        assert!(!channel.is_null());
        Self(channel)
    }

    fn subscribe(&self, object: Object, types: &[u16], cookie: u64) -> i32 {
        let len = size_of_val(types) as u16;
        // SAFETY: channel and object are alive, and the list has this length.
        unsafe { (dv().devx_subscribe_devx_event)(self.0, object, len, types.as_ptr().cast_mut(), cookie) }
    }

    fn read(&self) -> Vec<Vec<u8>> {
        // SAFETY: the channel is alive.
        read(unsafe { (*self.0).fd })
    }
}

fn exchange(bench: &Bench, cq: &mut Cq, qp: &mut Qp, page: (u64, u32)) {
    bench.arm(cq);
    bench.send(qp, page.1, page.0, page.0 + 2048, 5);
    while bench.poll(cq).is_some() {}
}

#[test]
fn an_armed_cq_has_an_event_for_each_subscriber() {
    let bench = Bench::new();
    let mut cq = bench.cq();
    let mut qp = bench.qp(&cq);
    bench.connect(&qp);
    let page = page(&bench.world);
    put_text(page.0, "event");
    let (brief, full) = (Channel::new(&bench, OMIT_DATA), Channel::new(&bench, 0));
    assert_eq!(brief.subscribe(cq.object, &[COMPLETION], 0x1234), 0);
    assert_eq!(full.subscribe(cq.object, &[COMPLETION, event::CQ_ERROR.into()], 0x5678), 0);
    // SAFETY: the counter is a descriptor of this test.
    let counter = unsafe { libc::eventfd(0, 0) };
    // SAFETY: channel and object are alive.
    assert_eq!(unsafe { (dv().devx_subscribe_devx_event_fd)(full.0, counter, cq.object, COMPLETION) }, 0);
    exchange(&bench, &mut cq, &mut qp, page);
    exchange(&bench, &mut cq, &mut qp, page);
    assert_eq!(brief.read(), [0x1234u64.to_ne_bytes()], "one until it is read");
    let records = full.read();
    assert_eq!(records.len(), 2);
    for record in records {
        let (cookie, entry) = record.split_at(8);
        assert_eq!(cookie, 0x5678u64.to_ne_bytes());
        let eqe = Eqe::from_bytes(entry.first_chunk().unwrap());
        assert_eq!((eqe.event, QueueData::from_prefix(&eqe.data).unwrap().number), (event::COMPLETION, cq.number));
    }
    assert_eq!(read(counter), [2u64.to_ne_bytes()]);
    exchange(&bench, &mut cq, &mut qp, page);
    assert_eq!((brief.read().len(), full.read().len(), read(counter).len()), (1, 1, 1));
    // SAFETY: the channel is not used any more.
    unsafe { (dv().devx_destroy_event_channel)(full.0) };
    exchange(&bench, &mut cq, &mut qp, page);
    assert_eq!((brief.read().len(), read(counter).len()), (1, 0), "the closed channel has no subscriptions");
    assert_eq!((destroy(qp.object), destroy(cq.object)), (0, 0));
    // Numbers are used again some time.
    let mut again = (0..1000).map(|_| bench.cq()).find(|made| made.number == cq.number || destroy(made.object) != 0);
    let again = again.as_mut().filter(|again| again.number == cq.number).expect("the number of the first");
    let mut qp = bench.qp(again);
    bench.connect(&qp);
    exchange(&bench, again, &mut qp, page);
    assert_eq!(brief.read().len(), 0, "a destroyed object has no subscriptions");
}

#[test]
fn an_arm_at_the_page_of_another_cq_raises_no_event() {
    let mut bench = Bench::with(Device::builder().stepped());
    // Two registers are in a page.
    // SAFETY: the context is open.
    let [_, other] = [(); 2].map(|()| unsafe { (dv().devx_alloc_uar)(bench.world.ctx, 0) });
    let own = std::mem::replace(&mut bench.uar, other);
    let _other = bench.cq_with(|context| context.dbr_addr = 128);
    bench.uar = own;
    let mut cq = bench.cq();
    let mut qp = bench.qp(&cq);
    bench.connect(&qp);
    let (addr, key) = page(&bench.world);
    let channel = Channel::new(&bench, OMIT_DATA);
    assert_eq!(channel.subscribe(cq.object, &[COMPLETION], 1), 0);
    for (uar, violations, events) in [(own, 0, 1), (other, 1, 0), (own, 1, 1)] {
        bench.uar = uar;
        bench.arm(&mut cq);
        bench.uar = own;
        bench.send(&mut qp, key, addr, addr + 2048, 5);
        while bench.poll(&mut cq).is_some() {}
        assert_eq!((bench.world.device().violations(Rule::ArmCqn), channel.read().len()), (violations, events));
    }
}

#[test]
fn the_device_as_a_whole_has_port_events() {
    let bench = Bench::new();
    let channel = Channel::new(&bench, 0);
    assert_eq!(channel.subscribe(ptr::null_mut(), &[event::PORT_CHANGE.into()], 7), 0);
    bench.world.device().set_link(false);
    bench.world.device().set_link(true);
    let types: Vec<u8> = channel.read().iter().map(|record| record[8 + 3]).collect();
    assert_eq!(types, [event::PORT_DOWN, event::PORT_ACTIVE]);
}

#[test]
fn unknown_events_are_refused() {
    let bench = Bench::new();
    let cq = bench.cq();
    let channel = Channel::new(&bench, 0);
    assert_eq!(channel.subscribe(cq.object, &[event::PORT_CHANGE.into()], 0), libc::EINVAL);
    assert_eq!(channel.subscribe(cq.object, &[COMPLETION, 0x100], 0), libc::EINVAL);
    assert_eq!(channel.subscribe(ptr::null_mut(), &[COMPLETION], 0), libc::EINVAL);
    assert_eq!(channel.subscribe(cq.object, &[COMPLETION; 17], 0), libc::EINVAL);
    // SAFETY: channel and object are alive.
    assert_eq!(unsafe { (dv().devx_subscribe_devx_event_fd)(channel.0, 0, cq.object, COMPLETION) }, libc::EINVAL);
}

#[test]
fn a_queue_pair_reports_its_errors() {
    let bench = Bench::new();
    let cq = bench.cq();
    let qp = bench.qp(&cq);
    bench.connect(&qp);
    let channel = Channel::new(&bench, OMIT_DATA);
    assert_eq!(channel.subscribe(qp.object, &[event::WQ_CATASTROPHIC.into()], 5), 0);
    assert!(bench.world.device().fail_qp(qp.number));
    assert_eq!(channel.read(), [5u64.to_ne_bytes()]);
}

/// Returns what poll says of a descriptor now.
fn polled(fd: i32) -> i32 {
    let events = libc::POLLIN | libc::POLLRDHUP;
    let mut poll = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: the entry is alive.
    unsafe { libc::poll(&mut poll, 1, 0) };
    poll.revents.into()
}

/// Reads once, and waits for something to read; returns the errno.
fn read_one(fd: i32, bytes: &mut [u8]) -> Result<usize, i32> {
    // SAFETY: the bytes are writable.
    unsafe {
        libc::fcntl(fd, libc::F_SETFL, 0);
        let read = libc::read(fd, bytes.as_mut_ptr().cast(), bytes.len());
        usize::try_from(read).map_err(|_| errno())
    }
}

/// As `devx_async_event_read` and `devx_async_cmd_event_read` of Linux do it: what was not read is gone.
#[test]
fn the_files_of_a_removed_device_end() {
    let bench = Bench::new();
    let mut cq = bench.cq();
    let mut qp = bench.qp(&cq);
    bench.connect(&qp);
    let channels = [Channel::new(&bench, OMIT_DATA), Channel::new(&bench, 0)];
    for channel in &channels {
        assert_eq!(channel.subscribe(cq.object, &[COMPLETION], 1), 0);
    }
    // SAFETY: the context is open.
    let answers = unsafe { (dv().devx_create_cmd_comp)(bench.world.ctx) };
    let input = numbered(Opcode::QUERY_QP, qp.number);
    let (from, len) = (input.as_ptr().cast(), QueryQpReply::SIZE);
    // SAFETY: object and file are alive, and the input has its length.
    assert_eq!(unsafe { (dv().devx_obj_query_async)(qp.object, from, input.len(), len, 1, answers) }, 0);
    let page = page(&bench.world);
    exchange(&bench, &mut cq, &mut qp, page);
    // SAFETY: the channels and the file are alive.
    let files = unsafe { [(*channels[0].0).fd, (*channels[1].0).fd, (*answers).fd] };
    assert_eq!(files.map(polled), [i32::from(libc::POLLIN); 3]);
    bench.world.device().remove();
    let mut bytes = [0; 512];
    for fd in files {
        for _ in 0..2 {
            assert_eq!(polled(fd), (libc::POLLIN | libc::POLLRDHUP).into());
            assert_eq!(read_one(fd, &mut bytes), Err(libc::EIO));
            assert_eq!(read(fd), [[0; 0]; 0], "without waiting there is nothing");
            assert_eq!(errno(), libc::EAGAIN);
        }
    }
    // Driver's methods are gone, also those that destroy (`uverbs_disassociate_api`).
    assert_eq!((destroy(qp.object), deregister(cq.umem)), (libc::EIO, libc::EIO));
    let query = query_object(qp.object, &input, QueryQpReply::SIZE);
    assert_eq!(query.map(drop), Err((libc::EIO, 0, 0)));
    // SAFETY: the channels and the file are not used any more.
    unsafe {
        channels.iter().for_each(|channel| (dv().devx_destroy_event_channel)(channel.0));
        (dv().devx_destroy_cmd_comp)(answers);
    }
}

#[test]
fn a_removal_wakes_who_waits_for_an_event_or_an_answer() {
    let bench = Bench::with(Device::builder());
    let channels = [Channel::new(&bench, OMIT_DATA), Channel::new(&bench, 0)];
    // SAFETY: the context is open, and channels and file are alive.
    let files = unsafe {
        let answers = (dv().devx_create_cmd_comp)(bench.world.ctx);
        [(*channels[0].0).fd, (*channels[1].0).fd, (*answers).fd]
    };
    let sleepers = files.map(|fd| std::thread::spawn(move || read_one(fd, &mut [0; 512])));
    // They sleep, or come late: all must end.
    std::thread::sleep(Duration::from_millis(20));
    bench.world.device().remove();
    for sleeper in sleepers {
        assert_eq!(sleeper.join().unwrap(), Err(libc::EIO));
    }
}

#[test]
fn answers_of_asynchronous_queries_come_to_a_file() {
    let bench = Bench::new();
    let cq = bench.cq();
    let qp = bench.qp(&cq);
    // SAFETY: the context is open.
    let file = unsafe { (dv().devx_create_cmd_comp)(bench.world.ctx) };
    assert!(!file.is_null());
    let ask = |number, len, id| {
        let input = numbered(Opcode::QUERY_QP, number);
        // SAFETY: object and file are alive, and the input has its length.
        unsafe { (dv().devx_obj_query_async)(qp.object, input.as_ptr().cast(), input.len(), len, id, file) }
    };
    assert_eq!(ask(qp.number, QueryQpReply::SIZE, 1), 0);
    assert_eq!(ask(qp.number, 16, 2), 0, "the refusal is the answer");
    assert_eq!(ask(qp.number + 1, QueryQpReply::SIZE, 3), libc::EINVAL);
    // SAFETY: the file is alive.
    let records = read(unsafe { (*file).fd });
    let ids: Vec<u8> = records.iter().map(|record| record[0]).collect();
    assert_eq!(ids, [1, 2]);
    let context = QueryQpReply::from_prefix(&records[0][8..]).unwrap().context;
    assert_eq!((context.state, context.pd), (state::RST, bench.pdn()));
    assert_eq!((records[1].len(), records[1][8]), (24, 0x51), "bad output length");
    // SAFETY: the file is not used any more.
    unsafe { (dv().devx_destroy_cmd_comp)(file) };
}
