//! The firmware of the adapter: commands as bytes, for drivers that stand on a bus.
//!
//! [`Commands`] is what the firmware knows. Its owner has the adapter, gives memory of the host (`Space`) with each
//! command, and delivers events afterwards: a PCI function through event queues and [`Interrupts`].
//!
//! `opcodes` is the table of commands; it checks lengths and the state of the function. One module per object does
//! the rest, `objects` keeps numbers, owners and references, `refusal` lists the reasons of refusals.

pub(crate) mod capabilities;
mod contexts;
mod cq;
mod dct;
mod domain;
mod eq;
mod flow;
pub(crate) mod frames;
mod hca;
mod host;
pub(crate) mod limits;
mod memory;
mod mkey;
pub(crate) mod objects;
pub(crate) mod opcodes;
mod qp;
pub mod refusal;
mod register;
mod srq;
pub(crate) mod stage;
mod umem;
mod vport;

use std::collections::BTreeMap;

use mlx5_wire::firmware::command::{Opcode, Reply, Request};

pub use self::eq::CommandEvents;
use self::eq::EventQueues;
use self::hca::Hca;
pub use self::host::Interrupts;
use self::objects::{Entry, Id, Kind, Objects};
use self::opcodes::Command;
use self::refusal::Refusal;
use self::vport::Vport;
use crate::engine::{Nic, PortAddress};
use crate::fabric::LinkLayer;
use crate::objects::memory::Space;
use crate::objects::{Cqn, Pdn, Qpn, Srqn, Tirn, Wqn};

/// State of the firmware: objects, and the settings of the driver.
#[derive(Debug)]
pub struct Commands {
    layer: LinkLayer,
    hca: Hca,
    pub(crate) objects: Objects,
    eqs: EventQueues,
    vport: Vport,
    // Numbers of flow entries, by table and place.
    flow_entries: BTreeMap<(u32, u32), u32>,
}

impl Commands {
    /// Pages of 4096 bytes of BAR 0. The first page of UAR is page 16; the pages before belong to the init segment.
    pub const BAR_PAGES: u32 = 2048;
    /// First UAR page: the first ALLOC_UAR returns it, so a driver's kernel rings there.
    pub const FIRST_UAR: u32 = 0x10;
    /// MSI-X vectors.
    pub const VECTORS: u32 = 16;
    /// Firmware version, major, minor and sub-minor.
    pub const VERSION: [u16; 3] = self::capabilities::FW_VERSION;

    /// Returns the state after power-up.
    pub fn new(layer: LinkLayer, port: &PortAddress) -> Self {
        Self {
            layer,
            hca: Hca::new(layer),
            objects: Objects::default(),
            eqs: EventQueues::default(),
            vport: Vport::new(port),
            flow_entries: BTreeMap::new(),
        }
    }

    /// Returns the state that the kernel of a process finds: initialized, with an event queue for each completion
    /// vector, which all users may name.
    pub fn of_process(layer: LinkLayer, port: &PortAddress, vectors: u32) -> Self {
        let mut commands = Self::new(layer, port);
        commands.hca = Hca::of_process(layer);
        commands.objects = Objects::of_process();
        for _ in 0..vectors {
            let entry = Entry { uid: objects::SHARED_UID, ..Entry::default() };
            // A machine with more vectors than event queues shares the last one.
            let _ = commands.objects.insert_new(Kind::Eq, entry);
        }
        commands
    }

    /// Returns the number of the event queue of a completion vector in a process.
    pub fn eqn(&self, vector: u32) -> u32 {
        let queues = self.objects.count(Kind::Eq) as u32;
        Objects::FIRST_EQ + vector.min(queues.saturating_sub(1))
    }

