//! Fields of CQEs and WQEs, as mlx5-wire reads them.

use mlx5_wire::cqe::{Cqe64, ErrorCqe};
use mlx5_wire::opcode::CqeOpcode;
use mlx5_wire::syndrome::Syndrome;
use mlx5_wire::text::{CqeText, Meaning, Value, WqeText};

use super::{Field, Finding, Kind, KnownFields};

/// Bytes of a CQE.
pub const SIZE: usize = Cqe64::SIZE;
/// Bytes of the end of an error CQE that say what failed.
pub const TAIL: usize = 16;

/// Returns `true` if these bytes end like a CQE of an error.
pub fn is_error(entry: &[u8]) -> bool {
    let Some(tail) = entry.last_chunk::<12>() else { return false };
    let opcode = CqeOpcode::from_bits(tail[11] >> 4);
    matches!(opcode, CqeOpcode::RequesterError | CqeOpcode::ResponderError)
        && tail[11] & 0xc == 0
        && Syndrome::new(tail[3]).names().is_some()
}

/// Names in a table, where they differ from those in a line.
const TITLES: [(&str, &str); 6] = [
    ("qp", "QP number"),
    ("wqe_opcode", "opcode of the WQE"),
    ("source_qp", "source QP"),
    ("reserved", "reserved bytes"),
    ("inline", "inline data"),
    ("data", "data segment"),
];

fn field(field: mlx5_wire::text::Field<'_>) -> Field {
    let title = TITLES.iter().find(|title| title.0 == field.name);
    let meaning = Meaning(field).to_string();
    Field {
        offset: Some(field.offset),
        name: title.map_or(field.name, |title| title.1),
        value: field.value.to_string(),
        meaning: (!meaning.is_empty()).then_some(meaning),
    }
}

/// Returns a field of a CQE that was read from words.
pub fn of_words(name: &'static str, value: Value<'_>) -> Field {
    Field { offset: None, ..field(mlx5_wire::text::Field { offset: 0, name, value, note: "" }) }
}

/// Adds the fields of a CQE, of which `first_byte` is the first that is known.
pub fn cqe(finding: &mut Finding, bytes: &[u8; SIZE], first_byte: usize) {
    CqeText(bytes).fields(&mut |read| {
        if read.offset >= first_byte {
            finding.fields.push(field(read));
        }
    });
    let error = ErrorCqe::from_bytes(bytes);
    let requester = match CqeOpcode::from_bits(error.op_own >> 4) {
        CqeOpcode::RequesterError => true,
        CqeOpcode::ResponderError => false,
        _ => {
            finding.kind = Kind::Cqe;
            finding.facts.qpn = Some(error.qpn());
            finding.facts.wqe_counter = Some(error.wqe_counter.get());
            return;
        }
    };
    finding.facts = KnownFields {
        syndrome: Some(error.syndrome),
        vendor: Some(error.vendor_err_synd),
        qpn: Some(error.qpn()),
        wqe_counter: Some(error.wqe_counter.get()),
        opcode: requester.then_some(error.send_opcode()),
        ci: None,
    };
}

/// Adds the fields of a WQE.
pub fn wqe(finding: &mut Finding, wqe: WqeText<'_>) {
    wqe.fields(&mut |read| finding.fields.push(field(read)));
}
