//! Random operations against the model of MPI: a list of receives, walked in order for each message.
//!
//! Which receive a message of one sender meets does not depend on when either is posted or arrives: the
//! oldest receive takes the oldest message that matches it, and so on. So the model walks over all receives
//! and all messages afterwards. A receive that was cancelled is as if it had never been.

use std::collections::{BTreeMap, VecDeque};

use doorbell::tags::{CancelError, Offload, ReceiveId, TagEvent, TagFailure, TaggedBuffer};
use doorbell_tests::{
    assert_matches, device,
    receiving::wait,
    tags::{ALL, SHAPE, Shape, Side, pair, ways},
};
use fastrand::Rng;

#[derive(Debug)]
struct Posted {
    tag: u64,
    mask: u64,
    end: Option<End>,
}

#[derive(Debug, PartialEq, Eq)]
enum End {
    Message(u64),
    Cancelled,
}

struct Run {
    near: Side,
    far: Side,
    random: Rng,
    receives: Vec<Posted>,
    /// Receives that are not over, and whether they are being cancelled.
    open: BTreeMap<usize, (ReceiveId, bool)>,
    /// Tags of the messages, by their numbers.
    messages: Vec<u64>,
    matched: usize,
    late: usize,
    by_library: usize,
    markers: usize,
    /// Eager messages that the device of the receiver has not acknowledged.
    under_way: usize,
}

impl Run {
    fn new(way: Offload, shape: &Shape, seed: u64) -> Self {
        let (near, far) = pair(way, shape);
        Self {
            near,
            far,
            random: Rng::with_seed(seed),
            receives: Vec::new(),
            open: BTreeMap::new(),
            messages: Vec::new(),
            matched: 0,
            late: 0,
            by_library: 0,
            markers: 0,
            under_way: 0,
        }
    }

    fn post(&mut self, tag: u64, mask: u64) {
        let Some(buffer) = self.near.pool.take() else { return };
        match self.near.tags.post(tag, mask, buffer) {
            Ok(id) => {
                self.open.insert(self.receives.len(), (id, false));
                self.receives.push(Posted { tag, mask, end: None });
            }
            Err(error) => assert_eq!(error.reason, TagFailure::ListFull),
        }
    }

    fn post_some(&mut self) {
        // Tags of two digits; a wildcard leaves one of them out, or both.
        let mask = [ALL, ALL, ALL, 0xff, !0xff, 0][self.random.u64(..6) as usize];
        let tag = (self.random.u64(..3) << 8 | self.random.u64(..3)) & mask;
        self.post(tag, mask);
    }

    fn cancel_some(&mut self) {
        let at = self.random.u64(..self.open.len().max(1) as u64) as usize;
        let Some((_, (id, cancelling))) = self.open.iter_mut().nth(at) else { return };
        match self.near.tags.cancel(*id) {
            Ok(()) => assert!(!std::mem::replace(cancelling, true)),
            Err(CancelError::Cancelling) => assert!(*cancelling),
            // The event of the receive waits.
            Err(error) => assert_matches!(error, CancelError::Over | CancelError::Matched),
        }
    }

    fn send_some(&mut self) {
        if self.near.tags.unexpected() > 100 {
            return;
        }
        let tag = self.random.u64(..3) << 8 | self.random.u64(..3);
        let number = self.messages.len() as u64;
        let long = self.random.u64(..8) == 0;
        let len = 8 + self.random.u64(..if long { 8000 } else { 100 }) as usize;
        let payload: Vec<u8> =
            number.to_be_bytes().into_iter().chain((8..len).map(|i| (i as u64 * number) as u8)).collect();
        let context = number as u32;
        let peer = self.far.peers[0];
        let sent = if self.random.u64(..4) == 0 {
            let Some(mut buffer) = self.far.readable.take() else { return };
            buffer.extend_from_slice(&payload);
            self.far.tags.send_rendezvous(peer, tag, context, buffer).is_ok()
        } else {
            let Some(buffer) = self.far.pool.take() else { return };
            let mut message = TaggedBuffer::new(buffer).unwrap();
            message.set_len(len);
            message.copy_from_slice(&payload);
            let sent = self.far.tags.send(peer, tag, context, message).is_ok();
            self.under_way += usize::from(sent);
            sent
        };
        if sent {
            self.messages.push(tag);
        }
    }

    fn end(&mut self, id: ReceiveId, end: End) {
        let (&at, _) = self.open.iter().find(|(_, (open, _))| *open == id).expect("an open receive");
        let (_, cancelling) = self.open.remove(&at).unwrap();
        match end {
            End::Cancelled => assert!(cancelling),
            End::Message(_) => {
                self.matched += 1;
                self.late += usize::from(cancelling);
            }
        }
        assert_eq!(self.receives[at].end.replace(end), None);
    }

    fn poll_near(&mut self) -> bool {
        match self.near.tags.next() {
            None => return false,
            Some(TagEvent::Received(got)) => {
                let number = u64::from_be_bytes(got.buffer[..8].try_into().unwrap());
                assert_eq!((got.context, got.tag), (number as u32, self.messages[number as usize]));
                let bytes = got.buffer[8..].iter().zip(8u64..);
                assert!(bytes.clone().all(|(byte, i)| *byte == (i * number) as u8), "{number}");
                self.by_library += usize::from(got.by_library);
                self.end(got.receive, End::Message(number));
            }
            Some(TagEvent::Cancelled { receive, .. }) => self.end(receive, End::Cancelled),
            Some(TagEvent::NoTag { .. }) => self.markers += 1,
            Some(other) => panic!("{other:?}"),
        }
        true
    }

