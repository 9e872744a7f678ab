//! CQEs and send WQEs as text: the one place that knows how their bytes read.
//!
//! [`CqeText`] and [`WqeText`] print a line of `name=value`, and hand out the fields one by one for a table. Names are
//! those of `mlx5dv.h` where that has one.

mod cqe;
mod wqe;

use core::fmt::{self, Display, Formatter};

pub use cqe::CqeText;
pub use wqe::{Addressing, RingText, WqeText};

use crate::cqe::{CqeFormat, SOLICITED_EVENT};
use crate::ctrl::{CQ_UPDATE, FENCE, SMALL_FENCE, SOLICITED};
use crate::data::DataSegment;
use crate::opcode::{CqeOpcode, WqeOpcode};
use crate::syndrome::Syndrome;
use crate::tm::AppOp;
use crate::vendor;

/// A field of a CQE or WQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<'a> {
    /// Offset in bytes.
    pub offset: usize,
    /// Its name.
    pub name: &'static str,
    /// The number.
    pub value: Value<'a>,
    /// Explanation for a reader; may be empty.
    pub note: &'static str,
}

/// Value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// A count.
    Count(u64),
    /// An index of a queue.
    Index(u16),
    /// A number with at least so many hexadecimal digits.
    Hex(u64, usize),
    /// Opcode of a WQE.
    Opcode(u8),
    /// Opcode, format, solicited event and owner of a CQE.
    OpOwn(u8),
    /// Flags of a control segment.
    Flags(u8),
    /// Operation of tag matching.
    AppOp(u8),
    /// Syndrome of an error.
    Syndrome(u8),
    /// Vendor syndrome of an error, beside a syndrome.
    Vendor(u8, Syndrome),
    /// Bytes.
    Bytes(&'a [u8]),
    /// A data segment.
    Data(DataSegment),
}

/// `name=value`; the name of a number where it has one.
impl Display for Field<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if let Value::OpOwn(byte) = self.value {
            write!(f, "opcode={}", CqeOpcode::from_bits(byte >> 4).name())?;
            let solicited = if byte & SOLICITED_EVENT == 0 { "" } else { " solicited" };
            return match byte >> 2 & 3 {
                0 => f.write_str(solicited),
                format => write!(f, "{solicited} format={format}"),
            };
        }
        write!(f, "{}=", self.name)?;
        match self.value {
            Value::Opcode(opcode) => match WqeOpcode::new(opcode).name() {
                Some(name) => f.write_str(name),
                None => write!(f, "{opcode:#04x}"),
            },
            Value::Flags(byte) => {
                write!(f, "{byte:#04x}")?;
                flags(f, " ", &ctrl_flags(byte))
            }
            Value::Bytes(bytes) => write!(f, "{}:{}", bytes.len(), Hex(bytes)),
            Value::Data(segment) => segment.fmt(f),
            Value::Index(index) => write!(f, "{index}"),
            value => value.fmt(f),
        }
    }
}

/// The number alone.
impl Display for Value<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Count(count) => write!(f, "{count}"),
            Self::Index(index) => write!(f, "{index:#06x}"),
            Self::Hex(number, digits) => write!(f, "{number:#0width$x}", width = digits + 2),
            Self::Opcode(byte) | Self::OpOwn(byte) | Self::Flags(byte) => write!(f, "{byte:#04x}"),
            Self::AppOp(byte) | Self::Syndrome(byte) | Self::Vendor(byte, _) => {
                write!(f, "{byte:#04x}")
            }
            Self::Bytes(bytes) => write!(f, "{} bytes", bytes.len()),
            Self::Data(segment) => {
                let (len, lkey, addr) = (segment.byte_count.get(), segment.lkey.get(), segment.addr.get());
                write!(f, "byte_count {len:#x}, lkey {lkey:#x}, address {addr:#x}")
            }
        }
    }
}

/// The meaning of a field's number; may be empty.
pub struct Meaning<'a>(pub Field<'a>);

