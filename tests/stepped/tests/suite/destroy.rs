//! Destroy commands that fail: memory that the device may still write is leaked, with a warning.

use std::fs::{self, File};
use std::io::{Read, Seek};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};

use doorbell::{
    AddressHandle, Buffer, BufferPool, Completions, CqConfig, DataPath, MulticastGroup, PoolConfig, QpConfig,
    QueuePair, Receiver, RqConfig,
};
use doorbell_stepped_tests::sending_qp::SendingQp;
use doorbell_stepped_tests::{PATHS, Stepped, open};
use soft_mlx5::faults::{ByKind, Which};
use soft_mlx5::{Device, Faults, LinkLayer};

const SIZE: u32 = 64;

/// A connection with a full queue, or with a full SRQ.
fn full(link: LinkLayer, path: DataPath, is_shared: bool) -> Stepped {
    let device = open(Device::builder().stepped().link_layer(link));
    let mut stepped = Stepped::empty(device, &CqConfig::new(64).path(path), 15, is_shared);
    stepped.fill();
    stepped
}

/// Picks the commands of one kind.
type Kind = fn(&mut ByKind) -> &mut Which;

fn failing(device: &Device, kind: Kind) {
    fail(device, kind, Which::All);
}

fn fail(device: &Device, kind: Kind, which: Which) {
    let mut fail_destroy = ByKind::default();
    *kind(&mut fail_destroy) = which;
    device.set_faults(Faults { fail_destroy, ..Faults::default() });
}

/// Returns the lines that the library prints to stderr during `work`.
fn printed(work: impl FnOnce()) -> String {
    // SAFETY: the name is a string; the descriptors are this process's.
    let (mut file, saved) = unsafe {
        let file = File::from_raw_fd(libc::memfd_create(c"stderr".as_ptr(), 0));
        let saved = libc::dup(libc::STDERR_FILENO);
        assert!(saved >= 0 && libc::dup2(file.as_raw_fd(), libc::STDERR_FILENO) >= 0);
        (file, saved)
    };
    work();
    // SAFETY: as above.
    unsafe {
        libc::dup2(saved, libc::STDERR_FILENO);
        libc::close(saved);
    }
    let mut printed = String::new();
    file.rewind().unwrap();
    file.read_to_string(&mut printed).unwrap();
    printed
}

fn assert_leak(printed: &str, operation: &str) {
    let line = printed.lines().find(|line| line.contains(operation));
    assert!(line.is_some_and(|line| line.contains("leaked")), "no word of {operation}: {printed}");
}

/// Sends more than was posted, and lets the device work.
fn send_into_what_is_left(far: &mut SendingQp, device: &Device) {
    for _ in 0..32 {
        far.send_inline(&[0x55; SIZE as usize], None).unwrap();
    }
    device.settle();
}

/// All buffers that a pool gives, with a pattern in them.
fn take_all(pool: &BufferPool) -> Vec<Buffer> {
    std::iter::from_fn(|| pool.take())
        .map(|mut buffer| {
            buffer.set_len(SIZE as usize);
            buffer.fill(0xaa);
            buffer
        })
        .collect()
}

fn assert_untouched(buffers: &[Buffer]) {
    assert!(buffers.iter().all(|buffer| buffer.iter().all(|&byte| byte == 0xaa)));
}

fn is_open(fd: RawFd) -> bool {
    // SAFETY: F_GETFD changes nothing.
    unsafe { libc::fcntl(fd, libc::F_GETFD) >= 0 }
}

/// Whether a page of the process is mapped.
fn is_mapped(addr: usize) -> bool {
    fs::read_to_string("/proc/self/maps").unwrap().lines().any(|line| {
        let (start, rest) = line.split_once('-').unwrap();
        let end = rest.split_once(' ').unwrap().0;
        let number = |hex| usize::from_str_radix(hex, 16).unwrap();
        (number(start)..number(end)).contains(&addr)
    })
}

