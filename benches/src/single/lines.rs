//! The cache lines of data that a piece of work touches. Each of its instructions is decoded, and the registers before
//! it say what it reads or writes in memory. The stack is left out: its lines are in the cache.

use std::collections::BTreeSet;

use iced_x86::{Decoder, DecoderOptions, InstructionInfoFactory, OpAccess, Register, UsedMemory};

use crate::step::{self, Registers};

/// Bytes of a line.
const LINE: u64 = 64;
/// Bytes of the longest instruction.
const LONGEST: usize = 15;
/// Bytes around the stack pointer that are the stack.
const STACK: u64 = 1 << 16;

/// Lines of a piece of work.
pub struct Lines {
    /// All lines.
    pub all: usize,
    /// The lines before [`step::mark`].
    pub to_mark: usize,
}

/// Runs `work`, and returns the lines that it touches.
#[inline(always)]
pub fn count(work: impl FnOnce()) -> Lines {
    let (steps, trace) = step::trace(work);
    let (_, of_counting) = step::trace(step::mark);
    let nothing = lines(&of_counting);
    let count = |trace| lines(trace).difference(&nothing).count();
    Lines { all: count(&trace), to_mark: count(&trace[..steps.to_mark as usize]) }
}

fn lines(trace: &[Registers]) -> BTreeSet<u64> {
    let mut factory = InstructionInfoFactory::new();
    let mut lines = BTreeSet::new();
    for registers in trace {
        let ip = registers[libc::REG_RIP as usize] as u64;
        // SAFETY: code that was executed. It is followed by mapped memory: the end of its section, or the next one.
        let code = unsafe { std::slice::from_raw_parts(ip as *const u8, LONGEST) };
        let instruction = Decoder::with_ip(64, code, ip, DecoderOptions::NONE).decode();
        for used in factory.info(&instruction).used_memory() {
            let address = used.virtual_address(0, |register, _, _| value(registers, register));
            let Some(address) = address.filter(|_| used.access() != OpAccess::NoMemAccess) else { continue };
            let from_stack = address.wrapping_sub(registers[libc::REG_RSP as usize] as u64).wrapping_add(STACK / 2);
            if from_stack > STACK {
                lines.extend(address / LINE..=last(used, address) / LINE);
            }
        }
    }
    lines
}

/// Returns the address of the last byte.
fn last(used: &UsedMemory, address: u64) -> u64 {
    address + (used.memory_size().size() as u64).max(1) - 1
}

fn value(registers: &Registers, register: Register) -> Option<u64> {
    let index = match register.full_register() {
        Register::RAX => libc::REG_RAX,
        Register::RBX => libc::REG_RBX,
        Register::RCX => libc::REG_RCX,
        Register::RDX => libc::REG_RDX,
        Register::RSI => libc::REG_RSI,
        Register::RDI => libc::REG_RDI,
        Register::RBP => libc::REG_RBP,
        Register::RSP => libc::REG_RSP,
        Register::R8 => libc::REG_R8,
        Register::R9 => libc::REG_R9,
        Register::R10 => libc::REG_R10,
        Register::R11 => libc::REG_R11,
        Register::R12 => libc::REG_R12,
        Register::R13 => libc::REG_R13,
        Register::R14 => libc::REG_R14,
        Register::R15 => libc::REG_R15,
        Register::DS | Register::ES | Register::SS | Register::CS => return Some(0),
        // Thread-local memory, whose base is not among the registers.
        _ => return None,
    };
    Some(registers[index as usize] as u64)
}
