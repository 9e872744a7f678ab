//! Whole send WQEs, as libmlx5 writes them: segments put together are the bytes of the worked examples.

use mlx5_wire::be::{Be16, Be32};
use mlx5_wire::ctrl::{CQ_UPDATE, ControlSegment, FENCE, SOLICITED};
use mlx5_wire::data::DataSegment;
use mlx5_wire::datagram::{DatagramSegment, GlobalRoute};
use mlx5_wire::eth::{EthSegment, L3_CSUM, L4_CSUM};
use mlx5_wire::inline::InlineHeader;
use mlx5_wire::opcode::WqeOpcode;
use mlx5_wire::remote::{AtomicSegment, RemoteAddressSegment, XrcSegment};

const QPN: u32 = 0x12_3456;

fn ctrl(opcode: WqeOpcode, index: u16, ds: u8, flags: u8) -> ControlSegment {
    ControlSegment::new(opcode.get(), index, QPN, ds, flags)
}

fn data(length: u32) -> DataSegment {
    DataSegment::new(0x1122_3344_5566_7788, length, 0xaabb_ccdd)
}

/// Bytes of words in hexadecimal digits.
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<_> = text.chars().filter(|digit| !digit.is_whitespace()).collect();
    let byte = |pair: &[char]| u8::from_str_radix(&String::from_iter(pair), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

macro_rules! wqe {
    ($($segment:expr),*) => {{
        let mut bytes = Vec::new();
        $(bytes.extend($segment.to_bytes());)*
        let units = ControlSegment::from_bytes(bytes[..16].try_into().unwrap()).ds();
        assert_eq!(usize::from(units), bytes.len().div_ceil(16), "ds");
        bytes
    }};
}

const DATA_100: &str = "00000100 aabbccdd 11223344 55667788";

#[test]
fn send_signaled_and_solicited() {
    let wqe = wqe!(ctrl(WqeOpcode::SEND, 0, 2, CQ_UPDATE | SOLICITED), data(0x100));
    assert_eq!(wqe, hex(&format!("0000000a 12345602 0000000a 00000000 {DATA_100}")));
}

#[test]
fn send_with_immediate_and_three_entries() {
    let mut head = ctrl(WqeOpcode::SEND_IMM, 1, 4, 0);
    head.imm = Be32::new(0xcafe);
    let wqe = wqe!(head, data(0x100), data(0x100), data(0x100));
    let expected = format!("0000010b 12345604 00000000 0000cafe {DATA_100} {DATA_100} {DATA_100}");
    assert_eq!(wqe, hex(&expected));
}

#[test]
fn write_after_a_fence() {
    let remote = RemoteAddressSegment::new(0x0102_0304_0506_0708, 0x99);
    let wqe = wqe!(ctrl(WqeOpcode::RDMA_WRITE, 2, 3, FENCE), remote, data(0x100));
    let head = "00000208 12345603 00000080 00000000 01020304 05060708 00000099 00000000";
    assert_eq!(wqe, hex(&format!("{head} {DATA_100}")));
}

#[test]
fn compare_and_swap() {
    let remote = RemoteAddressSegment::new(0x1000, 0x99);
    let atomic = AtomicSegment::compare_swap(0x11, 0x22);
    let wqe = wqe!(ctrl(WqeOpcode::ATOMIC_CS, 3, 4, CQ_UPDATE), remote, atomic, data(8));
    let expected = "00000311 12345604 00000008 00000000 00000000 00001000 00000099 00000000
        00000000 00000022 00000000 00000011 00000008 aabbccdd 11223344 55667788";
    assert_eq!(wqe, hex(expected));
}

#[test]
fn send_without_entries() {
    let wqe = wqe!(ctrl(WqeOpcode::SEND, 5, 1, 0));
    assert_eq!(wqe, hex("0000050a 12345601 00000000 00000000"));
}

#[test]
fn inline_bytes_stand_directly_after_their_header() {
    assert_eq!(InlineHeader::units(100), 7);
    let head = ctrl(WqeOpcode::SEND, 7, 8, CQ_UPDATE);
    let mut wqe = [&head.to_bytes()[..], &InlineHeader::new(100).to_bytes()].concat();
    wqe.extend(0..100);
    assert_eq!(wqe[..32], hex("0000070a 12345608 00000008 00000000 80000064 00010203 04050607 08090a0b"));
    // The first block ends after 44 bytes, in an inline segment of which the rest is at offset 0 of a queue of 8.
    assert_eq!(wqe[64..68], [44, 45, 46, 47]);
}

#[test]
fn datagram() {
    let rgid = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
    let route = GlobalRoute { dgid: rgid, sgid_index: 0, flow_label: 0, tclass: 0x20, hop_limit: 0x40 };
    let mut to = DatagramSegment::roce([1, 2, 3, 4, 5, 6], 0xc001, 0, route).to(0x55, 0x1111_1111);
    to.stat_rate_sl = 3 << 4;
    let wqe = wqe!(ctrl(WqeOpcode::SEND, 7, 5, CQ_UPDATE), to, data(0x100));
    let expected = format!(
        "0000070a 12345605 00000008 00000000 11111111 00000000 80000055 3000c001
         00000000 01020304 05062040 00000000 fe800000 00000000 00000000 00000009 {DATA_100}"
    );
    assert_eq!(wqe, hex(&expected));
}

#[test]
fn xrc_write() {
    let xrc = XrcSegment { xrc_srqn: Be32::new(0x77), reserved4: [0; 12] };
    let remote = RemoteAddressSegment::new(0x1000, 0x99);
    let wqe = wqe!(ctrl(WqeOpcode::RDMA_WRITE, 0, 4, 0), xrc, remote, data(0x100));
    assert_eq!(wqe[..32], hex("00000008 12345604 00000000 00000000 00000077 00000000 00000000 00000000"));
}

#[test]
fn raw_packets() {
    let eth = EthSegment { cs_flags: L3_CSUM | L4_CSUM, ..EthSegment::zeroed() };
    let wqe = wqe!(ctrl(WqeOpcode::SEND, 0, 3, CQ_UPDATE), eth, data(0x40));
    let expected = "0000000a 12345603 00000008 00000000 00000000 c0000000 00000000 00000000
        00000040 aabbccdd 11223344 55667788";
    assert_eq!(wqe, hex(expected));
    // With 18 bytes inline, of which two stand in the segment.
    let eth = EthSegment { inline_hdr_sz: Be16::new(18), inline_hdr_start: [0xd0, 0xd1], ..EthSegment::zeroed() };
    assert_eq!(eth.to_bytes()[..], hex("00000000 00000000 00000000 0012d0d1"));
    let tso = EthSegment {
        mss: Be16::new(1460),
        inline_hdr_sz: Be16::new(54),
        inline_hdr_start: [0xa0, 0xa1],
        ..EthSegment::zeroed()
    };
    let head = ctrl(WqeOpcode::TSO, 0, 7, CQ_UPDATE);
    assert_eq!(head.to_bytes()[..], hex("0000000e 12345607 00000008 00000000"));
    assert_eq!(tso.to_bytes()[..], hex("00000000 000005b4 00000000 0036a0a1"));
}
