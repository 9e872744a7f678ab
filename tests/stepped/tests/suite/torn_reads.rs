//! The example `one_sided`: a READ that meets a WRITE returns the old value, the new one, or a mixture that is
//! detected.

#[path = "../../../../examples/one_sided/slot.rs"]
mod slot;

use doorbell::{
    Buffer, BufferPool, CqConfig, DataPath, MemoryRegion, Mtu, PoolConfig, QpConfig, QueuePair, Receiver, RemoteAccess,
    RqConfig,
};
use doorbell_stepped_tests::sending_qp::SendingQp;
use doorbell_stepped_tests::{join, on_each_path, open};
use fastrand::Rng;
use slot::{SLOT, content};
use soft_mlx5::Device;

on_each_path! { a_reader_sees_old_or_new_or_that_it_is_neither }

const KEY: usize = 3;

/// A queue pair that reads and writes, and the one of the server.
fn client(receiver: &mut Receiver) -> (SendingQp, QueuePair) {
    let config = QpConfig::rc().mtu(Mtu::Mtu1024);
    let server = config.clone().remote_read(true).remote_write(true);
    let mut server = QueuePair::builder(&server).receive(receiver, RqConfig::new(1)).build().unwrap();
    let mut client = SendingQp::create(receiver, &config.max_send_wr(4), RqConfig::new(1)).unwrap();
    join(&mut client, &mut server);
    (client, server)
}

fn take(client: &mut SendingQp) -> Option<Buffer> {
    let mut batch = client.sender.poll();
    batch.next()?.unwrap().buffer
}

fn a_reader_sees_old_or_new_or_that_it_is_neither(path: DataPath) {
    // One packet, or one WQE, at a step.
    let (device, pd) = open(Device::builder().strict(true).small_steps());
    let access = RemoteAccess::READ | RemoteAccess::WRITE;
    let mut table = MemoryRegion::with_access(&pd, SLOT, access).unwrap();
    table.write(8, &content(KEY, 0));
    let (slot, value) = (table.region(), table.region().slice(8, SLOT - 8).unwrap());
    let config = CqConfig::new(16).path(path);
    let mut receiver = Receiver::new(&pd, &config).unwrap();
    let (mut reader, _at_reader) = client(&mut receiver);
    let (mut writer, _at_writer) = client(&mut receiver);
    let pool = BufferPool::new(&pd, &PoolConfig::new(4, SLOT as u32)).unwrap();
    let mut random = Rng::with_seed(0x20);
    let (mut old, mut new, mut torn) = (0, 0, 0);
    for version in 1..=500 {
        let steps = random.u8(..12);
        let mut write = || {
            let mut buffer = pool.take().unwrap();
            buffer.extend_from_slice(&content(KEY, version));
            writer.write(buffer, &value).unwrap();
            for _ in 0..steps {
                device.step();
            }
        };
        let mut read = || {
            let queue = reader.send_queue().unwrap();
            let buffer = pool.take().unwrap();
            reader.sender.post(queue).unwrap().read(buffer, &slot).unwrap();
            for _ in 0..steps {
                device.step();
            }
        };
        if random.bool() {
            write();
            read();
        } else {
            read();
            write();
        }
        device.settle();
        drop(take(&mut writer).expect("the WRITE is over"));
        let found = take(&mut reader).expect("the READ is over");
        let whole = [version - 1, version].map(|version| found[8..] == content(KEY, version));
        // The check sum shows which version it is, and never takes a mixture for a value.
        let seen = slot::version(&found);
        match whole {
            [true, _] => (old, _) = (old + 1, assert_eq!(seen, Some(version - 1))),
            [_, true] => (new, _) = (new + 1, assert_eq!(seen, Some(version))),
            _ => (torn, _) = (torn + 1, assert_eq!(seen, None)),
        }
    }
    assert!(old > 20 && new > 20 && torn > 5, "{old} old, {new} new, {torn} torn");
}
