//! The PCI device that a client sees: its regions and interrupts, on a function of the adapter.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};

use super::channel::MAX_FDS;
use super::config_space::{self, ConfigSpace, Written};
use super::guest_memory::GuestMemory;
use super::irqs::{Irqs, KINDS, MSIX, VECTORS};
use super::message::{EINVAL, Errno, MAX_TRANSFER, Request};
use crate::base::clock::Clock;
use crate::base::counters::Injected;
use crate::base::tally::{Fault, Tally};
use crate::commands::{Commands, Interrupts};
use crate::engine::NicConfig;
use crate::pci::init_segment::InitSegment;
use crate::pci::{Function, command_queue};

const PAGE: u64 = 4096;
const BAR: u32 = 0;
const BAR_SIZE: u64 = Commands::BAR_PAGES as u64 * PAGE;
/// Pages of BAR 0 up to here are not mapped by the client. The first UAR page belongs to the kernel of the guest, whose
/// queues all ring there: a ring that is polled could be overwritten by the next.
const TRAPPED: u64 = (Commands::FIRST_UAR as u64 + 1) * PAGE;
const CONFIG: u32 = 7;
/// BARs, expansion ROM, configuration space, VGA.
const REGIONS: u32 = 9;

const REGION_READ: u32 = 1;
const REGION_WRITE: u32 = 1 << 1;
const REGION_MMAP: u32 = 1 << 2;
const REGION_CAPABILITIES: u32 = 1 << 3;
const REGION_INFO: u32 = 32;
const SPARSE_MMAP: u32 = 32;

/// Answer to a request.
#[derive(Debug, Default)]
pub struct Answer {
    /// Payload of the reply.
    pub payload: Vec<u8>,
    /// The memory file of BAR 0 goes with the reply.
    pub with_bar: bool,
}

/// Interrupts of the function, as the client sets them.
#[derive(Debug)]
struct Raised(Arc<Mutex<Irqs>>);

impl Interrupts for Raised {
    fn raise(&mut self, vector: u32) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).raise(vector);
    }
}

/// The device of one client.
#[derive(Debug)]
pub struct Device {
    function: Function,
    memory: Arc<GuestMemory>,
    irqs: Arc<Mutex<Irqs>>,
    config: ConfigSpace,
    init: InitSegment,
    clock: Clock,
    // Nanoseconds after which the firmware stops, once.
    fails_at: Option<u64>,
    tally: Tally,
}

impl Device {
    /// Powers a device up.
    pub fn new(mut config: NicConfig) -> io::Result<Self> {
        let clock = Clock::start(false);
        config.epoch = clock.started_at();
        let fails_at = config.faults.fail_firmware.map(|after| after.as_nanos() as u64);
        let tally = config.tally.clone();
        let memory = Arc::new(GuestMemory::default());
        let irqs = Arc::new(Mutex::new(Irqs::new()));
        let function = Function::new(config, memory.clone(), Box::new(Raised(irqs.clone())))?;
        let (config, init) = (ConfigSpace::new(), InitSegment::default());
        Ok(Self { function, memory, irqs, config, init, clock, fails_at, tally })
    }

    /// Lets the device work once; returns `true` if it found work.
    pub fn step(&mut self) -> bool {
        let now = self.clock.now();
        if self.fails_at.is_some_and(|at| at <= now) {
            self.fails_at = None;
            self.tally.count(Fault::Firmware);
            self.function.reset();
            self.init.fail();
        }
        self.function.step(now)
    }

    /// Returns `true` if doorbells may come without a message.
    pub fn is_used(&self) -> bool {
        self.function.has_queue_pairs()
    }

    /// Returns the nanoseconds until the next timer, if one runs.
    pub fn until_timer(&self) -> Option<u64> {
        let next = self.function.next_deadline().into_iter().chain(self.fails_at).min();
        next.map(|at| at.saturating_sub(self.clock.now()))
    }

    /// Returns the descriptor that becomes readable when packets from other processes wait.
    pub fn wait_fd(&self) -> Option<RawFd> {
        self.function.wait_fd()
    }

    /// Returns the faults that the device injected.
    pub fn injected(&self) -> Injected {
        self.function.injected()
    }

