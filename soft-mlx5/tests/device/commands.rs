//! Commands as bytes, which the libraries would never send.

use std::ffi::CString;

use soft_mlx5::Device;

use crate::world::{errno, serial};

const VERBS_IOCTL: u64 = 0xc018_1b01;
const MANDATORY: u16 = 1;
const VALID_OUTPUT: u16 = 2;

/// Opens the uverbs device with this number.
pub fn open_uverbs(number: u32) -> i32 {
    let path = CString::new(format!("/dev/infiniband/uverbs{number}")).unwrap();
    // SAFETY: a C string.
    unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) }
}

/// Returns the number of the uverbs device with this name.
pub fn uverbs_number(device: &Device) -> u32 {
    let root = std::env::var("SYSFS_PATH").unwrap();
    let names = std::fs::read_dir(format!("{root}/class/infiniband_verbs")).unwrap();
    let belongs = |entry: &std::fs::DirEntry| {
        let ibdev = std::fs::read_to_string(entry.path().join("ibdev"));
        ibdev.is_ok_and(|ibdev| ibdev.trim() == device.name())
    };
    let entry = names.flatten().find(belongs).unwrap();
    entry.file_name().to_str().unwrap()["uverbs".len()..].parse().unwrap()
}

/// One attribute of an ioctl.
#[derive(Clone, Copy)]
#[repr(C)]
struct Attr {
    id: u16,
    len: u16,
    flags: u16,
    reserved: u16,
    data: u64,
}

impl Attr {
    fn new(id: u16, len: u16, data: u64) -> Self {
        Self { id, len, flags: MANDATORY, reserved: 0, data }
    }

    fn optional(self) -> Self {
        Self { flags: 0, ..self }
    }
}

#[repr(C)]
struct Packet<const N: usize> {
    length: u16,
    object: u16,
    method: u16,
    num_attrs: u16,
    reserved1: u64,
    driver_id: u32,
    reserved2: u32,
    attrs: [Attr; N],
}

impl<const N: usize> Packet<N> {
    fn new(object: u16, method: u16, attrs: [Attr; N]) -> Self {
        let length = (24 + 16 * N) as u16;
        let num_attrs = N as u16;
        Self { length, object, method, num_attrs, reserved1: 0, driver_id: 1, reserved2: 0, attrs }
    }

    fn send(&mut self, fd: i32) -> Result<(), i32> {
        // SAFETY: the argument is a command with valid addresses, or one that must be refused.
        let failed = unsafe { libc::ioctl(fd, VERBS_IOCTL, &raw mut *self) } != 0;
        if failed { Err(errno()) } else { Ok(()) }
    }
}

fn ioctl<const N: usize>(fd: i32, object: u16, method: u16, attrs: [Attr; N]) -> Result<[Attr; N], i32> {
    let mut packet = Packet::new(object, method, attrs);
    packet.send(fd).map(|()| packet.attrs)
}

/// Runs GET_CONTEXT; returns the answer of the driver.
pub fn get_context(fd: i32) -> Result<[u32; 18], i32> {
    let request: [u32; 8] = [16, 4, 0, 0, 1, 0, 0, 0];
    let mut answer = [0u32; 18];
    let attrs = [Attr::new(0x1000, 32, request.as_ptr() as u64), Attr::new(0x1001, 72, answer.as_mut_ptr() as u64)];
    ioctl(fd, 0, 3, attrs).map(|_| answer)
}

// Runs a write command carried by an ioctl.
fn invoke(fd: i32, command: u64, request: &[u32], response: &mut [u32]) -> Result<(), i32> {
    let bytes = |words: &[u32]| (words.len() * 4) as u16;
    let inline = request.iter().rev().fold(0, |data, &word| data << 32 | u64::from(word));
    let request_at = if request.len() <= 2 { inline } else { request.as_ptr() as u64 };
    let attrs = [
        Attr::new(2, 8, command),
        Attr::new(0, bytes(request), request_at),
        Attr::new(1, bytes(response), response.as_mut_ptr() as u64),
    ];
    ioctl(fd, 0, 0, attrs).map(drop)
}

/// Runs ALLOC_PD; returns the handle.
pub fn alloc_pd(fd: i32) -> Result<u32, i32> {
    let mut handle = [0];
    invoke(fd, 3, &[0, 0], &mut handle).map(|()| handle[0])
}

