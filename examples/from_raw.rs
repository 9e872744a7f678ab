//! Receives with doorbell on a CQ, an SRQ and a QP that were made with libibverbs, as an existing program
//! has them.
//!
//! The program destroys the objects with libibverbs, too: doorbell only takes over posting receives and polling.
//!
//! ```text
//! from_raw [auto|direct|verbs]
//! ```

use std::env;
use std::error::Error;
use std::io;
use std::process::ExitCode;
use std::ptr;
use std::thread;
use std::time::{Duration, Instant};

use doorbell::{
    BufferPool, Context, CqConfig, DataPath, PoolConfig, ProtectionDomain, QpConfig, QueuePair, Receiver, RqConfig,
    Sender, SrqConfig,
};
use rdma_core_sys::*;

const RECEIVES: u32 = 63;
const MESSAGES: usize = 1000;

/// Objects that the program has made with libibverbs.
struct Objects {
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    recv_cq: *mut ibv_cq,
    send_cq: *mut ibv_cq,
    srq: *mut ibv_srq,
    qp: *mut ibv_qp,
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("from_raw: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let path = env::args().nth(1).map_or(Ok(DataPath::Auto), |path| path.parse())?;
    // SAFETY: `Objects` creates them, and only `destroy` below destroys them.
    unsafe {
        let objects = Objects::create()?;
        receive(&objects, path)?;
        objects.destroy()?;
    }
    Ok(())
}

/// # Safety
/// The objects are alive and fresh: nothing was posted to them or polled from them.
unsafe fn receive(objects: &Objects, path: DataPath) -> Result<(), Box<dyn Error>> {
    // SAFETY: the objects are fresh, belong together, are used here only, and outlive all values that are made
    // of them here, which are dropped when the function returns.
    let (pd, mut receiver, srq, mut qp) = unsafe {
        let context = Context::from_raw(objects.context)?;
        let pd = ProtectionDomain::from_raw(&context, objects.pd);
        let mut receiver = Receiver::from_raw_cq(&pd, objects.recv_cq, &CqConfig::new(4096).path(path))?;
        let srq = receiver.attach_srq(objects.srq, &SrqConfig::new(RECEIVES))?;
        let qp = QueuePair::builder(&QpConfig::rc()).receive(&mut receiver, srq).attach(objects.qp)?;
        (pd, receiver, srq, qp)
    };
    let pool = BufferPool::new(&pd, &PoolConfig::new(RECEIVES + 1, 4096))?;
    println!("{} receives posted, path {}", receiver.fill(srq, &pool)?, receiver.path());

    // Another queue pair, of doorbell's own, to have something to receive.
    let mut far_receiver = Receiver::new(&pd, &CqConfig::new(4096).path(path))?;
    let mut sender = Sender::new(&pd, &CqConfig::new(4096).path(path))?;
    let config = QpConfig::rc().max_send_wr(RECEIVES).max_inline(32);
    let mut far = QueuePair::builder(&config).receive(&mut far_receiver, RqConfig::new(1)).send(&mut sender).build()?;
    let queue = far.send_queue().ok_or("the queue pair has no send queue")?;
    let (here, there) = (qp.address()?, far.address()?);
    qp.connect(&there)?;
    far.connect(&here)?;

    let (mut sent, mut over, mut received) = (0, 0, 0);
    let began = Instant::now();
    while received < MESSAGES {
        if sent < MESSAGES && sent - over < RECEIVES as usize {
            sender.post(queue)?.send(text(sent).as_bytes())?;
            sent += 1;
        }
        let mut batch = sender.poll();
        while let Some(completion) = batch.next() {
            completion?;
            over += 1;
        }
        drop(batch);
        let mut batch = receiver.poll();
        while let Some(message) = batch.next() {
            let message = message?;
            if message[..] != *text(received).as_bytes() {
                return Err(format!("message {received} is {:?}", &message[..]).into());
            }
            received += 1;
        }
        if began.elapsed() > Duration::from_secs(30) {
            return Err(format!("only {received} of {MESSAGES} messages came").into());
        }
        thread::yield_now();
    }
    println!("{received} messages received on a QP, an SRQ and a CQ of libibverbs");

    // No message comes any more, so the memory of the receives that are still posted may go: the SRQ and
    // the QP are destroyed later.
    far_receiver.destroy_qp(far)?;
    Ok(())
}

fn text(number: usize) -> String {
    format!("message {number}")
}

impl Objects {
    /// # Safety
    /// Only [`destroy`](Self::destroy) destroys them.
    unsafe fn create() -> io::Result<Self> {
        // SAFETY: each call gets live objects and initialised structures.
        unsafe {
            let list = ibv_get_device_list(ptr::null_mut());
            if list.is_null() || (*list).is_null() {
                return Err(io::Error::other("no RDMA device"));
            }
            let context = made(ibv_open_device(*list))?;
            ibv_free_device_list(list);
            let pd = made(ibv_alloc_pd(context))?;
            let cq = || made(ibv_create_cq(context, 128, ptr::null_mut(), ptr::null_mut(), 0));
            let (recv_cq, send_cq) = (cq()?, cq()?);
            let mut attr = ibv_srq_init_attr::default();
            attr.attr.max_wr = RECEIVES;
            attr.attr.max_sge = 1;
            let srq = made(ibv_create_srq(pd, &mut attr))?;
            let mut attr = ibv_qp_init_attr {
                send_cq,
                recv_cq,
                srq,
                cap: ibv_qp_cap { max_send_wr: 16, max_send_sge: 1, ..Default::default() },
                qp_type: IBV_QPT_RC,
                ..Default::default()
            };
            let qp = made(ibv_create_qp(pd, &mut attr))?;
            Ok(Self { context, pd, recv_cq, send_cq, srq, qp })
        }
    }

    /// # Safety
    /// Nothing uses them any more.
    unsafe fn destroy(self) -> io::Result<()> {
        // SAFETY: live objects; an object that refers to others is destroyed before them.
        unsafe {
            done(ibv_destroy_qp(self.qp))?;
            done(ibv_destroy_srq(self.srq))?;
            done(ibv_destroy_cq(self.send_cq))?;
            done(ibv_destroy_cq(self.recv_cq))?;
            done(ibv_dealloc_pd(self.pd))?;
            done(ibv_close_device(self.context))
        }
    }
}

fn made<T>(object: *mut T) -> io::Result<*mut T> {
    if object.is_null() { Err(io::Error::last_os_error()) } else { Ok(object) }
}

fn done(errno: i32) -> io::Result<()> {
    if errno == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(errno)) }
}
