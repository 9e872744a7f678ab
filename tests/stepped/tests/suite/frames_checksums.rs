//! Checksums of sent frames: with them asked for, the device writes them, whatever the frame holds there. The crate
//! etherparse says what they must be.

use doorbell::DataPath;
use doorbell::frames::{Flow, FrameConfig};
use doorbell_stepped_tests::frames::SteppedFrames;
use doorbell_stepped_tests::on_each_path;
use etherparse::PacketBuilder;

on_each_path! { the_device_writes_the_checksums_over_what_the_frame_holds }

const SOURCE: [u8; 4] = [192, 0, 2, 7];
const GROUP: [u8; 4] = [239, 1, 2, 4];
const SOURCE_6: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7];
const GROUP_6: [u8; 16] = [0xff, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 4];

/// Places of the checksums of IPv4, and of UDP or TCP, in a frame.
type Places = (Option<usize>, usize);

/// Frames with right checksums.
fn frames() -> [(Vec<u8>, Places); 4] {
    let payload: Vec<u8> = (0..41).collect();
    let ethernet = || PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [0x01, 0, 0x5e, 1, 2, 4]);
    let ipv4 = || ethernet().ipv4(SOURCE, GROUP, 16);
    let ipv6 = || ethernet().ipv6(SOURCE_6, GROUP_6, 16);
    let mut frames = [(); 4].map(|()| Vec::new());
    ipv4().udp(30_001, 30_002).write(&mut frames[0], &payload).unwrap();
    ipv4().tcp(30_001, 30_002, 7, 1024).write(&mut frames[1], &payload).unwrap();
    ipv6().udp(30_001, 30_002).write(&mut frames[2], &payload).unwrap();
    ipv6().tcp(30_001, 30_002, 7, 1024).write(&mut frames[3], &payload).unwrap();
    let [udp, tcp, udp_6, tcp_6] = frames;
    [(udp, (Some(24), 40)), (tcp, (Some(24), 50)), (udp_6, (None, 60)), (tcp_6, (None, 70))]
}

/// The sum over the pseudo header, which the Linux stack leaves to the device to complete.
fn pseudo_sum(frame: &[u8], (is_v4, _): Places) -> u16 {
    let (addresses, protocol, transport) = match is_v4 {
        Some(_) => (26..34, frame[23], 34),
        None => (22..54, frame[20], 54),
    };
    let words = frame[addresses].chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let sum = words.sum::<u32>() + u32::from(protocol) + (frame.len() - transport) as u32;
    (sum & 0xffff) as u16 + (sum >> 16) as u16
}

fn the_device_writes_the_checksums_over_what_the_frame_holds(path: DataPath) {
    let mut s = SteppedFrames::new(&FrameConfig::new().plain(16, 2048), path);
    let _rule = s.receiver.attach(&Flow::unclaimed()).unwrap();
    for (right, places) in frames() {
        let old = u16::from_be_bytes([right[places.1], right[places.1 + 1]]);
        for held in [0, pseudo_sum(&right, places), old, 0xffff, 0x1234] {
            for asked in [true, false] {
                let mut frame = right.clone();
                for at in places.0.into_iter().chain([places.1]) {
                    frame[at..at + 2].copy_from_slice(&held.to_be_bytes());
                }
                s.publisher.send(&s.device, &frame, asked);
                let came = s.receiver.next().unwrap().unwrap();
                assert_eq!(came[..], if asked { &right } else { &frame }[..], "{held:#x} at {places:?}");
                // Over IPv6 the verbs path does not say.
                if path == DataPath::Direct || places.0.is_some() {
                    let is_right = asked || frame == right;
                    assert_eq!(came.checksum_ok(), is_right, "{held:#x} at {places:?}");
                }
            }
        }
    }
}
