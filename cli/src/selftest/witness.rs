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
    /// CQEs seen.
    pub seen: u64,
    /// CQEs with a wrong signature for their index.
    pub wrong: u64,
    /// The first of these, in words.
    pub examples: Vec<String>,
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
        self.seen += 1;
        if !is_signed(bytes, index) {
            self.wrong += 1;
            if self.examples.len() < TOLD {
                let text = CqeText(bytes);
                let what = format!("CQ {cqn:#x}, index {index:#x}: {text}: {}", hex(bytes));
                self.examples.push(what);
            }
        }
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

    /// Notes a compressed block with its title at `index` of CQ `cqn`.
    pub fn note_block(&mut self, format: &'static str, cqn: u32, index: u32, cqes: Vec<[u8; 64]>) {
        self.seen += 1;
        if !is_signed(&cqes[0], index) {
            self.wrong += 1;
            if self.examples.len() < TOLD {
                let title = hex(&cqes[0]);
                self.examples.push(format!("title of a block at index {index:#x}: {title}"));
            }
        }
        let words: Vec<_> = cqes.iter().map(|cqe| plain(cqe)).collect();
        self.lines.push(format!("block {cqn:#x} {index:#x} {}", words.join(" ")));
        self.blocks.entry(format).or_insert(cqes);
    }

    /// Forgets a destroyed QP: its number may come back.
    pub fn forget(&mut self, qpn: u32) {
        self.users.retain(|(number, _), _| *number != qpn);
    }
}
