//! doorbell's receiver of frames.

use doorbell::frames::{FlowRule, FrameReceiver};

use super::{Subject, unexpected};
use crate::sum::Sum;

pub(super) struct Frames {
    pub(super) receiver: FrameReceiver,
    pub(super) _rule: FlowRule,
}

impl Subject for Frames {
    fn cycle(&mut self, count: u32, batch: u32) -> Sum {
        let mut sum = Sum::default();
        for _ in 0..count / batch {
            let mut frames = self.receiver.poll_up_to(batch);
            while let Some(frame) = frames.next() {
                let Ok(frame) = frame else { unexpected() };
                sum.add(1, frame.len() as u64);
            }
        }
        sum
    }

    fn ids(&self, count: u32, _: u64) -> u64 {
        count.into()
    }
}
