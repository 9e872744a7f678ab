//! A program with a driver of its own, which asks the kernel for its objects without libibverbs.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{finish, run};

/// Returns an IPv4 packet with the sum of its header.
fn packet(protocol: u8, source: [u8; 4], body: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, 0];
    packet.extend((20 + body.len() as u16).to_be_bytes());
    packet.extend([0, 0, 0x40, 0, 9, protocol, 0, 0]);
    packet.extend(source);
    packet.extend([192, 0, 2, 1]);
    let words = packet.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u32 = words.sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend(body);
    packet
}

/// Returns a datagram to a port, without a checksum.
pub fn datagram(port: u16) -> Vec<u8> {
    let mut body = port.to_be_bytes().repeat(2);
    body.extend((8 + 32_u16).to_be_bytes());
    body.extend([0; 2]);
    body.extend([7; 32]);
    packet(17, [192, 0, 2, 2], &body)
}

/// Writes a capture of these packets, in Ethernet frames. All but the first come three seconds later, when the program
/// has attached its other rules, too, so many microseconds one after the other.
pub fn write_capture(path: &Path, packets: &[Vec<u8>], apart: u32) {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1] {
        file.extend(word.to_le_bytes());
    }
    for (number, packet) in packets.iter().enumerate() {
        let time = if number == 0 { [0; 2] } else { [3, apart * number as u32] };
        let frame = [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0][..], packet].concat();
        for word in time.into_iter().chain([frame.len() as u32; 2]) {
            file.extend(word.to_le_bytes());
        }
        file.extend(frame);
    }
    fs::write(path, file).unwrap();
}

/// More datagrams than the rings have entries. Some come in tunnels, and some find no receive. Those to a third port
/// match no rule, in a tunnel neither.
#[test]
fn a_program_without_libibverbs() {
    let place = std::env::temp_dir().join(format!("soft-mlx5-own-driver-{}", std::process::id()));
    fs::create_dir_all(&place).unwrap();
    let (program, capture) = (place.join("own_driver"), place.join("frames.pcap"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/own_driver.c");
    let mut compiler = Command::new("cc");
    let compiler = compiler.args(["-Wall", "-Wextra", "-Werror", "-O1"]).arg(source).arg("-o");
    finish(compiler.arg(&program)).succeeded();

    let tunnel = |port| packet(47, [198, 51, 100, 7], &[&[0, 0, 8, 0][..], &datagram(port)].concat());
    let mut packets = vec![datagram(9003)];
    for _ in 0..30 {
        packets.extend([datagram(9001), datagram(9002), tunnel(9001), tunnel(9003), datagram(9003), datagram(9001)]);
    }
    // The rings are shorter than the capture: a program that does not run for 100 ms loses nothing.
    write_capture(&capture, &packets, 5000);
    let options = ["--link", "roce", "--shared-registers", "--frames", capture.to_str().unwrap()];
    let outcome = finish(&mut run(&options, &[program.to_str().unwrap(), "90"]));
    fs::remove_dir_all(&place).unwrap();
    assert_eq!(outcome.succeeded(), "90 datagrams, 30 in tunnels, 90 sent back, out_of_buffer 30\n");
}
