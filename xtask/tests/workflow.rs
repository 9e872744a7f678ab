//! The workflow of continuous integration names only steps that exist, and leaves no test out.

use std::collections::BTreeSet;
use std::process::Command;

#[test]
fn the_workflow_names_only_steps_and_leaves_no_test_out() {
    let listed = Command::new(env!("CARGO_BIN_EXE_xtask")).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let ring = |name: &str| -> BTreeSet<&str> {
        let line = listed.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")));
        line.unwrap().split(' ').collect()
    };
    let (test, proof) = (ring("test"), ring("proof"));
    let workflow = include_str!("../../.github/workflows/ci.yml");
    let lists = workflow.lines().filter_map(|line| line.trim().strip_prefix("steps: "));
    let lists: Vec<Vec<&str>> =
        lists.filter(|list| !list.starts_with(['&', '*'])).map(|list| list.split(' ').collect()).collect();
    assert!(lists.iter().any(|list| *list == ["test", "proof"]), "nothing runs everything: {lists:?}");
    let named: BTreeSet<&str> = lists.into_iter().flatten().collect();
    for name in &named {
        let known = test.contains(name) || proof.contains(name);
        assert!(known || ["test", "proof"].contains(name), "there is no step {name}");
    }
    let missing: Vec<_> = test.difference(&named).collect();
    assert!(missing.is_empty(), "no quick job runs {missing:?}");
}
