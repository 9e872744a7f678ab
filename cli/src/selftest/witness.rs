//! A record of all CQEs, whoever took them.

use std::collections::BTreeMap;
use std::fmt::Write;

use mlx5_wire::cqe::{APP_TAG_MATCHING, Cqe64, CqeFormat};
use mlx5_wire::opcode::CqeOpcode;
use mlx5_wire::signature::is_signed;
use mlx5_wire::text::CqeText;

/// CQEs of a kind that are kept for the report and the bundle.
const KEPT: u32 = 64;
/// Most wrong CQEs that are printed.
const TOLD: usize = 4;

/// Counts of all CQEs, and examples.
#[derive(Default)]
pub struct Witness {
    /// Signatures of the CQEs of each kind.
    pub signatures: BTreeMap<Kind, Signatures>,
    /// The first CQE of each opcode, format and operation of tag matching.
    pub first: BTreeMap<(u8, u8, u8), [u8; 64]>,
    /// The first compressed block of each format: its title and its arrays.
    pub blocks: BTreeMap<&'static str, Vec<[u8; 64]>>,
    /// User index of each queue that completed, by QP and whether it is the send queue.
    users: BTreeMap<(u32, bool), u32>,
    /// CQEs that differ from the first CQE of their queue.
    pub strangers: Vec<String>,
    /// CQEs of each opcode that were kept.
    counts: BTreeMap<u8, u32>,
    /// CQEs for a bundle.
    pub lines: Vec<String>,
    /// WQEs for a bundle.
    pub wqes: Vec<String>,
    /// WQEs of sends that have completed: how many of each opcode, and of each number of blocks.
    pub sends: BTreeMap<u8, BTreeMap<u16, u64>>,
    /// Objects that were made, by their kind.
    pub objects: BTreeMap<&'static str, u32>,
}

/// Kinds of CQEs whose signatures are judged apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Receives that have succeeded.
    Receives,
    /// Requests that have succeeded.
    Requests,
    /// Errors: no other CQEs of adapters were ever published.
    Errors,
    /// Tag matching.
    Tags,
    /// Titles of compressed blocks.
    Titles,
}

impl Kind {
    fn of(cqe: &Cqe64) -> Self {
        match cqe.op_own >> 4 {
            _ if cqe.app == APP_TAG_MATCHING => Self::Tags,
            13 | 14 => Self::Errors,
            0 => Self::Requests,
            _ => Self::Receives,
        }
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Receives => "receives",
            Self::Requests => "requests",
            Self::Errors => "errors",
            Self::Tags => "tag matching",
            Self::Titles => "titles of compressed blocks",
        })
    }
}

/// Whether the rule of signatures, which was seen on CQEs of errors only, holds for messages of this device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// The rule holds: a CQE with another signature was read in part, or at a wrong place.
    Known,
    /// The device signs otherwise, or not at all: signatures say nothing.
    Another,
}

/// CQEs of a kind, and how many of them have another signature than expected.
#[derive(Default)]
pub struct Signatures {
    /// All CQEs of the kind.
    pub seen: u64,
    /// CQEs with another signature.
    pub wrong: u64,
    /// The first of these, in words.
    pub examples: Vec<String>,
}

/// The bytes, in groups of four.
pub fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (at, byte) in bytes.iter().enumerate() {
        let space = if at > 0 && at % 4 == 0 { " " } else { "" };
        let _ = write!(text, "{space}{byte:02x}");
    }
    text
}

/// The bytes without groups.
pub fn plain(bytes: &[u8]) -> String {
    hex(bytes).replace(' ', "")
}

impl Witness {
    /// Notes the CQE at `index` of CQ `cqn`, which has entries of `size` bytes.
    pub fn note(&mut self, cqn: u32, size: usize, index: u32, bytes: &[u8; 64]) {
        let cqe = Cqe64::from_bytes(bytes);
        let opcode = cqe.op_own >> 4;
        self.check(Kind::of(&cqe), cqn, index, bytes);
        let format = CqeFormat::from_op_own(cqe.op_own);
        let tags = cqe.app == APP_TAG_MATCHING;
        let operation = if tags { cqe.app_op } else { 0 };
        self.first.entry((opcode, format as u8, operation)).or_insert(*bytes);
        let requester = matches!(opcode, 0 | 13);
        let responder = CqeOpcode::from_bits(opcode).is_responder() || opcode == 14;
        // CQEs of tag matching have the user index of the SRQ.
        if !tags && (requester || responder) {
            let queue = (cqe.sop_drop_qpn.get() & 0xff_ffff, requester);
            let user = cqe.srqn_uidx.get() & 0xff_ffff;
            let first = *self.users.entry(queue).or_insert(user);
            if first != user && self.strangers.len() < TOLD {
                self.strangers.push(format!("{first:#x} and {user:#x} of QP {:#x}", queue.0));
            }
        }
        let kept = self.counts.entry(opcode).or_default();
        if *kept < KEPT {
            *kept += 1;
            self.lines.push(format!("cqe {cqn:#x} {size} {index:#x} {}", plain(bytes)));
        }
    }

    fn check(&mut self, kind: Kind, cqn: u32, index: u32, bytes: &[u8; 64]) {
        let signatures = self.signatures.entry(kind).or_default();
        signatures.seen += 1;
        if is_signed(bytes, index) {
            return;
        }
        signatures.wrong += 1;
        if signatures.examples.len() < TOLD {
            let what = format!("CQ {cqn:#x}, index {index:#x}: {}: {}", CqeText(bytes), hex(bytes));
            signatures.examples.push(what);
        }
    }

    /// Notes a WQE of a send queue that has completed.
    pub fn note_wqe(&mut self, opcode: u8, blocks: u16) {
        *self.sends.entry(opcode).or_default().entry(blocks).or_default() += 1;
    }

    /// Notes objects that were made.
    pub fn made(&mut self, kind: &'static str, count: u32) {
        *self.objects.entry(kind).or_default() += count;
    }

    /// Notes a compressed block with its title at `index` of CQ `cqn`.
    pub fn note_block(&mut self, format: &'static str, cqn: u32, index: u32, cqes: Vec<[u8; 64]>) {
        self.check(Kind::Titles, cqn, index, &cqes[0]);
        let words: Vec<_> = cqes.iter().map(|cqe| plain(cqe)).collect();
        self.lines.push(format!("block {cqn:#x} {index:#x} {}", words.join(" ")));
        self.blocks.entry(format).or_insert(cqes);
    }

    /// Forgets a destroyed QP: its number may come back.
    pub fn forget(&mut self, qpn: u32) {
        self.users.retain(|(number, _), _| *number != qpn);
    }
}
