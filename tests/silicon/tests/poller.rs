//! Each dump in the CQ of a receiver: it is reported correctly and once, and no buffer is lost.

use doorbell::{BufferPool, Cause, CqConfig, DataPath, PoolConfig, QpConfig, QueuePair, Receiver, RqConfig, WcStatus};
use doorbell_silicon::{Fields, cqes};
use soft_mlx5::Device;
use soft_mlx5::objects::CqAttr;

const RECEIVES: u32 = 4;

/// Writes a CQE where the device would write its first.
fn write(cq: &CqAttr, mut cqe: [u8; 64]) {
    // The first lap.
    cqe[63] &= !1;
    assert_eq!(cq.cqe_size, 64);
    // SAFETY: the buffer of a CQ of this process, to which no references exist; the device is stepped and does nothing.
    unsafe { (cq.buf as *mut u8).copy_from_nonoverlapping(cqe.as_ptr(), 64) };
}

/// Returns the cause that a receiver reports for it, and how many buffers come back.
fn poll(device: &Device, cqe: [u8; 64], fields: Option<&Fields>) -> (Cause, usize) {
    let pd = doorbell::open(device.name()).unwrap().alloc_pd().unwrap();
    let config = CqConfig::new(RECEIVES).path(DataPath::Direct);
    let mut receiver = Receiver::new(&pd, &config).unwrap();
    // The CQ of the sends comes with the queue pair.
    let cq = device.queues().cqs.last().expect("the CQ of the receiver").attr;
    let qp = QueuePair::builder(&QpConfig::rc()).receive(&mut receiver, RqConfig::new(RECEIVES)).build().unwrap();
    let rq = qp.receive_queue().unwrap();
    let pool = BufferPool::new(&pd, &PoolConfig::new(RECEIVES, 64)).unwrap();
    assert_eq!(receiver.fill(rq, &pool).unwrap(), RECEIVES as usize);
    let mut cqe = cqe;
    if fields.is_some() {
        // As if it were this queue pair's, and its first receive.
        cqe[57..60].copy_from_slice(&qp.qp_num().to_be_bytes()[1..]);
        cqe[60..62].copy_from_slice(&[0; 2]);
    }
    write(&cq, cqe);
    let mut batch = receiver.poll();
    let failure = batch.next().expect("it is reported").expect_err("as an error");
    assert!(batch.next().is_none(), "once");
    let found = (failure.cause, failure.buffers.len());
    drop(failure);
    drop(batch);
    drop((qp, receiver));
    let free: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
    assert_eq!(free.len(), RECEIVES as usize, "no buffer is lost");
    found
}

/// The dumps have one test: a device for each thread would need names of their own.
#[test]
fn each_dump_is_reported_once_and_loses_no_buffer() {
    let device = Device::builder().stepped().build().unwrap();
    for dump in cqes() {
        let fields = dump.fields.as_ref().unwrap();
        let of_a_receive = fields.opcode == "RESP_ERR";
        // A CQ of one receive queue needs no routing: a CQE that names a posted receive belongs to that queue.
        let ours = of_a_receive && u32::from(fields.wqe_counter) < RECEIVES;
        let (cause, buffers) = poll(&device, dump.cqe(), None);
        let expected = match cause {
            Cause::Status(_) => ours,
            Cause::Stray | Cause::NotAReceive => !ours,
            _ => false,
        };
        assert!(expected, "{}: {cause:?}", dump.name);
        assert_eq!(buffers, usize::from(ours), "{}", dump.name);

        // Errors of receive queues give their buffer back with the status.
        let (cause, buffers) = poll(&device, dump.cqe(), Some(fields));
        let status = Cause::Status(WcStatus::LOC_PROT_ERR);
        let expected = if of_a_receive { (status, 1) } else { (Cause::NotAReceive, 0) };
        assert_eq!((cause, buffers), expected, "{}", dump.name);
    }
}
