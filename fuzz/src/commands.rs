//! Commands of a program: the device refuses or executes any command, and stays intact.

use std::ffi::CString;
use std::os::fd::RawFd;
use std::sync::OnceLock;

use soft_mlx5::Device;

use crate::input::Input;
use crate::memory::{ARENA, ARENA_SIZE, Arena, tame, tame_word};

/// `RDMA_VERBS_IOCTL`.
const VERBS_IOCTL: u64 = 0xc018_1b01;
/// Bytes that a pointer of an attribute leads to, at most.
const MAX_POINTED: usize = 160;
/// Bytes of a written command, at most.
const MAX_WRITTEN: usize = 1024;

/// Begins an operation, see [`run`].
pub mod op {
    /// `object: u16, method: u16, attributes: u8`, then the attributes.
    pub const IOCTL: u8 = 0;
    /// `length: u16`, then the bytes.
    pub const WRITE: u8 = 1;
    /// `offset: u32` in pages, `pages: u8`, `flags: u8`.
    pub const MMAP: u8 = 2;
    /// The device works.
    pub const STEP: u8 = 3;
    /// `offset: u32` in the arena, `value: u64`.
    pub const POKE: u8 = 4;
    /// `offset: u16`, `value: u64`: into the page that was mapped last.
    pub const REGISTER: u8 = 5;
    /// Number of operations.
    pub const COUNT: u8 = 6;
}

/// Value of an attribute: after `id: u16, len: u16, flags: u8`.
pub mod attr {
    /// `u64`: the number itself.
    pub const PLAIN: u8 = 0;
    /// The address of the bytes that follow (at most `MAX_POINTED`).
    pub const POINTER: u8 = 1;
    /// `u8`: an address where nothing is mapped.
    pub const WILD: u8 = 2;
    /// Number of kinds.
    pub const COUNT: u8 = 3;
}

const MAX_ATTRS: usize = 24;
// More than a program of a few kilobytes has.
const DESCRIPTORS: RawFd = 128;

const WILD: [u64; 8] = [
    0,
    8,
    ARENA - 8,
    ARENA + ARENA_SIZE as u64 - 4,
    ARENA + ARENA_SIZE as u64,
    0xffff_8000_0000_0000,
    u64::MAX,
    u64::MAX - 4095,
];

/// An attribute of an `ioctl` (`struct ib_uverbs_attr`).
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Attr {
    id: u16,
    len: u16,
    flags: u16,
    // A field that only enumerations have.
    special: u16,
    data: u64,
}

/// The header before the attributes (`struct ib_uverbs_ioctl_hdr`).
#[repr(C)]
#[derive(Default)]
struct Header {
    length: u16,
    object: u16,
    method: u16,
    num_attrs: u16,
    reserved1: u64,
    driver_id: u32,
    reserved2: u32,
}

#[repr(C)]
struct Command {
    header: Header,
    attrs: [Attr; MAX_ATTRS],
}

struct Target {
    device: Device,
    path: CString,
    arena: Arena,
    // Descriptors that are not a program's.
    own: Vec<RawFd>,
}

fn target() -> &'static Target {
    static TARGET: OnceLock<Target> = OnceLock::new();
    TARGET.get_or_init(|| {
        let device = Device::builder().stepped().build().expect("a stepped device");
        let root = std::env::var("SYSFS_PATH").expect("where the device is listed");
        let class = std::fs::read_dir(format!("{root}/class/infiniband_verbs")).expect("a tree");
        let is_ours = |dir: &std::path::Path| {
            std::fs::read_to_string(dir.join("ibdev")).is_ok_and(|name| name.trim() == device.name())
        };
        let entry = class.flatten().find(|entry| is_ours(&entry.path())).expect("the device");
        let path = format!("/dev/infiniband/{}", entry.file_name().to_str().expect("a name"));
        let path = CString::new(path).expect("a path");
        let own = (0..DESCRIPTORS).filter(|&fd| is_open(fd)).collect();
        Target { device, path, arena: Arena::new(), own }
    })
}

fn is_open(fd: RawFd) -> bool {
    // SAFETY: F_GETFD changes nothing.
    unsafe { libc::fcntl(fd, libc::F_GETFD) >= 0 }
}

struct Page {
    start: *mut u8,
    len: usize,
    writable: bool,
}

struct Program {
    fd: RawFd,
    target: &'static Target,
    // Where the next bytes that an attribute leads to are put.
    top: usize,
    pages: Vec<Page>,
}

