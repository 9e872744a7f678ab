//! Send WQEs in a block of bytes.

use mlx5_wire::ctrl::{CQ_UPDATE, ControlSegment, FENCE, SEND_WQE_BB, SMALL_FENCE, SOLICITED};
use mlx5_wire::data::DataSegment;
use mlx5_wire::opcode::WqeOpcode;
use mlx5_wire::remote::RemoteAddressSegment;

use super::hex::{Block, Context};
use super::{Finding, Kind, KnownFields};

/// Bytes of a segment.
const UNIT: usize = 16;
/// Bit of the byte count of inline data.
const INLINE: u32 = 1 << 31;
/// Lines between a CQE and the WQE that is printed with it.
const NEAR: usize = 12;

/// Opcodes that `mlx5_wire` has no constant for, with their names in Linux (`include/linux/mlx5/device.h`) and DPDK.
const OTHERS: [(u8, &str); 8] = [
    (0x0f, "WAIT"),
    (0x18, "BIND_MW"),
    (0x1f, "CONFIG_CMD"),
    (0x21, "GET_PSV"),
    (0x22, "CHECK_PSV"),
    (0x23, "DUMP"),
    (0x29, "ENHANCED_MPSW"),
    (0x2d, "ACCESS_ASO"),
];

/// Returns the name of a WQE's opcode in `mlx5dv.h`, without the prefix.
pub fn opcode_name(opcode: u8) -> Option<&'static str> {
    Some(match WqeOpcode::new(opcode) {
        WqeOpcode::NOP => "NOP",
        WqeOpcode::SEND_INVAL => "SEND_INVAL",
        WqeOpcode::RDMA_WRITE => "RDMA_WRITE",
        WqeOpcode::RDMA_WRITE_IMM => "RDMA_WRITE_IMM",
        WqeOpcode::SEND => "SEND",
        WqeOpcode::SEND_IMM => "SEND_IMM",
        WqeOpcode::TSO => "TSO",
        WqeOpcode::RDMA_READ => "RDMA_READ",
        WqeOpcode::ATOMIC_CS => "ATOMIC_CS",
        WqeOpcode::ATOMIC_FA => "ATOMIC_FA",
        WqeOpcode::ATOMIC_MASKED_CS => "ATOMIC_MASKED_CS",
        WqeOpcode::ATOMIC_MASKED_FA => "ATOMIC_MASKED_FA",
        WqeOpcode::LOCAL_INVAL => "LOCAL_INVAL",
        WqeOpcode::SET_PSV => "SET_PSV",
        WqeOpcode::UMR => "UMR",
        WqeOpcode::TAG_MATCHING => "TAG_MATCHING",
        _ => return OTHERS.iter().find(|other| other.0 == opcode).map(|other| other.1),
    })
}

fn control(bytes: &[u8]) -> Option<ControlSegment> {
    bytes.first_chunk().map(ControlSegment::from_bytes)
}

/// Returns `true` if these bytes begin like a send WQE: opcode, size, flags and reserved bits are legal.
pub fn looks_like_one(bytes: &[u8]) -> bool {
    let Some(ctrl) = control(bytes) else { return false };
    let flags = CQ_UPDATE | SOLICITED | FENCE | SMALL_FENCE | 3 << 2;
    let fits = (1..=bytes.len().div_ceil(UNIT)).contains(&usize::from(ctrl.ds()));
    opcode_name(ctrl.opcode().get()).is_some()
        && fits
        && ctrl.qpn() != 0
        && ctrl.fm_ce_se & !flags == 0
        && bytes.len() % UNIT == 0
        && ctrl.qpn_ds.get() as u8 & 0xc0 == 0
}

