//! Modules form layers: no module reaches one that reaches it.

use std::fs;
use std::path::{Path, PathBuf};

use doorbell_tests::layers::Layers;
use doorbell_tests::repository::root;

/// Folders that are not held, each with a reason.
const EXCEPTIONS: [(&str, &str); 0] = [];

/// The rooms of soft-mlx5, by floors from the ground up.
const ROOMS: [&[&str]; 7] =
    [&["base"], &["fabric"], &["objects"], &["engine"], &["commands"], &["pci", "uverbs"], &["interpose"]];

/// Returns the root folder of each crate below a folder: those with `lib.rs` or `main.rs`, and those whose files are
/// crates of their own.
fn crates(folder: &Path, inside: bool, found: &mut Vec<PathBuf>) {
    let entries: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    let is_root = entries.iter().any(|path| path.ends_with("lib.rs") || path.ends_with("main.rs"));
    let has_files = entries.iter().any(|path| path.extension().is_some_and(|end| end == "rs"));
    if is_root || has_files && !inside {
        found.push(folder.to_owned());
    }
    let skipped = |path: &Path| path.ends_with("target") || path.ends_with(".git");
    for path in entries.iter().filter(|path| path.is_dir() && !path.is_symlink() && !skipped(path)) {
        crates(path, inside || is_root, found);
    }
}

#[test]
fn no_module_reaches_one_that_reaches_it() {
    let mut found = Vec::new();
    crates(&root(), false, &mut found);
    assert!(found.len() > 30, "{found:?}");
    found.retain(|folder| !EXCEPTIONS.iter().any(|(excepted, _)| folder.ends_with(excepted)));
    let circles: Vec<_> = found.iter().flat_map(|folder| Layers::read(folder).circles()).collect();
    assert!(circles.is_empty(), "imports that form a circle:\n{}", circles.join("\n\n"));
}

#[test]
fn no_room_of_the_device_uses_one_above_it() {
    let upward = Layers::read(&root().join("soft-mlx5/src")).upward(&ROOMS);
    assert!(upward.is_empty(), "imports of a room from its own floor or a higher one:\n{}", upward.join("\n"));
}

#[test]
fn an_import_of_a_higher_room_is_named_in_each_room() {
    let rooms: Vec<&str> = ROOMS.concat();
    for (number, (room, above)) in rooms.iter().zip(rooms.iter().skip(1).chain(&["runner"])).enumerate() {
        let (low, file) = (rooms[number.saturating_sub(2)], format!("{room}/deep.rs"));
        let text = format!("use crate::{low}::Low;\nfn f() {{ crate::{above}::g() }}\n");
        let mut files: Vec<(String, String)> =
            rooms.iter().map(|room| (format!("{room}/mod.rs"), String::new())).collect();
        files.extend([
            ("lib.rs".into(), String::new()),
            ("runner.rs".into(), "pub fn g() {}\n".into()),
            (file.clone(), text),
        ]);
        let files: Vec<_> = files.iter().map(|(file, text)| (file.as_str(), text.as_str())).collect();
        let made = Crate::new("rooms", &files);
        let upward = Layers::read(&made.0).upward(&ROOMS);
        let told = format!("{}/{file}:2: crate::{above}::g is of crate::{above}", made.0.display());
        assert_eq!(upward, [told], "{room}");
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

    fn circles(&self) -> Vec<String> {
        let folder = format!("{}/", self.0.display());
        let circles = Layers::read(&self.0).circles();
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
    assert_eq!(made.circles(), [circle]);
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
    assert!(made.circles().is_empty(), "{:?}", made.circles());
}
