//! Sets of counters that programs give to queues.

use mlx5_wire::ctrl::CQ_UPDATE;
use mlx5_wire::firmware::command::Opcode;
use mlx5_wire::firmware::counters::{QueryQCounter, QueryQCounterReply};
use mlx5_wire::firmware::qp::{AddressPath, QpContext, optional};
use mlx5_wire::firmware::transport::{ModifyQueue, RqContext};
use mlx5_wire::firmware::wq::state;
use rdma_core_sys::*;
use soft_mlx5::LinkLayer;

use super::bench::*;
use super::{BAD_PARAM, BAD_RESOURCE, NO_OBJECT, OWNER, page, refused};
use crate::frames::{Stranger, frame, raw_qp, send, to_group, try_flow};
use crate::world::open;

/// A set of counters.
struct Set {
    object: Object,
    number: u8,
}

impl Set {
    fn new(bench: &Bench) -> Self {
        Self::of(bench.world.ctx)
    }

    fn of(ctx: *mut ibv_context) -> Self {
        let (object, number) = create_in(ctx, &numbered(Opcode::ALLOC_Q_COUNTER, 0)).unwrap();
        Self { object, number: number as u8 }
    }

    fn ask(&self, change: impl FnOnce(&mut QueryQCounter)) -> Result<QueryQCounterReply, Refused> {
        let mut query =
            QueryQCounter { request: request(Opcode::QUERY_Q_COUNTER), set: self.number, ..QueryQCounter::ZERO };
        change(&mut query);
        let reply = query_object(self.object, &query.to_bytes(), QueryQCounterReply::SIZE)?;
        Ok(QueryQCounterReply::from_prefix(&reply).unwrap())
    }

    fn counters(&self) -> QueryQCounterReply {
        self.ask(|_| {}).unwrap()
    }
}

/// Connects a queue pair to itself; it counts in this set from Init on.
fn connect(bench: &Bench, qp: &Qp, counter_set_id: u8) {
    bench.connect_by(qp.number, |opcode, context| {
        bench.modify(qp, opcode, QpContext { counter_set_id, ..context }).unwrap();
    });
}

/// Sends a message for which the receive comes late.
fn send_early(bench: &Bench, qp: &mut Qp, page: (u64, u32)) {
    bench.post_send(qp, page.1, page.0, 5, CQ_UPDATE);
    bench.world.device().settle();
    bench.post_receive(qp, page.1, page.0 + 2048, 5);
    while bench.world.wait_for_timer() {}
}

#[test]
fn a_set_counts_the_events_of_its_queues() {
    for link in [LinkLayer::InfiniBand, LinkLayer::Ethernet] {
        let bench = Bench::on(link);
        let mut cq = bench.cq();
        let mut qp = bench.qp(&cq);
        let (own, other) = (Set::new(&bench), Set::new(&bench));
        connect(&bench, &qp, own.number);
        let page = page(&bench.world);
        send_early(&bench, &mut qp, page);
        assert_eq!(std::iter::from_fn(|| bench.poll(&mut cq)).count(), 2, "the message arrives in the end");
        let counters = own.counters();
        assert_eq!((counters.out_of_buffer, counters.rnr_nak_retry_err), (1, 1));
        assert_eq!((counters.req_cqe_error, counters.duplicate_request), (0, 0));
        assert_eq!(other.counters(), QueryQCounterReply::ZERO);
        // From now on the queue pair counts in the other set.
        let moved = QpContext { counter_set_id: other.number, ..QpContext::ZERO };
        let modify = |optional| bench.modify_with(&qp, Opcode::RTS2RTS_QP, optional, moved);
        assert_eq!((modify(0), other.counters()), (Ok(()), QueryQCounterReply::ZERO));
        assert_eq!(modify(optional::COUNTER_SET), Ok(()));
        send_early(&bench, &mut qp, page);
        assert_eq!((own.counters(), other.counters().out_of_buffer), (counters, 1));
        assert_eq!(own.ask(|query| query.clear = true), Ok(counters), "the values before they are zero");
        assert_eq!(own.counters(), QueryQCounterReply::ZERO);
        assert_eq!(own.ask(|query| query.aggregate = true), Err(refused(BAD_PARAM, 0x1206)));
    }
}

