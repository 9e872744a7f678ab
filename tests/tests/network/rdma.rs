//! RDMA and atomic operations with a C program that uses `ibv_post_send`, in another process: each side works on the
//! memory of the other.

use doorbell::{
    BufferPool, MemoryRegion, Mtu, PoolConfig, QpAddress, QpConfig, QueuePair, Receiver, RemoteAccess, RemoteRegion,
    RqConfig, Sender, SqId, WcStatus,
};
use doorbell_tests::c_program::Program;
use doorbell_tests::{device, receiving, sending, skip};

/// Bytes that either side opens to the other.
const OPEN: usize = 8192;
/// The C program's own memory begins here, after the bytes that it opens.
const OWN: usize = OPEN;

struct Exchange {
    program: Program,
    sender: Sender,
    queue: SqId,
    receiver: Receiver,
    pool: BufferPool,
    here: MemoryRegion,
    there: RemoteRegion,
    _qp: QueuePair,
}

impl Exchange {
    /// `None` where the program cannot reach the device under test, or addresses it otherwise.
    fn new() -> Option<Self> {
        std::env::var_os("DOORBELL_NETWORKED")?;
        let pd = device::pd();
        let (mut receiver, mut sender) = (device::receiver(&pd, 64), device::sender(&pd, 64));
        let config = QpConfig::rc().max_send_wr(8).max_inline(16).mtu(Mtu::Mtu1024);
        let config = config.remote_read(true).remote_write(true).remote_atomic(true);
        let mut qp =
            QueuePair::builder(&config).receive(&mut receiver, RqConfig::new(16)).send(&mut sender).build().unwrap();
        let pool = BufferPool::new(&pd, &PoolConfig::new(32, OPEN as u32)).unwrap();
        receiver.fill(qp.receive_queue().unwrap(), &pool).unwrap();
        let address = qp.address().unwrap();
        if address.gid != [0; 16] {
            return None;
        }
        let access = RemoteAccess::READ | RemoteAccess::WRITE | RemoteAccess::ATOMIC;
        let here = MemoryRegion::with_access(&pd, OPEN, access).unwrap();

        let mut program = Program::start("rdma");
        let line = program.hear();
        let words: Vec<u64> = line.split(' ').skip(1).map(|word| word.parse().unwrap()).collect();
        let [lid, qpn, psn, addr, rkey] = words[..] else { panic!("{line}") };
        let (lid, qpn, psn) = (lid as u16, qpn as u32, psn as u32);
        qp.connect(&QpAddress { lid, gid: [0; 16], qpn, psn, mtu: Mtu::Mtu1024 }).unwrap();
        let QpAddress { lid, qpn, psn, .. } = address;
        let connect = format!("connect {lid} {qpn} {psn} {} {}", here.region().addr(), here.region().rkey());
        assert_eq!(program.ask(&connect), "connected");
        let queue = qp.send_queue().unwrap();
        let there = RemoteRegion::new(addr, OPEN, rkey as u32);
        Some(Self { program, sender, queue, receiver, pool, here, there, _qp: qp })
    }

    /// How the next request ended, and the bytes of its buffer.
    fn done(&mut self) -> (WcStatus, Vec<u8>) {
        let mut done = sending::completions(&mut self.sender, 1, |done| {
            (done.status, done.buffers.iter().flat_map(|buffer| buffer.to_vec()).collect())
        });
        done.remove(0)
    }
}

/// The bytes that the program fills memory with.
fn filling(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + seed) as u8).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

macro_rules! world {
    () => {
        match Exchange::new() {
            Some(world) => world,
            None => skip!("the program is of another process, which does not reach this device"),
        }
    };
}