impl Program {
    fn ioctl(&mut self, input: &mut Input) -> Option<()> {
        let (object, method) = (input.u16()?, input.u16()?);
        let count = usize::from(input.u8()?) % (MAX_ATTRS + 1);
        let header = Header {
            length: (size_of::<Header>() + count * size_of::<Attr>()) as u16,
            object,
            method,
            num_attrs: count as u16,
            driver_id: 1,
            ..Header::default()
        };
        let mut command = Command { header, attrs: [Attr::default(); MAX_ATTRS] };
        for attr in &mut command.attrs[..count] {
            *attr = self.attr(input)?;
        }
        // SAFETY: a whole command, with addresses that are in the arena or not mapped.
        unsafe { libc::ioctl(self.fd, VERBS_IOCTL, &raw mut command) };
        Some(())
    }

    fn attr(&mut self, input: &mut Input) -> Option<Attr> {
        let (id, len, flags) = (input.u16()?, input.u16()?, input.u8()?);
        let data = match input.u8()? % attr::COUNT {
            attr::PLAIN => tame_word(input.u64()?),
            attr::POINTER => {
                let mut bytes = input.bytes(usize::from(len).min(MAX_POINTED)).to_vec();
                tame(&mut bytes);
                self.top = (self.top + MAX_POINTED) % (ARENA_SIZE / 2);
                self.target.arena.write(self.top, &bytes);
                ARENA + self.top as u64
            }
            _ => WILD[usize::from(input.u8()?) % WILD.len()],
        };
        // The upper half of the flags belongs to enumerations.
        Some(Attr { id, len, flags: (flags & 0xf).into(), special: (flags >> 4).into(), data })
    }

    fn write(&mut self, input: &mut Input) -> Option<()> {
        let len = usize::from(input.u16()?) % (MAX_WRITTEN + 1);
        let mut bytes = vec![0; len];
        let given = input.bytes(len);
        bytes[..given.len()].copy_from_slice(given);
        tame(&mut bytes);
        // SAFETY: the descriptor takes commands, with addresses that are in the arena or not mapped.
        unsafe { libc::write(self.fd, bytes.as_ptr().cast(), len) };
        Some(())
    }

    fn map(&mut self, input: &mut Input) -> Option<()> {
        let offset = i64::from(input.u32()?) << 12;
        let (pages, flags) = (usize::from(input.u8()?) % 4, input.u8()?);
        let protection = i32::from(flags & 7);
        let kind = if flags & 8 == 0 { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
        let len = pages * 4096;
        // SAFETY: a new mapping, where the kernel likes.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, kind, self.fd, offset) };
        if page != libc::MAP_FAILED {
            let writable = protection & libc::PROT_WRITE != 0;
            self.pages.push(Page { start: page.cast(), len, writable });
        }
        Some(())
    }

    fn register(&mut self, input: &mut Input) -> Option<()> {
        let (offset, value) = (usize::from(input.u16()?) & !7, input.u64()?);
        let fits = |page: &&Page| page.writable && offset + 8 <= page.len;
        if let Some(page) = self.pages.last().filter(fits) {
            // SAFETY: inside a mapping that is writable; the device reads it with atomics.
            unsafe { page.start.add(offset).cast::<u64>().write_volatile(value) };
        }
        Some(())
    }

    fn operation(&mut self, input: &mut Input) -> Option<()> {
        match input.u8()? % op::COUNT {
            op::IOCTL => self.ioctl(input),
            op::WRITE => self.write(input),
            op::MMAP => self.map(input),
            op::STEP => {
                self.target.device.step();
                Some(())
            }
            op::POKE => {
                let (offset, value) = (input.u32()? as usize % ARENA_SIZE, input.u64()?);
                self.target.arena.write(offset, &tame_word(value).to_le_bytes());
                Some(())
            }
            _ => self.register(input),
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: mappings and descriptors of this program; the device opened the event files for it.
        unsafe {
            for page in &self.pages {
                libc::munmap(page.start.cast(), page.len);
            }
            libc::close(self.fd);
            // New descriptors get the lowest numbers that are free.
            let free = (self.fd + 1..DESCRIPTORS).filter(|fd| !self.target.own.contains(fd));
            free.take_while(|&fd| is_open(fd)).for_each(|fd| {
                libc::close(fd);
            });
        }
    }
}

/// Opens the device and executes `bytes`: operations as [`op`] lists them, until the end.
pub fn run(bytes: &[u8]) {
    let target = target();
    target.arena.clear();
    // SAFETY: a C string.
    let fd = unsafe { libc::open(target.path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    let mut program = Program { fd, target, top: 0, pages: Vec::new() };
    let mut input = Input(bytes);
    while program.operation(&mut input).is_some() {}
    for _ in 0..4 {
        target.device.step();
    }
}
