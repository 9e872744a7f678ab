//! The firmware of the adapter: commands as bytes, for drivers that stand on a bus.
//!
//! [`Function`] is one PCI function of the device. A bus gives it memory of the host ([`Dma`]) and interrupts
//! ([`Interrupts`]), hands it the commands of the command queue and the doorbells of trapped pages, and lets it
//! work. It knows no bus: tests drive it on byte slices.
//!
//! `opcodes` is the table of commands; it checks lengths and the state of the function. One module per object does
//! the rest, `objects` keeps numbers, owners and references, `refusal` lists the reasons of refusals.

pub(crate) mod capabilities;
mod cq;
mod domain;
mod doorbell;
mod eq;
mod flow;
mod frames;
mod hca;
mod host;
pub(crate) mod limits;
mod memory;
mod mkey;
mod objects;
mod opcodes;
mod qp;
pub mod refusal;
mod register;
mod srq;
mod stage;
mod vport;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use mlx5_wire::firmware::capabilities::{GROUP, GROUP_SIZE};
use mlx5_wire::firmware::command::{Opcode, Reply, Request};

use self::doorbell::{Assembly, Doorbell};
pub use self::eq::CommandEvents;
use self::eq::EventQueues;
use self::hca::Hca;
pub use self::host::Interrupts;
use self::objects::{Id, Kind, Objects};
use self::opcodes::Command;
use self::refusal::Refusal;
use self::vport::Vport;
use crate::base::counters::Injected;
pub use crate::base::dma::{Access, Dma, Piece};
use crate::base::faults::Faults;
use crate::engine::{Nic, NicConfig, PortAddress};
use crate::fabric::LinkLayer;
use crate::objects::{Cqn, Mkey, Pdn, Qpn, Srqn, Tirn, Wqn};

/// One PCI function of the device, with the objects that its driver made.
#[derive(Debug)]
pub struct Function {
    nic: Nic,
    layer: LinkLayer,
    dma: Arc<dyn Dma>,
    interrupts: Box<dyn Interrupts>,
    doorbell: Assembly,
    hca: Hca,
    objects: Objects,
    eqs: EventQueues,
    vport: Vport,
    // Numbers of flow entries, by table and place.
    flow_entries: BTreeMap<(u32, u32), u32>,
}

impl Function {
    /// Pages of 4096 bytes of BAR 0. The first page of UAR is page 16; the pages before belong to the init segment.
    pub const BAR_PAGES: u32 = 2048;
    /// First UAR page: the first ALLOC_UAR returns it, so a driver's kernel rings there.
    pub const FIRST_UAR: u32 = 0x10;
    /// MSI-X vectors.
    pub const VECTORS: u32 = 16;
    /// Firmware version, major, minor and sub-minor.
    pub const VERSION: [u16; 3] = self::capabilities::FW_VERSION;

    const CAPABILITIES: usize = GROUP + GROUP_SIZE;

    /// Powers the function up and joins its fabric.
    pub fn new(config: NicConfig, dma: Arc<dyn Dma>, interrupts: Box<dyn Interrupts>) -> io::Result<Self> {
        let layer = config.link_layer;
        // SAFETY: all memory that objects of this device name is translated by `dma`, whose contract covers it.
        let mut nic = unsafe { Nic::new(config)? };
        nic.reserve_uar_pages(Self::BAR_PAGES)?;
        let vport = Vport::new(&nic.port());
        Ok(Self {
            nic,
            layer,
            dma,
            interrupts,
            doorbell: Assembly::default(),
            hca: Hca::new(layer),
            objects: Objects::default(),
            eqs: EventQueues::default(),
            vport,
            flow_entries: BTreeMap::new(),
        })
    }

    /// Executes a command. `output` is as long as the driver allows, and gets the answer or the refusal, with zeros in
    /// the rest.
    pub fn execute(&mut self, input: &[u8], output: &mut [u8]) {
        output.fill(0);
        let done = self.run(input, output);
        let mut reply = Reply::ZERO;
        if let Err(refusal) = done {
            output.fill(0);
            reply = Reply { status: refusal.status as u8, syndrome: refusal.syndrome };
        }
        let head = reply.to_bytes();
        let len = head.len().min(output.len());
        output[..len].copy_from_slice(&head[..len]);
        self.deliver_events();
    }