#[test]
fn a_c_program_writes_reads_and_changes_the_memory_of_doorbell() {
    let mut w = world!();
    assert_eq!(w.program.ask(&format!("fill {OWN} 3000 5")), "filled");
    assert_eq!(w.program.ask("write 100 3000"), "done 0");
    assert_eq!(sending::bytes_of(&w.here, 99, 3002), [&[0][..], &filling(3000, 5), &[0]].concat());

    assert_eq!(w.program.ask("write 4000 8 305419896"), "done 0");
    receiving::messages(&mut w.receiver, 1, |message| {
        assert_eq!((message.len(), message.imm()), (0, Some(305_419_896)));
    });
    assert_eq!(sending::bytes_of(&w.here, 4000, 8), filling(8, 5));

    w.here.write(5000, b"for the program");
    let answer = w.program.ask("read 5000 15");
    assert_eq!(answer, format!("done 0 {}", hex(b"for the program")));

    w.here.write(6000, &41u64.to_ne_bytes());
    assert_eq!(w.program.ask("add 6000 1"), "done 0 41");
    assert_eq!(w.program.ask("swap 6000 42 7"), "done 0 42");
    assert_eq!(w.program.ask("swap 6000 42 8"), "done 0 7");
    assert_eq!(sending::bytes_of(&w.here, 6000, 8), 7u64.to_ne_bytes());
}

#[test]
fn doorbell_writes_reads_and_changes_the_memory_of_a_c_program() {
    let mut w = world!();
    let at = |offset, len| w.there.slice(offset, len).unwrap();
    let (record, told, text) = (at(100, 3000), at(4000, 4), at(5000, 300));
    let number = at(6000, 8);
    let mut buffer = w.pool.take().unwrap();
    buffer.extend_from_slice(&filling(3000, 9));
    let mut posting = w.sender.post_many(w.queue).unwrap();
    posting.write(buffer, &record).unwrap();
    posting.write_with_imm(b"told", &told, 0x1234_5678).unwrap();
    drop(posting);
    assert_eq!(w.program.ask("imm"), "imm 0 305419896 4");
    let all = [&[0][..], &filling(3000, 9), &[0]].concat();
    assert_eq!(w.program.ask("look 99 3002"), format!("bytes {}", hex(&all)));
    assert_eq!(w.program.ask("look 4000 5"), format!("bytes {}", hex(b"told\0")));
    (0..2).for_each(|_| assert_eq!(w.done().0, WcStatus::SUCCESS));

    assert_eq!(w.program.ask("fill 5000 300 3"), "filled");
    let buffers = [0; 4].map(|_| w.pool.take().unwrap());
    let mut posting = w.sender.post_many(w.queue).unwrap();
    let [for_text, for_add, for_swap, for_nothing] = buffers;
    posting.read(for_text, &text).unwrap();
    posting.fetch_add(for_add, &number, 41).unwrap();
    posting.compare_swap(for_swap, &number, 41, 7).unwrap();
    posting.compare_swap(for_nothing, &number, 41, 8).unwrap();
    drop(posting);
    let before = |number: u64| number.to_ne_bytes().to_vec();
    for expected in [filling(300, 3), before(0), before(41), before(7)] {
        assert_eq!(w.done(), (WcStatus::SUCCESS, expected));
    }
    let now = format!("bytes {}", hex(&7u64.to_ne_bytes()));
    assert_eq!(w.program.ask("look 6000 8"), now);
}

/// Beyond the memory that is open, each device refuses the other's request.
#[test]
fn neither_side_reaches_beyond_what_is_open() {
    let mut w = world!();
    let refused = WcStatus::REM_ACCESS_ERR;
    let answer = w.program.ask(&format!("write {} 16", OPEN - 8));
    assert_eq!(answer, format!("done {}", refused.as_raw()));
    assert_eq!(sending::bytes_of(&w.here, OPEN - 8, 8), [0; 8]);
    let mut w = world!();
    let beyond = RemoteRegion::new(w.there.addr() + 2 * OPEN as u64 - 8, 16, w.there.rkey());
    w.sender.post(w.queue).unwrap().write([1; 16], &beyond).unwrap();
    assert_eq!(w.done().0, refused);
}
