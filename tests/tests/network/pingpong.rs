//! Connections to programs that know nothing of doorbell: the ping-pong examples of libibverbs.
//!
//! The two sides exchange their addresses as text over TCP: the client begins, and says `done` when it has
//! the address of the server. Then each side answers each message with one, and the client begins.
//! Such a program sends from the memory that it receives to, so its answer is the message that it received.
//! `pingpong` does the same with the program that has an SRQ.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{str, thread};

use doorbell::{
    AddressHandle, BufferPool, Context, GRH_SIZE, Mtu, PoolConfig, QpAddress, QpConfig, QueuePair, Receiver, RqConfig,
    Sender,
};
use doorbell_tests::programs::{Ended, free_port};
use doorbell_tests::receiving::PATIENCE;
use doorbell_tests::{device, message, skip};
use rdma_core_sys as sys;

/// Messages in each direction.
const EXCHANGES: usize = 200;
/// Three packets. The last is not full.
const SIZE: usize = 2500;
const MTU: Mtu = Mtu::Mtu1024;
const RECEIVES: u32 = 64;

/// An address as the programs write it, with the zero at its end.
const ADDRESS: usize = 52;
const DONE: &[u8; 5] = b"done\0";

#[derive(Clone, Copy)]
struct Program {
    name: &'static str,
    /// Bytes of each message.
    size: usize,
    /// The Q_Key of its datagrams.
    qkey: Option<u32>,
}

const PROGRAMS: [Program; 2] = [
    Program { name: "ibv_rc_pingpong", size: SIZE, qkey: None },
    Program { name: "ibv_ud_pingpong", size: 1000, qkey: Some(0x1111_1111) },
];

/// The byte that a program fills its memory with.
const FILLING: u8 = 0x7b;

#[test]
fn clients_of_rdma_core() {
    PROGRAMS.into_iter().for_each(serve);
}

#[test]
fn servers_of_rdma_core() {
    PROGRAMS.into_iter().for_each(call);
}

/// Is the server of `program`.
fn serve(program: Program) {
    let Some(mut side) = Side::new(program) else {
        skip!("{} is of other processes, which this device may not reach", program.name);
    };
    println!("{}", program.name);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = side.start(listener.local_addr().unwrap().port(), &["127.0.0.1"]);
    let mut stream = client.accepted(&listener);
    side.connect(read(&mut stream));
    stream.write_all(&side.address()).unwrap();
    let mut done = [0; DONE.len()];
    stream.read_exact(&mut done).unwrap();
    assert_eq!(&done, DONE);
    side.exchange(&mut client);
    client.succeeded();
}

/// Is the client of `program`.
fn call(program: Program) {
    let Some(mut side) = Side::new(program) else {
        skip!("{} is of other processes, which this device may not reach", program.name);
    };
    println!("{}", program.name);
    let port = free_port();
    let mut server = side.start(port, &[]);
    let mut stream = server.connected(port);
    stream.write_all(&side.address()).unwrap();
    side.connect(read(&mut stream));
    stream.write_all(DONE).unwrap();
    side.send();
    side.exchange(&mut server);
    server.succeeded();
}

/// Reads the address of the other side.
fn read(stream: &mut TcpStream) -> QpAddress {
    let mut text = [0; ADDRESS];
    stream.read_exact(&mut text).unwrap();
    let text = str::from_utf8(&text).unwrap().trim_end_matches('\0');
    let fields: Vec<&str> = text.split(':').collect();
    let number = |i: usize| u32::from_str_radix(fields[i], 16).unwrap();
    let gid = u128::from_str_radix(fields[3], 16).unwrap().to_be_bytes();
    QpAddress { lid: number(0) as u16, qpn: number(1), psn: number(2), gid, mtu: MTU }
}

/// Our side of a ping-pong.
struct Side {
    program: Program,
    qp: QueuePair,
    /// Where datagrams go.
    to: Option<AddressHandle>,
    receiver: Receiver,
    sender: Sender,
    pool: BufferPool,
    context: Context,
    sent: u64,
    /// A send is not over.
    on_its_way: bool,
    received: usize,
    completed: usize,
}

impl Side {
    /// `None` where the program's device could not be reached.
    fn new(program: Program) -> Option<Self> {
        std::env::var_os("DOORBELL_NETWORKED")?;
        let (pd, mut receiver) = device::start(4 * RECEIVES);
        let mut sender = device::sender(&pd, 64);
        let config = program.qkey.map_or_else(|| QpConfig::rc().mtu(MTU), QpConfig::ud).max_send_wr(2);
        let pool = BufferPool::new(&pd, &PoolConfig::new(4 * RECEIVES, (GRH_SIZE + SIZE) as u32 + 1)).unwrap();
        let qp = QueuePair::builder(&config)
            .receive(&mut receiver, RqConfig::new(RECEIVES))
            .send(&mut sender)
            .build()
            .unwrap();
        receiver.fill(qp.receive_queue().unwrap(), &pool).unwrap();
        Some(Self {
            program,
            qp,
            to: None,
            receiver,
            sender,
            pool,
            context: pd.context().clone(),
            sent: 0,
            on_its_way: false,
            received: 0,
            completed: 0,
        })
    }

