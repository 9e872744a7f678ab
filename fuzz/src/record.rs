//! Preloaded into a program under `soft-mlx5 run`, in front of the device, writes the commands that the
//! program sends as inputs of the target `commands`, to files in the directory that `FUZZ_RECORD` names.

use std::fs::OpenOptions;
use std::io::Write;
use std::sync::Mutex;

use libc::{c_int, c_ulong, c_void};

#[allow(dead_code, reason = "made for the target")]
#[path = "encoding.rs"]
mod encoding;
#[allow(dead_code, reason = "made for the target")]
#[path = "memory.rs"]
mod memory;

use encoding::{Attr, Header, MAX_POINTED, MAX_WRITTEN, VERBS_IOCTL, attr, op};

/// Anything that looks like an address.
const ADDRESSES: std::ops::Range<u64> = 0x1_0000..0x8000_0000_0000;
/// Where the answer of a written command goes.
const ANSWER: u64 = memory::ARENA + 0x1_8000;

static RECORDING: Mutex<()> = Mutex::new(());

fn record(form: &str, bytes: &[u8]) {
    let Some(dir) = std::env::var_os("FUZZ_RECORD") else { return };
    let path = std::path::Path::new(&dir).join(format!("{form}-{}", std::process::id()));
    let _serial = RECORDING.lock();
    if let Ok(mut file) = OpenOptions::new().append(true).create(true).open(path) {
        let _ = file.write_all(bytes);
    }
}

fn next(name: &std::ffi::CStr) -> *mut c_void {
    // SAFETY: a C string.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    assert!(!found.is_null(), "nothing behind the recorder");
    found
}

/// The memory of this process, as far as it is there.
fn copy(addr: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0u8; len];
    let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: len };
    let remote = libc::iovec { iov_base: addr as *mut _, iov_len: len };
    // SAFETY: the local range is the vector; the kernel checks the other one.
    unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    bytes
}

fn tamed(mut bytes: Vec<u8>) -> Vec<u8> {
    memory::tame(&mut bytes);
    bytes
}

/// What an attribute holds, or leads to.
fn value(attr: &Attr) -> Vec<u8> {
    let len = usize::from(attr.len).min(MAX_POINTED);
    if len > 0 && ADDRESSES.contains(&attr.data) {
        tamed(copy(attr.data, len))
    } else {
        attr.data.to_le_bytes()[..len.min(8)].to_vec()
    }
}

fn ioctl_bytes(header: &Header, attrs: &[Attr]) -> Vec<u8> {
    let mut bytes = vec![op::IOCTL];
    bytes.extend(header.object.to_le_bytes());
    bytes.extend(header.method.to_le_bytes());
    bytes.push(attrs.len() as u8);
    for one in attrs {
        bytes.extend(one.id.to_le_bytes());
        bytes.extend(one.len.to_le_bytes());
        bytes.push((one.flags & 0xf | one.special << 4) as u8);
        if one.len > 0 && ADDRESSES.contains(&one.data) {
            bytes.push(attr::POINTER);
            bytes.extend(value(one));
        } else {
            bytes.push(attr::PLAIN);
            bytes.extend(one.data.to_le_bytes());
        }
    }
    bytes
}

/// A write command that an ioctl carries (`UVERBS_METHOD_INVOKE_WRITE`), as a program of old writes it.
fn write_bytes(attrs: &[Attr]) -> Option<Vec<u8>> {
    let find = |id| attrs.iter().find(|attr| attr.id == id);
    let command = find(2)?.data as u32;
    let [core, driver] = [0, 0x1000].map(|id| find(id).map(value).unwrap_or_default());
    let [core_out, driver_out] = [1, 0x1001].map(|id| find(id).map_or(0, |attr| attr.len));
    let mut written = command.to_le_bytes().to_vec();
    if command >> 31 == 0 {
        let words = (16 + core.len() + driver.len()) / 4;
        written.extend((words as u16).to_le_bytes());
        written.extend(((core_out + driver_out) / 4).to_le_bytes());
        written.extend(ANSWER.to_le_bytes());
    } else {
        written.extend((core.len() as u16 / 8).to_le_bytes());
        written.extend((core_out / 8).to_le_bytes());
        written.extend(ANSWER.to_le_bytes());
        written.extend((driver.len() as u16 / 8).to_le_bytes());
        written.extend((driver_out / 8).to_le_bytes());
        written.extend([0; 4]);
    }
    written.extend(core);
    written.extend(driver);
    let mut bytes = vec![op::WRITE];
    bytes.extend((written.len().min(MAX_WRITTEN) as u16).to_le_bytes());
    bytes.extend(written);
    Some(bytes)
}

/// # Safety
/// `argument` is a command.
unsafe fn record_command(argument: *const u8) {
    // SAFETY: a header is there, and so many attributes behind it.
    let (header, attrs) = unsafe {
        let header = argument.cast::<Header>().read_unaligned();
        let attrs = argument.add(size_of::<Header>()).cast::<Attr>();
        let attrs = (0..header.num_attrs).map(|i| attrs.add(i.into()).read_unaligned());
        (header, attrs.collect::<Vec<_>>())
    };
    let ioctl = ioctl_bytes(&header, &attrs);
    let invoked = (header.object, header.method) == (0, 0);
    let written = if invoked { write_bytes(&attrs) } else { None };
    record("ioctl", &ioctl);
    record("write", written.as_ref().unwrap_or(&ioctl));
}

/// # Safety
/// That of libc.
#[unsafe(no_mangle)]
unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut u8) -> c_int {
    if request == VERBS_IOCTL {
        // SAFETY: the argument of such a request is a command.
        unsafe { record_command(argument) };
    }
    // SAFETY: the function of this name, with the arguments of the caller.
    unsafe {
        type Ioctl = unsafe extern "C" fn(c_int, c_ulong, *mut u8) -> c_int;
        std::mem::transmute::<*mut c_void, Ioctl>(next(c"ioctl"))(fd, request, argument)
    }
}