impl Display for Meaning<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0.value {
            Value::Opcode(_) if !self.0.note.is_empty() => Ok(()),
            Value::Opcode(opcode) => f.write_str(WqeOpcode::new(opcode).name().unwrap_or("no name in mlx5dv.h")),
            Value::OpOwn(byte) => {
                f.write_str(CqeOpcode::from_bits(byte >> 4).name())?;
                flags(f, ", ", &cqe_flags(byte))?;
                write!(f, ", owner {}", byte & 1)
            }
            Value::Flags(byte) => flags(f, ", ", &ctrl_flags(byte)),
            Value::AppOp(op) => write!(f, "{:?}", AppOp::new(op)),
            Value::Syndrome(syndrome) => match Syndrome::new(syndrome).names() {
                Some(names) => {
                    write!(f, "{}: {} (status {} of verbs)", names.mlx5, names.verbs, names.status)
                }
                None => f.write_str("no name in mlx5dv.h"),
            },
            Value::Vendor(number, syndrome) => match vendor::find(syndrome, number) {
                Some(known) => f.write_str(known.meaning),
                None => f.write_str("unknown with this syndrome"),
            },
            Value::Bytes(bytes) => write!(f, "{}", Hex(bytes)),
            _ => Ok(()),
        }?;
        f.write_str(self.0.note)
    }
}

struct Hex<'a>(&'a [u8]);

impl Display for Hex<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// `address+length lkey=key`.
impl Display for DataSegment {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (addr, len, lkey) = (self.addr.get(), self.byte_count.get(), self.lkey.get());
        write!(f, "{addr:#x}+{len} lkey={lkey:#x}")
    }
}

type Named = (bool, &'static str);

fn ctrl_flags(byte: u8) -> [Named; 4] {
    [
        (byte & CQ_UPDATE != 0, "signaled"),
        (byte & SOLICITED != 0, "solicited"),
        (byte & FENCE != 0, "fence"),
        (byte & SMALL_FENCE != 0, "small fence"),
    ]
}

fn cqe_flags(byte: u8) -> [Named; 6] {
    let (opcode, format) = (CqeOpcode::from_bits(byte >> 4), CqeFormat::from_op_own(byte));
    [
        (opcode == CqeOpcode::RequesterError, "error of a send queue"),
        (opcode == CqeOpcode::ResponderError, "error of a receive queue"),
        (format == CqeFormat::Inline32, "payload in bytes 0 to 31"),
        (format == CqeFormat::Inline64, "payload in the 64 bytes before it"),
        (format == CqeFormat::Compressed, "title of a compressed block"),
        (byte & SOLICITED_EVENT != 0, "solicited"),
    ]
}

fn flags(f: &mut Formatter<'_>, before: &str, flags: &[Named]) -> fmt::Result {
    let mut set = flags.iter().filter(|flag| flag.0);
    set.try_for_each(|(_, name)| write!(f, "{before}{name}"))
}

/// Prints fields as a line; the opcode first.
fn line<'a>(f: &mut Formatter<'_>, fields: impl Fn(&mut dyn FnMut(Field<'a>))) -> fmt::Result {
    let mut done = Ok(());
    for first in [true, false] {
        let mut space = if first { "" } else { " " };
        fields(&mut |field| {
            let is_first = field.name == "op_own" || field.name == "opcode";
            if done.is_ok() && is_first == first {
                done = f.write_str(space).and_then(|()| field.fmt(f));
                space = " ";
            }
        });
    }
    done
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::string::ToString;

    use super::*;

    /// Text comes out for any bytes.
    #[test]
    fn any_bytes() {
        let mut state = 1u32;
        for _ in 0..20_000 {
            let bytes: [u8; 64] = core::array::from_fn(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                // Many zeros: they lead to more branches.
                if state >> 30 == 0 { 0 } else { (state >> 16) as u8 }
            });
            assert!(CqeText(&bytes).to_string().starts_with("opcode="));
            for addressing in [None, Some(Addressing::Datagram), Some(Addressing::Ethernet)] {
                let len = state as usize % 65;
                let wqe = WqeText { bytes: &bytes[..len], addressing };
                assert_eq!(wqe.to_string().starts_with("opcode="), len >= 16);
            }
        }
    }
}
