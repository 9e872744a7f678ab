//! Management datagrams: infiniband-diags, and multicast of perftest, which joins its group by them.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Outcome, PATIENCE, Running, finish, fresh_fabric, run, start};
use crate::pair;

fn on(fabric: &str, command: &str) -> Outcome {
    let words: Vec<_> = command.split(' ').collect();
    finish(&mut run(&["--fabric", fabric], &words))
}

/// Starts a program that answers pings, the first device of a fabric.
fn ping_server(fabric: &str) -> Running {
    let server = start(&mut run(&["--fabric", fabric], &["ibping", "-S"]));
    let name = crate::socket_name(fabric, "1\n");
    let has_joined = || std::fs::read_to_string("/proc/net/unix").unwrap().contains(&name);
    let deadline = Instant::now() + PATIENCE;
    while !has_joined() {
        assert!(Instant::now() < deadline, "the server has no device");
        thread::sleep(Duration::from_millis(5));
    }
    // The server is there as soon as its first answer is.
    let answers = || on(fabric, "ibping -c 1 -t 100 1").stdout.contains(" 1 received");
    assert!((0..600).any(|_| answers()), "no answer");
    server
}

fn end(server: Running) {
    server.signal(libc::SIGTERM);
    server.finish();
}

#[test]
fn a_peer_is_pinged_and_its_counters_are_read_and_cleared() {
    let fabric = fresh_fabric("ping");
    let server = ping_server(&fabric);
    let pings = on(&fabric, "ibping -c 5 1").succeeded();
    assert!(pings.contains("5 packets transmitted, 5 received, 0% packet loss"), "{pings}");
    let field = |text: &str, name: &str| -> u64 {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.rsplit('.').next().and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{text}"))
    };
    let counters = on(&fabric, "perfquery -x 1").succeeded();
    // Five pings are five packets each way, and the server has answered others before.
    let before = field(&counters, "PortRcvPkts:");
    assert!(before >= 6 && field(&counters, "PortUnicastXmitPkts:") >= 6, "{counters}");
    assert!(field(&counters, "PortXmitData:") > 6 * 64, "{counters}");
    assert_eq!(field(&on(&fabric, "perfquery 1").succeeded(), "PortRcvErrors:"), 0);
    on(&fabric, "perfquery -x -R 1").succeeded();
    let counters = on(&fabric, "perfquery -x 1").succeeded();
    assert!(field(&counters, "PortRcvPkts:") < before, "{counters}");
    end(server);
    // The address has no owner any more.
    let outcome = on(&fabric, "perfquery -t 50 7");
    assert!(!outcome.status.success(), "{outcome:?}");
}

#[test]
fn the_fabric_is_a_switch_with_the_devices_at_its_ports() {
    let fabric = fresh_fabric("topology");
    let server = ping_server(&fabric);
    let links = on(&fabric, "iblinkinfo").succeeded();
    let active = links.lines().filter(|line| line.contains("Active/  LinkUp")).count();
    assert_eq!(active, 4, "{links}");
    for text in ["soft-mlx5 lid 1\"", "soft-mlx5 lid 2\"", "\"soft-mlx5 switch\"", "25.78125 Gbps"] {
        assert!(links.contains(text), "{text}: {links}");
    }
    let nodes = on(&fabric, "ibnetdiscover -p").succeeded();
    assert!(nodes.contains("CA     1  1 0x00db00fffe000001 4x EDR - SW 49151  1"), "{nodes}");
    assert_eq!(on(&fabric, "ibhosts").succeeded().lines().count(), 2);
    let master = on(&fabric, "sminfo").succeeded();
    assert!(master.contains("sm lid 49151") && master.contains("SMINFO_MASTER"), "{master}");
    let trace = on(&fabric, "ibtracert 2 1").succeeded();
    assert_eq!(trace.lines().count(), 4, "{trace}");
    let records = on(&fabric, "saquery").succeeded();
    assert_eq!(records.matches("NodeRecord dump").count(), 3, "{records}");
    let path = on(&fabric, "saquery -p --src-to-dst 2:1").succeeded();
    assert!(path.contains("dlid....................1\n") && path.contains("slid....................2\n"), "{path}");
    end(server);
}