/// Runs DEALLOC_PD.
pub fn dealloc_pd(fd: i32, handle: u32) -> Result<(), i32> {
    ioctl(fd, 1, 0, [Attr::new(0, 0, handle.into())]).map(drop)
}

/// Calls `work` with a file of a fresh device.
pub fn with_file(work: impl FnOnce(i32)) {
    let _serial = serial();
    let device = Device::builder().stepped().build().unwrap();
    let fd = open_uverbs(uverbs_number(&device));
    assert!(fd >= 0);
    work(fd);
    // SAFETY: our own descriptor.
    unsafe { libc::close(fd) };
}

#[test]
fn the_context_comes_first_and_once() {
    with_file(|fd| {
        assert_eq!(alloc_pd(fd), Err(libc::EINVAL));
        let answer = get_context(fd).unwrap();
        assert_eq!(answer[1], 512, "bytes of a BlueFlame register");
        assert_eq!(answer[2], 512, "registers");
        assert_eq!(get_context(fd), Err(libc::EINVAL));
        assert_eq!(alloc_pd(fd), Ok(0));
    });
}

/// Without this bit libibverbs strips the optional access flags from all registrations.
#[test]
fn the_context_says_that_it_knows_optional_access_flags() {
    with_file(|fd| {
        let request: [u32; 8] = [16, 4, 0, 0, 1, 0, 0, 0];
        let (mut answer, mut support) = ([0u32; 18], [0u64; 2]);
        let to = answer.as_mut_ptr() as u64;
        let [first, second] = support.each_mut().map(|word| Attr::new(1, 8, &raw mut *word as u64).optional());
        ioctl(fd, 0, 3, [first, Attr::new(0x1000, 32, request.as_ptr() as u64), Attr::new(0x1001, 72, to)]).unwrap();
        ioctl(fd, 0, 4, [second, Attr::new(0x1000, 72, to)]).unwrap();
        assert_eq!(support, [1; 2], "GET_CONTEXT and QUERY_CONTEXT");
    });
}

#[test]
fn a_context_with_unknown_flags_or_too_few_registers_is_refused() {
    with_file(|fd| {
        let ask = |request: [u32; 10], len: u16| {
            let mut answer = [0u32; 18];
            let attrs =
                [Attr::new(0x1000, len, request.as_ptr() as u64), Attr::new(0x1001, 72, answer.as_mut_ptr() as u64)];
            ioctl(fd, 0, 3, attrs).err()
        };
        assert_eq!(ask([16, 4, 2, 0, 1, 0, 0, 0, 0, 0], 32), Some(libc::EOPNOTSUPP));
        assert_eq!(ask([16, 4, 0, 1, 1, 0, 0, 0, 0, 0], 32), Some(libc::EOPNOTSUPP));
        assert_eq!(ask([4, 4, 0, 0, 1, 0, 0, 0, 0, 0], 32), Some(libc::EINVAL));
        assert_eq!(ask([16, 4, 0, 0, 1, 0, 0, 0, 0, 0], 4), Some(libc::EINVAL));
        assert_eq!(ask([16, 4, 1, 0, 1, 0, 0, 0, 0, 0], 32), None, "DEVX");
    });
}

#[test]
fn a_malformed_ioctl_differs_from_an_unknown_one() {
    with_file(|fd| {
        get_context(fd).unwrap();
        let packet = |change: fn(&mut Packet<1>)| {
            let mut packet = Packet::new(1, 0, [Attr::new(0, 0, 0)]);
            change(&mut packet);
            packet.send(fd).err()
        };
        assert_eq!(packet(|p| p.length = 39), Some(libc::EINVAL));
        assert_eq!(packet(|p| p.num_attrs = 2), Some(libc::EINVAL));
        assert_eq!(packet(|p| p.driver_id = 2), Some(libc::EINVAL));
        assert_eq!(packet(|p| p.reserved1 = 1), Some(libc::EPROTONOSUPPORT));
        assert_eq!(packet(|p| p.reserved2 = 1), Some(libc::EPROTONOSUPPORT));
        assert_eq!(packet(|p| p.object = 0x1000), Some(libc::EPROTONOSUPPORT), "DEVX");
        assert_eq!(packet(|p| p.method = 0x1008), Some(libc::EPROTONOSUPPORT), "UAR objects");
        assert_eq!(packet(|_| ()), Some(libc::ENOENT), "fine, but there is no such domain");
        // SAFETY: commands that must be refused.
        unsafe {
            assert_eq!((libc::ioctl(fd, VERBS_IOCTL, 8), errno()), (-1, libc::EFAULT));
            assert_eq!((libc::ioctl(fd, 0x1b02, 0), errno()), (-1, libc::ENOTTY));
        }
    });
}

