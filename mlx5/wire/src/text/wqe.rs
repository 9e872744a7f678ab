//! Send WQEs.

use core::fmt::{self, Display, Formatter};

use super::{Field, Value, line};
use crate::ctrl::{ControlSegment, SEND_WQE_BB, UNIT};
use crate::data::DataSegment;
use crate::datagram::{DatagramSegment, EXTENDED_UD_AV};
use crate::eth::{EthSegment, INLINE_HEADER_START, INSERT_VLAN};
use crate::inline::InlineHeader;
use crate::opcode::WqeOpcode;
use crate::remote::{AtomicSegment, RemoteAddressSegment};
use crate::tm::TagMatchingSegment;

/// Segments between the control segment and the data of a SEND.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addressing {
    /// Nothing: the queue pair is connected.
    Connected,
    /// An address vector.
    Datagram,
    /// An Ethernet segment.
    Ethernet,
    /// The address of a target of dynamic connections, in each WQE with a message.
    Dynamic,
}

/// A send WQE, or as much of one as there is, for printing.
#[derive(Clone, Copy, Debug)]
pub struct WqeText<'a> {
    /// The bytes from its first on.
    pub bytes: &'a [u8],
    /// Kind of the queue pair that it was posted to; the WQE does not say it.
    pub addressing: Option<Addressing>,
}

impl Display for WqeText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        line(f, |each| self.fields(each))
    }
}

