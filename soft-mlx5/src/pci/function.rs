//! A PCI function of the device, as every bus drives it.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use super::doorbell::{Assembly, Doorbell};
use crate::base::counters::Injected;
use crate::base::dma::Dma;
use crate::base::faults::Faults;
use crate::commands::refusal::Refusal;
use crate::commands::{CommandEvents, Commands, Interrupts};
use crate::engine::{Nic, NicConfig, PortAddress};
use crate::objects::memory::Space;

/// One PCI function of the device, with the objects that its driver made. A bus gives it memory of the host ([`Dma`])
/// and interrupts ([`Interrupts`]), hands it the commands of the command queue and the doorbells of trapped pages, and
/// lets it work. It knows no bus: tests drive it on byte slices.
#[derive(Debug)]
pub struct Function {
    nic: Nic,
    pub(crate) commands: Commands,
    host: Space,
    interrupts: Box<dyn Interrupts>,
    doorbell: Assembly,
}

impl Function {
    /// Powers the function up and joins its fabric.
    pub fn new(config: NicConfig, dma: Arc<dyn Dma>, interrupts: Box<dyn Interrupts>) -> io::Result<Self> {
        let layer = config.link_layer;
        // SAFETY: all memory that objects of this device name is translated by `dma`, whose contract covers it.
        let mut nic = unsafe { Nic::new(config)? };
        nic.reserve_uar_pages(Commands::BAR_PAGES)?;
        let commands = Commands::new(layer, &nic.port());
        Ok(Self { nic, commands, host: Space::Host(dma), interrupts, doorbell: Assembly::default() })
    }

    /// Executes a command, as [`Commands::execute`], and delivers the events.
    pub fn execute(&mut self, input: &[u8], output: &mut [u8]) {
        self.commands.execute(&mut self.nic, &self.host, input, output);
        self.deliver_events();
    }

    /// Returns the event queue to which commands that are posted now report. Call this before [`Self::execute`].
    pub fn command_events(&self) -> Option<CommandEvents> {
        self.commands.command_events()
    }

    /// Reports commands in these slots as complete, after their outputs and ownership bits were written. Does nothing
    /// if there was no event queue when they were posted, or if that queue is gone.
    pub fn report_commands(&mut self, to: Option<CommandEvents>, slots: u32) {
        self.commands.report_commands(to, slots, &mut *self.interrupts);
    }

    fn deliver_events(&mut self) {
        while let Some(event) = self.nic.next_event() {
            self.commands.report(event, &mut *self.interrupts);
        }
    }

    /// Returns the reason of a refusal, by its syndrome.
    pub fn explain(syndrome: u32) -> Option<&'static Refusal> {
        Commands::explain(syndrome)
    }

    /// Writes to a register of a trapped UAR page. Writes of any size are taken; a doorbell counts when its last byte
    /// is written.
    pub fn write_uar(&mut self, page: u32, offset: usize, bytes: &[u8]) {
        let Self { doorbell, nic, commands, interrupts, .. } = self;
        doorbell.write(page, offset, bytes, |doorbell| match doorbell {
            Doorbell::Queue { offset, bytes } => nic.ring_register(page, offset, bytes),
            Doorbell::EventQueue { word, .. } => commands.consume_events(page, word, &mut **interrupts),
        });
        self.deliver_events();
    }

    /// Returns the memory file of BAR 0, of [`Commands::BAR_PAGES`] pages: page `n` is UAR page `n`. The device polls
    /// it.
    pub fn bar(&self) -> RawFd {
        self.nic.uar_file()
    }

    /// Works for a bounded while at time `now`, in nanoseconds since power-up; returns `false` if there was nothing
    /// to do.
    pub fn step(&mut self, now: u64) -> bool {
        let worked = self.nic.step(now);
        self.deliver_events();
        worked
    }

    /// Returns the time of the next timer; until then only commands, doorbells and packets make work.
    pub fn next_deadline(&self) -> Option<u64> {
        self.nic.next_deadline()
    }

    /// Returns the descriptor that becomes readable when packets from other processes wait.
    pub fn wait_fd(&self) -> Option<RawFd> {
        self.nic.wait_fd()
    }

    /// Returns the faults that the device injected.
    pub fn injected(&self) -> Injected {
        self.nic.counters().injected
    }

    /// Returns the number of objects that the driver has made and not destroyed.
    pub fn objects(&self) -> usize {
        self.commands.objects.len()
    }

    /// Returns `true` if there are queue pairs, so that doorbells may come without a command.
    pub fn has_queue_pairs(&self) -> bool {
        self.nic.has_queue_pairs()
    }

    /// Takes the link down or up, and reports the change.
    pub fn set_link(&mut self, up: bool) {
        self.nic.set_link(up);
        self.deliver_events();
    }

    /// Returns the addresses and state of the port.
    pub fn port(&self) -> PortAddress {
        self.nic.port()
    }

    /// Changes the faults from now on.
    pub fn set_faults(&mut self, faults: Faults) {
        self.nic.set_faults(faults);
    }

    /// Resets the function, as after power-up: all objects are gone, and no memory of the host is touched afterwards.
    pub fn reset(&mut self) {
        self.commands.reset(&mut self.nic, &self.host);
        self.doorbell = Assembly::default();
    }
}