#[test]
fn attributes_are_checked_as_the_kernel_checks_them() {
    with_file(|fd| {
        get_context(fd).unwrap();
        let handle = alloc_pd(fd).unwrap();
        let pd = Attr::new(0, 0, handle.into());
        let unknown = Attr::new(99, 4, 0);
        let destroy = |attrs| ioctl::<2>(fd, 1, 0, attrs).err();
        assert_eq!(destroy([pd, unknown]), Some(libc::EPROTONOSUPPORT));
        assert_eq!(destroy([pd, pd]), Some(libc::EINVAL), "twice");
        assert_eq!(destroy([unknown.optional(), unknown.optional()]), Some(libc::EINVAL), "missing");
        assert_eq!(destroy([Attr { len: 4, ..pd }, unknown.optional()]), Some(libc::EINVAL));
        assert_eq!(destroy([Attr { reserved: 1, ..pd }, unknown.optional()]), Some(libc::EINVAL));
        let negative = Attr { data: u64::MAX, ..pd };
        assert_eq!(destroy([negative, unknown.optional()]), Some(libc::EINVAL));
        // A handle of another type.
        assert_eq!(ioctl(fd, 7, 1, [pd]).err(), Some(libc::EINVAL));
        assert_eq!(destroy([pd, unknown.optional()]), None);
        assert_eq!(dealloc_pd(fd, handle), Err(libc::ENOENT));
    });
}

#[test]
fn an_output_is_marked_and_never_longer_than_its_room() {
    with_file(|fd| {
        get_context(fd).unwrap();
        let mut room = [0xaau8; 64];
        let query = |len: u16, room: &mut [u8; 64]| {
            let attrs = [Attr::new(0, 8, 1), Attr::new(1, len, room.as_mut_ptr() as u64)];
            ioctl(fd, 0, 2, attrs)
        };
        let attrs = query(42, &mut room).unwrap();
        assert_eq!(attrs[1].flags, MANDATORY | VALID_OUTPUT);
        assert!(room[42..].iter().all(|&byte| byte == 0xaa));
        query(60, &mut room).unwrap();
        assert!(room[48..60].iter().all(|&byte| byte == 0), "beyond what is known: cleared");
        assert!(room[60..].iter().all(|&byte| byte == 0xaa));
        assert_eq!(query(40, &mut room).err(), Some(libc::EINVAL));
        let nowhere = [Attr::new(0, 8, 1), Attr::new(1, 48, 16)];
        assert_eq!(ioctl(fd, 0, 2, nowhere).err(), Some(libc::EFAULT));
        let no_port = [Attr::new(0, 8, 2), Attr::new(1, 48, room.as_mut_ptr() as u64)];
        assert_eq!(ioctl(fd, 0, 2, no_port).err(), Some(libc::EINVAL));
    });
}

#[test]
fn a_command_whose_answer_cannot_be_written_is_undone() {
    with_file(|fd| {
        get_context(fd).unwrap();
        let attrs = [Attr::new(2, 8, 3), Attr::new(0, 8, 0), Attr::new(1, 4, 16)];
        assert_eq!(ioctl(fd, 0, 0, attrs).err(), Some(libc::EFAULT));
        assert_eq!(alloc_pd(fd), Ok(0), "the handle is free again");
    });
}

fn write_words(fd: i32, words: &[u32]) -> Result<usize, i32> {
    write_bytes(fd, words, words.len() * 4)
}

/// Writes this many bytes.
fn write_bytes(fd: i32, words: &[u32], count: usize) -> Result<usize, i32> {
    // SAFETY: the words are a command with valid addresses, or one that must be refused.
    let taken = unsafe { libc::write(fd, words.as_ptr().cast(), count) };
    usize::try_from(taken).map_err(|_| errno())
}

fn address_of(words: &mut [u32]) -> [u32; 2] {
    let addr = words.as_mut_ptr() as u64;
    [addr as u32, (addr >> 32) as u32]
}

