//! WQEs and CQEs as text.

use std::fmt::{self, Display, Formatter};

use mlx5_wire::cqe::{APP_TAG_MATCHING, Cqe64, ErrorCqe};
use mlx5_wire::data::DataSegment;
use mlx5_wire::eth::EthSegment;
use mlx5_wire::frame::StrideCount;
use mlx5_wire::opcode::{CqeOpcode, WqeOpcode};

use super::super::frames::{L2_OK, send};
use super::super::objects::Service;
use super::super::wqe::{Flags, Kind, SendWqe};

/// Name of an opcode as in `mlx5dv.h`, without the prefix.
struct Opcode(WqeOpcode);

impl Display for Opcode {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        f.write_str(match self.0 {
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
            other => return write!(f, "{:#04x}", other.get()),
        })
    }
}

/// The first eight bytes of a control segment, as a register gets them.
pub struct Ring(pub u64);

impl Display for Ring {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let (qpn, index) = (self.0 >> 8 & 0xff_ffff, self.0 >> 40 & 0xffff);
        let opcode = Opcode(WqeOpcode::new((self.0 >> 32) as u8));
        write!(f, "qp={qpn:#x} wqe_index={index} opcode={opcode} ds={}", self.0 & 0x3f)
    }
}

/// A send WQE.
pub struct Send<'a>(pub &'a SendWqe, pub Service);

impl Display for Send<'_> {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let Self(wqe, service) = self;
        let ctrl = wqe.ctrl();
        let (index, opcode, ds) = (ctrl.index(), Opcode(ctrl.opcode()), ctrl.ds());
        write!(f, "wqe_index={index} opcode={opcode} ds={ds}")?;
        let flags = Flags(ctrl.fm_ce_se);
        for (set, name) in [
            (flags.signaled(), "signaled"),
            (flags.solicited(), "solicited"),
            (flags.fenced(), "fence"),
        ] {
            if set {
                write!(f, " {name}")?;
            }
        }
        if ctrl.imm.get() != 0 {
            write!(f, " imm={:#x}", ctrl.imm.get())?;
        }
        if ctrl.opcode() == WqeOpcode::TAG_MATCHING {
            return list_operation(f, wqe);
        }
        let Some((kind, _)) = Kind::of(ctrl.opcode(), *service) else {
            return hex(f, "bytes", wqe.tail(16));
        };
        if let (Service::Ud, Ok(av)) = (service, wqe.datagram()) {
            let (qpn, qkey) = (av.dqp_dct.get() & 0xff_ffff, av.qkey.get());
            write!(f, " dqp={qpn:#x} qkey={qkey:#x} rlid={}", av.rlid.get())?;
        }
        if *service == Service::Raw {
            return ethernet(f, wqe);
        }
        if let (Kind::Write | Kind::Read | Kind::Atomic, Ok(remote)) = (kind, wqe.remote()) {
            write!(f, " raddr={:#x} rkey={:#x}", remote.raddr.get(), remote.rkey.get())?;
        }
        if let (Kind::Atomic, Ok(atomic)) = (kind, wqe.atomic()) {
            let (swap_add, compare) = (atomic.swap_add.get(), atomic.compare.get());
            write!(f, " swap_add={swap_add:#x} compare={compare:#x}")?;
        }
        if kind != Kind::Nop {
            let at = SendWqe::data_offset(kind, *service);
            match wqe.inline_data(at) {
                Some(bytes) => hex(f, "inline", bytes)?,
                None => {
                    let segments: Vec<_> = wqe.segments(at).collect();
                    write!(f, " {}", Segments(&segments))?;
                }
            }
        }
        Ok(())
    }
}

fn ethernet(f: &mut Formatter, wqe: &SendWqe) -> fmt::Result {
    let (Some(segment), Ok(at)) = (wqe.tail(16).first_chunk(), send::data_offset(wqe)) else {
        return hex(f, "bytes", wqe.tail(16));
    };
    let segment = EthSegment::from_bytes(segment);
    let size = segment.inline_hdr_sz.get();
    write!(f, " cs_flags={:#04x} inline_hdr_sz={size:#x}", segment.cs_flags)?;
    let segments: Vec<_> = wqe.segments(at).collect();
    write!(f, " {}", Segments(&segments))
}

