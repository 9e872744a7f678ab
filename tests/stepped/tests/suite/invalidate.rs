//! A SEND that invalidates a key of the peer. The device has no memory windows, so the peer refuses each key.

use doorbell::{Cause, Path, QpConfig, RemoteMemory, WcStatus};
use doorbell_stepped_tests::{Sending, on_each_path, open};
use soft_mlx5::Device;

on_each_path! { in_a_batch by_itself }

fn in_a_batch(path: Path) {
    refused(path, |w, rkey| {
        let (first, second) = (w.pool.take().unwrap(), w.pool.take().unwrap());
        let queue = w.queue(0);
        let mut posting = w.sender.post_many(queue).unwrap();
        posting.token(1).send(first).unwrap();
        posting.token(2).send_with_invalidate(second, rkey).unwrap();
    });
}

fn by_itself(path: Path) {
    refused(path, |w, rkey| {
        let queue = w.queue(0);
        let (first, second) = (w.pool.take().unwrap(), w.pool.take().unwrap());
        w.sender.post(queue).unwrap().token(1).send(first).unwrap();
        w.sender.post(queue).unwrap().token(2).send_with_invalidate(second, rkey).unwrap();
    });
}

/// Checks how the second of two SENDs ends, at both sides.
fn refused(path: Path, send: impl FnOnce(&mut Sending, u32)) {
    let mut w = Sending::new(open(Device::builder().stepped()), path, &QpConfig::rc().sends(4), 1, 4);
    w.far_receiver.fill(w.far[0].receive_queue().unwrap(), &w.receives).unwrap();
    let memory = RemoteMemory::new(&w.pd, 64).unwrap();
    send(&mut w, memory.region().rkey());
    let over: Vec<_> = w.over().iter().map(|sent| (sent.token, sent.status, sent.buffers.len())).collect();
    assert_eq!(over, [(1, WcStatus::SUCCESS, 1), (2, WcStatus::REM_ACCESS_ERR, 1)]);
    assert!(w.far_receiver.next().unwrap().is_ok_and(|message| message.invalidated_rkey().is_none()));
    let failure = w.far_receiver.next().unwrap().unwrap_err();
    assert_eq!(failure.cause, Cause::Status(WcStatus::LOC_PROT_ERR));
}