/// Returns the opcode that UCX or a driver prints under this name.
pub fn opcode_of(name: &str) -> Option<u8> {
    const UCX: [(&str, u8); 4] = [
        ("COMPARE_SWAP", 0x11),
        ("FETCH_ADD", 0x12),
        ("MASKED_COMPARE_SWAP", 0x14),
        ("MASKED_FETCH_ADD", 0x15),
    ];
    let ucx = UCX.iter().find(|(known, _)| *known == name).map(|known| known.1);
    ucx.or_else(|| (0..=0x2d).find(|&opcode| opcode_name(opcode) == Some(name)))
}

/// Returns the WQEs of a block: one WQE, or the WQEs of a ring.
pub fn decode(block: &Block) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < block.bytes.len() {
        let rest = &block.bytes[at..];
        let mut finding =
            Finding { line: block.line, times: 1, printer: block.printer, ..Finding::default() };
        let is_ring = block.context == Context::SendRing;
        let ds = control(rest).map_or(0, |ctrl| usize::from(ctrl.ds()));
        let len = if is_ring {
            (ds * UNIT).next_multiple_of(SEND_WQE_BB).max(SEND_WQE_BB)
        } else {
            rest.len()
        };
        let wqe = &rest[..len.min(rest.len())];
        if !is_ring || wqe.iter().any(|&byte| byte != 0) {
            if block.context == Context::None {
                finding.notes.push(
                    "taken for a send WQE: its first 16 bytes are a legal control segment".into(),
                );
            }
            if is_ring {
                finding.notes.push(format!("at offset {at:#x} of the ring"));
            }
            one(&mut finding, wqe);
            found.push(finding);
        }
        at += len;
    }
    found
}

fn one(finding: &mut Finding, bytes: &[u8]) {
    finding.kind = Kind::Wqe;
    finding.bytes = bytes.to_vec();
    let Some(ctrl) = control(bytes) else {
        finding.kind = Kind::Unknown;
        finding
            .notes
            .push(format!("{} bytes: too few for the control segment of a WQE", bytes.len()));
        return;
    };
    let opcode = ctrl.opcode().get();
    if ctrl.opmod() != 0 {
        finding.field(0, "opmod", format!("{:#04x}", ctrl.opmod()));
    }
    finding.field(1, "wqe_index", format!("{:#06x}", ctrl.index()));
    let field = finding.field(3, "opcode", format!("{opcode:#04x}"));
    field.means(opcode_name(opcode).unwrap_or("no name in mlx5dv.h"));
    finding.field(4, "QP number", format!("{:#x}", ctrl.qpn()));
    let ds = usize::from(ctrl.ds());
    let field = finding.field(7, "ds", format!("{ds}"));
    field.means(format!("{} bytes", ds * UNIT));
    let flags = ctrl.fm_ce_se;
    let names: Vec<&str> = [
        (flags & CQ_UPDATE != 0, "CQE wanted"),
        (flags & SOLICITED != 0, "solicited"),
        (flags & FENCE != 0, "fence"),
        (flags & SMALL_FENCE != 0, "small fence"),
    ]
    .iter()
    .filter_map(|(set, name)| set.then_some(*name))
    .collect();
    finding.field(11, "fm_ce_se", format!("{flags:#04x}")).means(names.join(", "));
    if ctrl.imm.get() != 0 {
        let field = finding.field(12, "imm", format!("{:#010x}", ctrl.imm.get()));
        field.means(if opcode == WqeOpcode::UMR.get() {
            "key that is changed"
        } else {
            "immediate data or invalidated key"
        });
    }
    if ds * UNIT > bytes.len() {
        finding.notes.push(format!(
            "the WQE has {} bytes, of which {} are here",
            ds * UNIT,
            bytes.len()
        ));
    }
    let end = (ds * UNIT).min(bytes.len());
    segments(finding, WqeOpcode::new(opcode), bytes.get(UNIT..end).unwrap_or_default());
    finding.facts = KnownFields {
        qpn: Some(ctrl.qpn()),
        wqe_counter: Some(ctrl.index()),
        opcode: Some(opcode),
        ..KnownFields::default()
    };
}