#[test]
fn the_write_form_does_the_same() {
    with_file(|fd| {
        let mut answer = [0u32; 20];
        let [low, high] = address_of(&mut answer);
        // GET_CONTEXT: 12 words in, 20 out, the response and the driver's request.
        let get = [0, 20 << 16 | 12, low, high, 16, 4, 0, 0, 1, 0, 0, 0];
        assert_eq!(write_words(fd, &get), Ok(48));
        assert!(answer[1] >= 1, "completion vectors");
        assert_eq!(answer[2 + 1], 512, "bytes of a BlueFlame register");
        let async_fd = answer[0] as i32;
        // ALLOC_PD, with the driver's response after the core's.
        let mut pd = [u32::MAX; 3];
        let [low, high] = address_of(&mut pd);
        assert_eq!(write_words(fd, &[3, 2 << 16 | 4, low, high]), Ok(16));
        assert_eq!(pd[0], 0);
        assert_ne!(pd[1], u32::MAX);
        assert_eq!(pd[2], u32::MAX, "no more than the room given");
        // DEALLOC_PD.
        assert_eq!(write_words(fd, &[4, 3, 0]), Ok(12));
        assert_eq!(write_words(fd, &[4, 3, 0]), Err(libc::ENOENT));
        // SAFETY: handed out by GET_CONTEXT.
        unsafe { libc::close(async_fd) };
    });
}

#[test]
fn write_commands_with_wrong_lengths_or_numbers_are_refused() {
    with_file(|fd| {
        get_context(fd).unwrap();
        let mut room = [0u32; 64];
        let [low, high] = address_of(&mut room);
        assert_eq!(write_bytes(fd, &[3, 0, 0], 7), Err(libc::EINVAL), "less than a header");
        assert_eq!(write_words(fd, &[3, 2 << 16 | 5, low, high]), Err(libc::EINVAL));
        assert_eq!(write_words(fd, &[3, 4, low, high]), Err(libc::ENOSPC), "no room");
        assert_eq!(write_words(fd, &[3, 2 << 16 | 2]), Err(libc::ENOSPC), "no request");
        assert_eq!(write_words(fd, &[3, 2 << 16 | 4, 16, 0]), Err(libc::EFAULT));
        assert_eq!(write_words(fd, &[41, 2]), Err(libc::EINVAL), "beyond the last");
        assert_eq!(write_words(fd, &[21, 2]), Err(libc::EOPNOTSUPP), "POLL_CQ");
        assert_eq!(write_words(fd, &[37, 2]), Err(libc::EOPNOTSUPP), "OPEN_XRCD");
        assert_eq!(write_words(fd, &[1 << 31 | 57, 0, 0, 0, 0, 0]), Err(libc::EOPNOTSUPP), "MODIFY_CQ");
        // QUERY_DEVICE, extended: one double word in, 38 out.
        let query = |response: [u32; 2], words: u32| {
            let [low, high] = response;
            write_words(fd, &[1 << 31 | 1, words, low, high, 0, 0, 0, 0])
        };
        assert_eq!(query([low, high], 23 << 16 | 1), Ok(32));
        assert_eq!(query([low, high], 22 << 16 | 1), Err(libc::ENOSPC));
        assert_eq!(query([0, 0], 23 << 16 | 1), Err(libc::EINVAL));
        assert_eq!(query([low, high], 1), Err(libc::EINVAL));
        assert_eq!(query([low, high], 23 << 16 | 2), Err(libc::EINVAL));
        // SAFETY: a command at an address that is not mapped.
        assert_eq!(unsafe { libc::write(fd, 16 as *const _, 16) }, -1);
        assert_eq!(errno(), libc::EFAULT);
    });
}

