//! The command queue: entries and mailboxes in the driver's memory.

use std::sync::atomic::{Ordering, fence};

use super::Function;
use super::init_segment::{Commands, LOG_ENTRIES};
use crate::base::dma::{Access, Dma};
use crate::base::guard::{self, Unit, Unmapped};

const ENTRY: usize = 64;
const INLINE: usize = 16;
const TYPE: usize = 0;
const INPUT_LENGTH: usize = 4;
const INPUT_MAILBOX: usize = 8;
const INPUT: usize = 0x10;
const OUTPUT: usize = 0x20;
const OUTPUT_MAILBOX: usize = 0x30;
const OUTPUT_LENGTH: usize = 0x38;
const STATUS_OWN: usize = 0x3f;
const PCI_COMMAND: u8 = 7;

// Layout of a mailbox block.
const BLOCK: usize = 576;
const BLOCK_DATA: usize = 512;
const BLOCK_NEXT: usize = 0x230;
const BLOCK_NUMBER: usize = 0x238;
const BLOCK_ALIGNMENT: u64 = 0x1ff;

/// Longest command: page lists of 8 GiB in pages of 4 KiB.
const LONGEST: usize = 16 << 20;

/// Why a command did not reach the firmware, or its output not the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Undelivered {
    BlockNumber = 3,
    OutputPointer = 4,
    InputPointer = 5,
    InputLength = 7,
    OutputLength = 8,
    Descriptor = 0x10,
}

/// Executes the posted commands.
pub fn execute(function: &mut Function, dma: &dyn Dma, commands: Commands) {
    for slot in (0..1u32 << LOG_ENTRIES).filter(|slot| commands.slots >> slot & 1 != 0) {
        let entry = commands.queue.wrapping_add(u64::from(slot) * ENTRY as u64);
        // The driver polls for commands that it posts before there is an event queue for them.
        let events = function.command_events();
        if execute_entry(function, dma, entry) == Ok(true) {
            function.report_commands(events, 1 << slot);
        }
    }
}

// Returns `false` if the entry is the driver's.
fn execute_entry(function: &mut Function, dma: &dyn Dma, at: u64) -> Result<bool, Unmapped> {
    let mut entry = [0; ENTRY];
    read(dma, at, &mut entry)?;
    if entry[STATUS_OWN] & 1 == 0 {
        return Ok(false);
    }
    fence(Ordering::Acquire);
    let status = match deliver(function, dma, at, &entry) {
        Ok(()) => 0,
        Err(undelivered) => (undelivered as u8) << 1,
    };
    // The driver reads the output when it sees the entry in its possession.
    fence(Ordering::Release);
    write(dma, at.wrapping_add(STATUS_OWN as u64), &[status])?;
    Ok(true)
}

fn deliver(function: &mut Function, dma: &dyn Dma, at: u64, entry: &[u8; ENTRY]) -> Result<(), Undelivered> {
    if entry[TYPE] != PCI_COMMAND {
        return Err(Undelivered::Descriptor);
    }
    let input = collect(dma, entry)?;
    let length = word(entry, OUTPUT_LENGTH) as usize;
    if length > LONGEST {
        return Err(Undelivered::OutputLength);
    }
    let mut output = vec![0; length];
    function.execute(&input, &mut output);
    distribute(dma, at, entry, &output)
}

/// Returns the input of a command: the bytes in the entry, and those of its mailboxes.
fn collect(dma: &dyn Dma, entry: &[u8; ENTRY]) -> Result<Vec<u8>, Undelivered> {
    let length = word(entry, INPUT_LENGTH) as usize;
    if length > LONGEST {
        return Err(Undelivered::InputLength);
    }
    let mut input = entry[INPUT..INPUT + length.min(INLINE)].to_vec();
    let (mut next, mut number) = (address(entry, INPUT_MAILBOX), 0);
    while input.len() < length {
        if next & BLOCK_ALIGNMENT != 0 {
            return Err(Undelivered::InputPointer);
        }
        let mut block = [0; BLOCK];
        read(dma, next, &mut block).map_err(|Unmapped| Undelivered::InputPointer)?;
        if word(&block, BLOCK_NUMBER) != number {
            return Err(Undelivered::BlockNumber);
        }
        input.extend(&block[..BLOCK_DATA.min(length - input.len())]);
        (next, number) = (address(&block, BLOCK_NEXT), number + 1);
    }
    Ok(input)
}

/// Writes the output of a command to the entry at `at` and to its mailboxes.
fn distribute(dma: &dyn Dma, at: u64, entry: &[u8; ENTRY], output: &[u8]) -> Result<(), Undelivered> {
    let lost = |Unmapped| Undelivered::OutputPointer;
    let (first, rest) = output.split_at(output.len().min(INLINE));
    let mut inline = [0; INLINE];
    inline[..first.len()].copy_from_slice(first);
    write(dma, at.wrapping_add(OUTPUT as u64), &inline).map_err(lost)?;
    let mut next = address(entry, OUTPUT_MAILBOX);
    for part in rest.chunks(BLOCK_DATA) {
        if next == 0 {
            return Err(Undelivered::OutputLength);
        }
        if next & BLOCK_ALIGNMENT != 0 {
            return Err(Undelivered::OutputPointer);
        }
        write(dma, next, part).map_err(lost)?;
        let mut pointer = [0; 8];
        read(dma, next.wrapping_add(BLOCK_NEXT as u64), &mut pointer).map_err(lost)?;
        next = u64::from_be_bytes(pointer);
    }
    Ok(())
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().copied().map_or(0, u32::from_be_bytes)
}

fn address(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().copied().map_or(0, u64::from_be_bytes)
}

fn read(dma: &dyn Dma, address: u64, to: &mut [u8]) -> Result<(), Unmapped> {
    let mut done = 0;
    while done < to.len() {
        let at = address.checked_add(done as u64).ok_or(Unmapped)?;
        let piece = dma.translate(at, Access::Read).ok_or(Unmapped)?;
        let count = piece.len.min((to.len() - done) as u64) as usize;
        let place = to[done..].as_mut_ptr() as u64;
        // SAFETY: `count` bytes from `done` on are inside of `to`, which is borrowed exclusively.
        unsafe { guard::copy(place, piece.address, count, Unit::Byte)? };
        done += count;
    }
    Ok(())
}

fn write(dma: &dyn Dma, address: u64, from: &[u8]) -> Result<(), Unmapped> {
    let mut done = 0;
    while done < from.len() {
        let at = address.checked_add(done as u64).ok_or(Unmapped)?;
        let piece = dma.translate(at, Access::Write).ok_or(Unmapped)?;
        let count = piece.len.min((from.len() - done) as u64) as usize;
        let place = from[done..].as_ptr() as u64;
        // SAFETY: `count` bytes of the piece belong to the host, which allows writes (contract of `Dma`).
        unsafe { guard::copy(piece.address, place, count, Unit::Byte)? };
        done += count;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