fn list_operation(f: &mut Formatter, wqe: &SendWqe) -> fmt::Result {
    let Ok(segment) = wqe.tag_matching() else { return hex(f, "bytes", wqe.tail(16)) };
    let (opcode, flags, index) = (segment.opcode >> 4, segment.flags, segment.index.get());
    write!(f, " tm_opcode={opcode} flags={flags:#x} index={index}")?;
    let (count, tag, mask) = (&segment.sw_cnt, &segment.append_tag, &segment.append_mask);
    write!(f, " sw_cnt={} tag={:#x} mask={:#x}", count.get(), tag.get(), mask.get())?;
    let segments: Vec<_> = wqe.segments(48).collect();
    if segments.is_empty() { Ok(()) } else { write!(f, " {}", Segments(&segments)) }
}

// Enough bytes to recognize the data.
const MOST_BYTES: usize = 16;

fn hex(f: &mut Formatter, name: &str, bytes: &[u8]) -> fmt::Result {
    write!(f, " {name}={}:", bytes.len())?;
    for byte in bytes.iter().take(MOST_BYTES) {
        write!(f, "{byte:02x}")?;
    }
    if bytes.len() > MOST_BYTES { f.write_str("..") } else { Ok(()) }
}

/// Data segments.
pub struct Segments<'a>(pub &'a [DataSegment]);

impl Display for Segments<'_> {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        f.write_str("data=[")?;
        for (index, segment) in self.0.iter().enumerate() {
            let space = if index > 0 { " " } else { "" };
            let (addr, len, lkey) = (&segment.addr, &segment.byte_count, &segment.lkey);
            write!(f, "{space}{:#x}+{} lkey={:#x}", addr.get(), len.get(), lkey.get())?;
        }
        f.write_str("]")
    }
}

/// A CQE.
pub struct Cqe<'a>(pub &'a [u8; 64]);

impl Display for Cqe<'_> {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let cqe = Cqe64::from_bytes(self.0);
        let counter = cqe.wqe_counter.get();
        let opcode = match cqe.opcode() {
            CqeOpcode::RequesterError | CqeOpcode::ResponderError => return self.error(f),
            CqeOpcode::Requester => "REQ",
            CqeOpcode::ResponderWriteImm => "RESP_WR_IMM",
            CqeOpcode::ResponderSend => "RESP_SEND",
            CqeOpcode::ResponderSendImm => "RESP_SEND_IMM",
            CqeOpcode::ResponderSendInv => "RESP_SEND_INV",
            CqeOpcode::ResizeCq => "RESIZE_CQ",
            CqeOpcode::NoPacket => "NO_PACKET",
            _ => return hex(f, "bytes", self.0),
        };
        // No CQE of RDMA has this bit, and fillers of a striding queue are known by their count.
        let count = StrideCount(cqe.byte_cnt.get());
        if cqe.opcode() == CqeOpcode::ResponderSend
            && (cqe.hds_ip_ext & L2_OK != 0 || count.is_filler())
        {
            return frame(f, &cqe, count);
        }
        write!(f, "opcode={opcode} qp={:#x} wqe_counter={counter}", cqe.qpn())?;
        write!(f, " byte_cnt={} uidx={:#x}", cqe.byte_cnt.get(), cqe.srqn_uidx.get())?;
        if cqe.opcode().is_responder() {
            write!(f, " rqpn={:#x}", cqe.flags_rqpn.get() & 0xff_ffff)?;
        }
        if cqe.imm_inval_pkey.get() != 0 {
            write!(f, " imm={:#x}", cqe.imm_inval_pkey.get())?;
        }
        if cqe.app == APP_TAG_MATCHING {
            write!(f, " app_op={:#x} app_info={}", cqe.app_op, cqe.app_info.get())?;
        }
        match self.0[63] >> 2 & 3 {
            0 => Ok(()),
            format => write!(f, " format={format}"),
        }
    }
}

