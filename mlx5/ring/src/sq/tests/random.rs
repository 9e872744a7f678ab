//! Random requests, batches, completions, failures and resets against the model of the device. An encoder of the
//! test's own says what each WQE must be.

use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use std::collections::VecDeque;
use std::vec::Vec;

use mlx5_wire::datagram::DatagramSegment;
use proptest::collection::vec;
use proptest::prelude::*;

use super::super::{Batch, Flags, Immediate, Operation, Payload, PostError, Posting, Progress, Remote, SendQueue};
use super::rig::{QPN, Rig, Wqe};
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
    /// Requests that are written call by call, and then posted or taken back.
    Build(Vec<Request>, bool),
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
        5 => vec(request(), 0..6).prop_map(Step::Post),
        5 => (vec(request(), 0..6), prop::bool::weighted(0.2)).prop_map(|(requests, ends)| Step::Build(requests, ends)),
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

    /// Returns the request as a batch has it: with one kind of payload.
    fn with_one_payload(mut self) -> Self {
        if self.takes_inline() && !self.inline.is_empty() {
            self.lengths.clear();
        } else {
            self.inline.clear();
        }
        self
    }

    /// Writes it to a batch: the payload first, and where a datagram goes to after it.
    fn build(&self, queue: &mut SendQueue<u32>, batch: &mut Batch, data: u32) -> Result<(), PostError> {
        let operation = match self.kind {
            Kind::Send(imm) => Operation::Send(imm.map_or(Immediate::None, Immediate::Data)),
            Kind::SendInvalidate(key) => Operation::Send(Immediate::Invalidate(key)),
            Kind::Write(imm) => Operation::Write(REMOTE, imm),
            Kind::Read => Operation::Read(REMOTE),
            Kind::FetchAdd => Operation::FetchAdd(REMOTE, OPERANDS[0]),
            Kind::CompareSwap => Operation::CompareSwap(REMOTE, OPERANDS),
            Kind::SendTo(imm) => Operation::Datagram(imm),
        };
        let pieces: Vec<&[u8]> = self.inline.iter().map(|piece| &piece[..]).collect();
        // SAFETY: [memory] never touched; the device is a model.
        unsafe {
            if data % 4 == 0 {
                // A request without a payload gives its place to the next one.
                queue.begin(batch, Operation::Read(REMOTE), Flags::NONE, !data)?;
            }
            queue.begin(batch, operation, self.flags(), data)?;
            match self.kind {
                Kind::FetchAdd | Kind::CompareSwap => queue.set_sge(batch, Sge { addr: 8, length: 8, lkey: 9 }),
                _ if self.takes_inline() && !pieces.is_empty() => {
                    let len = self.inline.iter().map(Vec::len).sum::<usize>();
                    queue.set_inline(batch, pieces.iter(), len as u32)?;
                }
                _ => match self.sges()[..] {
                    [sge] if sge.length != 0 => match self.kind {
                        Kind::SendTo(_) => queue.set_datagram_sge(batch, sge)?,
                        _ => queue.set_sge(batch, sge),
                    },
                    ref sges => queue.set_sges(batch, sges)?,
                },
            }
            if let Kind::SendTo(_) = self.kind {
                queue.set_address(batch, NonNull::from(&DatagramSegment::infiniband(7, 2)), 0x99, 0x8000_0001);
            }
        }
        Ok(())
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
    /// Takes CQEs, if it may be another thread than the one that posts.
    progress: Option<Progress<u32>>,
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

    /// Takes back the blocks of what is over.
    fn free_retired(&mut self) {
        if let Some(progress) = &self.progress {
            // SAFETY: it is that of this queue.
            unsafe { self.rig.queue.free_retired(progress) }
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
        self.ring(&posted);
    }

    /// Posts requests in a batch, or writes them and takes them back; a batch is taken back when one is refused.
    fn build(&mut self, requests: &[Request], is_aborted: bool) {
        let (mut posted, mut wqes) = (Vec::new(), Vec::new());
        let (mut index, mut free) = (self.index, self.rig.queue.free_blocks() as usize);
        let mut batch = self.rig.queue.batch();
        for request in requests {
            let request = request.clone().with_one_payload();
            let wqe = request.wqe(index);
            let blocks = wqe.len().div_ceil(64);
            // The payload comes after the request has its first block.
            let expected = if free == 0 { Err(PostError::Full) } else { self.expected(&request, blocks, free) };
            let answer = request.build(&mut self.rig.queue, &mut batch, self.next + posted.len() as u32);
            assert_eq!(answer, expected, "{request:?}");
            if answer.is_err() {
                return self.ring(&[]);
            }
            free -= blocks;
            index = index.wrapping_add(blocks as u16);
            posted.push(self.next + posted.len() as u32);
            wqes.push(wqe);
        }
        if is_aborted {
            return self.ring(&[]);
        }
        // SAFETY: as in `Request::build`.
        let _late = ManuallyDrop::new(unsafe { self.rig.queue.commit(&batch) });
        (self.index, self.next) = (index, self.next + posted.len() as u32);
        self.outstanding.extend(posted);
        self.ring(&wqes);
    }

    /// Rings the doorbell, after which the device must find these WQEs.
    fn ring(&mut self, posted: &[Vec<Option<u8>>]) {
        if let Some(progress) = &self.progress {
            progress.note_posted(self.rig.queue.posted());
        }
        drop(self.rig.queue.posting());
        let known = self.rig.device.queue.len();
        assert_eq!(self.rig.device.look(), posted.len());
        for (wqe, expected) in self.rig.device.queue.iter().skip(known).zip(posted) {
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
            let Wqe { index, blocks, .. } = self.rig.device.queue.drain(..=at).next_back().expect("a WQE");
            if let Some(progress) = &self.progress {
                // SAFETY: the storage is the rig's, and there is one thread.
                let complete = |counter| unsafe { progress.complete(counter) };
                assert!(blocks == 1 || complete(index.wrapping_add(1)).is_none(), "the middle of a WQE");
                assert_eq!(complete(index), self.outstanding.drain(..=at).next_back());
                assert_eq!(complete(index), None, "a CQE that came twice");
                continue;
            }
            let back = self.rig.complete(index).expect("an outstanding WQE");
            assert_eq!(back.len(), at + 1);
            for data in back {
                assert_eq!(Some(data), self.outstanding.pop_front());
            }
        }
        self.free_retired();
        let blocks: u32 = self.rig.device.queue.iter().map(|wqe| wqe.blocks).sum();
        assert_eq!(self.rig.queue.free_blocks() + blocks, self.rig.queue.capacity());
    }

    fn reset(&mut self) {
        let mut back = Vec::new();
        // SAFETY: the device is a model.
        unsafe { self.rig.queue.reset(|data| back.push(data)) }
        if let Some(progress) = &self.progress {
            // SAFETY: the queue was reset, and there is one thread.
            unsafe { progress.reset() }
        }
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
        is_shared: bool,
        steps in vec(step(), 1..60),
    ) {
        let count = 1 << log;
        let rig = Rig::new(count, max_blocks);
        let max_blocks = max_blocks.min(count) as usize;
        let outstanding = VecDeque::new();
        let mut model = Model { rig, progress: None, max_blocks, outstanding, next: 0, index: start as u16 };
        model.rig.start_at(start, 0);
        model.progress = is_shared.then(|| model.rig.queue.progress());
        for step in &steps {
            match step {
                Step::Post(requests) => model.post(requests),
                Step::Build(requests, is_aborted) => model.build(requests, *is_aborted),
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