    /// Starts the program, with addresses of the same kind as ours.
    fn start(&self, port: u16, arguments: &[&str]) -> Peer {
        let mut command = Command::new(self.program.name);
        command.args(["-d", self.context.name(), "-p", &port.to_string()]);
        command.args(["-n", &EXCHANGES.to_string(), "-s", &self.program.size.to_string()]);
        // With events: a program that spins takes the processor from the device, if that is software.
        command.args(["-r", &RECEIVES.to_string(), "-e"]);
        if self.program.qkey.is_none() {
            command.args(["-m", "1024"]);
        }
        let gid = self.qp.address().unwrap().gid;
        if gid != [0; 16] {
            command.args(["-g", &gid_index(&self.context, gid).to_string()]);
        }
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap_or_else(|e| panic!("{}: {e}", self.program.name));
        Peer { name: self.program.name, child: Some(child) }
    }

    fn address(&self) -> Vec<u8> {
        let QpAddress { lid, qpn, psn, gid, .. } = self.qp.address().unwrap();
        let gid = u128::from_be_bytes(gid);
        format!("{lid:04x}:{qpn:06x}:{psn:06x}:{gid:032x}\0").into_bytes()
    }

    fn connect(&mut self, there: QpAddress) {
        match self.program.qkey {
            Some(qkey) => {
                self.qp.activate().unwrap();
                self.to = Some(self.qp.address_handle(&there, qkey).unwrap());
            }
            None => self.qp.connect(&there).unwrap(),
        }
    }

    fn send(&mut self) {
        let mut buffer = self.pool.take().expect("there are more buffers than receives and sends");
        buffer.set_len(self.program.size);
        message::write(&mut buffer, 0, self.sent);
        let mut posting = self.sender.post_many(self.qp.send_queue().unwrap()).unwrap();
        match &self.to {
            Some(to) => posting.send_to(to, buffer, None).unwrap(),
            None => posting.send(buffer).unwrap(),
        }
        drop(posting);
        self.sent += 1;
        self.on_its_way = true;
    }

    /// Answers until the program is done: `EXCHANGES` messages have gone each way.
    fn exchange(&mut self, peer: &mut Peer) {
        let mut progress = Instant::now();
        while self.received < EXCHANGES || self.completed < EXCHANGES {
            let before = self.received + self.completed;
            self.poll_sends();
            let mut answers = 0;
            let mut batch = self.receiver.poll();
            while let Some(message) = batch.next() {
                let message = message.unwrap_or_else(|failure| panic!("{failure}"));
                assert_eq!(message.qp_num(), self.qp.qp_num());
                let message = &message[if self.to.is_some() { GRH_SIZE } else { 0 }..];
                assert_eq!(message.len(), self.program.size);
                match self.sent.checked_sub(1) {
                    Some(last) => assert_eq!(message::read(message), (0, last)),
                    None => assert!(message.iter().all(|&byte| byte == FILLING)),
                }
                self.received += 1;
                answers += 1;
            }
            drop(batch);
            for _ in 0..answers {
                // As the programs count: it may be one more.
                if self.completed < EXCHANGES {
                    // The answer can arrive before the completion of the message that it answers.
                    while self.on_its_way {
                        self.poll_sends();
                    }
                    self.send();
                }
            }
            if self.received + self.completed > before {
                progress = Instant::now();
            } else if progress.elapsed() > PATIENCE {
                panic!("nothing for {PATIENCE:?}: {}", peer.end());
            }
            thread::yield_now();
        }
    }

    fn poll_sends(&mut self) {
        let mut batch = self.sender.poll();
        while let Some(done) = batch.next() {
            done.unwrap();
            self.on_its_way = false;
            self.completed += 1;
        }
    }
}

/// The index of a GID that packets of RoCE v2 or InfiniBand carry.
fn gid_index(context: &Context, gid: [u8; 16]) -> u32 {
    let mut entries = vec![sys::ibv_gid_entry::default(); 256];
    // SAFETY: an open context and an array of that many entries.
    let count = unsafe { sys::ibv_query_gid_table(context.as_raw(), entries.as_mut_ptr(), entries.len(), 0) };
    let entry = entries[..count as usize].iter().find(|entry| {
        // SAFETY: every bit pattern is a GID in raw form.
        entry.gid_type != sys::IBV_GID_TYPE_ROCE_V1 && unsafe { entry.gid.raw } == gid
    });
    entry.expect("our own GID").gid_index
}

/// The program, which ends with the test.
struct Peer {
    name: &'static str,
    child: Option<Child>,
}

impl Peer {
    /// The program's connection to `listener`.
    fn accepted(&mut self, listener: &TcpListener) -> TcpStream {
        listener.set_nonblocking(true).unwrap();
        let stream = self.patiently(|| listener.accept().ok()).0;
        stream.set_nonblocking(false).unwrap();
        stream
    }

    /// A connection to the program, which may still be starting.
    fn connected(&mut self, port: u16) -> TcpStream {
        self.patiently(|| TcpStream::connect(("127.0.0.1", port)).ok())
    }

    fn patiently<T>(&mut self, mut attempt: impl FnMut() -> Option<T>) -> T {
        let began = Instant::now();
        loop {
            if let Some(done) = attempt() {
                return done;
            }
            let ended = self.child.as_mut().is_some_and(|child| child.try_wait().unwrap().is_some());
            if ended || began.elapsed() > PATIENCE {
                panic!("no connection: {}", self.end());
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits for it to end by itself.
    fn succeeded(&mut self) {
        let ended = Ended::from(self.child.take().unwrap().wait_with_output().unwrap());
        let is_complete = ended.printed.contains(&format!("{EXCHANGES} iters in"));
        assert!(ended.code == Some(0) && is_complete, "{}: {ended}", self.name);
    }

    /// Ends it and returns what it printed.
    fn end(&mut self) -> String {
        let Some(mut child) = self.child.take() else {
            return String::new();
        };
        let _ = child.kill();
        format!("{}: {}", self.name, Ended::from(child.wait_with_output().unwrap()))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.end();
    }
}