#[test]
fn a_registered_signature_is_refused() {
    with_file(|fd| {
        get_context(fd).unwrap();
        let pd = alloc_pd(fd).unwrap();
        let memory = vec![0u8; 8192];
        let at = memory.as_ptr() as u64;
        let driver: [u64; 4] = [at, at + 4096, 1, 0];
        let (mut max_wr, mut max_sge) = (0u32, 0u32);
        let mut number = [0u32; 2];
        let attrs = [
            Attr::new(0, 0, 0),
            Attr::new(1, 0, pd.into()),
            Attr::new(4, 8, 7),
            Attr::new(5, 4, 63),
            Attr::new(6, 4, 1),
            Attr::new(7, 4, 0),
            Attr::new(9, 8, 0),
            Attr::new(11, 4, &raw mut max_wr as u64),
            Attr::new(12, 4, &raw mut max_sge as u64),
            Attr::new(0x1000, 32, driver.as_ptr() as u64),
            Attr::new(0x1001, 8, number.as_mut_ptr() as u64),
        ];
        assert_eq!(ioctl(fd, 5, 0, attrs).err(), Some(libc::EOPNOTSUPP));
        let plain: [u64; 4] = [at, at + 4096, 0, 0];
        let mut attrs = attrs;
        attrs[9].data = plain.as_ptr() as u64;
        assert!(ioctl(fd, 5, 0, attrs).is_ok());
        assert_eq!((max_wr, max_sge), (63, 1));
        assert_ne!(number[0], 0);
        let nowhere: [u64; 4] = [0x1000, 0x2000, 0, 0];
        attrs[9].data = nowhere.as_ptr() as u64;
        assert_eq!(ioctl(fd, 5, 0, attrs).err(), Some(libc::EFAULT), "the queue must be there");
    });
}

/// Registers a memfd as a dma-buf; returns handle and key.
fn register_dma_buf(fd: i32, pd: u32, iova: u64, flags: Option<u64>) -> Result<(u64, u32), i32> {
    // SAFETY: the name is a string.
    let memory = unsafe { libc::memfd_create(c"raw".as_ptr(), libc::MFD_CLOEXEC) };
    // SAFETY: a descriptor of ours.
    assert_eq!(unsafe { libc::ftruncate(memory, 8192) }, 0);
    let mut keys = [0u32; 2];
    let at = keys.as_mut_ptr() as u64;
    let mut attrs = [
        Attr::new(0, 0, 0),
        Attr::new(1, 0, pd.into()),
        Attr::new(2, 8, iova & 0xfff),
        Attr::new(3, 8, 4096),
        Attr::new(4, 8, iova),
        Attr::new(5, 4, memory as u64),
        Attr::new(6, 8, 1),
        Attr::new(7, 4, at),
        Attr::new(8, 4, at + 4),
        Attr::new(0x1000, 8, flags.unwrap_or(0)),
    ];
    if flags.is_none() {
        attrs[9] = attrs[9].optional();
        attrs[9].id = 0x1fff;
    }
    let done = ioctl(fd, 7, 4, attrs);
    // SAFETY: a descriptor of ours.
    unsafe { libc::close(memory) };
    done.map(|attrs| (attrs[0].data, keys[0]))
}

// Runs REREG_MR with these flags.
fn rereg(fd: i32, mr: u64, flags: u32, pd: u32) -> Result<(), i32> {
    let mut answer = [0u32; 2];
    let request = [0, 0, mr as u32, flags, 0, 0, 0, 0, 0, 0, pd, 1];
    invoke(fd, 11, &request, &mut answer)
}

#[test]
fn a_region_of_a_dma_buf_changes_its_domain_and_has_no_pci_function_of_its_own() {
    with_file(|fd| {
        get_context(fd).unwrap();
        let (pd, other) = (alloc_pd(fd).unwrap(), alloc_pd(fd).unwrap());
        assert_eq!(register_dma_buf(fd, pd, 5, Some(1)), Err(libc::EOPNOTSUPP));
        assert_eq!(register_dma_buf(fd, pd, 4096, Some(1)), Err(libc::EINVAL));
        assert_eq!(register_dma_buf(fd, pd, 4096, Some(2)), Err(libc::EINVAL));
        assert_eq!(register_dma_buf(fd, 999, 4096, None), Err(libc::ENOENT));
        let mut path = [0u8; 64];
        let at = path.as_mut_ptr() as u64;
        assert_eq!(ioctl(fd, 0, 0x1001, [Attr::new(0x1000, 64, at)]).err(), Some(libc::ENODEV));

        let (mr, key) = register_dma_buf(fd, pd, 0x10_0005, Some(0)).unwrap();
        assert_ne!(key, 0);
        assert_eq!(dealloc_pd(fd, pd), Err(libc::EBUSY));
        // First the domain changes, then the domain and the rights.
        assert_eq!(rereg(fd, mr, 2, other), Ok(()));
        assert_eq!(rereg(fd, mr, 6, other), Ok(()));
        assert_eq!(dealloc_pd(fd, pd), Ok(()));
        assert_eq!(ioctl(fd, 7, 1, [Attr::new(0, 0, mr)]).err(), None);
        assert_eq!(dealloc_pd(fd, other), Ok(()));
    });
}

