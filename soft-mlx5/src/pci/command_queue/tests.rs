use std::sync::Arc;

use super::*;
use crate::base::rng::Rng;
use crate::base::test_memory::Pages;
use crate::engine::NicConfig;
use crate::pci::{Interrupts, Piece};

const PAGES: usize = 16;
const SIZE: u64 = PAGES as u64 * 4096;

/// Memory of a host from address 0 on, in pieces of one page.
#[derive(Debug)]
struct Host {
    base: u64,
    _pages: Owned,
}

struct Owned(#[allow(dead_code, reason = "keeps the pages mapped")] Pages);

impl std::fmt::Debug for Owned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Owned")
    }
}

// SAFETY: the pages live as long as the value, and tests reach them through the functions of this module only.
unsafe impl Dma for Host {
    fn translate(&self, address: u64, _: Access) -> Option<Piece> {
        let len = 4096 - address % 4096;
        (address < SIZE).then(|| Piece { address: self.base + address, len })
    }
}

#[derive(Debug)]
struct NoInterrupts;

impl Interrupts for NoInterrupts {
    fn raise(&mut self, _: u32) {}
}

fn world() -> (Function, Arc<Host>) {
    crate::base::guard::signals::install();
    let pages = Pages::new(PAGES);
    let host = Arc::new(Host { base: pages.addr(0), _pages: Owned(pages) });
    let function = Function::new(NicConfig::default(), host.clone(), Box::new(NoInterrupts));
    let mut function = function.unwrap();
    function.execute(&[1, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &mut [0; 16]);
    (function, host)
}

const QUERY_ISSI: u32 = 0x10a << 16;

struct Entry([u8; ENTRY]);

impl Entry {
    fn new(opcode: u32, input: u32, output: u32) -> Self {
        let mut bytes = [0; ENTRY];
        bytes[TYPE] = PCI_COMMAND;
        bytes[STATUS_OWN] = 1;
        let entry = Self(bytes).word(INPUT_LENGTH, input).word(OUTPUT_LENGTH, output);
        entry.word(INPUT, opcode).word(INPUT_MAILBOX + 4, 0x2000).word(OUTPUT_MAILBOX + 4, 0x4000)
    }

    fn word(mut self, at: usize, value: u32) -> Self {
        self.0[at..at + 4].copy_from_slice(&value.to_be_bytes());
        self
    }

    /// Posts the entry in slot 3; returns the entry afterwards.
    fn run(&self, function: &mut Function, host: &Host) -> [u8; ENTRY] {
        let mut after = [0; ENTRY];
        write(host, 0x1000 + 3 * 64, &self.0).unwrap();
        execute(function, host, Commands { queue: 0x1000, slots: 1 << 3 });
        read(host, 0x1000 + 3 * 64, &mut after).unwrap();
        after
    }
}

/// Makes a chain of blocks, each 0x400 after the other.
fn chain(host: &Host, first: u64, count: u32) {
    for number in 0..count {
        let at = first + u64::from(number) * 0x400;
        let next = if number + 1 < count { at + 0x400 } else { 0 };
        write(host, at + BLOCK_NEXT as u64, &next.to_be_bytes()).unwrap();
        write(host, at + BLOCK_NUMBER as u64, &number.to_be_bytes()).unwrap();
    }
}

#[test]
fn an_output_goes_through_the_entry_and_its_mailboxes() {
    let (mut function, host) = world();
    chain(&host, 0x4000, 3);
    write(&*host, 0x4000, &[0xee; 0x200]).unwrap();
    let after = Entry::new(QUERY_ISSI, 16, 0x70).run(&mut function, &host);
    assert_eq!(after[STATUS_OWN], 0, "delivered, and the driver's");
    assert_eq!(after[OUTPUT], 0, "status");
    let mut block = [0; 0x200];
    read(&*host, 0x4000, &mut block).unwrap();
    // Bytes beyond the output stay as they were.
    assert_eq!(block[0x5c..0x61], [0, 0, 0, 2, 0xee]);
}

#[test]
fn an_output_shorter_than_the_entry_holds() {
    let (mut function, host) = world();
    let mut entry = Entry::new(0x105 << 16, 16, 12);
    entry.0[OUTPUT + 12..OUTPUT + 16].fill(0xee);
    let after = entry.run(&mut function, &host);
    assert_eq!((after[STATUS_OWN], &after[OUTPUT..OUTPUT + 16]), (0, &[0; 16][..]));
}

#[test]
fn an_entry_of_the_driver_is_left_alone() {
    let (mut function, host) = world();
    let mut entry = Entry::new(QUERY_ISSI, 16, 16);
    entry.0[STATUS_OWN] = 0;
    assert_eq!(entry.run(&mut function, &host), entry.0);
}

#[test]
fn commands_that_cannot_be_delivered() {
    let (mut function, host) = world();
    chain(&host, 0x2000, 2);
    chain(&host, 0x4000, 1);
    let mut status = |entry: Entry| entry.run(&mut function, &host)[STATUS_OWN];
    let long = || Entry::new(QUERY_ISSI, 16 + 1024, 16);
    assert_eq!(status(long()), 0);
    assert_eq!(status(long().word(INPUT_MAILBOX + 4, 0x2001)), 5 << 1);
    assert_eq!(status(long().word(INPUT_MAILBOX + 4, SIZE as u32)), 5 << 1);
    assert_eq!(status(long().word(INPUT_MAILBOX + 4, 0x2400)), 3 << 1, "second block first");
    assert_eq!(status(long().word(INPUT_LENGTH, u32::MAX)), 7 << 1);
    let output = |length| Entry::new(QUERY_ISSI, 16, length);
    assert_eq!(status(output(u32::MAX)), 8 << 1);
    assert_eq!(status(output(16 + 512)), 0);
    assert_eq!(status(output(16 + 513)), 8 << 1, "one block");
    assert_eq!(status(output(17).word(OUTPUT_MAILBOX + 4, 0x4010)), 4 << 1);
    assert_eq!(status(output(17).word(OUTPUT_MAILBOX, 1)), 4 << 1);
    assert_eq!(status(output(16).word(TYPE, 6 << 24)), 0x10 << 1);
}

#[test]
fn a_queue_outside_of_memory_is_ignored() {
    let (mut function, host) = world();
    for queue in [SIZE, SIZE - 64, u64::MAX - 100, !0xfff] {
        execute(&mut function, &*host, Commands { queue, slots: u32::MAX });
    }
}

#[test]
fn garbage_in_the_queue_and_its_mailboxes_does_no_harm() {
    let (mut function, host) = world();
    let mut rng = Rng::new(47);
    for round in 0..3000 {
        for page in 0..PAGES as u64 {
            let bytes: Vec<u8> = (0..64).map(|_| rng.next_u64() as u8).collect();
            write(&*host, page * 4096 + rng.below(63) * 64, &bytes).unwrap();
        }
        chain(&host, 0x2000, 4);
        let slots = rng.next_u64() as u32;
        for slot in 0..32 {
            let opcode = (rng.below(0xb00) as u32) << 16;
            let (input, output) = (rng.below(2048) as u32, rng.below(4096) as u32);
            let mut entry = Entry::new(opcode, input, output);
            if rng.chance(0.5) {
                let at = rng.below(16) as usize * 4;
                entry = entry.word(at, rng.next_u64() as u32);
            }
            write(&*host, 0x1000 + slot * 64, &entry.0).unwrap();
        }
        execute(&mut function, &*host, Commands { queue: 0x1000, slots });
        function.step(round * 1000);
    }
    function.reset();
}
