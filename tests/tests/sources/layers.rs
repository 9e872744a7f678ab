//! Modules form layers: no module reaches one that reaches it.

use std::fs;
use std::path::{Path, PathBuf};

use doorbell_tests::layers::Layers;
use doorbell_tests::repository::root;

/// Folders of crates, and the module below which the layers hold; an empty one is the whole crate.
const LAYERED: [(&str, &[&str]); 12] = [
    ("src", &[]),
    ("cli/src", &[]),
    ("benches/src", &[]),
    ("benches/src/bin/bench", &[]),
    ("drop-in/src", &[]),
    ("soft-mlx5/src", &["base"]),
    ("soft-mlx5/src", &["fabric"]),
    ("soft-mlx5/src", &["objects"]),
    ("soft-mlx5/src", &["engine"]),
    ("soft-mlx5/src", &["commands"]),
    ("soft-mlx5/src", &["pci"]),
    ("soft-mlx5/src", &["interpose"]),
];

#[test]
fn no_module_reaches_one_that_reaches_it() {
    for (folder, below) in LAYERED {
        let circles = Layers::read(&root().join(folder)).circles(below);
        assert!(circles.is_empty(), "imports that form a circle:\n{}", circles.join("\n\n"));
    }
}

/// A crate of files that are written for one test.
struct Crate(PathBuf);

impl Crate {
    fn new(name: &str, files: &[(&str, &str)]) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = fs::remove_dir_all(&folder);
        for (file, text) in files {
            let path = folder.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Self(folder)
    }

    fn circles(&self, below: &[&str]) -> Vec<String> {
        let folder = format!("{}/", self.0.display());
        let circles = Layers::read(&self.0).circles(below);
        circles.into_iter().map(|circle| circle.replace(&folder, "")).collect()
    }
}

#[test]
fn a_circle_is_named_by_its_imports() {
    let made = Crate::new(
        "circle",
        &[
            ("lib.rs", "mod a;\nmod b;\nmod c;\npub use c::Made;\n"),
            ("a.rs", "use crate::b::{self, Thing};\n"),
            ("b/mod.rs", "mod low;\npub struct Thing;\nfn f() { low::g() }\n"),
            ("b/low.rs", "use super::Thing;\n// use crate::a::X;\nfn g() -> crate::Made { \"crate::a::X\" }\n"),
            ("c.rs", "pub struct Made;\nfn f() {\n    super::a::call();\n}\n"),
        ],
    );
    let circle = "a.rs:1: crate::b is of crate::b\n\
                  b/mod.rs:3: crate::b::low::g is of crate::b::low\n\
                  b/low.rs:3: crate::Made is of crate::c\n\
                  c.rs:3: crate::a::call is of crate::a";
    assert_eq!(made.circles(&[]), [circle]);
    assert!(made.circles(&["b"]).is_empty(), "the circle leaves this module");
}

#[test]
fn parents_tests_and_other_crates_make_no_circle() {
    let made = Crate::new(
        "layers",
        &[
            ("lib.rs", "pub mod a;\nmod b;\npub use b::*;\nuse std::fmt;\n"),
            ("a/mod.rs", "mod x;\npub(crate) mod y;\npub use x::X;\npub fn help() {}\n"),
            ("a/x.rs", "use super::{help, y::Y};\nuse crate::fmt;\npub struct X(Y);\n"),
            (
                "a/y.rs",
                "pub struct Y;\n#[cfg(test)]\nmod tests {\n    use super::super::x::X;\n}\nmod sub {\n    use super::Y;\n}\n",
            ),
            ("b.rs", "use crate::a::X;\npub struct B(X);\n"),
        ],
    );
    assert!(made.circles(&[]).is_empty(), "{:?}", made.circles(&[]));
}
