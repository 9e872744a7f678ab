//! Programs that the safety model forbids do not compile.
//!
//! Each file in `tests/compile_fail` marks the lines that rustc must refuse with `//~ CODE`. Codes are
//! compared, not messages, which differ from one rustc to the next. An error on any other line fails the
//! test. The first function of each file is the same program without the mistake.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Lines of a file, with the code of the error there.
type Errors = BTreeSet<(usize, String)>;

/// The library as cargo has built it for this test.
fn library() -> PathBuf {
    let output = Command::new(env!("CARGO"))
        .args(["build", "--package=doorbell", "--lib", "--message-format=json", "--quiet"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let json = String::from_utf8(output.stdout).unwrap();
    let path = json.split('"').find(|word| word.ends_with("/libdoorbell.rlib"));
    path.expect("cargo names what it has built").into()
}

fn expected(source: &str) -> Errors {
    let marks = source.lines().enumerate().filter_map(|(at, line)| {
        let (_, code) = line.split_once("//~ ")?;
        Some((at + 1, code.trim().to_owned()))
    });
    marks.collect()
}

/// Returns the errors of rustc, and its output.
fn found(file: &Path, library: &Path) -> (Errors, String) {
    let deps = library.with_file_name("deps");
    let output = Command::new("rustc")
        .args(["--edition=2024", "--crate-type=lib", "--emit=metadata", "--error-format=short"])
        .arg(format!("--extern=doorbell={}", library.display()))
        .arg(format!("-Ldependency={}", deps.display()))
        .arg(format!("--out-dir={}", env!("CARGO_TARGET_TMPDIR")))
        .arg(file)
        .output()
        .unwrap();
    let words = String::from_utf8(output.stderr).unwrap();
    // FILE:LINE:COLUMN: error[CODE]: WORDS
    let errors = words.lines().filter_map(|line| {
        let (place, rest) = line.split_once(": error")?;
        let number = place.split(':').nth(1)?.parse().ok()?;
        let code = rest.strip_prefix('[').and_then(|rest| rest.split(']').next());
        Some((number, code.unwrap_or("without code").to_owned()))
    });
    (errors.collect(), words)
}

#[test]
fn each_mistake_is_refused_where_it_is_made() {
    let library = library();
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("compile_fail");
    let mut files = 0;
    for entry in fs::read_dir(directory).unwrap() {
        let file = entry.unwrap().path();
        let expected = expected(&fs::read_to_string(&file).unwrap());
        assert!(!expected.is_empty(), "{} expects nothing", file.display());
        let (found, words) = found(&file, &library);
        assert_eq!(found, expected, "{}:\n{words}", file.display());
        files += 1;
    }
    assert!(files > 0);
}
