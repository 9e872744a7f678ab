//! The descriptor of a device, as a program copies and closes it.

use std::ffi::CString;

use soft_mlx5::Device;

use crate::commands::{alloc_pd, get_context, open_uverbs, uverbs_number, with_file};
use crate::world::{errno, serial};

fn stepped() -> (Device, u32) {
    let device = Device::builder().stepped().build().unwrap();
    let number = uverbs_number(&device);
    (device, number)
}

#[test]
fn the_descriptor_is_a_character_device_with_the_number_of_sysfs() {
    let _serial = serial();
    let (_device, number) = stepped();
    let path = CString::new(format!("/dev/infiniband/uverbs{number}")).unwrap();
    let fd = open_uverbs(number);
    // SAFETY: an all-zero value is valid to be filled; the descriptor is open.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        assert_eq!(libc::fstat(fd, &mut stat), 0);
        assert_eq!(stat.st_mode & libc::S_IFMT, libc::S_IFCHR);
        let root = std::env::var("SYSFS_PATH").unwrap();
        let dev = std::fs::read_to_string(format!("{root}/class/infiniband_verbs/uverbs{number}/dev"));
        let (major, minor) = (libc::major(stat.st_rdev), libc::minor(stat.st_rdev));
        assert_eq!(dev.unwrap(), format!("{major}:{minor}\n"));
        let mut named: libc::stat = std::mem::zeroed();
        assert_eq!(libc::stat(path.as_ptr(), &mut named), 0);
        assert_eq!(named.st_rdev, stat.st_rdev);
        assert_eq!(libc::access(path.as_ptr(), libc::R_OK | libc::W_OK), 0);
        assert_eq!(libc::fcntl(fd, libc::F_GETFD) & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
        libc::close(fd);
        assert_eq!(open_uverbs(77), -1);
        assert_eq!(errno(), libc::ENOENT);
    }
}

#[test]
fn objects_live_until_the_last_copy_of_the_descriptor_is_closed() {
    let _serial = serial();
    let (_device, number) = stepped();
    let fd = open_uverbs(number);
    get_context(fd).unwrap();
    assert_eq!(alloc_pd(fd), Ok(0));
    // SAFETY: plain descriptor operations on descriptors of this test.
    unsafe {
        let copy = libc::dup(fd);
        assert_eq!(alloc_pd(copy), Ok(1), "a copy is the same file");
        libc::close(fd);
        assert_eq!(alloc_pd(fd), Err(libc::EBADF));
        let target = libc::fcntl(copy, libc::F_DUPFD_CLOEXEC, 100);
        assert!(target >= 100);
        libc::close(copy);
        assert_eq!(alloc_pd(target), Ok(2));
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        assert_eq!(libc::dup2(null, target), target);
        assert_eq!(alloc_pd(target), Err(libc::ENOTTY), "now it is another file");
        libc::close(target);
        libc::close(null);
    }
    let again = open_uverbs(number);
    get_context(again).unwrap();
    assert_eq!(alloc_pd(again), Ok(0), "a new file has handles of its own");
    // SAFETY: closes a descriptor of this test.
    unsafe {
        libc::close(again);
    }
}

#[test]
fn files_do_not_see_each_others_objects() {
    let _serial = serial();
    let (_device, number) = stepped();
    let (one, other) = (open_uverbs(number), open_uverbs(number));
    get_context(one).unwrap();
    get_context(other).unwrap();
    assert_eq!(alloc_pd(one), Ok(0));
    assert_eq!(alloc_pd(one), Ok(1));
    assert_eq!(alloc_pd(other), Ok(0));
    assert_eq!(crate::commands::dealloc_pd(other, 1), Err(libc::ENOENT));
    assert_eq!(crate::commands::dealloc_pd(one, 1), Ok(()));
    // SAFETY: our own descriptors.
    unsafe {
        libc::close(one);
        libc::close(other);
    }
}

#[test]
fn mappings_other_than_uar_pages_and_the_clock_are_refused() {
    with_file(mappings);
}

fn mappings(fd: i32) {
    const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;
    let map = |length, protection, flags, page: i64| {
        // SAFETY: a fresh mapping that nothing relies on.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, fd, page * 4096) };
        if at == libc::MAP_FAILED { Err(errno()) } else { Ok(at) }
    };
    assert_eq!(map(4096, RW, libc::MAP_SHARED, 0), Err(libc::EINVAL), "no context yet");
    get_context(fd).unwrap();
    let uar = map(4096, libc::PROT_WRITE, libc::MAP_SHARED, 0).unwrap();
    // SAFETY: the page is writable.
    unsafe { uar.cast::<u64>().add(0x800 / 8).write_volatile(0) };
    assert!(map(4096, libc::PROT_WRITE, libc::MAP_SHARED, 255).is_ok());
    assert_eq!(map(8192, libc::PROT_WRITE, libc::MAP_SHARED, 0), Err(libc::EINVAL));
    assert_eq!(map(4096, libc::PROT_WRITE, libc::MAP_PRIVATE, 0), Err(libc::EINVAL));
    assert_eq!(map(4096, RW, libc::MAP_SHARED, 1 << 8), Err(libc::ENOSYS));
    assert_eq!(map(4096, libc::PROT_WRITE, libc::MAP_SHARED, 5 << 8), Err(libc::EPERM));
    assert!(map(4096, libc::PROT_READ, libc::MAP_SHARED, 5 << 8).is_ok());
    assert!(map(4096, libc::PROT_READ, libc::MAP_SHARED, 7 << 8).is_ok());
    assert_eq!(map(4096, libc::PROT_READ, libc::MAP_SHARED, 99 << 8), Err(libc::EINVAL));
    assert!(map(4096, libc::PROT_WRITE, libc::MAP_SHARED, 6 << 8).is_ok(), "a thread domain's page");
    assert_eq!(map(4096, libc::PROT_WRITE, libc::MAP_SHARED, 6 << 8), Err(libc::EBUSY));
}