impl<'a> WqeText<'a> {
    /// Returns the bytes of the segments behind the control segment, as far as there are any.
    fn segments(&self, ctrl: &ControlSegment) -> &'a [u8] {
        let end = (usize::from(ctrl.ds()) * UNIT).min(self.bytes.len());
        self.bytes.get(UNIT..end).unwrap_or_default()
    }

    /// Returns the bytes of its basic blocks, as `ds` says.
    pub fn size(&self) -> usize {
        let ctrl = self.bytes.first_chunk().map(ControlSegment::from_bytes);
        let ds = ctrl.map_or(0, |ctrl| usize::from(ctrl.ds()));
        (ds * UNIT).next_multiple_of(SEND_WQE_BB).max(SEND_WQE_BB)
    }

    /// Calls `each` for the fields in the order of their offsets; not at all where the control segment is incomplete.
    pub fn fields(&self, each: &mut dyn FnMut(Field<'a>)) {
        let Some(ctrl) = self.bytes.first_chunk().map(ControlSegment::from_bytes) else { return };
        let mut put = |offset, name, value, note| each(Field { offset, name, value, note });
        if ctrl.opmod() != 0 {
            put(0, "opmod", Value::Hex(ctrl.opmod().into(), 2), "");
        }
        put(1, "wqe_index", Value::Index(ctrl.index()), "");
        put(3, "opcode", Value::Opcode(ctrl.opcode().get()), "");
        put(4, "qp", Value::Hex(ctrl.qpn().into(), 0), "");
        put(7, "ds", Value::Count(ctrl.ds().into()), "units of 16 bytes");
        let stream = u16::from_be_bytes(ctrl.dci_stream_channel_id);
        if stream != 0 {
            put(9, "stream", Value::Count(stream.into()), "of an initiator of dynamic connections");
        }
        put(11, "fm_ce_se", Value::Flags(ctrl.fm_ce_se), "");
        if ctrl.imm.get() != 0 {
            let note = match ctrl.opcode() {
                WqeOpcode::UMR => "key that is changed",
                _ => "immediate data or invalidated key",
            };
            put(12, "imm", Value::Hex(ctrl.imm.get().into(), 8), note);
        }
        let data = self.head(&ctrl, &mut put);
        self.data(&ctrl, data, &mut put);
    }

    fn is_message(opcode: WqeOpcode) -> bool {
        let local = [WqeOpcode::NOP, WqeOpcode::UMR, WqeOpcode::TAG_MATCHING];
        !local.contains(&opcode)
    }

    /// Puts the segments before the data; returns the offset of the data, if the opcode has data.
    fn head(
        &self,
        ctrl: &ControlSegment,
        put: &mut impl FnMut(usize, &'static str, Value<'a>, &'static str),
    ) -> Option<usize> {
        let segments = self.segments(ctrl);
        let at = |at: usize| segments.get(at - UNIT..).unwrap_or_default();
        // Other segments follow the address.
        let mut behind = UNIT;
        if self.addressing == Some(Addressing::Dynamic) && Self::is_message(ctrl.opcode()) {
            let unit: &[u8; UNIT] = at(16).first_chunk()?;
            let key = u64::from_be_bytes(*unit.first_chunk()?);
            let number = u32::from_be_bytes([unit[8], unit[9], unit[10], unit[11]]);
            put(16, "dc_access_key", Value::Hex(key, 0), "");
            put(24, "dctn", Value::Hex((number & 0xff_ffff).into(), 0), "");
            put(30, "rlid", Value::Count(u16::from_be_bytes([unit[14], unit[15]]).into()), "");
            behind += if number & EXTENDED_UD_AV != 0 { DatagramSegment::SIZE } else { UNIT };
        }
        match ctrl.opcode() {
            WqeOpcode::TAG_MATCHING => {
                let tm = TagMatchingSegment::from_bytes(at(16).first_chunk()?);
                put(16, "tm_opcode", Value::Count((tm.opcode >> 4).into()), "");
                put(17, "tm_flags", Value::Hex(tm.flags.into(), 2), "");
                put(18, "tm_index", Value::Count(tm.index.get().into()), "");
                put(22, "sw_cnt", Value::Count(tm.sw_cnt.get().into()), "");
                put(32, "append_tag", Value::Hex(tm.append_tag.get(), 0), "");
                put(40, "append_mask", Value::Hex(tm.append_mask.get(), 0), "");
                Some(48)
            }
            WqeOpcode::RDMA_WRITE
            | WqeOpcode::RDMA_WRITE_IMM
            | WqeOpcode::RDMA_READ
            | WqeOpcode::ATOMIC_CS
            | WqeOpcode::ATOMIC_FA => {
                let remote = RemoteAddressSegment::from_bytes(at(behind).first_chunk()?);
                put(behind, "raddr", Value::Hex(remote.raddr.get(), 0), "address at the peer");
                put(behind + 8, "rkey", Value::Hex(remote.rkey.get().into(), 0), "");
                let operands = behind + UNIT;
                if !matches!(ctrl.opcode(), WqeOpcode::ATOMIC_CS | WqeOpcode::ATOMIC_FA) {
                    return Some(operands);
                }
                let atomic = AtomicSegment::from_bytes(at(operands).first_chunk()?);
                put(operands, "swap_add", Value::Hex(atomic.swap_add.get(), 0), "");
                put(operands + 8, "compare", Value::Hex(atomic.compare.get(), 0), "");
                Some(operands + UNIT)
            }
            WqeOpcode::TSO | WqeOpcode::ENHANCED_MPSW => Self::ethernet(at(16), put),
            WqeOpcode::SEND | WqeOpcode::SEND_IMM | WqeOpcode::SEND_INVAL => match self.addressing? {
                Addressing::Connected | Addressing::Dynamic => Some(behind),
                Addressing::Datagram => {
                    let av = DatagramSegment::from_bytes(at(16).first_chunk()?);
                    put(16, "qkey", Value::Hex(av.qkey.get().into(), 0), "");
                    put(24, "dqp", Value::Hex((av.dqp_dct.get() & 0xff_ffff).into(), 0), "");
                    put(30, "rlid", Value::Count(av.rlid.get().into()), "");
                    Some(64)
                }
                Addressing::Ethernet => Self::ethernet(at(16), put),
            },
            _ => None,
        }
    }

    /// Puts an Ethernet segment behind the control segment; returns the offset of the data.
    fn ethernet(segment: &[u8], put: &mut impl FnMut(usize, &'static str, Value<'a>, &'static str)) -> Option<usize> {
        let eth = EthSegment::from_bytes(segment.first_chunk()?);
        let size = eth.inline_hdr_sz.get();
        put(20, "cs_flags", Value::Hex(eth.cs_flags.into(), 2), "");
        if eth.mss.get() != 0 {
            put(22, "mss", Value::Count(eth.mss.get().into()), "bytes of payload in each frame");
        }
        put(28, "inline_hdr_sz", Value::Hex(size.into(), 4), "");
        let len = if size & INSERT_VLAN != 0 { 0 } else { usize::from(size) };
        let beyond = len.saturating_sub(INLINE_HEADER_START);
        Some(32 + beyond.next_multiple_of(UNIT))
    }

    fn data(
        &self,
        ctrl: &ControlSegment,
        data: Option<usize>,
        put: &mut impl FnMut(usize, &'static str, Value<'a>, &'static str),
    ) {
        let segments = self.segments(ctrl);
        let sends = matches!(ctrl.opcode(), WqeOpcode::SEND | WqeOpcode::SEND_IMM | WqeOpcode::SEND_INVAL);
        let mut at = data.unwrap_or(UNIT);
        while let Some(unit) = segments.get(at - UNIT..).filter(|rest| !rest.is_empty()) {
            let segment = unit.first_chunk().map(DataSegment::from_bytes);
            let inline = unit.first_chunk().and_then(|head| InlineHeader::from_bytes(head).count());
            let looks_like_data = |segment: &DataSegment| {
                let (lkey, addr) = (segment.lkey.get(), segment.addr.get());
                segment.byte_count.get() != 0 && lkey != 0 && addr != 0 && addr >> 56 == 0
            };
            match (segment, inline) {
                (_, Some(len)) if data.is_some() || sends => {
                    let bytes = &unit[InlineHeader::SIZE..];
                    let here = &bytes[..bytes.len().min(len as usize)];
                    put(at, "inline", Value::Bytes(here), "");
                    at += (InlineHeader::SIZE + here.len()).next_multiple_of(UNIT);
                    continue;
                }
                (Some(segment), None) if data.is_some() || sends && looks_like_data(&segment) => {
                    put(at, "data", Value::Data(segment), "")
                }
                _ => put(at, "segment", Value::Bytes(&unit[..unit.len().min(UNIT)]), ""),
            }
            at += UNIT;
        }
    }
}

/// The first eight bytes of a control segment, which a register gets, for printing.
#[derive(Clone, Copy, Debug)]
pub struct RingText(pub u64);

impl Display for RingText {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut bytes = [0; UNIT];
        bytes[..8].copy_from_slice(&self.0.to_be_bytes());
        let wqe = WqeText { bytes: &bytes, addressing: None };
        line(f, |each| {
            wqe.fields(&mut |field| {
                if field.offset < 8 {
                    each(field)
                }
            })
        })
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::string::{String, ToString};
    use std::vec::Vec;

    use super::*;
    use crate::be::Be32;
    use crate::ctrl::CQ_UPDATE;

    fn send(opcode: WqeOpcode, addressing: Option<Addressing>, units: &[[u8; 16]]) -> String {
        let mut ctrl = ControlSegment::new(opcode.get(), 7, 0x41, units.len() as u8 + 1, CQ_UPDATE);
        ctrl.imm = Be32::new(0xabc);
        let bytes: Vec<u8> = ctrl.to_bytes().into_iter().chain(units.concat()).collect();
        let text = WqeText { bytes: &bytes, addressing }.to_string();
        let head = std::format!("wqe_index=7 qp=0x41 ds={}", units.len() + 1);
        let rest = text.split_once(&head).unwrap_or_else(|| panic!("{text}"));
        rest.0.to_string() + rest.1.strip_prefix(" fm_ce_se=0x08 signaled imm=0x00000abc").unwrap()
    }

    #[test]
    fn send_wqes() {
        let data = DataSegment::new(0x7000, 64, 0x1001).to_bytes();
        let connected = Some(Addressing::Connected);
        let two = "opcode=SEND_IMM  data=0x7000+64 lkey=0x1001 data=0x7000+64 lkey=0x1001";
        assert_eq!(send(WqeOpcode::SEND_IMM, connected, &[data, data]), two);
        assert_eq!(send(WqeOpcode::SEND_IMM, None, &[data, data]), two);
        let remote =
            RemoteAddressSegment { raddr: 0x9000.into(), rkey: 0x2002.into(), ..RemoteAddressSegment::zeroed() };
        let mut inline = [0xee; 16];
        inline[..7].copy_from_slice(&[0x80, 0, 0, 3, 1, 2, 3]);
        assert_eq!(
            send(WqeOpcode::RDMA_WRITE, None, &[remote.to_bytes(), inline, data]),
            "opcode=RDMA_WRITE  raddr=0x9000 rkey=0x2002 inline=3:010203 data=0x7000+64 lkey=0x1001"
        );
        let atomic = AtomicSegment::compare_swap(5, 6).to_bytes();
        assert_eq!(
            send(WqeOpcode::ATOMIC_CS, connected, &[remote.to_bytes(), atomic, data]),
            "opcode=ATOMIC_CS  raddr=0x9000 rkey=0x2002 swap_add=0x6 compare=0x5 \
             data=0x7000+64 lkey=0x1001"
        );
        assert_eq!(
            send(WqeOpcode::UMR, connected, &[inline]),
            "opcode=UMR  segment=16:80000003010203eeeeeeeeeeeeeeeeee"
        );
        // Too short for what the opcode wants: what is there is shown.
        assert_eq!(send(WqeOpcode::RDMA_READ, connected, &[]), "opcode=RDMA_READ ");
        assert_eq!(send(WqeOpcode::TAG_MATCHING, connected, &[]), "opcode=TAG_MATCHING ");
        inline[..4].copy_from_slice(&[0xff; 4]);
        let cut = send(WqeOpcode::SEND, connected, &[inline]);
        assert!(cut.starts_with("opcode=SEND  inline=12:010203ee"), "{cut}");
    }

    #[test]
    fn send_wqes_by_addressing() {
        let data = DataSegment::new(0x7000, 64, 0x1001).to_bytes();
        let mut av = DatagramSegment::zeroed().to(0x99, 0x11);
        av.rlid = 7.into();
        let av = av.to_bytes();
        let units: Vec<[u8; 16]> = av.chunks(16).map(|unit| unit.try_into().unwrap()).collect();
        assert_eq!(
            send(WqeOpcode::SEND, Some(Addressing::Datagram), &[units[0], units[1], units[2], data]),
            "opcode=SEND  qkey=0x11 dqp=0x99 rlid=7 data=0x7000+64 lkey=0x1001"
        );
        let remote = RemoteAddressSegment { raddr: 0x9000.into(), rkey: 2.into(), ..RemoteAddressSegment::zeroed() };
        assert_eq!(
            send(
                WqeOpcode::RDMA_READ,
                Some(Addressing::Dynamic),
                &[units[0], units[1], units[2], remote.to_bytes(), data]
            ),
            "opcode=RDMA_READ  dc_access_key=0x1100000000 dctn=0x99 rlid=7 raddr=0x9000 rkey=0x2 data=0x7000+64 lkey=0x1001"
        );
        let mut compact = units[0];
        compact[8] = 0;
        assert_eq!(
            send(WqeOpcode::SEND, Some(Addressing::Dynamic), &[compact, data]),
            "opcode=SEND  dc_access_key=0x1100000000 dctn=0x99 rlid=7 data=0x7000+64 lkey=0x1001"
        );
        let words = EthSegment::with_header(0xc0, &[9; 18]);
        let eth: Vec<u8> = words.iter().flat_map(|word| word.get().to_be_bytes()).collect();
        let units: Vec<[u8; 16]> = eth.chunks(16).map(|unit| unit.try_into().unwrap()).collect();
        assert_eq!(
            send(WqeOpcode::SEND, Some(Addressing::Ethernet), &[units[0], units[1], data]),
            "opcode=SEND  cs_flags=0xc0 inline_hdr_sz=0x0012 data=0x7000+64 lkey=0x1001"
        );
        // These opcodes are of frames only.
        let mut inline = [0xee; 16];
        inline[..7].copy_from_slice(&[0x80, 0, 0, 3, 1, 2, 3]);
        let eth = EthSegment { cs_flags: 0x40, ..EthSegment::zeroed() };
        assert_eq!(
            send(WqeOpcode::ENHANCED_MPSW, None, &[eth.to_bytes(), data, inline, data]),
            "opcode=ENHANCED_MPSW  cs_flags=0x40 inline_hdr_sz=0x0000 data=0x7000+64 lkey=0x1001 inline=3:010203 \
             data=0x7000+64 lkey=0x1001"
        );
        let eth = EthSegment { mss: 1460.into(), inline_hdr_sz: 18.into(), ..EthSegment::zeroed() };
        assert_eq!(
            send(WqeOpcode::TSO, None, &[eth.to_bytes(), [9; 16], data]),
            "opcode=TSO  cs_flags=0x00 mss=1460 inline_hdr_sz=0x0012 data=0x7000+64 lkey=0x1001"
        );
    }

    #[test]
    fn registers() {
        let text = RingText(0x0000_070a_0000_4103).to_string();
        assert_eq!(text, "opcode=SEND wqe_index=7 qp=0x41 ds=3");
    }
}