    fn run(&mut self, input: &[u8], output: &mut [u8]) -> opcodes::Result {
        let request = Request::from_prefix(input).ok_or(Refusal::INPUT_LENGTH)?;
        let entry = opcodes::find(Opcode(request.opcode)).ok_or(Refusal::UNKNOWN_COMMAND)?;
        if input.len() < entry.input {
            return Err(Refusal::INPUT_LENGTH);
        }
        if output.len() < entry.output {
            return Err(Refusal::OUTPUT_LENGTH);
        }
        if self.hca.stage < entry.stage {
            return Err(Refusal::STATE);
        }
        let user = Id(Kind::User, request.uid.into());
        let known = matches!(request.uid, 0 | objects::SHARED_UID);
        if !known && self.objects.find(user, 0).is_err() {
            return Err(Refusal::NO_USER);
        }
        (entry.run)(self, &Command { request, input }, output)
    }

    /// Returns the reason of a refusal, by its syndrome.
    pub fn explain(syndrome: u32) -> Option<&'static Refusal> {
        Refusal::ALL.iter().find(|refusal| refusal.syndrome == syndrome)
    }

    /// Writes to a register of a trapped UAR page. Writes of any size are taken; a doorbell counts when its last byte
    /// is written.
    pub fn write_uar(&mut self, page: u32, offset: usize, bytes: &[u8]) {
        let Self { doorbell, nic, eqs, interrupts, .. } = self;
        doorbell.write(page, offset, bytes, |doorbell| match doorbell {
            Doorbell::Queue { offset, bytes } => nic.ring_register(page, offset, bytes),
            Doorbell::EventQueue { word, .. } => eqs.consume(page, word, &mut **interrupts),
        });
        self.deliver_events();
    }

    /// Returns the memory file of BAR 0, of [`Self::BAR_PAGES`] pages: page `n` is UAR page `n`. The device polls it.
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
        self.objects.len()
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
        self.destroy_all();
        self.hca = Hca::new(self.layer);
        self.vport = Vport::new(&self.nic.port());
        self.nic.gids().forget();
        self.doorbell = Assembly::default();
    }

    /// Destroys all objects, users before what they use.
    fn destroy_all(&mut self) {
        while let Some(id) = self.objects.unused() {
            // The registry knows no users, so the device has none either.
            let _ = self.end(id);
            self.objects.remove(id);
        }
        while self.nic.next_event().is_some() {}
    }

    /// Destroys an object on the command of its owner, unless others refer to it.
    fn destroy(&mut self, kind: Kind, command: &Command) -> opcodes::Result {
        let id = Id(kind, command.number()?);
        self.objects.check_unused(id, command.uid())?;
        self.end(id)?;
        self.objects.remove(id);
        Ok(())
    }

    /// Ends what the device has of an object.
    fn end(&mut self, Id(kind, number): Id) -> opcodes::Result {
        match kind {
            Kind::Pd => self.nic.dealloc_pd(Pdn(number))?,
            Kind::Mkey => self.nic.destroy_mkey(Mkey(self.key_of(number)))?,
            Kind::Cq => self.nic.destroy_cq(Cqn(number))?,
            Kind::Qp | Kind::Sq => self.nic.destroy_qp(Qpn(number))?,
            Kind::Rq => self.nic.destroy_wq(Wqn(number))?,
            Kind::Tir => self.nic.destroy_tir(Tirn(number))?,
            Kind::FlowTable | Kind::FlowEntry => self.end_flow(Id(kind, number)),
            Kind::Rmp | Kind::XrcSrq => self.nic.destroy_srq(Srqn(number))?,
            Kind::Eq => self.eqs.remove(number as u8),
            _ => {}
        }
        Ok(())
    }
}
