//! All patches of `mutants` apply. The step itself takes long, so this test finds a changed line first.

use std::path::Path;
use std::process::Command;

#[test]
fn every_mutant_applies() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut stale = Vec::new();
    let mut count = 0;
    for entry in std::fs::read_dir(root.join("scripts/mutants")).unwrap() {
        let patch = entry.unwrap().path();
        let mut check = Command::new("git");
        check.args(["apply", "--recount", "--check"]).arg(&patch).current_dir(root);
        let output = check.output().unwrap();
        if !output.status.success() {
            stale.push(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        count += 1;
    }
    assert!(count > 0, "there is no patch");
    assert!(stale.is_empty(), "change these patches, too:\n{}", stale.concat());
}