#[test]
fn a_port_shows_its_state() {
    let state = finish(&mut run(&[], &["ibstat"])).succeeded();
    for text in ["State: Active", "Base lid: 1", "SM lid: 49151", "Rate: 100", "Link layer: InfiniBand"] {
        assert!(state.contains(text), "{text}: {state}");
    }
    let state = finish(&mut run(&["--link", "roce"], &["ibstat"])).succeeded();
    assert!(state.contains("Link layer: Ethernet"), "{state}");
    let status = finish(&mut run(&[], &["ibstatus"])).succeeded();
    assert!(status.contains("4: ACTIVE") && status.contains("100 Gb/sec (4X EDR)"), "{status}");
    let speeds = finish(&mut run(&[], &["ibportstate", "1", "1", "query"])).succeeded();
    assert!(speeds.contains("LinkSpeedExtActive:..............25.78125 Gbps"), "{speeds}");
}

/// The program joins its group at the subnet administrator, and attaches its QP to the LID that it gets.
#[test]
fn datagrams_to_a_group_that_the_program_joins() {
    let outputs = pair(&["--strict"], &["ib_send_bw", "-c", "UD", "-g", "-n", "200", "-s", "1024"]);
    assert!(outputs[1].contains(" 1024       200 "), "{}", outputs[1]);
}

/// Programs cancel threads that wait for an asynchronous event: the replaced `read` must be a cancellation point, too.
#[test]
fn a_thread_that_reads_can_be_cancelled() {
    const PROGRAM: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
static int fds[2];
static void *wait_for_data(void *none) {
    char byte;
    write(fds[1], "", 1);
    read(fds[0], &byte, 1);
    read(fds[0], &byte, 1);
    return none;
}
int main(void) {
    pthread_t thread;
    void *result;
    alarm(200);
    if (pipe(fds) || pthread_create(&thread, NULL, wait_for_data, NULL)) return 1;
    usleep(50000);
    pthread_cancel(thread);
    pthread_join(thread, &result);
    return result == PTHREAD_CANCELED ? 0 : 2;
}
"#;
    let place = std::env::temp_dir().join(format!("soft-mlx5-cancel-{}", std::process::id()));
    std::fs::create_dir_all(&place).unwrap();
    let (source, program) = (place.join("cancel.c"), place.join("cancel"));
    std::fs::write(&source, PROGRAM).unwrap();
    let mut compiler = Command::new("gcc");
    compiler.args(["-pthread", "-w", "-o"]).args([&program, &source]);
    finish(&mut compiler).succeeded();
    let outcome = finish(&mut run(&[], &[program.to_str().unwrap()]));
    std::fs::remove_dir_all(&place).unwrap();
    assert!(outcome.status.success(), "{outcome:?}");
}

