//! RDMA and atomic operations.

use doorbell::{CqConfig, QpConfig, WcStatus};
use doorbell_tests::sending::{Done, Sending, bytes_of};

fn world() -> Sending {
    let config = QpConfig::rc().max_send_wr(8).max_inline(32).max_send_sge(2);
    Sending::with(2, 4096, &config, &CqConfig::new(4096))
}

#[test]
fn what_is_written_stands_in_the_memory_of_the_peer() {
    let mut w = world();
    let (queue, remote) = (w.queue(0), w.remote());
    let (record, header, tail) = (w.buffer(&[7; 3000]), w.buffer(b"header"), w.buffer(b"tail"));
    let mut posting = w.sender.post_many(queue).unwrap();
    posting.write(record, &remote.slice(1000, 3000).unwrap()).unwrap();
    posting.write([header, tail], &remote.slice(0, 20).unwrap()).unwrap();
    posting.write(b"inline", &remote.slice(100, 6).unwrap()).unwrap();
    posting.write_with_imm(b"told", &remote.slice(200, 4).unwrap(), 77).unwrap();
    drop(posting);
    assert_eq!(w.messages(1), [(0, vec![], Some(77))]);
    w.succeed(4);
    assert_eq!(bytes_of(&w.memory, 1000, 3000), [7; 3000]);
    assert_eq!(bytes_of(&w.memory, 0, 11), *b"headertail\0");
    assert_eq!((bytes_of(&w.memory, 100, 7), bytes_of(&w.memory, 200, 4)), (b"inline\0".to_vec(), b"told".to_vec()));
    assert_eq!((bytes_of(&w.memory, 999, 1), bytes_of(&w.memory, 4000, 1)), (vec![0], vec![0]));
    assert_eq!(w.pool.available(), 256);
}

#[test]
fn what_is_read_is_what_the_peer_has() {
    let mut w = world();
    let bytes: Vec<u8> = (0..4000).map(|i| i as u8 ^ (i >> 8) as u8).collect();
    w.memory.write(5, &bytes);
    let (queue, remote) = (w.queue(1), w.remote());
    let buffers = [0, 1, 2].map(|_| w.buffer(b"old"));
    let mut posting = w.sender.post_many(queue).unwrap();
    for ((buffer, len), token) in buffers.into_iter().zip([4000, 1, 0]).zip(1..) {
        posting.token(token).read(buffer, &remote.slice(5, len).unwrap()).unwrap();
    }
    drop(posting);
    for (done, (token, len)) in w.done(3).into_iter().zip([(1, 4000), (2, 1), (3, 0)]) {
        let buffers = vec![bytes[..len].to_vec()];
        assert_eq!(done, Done { qp: 1, token, status: WcStatus::SUCCESS, buffers });
    }
}

#[test]
fn atomic_operations_change_numbers_and_tell_what_was_there() {
    let mut w = world();
    let (queue, remote) = (w.queue(0), w.remote());
    let number = remote.slice(64, 8).unwrap();
    w.memory.write(64, &40_u64.to_ne_bytes());
    let [one, two, three] = [0, 1, 2].map(|_| w.buffer(b""));
    let mut posting = w.sender.post_many(queue).unwrap();
    posting.fetch_add(one, &number, 2).unwrap();
    posting.compare_swap(two, &number, 42, 1 << 40).unwrap();
    posting.compare_swap(three, &number, 42, 7).unwrap();
    drop(posting);
    for (done, before) in w.done(3).iter().zip([40_u64, 42, 1 << 40]) {
        assert_eq!(done.buffers, [before.to_ne_bytes()]);
    }
    assert_eq!(bytes_of(&w.memory, 64, 8), (1_u64 << 40).to_ne_bytes());
}

/// A fenced send waits for a READ. The program does not have the buffer of the READ yet, so this checks the order of
/// completions only.
#[test]
fn a_fenced_request_comes_after_the_reads_before_it() {
    let mut w = world();
    let (queue, remote) = (w.queue(0), w.remote());
    for _ in 0..50 {
        let buffer = w.buffer(b"");
        let mut posting = w.sender.post_many(queue).unwrap();
        posting.token(1).read(buffer, &remote.slice(0, 4096).unwrap()).unwrap();
        posting.token(2).fence().send(b"after").unwrap();
        drop(posting);
        assert_eq!(w.messages(1)[0].1, b"after");
        let tokens: Vec<_> = w.done(2).iter().map(|done| done.token).collect();
        assert_eq!(tokens, [1, 2]);
    }
}

/// The peer's device refuses a request with a wrong key, and the buffer comes back with its answer.
#[test]
fn a_wrong_key_is_refused_by_the_peer() {
    let mut w = world();
    let queue = w.queue(0);
    let remote = w.remote();
    let wrong = doorbell::RemoteRegion::new(remote.addr(), 64, remote.rkey() ^ 0xff00);
    let (first, buffer, after) = (w.buffer(b"fine"), w.buffer(b"no"), w.buffer(b"after"));
    let mut posting = w.sender.post_many(queue).unwrap();
    posting.token(1).write(first, &remote).unwrap();
    posting.token(2).write(buffer, &wrong).unwrap();
    posting.token(3).send(after).unwrap();
    drop(posting);
    let expected = [
        (1, WcStatus::SUCCESS, &b"fine"[..]),
        (2, WcStatus::REM_ACCESS_ERR, b"no"),
        (3, WcStatus::WR_FLUSH_ERR, b"after"),
    ];
    for (done, (token, status, bytes)) in w.done(3).into_iter().zip(expected) {
        assert_eq!(done, Done { qp: 0, token, status, buffers: vec![bytes.to_vec()] });
    }
    assert_eq!(w.pool.available(), 256);
}
