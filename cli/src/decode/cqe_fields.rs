//! Fields of CQEs, one by one.

use mlx5_wire::cqe::{APP_TAG_MATCHING, Cqe64, CqeFormat, ErrorCqe, SOLICITED_EVENT};
use mlx5_wire::opcode::CqeOpcode;
use mlx5_wire::syndrome::Syndrome;
use mlx5_wire::tm::AppOp;
use mlx5_wire::vendor;

use super::{Finding, Kind, KnownFields, wqe};

/// Bytes of a CQE.
pub const SIZE: usize = Cqe64::SIZE;
/// Bytes of the end of an error CQE that say what failed.
pub const TAIL: usize = 16;

/// Returns the name of a CQE's opcode in `mlx5dv.h`, without the prefix.
pub fn opcode_name(opcode: CqeOpcode) -> &'static str {
    match opcode {
        CqeOpcode::Requester => "REQ",
        CqeOpcode::ResponderWriteImm => "RESP_WR_IMM",
        CqeOpcode::ResponderSend => "RESP_SEND",
        CqeOpcode::ResponderSendImm => "RESP_SEND_IMM",
        CqeOpcode::ResponderSendInv => "RESP_SEND_INV",
        CqeOpcode::ResizeCq => "RESIZE_CQ",
        CqeOpcode::NoPacket => "NO_PACKET",
        CqeOpcode::SignatureError => "SIG_ERR",
        CqeOpcode::RequesterError => "REQ_ERR",
        CqeOpcode::ResponderError => "RESP_ERR",
        CqeOpcode::Invalid => "INVALID",
        CqeOpcode::Unknown(_) => "without a name",
    }
}

/// Adds the fields of an error CQE, of which `first_byte` is the first that is known.
pub fn error(finding: &mut Finding, bytes: &[u8; SIZE], first_byte: usize) {
    let cqe = ErrorCqe::from_bytes(bytes);
    let syndrome = Syndrome::new(cqe.syndrome);
    let requester = bytes[SIZE - 1] >> 4 == CqeOpcode::RequesterError.bits();
    let reserved: Vec<usize> =
        (0..32).chain(36..52).filter(|&at| at >= first_byte && bytes[at] != 0).collect();
    if let (Some(first), Some(last)) = (reserved.first(), reserved.last()) {
        let field = finding.field(
            *first,
            "reserved bytes",
            format!("{} of them are not 0", reserved.len()),
        );
        field.means(format!("up to offset {last:#04x}; an Ethernet receive queue leaves the fields of the packet there"));
    }
    if first_byte <= 32 {
        let uidx = cqe.srqn_uidx.get() & 0xff_ffff;
        let field = finding.field(32, "srqn_uidx", format!("{uidx:#08x}"));
        field.means("number of the SRQ, or the index that the library gave the queue");
    }
    finding.field(52, "hw_err_synd", format!("{:#04x}", cqe.hw_err_synd));
    finding.field(53, "hw_synd_type", format!("{:#04x}", cqe.hw_synd_type));
    let field = finding.field(54, "vendor_err_synd", format!("{:#04x}", cqe.vendor_err_synd));
    match vendor::find(syndrome, cqe.vendor_err_synd) {
        Some(known) => field.means(known.meaning),
        None => field.means("unknown with this syndrome"),
    }
    let field = finding.field(55, "syndrome", format!("{:#04x}", cqe.syndrome));
    match syndrome.names() {
        Some(names) => field
            .means(format!("{}: {} (status {} of verbs)", names.mlx5, names.verbs, names.status)),
        None => field.means("no name in mlx5dv.h"),
    }
    let field = finding.field(56, "opcode of the WQE", format!("{:#04x}", cqe.send_opcode()));
    if requester {
        field.means(wqe::opcode_name(cqe.send_opcode()).unwrap_or("no name in mlx5dv.h"));
    } else {
        field.means("of no meaning for a receive");
    }
    let field = finding.field(57, "QP number", format!("{:#x}", cqe.qpn()));
    if cqe.qpn() == 0 && !requester {
        field.means("0: an Ethernet receive queue does not say it");
    }
    let counter = cqe.wqe_counter.get();
    let field = finding.field(60, "wqe_counter", format!("{counter:#06x}"));
    field.means(if requester {
        "index of the WQE's first basic block"
    } else {
        "index of the receive; of an SRQ its slot"
    });
    finding.field(62, "signature", format!("{:#04x}", cqe.signature));
    op_own(finding, cqe.op_own);
    finding.facts = KnownFields {
        syndrome: Some(cqe.syndrome),
        vendor: Some(cqe.vendor_err_synd),
        qpn: Some(cqe.qpn()),
        wqe_counter: Some(counter),
        opcode: requester.then_some(cqe.send_opcode()),
        ci: None,
    };
}