/// Speaks to the file itself: answers that are too long, late or wanted by nobody, and data that is no datagram.
#[test]
fn the_file_answers_as_the_kernel_does() {
    const SCRIPT: &str = r#"
import ctypes, errno, fcntl, os, select, struct
fd = os.open('/dev/infiniband/umad0', os.O_RDWR | os.O_NONBLOCK)
REGISTER, REGISTER2, UNREGISTER, PKEY = 0xc01c1b01, 0xc0281b04, 0x40041b02, 0x1b03
assert fcntl.ioctl(fd, PKEY, 0) == 0
def fails(error, call, *arguments):
    try:
        call(*arguments)
    except OSError as found:
        assert found.errno == error, (found.errno, error)
    else:
        raise AssertionError(error)
def register(mgmt_class, methods=b'', qpn=1, version=1, oui=b'\0\0\0'):
    request = bytearray(struct.pack('I16sBBB3sBx', 0, methods, qpn, mgmt_class, version, oui, 1))
    fcntl.ioctl(fd, REGISTER, request)
    return struct.unpack_from('I', request)[0]
sa, pm, ping = register(3, version=2), register(4), register(0x32, b'\x02', oui=b'\0\x14\x05')
assert (sa, pm, ping) == (0, 1, 2)
fails(errno.EINVAL, register, 0x32, b'\x02', 1, 1, b'\0\x14\x05')
fails(errno.EINVAL, register, 4, b'', 2)
fails(errno.EINVAL, fcntl.ioctl, fd, PKEY, 0)
fails(errno.ENOTTY, fcntl.ioctl, fd, 0x1b77, 0)
def send(agent, lid, mad, timeout=1000, retries=0):
    address = struct.pack('>IIH', 1, 0x80010000, lid) + bytes(34)
    header = struct.pack('IIIII', agent, 0, timeout, retries, 0) + address
    assert len(header) == 64
    return os.write(fd, header + mad.ljust(256, b'\0'))
def receive(size=320):
    assert select.select([fd], [], [], 120)[0]
    return os.read(fd, size)
def header(cls, method, attribute, tid=7, version=1):
    return struct.pack('>BBBBHHQHHI', 1, cls, version, method, 0, 0, tid, attribute, 0, 0)
# The port's own counters, by LID and by itself.
for lid in 1, 0:
    assert send(pm, lid, header(4, 1, 0x1d)) == 320
    answer = receive()
    assert struct.unpack_from('IIIII', answer) == (pm, 0, 0, 0, 320) and answer[64 + 3] == 0x81
    assert struct.unpack_from('>I', answer, 64 + 12)[0] == 7
# A table is longer than the first buffer.
assert send(sa, 49151, header(3, 0x12, 0x12, version=2)) == 320
fails(errno.EINVAL, receive, 100)
fails(errno.ENOSPC, receive)
table = receive(65536)
assert (len(table) - 64 - 56) % 72 == 0 and len(table) > 320 and table[64 + 3] == 0x92
fails(errno.EAGAIN, os.read, fd, 320)
# Nobody answers: the header comes back with an error.
send(pm, 77, header(4, 1, 0x1d), timeout=20, retries=2)
late = receive()
assert struct.unpack_from('II', late) == (pm, errno.ETIMEDOUT) and len(late) == 64 + 24
# A request to an agent of this very file, its answer, and the answer that nobody waits for.
body = header(0x32, 1, 0).ljust(37, b'\0') + b'\0\x14\x05'
send(ping, 1, body)
asked = receive()
assert struct.unpack_from('I', asked)[0] == ping and asked[64 + 3] == 1
reply = bytearray(asked[64:]); reply[3] = 0x81
send(ping, 1, bytes(reply), timeout=0)
assert receive()[64 + 3] == 0x81
send(ping, 1, bytes(reply), timeout=0)
# Requests without an agent are refused, and no data make the file fail.
other = register(0x0b)
send(other, 1, header(0x0b, 1, 1))
assert struct.unpack_from('>H', receive(), 64 + 4)[0] == 0xc
for junk in b'', b'x' * 63, b'x' * 90, b'x' * 321:
    fails(errno.EINVAL, os.write, fd, junk)
fails(errno.EINVAL, send, 9, 1, header(4, 1, 1))
copy = os.dup(fd); os.close(fd); fd = copy
send(pm, 1, header(4, 1, 1)); assert receive()[64 + 3] == 0x81
fcntl.ioctl(fd, UNREGISTER, struct.pack('I', pm))
fails(errno.EINVAL, send, pm, 1, header(4, 1, 1))
fails(errno.EBUSY, os.open, '/dev/infiniband/issm0', os.O_RDWR)
fails(errno.ENOENT, os.open, '/dev/infiniband/umad7', os.O_RDWR)
if os.fork() == 0:
    fails(errno.EIO, send, sa, 1, header(3, 1, 1)); os._exit(0)
assert os.wait()[1] == 0
os.close(fd)
print('fine')
"#;
    let outcome = finish(&mut run(&[], &["/usr/bin/python3", "-c", SCRIPT]));
    assert_eq!(outcome.stdout, "fine\n", "{outcome:?}");
    assert!(outcome.status.success());
}