/// The queue pair stays, and goes on receiving into buffers that are never returned.
fn a_queue_pair(path: DataPath, shared: bool) {
    let mut w = full(LinkLayer::InfiniBand, path, shared);
    failing(&w.device, |fail| &mut fail.qp);
    let posted = w.pool.count() as usize - w.pool.available();
    assert_leak(&printed(|| drop((w.near, w.receiver))), "ibv_destroy_qp");
    let rest = take_all(&w.pool);
    assert_eq!(rest.len(), w.pool.count() as usize - posted, "posted buffers came back");
    send_into_what_is_left(&mut w.far, &w.device);
    assert_untouched(&rest);
    drop(rest);
    // Neither the buffers nor the objects that the queue pair refers to are freed.
    drop((w.far, w.far_receiver, w.pool, w.pd));
}

#[test]
fn a_queue_pair_with_a_receive_queue() {
    PATHS.into_iter().for_each(|path| a_queue_pair(path, false));
}

#[test]
fn a_queue_pair_on_an_srq() {
    PATHS.into_iter().for_each(|path| a_queue_pair(path, true));
}

#[test]
fn a_shared_receive_queue() {
    for path in PATHS {
        for explicitly in [false, true] {
            let mut w = full(LinkLayer::InfiniBand, path, true);
            let posted = w.pool.count() as usize - w.pool.available();
            // The library waits for the last WQE of the queue pair, and a stepped device does nothing meanwhile.
            w.near.to_error().unwrap();
            w.device.settle();
            w.receiver.destroy_qp(w.near).unwrap();
            failing(&w.device, |fail| &mut fail.srq);
            let printed = printed(|| match explicitly {
                true => w.receiver.destroy_srq(w.srq.unwrap()).unwrap(),
                false => drop(w.receiver),
            });
            assert_leak(&printed, "ibv_destroy_srq");
            assert_eq!(w.pool.available(), w.pool.count() as usize - posted);
        }
    }
}

#[test]
fn a_completion_queue() {
    for path in PATHS {
        let w = full(LinkLayer::InfiniBand, path, false);
        let channel = w.receiver.channel().expect("a receiver has one").as_raw_fd();
        failing(&w.device, |fail| &mut fail.cq);
        let printed = printed(|| drop((w.receiver, w.near)));
        assert_leak(&printed, "ibv_destroy_cq");
        // No command destroys a channel: libibverbs keeps the channel of a CQ.
        assert_leak(&printed, "ibv_destroy_comp_channel");
        assert!(is_open(channel), "the CQ has its channel still");
        // No receive can be outstanding on a CQ alone: the queue was destroyed.
        assert_eq!(w.pool.available(), w.pool.count() as usize);
        drop((w.pool, w.pd));
    }
}

/// A queue pair for datagrams, and where to send them.
fn datagrams(w: &mut Stepped) -> (SendingQp, AddressHandle) {
    let config = QpConfig::ud(7).max_inline(SIZE);
    let mut qp = SendingQp::create(&mut w.far_receiver, &config, RqConfig::new(1)).unwrap();
    qp.activate().unwrap();
    let to = qp.address_handle(&qp.address().unwrap(), 7).unwrap();
    (qp, to)
}

/// The kernel knows the address handles of Ethernet only.
#[test]
fn an_address_handle() {
    for (path, link) in [
        (DataPath::Direct, LinkLayer::Ethernet),
        (DataPath::Verbs, LinkLayer::Ethernet),
        (DataPath::Direct, LinkLayer::InfiniBand),
    ] {
        let mut w = full(link, path, false);
        let (mut qp, to) = datagrams(&mut w);
        qp.send_to(b"on its way", &to, None).unwrap();
        failing(&w.device, |fail| &mut fail.ah);
        // Through verbs the request refers to the handle. On the direct path it has a copy of the address.
        let mut words = printed(|| drop(to));
        assert!(words.is_empty() || path == DataPath::Direct, "{words}");
        w.device.settle();
        words += &printed(|| assert!(qp.poll_send().is_some_and(|sent| sent.status.is_success())));
        if link == LinkLayer::Ethernet {
            assert_leak(&words, "ibv_destroy_ah");
        } else {
            assert_eq!(words, "");
        }
    }
}

