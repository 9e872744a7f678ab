//! CQEs that mean nothing to a queue.

use std::vec::Vec;

use mlx5_wire::cqe::CqeFormat;
use mlx5_wire::opcode::CqeOpcode as Op;

use super::CqeSpec;
use super::queue::{Queue, Ring, on};
use super::rig::{Arrived, Rig, qpn};
use crate::receive::{Completion, ReceiveRing};
use crate::slots::SlotState;

impl Rig {
    /// The device writes, one after the other in the same place, CQEs that mean nothing to a queue: of WQEs that it
    /// does not have, those of held slots included, of a form that this CQ has not, or of no receive. Software has
    /// taken all others; one entry is free.
    pub fn strays(&mut self, queue: usize) {
        let state = |slot| on!(&self.queues[queue].ring, ring => ring.slots().state(slot));
        let posted = |slot| state(slot) == SlotState::Posted;
        let Queue { ring, device } = &self.queues[queue];
        let (slots, posted): (u32, Vec<_>) = (device.slots, (0..device.slots).filter(|&slot| posted(slot)).collect());
        let counters: Vec<u16> = match ring {
            Ring::Srq(_) | Ring::Ordered(_) => posted.iter().map(|&slot| slot as u16).collect(),
            Ring::Rq(rq) => posted
                .iter()
                .map(|&slot| {
                    let last = rq.posted().wrapping_sub(1);
                    last.wrapping_sub(last.wrapping_sub(slot) & (slots - 1)) as u16
                })
                .collect(),
        };
        let first = self.queues[queue].device.seen.wrapping_sub(2 * slots as u16);
        let lap = (0..4 * slots as u16 + 2).map(|i| first.wrapping_add(i));
        let absent = lap.chain(0..slots as u16 + 2).filter(|counter| !counters.contains(counter));
        let ops = [Op::ResponderSend, Op::ResponderSendImm, Op::ResponderError];
        let mut cqes: Vec<_> = absent
            .zip(ops.into_iter().cycle())
            .map(|(counter, op)| (CqeSpec::new(op, counter), Completion::Stray))
            .collect();
        let counter = counters.first().copied().unwrap_or(7);
        for op in [Op::Requester, Op::RequesterError, Op::SignatureError, Op::NoPacket] {
            cqes.push((CqeSpec::new(op, counter), Completion::NotAReceive));
        }
        for op in [Op::ResizeCq, Op::Unknown(7), Op::Unknown(8)] {
            cqes.push((CqeSpec::new(op, counter), Completion::Stray));
        }
        for format in [CqeFormat::Compressed, CqeFormat::Inline64] {
            let impossible = format == CqeFormat::Compressed || self.producer.size == 64;
            if impossible {
                let spec = CqeSpec { format, ..CqeSpec::new(Op::ResponderSend, counter) };
                cqes.push((spec, Completion::Stray));
            }
        }
        let before = (self.cq.clone(), self.producer.clone());
        for (spec, completion) in cqes {
            let spec = CqeSpec { qpn: qpn(queue), byte_count: 1, ..spec };
            (self.state.cq, self.state.producer) = before.clone();
            self.producer.write(&spec);
            self.arrived.push_back(Arrived { queue, spec, completion });
            assert!(self.next());
        }
    }
}