#[test]
fn device_memory_is_imported_and_neither_reregistered_nor_an_operand() {
    with_file(|fd| {
        get_context(fd).unwrap();
        let pd = alloc_pd(fd).unwrap();
        let (mut offset, mut page, mut length) = (7u64, 7u16, 7u64);
        let [offset_at, page_at, length_at] = [&raw mut offset as u64, &raw mut page as u64, &raw mut length as u64];
        let alloc = |kind: u64| {
            let attrs = [
                Attr::new(0, 0, 0),
                Attr::new(1, 8, 100),
                Attr::new(2, 4, 0),
                Attr::new(0x1000, 8, offset_at),
                Attr::new(0x1001, 2, page_at),
                Attr::new(0x1002, 8, kind),
            ];
            ioctl(fd, 14, 0, attrs).map(|attrs| attrs[0].data)
        };
        let first = alloc(0).unwrap();
        let second = alloc(0).unwrap();
        assert!(alloc(1).is_err_and(|error| [libc::EPERM, libc::EOPNOTSUPP].contains(&error)));
        assert_eq!(alloc(4), Err(libc::EOPNOTSUPP));
        let query = [
            Attr::new(0x1000, 0, second),
            Attr::new(0x1001, 8, offset_at),
            Attr::new(0x1002, 2, page_at),
            Attr::new(0x1003, 8, length_at),
        ];
        ioctl(fd, 14, 0x1001, query).unwrap();
        assert_eq!((offset, page, length), (0, 1, 100));
        let operand = [
            Attr::new(0x1000, 0, second),
            Attr::new(0x1001, 1, 0),
            Attr::new(0x1002, 8, offset_at),
            Attr::new(0x1003, 2, page_at),
        ];
        assert_eq!(ioctl(fd, 14, 0x1000, operand).err(), Some(libc::EOPNOTSUPP));
        // A mapping is as long as the pages of its piece, and shared.
        let map = |number: i64, length, flags| {
            let offset = (number >> 8 << 16 | 8 << 8 | number & 0xff) * 4096;
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: a new mapping at an address that the kernel chooses.
            let memory = unsafe { libc::mmap(std::ptr::null_mut(), length, rights, flags, fd, offset) };
            if memory == libc::MAP_FAILED { Err(errno()) } else { Ok(memory) }
        };
        assert_eq!(map(1, 8192, libc::MAP_SHARED), Err(libc::EINVAL));
        assert_eq!(map(1, 4096, libc::MAP_PRIVATE), Err(libc::EINVAL));
        assert_eq!(map(2, 4096, libc::MAP_SHARED), Err(libc::EINVAL));
        let [near, far] = [0, 1].map(|number| map(number, 4096, libc::MAP_SHARED).unwrap());
        // SAFETY: both are mapped, a page each.
        unsafe {
            near.cast::<u64>().write(1);
            far.cast::<u64>().write(2);
            assert_eq!(near.cast::<u64>().read(), 1);
            libc::munmap(near, 4096);
            libc::munmap(far, 4096);
        }
        let mut keys = [0u32; 2];
        let at = keys.as_mut_ptr() as u64;
        let register = [
            Attr::new(0, 0, 0),
            Attr::new(1, 8, 0),
            Attr::new(2, 8, 100),
            Attr::new(3, 0, pd.into()),
            Attr::new(4, 8, 1 << 5 | 1),
            Attr::new(5, 0, first),
            Attr::new(6, 4, at),
            Attr::new(7, 4, at + 4),
        ];
        let mr = ioctl(fd, 7, 0, register).unwrap()[0].data;
        assert_eq!(rereg(fd, mr, 2, pd), Err(libc::EINVAL));
        let free = |handle| ioctl(fd, 14, 1, [Attr::new(0, 0, handle)]).err();
        assert_eq!((free(first), free(second)), (Some(libc::EBUSY), None));
        ioctl(fd, 7, 1, [Attr::new(0, 0, mr)]).unwrap();
        assert_eq!(free(first), None);
    });
}