/// Every destroy command of a teardown fails once, in each order of dropping. The warning names the object and the
/// device, and memory stays while an object is left through which the device writes to it.
#[test]
fn each_command_in_turn() {
    let kinds: [(Kind, &str, u64); 6] = [
        (|fail| &mut fail.mr, "ibv_dereg_mr", 1),
        (|fail| &mut fail.qp, "ibv_destroy_qp", 3),
        (|fail| &mut fail.srq, "ibv_destroy_srq", 1),
        (|fail| &mut fail.cq, "ibv_destroy_cq", 4),
        (|fail| &mut fail.ah, "ibv_destroy_ah", 1),
        (|fail| &mut fail.pd, "ibv_dealloc_pd", 1),
    ];
    for path in PATHS {
        for backwards in [false, true] {
            for (kind, operation, commands) in kinds {
                for nth in 1..=commands + 1 {
                    let mut w = full(LinkLayer::Ethernet, path, true);
                    let (qp, to) = datagrams(&mut w);
                    let addr = w.pool.take().unwrap().as_ptr() as usize;
                    let name = w.device.name().to_owned();
                    fail(&w.device, kind, Which::Nth(nth));
                    let printed = printed(|| match backwards {
                        false => drop((w.near, w.receiver, w.far, w.far_receiver, qp, to, w.pool, w.pd)),
                        true => drop((w.pd, w.pool, to, qp, w.far_receiver, w.far, w.receiver, w.near)),
                    });
                    let context = format!("{operation} {nth}, {path}, {backwards}: {printed}");
                    if nth > commands {
                        assert_eq!(printed, "", "{context}");
                    } else {
                        assert_leak(&printed, &format!("{operation} on {name} failed"));
                    }
                    // The queue pair on the SRQ is destroyed first, or last.
                    let near = if backwards { 3 } else { 1 };
                    let written = match operation {
                        "ibv_dereg_mr" | "ibv_destroy_srq" => nth == 1,
                        "ibv_destroy_qp" => nth == near,
                        _ => false,
                    };
                    assert_eq!(is_mapped(addr), written, "{context}");
                }
            }
        }
    }
}

/// A queue pair that has not left its groups could not be destroyed.
#[test]
fn a_queue_pair_that_has_joined_multicast_groups() {
    for path in PATHS {
        let (_device, pd) = open(Device::builder().stepped());
        let config = CqConfig::new(64).path(path);
        let mut receiver = Receiver::new(&pd, &config).unwrap();
        let mut qp = QueuePair::builder(&QpConfig::ud(7)).receive(&mut receiver, RqConfig::new(16)).build().unwrap();
        qp.activate().unwrap();
        for last in [1, 2, 3] {
            let mut gid = [0xff; 16];
            gid[15] = last;
            qp.join(&MulticastGroup { gid, lid: 0xc000 + u16::from(last) }).unwrap();
        }
        assert_eq!(printed(|| drop((qp, receiver, pd))), "");
    }
}

#[test]
fn memory_goes_after_the_device_was_removed_whether_the_program_knows_it_or_not() {
    for path in PATHS {
        for knows in [false, true] {
            let w = full(LinkLayer::InfiniBand, path, true);
            let pool = BufferPool::new(&w.pd, &PoolConfig::new(1024, 4096)).unwrap();
            let addr = pool.take().unwrap().as_ptr() as usize;
            w.device.remove();
            if knows {
                assert_eq!(w.pd.context().events().unwrap().count(), 1);
            }
            let printed = printed(|| drop((w.near, w.receiver, w.far, w.far_receiver, pool)));
            assert_eq!((printed.as_str(), is_mapped(addr)), ("", false), "{path}: {knows}");
            assert_eq!(w.pool.available(), w.pool.count() as usize);
        }
    }
}
