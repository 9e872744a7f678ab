//! Ordinary sockets on the other end of the link: one end of a veth pair is the device's port.

use std::net::{Ipv4Addr, UdpSocket};
use std::process::Command;
use std::time::Duration;

use doorbell::frames::{Flow, FrameConfig};
use doorbell::{Completions, DataPath};
use doorbell_stepped_tests::frames::{GROUP, OTHER, PORT, SOURCE, SteppedFrames, datagram};
use doorbell_stepped_tests::with_each_receiver;
use soft_mlx5::Device;

/// Address of the interface that is the device's port.
const HERE: Ipv4Addr = Ipv4Addr::new(10, 9, 1, 1);
/// Address of the interface that the sockets are on.
const THERE: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);

fn ip(arguments: &str) -> bool {
    let status = Command::new("ip").args(arguments.split(' ')).status();
    status.is_ok_and(|status| status.success())
}

/// Puts this thread into a network namespace of its own with a veth pair: `port` for the device, `peer` for sockets.
fn veth() -> bool {
    // SAFETY: changes the network namespace of this thread only.
    let apart = unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0;
    apart
        && ip("link add port type veth peer name peer")
        && ip(&format!("addr add {HERE}/24 dev port"))
        && ip(&format!("addr add {THERE}/24 dev peer"))
        && ip("link set port up")
        && ip("link set peer up")
        && ip("route add 224.0.0.0/4 dev peer")
}

/// Returns `true` if the kernel is a member of the group on the device's port, and so answers IGMP queries there.
fn is_member(group: Ipv4Addr) -> bool {
    let memberships = std::fs::read_to_string("/proc/thread-self/net/igmp").unwrap();
    // A line for each interface, then an indented line for each of its groups, as the number in memory.
    let mut lines = memberships.lines().skip_while(|line| !line.contains("\tport "));
    let number = format!("{:08X}", u32::from_ne_bytes(group.octets()));
    lines.next().expect("the interface");
    lines.take_while(|line| line.starts_with("\t\t")).any(|line| line.contains(&number))
}

with_each_receiver! { sockets_and_queues_reach_each_other }

fn sockets_and_queues_reach_each_other(config: &FrameConfig, path: DataPath, _: u32) {
    if !veth() {
        return println!("skipped: a veth pair needs root and iproute2");
    }
    let mut world = SteppedFrames::on(Device::builder().netdev("port"), config, path);
    assert!(!is_member(GROUP));
    let mut flow = Flow::udp(GROUP, PORT).join_on(HERE);
    if path == DataPath::Direct {
        flow = flow.tag(7);
    }
    let rule = world.receiver.attach(&flow).unwrap();
    assert!(is_member(GROUP));

    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT)).unwrap();
    socket.join_multicast_v4(&GROUP, &THERE).unwrap();
    socket.set_multicast_loop_v4(false).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(240))).unwrap();
    for number in 0..100u8 {
        socket.send_to(b"other group", (OTHER, PORT)).unwrap();
        socket.send_to(b"other port", (GROUP, PORT + 1)).unwrap();
        socket.send_to(&[number; 1000][..usize::from(number) * 10], (GROUP, PORT)).unwrap();
        // The kernel may deliver after the call has returned.
        while !world.receiver.arm().unwrap() {
            world.device.settle();
        }
        let mut batch = world.receiver.poll();
        let frame = batch.next().expect("a frame").unwrap();
        assert!(frame[42..].starts_with(&[number; 1000][..usize::from(number) * 10]), "{frame:?}");
        assert_eq!(frame[26..34], [THERE.octets(), GROUP.octets()].concat());
        // The kernel leaves the checksum to the interface.
        assert!(frame.checksum_ok());
        assert_eq!(frame.tag(), (path == DataPath::Direct).then_some(7));
        assert!(batch.next().is_none());
    }

    // Inline, and from a buffer.
    for len in [60, 1400] {
        let sent = datagram(GROUP, 9, len, 3);
        world.publisher.send(&world.device, &sent, true);
        let mut text = [0; 2048];
        let (read, from) = socket.recv_from(&mut text).unwrap();
        assert_eq!((&text[..read], from), (&sent[42..], (SOURCE, 9).into()));
        // Another context of the device gets the datagram from the device, and not again from the interface.
        world.expect(len, 3);
        world.expect_nothing();
    }

    drop(rule);
    assert!(!is_member(GROUP));
    socket.send_to(b"nobody listens", (GROUP, PORT)).unwrap();
    world.device.settle();
    world.expect_nothing();
}
