//! Input that is cut, mixed, long or no text at all gets an answer.

use std::time::Duration;
use std::{env, fs};

use doorbell_cli::decode::{Kind, decode};
use doorbell_silicon::cqes;

fn libmlx5(bytes: &[u8]) -> String {
    let rows = bytes.chunks(16).map(|row| {
        let words: Vec<String> =
            row.chunks(4).map(|word| word.iter().map(|byte| format!("{byte:02x}")).collect()).collect();
        words.join(" ") + "\n"
    });
    format!("mlx5: n1: got completion with error:\n{}", rows.collect::<String>())
}

/// Numbers that look random and are the same each time.
fn noise(seed: u64) -> impl Iterator<Item = u8> {
    let mut state = seed;
    std::iter::repeat_with(move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    })
}

#[test]
fn dumps_that_are_cut_anywhere() {
    let text = libmlx5(&cqes().next().unwrap().bytes);
    for end in 0..=text.len() {
        let report = decode(&text.as_bytes()[..end]);
        assert!(report.findings.len() <= 1, "{end}");
        // Without its end the failure is not known.
        let whole = end >= text.trim_end().len();
        assert_eq!(report.findings.first().is_some_and(|f| f.kind == Kind::ErrorCqe), whole, "{end}");
    }
    for start in 0..text.len() {
        decode(&text.as_bytes()[start..]);
    }
}

#[test]
fn backslashes_before_a_refused_command() {
    let line = "\\".repeat(40) + "X(0x1) op_mod(0x0) failed, status bad parameter(0x3)";
    assert_eq!(decode(line.as_bytes()).findings.len(), 1);
}

#[test]
fn two_programs_that_print_at_once() {
    let text = libmlx5(&cqes().next().unwrap().bytes);
    let mixed = text.replace("\n00000002", "\nanother program says something\n00000002");
    let report = decode(mixed.as_bytes());
    assert_eq!(report.findings.len(), 1);
    assert!(report.findings[0].notes.iter().any(|note| note.contains("other lines stand between")), "{report:?}");
}

#[test]
fn a_whole_log_of_dumps() {
    let all: String = cqes().map(|dump| format!("{}something in between\n", libmlx5(&dump.bytes))).collect();
    let report = decode(all.as_bytes());
    assert_eq!((report.findings.len(), report.left_out), (28, 0));
    let report = decode(all.repeat(200).as_bytes());
    assert_eq!((report.findings.len(), report.left_out), (64, 28 * 200 - 64));
}

/// Processor time of this thread.
fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a writable structure.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn megabytes_of_anything() {
    const MEGABYTE: usize = 1 << 20;
    let dump = libmlx5(&cqes().next().unwrap().bytes);
    let binary: Vec<u8> = noise(1).take(MEGABYTE).collect();
    let digits: Vec<u8> = noise(2).map(|byte| b"0123456789abcdef"[usize::from(byte % 16)]).take(MEGABYTE).collect();
    let rows: Vec<u8> = noise(3).map(|byte| b"0123456789abcdef \n:"[usize::from(byte % 19)]).take(MEGABYTE).collect();
    let signs = "(synd 0x error: vendor_err Got completion ): syndrome ".repeat(MEGABYTE / 50).into_bytes();
    let open = "\x1b[".repeat(MEGABYTE / 2).into_bytes();
    for junk in [binary, digits, rows, signs, open, vec![b'0'; MEGABYTE], vec![b'\n'; MEGABYTE], vec![0xff; MEGABYTE]] {
        let began = processor_time();
        decode(&junk);
        let spent = processor_time() - began;
        // A second or two; what grows with the square of the length takes minutes.
        assert!(spent < Duration::from_secs(30), "{spent:?} for {:?}", &junk[..20]);
        // A dump after the junk is found.
        let report = decode(&[&junk[..], b"\n\nend of that\nand more\nand more\nand more\n", dump.as_bytes()].concat());
        let found = report.left_out > 0 || report.findings.iter().any(|finding| finding.kind == Kind::ErrorCqe);
        assert!(found, "{:?}", &junk[..20]);
    }
}

#[test]
fn hashes_and_addresses_are_not_dumps() {
    let text = "commit da39a3ee5e6b4b0d3255bfef95601890afd80709\n\
                sha256 e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\n\
                fe80:0000:0000:0000:526b:4bff:fecb:bece\n1634 0293 8832 1212 dead beef\n";
    let report = decode(text.as_bytes());
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
}

/// Reports that were changed at random have answers. `DOORBELL_INPUTS=1000000` tries so many.
#[test]
fn changed_reports() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cases");
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let mut seeds: Vec<Vec<u8>> = files.iter().map(|file| fs::read(file).unwrap()).collect();
    seeds.push(libmlx5(&cqes().next().unwrap().bytes).into_bytes());
    seeds.push(include_bytes!("../src/decode/error_texts.txt")[..2000].to_vec());
    let inputs = env::var("DOORBELL_INPUTS").map_or(5000, |number| number.parse().unwrap());
    let mut random = noise(7);
    let mut below = |end: usize| {
        let number = (0..3).fold(0, |sum, _| sum << 8 | usize::from(random.next().unwrap()));
        number % end.max(1)
    };
    for input in 0..inputs {
        let mut text = seeds[below(seeds.len())].clone();
        for _ in 0..1 + below(6) {
            let at = below(text.len());
            match below(6) {
                0 => text.truncate(at),
                1 => drop(text.drain(at..(at + below(40)).min(text.len()))),
                2 if at < text.len() => text[at] = b"0123456789abcdefx (),:=[]\"'\\\n{}"[below(31)],
                3 if at < text.len() => text[at] ^= 1 << below(8),
                _ => {
                    let other = &seeds[below(seeds.len())];
                    let from = below(other.len());
                    let part = other[from..(from + below(200)).min(other.len())].to_vec();
                    drop(text.splice(at..at, part));
                }
            }
        }
        let report = decode(&text);
        let shown = || String::from_utf8_lossy(&text).into_owned();
        for finding in &report.findings {
            assert!(finding.line > 0 && finding.times > 0, "input {input}: {}", shown());
            assert!(
                finding.first_byte + finding.bytes.len() <= 64 || finding.first_byte == 0,
                "input {input}: {}",
                shown()
            );
            let explained = finding.explanation.as_ref();
            assert!(explained.is_none_or(|explained| !explained.failed.contains("{what}")), "{}", shown());
        }
        assert!(report.nearest.is_none() || report.findings.is_empty(), "{}", shown());
    }
}
