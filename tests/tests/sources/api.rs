//! The public interface of the library is the one that `src/api.txt` lists, so that a review sees each change of it.
//!
//! The listing is made from the sources, as rustfmt formats them: it needs no toolchain but cargo's. Items that a macro
//! writes are not in it, except the names of `bitflags`, nor are the fields of variants. cargo-public-api would list
//! them, but reads the JSON of rustdoc, which stable compilers refuse to write, and whose format changes with the
//! compiler: each version of the tool reads the output of a few nightlies.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::Path;

use doorbell_tests::repository::{root, sources};

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// The files of the crate and its public modules, and the path that a user writes before their names.
const MODULES: &[(&str, &str)] = &[
    ("lib.rs", ""),
    ("qp/mod.rs", ""),
    ("caps.rs", "caps::"),
    ("frames/mod.rs", "frames::"),
    ("opaque.rs", "opaque::"),
    ("raw.rs", "raw::"),
    ("rdmacm/mod.rs", "rdmacm::"),
    ("tags/mod.rs", "tags::"),
];

/// Returns the names that the crate and its public modules export, each with its path. If several export the same
/// name, it is that of the module of the file `of`, or else of the crate.
fn exported(src: &Path, of: &Path) -> HashMap<String, String> {
    let mut names = HashMap::new();
    let own = |path: &str| of.starts_with(src.join(path.trim_end_matches("::")));
    let mut modules = MODULES.to_vec();
    modules.sort_by_key(|(_, path)| (!path.is_empty() && own(path), path.is_empty()));
    for (file, path) in modules {
        let text = fs::read_to_string(src.join(file)).unwrap();
        let mut add = |name: &str| names.insert(name.to_owned(), format!("{path}{name}"));
        for used in text.split("\npub use ").skip(1) {
            words(used.split(';').next().unwrap()).for_each(|name| _ = add(name));
        }
        let items = text.lines().filter_map(|line| line.strip_prefix("pub "));
        items.filter_map(|item| words(item).nth(1)).for_each(|name| _ = add(name));
    }
    names
}

/// The name of the type in the head of an `impl`, with or without a trait.
fn implemented(head: &str) -> &str {
    let head = head.rsplit_once(" for ").map_or(head, |(_, of)| of);
    // Its own parameters come first: `impl<T: Copy> Name<T>`.
    let head = head.strip_prefix("impl").unwrap_or(head);
    let mut depth = 0;
    let start = head.find(|c| {
        depth += i32::from(c == '<') - i32::from(c == '>');
        depth == 0 && !matches!(c, '<' | '>' | ' ')
    });
    words(&head[start.unwrap_or(0)..]).next().unwrap_or_default()
}

/// Returns the sources with flag sets as structures that have constants.
fn without_bitflags(text: &str) -> String {
    let mut in_flags = false;
    let mut plain = String::new();
    for line in text.lines() {
        match line {
            "bitflags! {" => in_flags = true,
            "}" if in_flags => in_flags = false,
            _ if in_flags => {
                let line = line.strip_prefix("    ").unwrap_or(line);
                plain += &line.replace("    const ", "    pub const ");
            }
            _ => plain += line,
        }
        plain.push('\n');
    }
    plain
}

