//! Connections to programs that know nothing of doorbell: the ping-pong examples of libibverbs.
//!
//! The two sides tell each other their addresses as text over TCP: the client first, which says `done`
//! when it has those of the server. Then each answers each message with one, the client beginning.
//! Such a program sends from the very memory that it receives to, so what it answers with is what it got.
//!
//! Only where the device reaches those of other processes, which `DOORBELL_NETWORKED=1` says.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::str;
use std::thread;
use std::time::{Duration, Instant};

use doorbell::{
    AddressHandle, BufferPool, Context, GRH_SIZE, Mtu, QpAddress, QpConfig, QueuePair, Receiver,
    Sender, SrqConfig,
};
use doorbell_tests::receiving::PATIENCE;
use doorbell_tests::{device, message, skip};
use rdma_core_sys as sys;

/// Messages in each direction, on all queue pairs together.
const EXCHANGES: usize = 200;
/// Of three packets, the last one not full.
const SIZE: usize = 2500;
const MTU: Mtu = Mtu::Mtu1024;
const RECEIVES: u32 = 64;

/// An address as the programs write it, with the zero at its end.
const ADDRESS: usize = 52;
const DONE: &[u8; 5] = b"done\0";

#[derive(Clone, Copy)]
struct Program {
    name: &'static str,
    qps: usize,
    /// Addresses that it exchanges, whether it has as many queue pairs or not.
    addresses: usize,
    /// What it fills its memory with.
    filling: u8,
    /// Bytes of each message.
    size: usize,
    /// The Q_Key of its datagrams.
    qkey: Option<u32>,
}

const RC: Program = Program {
    name: "ibv_rc_pingpong",
    qps: 1,
    addresses: 1,
    filling: 0x7b,
    size: SIZE,
    qkey: None,
};

const UD: Program = Program { name: "ibv_ud_pingpong", size: 1000, qkey: Some(0x1111_1111), ..RC };

/// A program with an SRQ and as many queue pairs.
const fn srq(qps: usize) -> Program {
    Program { name: "ibv_srq_pingpong", qps, addresses: 256, filling: 0, ..RC }
}

#[test]
fn a_client_of_one_connection() {
    serve(RC);
}

#[test]
fn a_server_of_one_connection() {
    call(RC);
}

#[test]
fn a_client_of_datagrams() {
    serve(UD);
}

#[test]
fn a_server_of_datagrams() {
    call(UD);
}

#[test]
fn a_client_with_an_srq_of_one_connection() {
    serve(srq(1));
}

#[test]
fn a_client_with_an_srq_of_16_connections() {
    serve(srq(16));
}

#[test]
fn a_server_with_an_srq_of_16_connections() {
    call(srq(16));
}

