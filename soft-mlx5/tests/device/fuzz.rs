//! Commands at random: refused or obeyed, but never a crash.

use crate::commands::{Attr, get_context, raw_ioctl, write_bytes};
use crate::descriptors::{open_uverbs, uverbs_number};
use crate::world::serial;
use fastrand::Rng;
use soft_mlx5::Device;

// Numbers that mean something somewhere, and some that mean nothing.
fn number(random: &mut Rng, arena: u64) -> u64 {
    match random.u8(..8) {
        0 => 0,
        1 => 1 << random.u8(..64),
        2 => u64::MAX,
        3 => random.u64(..),
        4 | 5 => arena + random.u64(..1 << 16) / 8 * 8,
        _ => random.u64(..20),
    }
}

// Memory that commands may name: whatever the device does to it harms nobody.
const ARENA: usize = 1 << 20;

fn with_arena(seed: u64, work: impl FnOnce(&Device, i32, &mut [u64], &mut Rng)) {
    let _serial = serial();
    let device = Device::builder().stepped().build().unwrap();
    let mut arena = vec![0u64; ARENA / 8];
    let fd = open_uverbs(uverbs_number(&device));
    get_context(fd).unwrap();
    work(&device, fd, &mut arena, &mut Rng::with_seed(seed));
    // SAFETY: our own descriptor.
    unsafe { libc::close(fd) };
}

// Methods with attributes that the device would obey, given objects with these handles.
fn sensible(random: &mut Rng, arena: &mut [u64]) -> (u16, u16, Vec<Attr>) {
    let base = arena.as_ptr() as u64;
    let room = base + 0x8000;
    let handle = |random: &mut Rng| random.u64(..6);
    let driver = |arena: &mut [u64], words: &[u64]| {
        arena[..words.len()].copy_from_slice(words);
        Attr::new(0x1000, words.len() as u16 * 8, base)
    };
    // Room for a queue of each kind, and for a record.
    let (queue, record) = (base + 0x10000 + random.u64(..8) * 0x10000, base + 0x9000);
    let out = |id, len| Attr::new(id, len, room + u64::from(id) * 128);
    let uhw = |len| Attr::new(0x1001, len, room + 0x400);
    let invoke = |arena: &mut [u64], command: u64, words: &[u64], room: u16| {
        arena[..words.len()].copy_from_slice(words);
        vec![
            Attr::new(2, 8, command),
            Attr::new(0, words.len() as u16 * 8, if words.len() == 1 { words[0] } else { base }),
            out(1, room),
        ]
    };
    let pair = |low: u64, high: u64| low | high << 32;
    match random.u64(..13) {
        0 => (0, 0, invoke(arena, 3, &[0], 4)),
        1 => {
            let request = [0, queue, 0x1000, queue, pair(handle(random), random.u64(..16))];
            (0, 0, invoke(arena, 9, &request, 12))
        }
        2 => {
            let driver = driver(arena, &[queue, record, 64, 0]);
            let attrs = vec![
                Attr::new(0, 0, 0),
                Attr::new(1, 4, 1 + random.u64(..60)),
                Attr::new(2, 8, 7),
                Attr::new(4, 4, 0),
                out(6, 4),
                driver,
                uhw(8),
            ];
            (3, 0, attrs)
        }
        3 => {
            let driver = driver(arena, &[queue, record, 0, 0]);
            let mut attrs = vec![
                Attr::new(0, 0, 0),
                Attr::new(1, 0, handle(random)),
                Attr::new(4, 8, 7),
                Attr::new(5, 4, random.u64(..127)),
                Attr::new(6, 4, 1),
                Attr::new(7, 4, 0),
                Attr::new(9, 8, 0),
            ];
            attrs.extend([out(11, 4), out(12, 4), driver, uhw(8)]);
            (5, 0, attrs)
        }
        4 | 5 => {
            let sizes = [queue, record, pair(16, 16), pair(4, 2), pair(1, 0), 0, 0];
            let driver = driver(arena, &sizes);
            arena[16..19].copy_from_slice(&[pair(16, 16), pair(1, 1), 0]);
            let mut attrs = vec![
                Attr::new(0, 0, 0),
                Attr::new(2, 0, handle(random)),
                Attr::new(4, 0, handle(random)),
                Attr::new(5, 0, handle(random)),
                Attr::new(7, 8, 7),
                Attr::new(8, 20, base + 128),
                Attr::new(9, 8, 2 + random.u64(..3)),
            ];
            attrs.extend([out(13, 20), out(14, 4), driver, uhw(40)]);
            (4, 0, attrs)
        }
        6 => (0, 2, vec![Attr::new(0, 8, 1), out(1, 48)]),
        7 => (0, 6, vec![Attr::new(0, 8, 1), Attr::new(1, 8, random.u64(..9)), out(3, 32)]),
        8 => (0, 1, vec![Attr::new(0, 8, random.u64(..8)), out(1, 4), out(2, 64)]),
        9 | 10 => {
            // MODIFY_QP, with any state and mask.
            let mut words = vec![0; 14];
            words[3] = pair(0, 1 << 24);
            words[8] = pair(handle(random), random.u64(..) & 0x1f_ffff & random.u64(..));
            words[11] = pair(0, random.u64(..8));
            words[12] = random.u64(..) & 0x0101_0101_0101_0101;
            (0, 0, invoke(arena, 26, &words, 0))
        }
        _ => match [1, 3, 4, 5, 7][random.u64(..5) as usize] {
            1 => (1, 0, vec![Attr::new(0, 0, handle(random))]),
            7 => (7, 1, vec![Attr::new(0, 0, handle(random))]),
            object => (
                object,
                1,
                vec![Attr::new(0, 0, handle(random)), out(1, if object == 3 { 8 } else { 4 })],
            ),
        },
    }
}

