//! Files of the repository.

use std::fs;
use std::path::{Path, PathBuf};

/// The root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// All files of Rust below a folder.
pub fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let rust = files.into_iter().filter(|path| path.extension().is_some_and(|end| end == "rs"));
    rust.chain(folders.iter().flat_map(|folder| sources(folder))).collect()
}
