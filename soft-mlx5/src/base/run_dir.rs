//! Directories that live as long as a process and are swept up after its death.
//!
//! Each has a lock file beside it. A process that can take the lock of a directory knows that its owner
//! is dead, however it died.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{io, thread};

/// Attempts to lock a file that other processes sweep up, and the time between them: a sweeping process may
/// lose its core while it holds the lock.
const TRIES: u32 = 5000;
const PAUSE: Duration = Duration::from_millis(1);

/// Names of the directory of a user, of which other users may have taken some.
const NAMES: u32 = 32;

/// A directory of this process, removed when dropped.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    lock_path: PathBuf,
    _lock: File,
    owner: u32,
}

impl RunDir {
    /// Makes the directory with this path, which [`fresh_path`] chose, and removes the directories of dead
    /// processes.
    pub fn create(path: PathBuf) -> io::Result<Self> {
        let base = base()?;
        sweep(&base);
        let lock_path = path.with_extension("lock");
        // Before the file is locked, another process may take it for the file of a dead process and remove it.
        let taken = || io::Error::new(io::ErrorKind::AlreadyExists, "directory of another process");
        let again = |attempt| {
            if attempt > 0 {
                thread::sleep(PAUSE);
            }
            take_lock(&lock_path).transpose()
        };
        let lock = (0..TRIES).find_map(again).ok_or_else(taken)??;
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self { path, lock_path, _lock: lock, owner: std::process::id() })
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        // A forked child inherits the value, not the directory.
        if std::process::id() == self.owner {
            let _ = fs::remove_dir_all(&self.path);
            let _ = fs::remove_file(&self.lock_path);
        }
    }
}

/// Returns a name that no directory has had before; `kind` tells a reader the purpose.
pub fn fresh_name(kind: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos());
    // The time makes the name unique: another process may have our number later, in another namespace, or
    // earlier, as a program that this process ran before.
    format!("{kind}-{}-{now:x}", std::process::id())
}

/// Returns the path for a new [`RunDir`].
pub fn fresh_path(kind: &str) -> PathBuf {
    base_path().join(fresh_name(kind))
}

fn uid() -> u32 {
    // SAFETY: no arguments, no memory.
    unsafe { libc::geteuid() }
}

// Returns the first name that no other user has taken.
fn base_path() -> PathBuf {
    let dir = std::env::temp_dir();
    let name = |number| match number {
        0 => dir.join(format!("soft-mlx5-{}", uid())),
        _ => dir.join(format!("soft-mlx5-{}-{number}", uid())),
    };
    let is_free = |path: &PathBuf| match fs::symlink_metadata(path) {
        Ok(found) => is_private(&found),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    };
    (0..NAMES).map(name).find(is_free).unwrap_or_else(|| name(0))
}

fn is_private(found: &fs::Metadata) -> bool {
    found.is_dir() && found.uid() == uid() && found.permissions().mode() & 0o077 == 0
}

fn base() -> io::Result<PathBuf> {
    let base = base_path();
    match DirBuilder::new().mode(0o700).create(&base) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            let what = format!("cannot make {}: {error}", base.display());
            return Err(io::Error::new(error.kind(), what));
        }
        _ => {}
    }
    if !is_private(&fs::symlink_metadata(&base)?) {
        let what = format!("{} exists and is not a private directory of ours", base.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    }
    Ok(base)
}

// Returns `None` if another process holds the lock or has just removed the file.
fn take_lock(path: &Path) -> io::Result<Option<File>> {
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
    // SAFETY: plain lock on an open descriptor.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
        return Ok(None);
    }
    let current = fs::metadata(path).is_ok_and(|found| file.metadata().is_ok_and(|ours| ours.ino() == found.ino()));
    Ok(current.then_some(file))
}

fn sweep(base: &Path) {
    let Ok(entries) = fs::read_dir(base) else { return };
    for entry in entries.flatten() {
        let lock_path = entry.path();
        if lock_path.extension().is_none_or(|extension| extension != "lock") {
            continue;
        }
        if let Ok(Some(_lock)) = take_lock(&lock_path) {
            let _ = fs::remove_dir_all(lock_path.with_extension(""));
            let _ = fs::remove_file(&lock_path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_another_holds_for_a_moment_is_waited_for() {
        let path = fresh_path("test");
        base().unwrap();
        let sweeper = take_lock(&path.with_extension("lock")).unwrap().unwrap();
        let waiting = thread::spawn(move || RunDir::create(path).unwrap());
        thread::sleep(Duration::from_millis(100));
        drop(sweeper);
        assert!(waiting.join().unwrap().path().is_dir());
    }

    #[test]
    fn directories_of_killed_processes_are_removed() {
        let living = RunDir::create(fresh_path("test")).unwrap();
        let dead = base().unwrap().join("test-dead-1-0");
        fs::create_dir_all(dead.join("class")).unwrap();
        fs::write(dead.with_extension("lock"), "").unwrap();
        let second = RunDir::create(fresh_path("test")).unwrap();
        assert!(!dead.exists() && !dead.with_extension("lock").exists());
        assert!(living.path().is_dir() && second.path().is_dir());
        assert_ne!(living.path(), second.path());
        let path = living.path().to_owned();
        drop(living);
        assert!(!path.exists());
    }
}
