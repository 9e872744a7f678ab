//! Event queues: events of the device become entries and interrupts.

use std::collections::{BTreeMap, VecDeque};

use mlx5_wire::firmware::eq::{
    CommandData, CqErrorData, CreateEq, DctData, EqContext, Eqe, PortData, QueryEqReply, QueueData, event,
};

use super::capabilities::GENERAL;
use super::host::Interrupts;
use super::memory::QueueMemory;
use super::objects::{Entry, Id, Kind};
use super::opcodes::{Command, Result, answer, created};
use super::refusal::Refusal;
use super::{Commands, Execution};
use crate::objects::Event;
use crate::objects::memory::{Span, Unmapped};

/// Number of an event queue that reports commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandEvents(u8);

const WRITE_FAILURE: u8 = 10;
const COUNTER: u32 = 0xff_ffff;

/// An event queue.
#[derive(Debug)]
struct EventQueue {
    ring: Span,
    log_size: u32,
    vector: u32,
    uar: u32,
    mask: u64,
    produced: u32,
    // Entries that the driver has taken; unknown until the driver rings where the device hears it.
    consumed: Option<u32>,
    // Entries that wait for room, each once.
    waiting: VecDeque<[u8; Eqe::SIZE]>,
    failed: bool,
}

impl EventQueue {
    fn is_full(&self) -> bool {
        self.consumed.is_some_and(|consumed| self.produced.wrapping_sub(consumed) & COUNTER >= 1 << self.log_size)
    }

    fn push(&mut self, eqe: Eqe, interrupts: &mut dyn Interrupts) {
        let bytes = eqe.to_bytes();
        if !self.is_full() {
            self.write(bytes, interrupts);
        } else if !self.waiting.contains(&bytes) {
            // An event that waits already is news enough: it tells the driver to look at the same object.
            self.waiting.push_back(bytes);
        }
    }

    fn write(&mut self, mut bytes: [u8; Eqe::SIZE], interrupts: &mut dyn Interrupts) {
        if self.failed {
            return;
        }
        let slot = self.produced & ((1 << self.log_size) - 1);
        bytes[Eqe::SIZE - 1] = (self.produced >> self.log_size & 1) as u8;
        match self.store(slot as usize * Eqe::SIZE, &bytes) {
            Ok(()) => {
                self.produced = self.produced.wrapping_add(1);
                interrupts.raise(self.vector);
            }
            Err(Unmapped) => self.failed = true,
        }
    }

    // Stores the entry, the word with the owner bit last.
    fn store(&self, at: usize, bytes: &[u8; Eqe::SIZE]) -> std::result::Result<(), Unmapped> {
        let (body, last) = bytes.split_at(Eqe::SIZE - 8);
        self.ring.write(at, body)?;
        let mut word = [0; 8];
        word.copy_from_slice(last);
        self.ring.publish(at + body.len(), word)
    }
}

/// The event queues of a function.
#[derive(Debug, Default)]
pub struct EventQueues {
    queues: BTreeMap<u8, EventQueue>,
}

impl EventQueues {
    /// Forgets a queue.
    pub fn remove(&mut self, number: u8) {
        self.queues.remove(&number);
    }

    /// Takes a doorbell of a page: the driver has taken entries. Every entry raises an interrupt, armed or not.
    pub fn consume(&mut self, page: u32, word: u32, interrupts: &mut dyn Interrupts) {
        let Some(queue) = self.queues.get_mut(&((word >> 24) as u8)) else { return };
        if queue.uar != page {
            return;
        }
        queue.consumed = Some(word & COUNTER);
        while !queue.is_full() {
            let Some(bytes) = queue.waiting.pop_front() else { return };
            queue.write(bytes, interrupts);
        }
    }

    /// Puts an event into one queue.
    fn push(&mut self, number: u8, eqe: Eqe, interrupts: &mut dyn Interrupts) {
        if let Some(queue) = self.queues.get_mut(&number) {
            queue.push(eqe, interrupts);
        }
    }

