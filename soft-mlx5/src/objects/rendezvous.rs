//! The send queue of a queue pair with a tag list, which the device posts to as software would.

use std::collections::VecDeque;

use mlx5_wire::ctrl::{ControlSegment, SEND_WQE_BB};
use mlx5_wire::dbrec::SEND;
use mlx5_wire::opcode::WqeOpcode;

use super::completion::Arrival;
use super::memory::{Space, Span};
use super::sq::SendQueue;
use super::{Result, Service, WqAttr};

// Basic blocks of the queue; a rendezvous needs one to read and one to notify.
const BLOCKS: u16 = 64;

/// A message whose data the device reads.
#[derive(Debug, Clone, Copy)]
pub struct Transfer {
    /// Entry of the tag list.
    pub entry: u16,
    /// Properties of the message.
    pub arrival: Arrival,
}

/// The send queue that belongs to the device.
#[derive(Debug)]
pub struct Rendezvous {
    // Kept for the queue, which knows their addresses.
    ring: Box<[u64]>,
    record: Box<[u64; 1]>,
    producer: u16,
    /// Transfers whose data was not read whole, oldest first.
    pub transfers: VecDeque<Transfer>,
}

const OURS: &str = "the memory is the device's own";

impl Rendezvous {
    /// Makes an empty queue.
    pub fn new() -> Self {
        Self {
            ring: vec![0; usize::from(BLOCKS) * SEND_WQE_BB / 8].into_boxed_slice(),
            record: Box::new([0]),
            producer: 0,
            transfers: VecDeque::new(),
        }
    }

    /// Returns the queue for the requester.
    pub fn send_queue(&mut self) -> Result<SendQueue> {
        let buf = self.ring.as_mut_ptr() as u64;
        let attr = WqAttr { buf, count: BLOCKS.into(), shift: 6 };
        SendQueue::new(attr, Service::Rc, &Space::Process, self.record())
    }

    fn record(&mut self) -> Span {
        Span::new(self.record.as_mut_ptr() as u64, 8)
    }

    fn set_producer(&mut self, producer: u16) {
        self.producer = producer;
        self.record().set_record(SEND, producer.into()).expect(OURS);
    }

    /// Returns `true` if another rendezvous can start, where `oldest` is the oldest WQE that is not complete.
    pub fn has_room(&self, oldest: u16) -> bool {
        self.producer.wrapping_sub(oldest) <= BLOCKS - 2
    }

    /// Starts again, as after a reset of the queue pair.
    pub fn reset(&mut self) {
        self.set_producer(0);
    }

    /// Posts a WQE; returns its index and its size in units of 16 bytes.
    pub fn post(&mut self, qpn: u32, opcode: WqeOpcode, flags: u8, segments: &[u8]) -> (u16, u8) {
        let index = self.producer;
        let ds = 1 + segments.len().div_ceil(16) as u8;
        let ctrl = ControlSegment::new(opcode.get(), index, qpn, ds, flags);
        let ring = Span::new(self.ring.as_mut_ptr() as u64, self.ring.len() * 8);
        let at = usize::from(index % BLOCKS) * SEND_WQE_BB;
        ring.write(at, &ctrl.to_bytes()).expect(OURS);
        ring.write(at + ControlSegment::SIZE, segments).expect(OURS);
        self.set_producer(index.wrapping_add(1));
        (index, ds)
    }
}
