//! The device must not share logic with the driver that it judges.

use std::process::Command;

#[test]
fn the_device_depends_on_the_layouts_and_nothing_else_of_the_project() {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let tree = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--edges", "normal,build", "--prefix", "none"])
        .args(["--all-features", "--manifest-path", manifest])
        .output()
        .unwrap();
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let tree = String::from_utf8(tree.stdout).unwrap();
    let names: Vec<_> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(names.contains(&"mlx5-wire"), "{tree}");
    for driver in ["mlx5-ring", "doorbell", "doorbell-rdma-core-sys"] {
        assert!(!names.contains(&driver), "{tree}");
    }
}