#[test]
fn a_set_counts_errors_and_requests() {
    let bench = Bench::new();
    let (cq, set) = (bench.cq(), Set::new(&bench));
    let mut qp = bench.qp(&cq);
    connect(&bench, &qp, set.number);
    let (addr, key) = page(&bench.world);
    bench.post_receive(&mut qp, key, addr + 2048, 4);
    bench.post_receive(&mut qp, key, addr + 2048, 5);
    bench.post_send(&mut qp, key, addr, 5, CQ_UPDATE);
    bench.world.device().settle();
    let counters = set.counters();
    assert_eq!((counters.resp_local_length_error, counters.resp_cqe_error, counters.resp_cqe_flush_error), (1, 2, 1));
    // The peer of the SEND is its own queue pair, which has failed before an answer comes.
    assert_eq!((counters.req_cqe_error, counters.req_cqe_flush_error), (1, 1));
}

#[test]
fn a_set_of_another_context_is_refused() {
    let bench = Bench::new();
    let (cq, other) = (bench.cq(), open(bench.world.device().name()));
    let (qp, foreign) = (bench.qp(&cq), Set::of(other));
    let init = |counter_set_id| {
        let path = AddressPath { port: 1, ..AddressPath::ZERO };
        bench.modify(&qp, Opcode::RST2INIT_QP, QpContext { counter_set_id, pm_state: 3, path, ..QpContext::ZERO })
    };
    assert_eq!(init(foreign.number), Err(refused(BAD_RESOURCE, OWNER)));
    assert_eq!(init(foreign.number + 1), Err(refused(BAD_RESOURCE, NO_OBJECT)));
    let create = |counter_set_id| {
        let mut create = bench.qp_command(bench.pdn(), cq.number, bench.umem_id(qp.umem));
        create.context.counter_set_id = counter_set_id;
        bench.create(&create.to_bytes()).map(|(object, _)| destroy(object))
    };
    assert_eq!(create(foreign.number), Err(refused(BAD_RESOURCE, OWNER)));
    assert_eq!(create(0), Ok(0));
    assert_eq!(init(0), Ok(()));
    let own = Set::new(&bench);
    let input = QueryQCounter { request: request(Opcode::QUERY_Q_COUNTER), set: foreign.number, ..QueryQCounter::ZERO };
    let asked = query_object(own.object, &input.to_bytes(), QueryQCounterReply::SIZE);
    assert_eq!(asked.map(drop), Err((libc::EINVAL, 0, 0)), "the handle is that of another set");
    // SAFETY: the context is not used any more.
    assert_eq!(unsafe { ibv_close_device(other) }, 0);
}

/// A set that ends before its queue: the next set with its number begins at zero, and stays there.
#[test]
fn a_queue_does_not_count_in_a_later_set_of_the_same_number() {
    let bench = Bench::new();
    let (cq, set) = (bench.cq(), Set::new(&bench));
    let mut qp = bench.qp(&cq);
    connect(&bench, &qp, set.number);
    let page = page(&bench.world);
    send_early(&bench, &mut qp, page);
    assert_eq!((set.counters().out_of_buffer, destroy(set.object)), (1, 0));
    let again = Set::new(&bench);
    assert_eq!(again.number, set.number);
    send_early(&bench, &mut qp, page);
    assert_eq!(again.counters(), QueryQCounterReply::ZERO);
}

/// DPDK reads the frames that it missed in this way.
#[test]
fn a_set_counts_the_frames_that_found_no_receive() {
    let bench = Bench::on(LinkLayer::Ethernet);
    let (world, set) = (&bench.world, Set::new(&bench));
    let qp = raw_qp(world, world.cq(16));
    try_flow(qp, &to_group(7)).unwrap();
    let rqn = super::frames::parts(qp).rqn;
    let count_in = |counter_set_id| {
        let head = ModifyQueue { request: request(Opcode::MODIFY_RQ), state: state::RDY, number: rqn, bitmask: 1 << 3 };
        let context = RqContext { state: state::RDY, counter_set_id, ..RqContext::ZERO };
        Verbs::Qp(qp).modify(&[&head.to_bytes()[..], &context.to_bytes()].concat())
    };
    assert_eq!(count_in(set.number + 1), Err(refused(BAD_RESOURCE, NO_OBJECT)));
    assert_eq!(count_in(set.number), Ok(()));
    let mut bytes = frame();
    let stranger = Stranger::new(world, &mut bytes);
    for sent in 1..=3 {
        send(stranger.qp, stranger.mr, 60);
        world.device().settle();
        assert_eq!(set.counters().out_of_buffer, sent);
    }
    // SAFETY: the queue pair is alive.
    assert_eq!(unsafe { ibv_destroy_qp(qp) }, libc::EBUSY, "it has a flow");
    assert_eq!((count_in(0), set.counters().out_of_buffer), (Ok(()), 3));
    send(stranger.qp, stranger.mr, 60);
    world.device().settle();
    assert_eq!(set.counters().out_of_buffer, 3, "the queue counts in no set");
}