    /// Puts an event into the queues that take its type.
    fn push_all(&mut self, eqe: Eqe, interrupts: &mut dyn Interrupts) {
        for queue in self.queues.values_mut().filter(|queue| queue.mask >> eqe.event & 1 != 0) {
            queue.push(eqe, interrupts);
        }
    }
}

fn of_queue(kind: u8, queue_type: u8, number: u32) -> Eqe {
    let data = QueueData { queue_type, number }.to_bytes();
    Eqe { event: kind, data, ..Eqe::ZERO }
}

impl Commands {
    /// Returns the event queue to which commands that are posted now report. Call this before the commands are
    /// executed.
    pub fn command_events(&self) -> Option<CommandEvents> {
        let takes = |queue: &EventQueue| queue.mask >> event::COMMAND & 1 != 0;
        let found = self.eqs.queues.iter().find(|(_, queue)| takes(queue));
        found.map(|(number, _)| CommandEvents(*number))
    }

    /// Reports commands in these slots as complete, after their outputs and ownership bits were written. Does nothing
    /// if there was no event queue when they were posted, or if that queue is gone.
    pub fn report_commands(&mut self, to: Option<CommandEvents>, slots: u32, interrupts: &mut dyn Interrupts) {
        let Some(CommandEvents(number)) = to else { return };
        let data = CommandData { slots }.to_bytes();
        let eqe = Eqe { event: event::COMMAND, data, ..Eqe::ZERO };
        self.eqs.push(number, eqe, interrupts);
    }

    /// Takes a doorbell of an event queue: the driver has taken entries. Every entry raises an interrupt, armed or not.
    pub fn consume_events(&mut self, page: u32, word: u32, interrupts: &mut dyn Interrupts) {
        self.eqs.consume(page, word, interrupts);
    }

    /// Turns an event of the device into entries.
    pub fn report(&mut self, happened: Event, interrupts: &mut dyn Interrupts) {
        let (source, eqe) = self.entry_of(&happened);
        if eqe.event != event::COMPLETION {
            return self.eqs.push_all(eqe, interrupts);
        }
        let Some(cq) = source.and_then(|Id(kind, number)| self.objects.get(kind, number)) else { return };
        let eqn = Execution::eqn_of(&cq.context);
        self.eqs.push(eqn, eqe, interrupts);
    }

