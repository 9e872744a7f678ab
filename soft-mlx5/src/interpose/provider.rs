//! The calls of mmap in libmlx5, which map the pages of a device.
//!
//! UCX hooks mmap for its registration cache. It changes the entries of other libraries in their linkage tables (hook
//! mode `reloc`), or the first instructions of the function that it takes for the original (`bistro`): ours or libc's,
//! depending on the order of libraries. Its hooks end in a system call, which knows no device of ours. So libmlx5's
//! entries lead to a function that UCX does not know, and all calls that map no page of a device go on to libc, through
//! the hooks.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::{mem, slice};

use libc::size_t;

const LIBRARY: &str = "libmlx5";
const NAMES: [&CStr; 2] = [c"mmap", c"mmap64"];

const PLT_SIZE: i64 = 2;
const STRINGS: i64 = 5;
const SYMBOLS: i64 = 6;
const RELOCATIONS: i64 = 7;
const RELOCATIONS_SIZE: i64 = 8;
const PLT: i64 = 23;

#[cfg(target_arch = "x86_64")]
const FUNCTION_TYPES: [u32; 2] = [6, 7];
#[cfg(target_arch = "aarch64")]
const FUNCTION_TYPES: [u32; 2] = [1025, 1026];

#[repr(C)]
struct Dynamic {
    tag: i64,
    value: usize,
}

#[repr(C)]
struct Relocation {
    offset: usize,
    info: u64,
    addend: i64,
}

// One entry for each name, with and without PLT.
static ENTRIES: [AtomicPtr<AtomicPtr<c_void>>; 4] = [const { AtomicPtr::new(ptr::null_mut()) }; 4];
static FOUND: AtomicBool = AtomicBool::new(false);

/// The function that takes the place of mmap for libmlx5; null before main.
pub static MMAP: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Makes libmlx5's linkage entries of mmap point to [`MMAP`], again if a hook has replaced them.
pub fn lead() {
    let ours = MMAP.load(Ordering::Acquire);
    if ours.is_null() {
        return;
    }
    if !FOUND.load(Ordering::Acquire) {
        // SAFETY: the function has the type that is asked for and needs no data.
        let found = unsafe { libc::dl_iterate_phdr(Some(look), ptr::null_mut()) };
        FOUND.store(found > 0, Ordering::Release);
    }
    for entry in &ENTRIES {
        // SAFETY: null, or an entry of a library that stays loaded while a device is open, made writable when found.
        if let Some(entry) = unsafe { entry.load(Ordering::Acquire).as_ref() } {
            if entry.load(Ordering::Relaxed) != ours {
                entry.store(ours, Ordering::Release);
            }
        }
    }
}

// Called by the loader for each library; another value than 0 ends the search.
unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: size_t, _: *mut c_void) -> c_int {
    // SAFETY: the loader passes a description of a loaded library, whose headers and name are in memory.
    unsafe {
        let info = &*info;
        let named = NonNull::new(info.dlpi_name.cast_mut())
            .is_some_and(|name| CStr::from_ptr(name.as_ptr()).to_string_lossy().contains(LIBRARY));
        if !named || info.dlpi_phdr.is_null() {
            return 0;
        }
        let headers = slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into());
        let Some(dynamic) = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC) else {
            return 0;
        };
        let base = info.dlpi_addr as usize;
        note_entries(base, (base + dynamic.p_vaddr as usize) as *const Dynamic);
        1
    }
}

// SAFETY: `dynamic` is the dynamic section of a library that was loaded at `base`.
unsafe fn note_entries(base: usize, dynamic: *const Dynamic) {
    // SAFETY: the section ends with an entry of tag 0; its tables have the sizes that it says, and a relocation names a
    // symbol, whose name is a string.
    unsafe {
        let value = |tag: i64| {
            let mut at = dynamic;
            while (*at).tag != 0 && (*at).tag != tag {
                at = at.add(1);
            }
            if (*at).tag == 0 { 0 } else { (*at).value }
        };
        let (strings, symbols) = (value(STRINGS), value(SYMBOLS));
        let mut entries = ENTRIES.iter();
        for (table, size) in [(PLT, PLT_SIZE), (RELOCATIONS, RELOCATIONS_SIZE)] {
            let (table, size) = (value(table), value(size));
            if table == 0 || strings == 0 || symbols == 0 {
                continue;
            }
            let count = size / mem::size_of::<Relocation>();
            for relocation in slice::from_raw_parts(table as *const Relocation, count) {
                if !FUNCTION_TYPES.contains(&(relocation.info as u32)) {
                    continue;
                }
                let symbol = symbols + (relocation.info >> 32) as usize * mem::size_of::<libc::Elf64_Sym>();
                let name = strings + (*(symbol as *const libc::Elf64_Sym)).st_name as usize;
                if NAMES.contains(&CStr::from_ptr(name as *const c_char)) {
                    let entry = (base + relocation.offset) as *mut AtomicPtr<c_void>;
                    if let (true, Some(place)) = (make_writable(entry as usize), entries.next()) {
                        place.store(entry, Ordering::Release);
                    }
                }
            }
        }
    }
}

// The loader protects some of the entries.
fn make_writable(entry: usize) -> bool {
    // SAFETY: no memory is involved.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    let start = (entry & !(page - 1)) as *mut c_void;
    // SAFETY: the page holds linkage entries, which are data; they stay readable.
    unsafe { libc::mprotect(start, page, libc::PROT_READ | libc::PROT_WRITE) == 0 }
}
