//! Messages out of one GPU memory into another one, without a copy by the processor.
//!
//! `EXPORT` returns the dma-buf of an allocation. Here it is memory of the host that stands for it: `udmabuf` if the
//! machine has it, else a memfd, which only soft-mlx5 takes. A CUDA program puts a function there that calls
//! `cuMemAlloc` and `cuMemGetHandleForAddressRange`, and a ROCm program one with `hsa_amd_portable_export_dmabuf`.
//!
//! ```text
//! gpu_memory [auto | direct | verbs]
//! ```

use std::error::Error;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use doorbell::opaque::OpaqueMemory;
use doorbell::{
    BufferPool, Completions, CqConfig, DataPath, QpConfig, QueuePair, Receiver, RemoteAccess, Sender, SrqConfig,
};

/// An allocation of another device, by the descriptor of its dma-buf and the offset in it.
type Export = fn(len: usize) -> io::Result<(OwnedFd, u64)>;

/// Where the memory is from: the place for a function of a GPU program.
const EXPORT: Export = host_memory;

const MESSAGE: usize = 64 << 10;
const MESSAGES: usize = 100;
/// Buffers for each slot of the queue, and for what the program has.
const LEN: usize = 20 * MESSAGE;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).map_or(Ok(DataPath::Auto), |path| path.parse())?;
    let pd = doorbell::devices()?.first().ok_or("there is no RDMA device")?.open()?.alloc_pd()?;
    let cq = CqConfig::new(64).path(path);
    let mut receiver = Receiver::opaque(&pd, &cq)?;
    let mut sender = Sender::new(&pd, &cq)?;
    let srq = receiver.create_srq(&SrqConfig::new(15))?;
    let mut sink = QueuePair::builder(&QpConfig::rc()).receive(&mut receiver, srq).build()?;
    let mut source = QueuePair::builder(&QpConfig::rc().max_send_wr(16)).send(&mut sender).build()?;
    sink.connect(&source.address()?)?;
    source.connect(&sink.address()?)?;

    let (to, from) = (EXPORT(LEN)?, EXPORT(LEN)?);
    // Only this example looks at the bytes, through the descriptor of its host memory.
    let (target, contents) = (File::from(to.0.try_clone()?), File::from(from.0.try_clone()?));
    let pool = |(fd, offset)| {
        let memory = OpaqueMemory::dma_buf(&pd, fd, offset, LEN, RemoteAccess::empty())?;
        Ok::<_, Box<dyn Error>>(BufferPool::divide(memory, u32::MAX, MESSAGE as u32)?)
    };
    let (to, from) = (pool(to)?, pool(from)?);
    receiver.fill(srq, &to)?;

    for number in 0..MESSAGES {
        let mut buffer = from.take().ok_or("the pool is empty")?;
        // A kernel of the GPU would fill the buffer.
        let content = vec![number as u8; MESSAGE];
        let can_look = contents.write_all_at(&content, buffer.offset() as u64).is_ok();
        buffer.set_len(MESSAGE);
        sender.send(&source, buffer)?;
        receiver.wait(None)?;
        let next = receiver.next().ok_or("nothing has arrived")?;
        let message = next?.replace(to.take().ok_or("the pool is empty")?)?;
        // A kernel of the GPU would use the buffer, after the flush that the page GPU memory of the book describes.
        let mut found = vec![0; message.len()];
        if can_look && target.read_exact_at(&mut found, message.offset() as u64).is_ok() && found != content {
            return Err(format!("message {number} has other bytes").into());
        }
        sender.wait(None)?;
        while let Some(done) = sender.next() {
            done?;
        }
    }
    println!("{MESSAGES} messages of {MESSAGE} bytes from memory to memory, path {}", receiver.path());
    Ok(())
}

/// Memory of the host: a dma-buf of `udmabuf`, or a memfd.
fn host_memory(len: usize) -> io::Result<(OwnedFd, u64)> {
    /// `struct udmabuf_create` of the kernel.
    #[repr(C)]
    struct Create {
        memfd: u32,
        flags: u32,
        offset: u64,
        size: u64,
    }
    const UDMABUF_CREATE: libc::c_ulong = 0x4018_7542;
    const CLOEXEC: u32 = 1;
    // SAFETY: the name is a string; the descriptor has no other owner.
    let memfd = unsafe {
        let fd = libc::memfd_create(c"gpu_memory".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        File::from_raw_fd(fd)
    };
    memfd.set_len(len as u64)?;
    let Ok(device) = File::options().read(true).write(true).open("/dev/udmabuf") else {
        return Ok((memfd.into(), 0));
    };
    let create = Create { memfd: memfd.as_raw_fd() as u32, flags: CLOEXEC, offset: 0, size: len as u64 };
    // SAFETY: open descriptors, and a structure that outlives the call.
    let fd = unsafe {
        libc::fcntl(memfd.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK);
        libc::ioctl(device.as_raw_fd(), UDMABUF_CREATE, &raw const create)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel made it just now.
    Ok((unsafe { OwnedFd::from_raw_fd(fd) }, 0))
}