/// Is the server of `program`.
fn serve(program: Program) {
    let Some(mut side) = Side::new(program) else {
        skip!("{} is of other processes, which this device may not reach", program.name);
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = side.start(listener.local_addr().unwrap().port(), &["127.0.0.1"]);
    let mut stream = client.accepted(&listener);
    side.connect(&read(&mut stream, program));
    stream.write_all(&side.addresses()).unwrap();
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
    // A port that was free a moment ago.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut server = side.start(port, &[]);
    let mut stream = server.connected(port);
    stream.write_all(&side.addresses()).unwrap();
    side.connect(&read(&mut stream, program));
    stream.write_all(DONE).unwrap();
    (0..program.qps).for_each(|qp| side.send(qp));
    side.exchange(&mut server);
    server.succeeded();
}

/// Reads the addresses of the other side.
fn read(stream: &mut TcpStream, program: Program) -> Vec<QpAddress> {
    let mut text = vec![0; program.addresses * ADDRESS];
    stream.read_exact(&mut text).unwrap();
    let parse = |text: &[u8]| {
        let text = str::from_utf8(text).unwrap().trim_end_matches('\0');
        let fields: Vec<&str> = text.split(':').collect();
        let number = |i: usize| u32::from_str_radix(fields[i], 16).unwrap();
        let gid = u128::from_str_radix(fields[3], 16).unwrap().to_be_bytes();
        QpAddress { lid: number(0) as u16, qpn: number(1), psn: number(2), gid, mtu: MTU }
    };
    text.chunks(ADDRESS).take(program.qps).map(parse).collect()
}

/// Our side of a ping-pong.
struct Side {
    program: Program,
    qps: Vec<QueuePair>,
    /// Where datagrams go.
    to: Option<AddressHandle>,
    receiver: Receiver,
    sender: Sender,
    pool: BufferPool,
    context: Context,
    sent: Vec<u64>,
    /// By queue pair: its send is not over.
    on_its_way: Vec<bool>,
    received: usize,
    completed: usize,
}

impl Side {
    /// `None` where the program's device could not be reached.
    fn new(program: Program) -> Option<Self> {
        std::env::var_os("DOORBELL_NETWORKED")?;
        let (pd, mut receiver) = device::start(4 * RECEIVES);
        let mut sender = device::sender(&pd, 64);
        let config = program.qkey.map_or_else(QpConfig::rc, QpConfig::ud).mtu(MTU).sends(2);
        let pool = BufferPool::new(&pd, 4 * RECEIVES, (GRH_SIZE + SIZE) as u32 + 1).unwrap();
        let mut qps = Vec::new();
        if program.addresses == 1 {
            let qp =
                receiver.create_qp_with_sender(&config.receives(RECEIVES, 1), &mut sender).unwrap();
            receiver.fill(qp.receive_queue().unwrap(), &pool).unwrap();
            qps.push(qp);
        } else {
            let srq = receiver.create_srq(&SrqConfig::new(RECEIVES)).unwrap();
            let config = config.srq(srq);
            let mut create = |_| receiver.create_qp_with_sender(&config, &mut sender).unwrap();
            qps.extend((0..program.qps).map(&mut create));
            receiver.fill(srq, &pool).unwrap();
        }
        Some(Self {
            program,
            qps,
            to: None,
            receiver,
            sender,
            pool,
            context: pd.context().clone(),
            sent: vec![0; program.qps],
            on_its_way: vec![false; program.qps],
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
        if self.program.addresses > 1 {
            command.args(["-q", &self.program.qps.to_string()]);
        }
        let gid = self.qps[0].address().unwrap().gid;
        if gid != [0; 16] {
            command.args(["-g", &gid_index(&self.context, gid).to_string()]);
        }
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap_or_else(|e| panic!("{}: {e}", self.program.name));
        Peer { name: self.program.name, child: Some(child) }
    }

    fn addresses(&self) -> Vec<u8> {
        let mut text = Vec::new();
        for i in 0..self.program.addresses {
            let address = self.qps.get(i).map(|qp| qp.address().unwrap());
            let (lid, qpn, psn, gid) =
                address.map_or((0, 0, 0, [0; 16]), |a| (a.lid, a.qpn, a.psn, a.gid));
            let gid = u128::from_be_bytes(gid);
            write!(text, "{lid:04x}:{qpn:06x}:{psn:06x}:{gid:032x}\0").unwrap();
        }
        text
    }

    fn connect(&mut self, there: &[QpAddress]) {
        for (qp, there) in self.qps.iter_mut().zip(there) {
            match self.program.qkey {
                Some(qkey) => {
                    qp.activate().unwrap();
                    self.to = Some(qp.address_handle(there, qkey).unwrap());
                }
                None => qp.connect(there).unwrap(),
            }
        }
    }

    fn send(&mut self, qp: usize) {
        let mut buffer = self.pool.take().expect("there are more buffers than receives and sends");
        buffer.set_len(self.program.size);
        message::write(&mut buffer, qp as u32, self.sent[qp]);
        let queue = self.qps[qp].send_queue().unwrap();
        let mut posting = self.sender.post(queue).unwrap();
        match &self.to {
            Some(to) => posting.token(qp as u64).send_to(to, buffer, None).unwrap(),
            None => posting.token(qp as u64).send(buffer).unwrap(),
        }
        drop(posting);
        self.sent[qp] += 1;
        self.on_its_way[qp] = true;
    }

    /// Answers until the program is done, which is when as many messages have gone each way.
    fn exchange(&mut self, peer: &mut Peer) {
        let mut progress = Instant::now();
        while self.received < EXCHANGES || self.completed < EXCHANGES {
            let before = self.received + self.completed;
            self.poll_sends();
            let mut answer = Vec::new();
            let mut batch = self.receiver.poll();
            while let Some(message) = batch.next() {
                let message = message.unwrap_or_else(|failure| panic!("{failure}"));
                let qp = self.qps.iter().position(|qp| qp.qp_num() == message.qp_num()).unwrap();
                let message = &message[if self.to.is_some() { GRH_SIZE } else { 0 }..];
                assert_eq!(message.len(), self.program.size);
                // With several connections one message overtakes another in the program's memory.
                if self.program.qps == 1 {
                    match self.sent[qp].checked_sub(1) {
                        Some(last) => assert_eq!(message::read(message), (0, last)),
                        None => assert!(message.iter().all(|&byte| byte == self.program.filling)),
                    }
                }
                self.received += 1;
                answer.push(qp);
            }
            drop(batch);
            for qp in answer {
                // As the programs count: it may be one more per queue pair.
                if self.completed < EXCHANGES {
                    self.await_room(qp);
                    self.send(qp);
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

    /// The answer can arrive before the completion of what it answers.
    fn await_room(&mut self, qp: usize) {
        while self.on_its_way[qp] {
            self.poll_sends();
        }
    }

    fn poll_sends(&mut self) {
        let mut batch = self.sender.poll();
        while let Some(done) = batch.next() {
            assert!(done.status.is_success(), "{}", done.status);
            self.on_its_way[done.token as usize] = false;
            self.completed += 1;
        }
    }
}

/// The index of a GID that packets of RoCE v2 or InfiniBand carry.
fn gid_index(context: &Context, gid: [u8; 16]) -> u32 {
    let mut entries = vec![sys::ibv_gid_entry::default(); 256];
    // SAFETY: an open context and an array of that many entries.
    let count = unsafe {
        sys::ibv_query_gid_table(context.as_raw(), entries.as_mut_ptr(), entries.len(), 0)
    };
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
            let ended =
                self.child.as_mut().is_some_and(|child| child.try_wait().unwrap().is_some());
            if ended || began.elapsed() > PATIENCE {
                panic!("no connection: {}", self.end());
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits for it to end by itself.
    fn succeeded(&mut self) {
        let output = self.child.take().unwrap().wait_with_output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        let complained = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {printed}{complained}", self.name);
        assert!(printed.contains(&format!("{EXCHANGES} iters in")), "{printed}");
    }

    /// Ends it and returns what it printed.
    fn end(&mut self) -> String {
        let Some(mut child) = self.child.take() else {
            return String::new();
        };
        let _ = child.kill();
        let output = child.wait_with_output().unwrap();
        let mut printed = format!("{} ended with {}: ", self.name, output.status).into_bytes();
        printed.extend(output.stdout);
        printed.extend(output.stderr);
        String::from_utf8_lossy(&printed).into_owned()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.end();
    }
}
