//! Queue pairs that only send, only receive, or do neither.

use doorbell::{
    BufferPool, CqConfig, Error, MemoryRegion, PoolConfig, QpConfig, QueuePair, RemoteAccess, RqConfig, Sender,
    WcStatus,
};
use doorbell_tests::peers::join;
use doorbell_tests::sending::{bytes_of, completions};
use doorbell_tests::world::let_the_device_work;
use doorbell_tests::{assert_matches, device, receiving};

/// Requests of the side that sends: as many basic blocks, which the device does not round.
const SENDS: u32 = 8;
/// Receives of the side that receives, likewise.
const RECEIVES: u32 = 16;

fn pool(pd: &doorbell::ProtectionDomain) -> BufferPool {
    BufferPool::new(pd, &PoolConfig::new(64, 64)).unwrap()
}

fn only_sending(sender: &mut Sender) -> QueuePair {
    let config = QpConfig::rc().max_send_wr(SENDS).timeout(8).retry_cnt(1).rnr_retry(0);
    let qp = QueuePair::builder(&config).send(sender).build().unwrap();
    assert!(qp.receive_queue().is_none());
    assert_eq!(sender.capacity(&qp), SENDS);
    qp
}

/// The CQ of either side has no entry more than it must have. Each queue comes round several times.
#[test]
fn one_side_only_sends_and_the_other_only_receives() {
    let pd = device::pd();
    let (mut sender, mut receiver) = (device::sender(&pd, SENDS), device::receiver(&pd, RECEIVES));
    let (outgoing, incoming) = (pool(&pd), pool(&pd));
    let mut source = only_sending(&mut sender);
    let config = QpConfig::rc().remote_read(true).remote_write(true);
    let own = RqConfig::new(RECEIVES);
    let mut sink = QueuePair::builder(&config).receive(&mut receiver, own).build().unwrap();
    assert!(sink.send_queue().is_none());
    let rq = sink.receive_queue().unwrap();
    assert_eq!(receiver.fill(rq, &incoming).unwrap(), RECEIVES as usize);
    join(&mut source, &mut sink);
    let access = RemoteAccess::READ | RemoteAccess::WRITE;
    let memory = MemoryRegion::with_access(&pd, 64, access).unwrap();
    let remote = memory.region().slice(8, 8).unwrap();

    for round in 0..20u64 {
        let mut posting = sender.post_many(&source).unwrap();
        let mut buffer = outgoing.take().unwrap();
        buffer.extend_from_slice(&round.to_ne_bytes());
        posting.send(buffer).unwrap();
        let mut buffer = outgoing.take().unwrap();
        buffer.extend_from_slice(&(round + 1).to_ne_bytes());
        posting.write_with_imm(buffer, &remote, round as u32).unwrap();
        posting.token(round).read(outgoing.take().unwrap(), &remote).unwrap();
        drop(posting);
        let mut seen = Vec::new();
        receiving::messages(&mut receiver, 2, |message| {
            assert_eq!(message.qp_num(), sink.qp_num());
            seen.push((message.to_vec(), message.imm()));
        });
        assert_eq!(seen, [(round.to_ne_bytes().to_vec(), None), (vec![], Some(round as u32))]);
        let done = completions(&mut sender, 3, |sent| {
            assert!(sent.status.is_success(), "{}", sent.status);
            sent
        });
        assert_eq!((done[2].token, &done[2].buffers[0][..]), (round, &(round + 1).to_ne_bytes()[..]));
        assert_eq!(bytes_of(&memory, 8, 8), (round + 1).to_ne_bytes());
    }
    assert_eq!(outgoing.available(), 64);
    receiver.destroy_qp(sink).unwrap();
    assert_eq!(incoming.available(), 64);
}

