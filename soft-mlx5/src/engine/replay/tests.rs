use super::*;

/// A bundle that this model wrote under `doorbell selftest`.
const BUNDLE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/silicon/bundles/soft-mlx5.txt"));

#[test]
fn the_bundle_of_this_model_has_no_difference() {
    let found = replay(BUNDLE);
    assert!(found.failures.is_empty() && found.differences.is_empty(), "{found}");
    assert!(found.cqes > 100 && found.wqes > 50, "{found}");
}

/// Returns the same bundle with the byte at `at` changed, and a digest that is right again.
fn changed(at: usize, by: u8) -> String {
    let mut bytes = BUNDLE.as_bytes().to_vec();
    bytes[at] = match bytes[at] {
        b'f' => b'0',
        digit @ (b'0'..=b'8' | b'a'..=b'e') => digit + by,
        _ => b'a',
    };
    let text = String::from_utf8(bytes).unwrap();
    let (lines, _) = text.rsplit_once("end ").unwrap();
    format!("{lines}end {:016x}\n", fnv(FNV_START, lines.as_bytes()))
}

/// Returns the place of word `number` in a line.
fn word(line: &str, number: usize) -> std::ops::Range<usize> {
    let start = line.match_indices(' ').nth(number - 1).unwrap().0 + 1;
    start..start + line[start..].find(' ').unwrap()
}

/// If the digest is changed, too, the signature of the CQE or the other WQE shows the change.
#[test]
fn each_byte_of_a_cqe_or_wqe_is_checked() {
    let mut start = 0;
    let mut tried = 0;
    for line in BUNDLE.split_inclusive('\n') {
        let bytes = match line.split(' ').next() {
            Some("wqe" | "cqe") => line.rfind(' ').unwrap() + 1..line.len() - 1,
            // The title: its signature does not cover the arrays after it.
            Some("block") => word(line, 3),
            _ => 0..0,
        };
        // Some of each line: a replay takes a millisecond.
        for at in bytes.step_by(29) {
            let found = replay(&changed(start + at, 1));
            assert!(!found.failures.is_empty(), "byte {at} of {line}");
            tried += 1;
        }
        start += line.len();
    }
    assert!(tried > 500, "{tried}");
}

#[test]
fn any_byte_that_changed_on_the_way_is_found() {
    for at in (0..BUNDLE.len()).step_by(41) {
        let mut bytes = BUNDLE.as_bytes().to_vec();
        bytes[at] ^= 1;
        let found = replay(&String::from_utf8(bytes).unwrap());
        assert!(!found.failures.is_empty(), "byte {at}");
    }
    for end in [0, 1, 17, BUNDLE.len() / 2, BUNDLE.len() - 20] {
        assert!(!replay(&BUNDLE[..end]).failures.is_empty(), "cut after {end}");
    }
}

#[test]
fn another_vendor_syndrome_is_a_difference() {
    let mut cqe = [0; 64];
    (cqe[54], cqe[55], cqe[63]) = (0x77, 4, 0xe2);
    cqe[62] = mlx5_wire::signature::signature(&cqe, 5);
    let hex: String = cqe.iter().map(|byte| format!("{byte:02x}")).collect();
    let difference = super::cqe(&format!("0x400 64 0x5 {hex}")).unwrap().unwrap();
    assert_eq!(difference, "syndrome 04, vendor 77, hw 00/00");
    assert!(super::cqe(&format!("0x400 64 0x6 {hex}")).is_err(), "another index");
}

#[test]
fn a_block_has_as_many_arrays_as_its_title_asks_for() {
    let line = BUNDLE.lines().find(|line| line.starts_with("block")).unwrap();
    let line = line.strip_prefix("block ").unwrap();
    assert_eq!(block(line), Ok(()));
    let (shorter, array) = line.rsplit_once(' ').unwrap();
    assert_eq!(block(shorter), Err("1 arrays for 16 CQEs".into()));
    assert_eq!(block(&format!("{line} {array}")), Err("3 arrays for 16 CQEs".into()));
    assert!(block(&format!("{shorter} {}", &array[2..])).is_err(), "63 bytes");
    let cqe = BUNDLE.lines().find(|line| line.starts_with("cqe")).unwrap();
    let [_, cqn, _, index, bytes] = cqe.split(' ').collect::<Vec<_>>()[..] else { panic!("{cqe}") };
    assert_eq!(block(&format!("{cqn} {index} {bytes}")), Err("the first CQE is not the title of a block".into()));
}
