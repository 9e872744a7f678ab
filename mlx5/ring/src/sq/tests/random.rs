//! Random requests, batches, completions, failures and resets against the model of the device. An encoder of the
//! test's own says what each WQE must be.

use core::mem::ManuallyDrop;
use std::collections::VecDeque;
use std::vec::Vec;

use mlx5_wire::datagram::DatagramSegment;
use proptest::collection::vec;
use proptest::prelude::*;

use super::super::{Flags, Immediate, Payload, PostError, Posting, Remote};
use super::rig::{QPN, Rig};
use crate::sge::Sge;

#[derive(Clone, Debug)]
enum Kind {
    Send(Option<u32>),
    SendInvalidate(u32),
    Write(Option<u32>),
    Read,
    FetchAdd,
    CompareSwap,
    SendTo(Option<u32>),
}

#[derive(Clone, Debug)]
struct Request {
    kind: Kind,
    inline: Vec<Vec<u8>>,
    lengths: Vec<u32>,
    flags: u8,
}

#[derive(Clone, Debug)]
enum Step {
    Post(Vec<Request>),
    /// The device executes so many WQEs and reports those that asked.
    Execute(usize),
    /// The next WQE fails, and all after it are flushed.
    Fail,
    Reset,
}

fn request() -> impl Strategy<Value = Request> {
    let imm = || any::<Option<u32>>();
    let kind = prop_oneof![
        imm().prop_map(Kind::Send),
        any::<u32>().prop_map(Kind::SendInvalidate),
        imm().prop_map(Kind::Write),
        Just(Kind::Read),
        Just(Kind::FetchAdd),
        Just(Kind::CompareSwap),
        imm().prop_map(Kind::SendTo),
    ];
    let inline = prop_oneof![2 => Just(Vec::new()), 1 => vec(vec(any::<u8>(), 0..90), 1..3)];
    let length = prop_oneof![1 => Just(0u32), 8 => 1..5000u32];
    (kind, inline, vec(length, 0..7), 0..8u8).prop_map(|(kind, inline, lengths, flags)| Request {
        kind,
        inline,
        lengths,
        flags,
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => vec(request(), 0..6).prop_map(Step::Post),
        6 => (0..8usize).prop_map(Step::Execute),
        1 => Just(Step::Fail),
        1 => Just(Step::Reset),
    ]
}

const REMOTE: Remote = Remote { addr: 0x7766_5544_3322_1100, rkey: 0xfedc_ba98 };
const OPERANDS: [u64; 2] = [0x0101_0202_0303_0404, 0x1111_2222_3333_4444];

fn to() -> DatagramSegment {
    DatagramSegment::infiniband(7, 2).to(0x99, 0x8000_0001)
}

impl Request {
    fn flags(&self) -> Flags {
        let bits = [Flags::SIGNALED, Flags::SOLICITED, Flags::FENCE];
        let set = (0..3).filter(|bit| self.flags >> bit & 1 != 0);
        set.fold(Flags::NONE, |flags, bit| flags | bits[bit])
    }

    fn sges(&self) -> Vec<Sge> {
        let sge = |(i, length): (usize, &u32)| Sge {
            addr: 0x10_0000_0000 + i as u64,
            length: *length,
            lkey: 0x500 + i as u32,
        };
        self.lengths.iter().enumerate().map(sge).collect()
    }

    fn takes_inline(&self) -> bool {
        matches!(self.kind, Kind::Send(_) | Kind::SendInvalidate(_) | Kind::Write(_) | Kind::SendTo(_))
    }

    fn post(&self, posting: &mut Posting<'_, u32>, data: u32) -> Result<(), PostError> {
        let (sges, flags) = (self.sges(), self.flags());
        let pieces: Vec<&[u8]> = self.inline.iter().map(|piece| &piece[..]).collect();
        let payload = Payload { sges: &sges, ..Payload::inline(&pieces) };
        let result = Sge { addr: 8, length: 8, lkey: 9 };
        // SAFETY: [memory] never touched; the device is a model.
        unsafe {
            match self.kind {
                Kind::Send(None) => posting.send(payload, Immediate::None, flags, data),
                Kind::Send(Some(imm)) => posting.send(payload, Immediate::Data(imm), flags, data),
                Kind::SendInvalidate(key) => posting.send(payload, Immediate::Invalidate(key), flags, data),
                Kind::Write(imm) => posting.write(REMOTE, payload, imm, flags, data),
                Kind::Read => posting.read(REMOTE, &sges, flags, data),
                Kind::FetchAdd => posting.fetch_add(REMOTE, OPERANDS[0], result, flags, data),
                Kind::CompareSwap => posting.compare_swap(REMOTE, OPERANDS, result, flags, data),
                Kind::SendTo(imm) => posting.send_to(&to(), payload, imm, flags, data),
            }
        }
    }

    /// The WQE at `index`; bytes that are not written are `None`.
    fn wqe(&self, index: u16) -> Vec<Option<u8>> {
        let (opcode, imm) = match self.kind {
            Kind::Send(imm) | Kind::SendTo(imm) => (0x0a + u8::from(imm.is_some()), imm),
            Kind::SendInvalidate(key) => (0x01, Some(key)),
            Kind::Write(imm) => (0x08 + u8::from(imm.is_some()), imm),
            Kind::Read => (0x10, None),
            Kind::CompareSwap => (0x11, None),
            Kind::FetchAdd => (0x12, None),
        };
        let mut body = Vec::new();
        if let Kind::SendTo(_) = self.kind {
            body.extend(to().to_bytes());
        }
        if matches!(self.kind, Kind::Write(_) | Kind::Read | Kind::FetchAdd | Kind::CompareSwap) {
            body.extend(REMOTE.addr.to_be_bytes());
            body.extend(REMOTE.rkey.to_be_bytes());
            body.extend([0; 4]);
        }
        let mut sges = self.sges();
        let [first, second] = OPERANDS.map(u64::to_be_bytes);
        if let Kind::CompareSwap | Kind::FetchAdd = self.kind {
            let swaps = matches!(self.kind, Kind::CompareSwap);
            body.extend(if swaps { second } else { first });
            body.extend(if swaps { first } else { [0; 8] });
            sges = [Sge { addr: 8, length: 8, lkey: 9 }].into();
        }
        let mut body: Vec<_> = body.into_iter().map(Some).collect();
        let inline = self.inline.concat();
        if self.takes_inline() && !inline.is_empty() {
            body.extend((1 << 31 | inline.len() as u32).to_be_bytes().map(Some));
            body.extend(inline.into_iter().map(Some));
            body.resize(body.len().next_multiple_of(16), None);
        }
        for sge in sges.iter().filter(|sge| sge.length != 0) {
            body.extend(sge.length.to_be_bytes().map(Some));
            body.extend(sge.lkey.to_be_bytes().map(Some));
            body.extend(sge.addr.to_be_bytes().map(Some));
        }
        let [upper, lower] = index.to_be_bytes();
        let ds = 1 + body.len() / 16;
        let mut flags = 0;
        for (bit, byte) in [(0, 0x08), (1, 0x02), (2, 0x80)] {
            flags |= if self.flags >> bit & 1 != 0 { byte } else { 0 };
        }
        let mut wqe = std::vec![0, upper, lower, opcode];
        wqe.extend((QPN << 8 | ds as u32).to_be_bytes());
        wqe.extend([0, 0, 0, flags]);
        wqe.extend(imm.unwrap_or(0).to_be_bytes());
        wqe.into_iter().map(Some).chain(body).collect()
    }
}

struct Model {
    rig: Rig,
    max_blocks: usize,
    /// Requests that are posted and not retired, with their data.
    outstanding: VecDeque<u32>,
    next: u32,
    index: u16,
}

impl Model {
    /// Returns the answer to a request whose WQE has `blocks` blocks, while `free` are free.
    fn expected(&self, request: &Request, blocks: usize, free: usize) -> Result<(), PostError> {
        let inline = request.takes_inline() && request.inline.iter().any(|piece| !piece.is_empty());
        match blocks {
            _ if blocks > self.max_blocks && inline => Err(PostError::InlineTooLong),
            _ if blocks > self.max_blocks => Err(PostError::TooLong),
            _ if blocks > free => Err(PostError::Full),
            _ => Ok(()),
        }
    }

    fn post(&mut self, requests: &[Request]) {
        let mut posted = Vec::new();
        let mut free = self.rig.queue.free_blocks() as usize;
        for request in requests {
            let wqe = request.wqe(self.index);
            let blocks = wqe.len().div_ceil(64);
            let expected = self.expected(request, blocks, free);
            let mut posting = ManuallyDrop::new(self.rig.queue.posting());
            let answer = request.post(&mut posting, self.next);
            assert_eq!(answer, expected, "{request:?}");
            if expected.is_ok() {
                free -= blocks;
                self.outstanding.push_back(self.next);
                self.next += 1;
                self.index = self.index.wrapping_add(blocks as u16);
                posted.push(wqe);
            }
        }
        drop(self.rig.queue.posting());
        let known = self.rig.device.queue.len();
        assert_eq!(self.rig.device.look(), posted.len());
        for (wqe, expected) in self.rig.device.queue.iter().skip(known).zip(&posted) {
            assert_eq!(wqe.bytes.len(), expected.len(), "size");
            for (at, (byte, expected)) in wqe.bytes.iter().zip(expected).enumerate() {
                // The queue may ask for a CQE on its own.
                let free = if at == 11 { 0x08 } else { 0 };
                assert!(expected.is_none_or(|expected| expected == byte & !free | expected & free), "byte {at}");
            }
        }
    }

    /// The device executes `most` WQEs and reports those that asked; or each, because the first one has failed.
    fn execute(&mut self, most: usize, failed: bool) {
        let mut left = most.min(self.rig.device.queue.len());
        loop {
            let mut executed = self.rig.device.queue.iter().take(left);
            let Some(at) = executed.position(|wqe| failed || wqe.asks()) else { break };
            left -= at + 1;
            let index = self.rig.device.queue.drain(..=at).next_back().expect("a WQE").index;
            let back = self.rig.complete(index).expect("an outstanding WQE");
            assert_eq!(back.len(), at + 1);
            for data in back {
                assert_eq!(Some(data), self.outstanding.pop_front());
            }
        }
        let blocks: u32 = self.rig.device.queue.iter().map(|wqe| wqe.blocks).sum();
        assert_eq!(self.rig.queue.free_blocks() + blocks, self.rig.queue.capacity());
    }

    fn reset(&mut self) {
        let mut back = Vec::new();
        // SAFETY: the device is a model.
        unsafe { self.rig.queue.reset(|data| back.push(data)) }
        assert_eq!(back, self.outstanding.drain(..).collect::<Vec<_>>());
        self.rig.device.start_at(0);
        self.index = 0;
    }
}

proptest! {
    #[test]
    fn the_device_finds_what_was_posted(
        log in 0..7u32,
        max_blocks in 1..=5u32,
        start in prop_oneof![Just(0u32), 65_530..=65_536u32, 0xffff_fff0u32..=0xffff_ffff],
        steps in vec(step(), 1..60),
    ) {
        let count = 1 << log;
        let rig = Rig::new(count, max_blocks);
        let max_blocks = max_blocks.min(count) as usize;
        let mut model = Model { rig, max_blocks, outstanding: VecDeque::new(), next: 0, index: start as u16 };
        model.rig.start_at(start, 0);
        for step in &steps {
            match step {
                Step::Post(requests) => model.post(requests),
                Step::Execute(most) => model.execute(*most, false),
                Step::Fail => model.execute(usize::MAX, true),
                Step::Reset => model.reset(),
            }
        }
        // Nothing is lost: with no work left all can be had back.
        model.execute(usize::MAX, true);
        prop_assert!(model.outstanding.is_empty() && model.rig.queue.is_empty());
    }
}
