//! `doorbell run`: a verbs program on doorbell's data path.

use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, io};

use crate::args::RunArgs;

const LIBRARY: &str = "libdoorbell_drop_in.so";

/// The library that an installed program carries, see build.rs.
#[cfg(carries_library)]
const CARRIED: Option<&[u8]> = Some(include_bytes!(env!("DROP_IN_LIBRARY")));
#[cfg(not(carries_library))]
const CARRIED: Option<&[u8]> = None;

/// Becomes the command, with the library preloaded. Returns only on failure.
pub fn run(args: &RunArgs) -> Result<bool, Box<dyn Error>> {
    let (program, arguments) = args.command.split_first().ok_or("there is no command to run")?;
    if find(program).is_some_and(|path| is_static(&path)) {
        let what = "is statically linked: no library can be loaded into it";
        return Err(format!("{} {what}", Path::new(program).display()).into());
    }
    let library = library()?;
    let mut preload = env::var_os("LD_PRELOAD").filter(|others| !others.is_empty());
    if let Some(others) = &mut preload {
        others.push(":");
    }
    let mut preload = preload.unwrap_or_default();
    preload.push(&library);
    let mut command = Command::new(program);
    command.args(arguments).env("LD_PRELOAD", preload);
    command.env("DOORBELL_DROP_IN", "all");
    let error = command.exec();
    Err(format!("cannot start {}: {error}", Path::new(program).display()).into())
}

/// Returns the file of a command.
fn find(program: &OsStr) -> Option<PathBuf> {
    let path = Path::new(program);
    if path.components().count() > 1 {
        return Some(path.into());
    }
    let paths = env::var_os("PATH")?;
    env::split_paths(&paths).map(|folder| folder.join(path)).find(|path| path.is_file())
}

/// Returns `true` for an ELF file of 64 bits that names no dynamic loader, and is none itself. A script is not static.
fn is_static(path: &Path) -> bool {
    /// Offsets in the file's header and in a program header, and the type of one that names the loader.
    const PHOFF: usize = 32;
    const PHENTSIZE: usize = 54;
    const PHNUM: usize = 56;
    const PT_INTERP: u32 = 3;
    // The loader itself preloads, too: `ld-linux-x86-64.so.2 PROGRAM`.
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    if name.windows(3).any(|part| part == b".so") {
        return false;
    }
    let Ok(file) = fs::read(path) else { return false };
    let word = |at: usize| Some(u16::from_le_bytes(file.get(at..at + 2)?.try_into().ok()?));
    let headers = || {
        let start = u64::from_le_bytes(file.get(PHOFF..PHOFF + 8)?.try_into().ok()?) as usize;
        let (size, count) = (usize::from(word(PHENTSIZE)?), usize::from(word(PHNUM)?));
        let kind = |index| {
            let at = start + index * size;
            Some(u32::from_le_bytes(file.get(at..at + 4)?.try_into().ok()?))
        };
        (0..count).map(kind).collect::<Option<Vec<_>>>()
    };
    file.starts_with(b"\x7fELF\x02\x01") && headers().is_some_and(|kinds| !kinds.contains(&PT_INTERP))
}

/// Returns the library: beside the program, where cargo puts it, or the one that an installed program carries.
fn library() -> Result<OsString, Box<dyn Error>> {
    let program = env::current_exe()?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    let candidates = [folder.join(LIBRARY), folder.join("deps").join(LIBRARY)];
    let age = |path: &PathBuf| fs::metadata(path).and_then(|found| found.modified()).ok();
    let path = match candidates.into_iter().filter(|path| path.is_file()).max_by_key(age) {
        Some(path) => path,
        None => {
            let bytes =
                CARRIED.ok_or_else(|| format!("{LIBRARY} is not beside the program in {}", folder.display()))?;
            unpack(bytes).map_err(|error| format!("cannot unpack {LIBRARY}: {error}"))?
        }
    };
    // In LD_PRELOAD spaces and colons separate paths.
    if path.to_string_lossy().contains([' ', ':']) {
        return Err(format!("cannot preload {}: it has a space or colon", path.display()).into());
    }
    Ok(path.into())
}

/// Makes a folder that only this user can write to, if it is not there.
fn private_folder(folder: &Path, user: u32) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = fs::symlink_metadata(folder)?;
    if !found.is_dir() || found.uid() != user || found.mode() & 0o022 != 0 {
        let what = format!("{} can be written by others", folder.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    }
    Ok(())
}

/// Writes the library to a folder of this user's, once for each build of the program: the process becomes the command,
/// and cannot tidy up after it.
fn unpack(bytes: &[u8]) -> io::Result<PathBuf> {
    // SAFETY: the call has no precondition.
    let user = unsafe { libc::getuid() };
    // Other users may have taken some of the names.
    let names = (0..32).map(|number| match number {
        0 => format!("doorbell-{user}"),
        _ => format!("doorbell-{user}-{number}"),
    });
    let mut result = Err(io::ErrorKind::PermissionDenied.into());
    for folder in names.map(|name| env::temp_dir().join(name)) {
        result = private_folder(&folder, user).map(|()| folder);
        if result.as_ref().err().is_none_or(|error| error.kind() != io::ErrorKind::PermissionDenied) {
            break;
        }
    }
    let folder = result?;
    let path = folder.join(format!("{:016x}-{LIBRARY}", fingerprint(bytes)));
    if fs::read(&path).is_ok_and(|there| there == bytes) {
        return Ok(path);
    }
    let fresh = folder.join(format!("{}-{LIBRARY}", std::process::id()));
    fs::write(&fresh, bytes)?;
    fs::rename(&fresh, &path)?;
    Ok(path)
}

/// Returns a number that differs from build to build.
fn fingerprint(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