#[test]
fn ioctls() {
    with_arena(0x5eed, |device, fd, arena, random| {
        let base = arena.as_ptr() as u64;
        let mut obeyed = 0;
        for round in 0..100_000 {
            let (object, method, mut attrs) = sensible(random, arena);
            // Half of them are left alone.
            for _ in 0..random.u64(..4).saturating_sub(1) {
                match random.u64(..5) {
                    0 => arena[random.u64(..20) as usize] = number(random, base),
                    1 => attrs.truncate(random.u64(..12) as usize),
                    _ => {
                        let index = random.u64(..attrs.len().max(1) as u64) as usize;
                        if let Some(attr) = attrs.get_mut(index) {
                            attr.spoil(random.u64(..4), number(random, base));
                        }
                    }
                }
            }
            obeyed += u32::from(raw_ioctl(fd, object, method, &attrs).is_ok());
            if round % 16 == 0 {
                device.step();
            }
        }
        assert!(obeyed > 10_000, "{obeyed} commands were obeyed: the test shows little");
    });
}

#[test]
fn writes() {
    with_arena(0xfeed, |device, fd, arena, random| {
        let base = arena.as_ptr() as u64;
        let mut obeyed = 0;
        for round in 0..40_000 {
            let mut words: Vec<u64> = (0..20).map(|_| number(random, base)).collect();
            let extended = random.u64(..4) == 0;
            let command = random.u64(..60) | if extended { 1 << 31 } else { 0 };
            let count = random.u64(..19) as usize * 8 + 8;
            let header = if extended { 24 } else { 0 };
            let unit = if extended { 8 } else { 4 };
            let in_words = (count.saturating_sub(header) / unit) as u64;
            words[0] = command | in_words << 32 | random.u64(..64) << 48;
            let reaches = random.u64(..2) * random.u64(..1 << 12) * 8;
            words[1] = if random.u64(..4) == 0 { number(random, base) } else { base + reaches };
            obeyed += u32::from(write_bytes(fd, &words, count).is_ok());
            if round % 16 == 0 {
                device.step();
            }
        }
        assert!(obeyed > 100, "{obeyed} commands were obeyed: the test shows little");
    });
}