fn op_own(finding: &mut Finding, byte: u8) {
    let opcode = opcode_name(CqeOpcode::from_bits(byte >> 4));
    let side = match CqeOpcode::from_bits(byte >> 4) {
        CqeOpcode::RequesterError => ", an error of a send queue",
        CqeOpcode::ResponderError => ", an error of a receive queue",
        _ => "",
    };
    let format = match CqeFormat::from_op_own(byte) {
        CqeFormat::Plain => "",
        CqeFormat::Inline32 => ", payload in bytes 0 to 31",
        CqeFormat::Inline64 => ", payload in the 64 bytes before it",
        CqeFormat::Compressed => ", title of a compressed block",
    };
    let solicited = if byte & SOLICITED_EVENT == 0 { "" } else { ", solicited" };
    let field = finding.field(63, "op_own", format!("{byte:#04x}"));
    field.means(format!("{opcode}{side}{format}{solicited}, owner {}", byte & 1));
}

/// Adds the fields of a CQE that is no error.
pub fn good(finding: &mut Finding, bytes: &[u8; SIZE]) {
    finding.kind = Kind::Cqe;
    let cqe = Cqe64::from_bytes(bytes);
    let opcode = cqe.opcode();
    let responder = opcode.is_responder();
    if responder && cqe.format() != CqeFormat::Inline32 {
        finding.field(22, "slid", format!("{:#06x}", cqe.slid.get()));
        let meaning = format!(
            "service level {}{}",
            cqe.sl(),
            if cqe.has_grh() { ", with a GRH" } else { "" }
        );
        finding.field(25, "source QP", format!("{:#x}", cqe.source_qpn())).means(meaning);
    }
    finding.field(32, "srqn_uidx", format!("{:#08x}", cqe.srqn_uidx.get()));
    if cqe.imm_inval_pkey.get() != 0 {
        let field =
            finding.field(36, "imm_inval_pkey", format!("{:#010x}", cqe.imm_inval_pkey.get()));
        field.means("immediate data, invalidated key or partition key");
    }
    if cqe.app == APP_TAG_MATCHING {
        let op = AppOp::new(cqe.app_op);
        finding.field(40, "app", "0x01".into()).means("tag matching");
        finding.field(41, "app_op", format!("{:#04x}", op.get())).means(format!("{op:?}"));
        finding
            .field(42, "app_info", format!("{:#06x}", cqe.app_info.get()))
            .means("entry of the tag list");
    }
    let field = finding.field(44, "byte_cnt", format!("{}", cqe.byte_cnt.get()));
    if cqe.format() == CqeFormat::Compressed {
        field.means("number of CQEs in the block");
    }
    finding.field(48, "timestamp", format!("{:#x}", cqe.timestamp.get()));
    if opcode == CqeOpcode::Requester {
        let field = finding.field(56, "opcode of the WQE", format!("{:#04x}", cqe.send_opcode()));
        field.means(wqe::opcode_name(cqe.send_opcode()).unwrap_or("no name in mlx5dv.h"));
    }
    finding.field(57, "QP number", format!("{:#x}", cqe.qpn()));
    finding.field(60, "wqe_counter", format!("{:#06x}", cqe.wqe_counter.get()));
    finding.field(62, "signature", format!("{:#04x}", cqe.signature));
    op_own(finding, cqe.op_own);
    finding.facts = KnownFields {
        qpn: Some(cqe.qpn()),
        wqe_counter: Some(cqe.wqe_counter.get()),
        ..KnownFields::default()
    };
}
