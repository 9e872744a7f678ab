//! A SEND that invalidates a key of the peer. No memory window has these keys, so the peer refuses each.

use std::{env, fs, process};

use doorbell::{Cause, DataPath, QpConfig, WcStatus};
use doorbell_stepped_tests::{Sending, on_each_path, open, two_buffers};
use soft_mlx5::Device;

on_each_path! { a_key_in_a_batch a_key_in_a_request_by_itself }

const KEY: u32 = 0x1122_3344;

fn a_key_in_a_batch(path: DataPath) {
    refused(path, |w| {
        let ([first, second], queue) = (two_buffers(&w.pool, b"bytes"), w.queue(0));
        let mut posting = w.sender.post_many(queue).unwrap();
        posting.token(1).send(first).unwrap();
        posting.token(2).send_with_invalidate(second, KEY).unwrap();
    });
}

fn a_key_in_a_request_by_itself(path: DataPath) {
    refused(path, |w| {
        let ([first, second], queue) = (two_buffers(&w.pool, b"bytes"), w.queue(0));
        w.sender.post(queue).unwrap().token(1).send(first).unwrap();
        w.sender.post(queue).unwrap().token(2).send_with_invalidate(second, KEY).unwrap();
    });
}

/// Checks how the second of two SENDs ends, at both sides, and that its packet has the key.
fn refused(path: DataPath, send: impl FnOnce(&mut Sending)) {
    let capture = env::temp_dir().join(format!("invalidate-{}.pcap", process::id()));
    let device = open(Device::builder().pcap(&capture).stepped());
    let mut w = Sending::new(device, path, &QpConfig::rc().max_send_wr(2), 1, 4);
    w.far_receiver.fill(w.far[0].receive_queue().unwrap(), &w.receives).unwrap();
    send(&mut w);
    let over: Vec<_> =
        w.over().into_iter().map(|sent| (sent.token, sent.status, sent.into_buffer().to_vec())).collect();
    let bytes = || b"bytes".to_vec();
    assert_eq!(over, [(1, WcStatus::SUCCESS, bytes()), (2, WcStatus::REM_ACCESS_ERR, bytes())]);
    assert!(w.far_receiver.next().unwrap().is_ok_and(|message| message.invalidated_rkey().is_none()));
    let failure = w.far_receiver.next().unwrap().unwrap_err();
    assert_eq!(failure.cause, Cause::Status(WcStatus::REM_INV_REQ_ERR));
    let packets = fs::read(&capture).unwrap();
    fs::remove_file(&capture).unwrap();
    assert!(packets.windows(4).any(|four| four == KEY.to_be_bytes()), "no packet has the key");
}