    /// Executes a command on an adapter, whose queues lie in memory of `host`. A process has no page lists: the memory
    /// of its queues are UMEMs. `output` is as long as the driver allows, and gets the answer or the refusal, with
    /// zeros in the rest.
    pub fn execute(&mut self, nic: &mut Nic, host: &Space, input: &[u8], output: &mut [u8]) {
        output.fill(0);
        let done = Execution { nic, host, state: self }.run(input, output);
        let mut reply = Reply::ZERO;
        if let Err(refusal) = done {
            output.fill(0);
            reply = Reply { status: refusal.status as u8, syndrome: refusal.syndrome };
        }
        let head = reply.to_bytes();
        let len = head.len().min(output.len());
        output[..len].copy_from_slice(&head[..len]);
    }

    /// Returns the reason of a refusal, by its syndrome.
    pub fn explain(syndrome: u32) -> Option<&'static Refusal> {
        Refusal::ALL.iter().find(|refusal| refusal.syndrome == syndrome)
    }

    /// Goes back to the state after power-up: all objects are gone, and no memory of the host is touched afterwards.
    pub fn reset(&mut self, nic: &mut Nic, host: &Space) {
        Execution { nic, host, state: self }.reset();
    }
}

/// A command in execution.
pub(crate) struct Execution<'a> {
    nic: &'a mut Nic,
    host: &'a Space,
    state: &'a mut Commands,
}

impl Execution<'_> {
    fn run(&mut self, input: &[u8], output: &mut [u8]) -> opcodes::Result {
        let request = Request::from_prefix(input).ok_or(Refusal::INPUT_LENGTH)?;
        let entry = opcodes::find(Opcode(request.opcode)).ok_or(Refusal::UNKNOWN_COMMAND)?;
        if input.len() < entry.input {
            return Err(Refusal::INPUT_LENGTH);
        }
        if output.len() < entry.output {
            return Err(Refusal::OUTPUT_LENGTH);
        }
        if self.state.hca.stage < entry.stage {
            return Err(Refusal::STATE);
        }
        let user = Id(Kind::User, request.uid.into());
        let known = matches!(request.uid, 0 | objects::SHARED_UID);
        if !known && self.state.objects.find(user, 0).is_err() {
            return Err(Refusal::NO_USER);
        }
        (entry.run)(self, &Command { request, input }, output)
    }

    fn reset(&mut self) {
        self.destroy_all();
        *self.state = Commands::new(self.state.layer, &self.nic.port());
        self.nic.gids().forget();
    }

    /// Destroys all objects, users before what they use.
    fn destroy_all(&mut self) {
        while let Some(id) = self.state.objects.unused() {
            // The registry knows no users, so the device has none either.
            let _ = self.end(id);
            self.state.objects.remove(id);
        }
        while self.nic.next_event().is_some() {}
    }

    /// Destroys an object on the command of its owner, unless others refer to it.
    fn destroy(&mut self, kind: Kind, command: &Command) -> opcodes::Result {
        let id = Id(kind, command.number()?);
        self.state.objects.check_unused(id, command.uid())?;
        self.end(id)?;
        self.state.objects.remove(id);
        Ok(())
    }

    /// Ends what the device has of an object.
    fn end(&mut self, Id(kind, number): Id) -> opcodes::Result {
        match kind {
            Kind::Pd => self.nic.dealloc_pd(Pdn(number))?,
            Kind::Mkey => self.nic.destroy_mkey_index(number)?,
            Kind::Cq => self.nic.destroy_cq(Cqn(number))?,
            Kind::Qp | Kind::Dct | Kind::Sq => self.nic.destroy_qp(Qpn(number))?,
            Kind::Rq => self.nic.destroy_wq(Wqn(number))?,
            Kind::Tir => self.nic.destroy_tir(Tirn(number))?,
            Kind::FlowTable | Kind::FlowEntry => self.end_flow(Id(kind, number)),
            Kind::Rmp | Kind::XrcSrq | Kind::Xrq => self.nic.destroy_srq(Srqn(number))?,
            Kind::Eq => self.state.eqs.remove(number as u8),
            Kind::Counters => self.nic.end_counters(number as u8),
            _ => {}
        }
        Ok(())
    }
}