fn frame(f: &mut Formatter, cqe: &Cqe64, count: StrideCount) -> fmt::Result {
    let (counter, wqe_id) = (cqe.wqe_counter.get(), cqe.wqe_id.get());
    write!(f, "opcode=RESP_SEND wqe_counter={counter} wqe_id={wqe_id}")?;
    write!(f, " byte_cnt={:#x} uidx={:#x}", cqe.byte_cnt.get(), cqe.srqn_uidx.get())?;
    if count.is_filler() {
        return f.write_str(" filler");
    }
    write!(f, " flow_tag={:#x} dropped={}", cqe.flow_tag(), cqe.dropped())?;
    write!(f, " hds_ip_ext={:#04x} l4_hdr_type_etc={:#04x}", cqe.hds_ip_ext, cqe.l4_hdr_type_etc)?;
    write!(
        f,
        " rx_hash_result={:#010x} vlan_info={:#06x}",
        cqe.rx_hash_result.get(),
        cqe.vlan_info.get()
    )
}

impl Cqe<'_> {
    fn error(&self, f: &mut Formatter) -> fmt::Result {
        let cqe = ErrorCqe::from_bytes(self.0);
        let sender = self.0[63] >> 4 == CqeOpcode::RequesterError.bits();
        let opcode = if sender { "REQ_ERR" } else { "RESP_ERR" };
        let qpn = cqe.s_wqe_opcode_qpn.get() & 0xff_ffff;
        write!(f, "opcode={opcode} qp={qpn:#x} wqe_counter={}", cqe.wqe_counter.get())?;
        write!(f, " syndrome={:#04x} vendor_err_synd={:#04x}", cqe.syndrome, cqe.vendor_err_synd)?;
        write!(f, " hw_err_synd={:#04x} hw_synd_type={:#04x}", cqe.hw_err_synd, cqe.hw_synd_type)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nic::memory::Unmapped;
    use mlx5_wire::be::Be32;
    use mlx5_wire::ctrl::{CQ_UPDATE, ControlSegment};
    use mlx5_wire::remote::RemoteAddressSegment;

    fn send(opcode: WqeOpcode, service: Service, units: &[[u8; 16]]) -> String {
        let mut wqe = SendWqe::default();
        let ds = units.len() as u8 + 1;
        let mut ctrl = ControlSegment::new(opcode.get(), 7, 0x41, ds, CQ_UPDATE);
        ctrl.imm = Be32::new(0xabc);
        wqe.load(ctrl, |bytes| {
            for (to, from) in bytes[16..].chunks_exact_mut(16).zip(units) {
                to.copy_from_slice(from);
            }
            Ok::<_, Unmapped>(())
        })
        .unwrap();
        Send(&wqe, service).to_string()
    }

    #[test]
    fn send_wqes() {
        let data = DataSegment::new(0x7000, 64, 0x1001).to_bytes();
        assert_eq!(
            send(WqeOpcode::SEND_IMM, Service::Rc, &[data, data]),
            "wqe_index=7 opcode=SEND_IMM ds=3 signaled imm=0xabc \
             data=[0x7000+64 lkey=0x1001 0x7000+64 lkey=0x1001]"
        );
        let remote = RemoteAddressSegment {
            raddr: 0x9000.into(),
            rkey: 0x2002.into(),
            ..RemoteAddressSegment::zeroed()
        };
        let mut inline = [0xee; 16];
        inline[..7].copy_from_slice(&[0x80, 0, 0, 3, 1, 2, 3]);
        assert_eq!(
            send(WqeOpcode::RDMA_WRITE, Service::Rc, &[remote.to_bytes(), inline]),
            "wqe_index=7 opcode=RDMA_WRITE ds=3 signaled imm=0xabc raddr=0x9000 rkey=0x2002 \
             inline=3:010203"
        );
        assert_eq!(
            send(WqeOpcode::UMR, Service::Rc, &[inline]),
            "wqe_index=7 opcode=UMR ds=2 signaled imm=0xabc \
             bytes=16:80000003010203eeeeeeeeeeeeeeeeee"
        );
        // Too short for what the opcode wants: what is there is shown.
        assert!(send(WqeOpcode::RDMA_READ, Service::Rc, &[]).ends_with("data=[]"));
        assert!(send(WqeOpcode::TAG_MATCHING, Service::Rc, &[]).ends_with("bytes=0:"));
    }

    #[test]
    fn cqes() {
        let mut cqe = Cqe64::zeroed();
        cqe.sop_drop_qpn = 0x41.into();
        cqe.wqe_counter = 5.into();
        cqe.byte_cnt = 64.into();
        cqe.flags_rqpn = 0x1000_0042.into();
        cqe.op_own = 0x28;
        assert_eq!(
            Cqe(&cqe.to_bytes()).to_string(),
            "opcode=RESP_SEND qp=0x41 wqe_counter=5 byte_cnt=64 uidx=0x0 rqpn=0x42 format=2"
        );
        let mut error = ErrorCqe::zeroed();
        error.s_wqe_opcode_qpn = 0x0a00_0041.into();
        error.syndrome = 5;
        error.op_own = 0xd0;
        assert_eq!(
            Cqe(&error.to_bytes()).to_string(),
            "opcode=REQ_ERR qp=0x41 wqe_counter=0 syndrome=0x05 vendor_err_synd=0x00 \
             hw_err_synd=0x00 hw_synd_type=0x00"
        );
    }

    #[test]
    fn cqes_of_frames() {
        let mut cqe = Cqe64::zeroed();
        (cqe.hds_ip_ext, cqe.l4_hdr_type_etc, cqe.op_own) = (7, 0x29, 0x20);
        (cqe.sop_drop_qpn, cqe.byte_cnt) = (0x0200_0abc.into(), 60.into());
        (cqe.wqe_counter, cqe.wqe_id, cqe.vlan_info) = (5.into(), 9.into(), 0x2064.into());
        assert_eq!(
            Cqe(&cqe.to_bytes()).to_string(),
            "opcode=RESP_SEND wqe_counter=5 wqe_id=9 byte_cnt=0x3c uidx=0x0 flow_tag=0xabc \
             dropped=2 hds_ip_ext=0x07 l4_hdr_type_etc=0x29 rx_hash_result=0x00000000 vlan_info=0x2064"
        );
        let filler = Cqe64 { byte_cnt: StrideCount::filler(3).0.into(), hds_ip_ext: 0, ..cqe };
        let text = Cqe(&filler.to_bytes()).to_string();
        assert!(text.ends_with("byte_cnt=0x80030000 uidx=0x0 filler"), "{text}");
    }

    #[test]
    fn cqes_of_adapters() {
        const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/silicon/dumps.txt");
        let dumps = std::fs::read_to_string(PATH).unwrap();
        let mut seen = 0;
        for stanza in dumps.split("\n\n").filter(|stanza| stanza.starts_with("cqe")) {
            let value = |key| stanza.lines().find_map(|line| line.strip_prefix(key)).unwrap();
            let hex = value("bytes ");
            let bytes = |at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap();
            let fields: Vec<_> = value("fields ").split([' ', '/']).collect();
            let [opcode, _, syndrome, vendor, hw, kind, _, qpn, counter, _] = fields[..] else {
                panic!()
            };
            let number = |hex| u32::from_str_radix(hex, 16).unwrap();
            assert_eq!(
                Cqe(&std::array::from_fn(bytes)).to_string(),
                format!(
                    "opcode={opcode} qp={:#x} wqe_counter={} syndrome=0x{syndrome} \
                     vendor_err_synd=0x{vendor} hw_err_synd=0x{hw} hw_synd_type=0x{kind}",
                    number(qpn),
                    number(counter)
                )
            );
            seen += 1;
        }
        assert_eq!(seen, 28);
    }

    #[test]
    fn rings() {
        assert_eq!(Ring(0x0000_070a_0000_4103).to_string(), "qp=0x41 wqe_index=7 opcode=SEND ds=3");
    }
}