/// Nothing of the peer's message reaches the CQ of the sender, which is that of its receives, too.
#[test]
fn a_message_to_a_queue_pair_that_only_sends_fails_where_it_was_sent() {
    let pd = device::pd();
    let mut senders = [(); 2].map(|()| device::sender(&pd, SENDS));
    let [one, other] = &mut senders;
    let (mut near, mut far) = (only_sending(one), only_sending(other));
    join(&mut near, &mut far);
    one.post(&near).unwrap().token(5).send(b"hello").unwrap();
    let ended = completions(one, 1, |sent| (sent.token, sent.status));
    assert_matches!(ended[..], [(5, status)] if !status.is_success());
    let_the_device_work();
    assert!(other.poll().next().is_none());
    assert!(!other.is_busy(&far));
}

#[test]
fn requests_of_a_dropped_queue_pair_that_only_sends_come_back() {
    let pd = device::pd();
    // Room for a single queue.
    let (mut sender, mut receiver) = (device::sender(&pd, SENDS), device::receiver(&pd, RECEIVES));
    let pool = pool(&pd);
    for round in 0..3 {
        let config = QpConfig::rc().max_send_wr(SENDS).rnr_retry(7);
        let mut source = QueuePair::builder(&config).send(&mut sender).build().unwrap();
        let own = RqConfig::new(RECEIVES);
        let mut sink = QueuePair::builder(&QpConfig::rc()).receive(&mut receiver, own).build().unwrap();
        join(&mut source, &mut sink);
        // No receive is posted: they wait.
        for token in 0..5 {
            let request = sender.post(&source).unwrap();
            request.token(token).send(pool.take().unwrap()).unwrap();
        }
        let queue = source.send_queue().unwrap();
        assert_eq!(sender.capacity(queue), SENDS);
        drop(source);
        let ended = completions(&mut sender, 5, |sent| {
            assert_eq!((sent.status, sent.buffers.len()), (WcStatus::WR_FLUSH_ERR, 1));
            sent.token
        });
        assert_eq!(ended, [0, 1, 2, 3, 4], "round {round}");
        assert!(sender.poll().next().is_none());
        assert_eq!((pool.available(), sender.capacity(queue)), (64, 0), "round {round}");
        receiver.destroy_qp(sink).unwrap();
    }
}

#[test]
fn a_queue_pair_that_neither_sends_nor_receives_is_refused() {
    let refused = QueuePair::builder(&QpConfig::rc()).build().unwrap_err();
    assert_matches!(&refused, Error::Unsupported { operation: "a queue pair", .. });
    assert!(refused.to_string().contains("call `receive`, `send` or both"), "{refused}");
    // SAFETY: it is refused without a look at the queue pair.
    let refused = unsafe { QueuePair::builder(&QpConfig::rc()).attach(std::ptr::null_mut()) };
    assert_matches!(refused, Err(Error::Unsupported { operation: "a queue pair", .. }));
}

/// The CQs have room for the queues of one queue pair.
#[test]
fn a_refused_sender_of_another_domain_uses_nothing_up() {
    let pd = device::pd();
    let (mut sender, mut receiver) = (device::sender(&pd, SENDS), device::receiver(&pd, RECEIVES));
    let elsewhere = pd.context().alloc_pd().unwrap();
    let config = CqConfig::new(SENDS).path(device::path());
    let mut foreign = Sender::new(&elsewhere, &config).unwrap();
    let (config, own) = (QpConfig::rc().max_send_wr(SENDS), RqConfig::new(RECEIVES));
    for _ in 0..3 {
        let both = QueuePair::builder(&config).receive(&mut receiver, own).send(&mut foreign);
        assert_matches!(both.build(), Err(Error::Foreign { what: "the sender", .. }));
    }
    let both = QueuePair::builder(&config).receive(&mut receiver, own).send(&mut sender);
    let qp = both.build().unwrap();
    assert_eq!(receiver.capacity(qp.receive_queue().unwrap()), RECEIVES);
    // Alone, the other sender decides about the domain.
    let alone = QueuePair::builder(&config).send(&mut foreign).build().unwrap();
    assert_eq!(foreign.capacity(&alone), SENDS);
}