    fn poll_far(&mut self) -> bool {
        match self.far.tags.next() {
            None => false,
            Some(TagEvent::Sent(sent)) => {
                assert!(sent.status.is_success());
                self.under_way -= usize::from(!sent.rendezvous);
                true
            }
            Some(other) => panic!("{other:?}"),
        }
    }

    fn poll_all(&mut self) {
        while self.poll_near() {}
        while self.poll_far() {}
    }

    /// Lets the device get ahead of the program: messages arrive, and the receiver does not poll. Messages without
    /// room arrive only after it polls.
    fn let_messages_arrive(&mut self) {
        for _ in 0..100_000 {
            while self.poll_far() {}
            if self.under_way == 0 {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// Returns how many receives the device and the library have matched.
    const fn matched_by(&self) -> (usize, usize) {
        (self.matched - self.by_library, self.by_library)
    }

    /// Now and then the mood changes: whether receives come before their messages, or after them.
    fn step(&mut self, step: u64) {
        let early = step / 64 % 2 == 0;
        if step % 128 == 0 {
            // Takes the waiting messages, so that later messages can find receives that were there before.
            for _ in 0..self.near.tags.unexpected() {
                self.post(0, 0);
            }
            while self.poll_near() {}
        }
        match self.random.u64(..16) {
            0..=3 if early => self.post_some(),
            0 => self.post_some(),
            4 => self.cancel_some(),
            5..=6 => self.send_some(),
            1..=3 | 7..=8 if !early || self.random.u64(..2) == 0 => self.send_some(),
            9 => {
                self.far.tags.probe(0, 0);
                self.near.tags.synchronize().unwrap();
            }
            1..=3 | 7..=8 | 10 => self.let_messages_arrive(),
            11 => while self.poll_near() {},
            12..=13 => {
                self.poll_near();
            }
            _ => while self.poll_far() {},
        }
        if self.near.tags.unexpected() > 90 {
            self.post(0, 0);
        }
    }

    /// Waits until all that was sent has arrived and been matched.
    fn finish(&mut self) {
        let before = self.markers;
        wait("a marker", || {
            self.poll_all();
            let Some(buffer) = self.far.pool.take() else { return false };
            let message = TaggedBuffer::new(buffer).unwrap();
            let sent = self.far.tags.send_no_tag(self.far.peers[0], message).is_ok();
            self.under_way += usize::from(sent);
            sent
        });
        wait("the marker", || {
            self.poll_all();
            self.markers > before
        });
    }

    fn check(&mut self) {
        // A list, walked in order.
        let mut list: VecDeque<usize> =
            (0..self.receives.len()).filter(|at| self.receives[*at].end != Some(End::Cancelled)).collect();
        let mut expected = BTreeMap::new();
        let mut left = 0;
        for (number, tag) in self.messages.iter().enumerate() {
            let found = list.iter().position(|at| {
                let receive = &self.receives[*at];
                tag & receive.mask == receive.tag
            });
            match found {
                Some(at) => {
                    expected.insert(list.remove(at).unwrap(), number as u64);
                }
                None => left += 1,
            }
        }
        wait("the last data", || {
            self.poll_all();
            self.matched == expected.len()
        });
        for (at, receive) in self.receives.iter().enumerate() {
            let number = expected.get(&at).copied();
            match (&receive.end, number) {
                (Some(End::Message(got)), Some(number)) => {
                    assert_eq!(*got, number, "receive {at} of {receive:?}");
                }
                (Some(End::Cancelled) | None, None) => {}
                (end, number) => panic!("receive {at}: {end:?} instead of {number:?}"),
            }
        }
        assert_eq!(self.near.tags.unexpected(), left);
        wait("all FINs", || {
            self.poll_all();
            // Other offers were not taken.
            self.far.tags.offered() <= self.near.tags.unexpected()
        });
    }
}

fn run(way: Offload, shape: &Shape, steps: u64, seed: u64) {
    let seed = number("DOORBELL_TAG_SEED").unwrap_or(seed);
    println!("{way:?}, seed {seed}");
    let mut run = Run::new(way, shape, seed);
    let both = way != Offload::Never && shape.tags >= 10;
    let mut step = 0;
    // How far the device comes in one step depends on the machine: go on until both have matched.
    while step < steps || (both && (run.matched_by().0 == 0 || run.matched_by().1 == 0)) {
        run.step(step);
        step += 1;
        assert!(step < 100 * steps, "(device, library) matched {:?}", run.matched_by());
    }
    run.finish();
    // Cancel the other receives, so that the model knows which receives count.
    for (id, cancelling) in run.open.values_mut() {
        if !*cancelling && run.near.tags.cancel(*id).is_ok() {
            *cancelling = true;
        }
    }
    wait("the end of all receives", || {
        run.poll_all();
        run.open.is_empty()
    });
    run.check();
    let Run { messages, receives, matched, late, by_library, .. } = &run;
    println!(
        "{way:?}, {steps} steps: {} messages, {} receives, {matched} matched, {by_library} of them by \
         the library, {late} while they were being cancelled",
        messages.len(),
        receives.len(),
    );
    assert!(*matched > 0);
}

/// The number in a variable of the environment.
fn number(variable: &str) -> Option<u64> {
    Some(std::env::var(variable).ok()?.parse().expect("a number"))
}

/// The second list is so short that its entries are reused all the time, and it is often full.
#[test]
fn random_operations_match_as_a_list_walked_in_order() {
    let steps = number("DOORBELL_TAG_STEPS").unwrap_or_else(|| device::share(25_000));
    for way in ways() {
        for (tags, steps, seed) in
            [(SHAPE.tags, steps, 0x1234_5678_9abc_def1), (2, steps / 2, 0x0dd_ba11), (100, steps / 2, 0xfeed_5eed)]
        {
            run(way, &Shape { tags, ..SHAPE }, steps, seed);
        }
    }
}