    /// Returns the memory file of BAR 0.
    pub fn bar(&self) -> BorrowedFd<'_> {
        // SAFETY: the function keeps the file open as long as it lives.
        unsafe { BorrowedFd::borrow_raw(self.function.bar()) }
    }

    /// Executes a request.
    pub fn handle(&mut self, request: Request<'_>, fds: Vec<OwnedFd>) -> Result<Answer, Errno> {
        let mut answer = Answer::default();
        match request {
            Request::Version { major: 0 } => answer.payload = version(),
            Request::Version { .. } => return Err(EINVAL),
            Request::DmaMap { writable, offset, address, size } => {
                let file = fds.into_iter().next().map(|fd| (fd, offset));
                self.memory.map(address, size, writable, file)?;
            }
            Request::DmaUnmap { all, address, size } => {
                if all {
                    self.memory.unmap_all();
                } else {
                    self.memory.unmap(address, size)?;
                }
                answer.payload = words(&[24, if all { 2 } else { 0 }]);
                answer.payload.extend(address.to_le_bytes());
                answer.payload.extend(size.to_le_bytes());
            }
            Request::DeviceInfo => {
                const RESET: u32 = 1;
                const PCI: u32 = 1 << 1;
                answer.payload = words(&[16, RESET | PCI, REGIONS, KINDS]);
            }
            Request::RegionInfo { argsz, index } => answer = region_info(argsz, index)?,
            Request::IrqInfo { index } if index < KINDS => {
                const EVENTFD: u32 = 1;
                const NO_RESIZE: u32 = 1 << 3;
                let msix = [16, EVENTFD | NO_RESIZE, index, VECTORS];
                answer.payload = words(if index == MSIX { &msix } else { &[16, 0, 0, 0] });
            }
            Request::IrqInfo { .. } => return Err(EINVAL),
            Request::SetIrqs { action, index, start, count } => {
                let mut irqs = self.irqs.lock().unwrap_or_else(PoisonError::into_inner);
                irqs.set(action, index, start, count, fds)?;
            }
            Request::RegionRead { region, offset, count } => {
                answer.payload = access(offset, region, count);
                answer.payload.extend(self.read(region, offset, count)?);
            }
            Request::RegionWrite { region, offset, data } => {
                self.write(region, offset, data)?;
                answer.payload = access(offset, region, data.len() as u32);
            }
            Request::Reset => self.reset(),
        }
        Ok(answer)
    }

    fn reset(&mut self) {
        self.function.reset();
        (self.config, self.init) = (ConfigSpace::new(), InitSegment::after_reset());
    }

    fn read(&self, region: u32, offset: u64, count: u32) -> Result<Vec<u8>, Errno> {
        match region {
            CONFIG => self.config.read(offset, count).map(<[u8]>::to_vec).ok_or(EINVAL),
            BAR => {
                check_bar(offset, count.into())?;
                // UAR pages read as zeros, as do pending bits: an interrupt is raised at once.
                let mut bytes = vec![0; count as usize];
                self.init.read(offset, &mut bytes, self.clock.now());
                Ok(bytes)
            }
            _ => Err(EINVAL),
        }
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        match region {
            CONFIG => {
                if self.config.write(offset, data).ok_or(EINVAL)? == Written::Reset {
                    self.reset();
                }
                Ok(())
            }
            BAR => {
                check_bar(offset, data.len() as u64)?;
                let (mut offset, mut rest) = (offset, data);
                while !rest.is_empty() {
                    let (page, within) = (offset / PAGE, offset % PAGE);
                    let len = rest.len().min((PAGE - within) as usize);
                    if page < Commands::FIRST_UAR.into() {
                        self.write_registers(offset, &rest[..len]);
                    } else {
                        self.function.write_uar(page as u32, within as usize, &rest[..len]);
                    }
                    (offset, rest) = (offset + len as u64, &rest[len..]);
                }
                Ok(())
            }
            _ => Err(EINVAL),
        }
    }

    fn write_registers(&mut self, offset: u64, data: &[u8]) {
        if let Some(commands) = self.init.write(offset, data) {
            command_queue::execute(&mut self.function, &*self.memory, commands);
        }
    }
}

fn check_bar(offset: u64, count: u64) -> Result<(), Errno> {
    let inside = offset.checked_add(count).is_some_and(|end| end <= BAR_SIZE);
    inside.then_some(()).ok_or(EINVAL)
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn version() -> Vec<u8> {
    let mut payload = vec![0; 4];
    let capabilities = format!(r#"{{"capabilities":{{"max_msg_fds":{MAX_FDS},"max_data_xfer_size":{MAX_TRANSFER}}}}}"#);
    payload.extend(capabilities.bytes());
    payload.push(0);
    payload
}

fn access(offset: u64, region: u32, count: u32) -> Vec<u8> {
    let mut payload = offset.to_le_bytes().to_vec();
    payload.extend(words(&[region, count]));
    payload
}

// The answer of a region with capabilities says how long it is; the capabilities and the file come when the client asks
// again with room for them.
fn region_info(argsz: u32, index: u32) -> Result<Answer, Errno> {
    let info = |argsz, flags, capabilities, size: u64| {
        let mut payload = words(&[argsz, flags, index, capabilities]);
        payload.extend(size.to_le_bytes());
        payload.extend(0u64.to_le_bytes());
        payload
    };
    let both = REGION_READ | REGION_WRITE;
    let payload = match index {
        BAR => {
            let flags = both | REGION_MMAP | REGION_CAPABILITIES;
            info(REGION_INFO + SPARSE_MMAP, flags, REGION_INFO, BAR_SIZE)
        }
        CONFIG => info(REGION_INFO, both, 0, config_space::SIZE as u64),
        _ if index < REGIONS => info(REGION_INFO, 0, 0, 0),
        _ => return Err(EINVAL),
    };
    let mut answer = Answer { payload, ..Answer::default() };
    if index == BAR && argsz >= REGION_INFO + SPARSE_MMAP {
        // Capability 1, version 1, no other; one area.
        answer.payload.extend(words(&[1 << 16 | 1, 0, 1, 0]));
        answer.payload.extend(TRAPPED.to_le_bytes());
        answer.payload.extend((BAR_SIZE - TRAPPED).to_le_bytes());
        answer.with_bar = true;
    }
    Ok(answer)
}

#[cfg(test)]
mod tests;