    /// Returns the object that an event is about, unless it is about the device as a whole, and the entry that reports
    /// the event.
    pub fn entry_of(&self, happened: &Event) -> (Option<Id>, Eqe) {
        const QP: u8 = 0;
        const RQ: u8 = 1;
        const SQ: u8 = 2;
        const OTHER: u8 = 0;
        let first = |kinds: &[Kind], number| {
            let made = |kind: &Kind| self.objects.get(*kind, number).is_some();
            kinds.iter().copied().find(made).unwrap_or(kinds[0])
        };
        let of_qp = |event, number: u32| match first(&[Kind::Qp, Kind::Sq], number) {
            Kind::Sq => (Id(Kind::Sq, number), of_queue(event, SQ, number)),
            kind => (Id(kind, number), of_queue(event, QP, number)),
        };
        let of_srq = |event, number: u32| {
            (Id(first(&[Kind::Rmp, Kind::XrcSrq, Kind::Xrq], number), number), of_queue(event, OTHER, number))
        };
        let of_dct = |event, dctn| {
            let data = DctData { dctn }.to_bytes();
            (Id(Kind::Dct, dctn), Eqe { event, data, ..Eqe::ZERO })
        };
        let (source, eqe) = match *happened {
            Event::Completion(cqn) => (Id(Kind::Cq, cqn.0), of_queue(event::COMPLETION, OTHER, cqn.0)),
            Event::CqError(cqn) => {
                const OVERRUN: u8 = 1;
                let data = CqErrorData { cqn: cqn.0, syndrome: OVERRUN }.to_bytes();
                (Id(Kind::Cq, cqn.0), Eqe { event: event::CQ_ERROR, data, ..Eqe::ZERO })
            }
            Event::QpFatal(qpn) => of_qp(event::WQ_CATASTROPHIC, qpn.0),
            Event::QpAccessError(qpn) => of_qp(event::WQ_ACCESS_ERROR, qpn.0),
            Event::QpRequestError(qpn) => of_qp(event::WQ_INVALID_REQUEST, qpn.0),
            Event::CommunicationEstablished(qpn) => of_qp(event::COMMUNICATION_ESTABLISHED, qpn.0),
            Event::SqDrained(qpn) => of_qp(event::SQ_DRAINED, qpn.0),
            Event::LastWqe(qpn) => of_qp(event::SRQ_LAST_WQE, qpn.0),
            Event::DctDrained(dctn) => of_dct(event::DCT_DRAINED, dctn.0),
            Event::DctKeyViolation(dctn) => of_dct(event::DCT_KEY_VIOLATION, dctn.0),
            Event::SrqLimit(srqn) => of_srq(event::SRQ_LIMIT, srqn.0),
            Event::SrqError(srqn) => of_srq(event::SRQ_CATASTROPHIC, srqn.0),
            Event::WqFatal(wqn) => (Id(Kind::Rq, wqn.0), of_queue(event::WQ_CATASTROPHIC, RQ, wqn.0)),
            Event::Port { up } => {
                let sub_type = if up { event::PORT_ACTIVE } else { event::PORT_DOWN };
                let data = PortData { port: 1 }.to_bytes();
                return (None, Eqe { event: event::PORT_CHANGE, sub_type, data, ..Eqe::ZERO });
            }
            Event::DeviceFatal => return (None, Eqe { event: event::INTERNAL_ERROR, ..Eqe::ZERO }),
        };
        (Some(source), eqe)
    }
}

impl Execution<'_> {
    pub(super) fn create_eq(&mut self, command: &Command, output: &mut [u8]) -> Result {
        let CreateEq { context, event_mask, .. } = command.parse()?;
        if context.log_size > GENERAL.log_max_eq_sz {
            return Err(Refusal::QUEUE_SIZE);
        }
        if u32::from(context.interrupt) >= Commands::VECTORS {
            return Err(Refusal::VECTOR);
        }
        let uar = self.state.objects.check_use(Id(Kind::Uar, context.uar_page), command.uid())?;
        let len = Eqe::SIZE << context.log_size;
        let memory = QueueMemory {
            log_page_size: context.log_page_size,
            page_offset: context.page_offset,
            list: command.after::<CreateEq>(),
            ..QueueMemory::default()
        };
        let found = self.locate(&memory, len as u64, command.uid())?;
        let entry =
            Entry { uid: command.uid(), uses: vec![uar], context: context.to_bytes().to_vec(), ..Entry::default() };
        let number = self.state.objects.insert_new(Kind::Eq, entry)?;
        let queue = EventQueue {
            ring: Span::of(&found.spaces.ring, found.ring, len),
            log_size: context.log_size.into(),
            vector: context.interrupt.into(),
            uar: context.uar_page,
            mask: event_mask,
            produced: 0,
            consumed: None,
            waiting: VecDeque::new(),
            failed: false,
        };
        self.state.eqs.queues.insert(number as u8, queue);
        created(output, number)
    }

    pub(super) fn query_eq(&mut self, command: &Command, output: &mut [u8]) -> Result {
        let number = command.number()?;
        let entry = self.state.objects.find(Id(Kind::Eq, number), command.uid())?;
        let context = EqContext::from_prefix(&entry.context).ok_or(Refusal::NO_OBJECT)?;
        let queue = self.state.eqs.queues.get(&(number as u8)).ok_or(Refusal::NO_OBJECT)?;
        answer(
            output,
            QueryEqReply {
                context: EqContext {
                    status: if queue.failed { WRITE_FAILURE } else { 0 },
                    consumer_counter: queue.consumed.unwrap_or(0),
                    producer_counter: queue.produced,
                    ..context
                },
                event_mask: queue.mask,
            },
        )
    }
}
