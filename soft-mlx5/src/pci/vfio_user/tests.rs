use std::io::{Read, Write};
use std::thread;

use super::*;
use crate::base::rng::Rng;

/// Serves one client on a thread; returns its socket and what waits for the end of the connection.
fn client() -> (UnixStream, thread::JoinHandle<io::Result<()>>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut device = Device::new(NicConfig::default()).unwrap();
    (theirs, thread::spawn(move || serve(ours, &mut device)))
}

fn request(command: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![1, 0];
    bytes.extend(command.to_le_bytes());
    bytes.extend((16 + payload.len() as u32).to_le_bytes());
    bytes.resize(16, 0);
    bytes.extend(payload);
    bytes
}

fn reply(socket: &mut UnixStream) -> (u32, Vec<u8>) {
    let mut header = [0; 16];
    socket.read_exact(&mut header).unwrap();
    let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
    let mut payload = vec![0; word(4) as usize - 16];
    socket.read_exact(&mut payload).unwrap();
    (word(12), payload)
}

#[test]
fn a_refused_request_does_not_end_the_connection() {
    let (mut socket, server) = client();
    socket.write_all(&request(99, &[])).unwrap();
    assert_eq!(reply(&mut socket), (libc::EOPNOTSUPP as u32, Vec::new()));
    // A range without a file that is mapped, unmapped, and then unmapped again.
    let range = [[0u8; 8], 0x1000u64.to_le_bytes(), 0x1000u64.to_le_bytes()].concat();
    let map = [&range[..8], &[0; 8], &range[8..]].concat();
    socket.write_all(&request(2, &map)).unwrap();
    assert_eq!(reply(&mut socket).0, 0);
    socket.write_all(&request(3, &range)).unwrap();
    assert_eq!(reply(&mut socket).0, 0);
    socket.write_all(&request(3, &range)).unwrap();
    assert_eq!(reply(&mut socket).0, libc::EINVAL as u32);
    let info = request(4, &[]);
    socket.write_all(&info).unwrap();
    assert_eq!(reply(&mut socket).0, 0);
    drop(socket);
    server.join().unwrap().unwrap();
}

#[test]
fn no_reply_where_none_is_wanted() {
    let (mut socket, server) = client();
    let mut quiet = request(13, &[]);
    quiet[8] = 0x10;
    socket.write_all(&quiet).unwrap();
    socket.write_all(&request(4, &[])).unwrap();
    assert_eq!(reply(&mut socket).1.len(), 16);
    drop(socket);
    server.join().unwrap().unwrap();
}

#[test]
fn a_client_that_dies_in_the_middle_of_a_message_ends_its_device() {
    let whole = request(10, &[0; 20]);
    for cut in [1, 15, 16, 17, whole.len() - 1] {
        let (mut socket, server) = client();
        socket.write_all(&whole[..cut]).unwrap();
        drop(socket);
        server.join().unwrap().unwrap();
    }
}

#[test]
fn clients_that_send_garbage_end_their_connections_only() {
    let mut rng = Rng::new(47);
    for _ in 0..50 {
        let (mut socket, server) = client();
        for _ in 0..100 {
            let payload: Vec<u8> = (0..rng.below(64)).map(|_| rng.next_u64() as u8).collect();
            let mut bytes = request(rng.below(16) as u16, &payload);
            if rng.chance(0.02) {
                let at = rng.below(16) as usize;
                bytes[at] = rng.next_u64() as u8;
            }
            // No reply, so that none has to be read.
            bytes[8] |= 0x10;
            if socket.write_all(&bytes).is_err() {
                break;
            }
        }
        drop(socket);
        // A header that was changed may be one all the same.
        let _ = server.join().unwrap();
    }
}

#[test]
fn a_socket_of_a_server_that_is_gone_is_used_again() {
    let dir = std::env::temp_dir().join(format!("soft-mlx5-listen-{}", std::process::id()));
    fs::create_dir(&dir).unwrap();
    let path = dir.join("socket");
    drop(listen(&path).unwrap());
    let second = listen(&path).unwrap();
    let third = listen(&path).unwrap_err();
    assert_eq!(third.kind(), io::ErrorKind::AddrInUse);
    drop(second);
    let file = dir.join("file");
    fs::write(&file, "kept").unwrap();
    assert!(listen(&file).is_err());
    assert_eq!(fs::read(&file).unwrap(), b"kept");
    fs::remove_dir_all(&dir).unwrap();
}

/// Returns the state of the interface, and syndrome and request for a reset.
fn health(device: &mut Device) -> (u32, u32, u32) {
    let mut word = |offset| {
        let answer = device.handle(Request::RegionRead { region: 0, offset, count: 4 }, Vec::new()).unwrap();
        answer.payload.last_chunk().copied().map(u32::from_be_bytes).unwrap()
    };
    (word(0x14) >> 8 & 7, word(0x23c) >> 16 & 0xff, word(0x238) >> 31)
}

fn start_of_a_driver(device: &mut Device) {
    let queue = 0x4000u32.to_be_bytes();
    device.handle(Request::RegionWrite { region: 0, offset: 0x14, data: &queue }, Vec::new()).unwrap();
}

#[test]
fn a_reset_of_the_function_is_seen_in_its_health() {
    let mut device = Device::new(NicConfig::default()).unwrap();
    start_of_a_driver(&mut device);
    assert_eq!(health(&mut device), (0, 0, 0));
    // Bit 15 of the control register of the PCI Express capability.
    let config = 7;
    device.handle(Request::RegionWrite { region: config, offset: 0x68, data: &[0x10, 0xa8] }, Vec::new()).unwrap();
    assert_eq!(health(&mut device), (1, 0, 0));
    start_of_a_driver(&mut device);
    assert_eq!(health(&mut device), (0, 0, 0));
}

#[test]
fn firmware_fails_once() {
    let faults = crate::base::faults::Faults { fail_firmware: Some(Duration::ZERO), ..Default::default() };
    let mut device = Device::new(NicConfig { faults, ..NicConfig::default() }).unwrap();
    start_of_a_driver(&mut device);
    assert_eq!(device.until_timer(), Some(0));
    device.step();
    assert_eq!(health(&mut device), (1, 1, 1));
    start_of_a_driver(&mut device);
    device.step();
    assert_eq!(health(&mut device), (0, 0, 0));
    assert_eq!(device.injected().firmware, 1);
}
