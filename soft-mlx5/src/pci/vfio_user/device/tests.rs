use super::*;
use crate::base::rng::Rng;
use crate::pci::vfio_user::message::IrqAction;

fn device() -> Device {
    Device::new(NicConfig::default()).unwrap()
}

fn payload(device: &mut Device, request: Request<'_>) -> Vec<u8> {
    device.handle(request, Vec::new()).unwrap().payload
}

fn read(device: &mut Device, region: u32, offset: u64, count: u32) -> Vec<u8> {
    payload(device, Request::RegionRead { region, offset, count }).split_off(16)
}

#[test]
fn what_qemu_asks_at_its_start() {
    let mut device = device();
    let answer = payload(&mut device, Request::Version { major: 0 });
    let text = std::str::from_utf8(&answer[4..answer.len() - 1]).unwrap();
    assert_eq!(text, r#"{"capabilities":{"max_msg_fds":8,"max_data_xfer_size":1048576}}"#);
    assert_eq!((&answer[..4], answer.last()), (&[0; 4][..], Some(&0)));
    let answer = payload(&mut device, Request::DeviceInfo);
    assert_eq!(answer, words(&[16, 3, 9, 5]));
    let answer = payload(&mut device, Request::IrqInfo { index: 2 });
    assert_eq!(answer, words(&[16, 9, 2, 16]));
    let later = device.handle(Request::Version { major: 1 }, Vec::new());
    assert_eq!(later.unwrap_err(), EINVAL);
}

#[test]
fn the_bar_is_offered_when_there_is_room_for_its_capability() {
    let mut device = device();
    let short = device.handle(Request::RegionInfo { argsz: 32, index: 0 }, Vec::new()).unwrap();
    // The offset of the capability counts even where the capability is not there.
    assert_eq!(short.payload[..16], words(&[64, 15, 0, 32]));
    assert!(!short.with_bar && short.payload.len() == 32);
    let long = device.handle(Request::RegionInfo { argsz: 64, index: 0 }, Vec::new()).unwrap();
    assert!(long.with_bar);
    assert_eq!(long.payload[16..24], (8u64 << 20).to_le_bytes());
    let area = [0x1_1000u64.to_le_bytes(), (0x80_0000u64 - 0x1_1000).to_le_bytes()].concat();
    assert_eq!(long.payload[32..], [words(&[0x1_0001, 0, 1, 0]), area].concat());
    let config = payload(&mut device, Request::RegionInfo { argsz: 32, index: 7 });
    assert_eq!(config[16..24], 4096u64.to_le_bytes());
    let none = device.handle(Request::RegionInfo { argsz: 32, index: 9 }, Vec::new());
    assert_eq!(none.unwrap_err(), EINVAL);
}

#[test]
fn a_reset_ends_what_the_driver_has_set() {
    let mut device = device();
    let high = Request::RegionWrite { region: 0, offset: 0x10, data: &[0, 0, 0, 7] };
    device.handle(high, Vec::new()).unwrap();
    assert_eq!(read(&mut device, 0, 0x10, 4), [0, 0, 0, 7]);
    let command = Request::RegionWrite { region: 7, offset: 4, data: &[6, 0] };
    device.handle(command, Vec::new()).unwrap();
    assert_eq!(read(&mut device, 7, 4, 2), [6, 0]);
    device.handle(Request::Reset, Vec::new()).unwrap();
    assert_eq!(read(&mut device, 0, 0x10, 4), [0; 4]);
    assert_eq!(read(&mut device, 7, 4, 2), [0; 2]);
}

#[test]
fn accesses_beyond_a_region() {
    let mut device = device();
    let size = BAR_SIZE;
    for (region, offset) in [(0, size - 3), (0, u64::MAX), (7, 4093), (1, 0), (9, 0)] {
        let read = Request::RegionRead { region, offset, count: 4 };
        assert_eq!(device.handle(read, Vec::new()).unwrap_err(), EINVAL, "{region} {offset:#x}");
        let write = Request::RegionWrite { region, offset, data: &[0; 4] };
        assert_eq!(device.handle(write, Vec::new()).unwrap_err(), EINVAL, "{region} {offset:#x}");
    }
    assert_eq!(read(&mut device, 0, size - 4, 4), [0; 4]);
    let across = Request::RegionWrite { region: 0, offset: 0xff8, data: &[1; 0x1_1000] };
    assert!(device.handle(across, Vec::new()).is_ok());
}

#[test]
fn a_guest_that_writes_garbage_does_no_harm() {
    let mut device = device();
    let mut rng = Rng::new(47);
    for _ in 0..50_000 {
        let data: Vec<u8> = (0..rng.below(20)).map(|_| rng.next_u64() as u8).collect();
        let place = match rng.below(4) {
            0 => rng.below(0x40),
            1 => rng.below(0x1_0000),
            2 => 0x1_0000 + rng.below(0x3000),
            _ => rng.below(BAR_SIZE),
        };
        let region = if rng.chance(0.1) { 7 } else { 0 };
        let _ = device.handle(Request::RegionWrite { region, offset: place, data: &data }, vec![]);
        let count = rng.below(64) as u32;
        let _ = device.handle(Request::RegionRead { region, offset: place, count }, vec![]);
        let action = if rng.chance(0.5) { IrqAction::Trigger } else { IrqAction::SetEventfds };
        let (start, count) = (rng.below(20) as u32, rng.below(20) as u32);
        let _ = device.handle(Request::SetIrqs { action, index: 2, start, count }, vec![]);
        if rng.chance(0.01) {
            device.step();
        }
    }
    assert_eq!(read(&mut device, 0, 4, 2), [0, 5]);
}