/// Adds the public items of a file to the listing, each with the type that it belongs to.
fn list(text: &str, names: &HashMap<String, String>, listing: &mut BTreeSet<String>) {
    // The type, trait or `impl` that is open, and whether all in it is public: variants, functions of a trait.
    let mut open: Option<(String, bool)> = None;
    let mut attributes = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let indent = line.len() - line.trim_start().len();
        let line = line.trim_start();
        if line.is_empty()
            || line.starts_with("//")
            || line.starts_with("pub use ")
            || indent > 4
            || line.starts_with("#[cfg(test)]") && indent > 0
        {
            continue;
        }
        if line.starts_with("#[derive(") || line == "#[non_exhaustive]" {
            attributes += line;
            attributes.push(' ');
            continue;
        }
        if line.starts_with('#') {
            continue;
        }
        let mut item = line.trim_end().to_owned();
        let begins = |item: &str| {
            ["pub ", "impl", "fn ", "unsafe ", "type ", "const "].iter().any(|word| item.starts_with(word))
        };
        while begins(&item) && !item.ends_with(['{', ';', ',', '}'])
            || item.ends_with('(')
            || item.contains("fn ") && item.ends_with(',')
        {
            let Some(next) = lines.next() else { break };
            item = format!("{item} {}", next.trim());
        }
        let item = item.split(" {").next().unwrap().trim_end_matches([';', ',']).replace("( ", "(").replace(", )", ")");
        let given = std::mem::take(&mut attributes);
        if indent == 0 {
            open = None;
            let head = item.strip_prefix("unsafe ").unwrap_or(&item);
            let kind =
                item.strip_prefix("pub ").map(|item| item.trim_start_matches("unsafe ").trim_start_matches("const "));
            if head.starts_with("impl") {
                match names.get(implemented(head)) {
                    Some(name) if head.contains(" for ") => {
                        listing.insert(format!("{name}: {item}"));
                    }
                    Some(name) => open = Some((name.clone(), false)),
                    None => {}
                }
            } else if let Some(name) = kind.and_then(|kind| words(kind).nth(1)).and_then(|name| names.get(name)) {
                listing.insert(format!("{name}: {given}{item}"));
                let all = item.starts_with("pub enum") || item.contains(" trait ");
                open = line.ends_with('{').then(|| (name.clone(), all));
            }
        } else if let Some((name, all)) = &open {
            if indent == 4 && (*all && item.starts_with(|c: char| c.is_alphabetic()) || item.starts_with("pub ")) {
                listing.insert(format!("{name}: {given}{item}"));
            }
        }
    }
}

#[test]
fn the_public_interface_is_the_one_listed() {
    let src = root().join("src");
    let mut listing = BTreeSet::new();
    for source in sources(&src) {
        let names = exported(&src, &source);
        let text = fs::read_to_string(&source).unwrap();
        let text = without_bitflags(&text);
        list(text.split("\n#[cfg(test)]\nmod tests {").next().unwrap(), &names, &mut listing);
    }
    let made: String = listing.iter().map(|item| format!("{item}\n")).collect();
    let listed = fs::read_to_string(src.join("api.txt")).unwrap_or_default();
    if made != listed {
        let place = src.join("../target/api.txt");
        fs::write(&place, &made).unwrap();
        panic!(
            "the interface has changed: compare {} with src/api.txt, and copy it there if it is meant so",
            place.display()
        );
    }
}

#[test]
fn each_kind_of_item_is_listed() {
    let flags = "bitflags! {\n    pub struct Seven: u8 {\n        const EIGHT = 1;\n    }\n}\n";
    let text = "#[derive(Debug)]\npub struct One<T> {\n    pub a: T,\n    b: u8,\n}\n\nimpl<T: Copy> One<T> {\n    pub fn two(\n        &self,\n    ) -> u8 {\n        0\n    }\n\n    fn three() {}\n\n    pub const SIX: u8 = 6;\n}\n\nimpl<T> Drop for One<T> {\n    fn drop(&mut self) {}\n}\n\npub enum Four {\n    Five(u8),\n}\n\npub struct Private;\n";
    let names = ["One", "Four", "Seven"].map(|name| (name.to_owned(), format!("part::{name}"))).into();
    let mut listing = BTreeSet::new();
    list(text, &names, &mut listing);
    list(&without_bitflags(flags), &names, &mut listing);
    let expected = [
        "part::Four: Five(u8)",
        "part::Four: pub enum Four",
        "part::One: #[derive(Debug)] pub struct One<T>",
        "part::One: impl<T> Drop for One<T>",
        "part::One: pub a: T",
        "part::One: pub const SIX: u8 = 6",
        "part::One: pub fn two(&self) -> u8",
        "part::Seven: pub const EIGHT = 1",
        "part::Seven: pub struct Seven: u8",
    ];
    assert_eq!(listing.into_iter().collect::<Vec<_>>(), expected);
}