fn segments(finding: &mut Finding, opcode: WqeOpcode, bytes: &[u8]) {
    let mut units =
        bytes.chunks_exact(UNIT).enumerate().map(|(number, unit)| (UNIT * (number + 1), unit));
    let remote =
        matches!(opcode, WqeOpcode::RDMA_WRITE | WqeOpcode::RDMA_WRITE_IMM | WqeOpcode::RDMA_READ)
            || matches!(opcode, WqeOpcode::ATOMIC_CS | WqeOpcode::ATOMIC_FA);
    if remote {
        if let Some((at, unit)) = units.next() {
            let segment = RemoteAddressSegment::from_bytes(unit.try_into().expect("16 bytes"));
            finding
                .field(at, "raddr", format!("{:#x}", segment.raddr.get()))
                .means("address at the peer");
            finding.field(at + 8, "rkey", format!("{:#x}", segment.rkey.get()));
        }
    }
    if matches!(opcode, WqeOpcode::ATOMIC_CS | WqeOpcode::ATOMIC_FA) {
        if let Some((at, unit)) = units.next() {
            finding.field(at, "swap_add, compare", super::hex::text(unit));
        }
    }
    let known =
        remote || matches!(opcode, WqeOpcode::SEND | WqeOpcode::SEND_IMM | WqeOpcode::SEND_INVAL);
    let mut raw = 0;
    for (at, unit) in units {
        let segment = DataSegment::from_bytes(unit.try_into().expect("16 bytes"));
        let (len, lkey, addr) = (segment.byte_count.get(), segment.lkey.get(), segment.addr.get());
        if known && raw == 0 && len & INLINE != 0 {
            let field = finding.field(at, "inline data", format!("{} bytes", len & !INLINE));
            field.means(super::hex::text(
                &bytes[at - UNIT + 4..bytes.len().min(at - UNIT + 4 + (len & 0x3ff) as usize)],
            ));
            return;
        }
        if known && len != 0 && lkey != 0 && addr != 0 && addr >> 56 == 0 {
            finding.field(
                at,
                "data segment",
                format!("byte_count {len:#x}, lkey {lkey:#x}, address {addr:#x}"),
            );
        } else {
            raw += 1;
            finding.field(at, "segment", super::hex::text(unit));
        }
    }
    if known && raw > 0 && !remote {
        finding.notes.push(
            "segments that are no data segments: of a datagram the address vector, of Ethernet the Ethernet segment; which of \
             them is not in the WQE"
                .into(),
        );
    }
}

/// Notes the WQE that belongs to a CQE in the lines before it.
pub fn relate(findings: &mut [Finding]) {
    let cqes: Vec<(usize, KnownFields)> = findings
        .iter()
        .filter(|finding| matches!(finding.kind, Kind::ErrorCqe | Kind::PartOfErrorCqe))
        .map(|finding| (finding.line, finding.facts.clone()))
        .collect();
    for wqe in findings.iter_mut().filter(|finding| finding.kind == Kind::Wqe) {
        // Findings are sorted by line.
        let before = cqes.partition_point(|(line, _)| *line < wqe.line);
        let Some((line, cqe)) = before.checked_sub(1).map(|last| &cqes[last]) else { continue };
        if wqe.line - line > NEAR {
            continue;
        }
        let same = (
            cqe.qpn == wqe.facts.qpn,
            cqe.wqe_counter == wqe.facts.wqe_counter,
            cqe.opcode == wqe.facts.opcode,
        );
        wqe.notes.push(match same {
            (true, true, true) => format!("the WQE of the CQE in line {line}: queue, index and opcode are the same"),
            (false, false, _) => format!(
                "not a WQE of the queue that the CQE in line {line} names: something else was written into the ring, and the \
                 adapter took it for a WQE"
            ),
            _ => format!("differs from the CQE in line {line} in queue, index or opcode: another WQE, or it was overwritten"),
        });
    }
}
